//! Which shard begins with which segments.
//!
//! **Invariants**
//! - Every segment has one owner. A segment of this shard count is owned by the shard that its
//!   head names.
//! - A used segment of another shard count is in every plan, for any shard may own keys of it.
//! - Of each device every shard owns nearly as many segments as any other, as far as the used
//!   ones permit. The same heads give the same plans.

use super::medium::SetMedium;
use super::{SetError, member};
use crate::UNIT;
use crate::buffer::AlignedBuffer;
use crate::format::{SEGMENTS_START, SegmentHead, Superblock};

/// What a segment holds, as far as its head tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Nothing.
    Free,
    /// Frames, and perhaps a footer.
    Used(SegmentHead),
}

/// A segment as a shard begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPlan {
    /// The device's place among those given.
    pub device: usize,
    /// The segment's number on the device.
    pub number: u32,
    /// What it holds.
    pub state: SegmentState,
    /// Whether it was written under another shard count: its keys belong to many shards.
    pub legacy: bool,
    /// Whether this shard reclaims it, and opens it again.
    pub owned: bool,
}

/// What a shard begins with, by device and number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardPlan {
    /// Segments it owns, and those that it reads without owning them.
    pub segments: Vec<SegmentPlan>,
}

/// The heads of a device's segments.
#[derive(Default)]
pub(super) struct HeadsRead {
    /// By number; shorter than the count of segments for a new device.
    pub(super) heads: Vec<Option<SegmentHead>>,
    /// Heads that are neither valid nor zero.
    pub(super) damaged: usize,
    /// The highest open epoch of a head.
    pub(super) open_epoch_max: Option<u32>,
}

/// Reads the heads of all segments of a device; none of one that is not formatted.
pub(super) fn read_heads(
    medium: &dyn SetMedium,
    superblock: Option<&Superblock>,
) -> Result<HeadsRead, SetError> {
    let mut read = HeadsRead::default();
    let Some(superblock) = superblock else {
        return Ok(read);
    };
    let mut unit = AlignedBuffer::zeroed(UNIT as usize);
    for number in 0..superblock.segment_count {
        let offset = SEGMENTS_START + u64::from(number) * superblock.segment_len;
        member::read(medium, offset, &mut unit)?;
        //= docs/on-disk-format.md#OD-1
        let head = SegmentHead::decode(unit.bytes()).ok().filter(|head| {
            head.device == superblock.device_id
                && head.number == number
                && head.len == superblock.segment_len
        });
        if head.is_none() && !member::is_zero(&unit) {
            read.damaged += 1;
        }
        let epoch = head.map(|head| head.sequence.open_epoch());
        read.open_epoch_max = read.open_epoch_max.max(epoch);
        read.heads.push(head);
    }
    Ok(read)
}

/// Gives every segment to a shard. `counts` are the segments of each device, `heads` what they
/// hold, by number; a new device's may be left out.
#[must_use]
pub fn plan_segments(
    counts: &[u32],
    heads: Vec<Vec<Option<SegmentHead>>>,
    shards: u32,
) -> Vec<ShardPlan> {
    let mut plans = vec![ShardPlan::default(); shards as usize];
    for (device, (count, mut heads)) in counts.iter().zip(heads).enumerate() {
        heads.resize(*count as usize, None);
        let owners = owners(&heads, shards);
        for (number, (head, owner)) in (0..).zip(heads.iter().zip(owners)) {
            let legacy = head.is_some_and(|head| head.shards != shards);
            for (shard, plan) in (0..).zip(&mut plans) {
                let owned = shard == owner;
                //= docs/on-disk-format.md#OD-13
                if owned || legacy {
                    plan.segments.push(SegmentPlan {
                        device,
                        number,
                        state: head.map_or(SegmentState::Free, SegmentState::Used),
                        legacy,
                        owned,
                    });
                }
            }
        }
    }
    plans
}

/// The owner of each segment of a device: first those whose head names one, then those of other
/// shard counts, then free ones go to whoever has fewest.
fn owners(heads: &[Option<SegmentHead>], shards: u32) -> Vec<u32> {
    let mut counts = vec![0_u32; shards as usize];
    let mut owners = vec![None; heads.len()];
    for (owner, head) in owners.iter_mut().zip(heads) {
        if let Some(head) = head.filter(|head| head.shards == shards) {
            counts[head.shard as usize] += 1;
            *owner = Some(head.shard);
        }
    }
    // Those that hold something go first: each costs its owner work.
    for (owner, head) in owners.iter_mut().zip(heads) {
        if head.is_some() && owner.is_none() {
            *owner = Some(take_fewest(&mut counts));
        }
    }
    owners
        .into_iter()
        .map(|owner| owner.unwrap_or_else(|| take_fewest(&mut counts)))
        .collect()
}

/// Counts one more for the first of those with the lowest count.
fn take_fewest(counts: &mut [u32]) -> u32 {
    let fewest = (0_u32..).zip(&mut *counts).min_by_key(|(_, count)| **count);
    let (shard, count) = fewest.expect("there is a shard");
    *count += 1;
    shard
}
