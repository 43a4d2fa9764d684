//! Hit counts of every policy over public traces, against those of independent simulators.
//!
//! Method: a plain simulation in which every access is a read, every miss inserts, all blocks
//! count one and nothing is pinned. The hits must equal `golden.json` as integers: one block
//! evicted out of order shows. Traces of requests have a second count: of a request's hits only
//! those count whose earlier blocks all hit, too, because a block is worth nothing without those
//! before it. Names of the prefix-aware policies, which these runs do not give what they need,
//! are passed over; any other name must be known here. The traces lie outside this repository, in the folder that
//! `TERRACE_TRACES` names or in `shared/traces` beside a folder above this crate; without them
//! the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use terrace_engine::policy::{self, Admission, OptBound, Policy, PolicyConfig, opt_hits};
use terrace_types::{Access, BlockIx, KeyHash};

/// Ends the names of counts of hits whose earlier blocks all hit.
const PREFIX_VALID: &str = ":prefix_valid";

/// Where the traces are, if they are.
fn traces_folder() -> Option<PathBuf> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let looked_in: Vec<PathBuf> = match std::env::var_os("TERRACE_TRACES") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => crate_folder
            .ancestors()
            .map(|above| above.join("shared/traces"))
            .collect(),
    };
    let found = looked_in
        .iter()
        .find(|folder| folder.join("golden.json").is_file())
        .cloned();
    if found.is_none() {
        let folders: Vec<_> = looked_in
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        eprintln!("skipped: traces not found in {}", folders.join(", "));
    }
    found
}

fn unpacked(path: &Path) -> Vec<u8> {
    let packed = std::fs::read(path).unwrap();
    let mut bytes = Vec::new();
    match path.extension().and_then(|name| name.to_str()) {
        Some("zst") => {
            let mut frames = ruzstd::decoding::StreamingDecoder::new(&packed[..]).unwrap();
            frames.read_to_end(&mut bytes).unwrap();
        }
        Some("gz") => {
            flate2::read::MultiGzDecoder::new(&packed[..])
                .read_to_end(&mut bytes)
                .unwrap();
        }
        Some("xz") => lzma_rs::xz_decompress(&mut &packed[..], &mut bytes).unwrap(),
        other => panic!("{}: no reader for {other:?}", path.display()),
    }
    bytes
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &str> {
    std::str::from_utf8(bytes)
        .unwrap()
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
}

/// A request of each line: `hash_ids` of one JSON object.
fn mooncake(bytes: &[u8]) -> Vec<Vec<u64>> {
    let ids = |line| {
        let request: Value = serde_json::from_str(line).unwrap();
        let ids = request["hash_ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap()).collect::<Vec<_>>()
    };
    lines(bytes).map(ids).collect()
}

/// One number a line; lines with `*` carry none.
fn lirs(bytes: &[u8]) -> Vec<Vec<u64>> {
    let numbers = lines(bytes).filter(|line| !line.starts_with('*'));
    vec![numbers.map(|line| line.parse().unwrap()).collect()]
}

/// `start count ignore sequence` a line.
fn arc(bytes: &[u8]) -> Vec<Vec<u64>> {
    let range = |line: &str| {
        let mut words = line
            .split_ascii_whitespace()
            .map(|word| word.parse::<u64>().unwrap());
        let (start, count) = (words.next().unwrap(), words.next().unwrap());
        start..start + count
    };
    vec![lines(bytes).flat_map(range).collect()]
}

/// Big-endian keys of four bytes.
fn cache2k(bytes: &[u8]) -> Vec<Vec<u64>> {
    let key = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |key, &byte| key << 8 | u64::from(byte))
    };
    vec![bytes.chunks_exact(4).map(key).collect()]
}

/// Accesses with their ids numbered in order of first use.
struct Trace {
    accesses: Vec<u32>,
    unique: usize,
    /// Where each request begins, and the end.
    begins: Vec<usize>,
}

impl Trace {
    fn of(requests: &[Vec<u64>]) -> Self {
        let mut numbers = HashMap::new();
        let mut begins = vec![0];
        let mut accesses = Vec::new();
        for request in requests {
            accesses.extend(request.iter().map(|&id| {
                let next = u32::try_from(numbers.len()).unwrap();
                *numbers.entry(id).or_insert(next)
            }));
            begins.push(accesses.len());
        }
        Self {
            accesses,
            unique: numbers.len(),
            begins,
        }
    }

    /// Counts hits, and of them those that come in a request before its first miss.
    fn count(&self, hits: &[bool]) -> Hits {
        let valid = self.begins.windows(2).map(|request| {
            let hits = &hits[request[0]..request[1]];
            hits.iter().take_while(|&&hit| hit).count() as u64
        });
        Hits {
            flat: hits.iter().filter(|&&hit| hit).count() as u64,
            prefix_valid: valid.sum(),
        }
    }
}

struct Hits {
    flat: u64,
    prefix_valid: u64,
}

/// Which accesses hit under `policy` with room for `capacity` blocks.
fn replay(policy: &mut dyn Policy, trace: &Trace, capacity: usize) -> Vec<bool> {
    let mut resident: Vec<Option<BlockIx>> = vec![None; trace.unique];
    let mut id_of = vec![0_u32; capacity];
    let mut free: Vec<BlockIx> = (0..u32::try_from(capacity).unwrap()).map(BlockIx).collect();
    let mut hits = vec![false; trace.accesses.len()];
    for (&id, hit) in trace.accesses.iter().zip(&mut hits) {
        let access = Access::plain(KeyHash(id.into()));
        if let Some(block) = resident[id as usize] {
            policy.on_hit(block, &access);
            *hit = true;
            continue;
        }
        if policy.admit(&access) == Admission::Decline {
            continue;
        }
        while free.is_empty() {
            let victim = policy
                .victim(&mut |_| true)
                .expect("a full policy has a victim");
            for gone in std::iter::once(victim).chain(std::iter::from_fn(|| policy.take_pending()))
            {
                resident[id_of[gone.0 as usize] as usize] = None;
                free.push(gone);
            }
        }
        let block = free.pop().unwrap();
        policy.on_insert(block, &access);
        resident[id as usize] = Some(block);
        id_of[block.0 as usize] = id;
    }
    policy.check();
    assert_eq!(policy.len(), capacity - free.len());
    hits
}

