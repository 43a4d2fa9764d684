//! The file or disk that is measured: made and written once when it is not there, and never
//! written over unless that is safe or was asked for.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use terrace_nvme::file::{Content, DeviceSpec, OpenedDevice, Preparation, open_device};
use terrace_nvme::uring::probe::{poll_setting, probe_polled};
use terrace_nvme::{AlignedBuffer, DeviceInfo};
use terrace_types::ByteLen;

use super::options::{HEAD_LEN, RawOptions, Rw};
use crate::payload;

/// Length of a file when none is given.
const FILE_LEN: u64 = 4 << 30;

/// First bytes of a file that this tool wrote: it may write it again.
const MARK: &[u8] = b"terrace-bench raw: all of this file was written once, and may be again\n";

/// See the module's text.
pub(super) struct Target {
    pub(super) file: Arc<File>,
    pub(super) info: DeviceInfo,
}

impl Target {
    /// Opens what the options name, or makes it.
    pub(super) fn open(options: &RawOptions) -> anyhow::Result<Self> {
        let path = options.path.as_path();
        let opened = if path.exists() {
            open_existing(path, options)?
        } else {
            let len = options.file_len.unwrap_or(FILE_LEN);
            options.check_device_len(len)?;
            make(path, len)?
        };
        if options.io_poll && !probe_polled(&opened.file) {
            let why = poll_setting(&opened.file).map_or_else(String::new, |(name, on)| {
                format!("; {name} is {}", u8::from(on))
            });
            bail!("--io-poll: {} cannot be polled{why}", path.display());
        }
        let OpenedDevice { file, info, .. } = opened;
        Ok(Self { file, info })
    }

    /// Another handle on the same open file.
    pub(super) fn share(&self) -> Self {
        Self {
            file: Arc::clone(&self.file),
            info: self.info.clone(),
        }
    }

    /// Name, length, sectors, and the disk below.
    pub(super) fn describe(&self) -> String {
        let DeviceInfo { name, len, sector } = &self.info;
        let disk = self.file.metadata().ok().and_then(|meta| {
            let device = match meta.file_type().is_block_device() {
                true => meta.rdev(),
                false => meta.dev(),
            };
            let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
            let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
            Some(link.file_name()?.to_string_lossy().into_owned())
        });
        let disk = disk.unwrap_or_else(|| "an unknown disk".to_owned());
        format!("{name}, {}, {sector} B sectors, on {disk}", ByteLen(*len))
    }
}

fn open_existing(path: &Path, options: &RawOptions) -> anyhow::Result<OpenedDevice> {
    let spec = DeviceSpec {
        len: options.file_len,
        ..DeviceSpec::existing(path)
    };
    let opened = open_device(&spec).context("open PATH")?;
    let is_disk = opened
        .file
        .metadata()
        .is_ok_and(|meta| meta.file_type().is_block_device());
    let is_marked = has_mark(&opened)?;
    if options.rw == Rw::Randread {
        if !is_marked && !is_disk && opened.content != Content::Ours {
            eprintln!(
                "terrace-bench: {} was not written by this tool; reads of extents that were \
                 never written do not reach the device",
                path.display()
            );
        }
        return Ok(opened);
    }
    let held = match &opened.content {
        Content::Ours => Some("a Terrace data set"),
        Content::Foreign { .. } if is_marked && !is_disk => None,
        Content::Foreign { what } => Some(what.as_str()),
        Content::Empty if is_disk => Some("whatever a block device holds"),
        Content::Empty => None,
    };
    if let Some(what) = held {
        ensure!(
            options.overwrite,
            "{}: --rw {} would write over {what}; say --overwrite if that may be lost",
            path.display(),
            options.rw.name()
        );
    }
    // What is written over is not what its head says any more.
    let head = head_of(opened.info.len.min(HEAD_LEN));
    opened
        .write_at(0, &head)
        .context("write the head of PATH")?;
    Ok(opened)
}

/// A file among the device nodes would lie in memory, and hide the device when it comes.
pub(super) fn check_folder(path: &Path) -> anyhow::Result<()> {
    ensure!(
        !path.starts_with("/dev") || path.starts_with("/dev/shm"),
        "{}: there is no such device",
        path.display()
    );
    Ok(())
}

fn head_of(len: u64) -> AlignedBuffer {
    let mut head = AlignedBuffer::zeroed(len as usize);
    head.bytes_mut()[..MARK.len()].copy_from_slice(MARK);
    head
}

fn has_mark(opened: &OpenedDevice) -> anyhow::Result<bool> {
    let mut unit = AlignedBuffer::zeroed(1);
    let read = opened.read_unit_at(0, &mut unit);
    read.context("read the head of PATH")?;
    Ok(unit.bytes().starts_with(MARK))
}

fn make(path: &Path, len: u64) -> anyhow::Result<OpenedDevice> {
    check_folder(path)?;
    eprintln!(
        "terrace-bench: {} is made and written once, {}",
        path.display(),
        ByteLen(len)
    );
    let spec = DeviceSpec {
        preparation: Preparation::Lazy,
        ..DeviceSpec::file(path, len)
    };
    let opened = open_device(&spec).context("make PATH")?;
    if let Err(error) = fill(&opened) {
        // A file that was written in part would be measured as if it were whole.
        let _ = std::fs::remove_file(path);
        return Err(error).with_context(|| format!("write {} once", path.display()));
    }
    Ok(opened)
}

/// Writes all of a file: its head, then bytes that do not compress.
fn fill(opened: &OpenedDevice) -> anyhow::Result<()> {
    let len = opened.info.len;
    opened.write_at(0, &head_of(len.min(HEAD_LEN)))?;
    for offset in (HEAD_LEN..len).step_by(HEAD_LEN as usize) {
        let mut piece = AlignedBuffer::zeroed((len - offset).min(HEAD_LEN) as usize);
        payload::fill(offset, piece.bytes_mut());
        opened.write_at(offset, &piece)?;
    }
    opened.sync()?;
    Ok(())
}
