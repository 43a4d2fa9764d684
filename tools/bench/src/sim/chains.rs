//! `--tiers` that follow chains: ideal tiers by LRU and the Gittins index, and with
//! `--layout segments` the engine's policies over its log.

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use serde_json::json;
use terrace_engine::policy::WritePrice;
use terrace_sim::tiers::{
    IdealOptions, LogShape, Order, SegmentOptions, TierBlocks, TierCounts, WriteRule, ideal,
    segments,
};
use terrace_sim::{Capacity, Contender, Workload};

use super::ensure_distinct;
use super::options::SimArgs;
use super::rows::{Column, column, ratio};

/// How NVMe gives up blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// Any one block, in an order.
    Ideal,
    /// By segments, oldest first, as the engine.
    Segments,
}

/// Ideal tiers by name: the order of DRAM and that of NVMe.
const IDEAL: [(&str, Order, Order); 3] = [
    ("lru+lru", Order::Lru, Order::Lru),
    ("lru+git", Order::Lru, Order::Index),
    ("git+git", Order::Index, Order::Index),
];

/// What goes over what.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scheme {
    Ideal(&'static str, Order, Order),
    Segments(&'static str),
}

impl Scheme {
    const fn name(&self) -> &'static str {
        match self {
            Self::Ideal(name, ..) | Self::Segments(name) => name,
        }
    }
}

/// The rows of tiers that follow chains.
#[derive(Clone, Debug)]
pub struct ChainTiers {
    schemes: Vec<Scheme>,
    /// Hits a write has to win.
    prices: Vec<f64>,
    /// Writes a second; 0 for any.
    budgets: Vec<f64>,
    /// Rooms of DRAM and of NVMe.
    pub(super) capacities: Vec<(Capacity, Capacity)>,
}

/// One simulation of tiers that follow chains.
pub(super) struct ChainRow {
    trace: String,
    scheme: Scheme,
    dram_blocks: usize,
    nvme_blocks: usize,
    price: f64,
    budget: f64,
    counts: TierCounts,
}

impl ChainTiers {
    /// Whether `--tiers` asks for tiers that follow chains.
    pub(super) fn are_meant(args: &SimArgs, tiers: &str) -> bool {
        let first = tiers.split(',').next().unwrap_or_default().trim();
        let is_ideal = IDEAL
            .iter()
            .any(|(name, ..)| first.eq_ignore_ascii_case(name));
        is_ideal
            || args.layout.is_some()
            || args.write_price.is_some()
            || args.write_budget.is_some()
    }

    /// Checks what can be checked without a trace.
    ///
    /// # Errors
    /// Names the flag, its value and what is allowed.
    pub(super) fn new(
        args: &SimArgs,
        tiers: &str,
        capacities: Vec<(Capacity, Capacity)>,
    ) -> anyhow::Result<Self> {
        let schemes: Vec<Scheme> = match args.layout.unwrap_or(Layout::Ideal) {
            Layout::Ideal => tiers
                .split(',')
                .map(ideal_scheme)
                .collect::<Result<_, _>>()?,
            Layout::Segments => {
                let policies = Contender::list(tiers).context("--tiers")?;
                policies
                    .into_iter()
                    .map(segment_scheme)
                    .collect::<Result<_, _>>()?
            }
        };
        let names: Vec<&str> = schemes.iter().map(Scheme::name).collect();
        ensure_distinct(&names).context("--tiers")?;
        let price = terrace_engine::policy::WRITE_PRICE;
        Ok(Self {
            schemes,
            prices: numbers(args.write_price.as_deref(), "--write-price", price, 1.0)?,
            budgets: numbers(args.write_budget.as_deref(), "--write-budget", 0.0, 1e9)?,
            capacities,
        })
    }

    /// Simulates every combination over `workload`.
    ///
    /// # Errors
    /// When a value does not fit the trace.
    pub(super) fn rows(&self, workload: &Workload) -> anyhow::Result<Vec<ChainRow>> {
        let mut rows = Vec::new();
        for scheme in &self.schemes {
            for (dram, nvme) in &self.capacities {
                let blocks = TierBlocks {
                    dram: dram.blocks(workload.unique_blocks())?,
                    nvme: nvme.blocks(workload.unique_blocks())?,
                };
                for &price in &self.prices {
                    for &budget in &self.budgets {
                        let write_price =
                            WritePrice::default().with_base(price).with_budget(budget);
                        rows.push(ChainRow {
                            trace: workload.name().to_owned(),
                            scheme: scheme.clone(),
                            dram_blocks: blocks.dram,
                            nvme_blocks: blocks.nvme,
                            price,
                            budget,
                            counts: scheme.play(workload, blocks, write_price)?,
                        });
                    }
                }
            }
        }
        Ok(rows)
    }
}

