//! Comparison with the counts of independent simulators.
//!
//! A file of expected counts is one JSON object: for each trace the count of accesses `N`, of
//! different blocks `U`, the capacities `caps`, and for each policy its hits at each of them. Under
//! a name that ends in `:prefix_valid` stand the hits of which every earlier block hit, too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::contender::Contender;
use crate::simulate::simulate;
use crate::trace::{Trace, TraceError};
use crate::workload::Workload;

/// Names of the traces in a file of expected counts, and the files they are in.
pub const TRACES: [(&str, &str); 7] = [
    ("conversation", "conversation_trace.jsonl.zst"),
    ("arxiv1000", "mooncake_trace_1000.jsonl.zst"),
    ("weka120", "weka_agentic_512.jsonl.zst"),
    ("OLTP", "OLTP.lis.zst"),
    ("lirs_loop", "lirs_loop.trace.gz"),
    ("lirs_gli", "lirs_gli.trace.gz"),
    ("web12", "cache2k_web12.trace.xz"),
];

/// Name of the file of expected counts, in the folder of the traces.
pub const FILE: &str = "golden.json";

/// Ends the names of prefix-valid counts.
const PREFIX_VALID: &str = ":prefix_valid";

/// What every block counts as; the expected counts are of blocks.
const BLOCK_LEN: u32 = 1 << 16;

/// Why nothing can be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// The file of expected counts cannot be read.
    #[error("read {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The file of expected counts is not what it must be.
    #[error("{path}: {found}; expected an object of objects of lists of integers")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
    },
    /// A trace is there and cannot be read.
    #[error("{0}")]
    Trace(TraceError),
    /// A trace has other counts of accesses or blocks than the expected ones are for.
    #[error("{path} has {found} accesses and blocks; the expected counts are for {expected}")]
    OtherTrace {
        /// The trace.
        path: PathBuf,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// A simulation cannot be made.
    #[error("{0}")]
    Sim(crate::error::SimError),
}

/// The expected counts of one trace.
pub struct Expected {
    /// Accesses and different blocks of the trace.
    pub extent: (u64, u64),
    /// The capacities, in blocks.
    pub capacities: Vec<u64>,
    /// Hits at each capacity, by policy.
    pub hits: BTreeMap<String, Vec<u64>>,
}

/// The counts of one policy over one trace.
pub struct Comparison {
    /// The policy, with the ending of prefix-valid counts.
    pub name: String,
    /// What is expected at each capacity.
    pub expected: Vec<u64>,
    /// What was counted; none when there is no such policy.
    pub got: Option<Vec<u64>>,
}

impl Comparison {
    /// Count of the numbers that are not as expected.
    #[must_use]
    pub fn differences(&self) -> usize {
        let Some(got) = &self.got else {
            return self.expected.len();
        };
        let pairs = self.expected.iter().zip(got);
        pairs.filter(|(expected, got)| expected != got).count()
    }
}

/// The expected counts in the file at `path`, by trace.
///
/// # Errors
/// [`GoldenError::Io`] or [`GoldenError::Malformed`].
pub fn read(path: &Path) -> Result<BTreeMap<String, Expected>, GoldenError> {
    let malformed = |found: String| GoldenError::Malformed {
        path: path.to_owned(),
        found,
    };
    let bytes = std::fs::read(path).map_err(|cause| GoldenError::Io {
        path: path.to_owned(),
        cause,
    })?;
    let traces: BTreeMap<String, BTreeMap<String, Value>> =
        serde_json::from_slice(&bytes).map_err(|cause| malformed(cause.to_string()))?;
    let expected = traces.into_iter().map(|(name, counts)| {
        let expected = Expected::of(counts).map_err(|what| malformed(format!("{name}: {what}")))?;
        Ok((name, expected))
    });
    expected.collect()
}

impl Expected {
    fn of(mut counts: BTreeMap<String, Value>) -> Result<Self, String> {
        let mut take = |name: &str| {
            let value = counts.remove(name);
            value.ok_or_else(|| format!("{name} is missing"))
        };
        let (accesses, blocks, capacities) = (take("N")?, take("U")?, take("caps")?);
        let whole = |value: &Value| value.as_u64().ok_or_else(|| format!("{value} is no count"));
        let list = |name: &str, value: &Value| {
            let values = value
                .as_array()
                .ok_or_else(|| format!("{name} is no list"))?;
            values.iter().map(whole).collect::<Result<Vec<_>, _>>()
        };
        let capacities = list("caps", &capacities)?;
        let mut hits = BTreeMap::new();
        for (name, value) in &counts {
            let expected = list(name, value)?;
            if expected.len() != capacities.len() {
                return Err(format!("{name} has not a number for each capacity"));
            }
            hits.insert(name.clone(), expected);
        }
        Ok(Self {
            extent: (whole(&accesses)?, whole(&blocks)?),
            capacities,
            hits,
        })
    }

    /// Reads the trace at `path`, which must be the one that the counts are for.
    ///
    /// # Errors
    /// [`GoldenError::Trace`] or [`GoldenError::OtherTrace`].
    pub fn workload(&self, path: &Path) -> Result<Workload, GoldenError> {
        let trace = Trace::open(path, None).map_err(GoldenError::Trace)?;
        let workload = Workload::new(&trace, BLOCK_LEN).map_err(GoldenError::Sim)?;
        let extent = (workload.accesses() as u64, workload.unique_blocks() as u64);
        if extent != self.extent {
            return Err(GoldenError::OtherTrace {
                path: path.to_owned(),
                found: format!("{extent:?}"),
                expected: format!("{:?}", self.extent),
            });
        }
        Ok(workload)
    }

    /// Simulates every policy that there are counts of over `workload`, and tells `visit` of each
    /// as soon as it is done.
    ///
    /// # Errors
    /// [`GoldenError::Sim`].
    pub fn compare(
        &self,
        workload: &Workload,
        visit: &mut dyn FnMut(Comparison),
    ) -> Result<(), GoldenError> {
        for (name, expected) in &self.hits {
            let plain = name.strip_suffix(PREFIX_VALID);
            if plain.is_some_and(|plain| self.hits.contains_key(plain)) {
                continue;
            }
            let counted = self.count(plain.unwrap_or(name), workload)?;
            let valid_name = format!("{name}{PREFIX_VALID}");
            let valid_expected = self.hits.get(&valid_name);
            let (flat, valid) = counted.unzip();
            visit(Comparison {
                name: name.clone(),
                expected: expected.clone(),
                got: if plain.is_some() { valid.clone() } else { flat },
            });
            if let Some(expected) = valid_expected {
                visit(Comparison {
                    name: valid_name,
                    expected: expected.clone(),
                    got: valid,
                });
            }
        }
        Ok(())
    }

    /// Hits and prefix-valid hits at each capacity; none when there is no such policy.
    #[expect(clippy::type_complexity, reason = "two lists, maybe")]
    fn count(
        &self,
        name: &str,
        workload: &Workload,
    ) -> Result<Option<(Vec<u64>, Vec<u64>)>, GoldenError> {
        let Ok(contender) = Contender::by_name(name) else {
            return Ok(None);
        };
        let counts = self.capacities.iter().map(|&capacity| {
            let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
            let outcome = simulate(contender, workload, capacity, 1).map_err(GoldenError::Sim)?;
            Ok((outcome.hits.hits, outcome.hits.prefix_valid_hits))
        });
        let counts: Result<Vec<_>, GoldenError> = counts.collect();
        Ok(Some(counts?.into_iter().unzip()))
    }
}
