//! Opening a path to read it: never for writing, and never while an engine has it open.
//!
//! **Invariants**
//! - The file is opened read-only, and a shared lock keeps engines from opening it meanwhile.
//! - Bytes come from the device itself (`O_DIRECT`) where the file system can do that, so that
//!   a payload is compared with what is stored and not with what the kernel remembers.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};
use terrace_nvme::file::lock_holder;
use terrace_nvme::set::{MediumError, SetMedium};
use terrace_nvme::{AlignedBuffer, UNIT};

/// Why a path was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing is there.
    #[error("{}: there is nothing", .path.display())]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// A directory.
    #[error("{}: a directory; name the device file in it", .path.display())]
    Directory {
        /// Where.
        path: PathBuf,
    },
    /// Neither a file nor a disk.
    #[error("{}: {what}; a device is a file or a block device", .path.display())]
    Kind {
        /// Where.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The operating system does not let this user in.
    #[error("{}: permission denied to read it", .path.display())]
    Permission {
        /// Where.
        path: PathBuf,
    },
    /// An engine has it.
    #[error(
        "{}: in use by {holder}; close the engine that has it open first: what changes \
         meanwhile cannot be told from damage", .path.display()
    )]
    Locked {
        /// Where.
        path: PathBuf,
        /// The other process, as far as the kernel tells.
        holder: String,
    },
    /// A file without a byte.
    #[error("{}: an empty file, not a device of Terrace", .path.display())]
    Empty {
        /// Where.
        path: PathBuf,
    },
    /// The operating system refused a step.
    #[error("{op} {}: {cause}", .path.display())]
    Os {
        /// Where.
        path: PathBuf,
        /// What was tried.
        op: &'static str,
        /// What the operating system said.
        cause: io::Error,
    },
}

impl OpenError {
    fn os(path: &Path, op: &'static str, cause: io::Error) -> Self {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            io::ErrorKind::PermissionDenied => Self::Permission { path },
            _ => Self::Os { path, op, cause },
        }
    }
}

/// A device that is only read.
#[derive(Debug)]
pub struct ReadOnlyDevice {
    file: File,
    name: String,
    len: u64,
    sector: u32,
    /// Whether it is a block device rather than a file.
    pub is_disk: bool,
    /// Whether reads go past the kernel's own memory.
    pub is_direct: bool,
}

/// Opens `path` to read it.
///
/// # Errors
/// [`OpenError`] names the path and what is in the way.
pub fn open(path: &Path) -> Result<ReadOnlyDevice, OpenError> {
    let meta = std::fs::metadata(path).map_err(|error| OpenError::os(path, "look at", error))?;
    let kind = meta.file_type();
    if kind.is_dir() {
        let path = path.to_owned();
        return Err(OpenError::Directory { path });
    }
    // Opening a pipe would wait for whoever writes to it.
    if !kind.is_file() && !kind.is_block_device() {
        let what = match kind.is_char_device() {
            true => "a character device",
            false => "neither a file nor a block device",
        };
        let path = path.to_owned();
        return Err(OpenError::Kind { path, what });
    }
    let (mut file, is_direct) = open_to_read(path)?;
    lock(path, &file)?;
    let end = file.seek(SeekFrom::End(0));
    let len = end.map_err(|error| OpenError::os(path, "ask for the length of", error))?;
    if len == 0 {
        let path = path.to_owned();
        return Err(OpenError::Empty { path });
    }
    let is_disk = kind.is_block_device();
    Ok(ReadOnlyDevice {
        file,
        name: path.display().to_string(),
        len,
        sector: if is_disk {
            sector_len(meta.rdev())
        } else {
            512
        },
        is_disk,
        is_direct,
    })
}

/// The file, and whether it is read past the kernel's own memory.
fn open_to_read(path: &Path) -> Result<(File, bool), OpenError> {
    // The time of the last access is left alone where this user may ask for that.
    let direct = OFlag::O_DIRECT;
    let attempts = [
        (direct | OFlag::O_NOATIME, true),
        (direct, true),
        (OFlag::O_NOATIME, false),
        (OFlag::empty(), false),
    ];
    let mut failure = io::Error::from(Errno::EINVAL);
    for (flags, is_direct) in attempts {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits())
            .open(path);
        match opened {
            Ok(file) if !is_direct || reads_units(&file) => return Ok((file, is_direct)),
            Ok(_) => {}
            Err(error) => failure = error,
        }
    }
    Err(OpenError::os(path, "open", failure))
}

/// Whether a whole unit can be asked for; some file systems take the flag and then refuse. A
/// unit that is damaged or not there is for the inspection to find.
fn reads_units(file: &File) -> bool {
    let mut unit = AlignedBuffer::zeroed(UNIT as usize);
    let outcome = file.read_at(unit.bytes_mut(), 0);
    !outcome.is_err_and(|error| error.raw_os_error() == Some(Errno::EINVAL as i32))
}

fn lock(path: &Path, file: &File) -> Result<(), OpenError> {
    match file.try_lock_shared() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked {
            path: path.to_owned(),
            holder: holder_of(file),
        }),
        Err(TryLockError::Error(error)) => Err(OpenError::os(path, "lock", error)),
    }
}

fn holder_of(file: &File) -> String {
    lock_holder(file).map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

/// The logical sector length of a disk, or of the disk that a partition is on.
fn sector_len(rdev: u64) -> u32 {
    let folder = format!("/sys/dev/block/{}:{}", major(rdev), minor(rdev));
    let read = |inner: &str| {
        let text = std::fs::read_to_string(format!("{folder}/{inner}logical_block_size"));
        text.ok()?.trim().parse().ok()
    };
    read("queue/").or_else(|| read("../queue/")).unwrap_or(512)
}

impl SetMedium for ReadOnlyDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn sector(&self) -> u32 {
        self.sector
    }

    fn read(&self, offset: u64, buffer: &mut AlignedBuffer) -> Result<(), MediumError> {
        self.file.read_exact_at(buffer.bytes_mut(), offset)
    }

    fn write(&self, _: u64, _: &AlignedBuffer) -> Result<(), MediumError> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> Result<(), MediumError> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_is_refused() {
        let device = open(Path::new(env!("CARGO_MANIFEST_PATH"))).unwrap();
        assert!(!device.is_disk && !device.is_empty());
        let unit = AlignedBuffer::zeroed(1);
        assert!(device.write(0, &unit).is_err());
        assert!(device.sync().is_err());
    }
}
