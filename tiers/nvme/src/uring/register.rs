//! What a ring knows beforehand: memory that the kernel has pinned, and files by number.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::ring::{FileIx, Ring, RingFile};
use super::setup::{self, FILES_MAX, RingError};

impl Ring {
    /// Fixes memory, so that operations on it are cheaper. The memory stays mapped at its
    /// address until [`Ring::forget_region`]: what is mapped there later would not be seen.
    ///
    /// # Errors
    /// [`RingError`]; operations on the memory work all the same.
    pub fn register_region(&self, address: NonNull<u8>, len: usize) -> Result<(), RingError> {
        if !self.tables.0 {
            return Ok(());
        }
        let start = address.addr().get();
        let spans = self.fixed.borrow_mut().take(start, len)?;
        for span in spans {
            let memory = libc::iovec {
                iov_base: address.as_ptr().with_addr(span.start).cast(),
                iov_len: span.len,
            };
            if let Err(cause) = self.set_place(span.place, memory) {
                self.forget_region(address, len);
                return Err(match cause.raw_os_error() {
                    Some(libc::ENOMEM) => RingError::Memlock {
                        len,
                        limit: setup::memlock_limit(),
                    },
                    _ => RingError::Register {
                        what: "memory",
                        cause,
                    },
                });
            }
        }
        Ok(())
    }

    /// Undoes [`Ring::register_region`]. Operations under way keep what they use.
    pub fn forget_region(&self, address: NonNull<u8>, len: usize) {
        let spans = self.fixed.borrow_mut().give_back(address.addr().get(), len);
        for span in spans {
            let nothing = libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            };
            if let Err(error) = self.set_place(span.place, nothing) {
                tracing::error!(%error, "take memory from a ring's table");
            }
        }
    }

    fn set_place(&self, place: u16, memory: libc::iovec) -> std::io::Result<()> {
        let io = self.io.borrow();
        let submitter = io.submitter();
        // SAFETY: the kernel pins the memory and holds it by itself; it is accessed only by
        // operations, and those own their memory.
        unsafe { submitter.register_buffers_update(u32::from(place), &[memory], None) }
    }

    /// Takes a file in. The ring holds it open as long as it lives.
    ///
    /// # Errors
    /// [`RingError::Files`] when there are too many, or the process may not open more.
    pub fn register_file(&self, file: BorrowedFd<'_>) -> Result<FileIx, RingError> {
        let mut files = self.files.borrow_mut();
        if files.len() == FILES_MAX {
            return Err(RingError::Files);
        }
        let handle = file.try_clone_to_owned().map_err(|cause| {
            let what = "a file";
            RingError::Register { what, cause }
        })?;
        let place = files.len() as u16;
        let registered = self.tables.1
            && self
                .io
                .borrow()
                .submitter()
                .register_files_update(u32::from(place), &[handle.as_raw_fd()])
                .is_ok();
        if !registered {
            self.change_report(|report| report.registered_files = false);
        }
        files.push(RingFile { handle, registered });
        Ok(FileIx(place))
    }
}
