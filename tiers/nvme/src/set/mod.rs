//! The devices of a node, opened together before any shard runs.
//!
//! **Invariants**
//! - Nothing is written before every check has passed, and nothing of a set that is refused.
//! - The open epoch that shards draw sequences from is on all devices, and survives power loss,
//!   before [`DeviceSet::open`] returns.
//! - A segment that holds something is in the plan of every shard that may own a key of it.
//!
//! All of it waits for the medium: it runs where no shard does.

mod error;
mod list;
mod medium;
mod member;
mod options;
mod plan;
#[cfg(test)]
mod tests;

use crate::format::{
    DeviceId, DeviceState, OPEN_EPOCH_MAX, SetDevice, Superblock, segment_count, segment_len_for,
};
use list::{Candidate, Decision};
use member::{Member, Survey};
use plan::HeadsRead;

pub use error::SetError;
pub use medium::{MediumError, SetMedium, os_random};
pub use options::{MissingDevices, Random, SetOptions};
pub use plan::{SegmentPlan, SegmentState, ShardPlan, plan_segments};

/// Fewest segments of a device for each shard: one open for each of two streams, one that is
/// reclaimed, and one to reclaim into.
pub const SEGMENTS_PER_SHARD_MIN: u32 = 4;

/// A device of an open set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetDeviceState {
    /// Its id.
    pub id: DeviceId,
    /// Its name.
    pub name: String,
    /// Length in use, bytes.
    pub len: u64,
    /// Length of each segment, bytes.
    pub segment_len: u64,
    /// Count of segments.
    pub segment_count: u32,
    /// Whether it is to be emptied: nothing new is written to it.
    pub draining: bool,
    /// Whether it is empty, and the set no longer needs it.
    pub drained: bool,
}

/// An open set. `devices` are in the order in which they were given.
pub struct DeviceSet {
    /// The devices that are there.
    pub devices: Vec<SetDeviceState>,
    /// The id of the set.
    pub set_id: DeviceId,
    /// The id of the node.
    pub node_id: DeviceId,
    /// Grows with every change of the list of devices.
    pub set_epoch: u64,
    /// The epoch of this open.
    pub open_epoch: u32,
    /// Count of shards of the open before this one; `None` for a new set.
    pub previous_shards: Option<u32>,
    /// Whether every device was closed cleanly by the open before this one.
    pub previous_clean: bool,
    /// Devices that the set lists and that are not there.
    pub absent: Vec<SetDevice>,
    /// Devices that this open took off the list for good.
    pub forgotten: Vec<SetDevice>,
    /// What each shard begins with.
    pub plans: Vec<ShardPlan>,
    /// Devices that this open formatted.
    pub formatted: usize,
    /// Segments whose head is neither valid nor zero.
    pub damaged_heads: usize,
    /// Copies of superblocks that were damaged beside a valid one.
    pub damaged_superblocks: usize,
    members: Vec<Member>,
    read_only: bool,
}

impl DeviceSet {
    /// Opens the set that `devices` belong to, or makes one of them when none belongs to any.
    /// The caller has made sure that a device without a superblock holds nothing of value.
    ///
    /// # Errors
    /// [`SetError`] names the device and what is wrong; nothing was written then, unless it is
    /// the medium that failed.
    ///
    /// # Panics
    /// When `options` name no shard, or a device to drain that was not given.
    pub fn open(devices: Vec<Box<dyn SetMedium>>, options: &SetOptions) -> Result<Self, SetError> {
        assert!(
            options.shards >= 1,
            "a set is opened for at least one shard"
        );
        assert!(options.drain.iter().all(|place| *place < devices.len()));
        if devices.is_empty() {
            return Err(SetError::NoDevices);
        }
        let surveys = devices
            .iter()
            .map(|medium| member::survey(&**medium, options))
            .collect::<Result<Vec<Survey>, _>>()?;
        let mut candidates = Vec::with_capacity(devices.len());
        for (medium, survey) in devices.iter().zip(&surveys) {
            candidates.push(candidate(&**medium, survey, options)?);
        }
        let mut decision = list::decide(&candidates, options)?;
        let heads = surveys
            .iter()
            .zip(&devices)
            .map(|(survey, medium)| plan::read_heads(&**medium, survey.superblock.as_ref()))
            .collect::<Result<Vec<HeadsRead>, _>>()?;
        //= docs/on-disk-format.md#OD-3
        // The newest copy of a superblock may have rotted away: heads tell of later opens too.
        let written = heads.iter().filter_map(|heads| heads.open_epoch_max).max();
        let previous = decision.open_epoch.max(written.unwrap_or(0));
        decision.previous_clean &= previous == decision.open_epoch;
        if previous >= OPEN_EPOCH_MAX && !options.read_only {
            return Err(SetError::OpenEpochsUsedUp);
        }
        decision.open_epoch = previous + u32::from(!options.read_only);
        let superblocks: Vec<Superblock> = candidates
            .iter()
            .map(|candidate| superblock_for(candidate, &decision, options.shards))
            .collect();
        let mut set = Self::assemble(devices, &surveys, superblocks, &decision);
        set.damaged_heads = heads.iter().map(|heads| heads.damaged).sum();
        set.read_only = options.read_only;
        if !options.read_only {
            set.format_new(&surveys)?;
            set.write_superblocks()?;
        }
        let counts = set
            .members
            .iter()
            .map(|member| member.superblock.segment_count);
        let heads = heads.into_iter().map(|read| read.heads).collect();
        set.plans = plan_segments(&counts.collect::<Vec<_>>(), heads, options.shards);
        Ok(set)
    }

