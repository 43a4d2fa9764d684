//! Telling a device of ours from an empty one, and both from what somebody else would miss.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::errors::OpenError;
use crate::UNIT;
use crate::buffer::AlignedBuffer;

/// First bytes of each of our two superblocks.
const MAGIC: &[u8] = b"TERRACES";

/// Where our two superblocks lie.
const SUPERBLOCKS: [usize; 2] = [0, 512 << 10];

/// As much as is looked at from the start: all that we or a file system's head could take.
const HEAD_LEN: u64 = 1 << 20;

/// As much as is looked at before the end, where some keep a copy of their head.
const TAIL_LEN: u64 = 64 << 10;

/// What lies on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A superblock of ours, readable or not.
    Ours,
    /// Zeros, as far as was looked: the first 1 MiB and the last 64 KiB.
    Empty,
    /// Something else, which would be lost.
    Foreign {
        /// What it looks like.
        what: String,
    },
}

/// Marks by which others are known: name, offset, bytes.
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

/// Looks at a device's start and end.
pub(super) fn look(path: &Path, file: &File, len: u64) -> Result<Content, OpenError> {
    let read = |offset: u64, count: u64| {
        let mut buffer = AlignedBuffer::zeroed(count as usize);
        file.read_exact_at(buffer.bytes_mut(), offset)
            .map_err(|error| OpenError::os(path, "read", error))?;
        Ok::<_, OpenError>(buffer)
    };
    let head = read(0, len.min(HEAD_LEN))?;
    let tail_len = len.min(TAIL_LEN) / UNIT * UNIT;
    let tail = read(len - tail_len, tail_len)?;
    Ok(judge(head.bytes(), tail.bytes()))
}

/// Judges by the first bytes of a device and its last.
pub(crate) fn judge(head: &[u8], tail: &[u8]) -> Content {
    let has = |offset: usize, mark: &[u8]| head.get(offset..offset + mark.len()) == Some(mark);
    if SUPERBLOCKS.iter().any(|offset| has(*offset, MAGIC)) {
        return Content::Ours;
    }
    if let Some((what, _, _)) = MARKS.iter().find(|(_, offset, mark)| has(*offset, mark)) {
        let what = (*what).to_owned();
        return Content::Foreign { what };
    }
    if head.iter().chain(tail).all(|byte| *byte == 0) {
        return Content::Empty;
    }
    Content::Foreign {
        what: "bytes that are not Terrace's".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_told_by_its_marks() {
        let zeros = vec![0; HEAD_LEN as usize];
        let marked = |offset: usize, mark: &[u8]| {
            let mut head = zeros.clone();
            head[offset..offset + mark.len()].copy_from_slice(mark);
            judge(&head, &[0; 4096])
        };
        assert_eq!(judge(&zeros, &[0; 4096]), Content::Empty);
        for offset in SUPERBLOCKS {
            assert_eq!(marked(offset, MAGIC), Content::Ours);
        }
        for (name, offset, mark) in MARKS {
            let what = name.to_owned();
            assert_eq!(marked(offset, mark), Content::Foreign { what });
        }
        let what = "bytes that are not Terrace's".to_owned();
        let other = Content::Foreign { what };
        assert_eq!(marked(700_000, b"x"), other);
        assert_eq!(judge(&zeros, &[1; 4096]), other);
        assert_eq!(judge(&[0; 4096], &[0; 4096]), Content::Empty, "one unit");
    }
}
