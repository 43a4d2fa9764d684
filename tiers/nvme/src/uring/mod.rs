//! Devices behind io_uring: a ring beside the executor, and files and disks on it.
//!
//! A shard has one [`Ring`] that its thread made and uses. A device that completes by polling
//! has two: the kernel refuses `fsync` on a polled ring, so flushes take a plain one.

mod drain;
mod fixed;
pub mod probe;
mod register;
mod ring;
mod setup;

use std::fs::File;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use terrace_types::Nanos;

pub use ring::{FileIx, Ring};
pub use setup::{RingConfig, RingCounts, RingError, RingReport};

use crate::buffer::IoBuffer;
use crate::device::{BlockDevice, DeviceInfo};
use crate::ops::IoFuture;
use ring::Work;

/// A file or disk whose operations a ring carries out.
pub struct UringDevice {
    ring: Rc<Ring>,
    file: FileIx,
    plain: Rc<Ring>,
    plain_file: FileIx,
    info: DeviceInfo,
    /// Keeps the lock that opening took.
    _handle: Arc<File>,
}

impl UringDevice {
    /// Puts an open device on `ring`, and its flushes on `plain`. Both may be the same ring
    /// when it is not polled.
    ///
    /// # Errors
    /// [`RingError`] when a ring has no place left for the file.
    ///
    /// # Panics
    /// When `plain` is polled.
    pub fn new(
        ring: Rc<Ring>,
        plain: Rc<Ring>,
        handle: Arc<File>,
        info: DeviceInfo,
    ) -> Result<Self, RingError> {
        assert!(!plain.report().polled, "a polled ring cannot flush");
        let file = ring.register_file(handle.as_fd())?;
        let plain_file = if Rc::ptr_eq(&ring, &plain) {
            file
        } else {
            plain.register_file(handle.as_fd())?
        };
        Ok(Self {
            ring,
            file,
            plain,
            plain_file,
            info,
            _handle: handle,
        })
    }

    fn check(&self, offset: u64, len: u32) {
        let end = offset.checked_add(u64::from(len));
        assert!(
            end.is_some_and(|end| end <= self.info.len),
            "{offset}+{len} of {} bytes of {}",
            self.info.len,
            self.info.name
        );
    }
}

impl BlockDevice for UringDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, len: u32, buffer: IoBuffer, deadline: Nanos) -> IoFuture {
        self.check(offset, len);
        let work = Work::Read { offset, len };
        self.ring.start(self.file, work, buffer, deadline)
    }

    fn write(&self, offset: u64, len: u32, buffer: IoBuffer, deadline: Nanos) -> IoFuture {
        self.check(offset, len);
        let work = Work::Write { offset, len };
        self.ring.start(self.file, work, buffer, deadline)
    }

    fn flush(&self, deadline: Nanos) -> IoFuture {
        let file = self.plain_file;
        self.plain
            .start(file, Work::Flush, IoBuffer::None, deadline)
    }
}
