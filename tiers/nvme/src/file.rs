//! Opening a path as a device: a file that is made once at its full length, or a whole disk.
//!
//! **Invariants**
//! - An open device is locked against every other user of this code, and a disk against mounts.
//! - It moves units of 4096 bytes past the kernel's own memory (`O_DIRECT`), or is refused.
//! - A file that this code failed to make is not left behind.
//!
//! What lies on a device is looked at, to tell ours from foreign; judging it is the caller's.

mod content;
mod errors;
mod prepare;

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use content::Content;
pub use errors::{OpenError, lock_holder};

use crate::UNIT;
use crate::buffer::AlignedBuffer;
use crate::device::DeviceInfo;

/// How a new file gets its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preparation {
    /// Written once with zeros, so that later writes change no metadata of the file system.
    #[default]
    Zeroed,
    /// Reserved only. Making it takes no time, and first writes are slower.
    Lazy,
}

/// What to open.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// A file or a block device.
    pub path: PathBuf,
    /// Length in bytes; needed to make a file. Anything there must be as long.
    pub len: Option<u64>,
    /// Whether a file may be made.
    pub create: bool,
    /// How a new file gets its blocks.
    pub preparation: Preparation,
}

impl DeviceSpec {
    /// Whatever is at `path`, and nothing else.
    #[must_use]
    pub fn existing(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            len: None,
            create: false,
            preparation: Preparation::Zeroed,
        }
    }

    /// The file at `path` of `len` bytes, made when it is not there.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>, len: u64) -> Self {
        Self {
            len: Some(len),
            create: true,
            ..Self::existing(path)
        }
    }
}

/// A device before any ring has it. Dropping the last handle of `file` gives up the lock.
#[derive(Debug)]
pub struct OpenedDevice {
    /// The open file.
    pub file: Arc<File>,
    /// What it is.
    pub info: DeviceInfo,
    /// What lies on it.
    pub content: Content,
    /// Whether this call made the file.
    pub created: bool,
    /// Whether some of the file was never written, so that first writes are slower.
    pub lazy: bool,
}

impl OpenedDevice {
    /// Fills `buffer` from `offset`, waiting for it.
    ///
    /// # Errors
    /// What the operating system said, or that the device ended.
    pub fn read_unit_at(&self, offset: u64, buffer: &mut AlignedBuffer) -> io::Result<()> {
        assert!(offset.is_multiple_of(UNIT), "offset {offset}");
        self.file.read_exact_at(buffer.bytes_mut(), offset)
    }

    /// Writes all of `buffer` to `offset`, waiting for it.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn write_at(&self, offset: u64, buffer: &AlignedBuffer) -> io::Result<()> {
        assert!(offset.is_multiple_of(UNIT), "offset {offset}");
        let len = buffer.bytes().len() as u64;
        assert!(offset + len <= self.info.len, "{offset}+{len} past the end");
        self.file.write_all_at(buffer.bytes(), offset)
    }

    /// Makes what was written survive power loss, waiting for it.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Opens or makes a device.
///
/// # Errors
/// [`OpenError`] names the path and what to do.
pub fn open_device(spec: &DeviceSpec) -> Result<OpenedDevice, OpenError> {
    open_device_with(spec, &mut |_, _| {})
}

/// [`open_device`], telling the bytes written and their total while a file is made.
///
/// # Errors
/// As for [`open_device`].
pub fn open_device_with(
    spec: &DeviceSpec,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<OpenedDevice, OpenError> {
    let path = &spec.path;
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return make(spec, progress),
        Err(error) => return Err(OpenError::from_open(path, error)),
    };
    let kind = meta.file_type();
    if kind.is_dir() {
        return Err(OpenError::Directory { path: path.clone() });
    }
    if kind.is_block_device() {
        return open_disk(spec);
    }
    if !kind.is_file() {
        let what = if kind.is_char_device() {
            "a character device"
        } else {
            "neither a file nor a block device"
        };
        let path = path.clone();
        return Err(OpenError::Kind { path, what });
    }
    open_file(spec, &meta)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn make(spec: &DeviceSpec, progress: &mut dyn FnMut(u64, u64)) -> Result<OpenedDevice, OpenError> {
    let path = &spec.path;
    if !spec.create {
        return Err(OpenError::Missing { path: path.clone() });
    }
    let Some(len) = spec.len else {
        return Err(OpenError::LengthNeeded { path: path.clone() });
    };
    if len == 0 || !len.is_multiple_of(UNIT) {
        let path = path.clone();
        return Err(OpenError::Unit { path, len });
    }
    let opened = options()
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(path);
    let outcome = match opened {
        Ok(file) => fill(spec, len, file, progress),
        // The file is made before the flag is looked at.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(OpenError::from_open(path, error))
        }
        Err(error) => return Err(OpenError::from_open(path, error)),
    };
    if outcome.is_err()
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!(path = %path.display(), %error, "remove a file that could not be made");
    }
    outcome
}

