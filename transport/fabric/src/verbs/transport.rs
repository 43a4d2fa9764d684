//! RDMA as a transport of the transfer engine: each slice is one read or write by a NIC.
//!
//! A rail is a queue pair between a port of this machine and one of the peer's. Only the end that
//! opened the peer posts; the other lends its NIC, and its processor has no part in transfers.
//! Queue pairs of the opened end belong to a [`Session`]: they go when the peer leaves.
//!
//! **Invariants**
//! - A peer gets a queue pair on which it may read and write; what of it reaches a region is
//!   decided by the region's own access. The opener's own queue pair serves nothing.
//! - Regions, rails and sessions keep the memory they name registered.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod keys;
mod questions;
mod rail;
mod session;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use self::keys::RegionKey;
use self::questions::{NicAddress, Question, pairs};
use self::rail::RdmaRail;
use self::session::RdmaSession;
use super::device::{Device, ProtectionDomain, device_names};
use super::error::VerbsError;
use super::gid::GidChoice;
use super::queue_pair::QueuePairCounters;
use super::region::{Access, MemoryRegion, RegionOptions};
use super::settings::QueuePairSettings;
use crate::transfer::limits::{RAIL_COUNT_MAX, REGION_KEY_LEN_MAX};
use crate::transfer::{
    self, Ask, MemoryKind, Rail, RailError, Region, RegionId, Session, TransferError, Transport,
    TransportKind,
};

/// How RDMA is used.
#[derive(Clone, Debug, Default)]
pub struct RdmaConfig {
    /// Devices to use, as `NAME` for the first port or `NAME/PORT`. Empty: every port that
    /// carries packets now.
    pub devices: Vec<String>,
    /// How queue pairs are set up. The port is ignored, and so are depths and access.
    pub queue_pair: QueuePairSettings,
}

/// A port of this machine that rails may use.
pub(super) struct Nic {
    pub(super) device: Device,
    pub(super) port: u8,
    pub(super) domain: ProtectionDomain,
}

impl Nic {
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.device.name(), self.port)
    }

    /// Bytes a second by the driver's word.
    pub(super) fn bandwidth(&self) -> Option<u64> {
        let port = self.device.folder().join("ports");
        read_rate(&port.join(self.port.to_string()).join("rate"))
    }

    /// How it is reached now. A port that is down has no address; it keeps its place.
    fn address(&self, gid: GidChoice) -> NicAddress {
        let port = self.device.port(self.port).ok();
        let gid = self.device.gid(self.port, gid).ok();
        NicAddress {
            link: port.map(|port| port.link),
            gid: gid.map(|record| record.gid).unwrap_or_default(),
        }
    }
}

/// The rate of a port as the kernel writes it, such as `100 Gb/sec (4X EDR)`, in bytes a second.
fn read_rate(path: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let gigabits: f64 = text.split_whitespace().next()?.parse().ok()?;
    let bytes = gigabits * 1e9 / 8.0;
    #[expect(clippy::cast_sign_loss, reason = "checked to be above 0")]
    (bytes > 0.0).then_some(bytes as u64)
}

/// What transport, rails and sessions share.
pub(super) struct Shared {
    pub(super) nics: Vec<Nic>,
    pub(super) settings: QueuePairSettings,
    regions: RwLock<HashMap<RegionId, Registered>>,
    pub(super) counters: SharedCounters,
}

/// A region as each NIC knows it, in the order of the NICs.
type Registered = Vec<Arc<MemoryRegion>>;

impl Shared {
    /// A local region as NIC `nic` knows it.
    pub(super) fn region(&self, id: RegionId, nic: usize) -> Option<Arc<MemoryRegion>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.get(&id)?.get(nic).cloned()
    }

    /// How queue pairs of `nic` are set up.
    pub(super) fn settings(&self, nic: &Nic, send_depth: u32, access: Access) -> QueuePairSettings {
        let depth_max = nic.device.limits().queue_depth_max;
        QueuePairSettings {
            port: nic.port,
            send_depth: send_depth.min(depth_max),
            // No messages go this way.
            receive_depth: 0,
            slice_count_max: 1,
            inline_len: 0,
            peer_access: access,
            ..self.settings
        }
    }

    fn addresses(&self) -> Vec<NicAddress> {
        let nics = self.nics.iter();
        nics.map(|nic| nic.address(self.settings.gid)).collect()
    }
}

