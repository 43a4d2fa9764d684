//! One mapping of memory that a shard's slabs lie in: a memfd on hugepages, faulted in at start.
//!
//! **Invariants**
//! - The mapping lives as long as the value; nothing outside it holds the address longer.
//! - `len` is a multiple of 2 MiB and never changes: a cap in bytes that is taken at start.
//! - Bytes are read and written through raw pointers; a slot's bytes are lent as `&[u8]` only
//!   after its block was published, and from then on nobody writes them until the slot is free.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use terrace_types::limits::{ARENA_LEN_MAX, HUGEPAGE_LEN};

use crate::hugepages::{self, Pool};

/// Whether an arena must lie on hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugepageMode {
    /// Opening fails when the pool does not hold enough.
    Require,
    /// Hugepages when there are enough, else smaller pages with a warning.
    #[default]
    Prefer,
    /// 4 KiB pages.
    Off,
}

/// The kind of pages an arena lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// hugetlb pages of 1 GiB.
    Huge1Gib,
    /// hugetlb pages of 2 MiB.
    Huge2Mib,
    /// Transparent hugepages, as far as the kernel finds them.
    Transparent,
    /// 4 KiB pages.
    Base4Kib,
}

impl std::fmt::Display for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Huge1Gib => "hugetlb-1GiB",
            Self::Huge2Mib => "hugetlb-2MiB",
            Self::Transparent => "thp",
            Self::Base4Kib => "4KiB",
        })
    }
}

/// Why an arena could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The length is zero, not a multiple of 2 MiB, or beyond what slots can address.
    #[error(
        "an arena of {len} bytes is not possible: a length is a multiple of 2 MiB, at least \
         2 MiB and at most {ARENA_LEN_MAX}"
    )]
    Length {
        /// The length asked for, in bytes.
        len: u64,
    },
    /// Hugepages are required and the pool has too few.
    #[error(
        "an arena of {len} bytes needs {needed} hugepages of 2 MiB, {free} of {total} are free; \
         get more with `sysctl -w vm.nr_hugepages={suggested}` or set hugepages to `prefer`"
    )]
    Hugepages {
        /// The arena's length in bytes.
        len: u64,
        /// Pages it needs.
        needed: u64,
        /// Pages free now.
        free: u64,
        /// Pages in the pool.
        total: u64,
        /// A pool size that would do.
        suggested: u64,
    },
    /// The operating system refused a step.
    #[error("{op} an arena of {len} bytes: {cause}")]
    Os {
        /// What was tried.
        op: &'static str,
        /// The arena's length in bytes.
        len: u64,
        /// What the operating system said.
        cause: nix::Error,
    },
}

/// What to make an arena of.
#[derive(Clone, Copy, Debug)]
pub struct ArenaConfig {
    /// Length in bytes, a multiple of 2 MiB.
    pub len: u64,
    /// Whether hugepages are a must.
    pub hugepages: HugepageMode,
    /// NUMA node to take the memory from; `None` leaves it to the kernel.
    pub numa_node: Option<u32>,
    /// Threads that fault the memory in.
    pub fault_threads: usize,
    /// How long to wait for a pool that is large enough but not free yet: after kill -9 of
    /// its last user the kernel takes some tens of milliseconds to hand hugepages back.
    pub pool_wait: Duration,
}

impl ArenaConfig {
    /// An arena of `len` bytes with the defaults: hugepages preferred, two fault threads.
    #[must_use]
    pub const fn new(len: u64) -> Self {
        Self {
            len,
            hugepages: HugepageMode::Prefer,
            numa_node: None,
            fault_threads: 2,
            pool_wait: Duration::from_secs(5),
        }
    }
}

/// See the module's text.
pub struct Arena {
    base: NonNull<u8>,
    len: u64,
    backing: Backing,
    memfd: OwnedFd,
}

