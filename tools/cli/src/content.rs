//! What lies on a device that has no superblock of ours.

use terrace_nvme::set::SetMedium;
use terrace_nvme::{AlignedBuffer, UNIT};

/// As much as is looked at from the start; marks of file systems lie there.
const HEAD_LEN: u64 = 1 << 20;

/// As much as is looked at before the end.
const TAIL_LEN: u64 = 64 << 10;

/// Marks by which others are known: name, offset, bytes. Those that an opening engine knows.
const MARKS: [(&str, usize, &[u8]); 16] = [
    ("an XFS file system", 0, b"XFSB"),
    ("an encrypted LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    ("a btrfs file system", 65_600, b"_BHRfS_M"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a member of a RAID array", 4096, b"\xfc\x4e\x2b\xa9"),
    ("a member of a RAID array", 0, b"\xfc\x4e\x2b\xa9"),
    ("an f2fs file system", 1024, b"\x10\x20\xf5\xf2"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("a partition table (GPT)", 512, b"EFI PART"),
    ("a partition table (GPT)", 4096, b"EFI PART"),
    ("a partition table (MBR)", 510, b"\x55\xaa"),
];

/// Says what lies on a device without a superblock.
#[must_use]
pub fn describe(medium: &dyn SetMedium) -> String {
    let len = medium.len() / UNIT * UNIT;
    let head = read(medium, 0, len.min(HEAD_LEN));
    let tail_len = len.min(TAIL_LEN);
    let tail = read(medium, len - tail_len, tail_len);
    let (Some(head), Some(tail)) = (head, tail) else {
        return "cannot be read".to_owned();
    };
    let has = |offset: usize, mark: &[u8]| head.get(offset..offset + mark.len()) == Some(mark);
    if let Some((what, _, _)) = MARKS.iter().find(|(_, offset, mark)| has(*offset, mark)) {
        return format!("holds {what}, not a device of Terrace");
    }
    if head.iter().chain(&tail).all(|byte| *byte == 0) {
        return "holds nothing but zeros where it was looked: not formatted by Terrace".to_owned();
    }
    "holds bytes that are not Terrace's".to_owned()
}

/// Bytes of a device; none at all when it is shorter than a unit.
fn read(medium: &dyn SetMedium, offset: u64, len: u64) -> Option<Vec<u8>> {
    if len == 0 {
        // Too short for anything of ours, and for most of what others put there.
        return Some(vec![1]);
    }
    let mut buffer = AlignedBuffer::zeroed(len as usize);
    medium.read(offset, &mut buffer).ok()?;
    Some(buffer.bytes().to_vec())
}
