//! The devices of an engine: opened and checked together before any shard runs, then given to
//! the shards, each with rings of its own.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use terrace_nvme::file::{self, Content, DeviceSpec, OpenedDevice, Preparation};
use terrace_nvme::set::{
    DeviceSet, MissingDevices, SegmentState, SetMedium, SetOptions, ShardPlan, os_random,
};
use terrace_nvme::tier::{NvmeTier, TierConfig, TierDevice, TierSegment};
use terrace_nvme::uring::probe::{poll_setting, probe_polled};
use terrace_nvme::uring::{Ring, RingConfig, RingReport, UringDevice};
use terrace_nvme::{AlignedBuffer, DeviceInfo, IoBackend};
use terrace_runtime::io::{Driver, drive};
use terrace_runtime::{Eventfd, Runtime};
use terrace_slab::Arena;
use terrace_types::Tasks;

use crate::config::{EngineConfig, Missing, NvmeConfig, Use};
use crate::error::Error;
use crate::stats::MissingDevice;

/// Segments that a freshly formatted file is planned for hold at least this block.
const BLOCK_LEN_PLANNED: u64 = 1 << 20;

/// The devices of an open engine.
pub(super) struct Devices {
    set: DeviceSet,
    files: Vec<(Arc<File>, DeviceInfo, bool)>,
}

/// What one shard is given of the devices.
pub(super) struct ShardDevices {
    files: Vec<(Arc<File>, DeviceInfo, bool)>,
    devices: Vec<terrace_nvme::set::SetDeviceState>,
    plan: ShardPlan,
    epoch: u32,
    absent: bool,
    salt: u64,
    /// The epoch of a clean close before this open.
    pub(super) warm: Option<u32>,
}

/// What carries out a shard's device operations; dropped when its shard has ended.
pub(crate) struct ShardIo {
    drivers: Vec<Driver>,
    /// What the drivers turn.
    backends: Vec<Rc<dyn IoBackend>>,
    /// Those of the backends that are rings.
    rings: Vec<Rc<Ring>>,
}

impl ShardIo {
    /// What turns devices in memory; for simulations.
    #[cfg(test)]
    pub(crate) fn of_backends(runtime: &Rc<dyn Runtime>, backends: Vec<Rc<dyn IoBackend>>) -> Self {
        let drivers = backends.iter().cloned();
        Self {
            drivers: drivers.map(|it| drive(runtime, it, None)).collect(),
            backends,
            rings: Vec::new(),
        }
    }

    /// Operations under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.backends.iter().map(|it| it.in_flight()).sum()
    }

    /// What is in force on each ring.
    pub(crate) fn reports(&self) -> Vec<RingReport> {
        self.rings.iter().map(|ring| ring.report()).collect()
    }

    pub(crate) fn rings(&self) -> &[Rc<Ring>] {
        &self.rings
    }

    /// Lets go of the rings and of the tasks that turn them.
    pub(crate) fn end(&mut self) {
        self.drivers.clear();
        self.backends.clear();
        self.rings.clear();
    }
}

impl Devices {
    /// Opens all devices of the configuration; `None` without any.
    pub(super) fn open(config: &EngineConfig) -> Result<Option<Self>, Error> {
        let nvme = &config.nvme;
        if !nvme.is_used() {
            return Ok(None);
        }
        let (mut opened, mut made) = (Vec::new(), Vec::new());
        let outcome = open_all(nvme, &mut opened).and_then(|()| {
            let files = opened.iter().map(|device| {
                let polled = nvme.io_poll != Use::Off && probe_polled(&device.file);
                (Arc::clone(&device.file), device.info.clone(), polled)
            });
            let files: Vec<_> = files.collect();
            check_polling(nvme, &files)?;
            made.extend(opened.iter().map(|device| device.created));
            let media = opened.drain(..).map(|device| {
                let medium: Box<dyn SetMedium> = Box::new(device);
                medium
            });
            let set = DeviceSet::open(media.collect(), &set_options(config))?;
            tell_losses(&set);
            Ok(Self { set, files })
        });
        if outcome.is_err() {
            made.extend(opened.iter().map(|device| device.created));
            remove_made(nvme, &made);
        }
        outcome.map(Some)
    }

    /// Devices that the set lists and that are not there.
    pub(super) fn missing(&self) -> Vec<MissingDevice> {
        let absent = self.set.absent.iter();
        let missing = absent.map(|device| MissingDevice {
            id: device.id.to_string(),
            len: device.len,
            last_set_epoch: device.last_set_epoch,
        });
        missing.collect()
    }

