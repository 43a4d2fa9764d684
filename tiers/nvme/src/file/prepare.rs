//! The steps of opening that ask the kernel: direct I/O, room, blocks, geometry.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::sys::statvfs::fstatvfs;

use super::Preparation;
use super::errors::OpenError;
use crate::UNIT;
use crate::buffer::AlignedBuffer;

/// Bytes written at once while a file is made.
const ZEROS_LEN: u64 = 1 << 20;

/// Bytes between two calls of the progress function.
const PROGRESS_STEP: u64 = 64 << 20;

mod ioctls {
    nix::ioctl_read!(disk_len, 0x12, 114, u64);
    nix::ioctl_read_bad!(sector_len, libc::BLKSSZGET, libc::c_int);
}

/// Length of a disk and of its logical sectors, in bytes.
pub(super) fn disk_geometry(path: &Path, file: &File) -> Result<(u64, u32), OpenError> {
    let failed = |errno: Errno| OpenError::os(path, "ask for the length of", errno.into());
    let (mut len, mut sector) = (0u64, 0);
    // SAFETY: the call writes one u64 through the pointer.
    unsafe { ioctls::disk_len(file.as_raw_fd(), &raw mut len) }.map_err(failed)?;
    // SAFETY: the call writes one int through the pointer.
    unsafe { ioctls::sector_len(file.as_raw_fd(), &raw mut sector) }.map_err(failed)?;
    Ok((len, u32::try_from(sector).unwrap_or(0)))
}

/// Checks that units can be moved past the kernel's own memory; returns what offsets have to
/// be aligned to.
pub(super) fn check_direct(path: &Path, file: &File) -> Result<u32, OpenError> {
    let flags = fcntl(file, FcntlArg::F_GETFL)
        .map_err(|errno| OpenError::os(path, "ask for the flags of", errno.into()))?;
    if !OFlag::from_bits_retain(flags).contains(OFlag::O_DIRECT) {
        return Err(OpenError::no_direct_io(path));
    }
    let Some((memory, offset)) = direct_alignment(file) else {
        // Old kernels do not tell: try it. Reading nothing from a new file is a success too.
        let mut unit = AlignedBuffer::zeroed(UNIT as usize);
        return match file.read_at(unit.bytes_mut(), 0) {
            Ok(_) => Ok(512),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Err(OpenError::no_direct_io(path))
            }
            Err(error) => Err(OpenError::os(path, "read", error)),
        };
    };
    check_alignment(path, memory, offset)?;
    Ok(offset)
}

/// Checks that units can be moved with what direct I/O needs of memory and offsets.
pub(super) fn check_alignment(path: &Path, memory: u32, offset: u32) -> Result<(), OpenError> {
    if memory == 0 || offset == 0 {
        return Err(OpenError::no_direct_io(path));
    }
    let divides = |align: u32| UNIT.is_multiple_of(u64::from(align));
    if divides(memory) && divides(offset) {
        return Ok(());
    }
    Err(OpenError::Alignment {
        path: path.to_owned(),
        memory,
        offset,
    })
}

/// Checks the length of a disk's logical sectors.
pub(super) fn check_sector(path: &Path, sector: u32) -> Result<(), OpenError> {
    if sector == 512 || u64::from(sector) == UNIT {
        return Ok(());
    }
    let path = path.to_owned();
    Err(OpenError::Sector { path, sector })
}

/// What direct I/O needs of memory and offsets; `None` when the kernel does not know the
/// question.
fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is a string that ends, and the call writes one statx.
    let code = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            stat.as_mut_ptr(),
        )
    };
    // SAFETY: all its fields are integers, for which zeros are values.
    let stat = unsafe { stat.assume_init() };
    (code == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0)
        .then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// Checks that the file system has room for `len` bytes.
pub(super) fn check_room(path: &Path, file: &File, len: u64) -> Result<(), OpenError> {
    let free = free_bytes(path, file)?;
    if len > free {
        return Err(no_space(path, len, free));
    }
    Ok(())
}

fn free_bytes(path: &Path, file: &File) -> Result<u64, OpenError> {
    let stat = fstatvfs(file)
        .map_err(|errno| OpenError::os(path, "ask for the room beside", errno.into()))?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

fn no_space(path: &Path, needed: u64, free: u64) -> OpenError {
    OpenError::NoSpace {
        path: path.to_owned(),
        needed,
        free,
    }
}

/// Reserves blocks. A file that is to be written keeps its length of zero: it grows as it is
/// written, so that one whose making was cut short is told by its length.
pub(super) fn allocate(
    path: &Path,
    file: &File,
    len: u64,
    preparation: Preparation,
) -> Result<(), OpenError> {
    let flags = match preparation {
        Preparation::Zeroed => FallocateFlags::FALLOC_FL_KEEP_SIZE,
        Preparation::Lazy => FallocateFlags::empty(),
    };
    let signed_len = i64::try_from(len).unwrap_or(i64::MAX);
    match fallocate(file, flags, 0, signed_len) {
        Ok(()) => Ok(()),
        // Writing takes the blocks as well, and a lazy file goes without.
        Err(Errno::EOPNOTSUPP) if preparation == Preparation::Zeroed => Ok(()),
        Err(Errno::EOPNOTSUPP) => file
            .set_len(len)
            .map_err(|error| OpenError::os(path, "set the length of", error)),
        Err(Errno::ENOSPC) => Err(no_space(path, len, free_bytes(path, file)?)),
        Err(errno) => Err(OpenError::os(path, "reserve blocks for", errno.into())),
    }
}

/// Writes the whole file once.
pub(super) fn write_zeros(
    path: &Path,
    file: &File,
    len: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), OpenError> {
    let zeros = AlignedBuffer::zeroed(ZEROS_LEN as usize);
    progress(0, len);
    for offset in (0..len).step_by(ZEROS_LEN as usize) {
        let count = (len - offset).min(ZEROS_LEN);
        match file.write_all_at(&zeros.bytes()[..count as usize], offset) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                return Err(no_space(path, len - offset, free_bytes(path, file)?));
            }
            Err(error) => return Err(OpenError::os(path, "write zeros to", error)),
        }
        let done = offset + count;
        if done.is_multiple_of(PROGRESS_STEP) || done == len {
            progress(done, len);
        }
    }
    Ok(())
}

/// Makes a new file and its name survive power loss.
pub(super) fn sync(path: &Path, file: &File) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::os(path, "sync", error);
    file.sync_all().map_err(failed)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed)
}