/// What all rails have done together.
#[derive(Default)]
pub(super) struct SharedCounters {
    doorbells: AtomicU64,
    requests: AtomicU64,
    completions: AtomicU64,
    copied_bytes: AtomicU64,
}

impl SharedCounters {
    /// Adds what a queue pair did between two looks at it.
    pub(super) fn add(&self, before: QueuePairCounters, after: QueuePairCounters) {
        let add = |total: &AtomicU64, before: u64, after: u64| {
            total.fetch_add(after - before, Ordering::Relaxed);
        };
        add(&self.doorbells, before.doorbells, after.doorbells);
        add(&self.requests, before.requests, after.requests);
        add(&self.completions, before.completions, after.completions);
        add(&self.copied_bytes, before.copied_bytes, after.copied_bytes);
    }
}

/// The transport. Give it to [`crate::transfer::TransferEngine::start_with`].
pub struct RdmaTransport {
    shared: Arc<Shared>,
}

impl RdmaTransport {
    /// Opens the devices that `config` names, or all there are.
    ///
    /// # Errors
    /// [`VerbsError`] when there is no RDMA, a device that is named cannot be used, or none can.
    pub fn open(config: &RdmaConfig) -> Result<Arc<Self>, VerbsError> {
        let nics = match config.devices.as_slice() {
            [] => every_nic(config.queue_pair.gid)?,
            named => named
                .iter()
                .map(|name| named_nic(name, config.queue_pair.gid))
                .collect::<Result<_, _>>()?,
        };
        for nic in &nics {
            let settings = QueuePairSettings {
                port: nic.port,
                ..config.queue_pair
            };
            settings.check(nic.device.limits())?;
        }
        Ok(Arc::new(Self {
            shared: Arc::new(Shared {
                nics,
                settings: config.queue_pair,
                regions: RwLock::default(),
                counters: SharedCounters::default(),
            }),
        }))
    }

    /// The ports it uses, as `DEVICE/PORT`.
    #[must_use]
    pub fn ports(&self) -> Vec<String> {
        self.shared.nics.iter().map(Nic::name).collect()
    }

    /// What its rails have done so far, all together.
    #[must_use]
    pub fn counters(&self) -> QueuePairCounters {
        let counters = &self.shared.counters;
        let read = |total: &AtomicU64| total.load(Ordering::Relaxed);
        QueuePairCounters {
            doorbells: read(&counters.doorbells),
            requests: read(&counters.requests),
            completions: read(&counters.completions),
            receives: 0,
            copied_bytes: read(&counters.copied_bytes),
        }
    }
}

/// A port that is named, which has to be usable.
fn named_nic(name: &str, gid: GidChoice) -> Result<Nic, VerbsError> {
    let (device, port) = match name.split_once('/') {
        None => (name, 1),
        // A port that is no number is named as the one that never exists.
        Some((device, port)) => (device, port.parse().unwrap_or(0)),
    };
    let device = Device::open(device)?;
    usable_nic(&device, &ProtectionDomain::new(&device)?, port, gid)
}

fn usable_nic(
    device: &Device,
    domain: &ProtectionDomain,
    port: u8,
    gid: GidChoice,
) -> Result<Nic, VerbsError> {
    device.active_port(port)?;
    device.gid(port, gid)?;
    Ok(Nic {
        device: device.clone(),
        port,
        domain: domain.clone(),
    })
}

/// Every port that can be used now. The others are told of and left out.
fn every_nic(gid: GidChoice) -> Result<Vec<Nic>, VerbsError> {
    let mut nics = Vec::new();
    let mut last = VerbsError::NoDevice;
    for name in device_names()? {
        let mut unused = |error| {
            tracing::info!(device = name, %error, "goes unused");
            last = error;
        };
        let opened = Device::open(&name)
            .and_then(|device| ProtectionDomain::new(&device).map(|domain| (device, domain)));
        match opened {
            Err(error) => unused(error),
            Ok((device, domain)) => {
                for port in 1..=device.limits().port_count {
                    match usable_nic(&device, &domain, port, gid) {
                        Ok(nic) => nics.push(nic),
                        Err(error) => unused(error),
                    }
                }
            }
        }
    }
    nics.truncate(RAIL_COUNT_MAX);
    match nics.is_empty() {
        true => Err(last),
        false => Ok(nics),
    }
}

