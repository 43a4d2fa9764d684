//! Who belongs to a set: from what the devices say of it to the list they will say next.

use super::{MissingDevices, SEGMENTS_PER_SHARD_MIN, SetError, SetOptions};
use crate::format::{
    DEVICES_MAX, DeviceId, DeviceState, SEGMENTS_START, SetDevice, Superblock, segment_len_for,
};

/// A given device, formatted or about to be.
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) id: DeviceId,
    /// Length in use, bytes.
    pub(super) len: u64,
    /// Length of the medium, bytes.
    pub(super) actual_len: u64,
    pub(super) sector: u32,
    pub(super) segment_len: u64,
    pub(super) segment_count: u32,
    /// `None` before it is formatted.
    pub(super) known: Option<Superblock>,
}

impl Candidate {
    /// The set epoch that it knows: 0 before a set took it in.
    fn epoch(&self) -> u64 {
        self.known.as_ref().map_or(0, |known| known.set_epoch)
    }
}

/// What the set will be.
pub(super) struct Decision {
    pub(super) set_id: DeviceId,
    pub(super) node_id: DeviceId,
    pub(super) set_epoch: u64,
    /// The highest open epoch that a device knows.
    pub(super) open_epoch: u32,
    pub(super) previous_shards: Option<u32>,
    pub(super) previous_clean: bool,
    pub(super) list: Vec<SetDevice>,
    /// Devices that the set listed and lists no more, though they were not emptied.
    pub(super) forgotten: Vec<SetDevice>,
}

pub(super) fn random_id(options: &SetOptions) -> Result<DeviceId, SetError> {
    (options.random)().map(DeviceId).map_err(SetError::Random)
}

/// Checks that the candidates belong together, and decides on the set's list.
pub(super) fn decide(candidates: &[Candidate], options: &SetOptions) -> Result<Decision, SetError> {
    check_each(candidates)?;
    let authority = authority(candidates);
    if let Some(authority) = authority {
        check_history(candidates, authority)?;
    }
    let superblock = authority.and_then(|authority| authority.known.as_ref());
    let known = superblock.map_or(&[][..], |superblock| &superblock.devices);
    let epoch = authority.map_or(0, Candidate::epoch);
    let mut list = next_list(candidates, known, options)?;
    let stays = |device: &SetDevice| list.iter().any(|it| it.id == device.id);
    let gone = known.iter().filter(|device| !stays(device));
    let gone = gone.filter(|device| device.state != DeviceState::Drained);
    let forgotten = gone.copied().collect();
    let count = list.len();
    if count > DEVICES_MAX {
        return Err(SetError::TooManyDevices { count });
    }
    if !options.read_only {
        let is_used = |device: &SetDevice| device.state == DeviceState::InUse;
        if !list.iter().any(is_used) {
            return Err(SetError::AllDraining);
        }
        let needing = candidates.iter().zip(0..);
        for (candidate, _) in needing.filter(|(_, place)| !options.drain.contains(place)) {
            check_room(candidate, options)?;
        }
    }
    //= docs/on-disk-format.md#OD-14
    let is_changed = !same_list(known, &list) && !options.read_only;
    let set_epoch = epoch + u64::from(is_changed);
    for device in &mut list {
        if candidates.iter().any(|candidate| candidate.id == device.id) {
            device.last_set_epoch = set_epoch;
        }
    }
    // Any formatted device names the set, the one that knows most of it before others.
    let formatted = candidates
        .iter()
        .find_map(|candidate| candidate.known.as_ref());
    let (set_id, node_id) = match superblock.or(formatted) {
        Some(superblock) => (superblock.set_id, superblock.node_id),
        None => (random_id(options)?, random_id(options)?),
    };
    let taken_in = || {
        let known = candidates
            .iter()
            .filter_map(|candidate| candidate.known.as_ref());
        known.filter(|known| known.set_epoch > 0)
    };
    let open_epoch = taken_in().map(|known| known.open_epoch).max().unwrap_or(0);
    let is_clean = |known: &Superblock| known.closed_cleanly && known.open_epoch == open_epoch;
    Ok(Decision {
        set_id,
        node_id,
        set_epoch,
        open_epoch,
        previous_shards: superblock.map(|superblock| superblock.shards),
        previous_clean: taken_in().all(is_clean),
        list,
        forgotten,
    })
}

