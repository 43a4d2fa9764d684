//! What lies on a device that has no superblock of ours.

use terrace_nvme::file::Content;
use terrace_nvme::set::SetMedium;
use terrace_nvme::{AlignedBuffer, UNIT};

/// Says what lies on a device without a superblock.
#[must_use]
pub fn describe(medium: &dyn SetMedium) -> String {
    let len = medium.len() / UNIT * UNIT;
    let head = read(medium, 0, len.min(Content::HEAD_LEN));
    let tail_len = len.min(Content::TAIL_LEN);
    let tail = read(medium, len - tail_len, tail_len);
    let (Some(head), Some(tail)) = (head, tail) else {
        return "cannot be read".to_owned();
    };
    match Content::of(&head, &tail) {
        Content::Foreign { what } => format!("holds {what}"),
        Content::Empty => {
            "holds nothing but zeros where it was looked: not formatted by Terrace".to_owned()
        }
        Content::Ours => "its superblocks cannot be read".to_owned(),
    }
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