/// An error as the engine tells it.
fn refused(error: &VerbsError) -> TransferError {
    TransferError::Transport {
        kind: TransportKind::Rdma,
        what: error.to_string(),
    }
}

/// An error as a rail tells it.
fn failed(op: &'static str) -> impl Fn(VerbsError) -> RailError {
    move |error| RailError::Device {
        op,
        what: error.to_string(),
    }
}

impl Transport for RdmaTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::Rdma
    }

    fn register(&self, region: &Arc<Region>) -> Result<Vec<u8>, TransferError> {
        let memory = region.memory();
        if !memory.is_host() {
            return Ok(Vec::new());
        }
        let page_len = match memory.kind() {
            MemoryKind::Hugepage { page_len } => page_len,
            _ => 4096,
        };
        let nics = &self.shared.nics;
        // Cut alike for all NICs, so that one piece length is told for all.
        let limits = nics.iter().map(|nic| nic.device.limits().region_len_max);
        let piece_len_max = limits.fold(RegionOptions::default().piece_len_max, u64::min);
        let options = RegionOptions {
            access: match region.access() {
                transfer::Access::Local => Access::Local,
                transfer::Access::Read => Access::RemoteRead,
                transfer::Access::ReadWrite => Access::RemoteReadWrite,
            },
            page_len,
            piece_len_max,
            ..RegionOptions::default()
        };
        let register = |nic: &Nic| {
            let owner = Box::new(Arc::clone(region));
            let (base, len) = (memory.address(), region.len());
            // SAFETY: a region keeps its memory mapped while it lives, which the owner sees to;
            // its bytes are never behind a reference.
            unsafe { MemoryRegion::register(&nic.domain, base, len, &options, owner, &|_| ()) }
        };
        let registered: Registered = nics
            .iter()
            .map(register)
            .collect::<Result<_, _>>()
            .map_err(|error| refused(&error))?;
        let key = RegionKey::encode(&registered);
        if key.len() > REGION_KEY_LEN_MAX {
            let max = options.piece_len_max;
            let what = format!(
                "a region of {} bytes in pieces of {max} has too many keys",
                region.len()
            );
            let kind = TransportKind::Rdma;
            return Err(TransferError::Transport { kind, what });
        }
        let mut regions = self
            .shared
            .regions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        regions.insert(region.id(), registered);
        Ok(key)
    }

    fn unregister(&self, id: RegionId) {
        let mut regions = self
            .shared
            .regions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let registered = regions.remove(&id);
        drop(regions);
        // The NICs forget the memory here, as nothing local uses it any more; a peer that still
        // names it is refused by them.
        drop(registered);
    }

    fn connect(&self, peer: &mut dyn Ask) -> Result<Vec<Box<dyn Rail>>, TransferError> {
        let unreachable = |error: RailError| TransferError::Transport {
            kind: TransportKind::Rdma,
            what: error.to_string(),
        };
        let answer = peer.ask(&Question::List.encode()).map_err(unreachable)?;
        let theirs = NicAddress::decode_list(&answer).ok_or(TransferError::Protocol {
            peer: "the peer".to_owned(),
            what: "its list of RDMA ports cannot be read",
        })?;
        let mut rails: Vec<Box<dyn Rail>> = Vec::new();
        let (mut is_any, mut last) = (false, None);
        for (ours, theirs) in pairs(&self.shared.addresses(), &theirs) {
            let mut rail = RdmaRail::new(&self.shared, ours, theirs).map_err(unreachable)?;
            match rail.revive(peer) {
                Ok(()) => is_any = true,
                Err(error) => {
                    tracing::warn!(rail = rail.link().name, %error, "a rail is down");
                    last = Some(error);
                }
            }
            rails.push(Box::new(rail));
        }
        match last {
            Some(error) if !is_any => Err(unreachable(error)),
            _ => Ok(rails),
        }
    }

    fn accept(&self) -> Result<Box<dyn Session>, TransferError> {
        Ok(Box::new(RdmaSession::new(Arc::clone(&self.shared))))
    }
}
