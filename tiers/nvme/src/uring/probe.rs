//! What this kernel and a device can do beyond the ordinary, found out by trying.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use io_uring::{Probe, Submitter, opcode};
use terrace_types::Nanos;

use super::ring::{Ring, Work};
use super::setup::RingConfig;
use crate::UNIT;
use crate::buffer::{AlignedBuffer, IoBuffer};
use crate::device::IoBackend;

/// What the kernel offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Rings can be made at all.
    pub rings: bool,
    /// One operation can scatter over fixed memory.
    pub vectored_fixed: bool,
    /// A thread of the kernel may take submissions for this user.
    pub sq_poll: bool,
    /// Rings may be polled; whether a device can be is [`probe_polled`]'s question.
    pub polled: bool,
}

/// Makes and drops a ring of each kind.
#[must_use]
pub fn probe() -> Features {
    let small = RingConfig {
        entries: 4,
        ops_max: 4,
        register: false,
        ..RingConfig::default()
    };
    let ring_of = |config: RingConfig| Ring::new(&config, None, &[]).ok();
    let plain = ring_of(small);
    Features {
        rings: plain.is_some(),
        vectored_fixed: plain.is_some_and(|ring| ring.report().vectored_fixed),
        sq_poll: ring_of(RingConfig {
            sq_poll: true,
            ..small
        })
        .is_some(),
        polled: ring_of(RingConfig {
            polled: true,
            ..small
        })
        .is_some(),
    }
}

/// Whether the kernel knows scattered operations on fixed memory.
pub(super) fn vectored_fixed(submitter: &Submitter<'_>) -> bool {
    let mut probe = Probe::new();
    submitter.register_probe(&mut probe).is_ok()
        && probe.is_supported(opcode::ReadvFixed::CODE)
        && probe.is_supported(opcode::WritevFixed::CODE)
}

/// Rounds of asking before a polled read counts as failed; a round is one call that polls the
/// device, so this is far more than any read that works needs.
const POLL_ROUNDS: u32 = 1_000_000;

/// Whether a device completes by polling: reads its first unit through a polled ring. The unit
/// must have been written, or a file system answers without asking the device.
#[must_use]
pub fn probe_polled(file: &File) -> bool {
    let config = RingConfig {
        entries: 4,
        polled: true,
        ops_max: 4,
        register: false,
        ..RingConfig::default()
    };
    let read = || -> Option<bool> {
        let ring: Rc<Ring> = Ring::new(&config, None, &[]).ok()?;
        let place = ring.register_file(file.as_fd()).ok()?;
        let buffer = IoBuffer::Owned(AlignedBuffer::zeroed(UNIT as usize));
        let work = Work::Read {
            offset: 0,
            len: UNIT as u32,
        };
        let mut future = Box::pin(ring.start(place, work, buffer, Nanos::MAX));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..POLL_ROUNDS {
            ring.submit();
            ring.reap(Nanos::ZERO);
            if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
                return Some(outcome.result.is_ok());
            }
        }
        None
    };
    read().unwrap_or(false)
}

/// What the kernel says of polling at the disk below a file or block device, for messages:
/// the setting's path and its value. It may say yes and still refuse, and the reverse.
#[must_use]
pub fn poll_setting(file: &File) -> Option<(String, bool)> {
    let meta = file.metadata().ok()?;
    let device = if meta.file_type().is_block_device() {
        meta.rdev()
    } else {
        meta.dev()
    };
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let folder = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue of its own; the disk above it has.
    [
        format!("{folder}/queue/io_poll"),
        format!("{folder}/../queue/io_poll"),
    ]
    .into_iter()
    .find_map(|path| {
        let text = std::fs::read_to_string(Path::new(&path)).ok()?;
        Some((path, text.trim() == "1"))
    })
}
