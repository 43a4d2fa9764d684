//! Why a device could not be opened, and what to do about it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{self, FsType};

use crate::UNIT;

/// Why a device could not be opened or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing is there, and nothing may be made.
    #[error("{}: there is nothing; create it, or allow that it is created", .path.display())]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// A file is to be made and its length was not said.
    #[error("{}: there is nothing yet, and no length was given to create it", .path.display())]
    LengthNeeded {
        /// Where.
        path: PathBuf,
    },
    /// The length is no whole number of units.
    #[error("{}: a device of {len} bytes is not possible: multiples of {UNIT} are", .path.display())]
    Unit {
        /// Where.
        path: PathBuf,
        /// The length, in bytes.
        len: u64,
    },
    /// What is there has another length than asked for.
    #[error(
        "{}: {actual} bytes long, and {wanted} were asked for; devices neither grow nor shrink: \
         ask for {actual}, or remove it to have it made anew", .path.display()
    )]
    Length {
        /// Where.
        path: PathBuf,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes there.
        actual: u64,
    },
    /// A directory.
    #[error("{}: a directory; name a file in it", .path.display())]
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
    #[error("{}: permission denied to read and write it", .path.display())]
    Permission {
        /// Where.
        path: PathBuf,
    },
    /// It may be read and not written.
    #[error("{}: read-only", .path.display())]
    ReadOnly {
        /// Where.
        path: PathBuf,
    },
    /// The file system does not move whole units past the kernel's own memory.
    #[error(
        "{}: {file_system} has no direct I/O (O_DIRECT) in units of {UNIT} bytes; put the \
         device on ext4 or XFS, or use a block device", .path.display()
    )]
    NoDirectIo {
        /// Where.
        path: PathBuf,
        /// The file system's name.
        file_system: String,
    },
    /// Direct I/O needs coarser units than ours.
    #[error(
        "{}: direct I/O needs memory at multiples of {memory} and offsets at multiples of \
         {offset} bytes; {UNIT} has to be a multiple of both", .path.display()
    )]
    Alignment {
        /// Where.
        path: PathBuf,
        /// What memory has to be aligned to.
        memory: u32,
        /// What offsets have to be aligned to.
        offset: u32,
    },
    /// A disk with sectors of an unusual length.
    #[error("{}: sectors of {sector} bytes; 512 and {UNIT} are supported", .path.display())]
    Sector {
        /// Where.
        path: PathBuf,
        /// The logical sector's length in bytes.
        sector: u32,
    },
    /// Another process has it.
    #[error("{}: in use by {}", .path.display(), holder_text(*.holder))]
    Locked {
        /// Where.
        path: PathBuf,
        /// The other process, when the kernel tells.
        holder: Option<u32>,
    },
    /// A disk that is mounted, part of an array, or has a partition in use.
    #[error(
        "{}: the system uses this disk or a part of it; see `lsblk` for mounts, volumes and \
         arrays on it", .path.display()
    )]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// The file system has too little room.
    #[error(
        "{}: {needed} bytes are needed and {free} are free on its file system",
        .path.display()
    )]
    NoSpace {
        /// Where.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free to this user.
        free: u64,
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

fn holder_text(holder: Option<u32>) -> String {
    holder.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

impl OpenError {
    pub(super) fn os(path: &Path, op: &'static str, cause: io::Error) -> Self {
        let path = path.to_owned();
        Self::Os { path, op, cause }
    }

    /// What a refused `open` means.
    pub(super) fn from_open(path: &Path, cause: io::Error) -> Self {
        let at = path.to_owned();
        match cause.raw_os_error() {
            // A file that can be read has its permission bits against writing.
            Some(libc::EACCES) if File::open(path).is_ok() => Self::ReadOnly { path: at },
            Some(libc::EACCES | libc::EPERM) => Self::Permission { path: at },
            Some(libc::EROFS) => Self::ReadOnly { path: at },
            Some(libc::EBUSY) => Self::InUse { path: at },
            Some(libc::EINVAL) => Self::no_direct_io(path),
            _ => Self::os(path, "open", cause),
        }
    }

    pub(super) fn no_direct_io(path: &Path) -> Self {
        Self::NoDirectIo {
            path: path.to_owned(),
            file_system: file_system(path),
        }
    }
}

/// The name of the file system that a path lies on.
fn file_system(path: &Path) -> String {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let Ok(stat) = statfs::statfs(path).or_else(|_| statfs::statfs(folder)) else {
        return "its file system".to_owned();
    };
    let named: [(FsType, &str); 9] = [
        (statfs::BTRFS_SUPER_MAGIC, "btrfs"),
        (statfs::ECRYPTFS_SUPER_MAGIC, "ecryptfs"),
        (statfs::EXT4_SUPER_MAGIC, "ext4"),
        (statfs::FUSE_SUPER_MAGIC, "FUSE"),
        (statfs::HUGETLBFS_MAGIC, "hugetlbfs"),
        (statfs::NFS_SUPER_MAGIC, "NFS"),
        (statfs::OVERLAYFS_SUPER_MAGIC, "overlayfs"),
        (statfs::TMPFS_MAGIC, "tmpfs"),
        (statfs::XFS_SUPER_MAGIC, "XFS"),
    ];
    let kind = stat.filesystem_type();
    named.iter().find(|(magic, _)| *magic == kind).map_or_else(
        || format!("the file system of type {:#x}", kind.0),
        |(_, name)| (*name).to_owned(),
    )
}

/// The process that holds a file's lock, from the kernel's list.
#[must_use]
pub fn lock_holder(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let list = std::fs::read_to_string("/proc/locks").ok()?;
    holder_in(&list, meta.dev(), meta.ino())
}

/// Finds `1: FLOCK  ADVISORY  WRITE 4711 fd:00:1234 0 EOF`: the numbers are the process, the
/// file system in hexadecimal, and the file.
fn holder_in(list: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let wanted = format!("{major:02x}:{minor:02x}:{inode}");
    list.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        if words.next()? != "FLOCK" {
            return None;
        }
        let pid = words.nth(2)?;
        (words.next()? == wanted).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_holder_is_found_by_device_and_inode() {
        let list = "1: POSIX  ADVISORY  READ  7 fe:00:55 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 4711 fe:00:55 0 EOF\n\
                    3: FLOCK  ADVISORY  WRITE -1 fe:00:56 0 EOF\n";
        let device = nix::sys::stat::makedev(0xfe, 0);
        assert_eq!(holder_in(list, device, 55), Some(4711));
        assert_eq!(holder_in(list, device, 56), None, "another container's");
        assert_eq!(holder_in(list, device, 57), None);
    }

    /// Aim: each answer of the kernel gets its own message, with the path in it.
    #[test]
    fn open_error_says_what_the_kernel_meant() {
        let path = Path::new("/nowhere/device");
        let text =
            |errno| OpenError::from_open(path, io::Error::from_raw_os_error(errno)).to_string();
        assert!(text(libc::EACCES).contains("permission denied"));
        assert!(text(libc::EROFS).ends_with("read-only"));
        assert!(text(libc::EBUSY).contains("lsblk"));
        assert!(text(libc::EINVAL).contains("O_DIRECT"));
        assert!(text(libc::EMFILE).starts_with("open /nowhere/device: "));
    }
}