    /// What shard `number` is given.
    pub(super) fn share(&self, number: usize) -> ShardDevices {
        let salt = os_random().map_or(0, |bits| {
            let (low, _) = bits.split_at(8);
            low.iter()
                .fold(0, |salt, byte| salt << 8 | u64::from(*byte))
        });
        ShardDevices {
            files: self.files.clone(),
            devices: self.set.devices.clone(),
            plan: self.set.plans[number].clone(),
            epoch: self.set.open_epoch,
            absent: !self.set.absent.is_empty(),
            salt,
            warm: self.set.previous_clean.then(|| self.set.open_epoch - 1),
        }
    }

    /// Marks the set as closed cleanly; devices that were emptied leave it.
    pub(super) fn close(&mut self, drained: bool) -> Result<(), Error> {
        let draining = |set: &DeviceSet, at: usize| set.devices[at].draining;
        for at in 0..self.set.devices.len() {
            if drained && draining(&self.set, at) {
                self.set.remove_drained(at)?;
            }
        }
        Ok(self.set.close()?)
    }
}

/// One line for each device that the set does without.
fn tell_losses(set: &DeviceSet) {
    for device in &set.absent {
        let (id, len) = (device.id, device.len);
        tracing::warn!(device = %id, len, "a device is missing: what it holds is not served");
    }
    for device in &set.forgotten {
        let (id, len) = (device.id, device.len);
        tracing::warn!(device = %id, len, "a device is forgotten: it is never taken back");
    }
}

fn open_all(nvme: &NvmeConfig, opened: &mut Vec<OpenedDevice>) -> Result<(), Error> {
    for path in nvme.paths.iter().chain(&nvme.drain) {
        let device = open_one(nvme, path)?;
        opened.push(device);
    }
    Ok(())
}

fn open_one(nvme: &NvmeConfig, path: &Path) -> Result<OpenedDevice, Error> {
    let there = path.exists();
    let spec = DeviceSpec {
        path: path.to_owned(),
        len: nvme.file_bytes.filter(|_| !there),
        create: !there && nvme.file_bytes.is_some() && nvme.paths.iter().any(|p| p == path),
        preparation: if nvme.lazy {
            Preparation::Lazy
        } else {
            Preparation::Zeroed
        },
    };
    let device = file::open_device(&spec)?;
    if let Content::Foreign { what } = &device.content {
        if !nvme.format {
            return Err(Error::ForeignContent {
                path: path.to_owned(),
                what: what.clone(),
            });
        }
        tracing::warn!(path = %path.display(), what, "formatting a device that held something");
        wipe(&device).map_err(|cause| Error::Wipe {
            path: path.to_owned(),
            cause,
        })?;
    }
    Ok(device)
}

/// Takes away what tells other programs that a device is theirs.
fn wipe(device: &OpenedDevice) -> std::io::Result<()> {
    let zeros = AlignedBuffer::zeroed(1 << 20);
    device.write_at(0, &zeros)?;
    let end = device.info.len / terrace_nvme::UNIT * terrace_nvme::UNIT;
    device.write_at(end.saturating_sub(1 << 20), &zeros)?;
    device.sync()
}

/// Files that were made for an open that failed do not stay.
fn remove_made(nvme: &NvmeConfig, made: &[bool]) {
    for (path, _) in nvme.paths.iter().zip(made).filter(|(_, made)| **made) {
        if let Err(error) = std::fs::remove_file(path) {
            let path = path.display();
            tracing::warn!(%path, %error, "a file that was made could not be removed");
        }
    }
}

fn check_polling(nvme: &NvmeConfig, files: &[(Arc<File>, DeviceInfo, bool)]) -> Result<(), Error> {
    for (file, info, polled) in files {
        if *polled || nvme.io_poll == Use::Off {
            continue;
        }
        let setting = poll_setting(file);
        let why = match setting {
            Some((name, false)) => format!("{name} is 0: the device has no poll queues"),
            Some((name, true)) => format!("{name} is 1, but a polled read failed"),
            None => "it is a file on a device that cannot be told".to_owned(),
        };
        if nvme.io_poll == Use::Require {
            return Err(Error::NotPolled {
                device: info.name.clone(),
                why,
            });
        }
        tracing::warn!(device = info.name, why, "the device is not polled");
    }
    Ok(())
}

