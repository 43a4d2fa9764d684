//! The kernel's pool of 2 MiB hugepages: how many are wanted, reserving them, giving them back.
//!
//! **Invariants**
//! - The pool is never grown beyond a quarter of the memory, nor by more than half of what is
//!   available; it is never shrunk below what it was before.
//! - Only pages that this process added are given back.

use std::fmt;
use std::fs;

/// Free pages that tests and benches want: a 4 GiB engine and 512 MiB beside it.
const FREE_WANTED: u64 = 2304;

/// The page length that the engine asks for, in KiB.
const PAGE_KIB: u64 = 2048;

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

/// The pool as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    total: u64,
    /// Neither in use nor promised to a mapping.
    free: u64,
    memory_kib: u64,
    available_kib: u64,
}

impl Pool {
    /// Reads the pool; an error says why there is none of 2 MiB pages.
    pub(super) fn read() -> Result<Self, String> {
        let text = fs::read_to_string("/proc/meminfo");
        Self::parse(&text.map_err(|error| format!("read /proc/meminfo: {error}"))?)
    }

    fn parse(meminfo: &str) -> Result<Self, String> {
        let field = |name: &str| {
            meminfo
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
                .ok_or_else(|| format!("/proc/meminfo has no {name}"))
        };
        let page_kib = field("Hugepagesize")?;
        if page_kib != PAGE_KIB {
            return Err(format!(
                "the default hugepage has {page_kib} KiB, not {PAGE_KIB}"
            ));
        }
        Ok(Self {
            total: field("HugePages_Total")?,
            free: field("HugePages_Free")?.saturating_sub(field("HugePages_Rsvd")?),
            memory_kib: field("MemTotal")?,
            available_kib: field("MemAvailable")?,
        })
    }

    /// The pool size to ask for, or `None` when there are enough or memory allows no more.
    pub(super) fn wanted_total(&self) -> Option<u64> {
        let lacking = FREE_WANTED.saturating_sub(self.free);
        let growth_max = self.available_kib / 2 / PAGE_KIB;
        let total_max = self.memory_kib / 4 / PAGE_KIB;
        let total = (self.total + lacking.min(growth_max)).min(total_max);
        (total > self.total).then_some(total)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} free of {}", self.free, self.total)?;
        if self.free < FREE_WANTED {
            write!(f, ", {FREE_WANTED} wanted")
        } else {
            Ok(())
        }
    }
}

/// The command that sets the pool to `total` pages.
pub(super) fn advice(total: u64) -> String {
    format!(
        "slower without, the engine falls back to 4 KiB pages; \
         run: sudo sysctl -w vm.nr_hugepages={total}"
    )
}

/// Pages added to the pool by this process. [`Reserved::keep`] leaves them there; dropping
/// gives them back.
#[must_use]
pub(crate) struct Reserved {
    added: u64,
}

impl Reserved {
    /// No pages.
    pub(super) fn nothing() -> Self {
        Self { added: 0 }
    }

    /// Asks the kernel for a pool of `total` pages. It may give fewer: it needs free runs of
    /// 2 MiB, so memory is compacted once when it does.
    pub(super) fn reserve(total: u64) -> Result<Self, String> {
        let before = read_total()?;
        write_total(total)?;
        if read_total()? < total {
            // A kernel built without compaction has no such file; then the first answer stands.
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
            write_total(total)?;
        }
        Ok(Self {
            added: read_total()?.saturating_sub(before),
        })
    }

    /// Leaves the pages in the pool.
    pub(crate) fn keep(mut self) {
        self.added = 0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.added == 0 {
            return;
        }
        let outcome = read_total().and_then(|total| write_total(total_without(total, self.added)));
        match outcome {
            Ok(()) => println!("setup: gave {} hugepages back", self.added),
            Err(why) => eprintln!("setup: {} hugepages stay reserved: {why}", self.added),
        }
    }
}

/// What is left of a pool without the pages added here; others may have changed it meanwhile.
fn total_without(total: u64, added: u64) -> u64 {
    total.saturating_sub(added)
}

fn read_total() -> Result<u64, String> {
    let text = fs::read_to_string(NR_HUGEPAGES)
        .map_err(|error| format!("read {NR_HUGEPAGES}: {error}"))?;
    text.trim()
        .parse()
        .map_err(|error| format!("{NR_HUGEPAGES} holds `{}`: {error}", text.trim()))
}

fn write_total(total: u64) -> Result<(), String> {
    fs::write(NR_HUGEPAGES, total.to_string())
        .map_err(|error| format!("write {total} to {NR_HUGEPAGES}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB_KIB: u64 = 1 << 20;

    fn pool(total: u64, free: u64, memory_gib: u64, available_gib: u64) -> Pool {
        let (memory_kib, available_kib) = (memory_gib * GIB_KIB, available_gib * GIB_KIB);
        Pool {
            total,
            free,
            memory_kib,
            available_kib,
        }
    }

    #[test]
    fn wanted_total_enough_free_pages_asks_for_nothing() {
        assert_eq!(pool(2304, 2304, 24, 20).wanted_total(), None);
        assert_eq!(pool(9000, 2304, 64, 20).wanted_total(), None);
    }

    #[test]
    fn wanted_total_counts_pages_in_use_on_top() {
        assert_eq!(pool(0, 0, 24, 20).wanted_total(), Some(2304));
        // 600 of 1,000 are in use: 1,904 more make 2,304 free ones.
        assert_eq!(pool(1000, 400, 64, 60).wanted_total(), Some(2904));
    }

    #[test]
    fn wanted_total_stops_at_a_quarter_of_memory() {
        // 8 GiB: a quarter is 1,024 pages.
        assert_eq!(pool(0, 0, 8, 8).wanted_total(), Some(1024));
        assert_eq!(pool(1024, 0, 8, 8).wanted_total(), None);
        assert_eq!(pool(2000, 0, 8, 8).wanted_total(), None);
    }

    #[test]
    fn wanted_total_grows_by_half_of_what_is_available_at_most() {
        // 1 GiB available: 256 pages.
        assert_eq!(pool(100, 0, 64, 1).wanted_total(), Some(356));
    }

    #[test]
    fn parse_promised_pages_are_not_free() {
        let text = "MemTotal: 100 kB\nMemAvailable: 50 kB\nHugePages_Total: 9\n\
                    HugePages_Free: 8\nHugePages_Rsvd: 3\nHugepagesize: 2048 kB\n";
        let expected = Pool {
            total: 9,
            free: 5,
            memory_kib: 100,
            available_kib: 50,
        };
        assert_eq!(Pool::parse(text), Ok(expected));
    }

    #[test]
    fn parse_other_page_length_or_no_pool_is_refused() {
        assert!(
            Pool::parse("Hugepagesize: 1048576 kB\n")
                .unwrap_err()
                .contains("1048576")
        );
        assert!(
            Pool::parse("MemTotal: 100 kB\n")
                .unwrap_err()
                .contains("Hugepagesize")
        );
    }

    #[test]
    fn total_without_keeps_what_others_added() {
        assert_eq!(total_without(2804, 2304), 500);
        assert_eq!(total_without(100, 2304), 0);
    }

    #[test]
    fn advice_is_a_command_with_the_number() {
        assert!(advice(2304).contains("sudo sysctl -w vm.nr_hugepages=2304"));
    }
}
