//! The kernel's hugepage pools, as sysfs shows them.

use std::fs;
use std::time::Duration;

/// Counts of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Pages that nobody uses or has reserved.
    pub free: u64,
    /// All pages of the pool.
    pub total: u64,
}

/// The pool of pages of `page_len` bytes; zeros where the kernel has none.
#[must_use]
pub fn pool(page_len: u64) -> Pool {
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_len >> 10);
    let read = |name: &str| -> u64 {
        fs::read_to_string(format!("{folder}/{name}"))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    };
    let free = read("free_hugepages").saturating_sub(read("resv_hugepages"));
    Pool {
        free,
        total: read("nr_hugepages"),
    }
}

/// The pool once it has `needed` free pages, or after `wait` at the latest. Does not wait for
/// a pool that is too small altogether.
pub(crate) fn wait_for(page_len: u64, needed: u64, wait: Duration) -> Pool {
    const STEP: Duration = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    loop {
        let now = pool(page_len);
        if now.free >= needed || now.total < needed || waited >= wait {
            return now;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the kernel tells no one of freed hugepages"
        )]
        std::thread::sleep(STEP);
        waited += STEP;
    }
}

/// Whether the kernel gives transparent hugepages to memfds that ask for them.
pub(crate) fn shmem_thp() -> bool {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").is_ok_and(|text| {
        ["[always]", "[advise]", "[within_size]", "[force]"]
            .iter()
            .any(|m| text.contains(m))
    })
}

/// Bytes this process holds: resident set plus hugetlb pages, which the resident set leaves out.
#[must_use]
pub fn process_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> u64 {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .map_or(0, |kib| kib << 10)
    };
    field("VmRSS:") + field("HugetlbPages:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_of_an_unknown_page_length_is_empty() {
        assert_eq!(pool(12_345 << 10), Pool::default());
        assert_eq!(
            wait_for(12_345 << 10, 1, Duration::from_secs(60)),
            Pool::default()
        );
    }

    #[test]
    fn process_memory_is_counted() {
        assert!(process_memory_bytes() > 100 << 10);
    }
}