/// What is wrong with a device, or with two, whatever the list says.
fn check_each(candidates: &[Candidate]) -> Result<(), SetError> {
    for (place, candidate) in candidates.iter().enumerate() {
        let Some(known) = &candidate.known else {
            continue;
        };
        let device = candidate.name.clone();
        for other in &candidates[..place] {
            let Some(before) = &other.known else {
                continue;
            };
            if before.set_id != known.set_id || before.node_id != known.node_id {
                return Err(SetError::Foreign {
                    device,
                    set: known.set_id,
                    other: other.name.clone(),
                    other_set: before.set_id,
                });
            }
            if other.id == candidate.id {
                return Err(SetError::Twice {
                    device,
                    other: other.name.clone(),
                    id: other.id,
                });
            }
        }
        if candidate.actual_len < known.device_len {
            return Err(SetError::Truncated {
                device,
                len: candidate.actual_len,
                needed: known.device_len,
            });
        }
    }
    Ok(())
}

/// The device whose list counts: that of the highest set epoch. `None` when no set took any in.
fn authority(candidates: &[Candidate]) -> Option<&Candidate> {
    let taken_in = candidates.iter().filter(|candidate| candidate.epoch() > 0);
    taken_in.max_by_key(|candidate| {
        let known = candidate.known.as_ref();
        let open_epoch = known.map_or(0, |known| known.open_epoch);
        (candidate.epoch(), open_epoch)
    })
}

/// Refuses devices that left the set, and those that were used without it.
fn check_history(candidates: &[Candidate], authority: &Candidate) -> Result<(), SetError> {
    //= docs/on-disk-format.md#OD-14
    let devices = |candidate: &Candidate| {
        let known = candidate.known.as_ref();
        known.map(|known| known.devices.clone()).unwrap_or_default()
    };
    let list = devices(authority);
    for candidate in candidates.iter().filter(|candidate| candidate.epoch() > 0) {
        let epoch = candidate.epoch();
        let listed = list.iter().find(|device| device.id == candidate.id);
        let Some(listed) = listed else {
            return Err(SetError::NotListed {
                device: candidate.name.clone(),
                id: candidate.id,
                epoch,
                set_epoch: authority.epoch(),
            });
        };
        let is_equal = epoch == authority.epoch();
        let differs = is_equal && !same_list(&list, &devices(candidate));
        if epoch > listed.last_set_epoch || differs {
            return Err(SetError::Diverged {
                device: candidate.name.clone(),
                epoch,
                other: authority.name.clone(),
                other_epoch: authority.epoch(),
            });
        }
    }
    Ok(())
}

/// The list after this open: known devices in their order, then new ones.
fn next_list(
    candidates: &[Candidate],
    known: &[SetDevice],
    options: &SetOptions,
) -> Result<Vec<SetDevice>, SetError> {
    let mut list = Vec::with_capacity(known.len() + candidates.len());
    for device in known {
        let place = candidates.iter().position(|given| given.id == device.id);
        let state = match (place, device.state, options.missing) {
            (Some(place), state, _) if options.drain.contains(&place) => match state {
                DeviceState::Drained => state,
                _ => DeviceState::Draining,
            },
            (Some(_), _, _) => DeviceState::InUse,
            (None, DeviceState::Drained, _) | (None, _, MissingDevices::Forget) => continue,
            // That it is missing was accepted before.
            (None, DeviceState::Absent, _) | (None, _, MissingDevices::Accept) => {
                DeviceState::Absent
            }
            (None, _, MissingDevices::Refuse) => {
                return Err(SetError::Missing {
                    id: device.id,
                    len: device.len,
                    last_set_epoch: device.last_set_epoch,
                });
            }
        };
        list.push(SetDevice { state, ..*device });
    }
    for (place, candidate) in candidates.iter().enumerate() {
        if known.iter().all(|device| device.id != candidate.id) {
            let state = match options.drain.contains(&place) {
                true => DeviceState::Draining,
                false => DeviceState::InUse,
            };
            list.push(SetDevice {
                id: candidate.id,
                len: candidate.len,
                state,
                last_set_epoch: 0,
            });
        }
    }
    Ok(list)
}

/// Whether two lists name the same devices in the same states.
fn same_list(a: &[SetDevice], b: &[SetDevice]) -> bool {
    let tell = |device: &SetDevice| (device.id, device.state);
    a.iter().map(tell).eq(b.iter().map(tell))
}

fn check_room(candidate: &Candidate, options: &SetOptions) -> Result<(), SetError> {
    let shards = options.shards;
    let needed = u64::from(SEGMENTS_PER_SHARD_MIN) * u64::from(shards);
    if u64::from(candidate.segment_count) >= needed {
        return Ok(());
    }
    let shortest = match candidate.known {
        Some(_) => candidate.segment_len,
        None => segment_len_for(0, shards, options.block_len_max),
    };
    Err(SetError::TooSmall {
        device: candidate.name.clone(),
        len: candidate.len,
        segments: candidate.segment_count,
        segment_len: candidate.segment_len,
        shards,
        minimum: SEGMENTS_START + needed * shortest,
    })
}