// SAFETY: the mapping is plain shared memory owned by this value; every access to its bytes
// goes through a slot, whose single owner orders writes before reads.
unsafe impl Send for Arena {}
// SAFETY: as above; `&Arena` hands out addresses, not references to bytes.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps and faults in an arena.
    ///
    /// # Errors
    /// [`ArenaError`] names the length, the pool and the step that failed.
    pub fn open(config: &ArenaConfig) -> Result<Self, ArenaError> {
        let len = config.len;
        if len == 0 || !len.is_multiple_of(HUGEPAGE_LEN) || len > ARENA_LEN_MAX {
            return Err(ArenaError::Length { len });
        }
        let arena = match config.hugepages {
            HugepageMode::Off => Self::map(len, MFdFlags::empty(), Backing::Base4Kib)?,
            HugepageMode::Require | HugepageMode::Prefer => Self::map_huge(config)?,
        };
        arena.prepare(config)?;
        Ok(arena)
    }

    fn map_huge(config: &ArenaConfig) -> Result<Self, ArenaError> {
        let len = config.len;
        if len.is_multiple_of(1 << 30) && hugepages::pool(1 << 30).free >= len >> 30 {
            let flags = MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB;
            if let Ok(arena) = Self::map(len, flags, Backing::Huge1Gib) {
                return Ok(arena);
            }
        }
        let needed = len / HUGEPAGE_LEN;
        let pool = hugepages::wait_for(HUGEPAGE_LEN, needed, config.pool_wait);
        if pool.free >= needed {
            let flags = MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;
            // Another process may have been faster: the kernel's answer counts, not the count.
            if let Ok(arena) = Self::map(len, flags, Backing::Huge2Mib) {
                return Ok(arena);
            }
        }
        let Pool { free, total } = pool;
        let suggested = total + needed.saturating_sub(free);
        if config.hugepages == HugepageMode::Require {
            return Err(ArenaError::Hugepages {
                len,
                needed,
                free,
                total,
                suggested,
            });
        }
        let backing = if hugepages::shmem_thp() {
            Backing::Transparent
        } else {
            Backing::Base4Kib
        };
        tracing::warn!(
            len, needed, free, total, %backing,
            "too few hugepages for the arena; get more with `sysctl -w vm.nr_hugepages={suggested}`"
        );
        Self::map(len, MFdFlags::empty(), backing)
    }

    fn map(len: u64, huge: MFdFlags, backing: Backing) -> Result<Self, ArenaError> {
        let os = |op| move |cause| ArenaError::Os { op, len, cause };
        let memfd = memfd_create(c"terrace-arena", MFdFlags::MFD_CLOEXEC | huge)
            .map_err(os("create the memfd of"))?;
        nix::unistd::ftruncate(&memfd, i64::try_from(len).unwrap_or(i64::MAX))
            .map_err(os("set the length of"))?;
        let map_len =
            std::num::NonZeroUsize::new(len as usize).ok_or(ArenaError::Length { len })?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping of our own memfd at an address of the kernel's choice.
        let base = unsafe { mmap(None, map_len, protection, MapFlags::MAP_SHARED, &memfd, 0) }
            .map_err(os("map"))?;
        Ok(Self {
            base: base.cast(),
            len,
            backing,
            memfd,
        })
    }

    fn prepare(&self, config: &ArenaConfig) -> Result<(), ArenaError> {
        let os = |op| {
            move |cause| ArenaError::Os {
                op,
                len: self.len,
                cause,
            }
        };
        // A child that inherits gigabytes by fork, or a core file full of slots, helps no one.
        for advice in [MmapAdvise::MADV_DONTFORK, MmapAdvise::MADV_DONTDUMP] {
            // SAFETY: the range is this arena's mapping.
            unsafe { madvise(self.base.cast(), self.len as usize, advice) }
                .map_err(os("set the fork and dump advice of"))?;
        }
        if self.backing == Backing::Transparent {
            // SAFETY: as above. Refusal costs speed only.
            let _ = unsafe {
                madvise(
                    self.base.cast(),
                    self.len as usize,
                    MmapAdvise::MADV_HUGEPAGE,
                )
            };
        }
        if let Some(node) = config.numa_node {
            crate::numa::prefer_node(self.base, self.len, node);
        }
        self.fault_in(config.fault_threads.max(1))
            .map_err(os("fault in"))
    }

    /// Takes all memory now: later it would be a fault on the data path, or a SIGBUS.
    fn fault_in(&self, threads: usize) -> Result<(), nix::Error> {
        let pages = self.len / HUGEPAGE_LEN;
        let share = pages.div_ceil(threads as u64) * HUGEPAGE_LEN;
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads as u64)
                .map(|i| (i * share, ((i + 1) * share).min(self.len)))
                .filter(|(start, end)| start < end)
                .map(|(start, end)| scope.spawn(move || self.populate(start, end)))
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or(Err(nix::Error::EFAULT)))
        })
    }

    fn populate(&self, start: u64, end: u64) -> Result<(), nix::Error> {
        // 64 MiB a call, so that a signal or a kill does not wait for gigabytes.
        for offset in (start..end).step_by(64 << 20) {
            let len = (end - offset).min(64 << 20);
            // SAFETY: `offset + len <= self.len`, so the range lies in the mapping.
            let address = unsafe { self.base.as_ptr().add(offset as usize) };
            // SAFETY: populating a range of our own mapping changes no bytes.
            let code =
                unsafe { libc::madvise(address.cast(), len as usize, libc::MADV_POPULATE_WRITE) };
            if code != 0 {
                return Err(nix::Error::last());
            }
        }
        Ok(())
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Never true: an arena has at least one hugepage.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pages in force.
    #[must_use]
    pub const fn backing(&self) -> Backing {
        self.backing
    }

    /// The memfd behind the mapping, to be passed to a peer on the same host.
    #[must_use]
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// The address of byte `offset`.
    ///
    /// # Panics
    /// When `offset + len` lies outside the arena.
    #[inline]
    #[must_use]
    pub fn address(&self, offset: u64, len: u64) -> NonNull<u8> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{offset}+{len} of {}",
            self.len
        );
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.base.add(offset as usize) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and by the invariant nothing
        // uses its addresses any more.
        let unmapped = unsafe { munmap(self.base.cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_of_a_wrong_length_is_refused() {
        for len in [0, 4096, HUGEPAGE_LEN + 1, ARENA_LEN_MAX + HUGEPAGE_LEN] {
            let error = Arena::open(&ArenaConfig::new(len)).err().expect("refused");
            assert!(error.to_string().contains(&len.to_string()), "{error}");
        }
    }

    #[test]
    fn arena_without_enough_hugepages_names_the_pool() {
        let config = ArenaConfig {
            hugepages: HugepageMode::Require,
            pool_wait: Duration::ZERO,
            ..ArenaConfig::new(1 << 40)
        };
        let error = Arena::open(&config).err().expect("refused").to_string();
        assert!(error.contains("524288 hugepages"), "{error}");
        assert!(error.contains("vm.nr_hugepages="), "{error}");
    }

    #[test]
    fn arena_off_hugepages_is_readable_to_its_end() {
        let config = ArenaConfig {
            hugepages: HugepageMode::Off,
            ..ArenaConfig::new(2 << 20)
        };
        let arena = Arena::open(&config).unwrap();
        assert_eq!(arena.backing(), Backing::Base4Kib);
        let last = arena.address(arena.len() - 1, 1);
        // SAFETY: the last byte of the mapping, which no one else uses.
        unsafe { last.write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 7);
    }

    #[test]
    #[should_panic(expected = "of 2097152")]
    fn arena_address_outside_panics() {
        let config = ArenaConfig {
            hugepages: HugepageMode::Off,
            ..ArenaConfig::new(2 << 20)
        };
        let _ = Arena::open(&config).unwrap().address(2 << 20, 1);
    }
}
