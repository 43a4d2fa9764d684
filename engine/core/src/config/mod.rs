//! What an engine is opened with, and every check of it: a wrong value is refused before any
//! memory is taken, by field, value and limit.

mod namespace;
mod nvme;

use std::time::Duration;

use terrace_runtime::affinity;
use terrace_slab::HugepageMode;
use terrace_types::limits::{ARENA_LEN_MAX, BLOCK_LEN_MAX, HUGEPAGE_LEN, SHARDS_MAX};

use crate::error::Error;
use crate::policy::POLICY_NAMES;

pub use namespace::NamespaceOptions;
pub(crate) use namespace::validate_namespaces;
pub use nvme::{Missing, NvmeConfig, Use, WriteMode};

/// Which processors the shards' threads stay on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// The kernel moves them as it likes: the host program owns the cores.
    #[default]
    Unpinned,
    /// Each shard on a processor of its own, within the process's cpuset.
    Pinned,
}

/// What an engine is opened with. Start from [`EngineConfig::default`].
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Bytes of DRAM for blocks, over all shards; rounded down to 2 MiB a shard.
    pub dram_bytes: u64,
    /// Most blocks in DRAM, over all shards; `None` leaves it to the bytes.
    pub dram_blocks: Option<usize>,
    /// Shards, each with a thread of its own.
    pub shards: usize,
    /// Where the shards' threads run.
    pub pinning: Pinning,
    /// Whether DRAM must lie on hugepages.
    pub hugepages: HugepageMode,
    /// The policy, by name; see [`POLICY_NAMES`].
    pub policy: String,
    /// Block lengths to be expected, in bytes; each gets a size class that stays.
    pub block_lens: Vec<u64>,
    /// Largest share of DRAM that pinned and leased blocks may hold, from 0 to 1.
    pub pinned_ratio_max: f64,
    /// Largest share of DRAM for blocks that are read ahead of need and were not used yet, from 0
    /// to 1. One block is always granted.
    pub prefetch_ratio_max: f64,
    /// How long a put or get waits for room before it answers `Busy` or `Unavailable`.
    pub busy_wait: Duration,
    /// Messages that may wait for one shard.
    pub mailbox_len: usize,
    /// How long a shard looks for work after the last before it parks.
    pub spin: Duration,
    /// High watermark: with a tier below, demotion begins above this fill of DRAM.
    pub fill_ratio_high: f64,
    /// Low watermark: demotion stops below this fill.
    pub fill_ratio_low: f64,
    /// Largest share of DRAM that the floors of all namespaces may add up to, from 0 to 1.
    pub floor_ratio_max: f64,
    /// What holds for namespaces, by name, from the start: devices keep blocks, not rules.
    pub namespaces: Vec<(String, NamespaceOptions)>,
    /// The NVMe tier.
    pub nvme: NvmeConfig,
}

impl Default for EngineConfig {
    /// One unpinned shard of 256 MiB with LRU: small enough for any host program.
    fn default() -> Self {
        Self {
            dram_bytes: 256 << 20,
            dram_blocks: None,
            shards: 1,
            pinning: Pinning::Unpinned,
            hugepages: HugepageMode::Prefer,
            policy: "LRU".to_owned(),
            block_lens: Vec::new(),
            pinned_ratio_max: 0.5,
            prefetch_ratio_max: 0.1,
            busy_wait: Duration::from_millis(500),
            mailbox_len: 1024,
            spin: Duration::from_micros(20),
            fill_ratio_high: 0.98,
            fill_ratio_low: 0.96,
            floor_ratio_max: 0.5,
            namespaces: Vec::new(),
            nvme: NvmeConfig::default(),
        }
    }
}

/// Unpinned shards for each processor: a data set written on a larger machine opens on one with
/// half the processors, and slower.
const SHARDS_PER_CPU_MAX: usize = 2;

/// A duration no wait may exceed: promise 8 allows no unbounded one.
const WAIT_MAX: Duration = Duration::from_secs(3600);

