//! `replay --mode sim`: lists of policies, capacities and shards over traces, without an engine.

mod chains;
mod golden;
mod options;
mod plot;
mod report;
mod rows;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use terrace_sim::trace::{SynthConfig, Trace};
use terrace_sim::two_tier::two_tier;
use terrace_sim::{Workload, simulate};

pub use chains::{ChainTiers, Layout};
pub use golden::{GoldenArgs, compare};
pub(crate) use options::flag;
pub use options::{Mode, SimArgs, SimOptions, Tables, engine_flag, sim_flag};
pub use rows::{Row, TierRow};

/// Requests of the synthetic trace that stands in for a missing one.
const SYNTH_REQUESTS: usize = 2000;

/// Simulates what `options` ask for, and prints and writes it.
///
/// # Errors
/// When a trace cannot be read, a value does not fit it, or a file cannot be written.
pub fn run(options: &SimOptions) -> anyhow::Result<()> {
    ensure!(
        options.requests != Some(0),
        "--requests is 0; allowed is at least 1"
    );
    let workloads = workloads(options)?;
    for workload in &workloads {
        options.check(workload)?;
    }
    match &options.tables {
        Tables::Policies { .. } => {
            let rows = policy_rows(options, &workloads)?;
            if let Some(path) = &options.plot {
                let svg = plot::miss_ratio_curves(&rows).context("draw --plot")?;
                write(path, "--plot", &svg)?;
            }
            report::print(options, &rows::COLUMNS, &rows)
        }
        Tables::Tiers { .. } => report::print(
            options,
            &rows::TIER_COLUMNS,
            &tier_rows(options, &workloads)?,
        ),
        Tables::Chains(tiers) => {
            let rows: Result<Vec<_>, _> = workloads.iter().map(|it| tiers.rows(it)).collect();
            let rows: Vec<_> = rows?.into_iter().flatten().collect();
            report::print(options, &chains::CHAIN_COLUMNS, &rows)
        }
    }
}

fn workloads(options: &SimOptions) -> anyhow::Result<Vec<Workload>> {
    let traces = match &options.traces[..] {
        [] => {
            let requests = options.requests.unwrap_or(SYNTH_REQUESTS);
            let config = SynthConfig {
                requests,
                ..SynthConfig::default()
            };
            vec![Trace::synthesize(&config).context("make a synthetic trace")?]
        }
        paths => {
            let read =
                |path: &PathBuf| Trace::open(path, options.requests).context("read the trace");
            paths.iter().map(read).collect::<Result<_, _>>()?
        }
    };
    let made = if options.join {
        Workload::joined(&traces, options.block_len).map(|workload| vec![workload])
    } else {
        let each = traces.iter();
        each.map(|trace| Workload::new(trace, options.block_len))
            .collect()
    };
    made.context("--trace")
}

fn policy_rows(options: &SimOptions, workloads: &[Workload]) -> anyhow::Result<Vec<Row>> {
    let Tables::Policies {
        policies,
        capacities,
        shards,
    } = &options.tables
    else {
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    for workload in workloads {
        for &policy in policies {
            for capacity in capacities {
                let blocks = capacity.blocks(workload.unique_blocks())?;
                for &shards in shards {
                    let outcome = simulate(policy, workload, blocks, shards)?;
                    rows.push(Row {
                        trace: workload.name().to_owned(),
                        policy,
                        capacity_blocks: blocks,
                        unique_blocks: workload.unique_blocks(),
                        shards,
                        outcome,
                    });
                }
            }
        }
    }
    Ok(rows)
}

fn tier_rows(options: &SimOptions, workloads: &[Workload]) -> anyhow::Result<Vec<TierRow>> {
    let Tables::Tiers {
        schemes,
        capacities,
    } = &options.tables
    else {
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    for workload in workloads {
        for &scheme in schemes {
            for &(dram, nvme) in capacities {
                let dram = dram.blocks(workload.unique_blocks())?;
                let nvme = nvme.blocks(workload.unique_blocks())?;
                rows.push(TierRow {
                    trace: workload.name().to_owned(),
                    scheme,
                    dram_blocks: dram,
                    nvme_blocks: nvme,
                    outcome: two_tier(scheme, workload, dram, nvme),
                });
            }
        }
    }
    Ok(rows)
}

/// Writes a file whose name a flag gave.
fn write(path: &Path, flag: &str, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("{flag}: write {}", path.display()))
}

/// That a list names nothing twice, and something.
fn ensure_distinct<T: PartialEq + std::fmt::Display>(list: &[T]) -> anyhow::Result<()> {
    for (at, value) in list.iter().enumerate() {
        ensure!(!list[..at].contains(value), "`{value}` is given twice");
    }
    Ok(())
}
