//! What the devices say of the set together: who belongs to it, who is missing, who differs.

use terrace_nvme::format::{DeviceId, DeviceState, SetDevice, Superblock};

use super::Finding;
use super::device::Device;

/// The set as the device that knows most of it tells.
#[derive(Clone, Debug)]
pub struct SetView {
    /// The set's id.
    pub set_id: DeviceId,
    /// The node's id.
    pub node_id: DeviceId,
    /// The set epoch; 0 before a set took the device in.
    pub set_epoch: u64,
    /// The highest open epoch of a superblock.
    pub open_epoch: u32,
    /// Whether the last open of every given device ended with a close.
    pub closed_cleanly: bool,
    /// Count of shards of the last open.
    pub shards: u32,
    /// The list of devices.
    pub devices: Vec<ListedDevice>,
}

/// A device as the set lists it.
#[derive(Clone, Copy, Debug)]
pub struct ListedDevice {
    /// What the list says.
    pub listed: SetDevice,
    /// Its place among those inspected; `None` when it is missing.
    pub given: Option<usize>,
}

impl SetView {
    /// What the devices tell; `None` when no superblock can be read.
    #[must_use]
    pub fn of(devices: &[Device]) -> Option<Self> {
        let known = || devices.iter().filter_map(Device::superblock);
        let authority = known().max_by_key(|it| (it.set_epoch, it.open_epoch))?;
        let open_epoch = known().map(|it| it.open_epoch).max().unwrap_or(0);
        let is_clean = |it: &Superblock| it.closed_cleanly && it.open_epoch == open_epoch;
        let list = authority.devices.iter().map(|listed| ListedDevice {
            listed: *listed,
            given: devices.iter().position(|it| it.id() == Some(listed.id)),
        });
        Some(Self {
            set_id: authority.set_id,
            node_id: authority.node_id,
            set_epoch: authority.set_epoch,
            open_epoch,
            closed_cleanly: known().all(is_clean),
            shards: authority.shards,
            devices: list.collect(),
        })
    }

    /// Listed devices that were not given and that the set does not do without.
    pub fn missing(&self) -> impl Iterator<Item = &SetDevice> {
        let needed =
            |it: &&ListedDevice| it.given.is_none() && it.listed.state != DeviceState::Drained;
        self.devices.iter().filter(needed).map(|it| &it.listed)
    }

    /// What is odd about the devices together.
    #[must_use]
    pub fn findings(&self, devices: &[Device]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for missing in self.missing() {
            findings.push(Finding::of_set(format!(
                "device {} of {} bytes belongs to the set and was not given ({}, last there in \
                 set epoch {}): what it holds is not counted",
                missing.id,
                missing.len,
                state_word(missing.state),
                missing.last_set_epoch
            )));
        }
        for (place, device) in devices.iter().enumerate() {
            let Some(known) = device.superblock() else {
                continue;
            };
            if let Some(what) = self.disagreement(known) {
                findings.push(Finding::of_device(place, what));
            }
        }
        findings
    }

    //= docs/on-disk-format.md#OD-14
    /// Why an open would not take the device back as it is.
    fn disagreement(&self, known: &Superblock) -> Option<String> {
        let (epoch, set_epoch) = (known.set_epoch, self.set_epoch);
        if epoch == 0 && set_epoch == 0 {
            return Some("formatted, and not taken into a set yet".to_owned());
        }
        let listed = self.devices.iter();
        let mut listed = listed.filter(|it| it.listed.id == known.device_id);
        let Some(listed) = listed.next() else {
            return Some(match epoch {
                0 => "formatted, and not taken into the set yet".to_owned(),
                _ => format!(
                    "the device left the set: it knows set epoch {epoch}, the set is at \
                     {set_epoch} and does not list it"
                ),
            });
        };
        if epoch > listed.listed.last_set_epoch {
            return Some(format!(
                "the device was used without the others: it knows set epoch {epoch}, they know \
                 {} of it",
                listed.listed.last_set_epoch
            ));
        }
        let tell = |device: &SetDevice| (device.id, device.state);
        let list = self.devices.iter().map(|it| tell(&it.listed));
        if epoch == set_epoch && !list.eq(known.devices.iter().map(tell)) {
            return Some(format!(
                "the device was used without the others: it lists other devices in the same \
                 set epoch {epoch}"
            ));
        }
        (epoch < set_epoch).then(|| {
            format!(
                "the device missed changes: it knows set epoch {epoch}, the set is at {set_epoch}"
            )
        })
    }
}

/// One word for a state.
#[must_use]
pub const fn state_word(state: DeviceState) -> &'static str {
    match state {
        DeviceState::InUse => "in use",
        DeviceState::Absent => "absent",
        DeviceState::Draining => "draining",
        DeviceState::Drained => "drained",
    }
}