impl EngineConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Config`] with the first field that is out of range, its value and the limit.
    pub fn validate(&self) -> Result<(), Error> {
        let cpus = affinity::allowed_cpus().len();
        check(
            "shards",
            self.shards,
            (1..=SHARDS_MAX).contains(&self.shards),
            || format!("1 to {SHARDS_MAX}"),
        )?;
        let per_cpu = match self.pinning {
            Pinning::Pinned => 1,
            Pinning::Unpinned => SHARDS_PER_CPU_MAX,
        };
        check("shards", self.shards, self.shards <= cpus * per_cpu, || {
            format!("at most {per_cpu} for each of the {cpus} processors this process may run on")
        })?;
        let shards = self.shards as u64;
        let least = HUGEPAGE_LEN * shards;
        let most = ARENA_LEN_MAX.saturating_mul(shards);
        check(
            "dram_bytes",
            self.dram_bytes,
            (least..=most).contains(&self.dram_bytes),
            || format!("{least} to {most}: at least 2 MiB and at most 16 TiB a shard"),
        )?;
        if let Some(blocks) = self.dram_blocks {
            check("dram_blocks", blocks, blocks >= self.shards, || {
                format!("at least {}, one a shard", self.shards)
            })?;
        }
        let name = &self.policy;
        let known = POLICY_NAMES
            .iter()
            .any(|policy| policy.eq_ignore_ascii_case(name));
        check("policy", name, known, || {
            format!("one of {}", POLICY_NAMES.join(", "))
        })?;
        for len in &self.block_lens {
            check("block_lens", len, (1..=BLOCK_LEN_MAX).contains(len), || {
                format!("1 to {BLOCK_LEN_MAX}")
            })?;
        }
        let count = self.block_lens.len();
        let classes = terrace_types::limits::SIZE_CLASSES_MAX;
        check("block_lens", count, count <= classes, || {
            format!("at most {classes} lengths")
        })?;
        let longest = self.block_lens.iter().copied().max().unwrap_or(0);
        self.nvme.validate(longest)?;
        self.validate_waits()?;
        let ratio = self.floor_ratio_max;
        check(
            "floor_ratio_max",
            ratio,
            (0.0..=1.0).contains(&ratio),
            || "0 to 1".to_owned(),
        )?;
        validate_namespaces(self, &self.namespaces)
    }

    fn validate_waits(&self) -> Result<(), Error> {
        let ratio = self.pinned_ratio_max;
        check(
            "pinned_ratio_max",
            ratio,
            ratio > 0.0 && ratio <= 1.0,
            || "more than 0 and at most 1".to_owned(),
        )?;
        let ratio = self.prefetch_ratio_max;
        check(
            "prefetch_ratio_max",
            ratio,
            (0.0..=1.0).contains(&ratio),
            || "0 to 1".to_owned(),
        )?;
        let (low, high) = (self.fill_ratio_low, self.fill_ratio_high);
        check("fill_ratio_high", high, (0.5..=1.0).contains(&high), || {
            "0.5 to 1".to_owned()
        })?;
        check("fill_ratio_low", low, (0.1..=high).contains(&low), || {
            format!("0.1 to {high} (fill_ratio_high)")
        })?;
        for (field, wait) in [("busy_wait", self.busy_wait), ("spin", self.spin)] {
            check(field, format!("{wait:?}"), wait <= WAIT_MAX, || {
                format!("at most {WAIT_MAX:?}")
            })?;
        }
        check(
            "mailbox_len",
            self.mailbox_len,
            (1..=1 << 20).contains(&self.mailbox_len),
            || "1 to 1048576".to_owned(),
        )
    }

    /// Bytes of the arena of one shard.
    #[must_use]
    pub fn arena_len(&self) -> u64 {
        self.dram_bytes / self.shards as u64 / HUGEPAGE_LEN * HUGEPAGE_LEN
    }

    /// The cap in blocks of shard `shard`: the first ones take what does not divide.
    #[must_use]
    pub fn blocks_of_shard(&self, shard: usize) -> Option<usize> {
        self.dram_blocks
            .map(|blocks| blocks / self.shards + usize::from(shard < blocks % self.shards))
    }
}

fn check(
    field: &'static str,
    value: impl ToString,
    holds: bool,
    limit: impl FnOnce() -> String,
) -> Result<(), Error> {
    if holds {
        return Ok(());
    }
    Err(Error::Config {
        field,
        value: value.to_string(),
        limit: limit(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_out_of_range_names_field_value_and_limit() {
        type Change = fn(&mut EngineConfig);
        let wrong: [(&str, Change); 24] = [
            ("shards", |c| c.shards = 0),
            ("shards", |c| c.shards = 1000),
            ("shards", |c| c.shards = 5000),
            ("dram_bytes", |c| c.dram_bytes = 1 << 20),
            ("dram_bytes", |c| c.dram_bytes = u64::MAX),
            ("dram_blocks", |c| c.dram_blocks = Some(0)),
            ("policy", |c| c.policy = "MRU".to_owned()),
            ("block_lens", |c| c.block_lens = vec![0]),
            ("block_lens", |c| c.block_lens = vec![BLOCK_LEN_MAX + 1]),
            ("block_lens", |c| c.block_lens = vec![4096; 33]),
            ("pinned_ratio_max", |c| c.pinned_ratio_max = 0.0),
            ("pinned_ratio_max", |c| c.pinned_ratio_max = f64::NAN),
            ("prefetch_ratio_max", |c| c.prefetch_ratio_max = 1.5),
            ("prefetch_ratio_max", |c| c.prefetch_ratio_max = f64::NAN),
            ("fill_ratio_high", |c| c.fill_ratio_high = 1.1),
            ("fill_ratio_low", |c| c.fill_ratio_low = 0.99),
            ("busy_wait", |c| c.busy_wait = Duration::from_secs(4000)),
            ("mailbox_len", |c| c.mailbox_len = 0),
            ("nvme.paths", |c| {
                c.nvme.paths = vec!["a".into(), "a".into()]
            }),
            ("nvme.paths", |c| {
                c.nvme.paths = (0..65).map(|i| i.to_string().into()).collect()
            }),
            ("nvme.drain", |c| c.nvme.drain = vec!["a".into()]),
            ("nvme.file_bytes", |c| c.nvme.file_bytes = Some(1 << 20)),
            ("nvme.queue_depth", |c| c.nvme.queue_depth = 0),
            ("nvme.io_deadline", |c| c.nvme.io_deadline = Duration::ZERO),
        ];
        for (field, change) in wrong {
            let mut config = EngineConfig::default();
            change(&mut config);
            let error = config.validate().expect_err(field).to_string();
            assert!(error.contains(field), "{error}");
        }
        assert!(EngineConfig::default().validate().is_ok());
    }

    #[test]
    fn config_divides_its_caps_without_loss() {
        let config = EngineConfig {
            shards: 2,
            dram_blocks: Some(1827),
            ..Default::default()
        };
        let blocks: usize = (0..2)
            .filter_map(|shard| config.blocks_of_shard(shard))
            .sum();
        assert_eq!(blocks, 1827);
        assert_eq!(config.arena_len(), 128 << 20);
    }
}
