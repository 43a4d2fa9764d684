//! Which processors this process may run on, and where their memory is near.

use std::fs;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// The processors this process may run on (its cpuset), in order.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else {
        return vec![0];
    };
    (0..CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .collect()
}

/// The NUMA node of a processor, or `None` on a machine with one node or none named.
#[must_use]
pub fn numa_node_of(cpu: usize) -> Option<u32> {
    let nodes = |path: &str, prefix: &str| -> Vec<u32> {
        let Ok(folder) = fs::read_dir(path) else {
            return Vec::new();
        };
        folder
            .filter_map(|item| item.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect()
    };
    if nodes("/sys/devices/system/node", "node").len() < 2 {
        return None;
    }
    nodes(&format!("/sys/devices/system/cpu/cpu{cpu}"), "node")
        .first()
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_processor_is_allowed() {
        let cpus = allowed_cpus();
        assert!(!cpus.is_empty());
        assert!(cpus.is_sorted());
    }
}
