//! Loop devices and small file systems on them, where the process may have them.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use terrace_engine::{EngineConfig, HugepageMode, NvmeConfig};

use crate::files::Scratch;

/// Whether a program ran and was content; what it printed.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// A loop device over a file of its own; let go when dropped.
pub(crate) struct LoopDisk {
    pub(crate) path: String,
    _file: Scratch,
}

impl LoopDisk {
    /// `None` where that is not permitted.
    pub(crate) fn new(name: &str, mib: u64, sector: u32) -> Option<Self> {
        let file = Scratch::new(name);
        File::create(&file.0).unwrap().set_len(mib << 20).unwrap();
        let (sector, source) = (sector.to_string(), file.0.to_str().unwrap());
        let path = run(
            "losetup",
            &["--find", "--show", "--sector-size", &sector, source],
        )?;
        Some(Self { path, _file: file })
    }

    pub(crate) fn config(&self) -> EngineConfig {
        EngineConfig {
            dram_bytes: 4 << 20,
            hugepages: HugepageMode::Off,
            nvme: NvmeConfig {
                paths: vec![self.path.clone().into()],
                ..NvmeConfig::default()
            },
            ..EngineConfig::default()
        }
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.path]);
    }
}

/// A mounted ext4 file system on a loop device; gone when dropped.
pub(crate) struct Mount {
    pub(crate) folder: PathBuf,
    pub(crate) disk: LoopDisk,
}

impl Mount {
    /// `None` where that is not permitted.
    pub(crate) fn new(name: &str, mib: u64) -> Option<Self> {
        let disk = LoopDisk::new(name, mib, 512)?;
        run("mkfs.ext4", &["-q", "-m", "0", &disk.path])?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-mount"));
        std::fs::create_dir_all(&folder).unwrap();
        run("mount", &[&disk.path, folder.to_str().unwrap()])?;
        Some(Self { folder, disk })
    }

    /// Takes all the room that is left.
    pub(crate) fn fill(&self) {
        let mut file = File::create(self.folder.join("filler")).unwrap();
        for len in [1 << 20, 4096] {
            while file.write_all(&vec![1; len]).is_ok() {}
        }
        let _ = file.sync_all();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run("umount", &[self.folder.to_str().unwrap()]);
        let _ = std::fs::remove_dir(&self.folder);
    }
}