fn set_options(config: &EngineConfig) -> SetOptions {
    let nvme = &config.nvme;
    let first_drained = nvme.paths.len();
    SetOptions {
        shards: config.shards as u32,
        block_len_max: config
            .block_lens
            .iter()
            .copied()
            .max()
            .unwrap_or(BLOCK_LEN_PLANNED),
        missing: match nvme.missing {
            Missing::Refuse => MissingDevices::Refuse,
            Missing::Accept => MissingDevices::Accept,
            Missing::Forget => MissingDevices::Forget,
        },
        drain: (first_drained..first_drained + nvme.drain.len()).collect(),
        read_only: false,
        random: Box::new(os_random),
    }
}

impl ShardDevices {
    /// Makes the shard's rings and tier; on the shard's thread.
    pub(super) fn attach(
        self,
        config: &EngineConfig,
        number: usize,
        runtime: &Rc<dyn Runtime>,
        arena: &Arena,
    ) -> Result<(Rc<NvmeTier>, ShardIo), Error> {
        let nvme = &config.nvme;
        let failed = |cause| Error::Ring {
            shard: number,
            cause,
        };
        let event = Eventfd::new().map_err(|error| Error::Mailbox(error.to_string()))?;
        let memory = [(arena.address(0, arena.len()), arena.len() as usize)];
        let ring_config = RingConfig {
            entries: nvme.queue_depth,
            polled: false,
            sq_poll: nvme.sq_poll,
            ops_max: nvme.queue_depth as usize * 2,
            register: true,
        };
        let plain = Ring::new(&ring_config, Some(event.as_fd()), &memory).map_err(failed)?;
        let backend: Rc<dyn IoBackend> = Rc::<Ring>::clone(&plain);
        let mut io = ShardIo {
            drivers: vec![drive(runtime, Rc::clone(&backend), Some(event))],
            backends: vec![backend],
            rings: vec![Rc::clone(&plain)],
        };
        let polled = if self.files.iter().any(|(_, _, polled)| *polled) {
            let config = RingConfig {
                polled: true,
                ..ring_config
            };
            let ring = Ring::new(&config, None, &memory).map_err(failed)?;
            let backend: Rc<dyn IoBackend> = Rc::<Ring>::clone(&ring);
            io.drivers.push(drive(runtime, Rc::clone(&backend), None));
            io.backends.push(backend);
            io.rings.push(Rc::clone(&ring));
            Some(ring)
        } else {
            None
        };
        let mut devices = Vec::new();
        for (at, (file, info, is_polled)) in self.files.iter().enumerate() {
            let ring = polled.as_ref().filter(|_| *is_polled).unwrap_or(&plain);
            let (ring, plain) = (Rc::clone(ring), Rc::clone(&plain));
            let device = UringDevice::new(ring, plain, Arc::clone(file), info.clone());
            devices.push(self.tier_device(at, Rc::new(device.map_err(failed)?)));
        }
        let tasks: Rc<dyn Tasks> = Rc::<dyn Runtime>::clone(runtime);
        let tier_config = tier_config(config, number, self.epoch);
        let tier = NvmeTier::new(tier_config, tasks, devices, self.salt, self.absent);
        let tier = tier.map_err(|cause| Error::Tier {
            shard: number,
            cause,
        })?;
        Ok((tier, io))
    }

    fn tier_device(&self, at: usize, device: Rc<UringDevice>) -> TierDevice {
        let known = &self.devices[at];
        let own = self.plan.segments.iter().filter(|plan| plan.device == at);
        TierDevice {
            device,
            id: known.id,
            segment_len: known.segment_len,
            draining: known.draining,
            segments: own
                .map(|plan| TierSegment {
                    number: plan.number,
                    head: match plan.state {
                        SegmentState::Free => None,
                        SegmentState::Used(head) => Some(head),
                    },
                    owned: plan.owned,
                    legacy: plan.legacy,
                })
                .collect(),
        }
    }
}

fn tier_config(config: &EngineConfig, number: usize, epoch: u32) -> TierConfig {
    let (nvme, usual) = (&config.nvme, TierConfig::default());
    TierConfig {
        // With a head for each these are half of what the ring takes; the rest is for reads.
        payloads_max: usual.payloads_max.min(nvme.queue_depth / 2),
        shard: number as u32,
        shards: config.shards as u32,
        epoch,
        io_deadline: nvme.io_deadline,
        write_budget: nvme.write_budget.div_ceil(config.shards as u64),
        ..usual
    }
}