impl Scheme {
    fn play(
        &self,
        workload: &Workload,
        blocks: TierBlocks,
        price: WritePrice,
    ) -> anyhow::Result<TierCounts> {
        match *self {
            Self::Ideal(_, dram, nvme) => {
                let options = IdealOptions {
                    blocks,
                    dram,
                    nvme,
                    exclusive: false,
                    writes_tails: true,
                    rule: WriteRule::Price(price),
                };
                ideal(workload, &options).context("--tiers")
            }
            Self::Segments(policy) => {
                let bytes = blocks.nvme as u64 * u64::from(workload.block_len());
                let Some(log) = LogShape::of_device(bytes, workload.block_len()) else {
                    bail!(
                        "--capacity has {} blocks of {} bytes for NVMe; a log has room for at \
                         least three segments of 8 MiB or two blocks",
                        blocks.nvme,
                        workload.block_len()
                    );
                };
                let options = SegmentOptions {
                    policy: policy.to_owned(),
                    dram: blocks.dram,
                    log,
                    announced: true,
                    price,
                };
                segments(workload, &options).context("--tiers")
            }
        }
    }
}

fn ideal_scheme(name: &str) -> anyhow::Result<Scheme> {
    let name = name.trim();
    let known = IDEAL
        .iter()
        .find(|(known, ..)| known.eq_ignore_ascii_case(name));
    let Some((name, dram, nvme)) = known else {
        let names: Vec<&str> = IDEAL.iter().map(|(name, ..)| *name).collect();
        bail!(
            "--tiers: `{name}` is not among {}; with --layout segments it is a policy",
            names.join(", ")
        );
    };
    Ok(Scheme::Ideal(name, *dram, *nvme))
}

fn segment_scheme(policy: Contender) -> anyhow::Result<Scheme> {
    match policy {
        Contender::Policy(name) => Ok(Scheme::Segments(name)),
        bound @ Contender::Bound(..) => bail!(
            "--tiers: {} knows the future and has no segments",
            bound.name()
        ),
    }
}

/// The numbers of a list, from 0 to `max`.
fn numbers(list: Option<&str>, flag: &str, default: f64, max: f64) -> anyhow::Result<Vec<f64>> {
    let Some(list) = list else {
        return Ok(vec![default]);
    };
    let mut numbers = Vec::new();
    for text in list.split(',').map(str::trim) {
        let number: Option<f64> = text.parse().ok();
        let Some(number) = number.filter(|number| (0.0..=max).contains(number)) else {
            bail!("{flag} has `{text}`; allowed are numbers from 0 to {max}");
        };
        numbers.push(number);
    }
    ensure_distinct(&numbers).context(flag.to_owned())?;
    ensure!(!numbers.is_empty(), "{flag} is empty");
    Ok(numbers)
}

/// Columns of tiers that follow chains.
pub(super) const CHAIN_COLUMNS: [Column<ChainRow>; 17] = [
    column("trace", Some("trace"), |row| json!(row.trace)),
    column("tiers", Some("tiers"), |row| json!(row.scheme.name())),
    column("layout", Some("layout"), |row| {
        json!(match row.scheme {
            Scheme::Ideal(..) => "ideal",
            Scheme::Segments(_) => "segments",
        })
    }),
    column("policy", None, |row| json!(row.scheme.name())),
    column("capacity_blocks", None, |row| {
        json!(row.dram_blocks + row.nvme_blocks)
    }),
    column("dram_blocks", Some("DRAM"), |row| json!(row.dram_blocks)),
    column("nvme_blocks", Some("NVMe"), |row| json!(row.nvme_blocks)),
    column("write_price", Some("price"), |row| json!(row.price)),
    column("write_budget", Some("budget"), |row| json!(row.budget)),
    column("accesses", None, |row| json!(row.counts.accesses)),
    column("hits", Some("hits"), |row| json!(row.counts.hits())),
    column("prefix_valid_hits", Some("prefix-valid"), |row| {
        json!(row.counts.prefix_valid_hits)
    }),
    column("dram_hits", Some("DRAM hits"), |row| {
        json!(row.counts.dram_hits)
    }),
    column("nvme_writes", Some("writes"), |row| {
        json!(row.counts.writes)
    }),
    column("reinsertions", Some("of them again"), |row| {
        json!(row.counts.reinsertions)
    }),
    column("demand_reads", None, |row| json!(row.counts.demand_reads)),
    column("demand_share", Some("demand reads"), |row| {
        json!(ratio(row.counts.demand_reads, row.counts.nvme_hits))
    }),
];
