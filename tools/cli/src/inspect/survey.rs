//! What the superblocks of a device say, and how the device is divided when they say nothing.

use terrace_nvme::format::{
    DeviceId, FormatError, SEGMENT_LEN_MIN, SEGMENT_LEN_STEP, SEGMENTS_START, SUPERBLOCK_OFFSETS,
    SegmentHead, Superblock, segment_count,
};
use terrace_nvme::set::SetMedium;
use terrace_nvme::{AlignedBuffer, UNIT};

/// Places that are tried for a segment head when no superblock tells where they lie: those of
/// the first 4 GiB, which hold many segments of any usual length.
const GUESS_STEPS: u64 = 4096;

/// One copy of a superblock.
#[derive(Debug)]
pub enum SuperblockCopy {
    /// It can be read.
    Valid(Box<Superblock>),
    /// It is ours and damaged.
    Damaged(FormatError),
    /// A later build wrote it; its version.
    Later(u32),
    /// Nothing of ours was ever written there, or its magic is lost.
    Absent,
    /// The device does not give its bytes.
    Unreadable(String),
}

impl SuperblockCopy {
    fn read(medium: &dyn SetMedium, offset: u64) -> Self {
        if offset + UNIT > medium.len() {
            return Self::Unreadable("the device ends before it".to_owned());
        }
        let mut unit = AlignedBuffer::zeroed(UNIT as usize);
        if let Err(error) = medium.read(offset, &mut unit) {
            return Self::Unreadable(error.to_string());
        }
        match Superblock::decode(unit.bytes()) {
            Ok(superblock) => Self::Valid(Box::new(superblock)),
            Err(FormatError::Version { found, .. }) => Self::Later(found),
            Err(error) if error.is_absent() => Self::Absent,
            Err(error) => Self::Damaged(error),
        }
    }

    const fn valid(&self) -> Option<&Superblock> {
        match self {
            Self::Valid(superblock) => Some(superblock),
            _ => None,
        }
    }
}

/// Both copies of a device's superblock.
#[derive(Debug)]
pub struct Survey {
    /// The copies, in the order of their offsets.
    pub copies: [SuperblockCopy; 2],
}

impl Survey {
    /// Reads both copies.
    #[must_use]
    pub fn of(medium: &dyn SetMedium) -> Self {
        Self {
            copies: SUPERBLOCK_OFFSETS.map(|offset| SuperblockCopy::read(medium, offset)),
        }
    }

    /// The copy that counts, and which it is.
    #[must_use]
    pub fn current(&self) -> Option<(usize, &Superblock)> {
        let valid = self.copies.iter().enumerate();
        let valid = valid.filter_map(|(place, copy)| Some((place, copy.valid()?)));
        // Of two equal counts the first is read, as an open does.
        valid.rev().max_by_key(|(_, copy)| copy.write_count)
    }

    /// The version of a copy that this build does not read.
    #[must_use]
    pub fn later_version(&self) -> Option<u32> {
        self.copies.iter().find_map(|copy| match copy {
            SuperblockCopy::Later(version) => Some(*version),
            _ => None,
        })
    }

    /// Whether a copy is of ours, readable or not.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        let ours = |copy: &SuperblockCopy| {
            matches!(copy, SuperblockCopy::Valid(_) | SuperblockCopy::Damaged(_))
        };
        self.copies.iter().any(ours)
    }

    /// The copies that are damaged: place and reason. An absent copy beside a valid one is how
    /// a device looks before its second write.
    #[must_use]
    pub fn damages(&self) -> Vec<(usize, String)> {
        let copies = self.copies.iter().enumerate();
        copies
            .filter_map(|(place, copy)| match copy {
                SuperblockCopy::Damaged(error) => Some((place, error.to_string())),
                SuperblockCopy::Unreadable(error) => Some((place, error.clone())),
                SuperblockCopy::Absent if self.is_needed(place) => {
                    Some((place, "there is none: its magic is missing".to_owned()))
                }
                _ => None,
            })
            .collect()
    }

    /// Whether a copy must have been written: the other one tells of more than one write, or
    /// cannot be read either.
    fn is_needed(&self, place: usize) -> bool {
        let other = self.copies.get(1 - place).and_then(SuperblockCopy::valid);
        other.is_none_or(|other| other.write_count > 1)
    }
}

/// Where the division of a device was learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its superblock.
    Superblock,
    /// The caller gave the length of a segment.
    Given,
    /// The head of this segment.
    Head(u32),
}

/// How a device is divided.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// The device's id; `None` when not even a segment head tells it.
    pub device: Option<DeviceId>,
    /// Length of a segment in bytes.
    pub segment_len: u64,
    /// Count of segments.
    pub segment_count: u32,
    /// Where this was learned from.
    pub origin: Origin,
}

impl Geometry {
    /// What the superblock says.
    #[must_use]
    pub const fn of(superblock: &Superblock) -> Self {
        Self {
            device: Some(superblock.device_id),
            segment_len: superblock.segment_len,
            segment_count: superblock.segment_count,
            origin: Origin::Superblock,
        }
    }

    /// Segments that begin before the end of a device of `len` bytes.
    #[must_use]
    pub fn count_within(&self, len: u64) -> u32 {
        let usable = len.saturating_sub(SEGMENTS_START + UNIT - 1);
        let count = usable.div_ceil(self.segment_len.max(1));
        count.min(u64::from(self.segment_count)) as u32
    }

    /// Looks for segment heads where they would lie. `segment_len` is what the caller knows.
    #[must_use]
    pub fn guess(medium: &dyn SetMedium, segment_len: Option<u64>) -> Option<Self> {
        let step = segment_len.unwrap_or(SEGMENT_LEN_STEP);
        if step < SEGMENT_LEN_STEP || !step.is_multiple_of(SEGMENT_LEN_STEP) {
            return None;
        }
        let offsets = (0..GUESS_STEPS).map(|count| SEGMENTS_START + count * step);
        let fitting = offsets.take_while(|offset| offset + UNIT <= medium.len());
        let head = fitting.filter_map(|offset| head_at(medium, offset)).next();
        let head = head.filter(|head| segment_len.is_none_or(|len| len == head.len))?;
        Some(Self {
            device: Some(head.device),
            segment_len: head.len,
            segment_count: segment_count(medium.len(), head.len),
            origin: match segment_len {
                Some(_) => Origin::Given,
                None => Origin::Head(head.number),
            },
        })
    }
}

/// The head at `offset`, if one is valid and lies where it says it does.
fn head_at(medium: &dyn SetMedium, offset: u64) -> Option<SegmentHead> {
    let mut unit = AlignedBuffer::zeroed(UNIT as usize);
    medium.read(offset, &mut unit).ok()?;
    let head = SegmentHead::decode(unit.bytes()).ok()?;
    let place = u64::from(head.number).checked_mul(head.len)?;
    (place.checked_add(SEGMENTS_START)? == offset).then_some(head)
}

const _: () = assert!(SEGMENT_LEN_MIN >= SEGMENT_LEN_STEP);
