//! What the fuzz targets of this crate call: a checkpoint from a device, a config from a user.
//!
//! Aim: no bytes and no values make them panic, and what is accepted keeps the limits that are
//! documented. Method: a checkpoint that is read is written again; of a config that is valid
//! every share of every shard is worked out.

use std::path::PathBuf;
use std::time::Duration;

use terrace_types::limits::{
    ARENA_LEN_MAX, BLOCK_LEN_MAX, HUGEPAGE_LEN, SHARDS_MAX, SIZE_CLASSES_MAX,
};

use crate::config::{EngineConfig, NvmeConfig, Pinning};
use crate::error::Error;
use crate::policy::POLICY_NAMES;
use crate::shard::checkpoint_again;

/// A shard's checkpoint, as its payload is read.
#[must_use]
pub fn checkpoint(payload: &[u8]) -> bool {
    let Some((count, again)) = checkpoint_again(payload) else {
        return false;
    };
    assert_eq!(payload.len(), 16 + 10 * count);
    assert_eq!(again, payload);
    true
}

/// Values drawn from bytes; zeros when there are no more.
struct Values<'a>(&'a [u8]);

impl Values<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        let bytes = std::array::from_fn(|_| self.byte());
        u64::from_le_bytes(bytes)
    }

    fn ratio(&mut self) -> f64 {
        f64::from_bits(self.number())
    }

    fn duration(&mut self) -> Duration {
        Duration::from_nanos(self.number())
    }

    fn text(&mut self) -> String {
        let len = usize::from(self.byte()).min(self.0.len());
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }

    fn list<T>(&mut self, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.byte();
        (0..count).map(|_| draw(self)).collect()
    }

    fn option<T>(&mut self, draw: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.byte() % 2 == 1).then(|| draw(self))
    }
}

/// A config whose numbers, names and lists are drawn from the bytes, in the order of its fields.
#[must_use]
pub fn config(bytes: &[u8]) -> bool {
    let config = config_from(&mut Values(bytes));
    match config.validate() {
        Ok(()) => check_config(&config),
        Err(error) => {
            let Error::Config {
                field,
                value: _,
                limit,
            } = &error
            else {
                panic!("{error} is not about a field");
            };
            assert!(!limit.is_empty() && error.to_string().contains(field));
            return false;
        }
    }
    true
}

fn config_from(values: &mut Values<'_>) -> EngineConfig {
    EngineConfig {
        dram_bytes: values.number(),
        dram_blocks: values.option(|values| values.number() as usize),
        shards: values.number() as usize,
        pinning: values.option(|_| Pinning::Pinned).unwrap_or_default(),
        policy: values.text(),
        block_lens: values.list(Values::number),
        pinned_ratio_max: values.ratio(),
        busy_wait: values.duration(),
        mailbox_len: values.number() as usize,
        spin: values.duration(),
        fill_ratio_high: values.ratio(),
        fill_ratio_low: values.ratio(),
        nvme: NvmeConfig {
            paths: values.list(|values| PathBuf::from(values.text())),
            drain: values.list(|values| PathBuf::from(values.text())),
            file_bytes: values.option(Values::number),
            queue_depth: values.number() as u32,
            io_deadline: values.duration(),
            write_budget: values.number(),
            scrub_rate: values.number(),
            ..NvmeConfig::default()
        },
        ..EngineConfig::default()
    }
}

/// What a valid config promises to whoever opens with it.
fn check_config(config: &EngineConfig) {
    assert!((1..=SHARDS_MAX).contains(&config.shards));
    let arena = config.arena_len();
    assert!((HUGEPAGE_LEN..=ARENA_LEN_MAX).contains(&arena));
    assert!(arena.is_multiple_of(HUGEPAGE_LEN));
    assert!(arena * config.shards as u64 <= config.dram_bytes);
    let shares = (0..config.shards).map(|shard| config.blocks_of_shard(shard));
    match config.dram_blocks {
        None => assert!(shares.flatten().next().is_none()),
        Some(blocks) => {
            let shares: Vec<usize> = shares.flatten().collect();
            assert!(shares.iter().all(|share| *share >= 1));
            assert_eq!(shares.iter().sum::<usize>(), blocks);
        }
    }
    let name = config.policy.to_ascii_uppercase();
    assert!(POLICY_NAMES.contains(&name.as_str()));
    assert!(config.block_lens.len() <= SIZE_CLASSES_MAX);
    let lens = 1..=BLOCK_LEN_MAX;
    assert!(config.block_lens.iter().all(|len| lens.contains(len)));
    let (low, high) = (config.fill_ratio_low, config.fill_ratio_high);
    assert!(0.0 < low && low <= high && high <= 1.0);
    assert!(0.0 < config.pinned_ratio_max && config.pinned_ratio_max <= 1.0);
    let nvme = &config.nvme;
    assert!(nvme.paths.len() + nvme.drain.len() <= 64);
    assert!(nvme.drain.is_empty() || nvme.is_used());
    for wait in [config.busy_wait, config.spin, nvme.io_deadline] {
        assert!(wait <= Duration::from_secs(3600));
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora_replayed_are_accepted_and_refused() {
        replay::all(&[("checkpoint", checkpoint), ("config", config)]);
    }
}