fn integers(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_u64().unwrap())
        .collect()
}

/// Which accesses hit under the policy, or bound, of this name; none when it is not known.
fn run(name: &str, trace: &Trace, capacity: u64) -> Vec<bool> {
    let blocks_max = u32::try_from(capacity).unwrap();
    let capacity_blocks = blocks_max as usize;
    if let Some(bound) = OptBound::by_name(name) {
        return opt_hits(&trace.accesses, capacity_blocks, bound);
    }
    let config = PolicyConfig {
        capacity_blocks,
        blocks_max,
        below_blocks: 0,
    };
    let mut policy = policy::by_name(name, config).unwrap();
    replay(&mut *policy, trace, capacity_blocks)
}

/// Whether a name in `golden.json` is that of a number these runs do not give.
fn is_passed_over(name: &str) -> bool {
    let prefix_aware = name.starts_with("P-") || name == "LengthAware";
    prefix_aware || ["N", "U", "caps"].contains(&name)
}

/// Runs every policy that `golden.json` has numbers for; there must be `policies` of them.
fn compare(name: &str, file: &str, parse: fn(&[u8]) -> Vec<Vec<u64>>, policies: usize) {
    let Some(folder) = traces_folder() else {
        return;
    };
    let golden: Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let golden = &golden[name];
    let trace = Trace::of(&parse(&unpacked(&folder.join(file))));
    assert_eq!(
        golden["N"].as_u64(),
        Some(trace.accesses.len() as u64),
        "accesses of {name}"
    );
    assert_eq!(
        golden["U"].as_u64(),
        Some(trace.unique as u64),
        "ids of {name}"
    );
    let capacities = integers(&golden["caps"]);
    assert_eq!(capacities.len(), 6);

    let mut compared = 0;
    for (key, expected) in golden.as_object().unwrap() {
        if is_passed_over(key) || key.ends_with(PREFIX_VALID) {
            continue;
        }
        let hits: Vec<_> = capacities
            .iter()
            .map(|&capacity| trace.count(&run(key, &trace, capacity)))
            .collect();
        let flat: Vec<_> = hits.iter().map(|hits| hits.flat).collect();
        assert_eq!(flat, integers(expected), "{key} over {name}");
        if let Some(expected) = golden.get(format!("{key}{PREFIX_VALID}")) {
            let valid: Vec<_> = hits.iter().map(|hits| hits.prefix_valid).collect();
            assert_eq!(valid, integers(expected), "prefix-valid, {key} over {name}");
        }
        eprintln!("{name} {key}: {flat:?} as expected");
        compared += 1;
    }
    assert_eq!(compared, policies, "{name} has numbers for");
}

#[test]
fn hits_over_conversation_equal_golden() {
    compare("conversation", "conversation_trace.jsonl.zst", mooncake, 19);
}

#[test]
fn hits_over_arxiv1000_equal_golden() {
    compare("arxiv1000", "mooncake_trace_1000.jsonl.zst", mooncake, 19);
}

/// No numbers for the others.
#[test]
fn hits_over_weka120_equal_golden() {
    compare("weka120", "weka_agentic_512.jsonl.zst", mooncake, 11);
}

#[test]
fn hits_over_oltp_equal_golden() {
    compare("OLTP", "OLTP.lis.zst", arc, 18);
}

#[test]
fn hits_over_lirs_loop_equal_golden() {
    compare("lirs_loop", "lirs_loop.trace.gz", lirs, 19);
}

#[test]
fn hits_over_lirs_gli_equal_golden() {
    compare("lirs_gli", "lirs_gli.trace.gz", lirs, 19);
}

#[test]
fn hits_over_web12_equal_golden() {
    compare("web12", "cache2k_web12.trace.xz", cache2k, 19);
}

/// There are no numbers of others for these: what the bounded forms lose against the exact ones,
/// and against no history at all, at one and ten percent of the blocks.
#[test]
fn bounded_forms_over_conversation_hit_nearly_what_the_exact_ones_do() {
    let Some(folder) = traces_folder() else {
        return;
    };
    let file = folder.join("conversation_trace.jsonl.zst");
    let trace = Trace::of(&mooncake(&unpacked(&file)));
    for capacity in [1827, 18_279] {
        let hits = |name| trace.count(&run(name, &trace, capacity)).flat;
        let share = |bounded, exact| hits(bounded) as f64 / hits(exact) as f64;
        let shares = [
            share("LRU2-bounded", "LRU2hist"),
            share("LIRS-bounded", "LIRS"),
            share("WTinyLFU", "WTinyLFUx"),
        ];
        eprintln!("{capacity}: {shares:.3?}");
        for (share, least) in shares.into_iter().zip([0.7, 0.9, 0.95]) {
            assert!((least..1.02).contains(&share), "{capacity}: {shares:?}");
        }
        assert!(hits("LRU2-bounded") > hits("LRU2nohist"));
        // Blocks of one length: what it has over LFU is aging.
        assert!(hits("GDSF") > hits("LRU"));
    }
}
