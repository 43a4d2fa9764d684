//! What the machine has, as far as this process may use it.

use std::path::Path;

use terrace_runtime::affinity;
use terrace_types::ByteLen;

/// DRAM that a default takes at most, and at least.
const DRAM_MAX: ByteLen = ByteLen::gib(64);
const DRAM_MIN: ByteLen = ByteLen::mib(64);
/// The NVMe tier that a default takes at most. Its file is written once when it is made.
const NVME_MAX: ByteLen = ByteLen::gib(8);
/// Less than this is not worth a tier, and a device needs some.
const NVME_MIN: ByteLen = ByteLen::mib(256);

/// A shard for each processor but one, which is left to the kernel and to the admin thread.
pub(crate) fn shards_default() -> usize {
    affinity::allowed_cpus().len().saturating_sub(1).max(1)
}

/// A quarter of the memory that this process may have.
pub(crate) fn dram_default() -> u64 {
    let quarter = memory_len() / 4;
    let len = quarter.clamp(DRAM_MIN.0, DRAM_MAX.0);
    // Whole hugepages for each shard.
    let step = (2 << 20) * shards_default() as u64;
    (len / step).max(1) * step
}

/// Four times the DRAM, a quarter of what the folder's file system has left; none when that is little.
pub(crate) fn nvme_default(data: &Path, dram: u64) -> u64 {
    let there = data.ancestors().find(|path| path.is_dir());
    let free = there
        .or(Some(Path::new(".")))
        .and_then(|path| nix::sys::statvfs::statvfs(path).ok())
        .map_or(0, |stat| stat.blocks_available() * stat.fragment_size());
    let len = (4 * dram).min(NVME_MAX.0).min(free / 4) >> 20 << 20;
    if len < NVME_MIN.0 { 0 } else { len }
}

/// Memory of the machine, or what the control group leaves of it.
fn memory_len() -> u64 {
    let of_machine = std::fs::read_to_string("/proc/meminfo").ok();
    let of_machine = of_machine.as_deref().and_then(total_kib);
    let machine = of_machine.map_or(DRAM_MIN.0 * 4, |kib| kib << 10);
    machine.min(cgroup_limit().unwrap_or(u64::MAX))
}

fn total_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().split(' ').next()?.parse().ok()
}

/// The memory limit of this process's control group, in either version.
fn cgroup_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(limit_of_group).min()
}

fn limit_of_group(line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (controllers, path) = (fields.nth(1)?, fields.next()?);
    let file = match controllers {
        "" => format!("/sys/fs/cgroup{path}/memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")
        }
        _ => return None,
    };
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_the_engine_limits() {
        assert!(shards_default() >= 1);
        let dram = dram_default();
        assert!((2 << 20..=DRAM_MAX.0).contains(&dram), "{dram}");
        assert!(nvme_default(Path::new("no/such/folder"), dram) <= NVME_MAX.0);
    }

    #[test]
    fn meminfo_without_a_total_is_told() {
        assert_eq!(
            total_kib("MemFree: 1 kB\nMemTotal:       24000 kB\n"),
            Some(24000)
        );
        assert_eq!(total_kib("MemFree: 1 kB\n"), None);
    }
}