fn fill(
    spec: &DeviceSpec,
    len: u64,
    file: File,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<OpenedDevice, OpenError> {
    let path = &spec.path;
    lock(path, &file)?;
    let sector = prepare::check_direct(path, &file)?;
    prepare::check_room(path, &file, len)?;
    prepare::allocate(path, &file, len, spec.preparation)?;
    if spec.preparation == Preparation::Zeroed {
        prepare::write_zeros(path, &file, len, progress)?;
    }
    prepare::sync(path, &file)?;
    Ok(OpenedDevice {
        info: info(path, len, sector),
        content: Content::Empty,
        created: true,
        lazy: spec.preparation == Preparation::Lazy,
        file: Arc::new(file),
    })
}

fn open_file(spec: &DeviceSpec, meta: &Metadata) -> Result<OpenedDevice, OpenError> {
    let path = &spec.path;
    // The administrator may write it all the same; a file marked so is not meant to be.
    if meta.mode() & 0o222 == 0 {
        return Err(OpenError::ReadOnly { path: path.clone() });
    }
    let file = open_existing(path, libc::O_DIRECT)?;
    lock(path, &file)?;
    let sector = prepare::check_direct(path, &file)?;
    let meta = file
        .metadata()
        .map_err(|e| OpenError::os(path, "look at", e))?;
    let len = meta.len();
    check_len(spec, len)?;
    if len == 0 || !len.is_multiple_of(UNIT) {
        let path = path.clone();
        return Err(OpenError::Unit { path, len });
    }
    let content = content::look(path, &file, len)?;
    Ok(OpenedDevice {
        info: info(path, len, sector),
        content,
        created: false,
        lazy: meta.blocks() * 512 < len,
        file: Arc::new(file),
    })
}

fn open_disk(spec: &DeviceSpec) -> Result<OpenedDevice, OpenError> {
    let path = &spec.path;
    // Without O_CREAT the flag asks that nothing else in the system uses the disk.
    let file = open_existing(path, libc::O_DIRECT | libc::O_EXCL).map_err(name_holder)?;
    lock(path, &file)?;
    let (bytes, sector) = prepare::disk_geometry(path, &file)?;
    prepare::check_sector(path, sector)?;
    let len = bytes / UNIT * UNIT;
    check_len(spec, len)?;
    if len == 0 {
        let path = path.clone();
        return Err(OpenError::Unit { path, len });
    }
    prepare::check_direct(path, &file)?;
    let content = content::look(path, &file, len)?;
    Ok(OpenedDevice {
        info: info(path, len, sector),
        content,
        created: false,
        lazy: false,
        file: Arc::new(file),
    })
}

/// When it is one of us that has a disk, its lock tells which process.
fn name_holder(error: OpenError) -> OpenError {
    let OpenError::InUse { path } = error else {
        return error;
    };
    let holder = File::open(&path).ok().and_then(|disk| lock_holder(&disk));
    match holder {
        Some(_) => OpenError::Locked { path, holder },
        None => OpenError::InUse { path },
    }
}

fn open_existing(path: &Path, flags: i32) -> Result<File, OpenError> {
    options()
        .custom_flags(flags)
        .open(path)
        .map_err(|error| OpenError::from_open(path, error))
}

fn info(path: &Path, len: u64, sector: u32) -> DeviceInfo {
    DeviceInfo {
        name: path.display().to_string(),
        len,
        sector,
    }
}

fn check_len(spec: &DeviceSpec, actual: u64) -> Result<(), OpenError> {
    match spec.len {
        Some(wanted) if wanted != actual => Err(OpenError::Length {
            path: spec.path.clone(),
            wanted,
            actual,
        }),
        _ => Ok(()),
    }
}

/// How long a lock is waited for whose holder is dead: the kernel takes a while to end the rings
/// of a killed process, and they keep its files.
const DEAD_HOLDER_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked at.
const DEAD_HOLDER_STEP: Duration = Duration::from_millis(5);

fn lock(path: &Path, file: &File) -> Result<(), OpenError> {
    use std::fs::TryLockError;
    let mut waited = Duration::ZERO;
    loop {
        let holder = match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => lock_holder(file),
            Err(TryLockError::Error(error)) => return Err(OpenError::os(path, "lock", error)),
        };
        let alive =
            holder.is_some_and(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok());
        if alive || waited >= DEAD_HOLDER_WAIT {
            return Err(OpenError::Locked {
                path: path.to_owned(),
                holder,
            });
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the kernel tells no one when a lock of the dead is free"
        )]
        std::thread::sleep(DEAD_HOLDER_STEP);
        waited += DEAD_HOLDER_STEP;
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