    fn assemble(
        devices: Vec<Box<dyn SetMedium>>,
        surveys: &[Survey],
        superblocks: Vec<Superblock>,
        decision: &Decision,
    ) -> Self {
        let members: Vec<Member> = devices
            .into_iter()
            .zip(surveys)
            .zip(superblocks)
            .map(|((medium, survey), superblock)| Member::new(medium, superblock, survey.copy))
            .collect();
        let absent = |device: &&SetDevice| device.state == DeviceState::Absent;
        Self {
            devices: members.iter().map(Member::state).collect(),
            set_id: decision.set_id,
            node_id: decision.node_id,
            set_epoch: decision.set_epoch,
            open_epoch: decision.open_epoch,
            previous_shards: decision.previous_shards,
            previous_clean: decision.previous_clean,
            absent: decision.list.iter().filter(absent).copied().collect(),
            forgotten: decision.forgotten.clone(),
            plans: Vec::new(),
            formatted: 0,
            damaged_heads: 0,
            damaged_superblocks: surveys.iter().map(|survey| survey.damaged_copies).sum(),
            members,
            read_only: false,
        }
    }

    /// Formats the devices that have no superblock. Each is then known to belong to the set, and
    /// that the set did not take it in yet.
    fn format_new(&mut self, surveys: &[Survey]) -> Result<(), SetError> {
        for (member, survey) in self.members.iter_mut().zip(surveys) {
            if survey.superblock.is_none() {
                member.format()?;
                self.formatted += 1;
            }
        }
        Ok(())
    }

    /// Writes the superblocks of all devices; the first failure is returned when all were tried.
    fn write_superblocks(&mut self) -> Result<(), SetError> {
        let mut outcome = Ok(());
        for member in &mut self.members {
            outcome = outcome.and(member.write());
        }
        outcome
    }

    /// Marks the set as closed cleanly. Every shard has ended, and what it wrote is flushed.
    ///
    /// # Errors
    /// [`SetError::Medium`]; the other devices are marked all the same.
    pub fn close(&mut self) -> Result<(), SetError> {
        if self.read_only {
            return Ok(());
        }
        for member in &mut self.members {
            member.superblock.closed_cleanly = true;
        }
        self.write_superblocks()
    }

    /// Says that a draining device was emptied, and that nothing uses it any more: all that is
    /// kept of it is durable elsewhere. Its segments are erased, and an open without it needs
    /// no leave.
    ///
    /// # Errors
    /// [`SetError::ReadOnly`], or [`SetError::Medium`]: it may be marked on some devices then.
    ///
    /// # Panics
    /// When the device is not draining.
    pub fn remove_drained(&mut self, place: usize) -> Result<(), SetError> {
        assert!(
            self.devices[place].draining,
            "only a draining device is emptied"
        );
        if self.read_only {
            return Err(SetError::ReadOnly);
        }
        if self.devices[place].drained {
            return Ok(());
        }
        self.members[place].erase_heads()?;
        //= docs/on-disk-format.md#OD-14
        self.set_epoch += 1;
        let id = self.devices[place].id;
        for member in &mut self.members {
            let superblock = &mut member.superblock;
            superblock.set_epoch = self.set_epoch;
            for device in &mut superblock.devices {
                if device.id == id {
                    device.state = DeviceState::Drained;
                }
                if device.state != DeviceState::Absent {
                    device.last_set_epoch = self.set_epoch;
                }
            }
        }
        self.devices[place].drained = true;
        self.write_superblocks()
    }
}

fn candidate(
    medium: &dyn SetMedium,
    survey: &Survey,
    options: &SetOptions,
) -> Result<Candidate, SetError> {
    let known = survey.superblock.clone();
    if known.is_none() && options.read_only {
        let device = medium.name().to_owned();
        return Err(SetError::NotFormatted { device });
    }
    let id = match &known {
        Some(superblock) => superblock.device_id,
        None => list::random_id(options)?,
    };
    let (len, segment_len, count) = match &known {
        Some(known) => (known.device_len, known.segment_len, known.segment_count),
        None => {
            let len = medium.len() / crate::UNIT * crate::UNIT;
            let segment_len = segment_len_for(len, options.shards, options.block_len_max);
            (len, segment_len, segment_count(len, segment_len))
        }
    };
    Ok(Candidate {
        name: medium.name().to_owned(),
        id,
        len,
        actual_len: medium.len(),
        sector: medium.sector(),
        segment_len,
        segment_count: count,
        known,
    })
}

fn superblock_for(candidate: &Candidate, decision: &Decision, shards: u32) -> Superblock {
    let mut listed = decision.list.iter();
    let place = listed.position(|device| device.id == candidate.id);
    let known = candidate.known.as_ref();
    Superblock {
        write_count: known.map_or(0, |known| known.write_count),
        device_id: candidate.id,
        set_id: decision.set_id,
        node_id: decision.node_id,
        set_epoch: decision.set_epoch,
        open_epoch: decision.open_epoch,
        closed_cleanly: false,
        shards,
        place: place.expect("every given device is in the new list") as u32,
        device_len: candidate.len,
        segment_len: candidate.segment_len,
        segment_count: candidate.segment_count,
        sector: known.map_or(candidate.sector, |known| known.sector),
        devices: decision.list.clone(),
    }
}
