//! What can be asked of a simulation, by flags, and which flags go together.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use terrace_sim::two_tier::TwoTierScheme;
use terrace_sim::{Capacity, Contender, SHARDS_MAX, Workload};
use terrace_types::limits::BLOCK_LEN_MAX;

use super::chains::{ChainTiers, Layout};
use super::ensure_distinct;

/// The capacities that the expected counts are for.
const CAPACITIES: &str = "0.1%,1%,5%,10%,20%,40%";

/// What a trace is played to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A real engine, with real bytes.
    Engine,
    /// Policies alone: exact counts, no bytes, no waiting.
    Sim,
}

/// Flags that only a simulation takes.
#[derive(Clone, Debug, Default, Args)]
pub struct SimArgs {
    /// Sim: rooms to simulate, in blocks (1827) or as shares of the different blocks of the trace
    /// (1%); with --tiers DRAM+NVME, such as 1%+10%. Without it 0.1% to 40%, or 1%+10%.
    #[arg(long, value_name = "LIST")]
    pub capacity: Option<String>,
    /// Sim: two tiers in place of policies. Reference schemes: excl, incl-backinv,
    /// incl-propagate, excl-reuse, p-lru-excl, p-lru-incl. With a price on writes: lru+lru,
    /// lru+git, git+git; with --layout segments policies.
    #[arg(long, value_name = "LIST")]
    pub tiers: Option<String>,
    /// Sim: how NVMe gives up blocks.
    #[arg(long, value_enum, requires = "tiers")]
    pub layout: Option<Layout>,
    /// Sim: hits that a write to NVMe has to win, 0.05 without it.
    #[arg(long, value_name = "LIST", requires = "tiers")]
    pub write_price: Option<String>,
    /// Sim: blocks a second that may be written to NVMe, 0 for any.
    #[arg(long, value_name = "LIST", requires = "tiers")]
    pub write_budget: Option<String>,
    /// Sim: play the traces one after the other to one policy: a change of traffic.
    #[arg(long)]
    pub join: bool,
    /// Sim: write the table as CSV, too.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Sim: draw curves of miss ratios, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Flags of a replay that only an engine takes, as the parser knows them.
const ENGINE_ONLY: [&str; 20] = [
    "dram",
    "dram_blocks",
    "nvme",
    "nvme_path",
    "nvme_drain",
    "nvme_accept_missing",
    "nvme_format",
    "io_poll",
    "durable",
    "write_through",
    "iodepth",
    "speed",
    "hugepages",
    "scratch",
    "announce",
    "prefetch",
    "remote",
    "namespace",
    "token_file",
    "threads",
];

/// Flags that only a simulation takes, as the parser knows them.
const SIM_ONLY: [&str; 8] = [
    "capacity",
    "tiers",
    "layout",
    "write_price",
    "write_budget",
    "join",
    "csv",
    "plot",
];

/// The first flag given that only an engine takes, as users write it.
pub fn engine_flag(is_given: impl Fn(&str) -> bool) -> Option<String> {
    flag(&ENGINE_ONLY, is_given)
}

/// The first flag given that only a simulation takes, as users write it.
pub fn sim_flag(is_given: impl Fn(&str) -> bool) -> Option<String> {
    flag(&SIM_ONLY, is_given)
}

pub(crate) fn flag(flags: &[&str], is_given: impl Fn(&str) -> bool) -> Option<String> {
    let found = flags.iter().find(|flag| is_given(flag));
    found.map(|flag| format!("--{}", flag.replace('_', "-")))
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Trace files; none for a synthetic trace.
    pub traces: Vec<PathBuf>,
    /// Only the first requests of each.
    pub requests: Option<usize>,
    /// Whether the traces are played one after the other to one policy.
    pub join: bool,
    /// Bytes that every block counts as. Keys depend on it, and shards on keys.
    pub block_len: u32,
    /// The rows.
    pub tables: Tables,
    /// Whether to print JSON in place of a table.
    pub json: bool,
    /// Where to write CSV.
    pub csv: Option<PathBuf>,
    /// Where to draw curves.
    pub plot: Option<PathBuf>,
}

/// The rows of a simulation: one for each combination.
#[derive(Clone, Debug)]
pub enum Tables {
    /// One tier.
    Policies {
        /// Policies and bounds.
        policies: Vec<Contender>,
        /// Rooms.
        capacities: Vec<Capacity>,
        /// Counts of shards.
        shards: Vec<usize>,
    },
    /// Two tiers.
    Tiers {
        /// Reference schemes.
        schemes: Vec<TwoTierScheme>,
        /// Rooms of DRAM and of NVMe.
        capacities: Vec<(Capacity, Capacity)>,
    },
    /// Two tiers that follow chains.
    Chains(ChainTiers),
}

impl SimOptions {
    /// Checks what can be checked without a trace; `traces` are as given, lists with commas
    /// among them. All requests are taken, and the result is a table.
    ///
    /// # Errors
    /// Names the flag, its value and what is allowed.
    pub fn new(
        args: &SimArgs,
        traces: &[PathBuf],
        policy: Option<&str>,
        shards: &[usize],
        block_len: u64,
    ) -> anyhow::Result<Self> {
        let traces = split(traces);
        ensure!(
            traces.iter().all(|path| !path.as_os_str().is_empty()),
            "--trace has an empty place; write files with a comma between two"
        );
        let shown: Vec<String> = traces.iter().map(|it| it.display().to_string()).collect();
        ensure_distinct(&shown).context("--trace")?;
        ensure!(
            !args.join || traces.len() > 1,
            "--join is given with {} --trace; it takes two or more",
            traces.len()
        );
        let Some(counted) = u32::try_from(block_len)
            .ok()
            .filter(|_| (1..=BLOCK_LEN_MAX).contains(&block_len))
        else {
            bail!("--block-len is {block_len}; allowed is 1 to {BLOCK_LEN_MAX}");
        };
        Ok(Self {
            traces,
            requests: None,
            join: args.join,
            block_len: counted,
            tables: Tables::new(args, policy, shards)?,
            json: false,
            csv: args.csv.clone(),
            plot: args.plot.clone(),
        })
    }

    /// Checks what depends on the trace: rooms against its blocks, shards against rooms.
    ///
    /// # Errors
    /// Names the flag, its value and what is allowed.
    pub fn check(&self, workload: &Workload) -> anyhow::Result<()> {
        let unique = workload.unique_blocks();
        let blocks = |capacity: &Capacity| {
            let named = || format!("--capacity over {}", workload.name());
            capacity.blocks(unique).with_context(named)
        };
        match &self.tables {
            Tables::Policies {
                capacities, shards, ..
            } => {
                for capacity in capacities {
                    let (blocks, most) = (blocks(capacity)?, shards.iter().max());
                    let most = most.copied().unwrap_or(1);
                    ensure!(
                        most <= blocks,
                        "--shards is {most} and --capacity {capacity} are {blocks} blocks of {}; \
                         a shard has at least one",
                        workload.name()
                    );
                }
            }
            Tables::Tiers { capacities, .. } | Tables::Chains(ChainTiers { capacities, .. }) => {
                for (dram, nvme) in capacities {
                    blocks(dram)?;
                    blocks(nvme)?;
                }
            }
        }
        Ok(())
    }
}

impl Tables {
    fn new(args: &SimArgs, policy: Option<&str>, shards: &[usize]) -> anyhow::Result<Self> {
        let Some(tiers) = &args.tiers else {
            ensure_distinct(shards).context("--shards")?;
            for &count in shards {
                ensure!(
                    (1..=SHARDS_MAX).contains(&count),
                    "--shards is {count}; allowed is 1 to {SHARDS_MAX}"
                );
            }
            let capacity = args.capacity.as_deref().unwrap_or(CAPACITIES);
            return Ok(Self::Policies {
                policies: Contender::list(policy.unwrap_or("LRU")).context("--policy")?,
                capacities: Capacity::list(capacity).context("--capacity")?,
                shards: shards.to_vec(),
            });
        };
        ensure!(
            policy.is_none(),
            "--policy is given, and --tiers has its own"
        );
        ensure!(shards == [1], "--shards is given, and --tiers has one only");
        ensure!(
            args.plot.is_none(),
            "--plot is given, and --tiers has no curves"
        );
        let capacity = args.capacity.as_deref().unwrap_or("1%+10%");
        let capacities = capacity
            .split(',')
            .map(pair)
            .collect::<Result<Vec<_>, _>>()?;
        let shown = capacities
            .iter()
            .map(|(dram, nvme)| format!("{dram}+{nvme}"));
        ensure_distinct(&shown.collect::<Vec<_>>()).context("--capacity")?;
        if ChainTiers::are_meant(args, tiers) {
            return Ok(Self::Chains(ChainTiers::new(args, tiers, capacities)?));
        }
        let names: Vec<&str> = tiers.split(',').map(str::trim).collect();
        let schemes: Result<Vec<_>, _> = names
            .iter()
            .map(|name| TwoTierScheme::by_name(name))
            .collect();
        let schemes = schemes.context("--tiers")?;
        let shown: Vec<&str> = schemes.iter().map(|scheme| scheme.name()).collect();
        ensure_distinct(&shown).context("--tiers")?;
        Ok(Self::Tiers {
            schemes,
            capacities,
        })
    }
}

/// Reads `1%+10%`.
fn pair(text: &str) -> anyhow::Result<(Capacity, Capacity)> {
    let text = text.trim();
    let Some((dram, nvme)) = text.split_once('+') else {
        bail!("--capacity is `{text}`; with --tiers it is DRAM+NVME, such as 1%+10%");
    };
    let part = |part: &str| part.trim().parse::<Capacity>().context("--capacity");
    Ok((part(dram)?, part(nvme)?))
}

/// The files of lists with commas. A file whose own name has a comma is taken as it is.
fn split(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in paths {
        match path.to_str().filter(|_| !path.exists()) {
            Some(list) => files.extend(list.split(',').map(PathBuf::from)),
            None => files.push(path.clone()),
        }
    }
    files
}
