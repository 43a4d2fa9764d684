//! Hit counts of every policy over public traces, against those of independent simulators.
//!
//! Method: a plain simulation in which every access is a read, every miss inserts unless the
//! policy declines or has no victim, all blocks count one and nothing is pinned. Requests are
//! announced as chains, under the clock of their trace. The hits must equal `golden.json` as
//! integers: one block evicted out of order shows. Traces of requests have a second count: of a
//! request's hits only those count whose earlier blocks all hit, too, because a block is worth
//! nothing without those before it. Every name there must be known here. The traces lie outside
//! this repository, in the folder that `TERRACE_TRACES` names or in `shared/traces` beside a
//! folder above this crate; without them the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use terrace_engine::policy::{
    self, Admission, OptBound, Policy, PolicyConfig, opt_hits, opt_hits_of_requests,
};
use terrace_types::{Access, BlockIx, Hint, KeyHash, RequestContext};

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

/// One request of a trace.
struct Request {
    clock_ms: u64,
    ids: Vec<u64>,
    /// Whether each block comes after the one before it in a chain.
    is_chain: bool,
}

/// A request of each line: `timestamp` and `hash_ids` of one JSON object.
fn mooncake(bytes: &[u8]) -> Vec<Request> {
    let request = |line| {
        let request: Value = serde_json::from_str(line).unwrap();
        let ids = request["hash_ids"].as_array().unwrap().iter();
        Request {
            clock_ms: request["timestamp"].as_u64().unwrap(),
            ids: ids.map(|id| id.as_u64().unwrap()).collect(),
            is_chain: true,
        }
    };
    lines(bytes).map(request).collect()
}

/// A trace that tells of blocks only.
fn blocks(ids: impl Iterator<Item = u64>) -> Vec<Request> {
    vec![Request {
        clock_ms: 0,
        ids: ids.collect(),
        is_chain: false,
    }]
}

/// One number a line; lines with `*` carry none.
fn lirs(bytes: &[u8]) -> Vec<Request> {
    let numbers = lines(bytes).filter(|line| !line.starts_with('*'));
    blocks(numbers.map(|line| line.parse().unwrap()))
}

/// `start count ignore sequence` a line.
fn arc(bytes: &[u8]) -> Vec<Request> {
    let range = |line: &str| {
        let mut words = line
            .split_ascii_whitespace()
            .map(|word| word.parse::<u64>().unwrap());
        let (start, count) = (words.next().unwrap(), words.next().unwrap());
        start..start + count
    };
    blocks(lines(bytes).flat_map(range))
}

/// Big-endian keys of four bytes.
fn cache2k(bytes: &[u8]) -> Vec<Request> {
    let key = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |key, &byte| key << 8 | u64::from(byte))
    };
    blocks(bytes.chunks_exact(4).map(key))
}

/// Accesses with their ids numbered in order of first use.
struct Trace {
    accesses: Vec<u32>,
    unique: usize,
    /// Where each request begins, and the end.
    begins: Vec<usize>,
    clocks_ms: Vec<u64>,
    has_chains: bool,
}

impl Trace {
    fn of(requests: &[Request]) -> Self {
        let mut numbers = HashMap::new();
        let mut begins = vec![0];
        let mut accesses = Vec::new();
        for request in requests {
            accesses.extend(request.ids.iter().map(|&id| {
                let next = u32::try_from(numbers.len()).unwrap();
                *numbers.entry(id).or_insert(next)
            }));
            begins.push(accesses.len());
        }
        Self {
            accesses,
            unique: numbers.len(),
            begins,
            clocks_ms: requests.iter().map(|request| request.clock_ms).collect(),
            has_chains: requests.iter().all(|request| request.is_chain),
        }
    }

    /// Fills `accesses` with those of a request, and says where they begin in the trace.
    fn request(&self, number: usize, accesses: &mut Vec<Access>) -> usize {
        let (begin, end) = (self.begins[number], self.begins[number + 1]);
        let ids = self.accesses[begin..end].iter();
        let mut parent = None;
        let in_chain = |(id, depth)| Access {
            hint: Hint {
                parent: parent.replace(id).filter(|_| self.has_chains),
                depth: if self.has_chains { depth } else { 0 },
                ..Hint::default()
            },
            context: RequestContext {
                clock_ms: self.clocks_ms[number],
                ..RequestContext::default()
            },
            ..Access::plain(id)
        };
        accesses.clear();
        let ids = ids.map(|&id| KeyHash(id.into()));
        accesses.extend(ids.zip(0..).map(in_chain));
        begin
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

/// A shard of blocks that all count one, with a policy.
struct Shard<'a> {
    policy: &'a mut dyn Policy,
    /// By id.
    resident: Vec<Option<BlockIx>>,
    /// By block.
    id_of: Vec<u32>,
    free: Vec<BlockIx>,
}

impl Shard<'_> {
    /// Whether the access hits; the block comes in when it does not, if the policy agrees.
    fn get(&mut self, id: u32, access: &Access) -> bool {
        if let Some(block) = self.resident[id as usize] {
            self.policy.on_hit(block, access);
            return true;
        }
        if self.policy.admit(access) == Admission::Decline {
            return false;
        }
        while self.free.is_empty() {
            let Some(victim) = self.policy.victim(&mut |_| true) else {
                return false;
            };
            let policy = &mut self.policy;
            let pending = std::iter::from_fn(|| policy.take_pending());
            for gone in std::iter::once(victim).chain(pending) {
                self.resident[self.id_of[gone.0 as usize] as usize] = None;
                self.free.push(gone);
            }
        }
        let block = self.free.pop().unwrap();
        self.policy.on_insert(block, access);
        self.resident[id as usize] = Some(block);
        self.id_of[block.0 as usize] = id;
        false
    }
}

/// Which accesses hit under `policy` with room for `capacity` blocks.
fn replay(policy: &mut dyn Policy, trace: &Trace, capacity: usize) -> Vec<bool> {
    let mut shard = Shard {
        policy,
        resident: vec![None; trace.unique],
        id_of: vec![0; capacity],
        free: (0..u32::try_from(capacity).unwrap()).map(BlockIx).collect(),
    };
    let mut hits = Vec::with_capacity(trace.accesses.len());
    let mut accesses = Vec::new();
    for request in 0..trace.clocks_ms.len() {
        let begin = trace.request(request, &mut accesses);
        if trace.has_chains {
            shard.policy.on_request(&accesses);
        }
        let ids = trace.accesses[begin..].iter();
        hits.extend(
            ids.zip(&accesses)
                .map(|(&id, access)| shard.get(id, access)),
        );
    }
    assert_eq!(shard.policy.len(), capacity - shard.free.len());
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
    if name == "P-OPT" {
        return opt_hits_of_requests(&trace.accesses, &trace.begins, capacity_blocks);
    }
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

/// Which of the policies that `golden.json` has numbers for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Flat,
    PrefixAware,
}

impl Which {
    /// Of a name there; none when it is not one of a policy.
    fn of(name: &str) -> Option<Self> {
        if ["N", "U", "caps"].contains(&name) || name.ends_with(PREFIX_VALID) {
            None
        } else if name.starts_with("P-") || name == "LengthAware" {
            Some(Self::PrefixAware)
        } else {
            Some(Self::Flat)
        }
    }
}

/// The trace of this name and what is expected over it; none where there are no traces.
fn expected(name: &str, file: &str, parse: fn(&[u8]) -> Vec<Request>) -> Option<(Trace, Value)> {
    let folder = traces_folder()?;
    let mut golden: Value =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let golden = golden[name].take();
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
    Some((trace, golden))
}

/// Runs the policies over a trace that `golden.json` has numbers for; there must be `policies`.
fn compare(
    name: &str,
    file: &str,
    parse: fn(&[u8]) -> Vec<Request>,
    which: Which,
    policies: usize,
) {
    let Some((trace, golden)) = expected(name, file, parse) else {
        return;
    };
    let capacities = integers(&golden["caps"]);
    assert_eq!(capacities.len(), 6);

    let mut compared = 0;
    for (key, expected) in golden.as_object().unwrap() {
        if Which::of(key) != Some(which) {
            continue;
        }
        let hits: Vec<_> = capacities
            .iter()
            .map(|&capacity| trace.count(&run(key, &trace, capacity)))
            .collect();
        let flat: Vec<_> = hits.iter().map(|hits| hits.flat).collect();
        assert_eq!(flat, integers(expected), "{key} over {name}");
        let valid: Vec<_> = hits.iter().map(|hits| hits.prefix_valid).collect();
        if let Some(expected) = golden.get(format!("{key}{PREFIX_VALID}")) {
            assert_eq!(valid, integers(expected), "prefix-valid, {key} over {name}");
        } else if which == Which::PrefixAware {
            assert_eq!(valid, flat, "a hit of {key} behind a miss");
        }
        eprintln!("{name} {key}: {flat:?} as expected");
        compared += 1;
    }
    assert_eq!(compared, policies, "{name} has numbers for");
}

fn conversation(which: Which, policies: usize) {
    let file = "conversation_trace.jsonl.zst";
    compare("conversation", file, mooncake, which, policies);
}

fn arxiv1000(which: Which, policies: usize) {
    let file = "mooncake_trace_1000.jsonl.zst";
    compare("arxiv1000", file, mooncake, which, policies);
}

fn weka120(which: Which, policies: usize) {
    let file = "weka_agentic_512.jsonl.zst";
    compare("weka120", file, mooncake, which, policies);
}

#[test]
fn hits_over_conversation_equal_golden() {
    conversation(Which::Flat, 19);
}

#[test]
fn hits_of_prefix_aware_policies_over_conversation_equal_golden() {
    conversation(Which::PrefixAware, 14);
}

#[test]
fn hits_over_arxiv1000_equal_golden() {
    arxiv1000(Which::Flat, 19);
}

#[test]
fn hits_of_prefix_aware_policies_over_arxiv1000_equal_golden() {
    arxiv1000(Which::PrefixAware, 14);
}

/// No numbers for the others.
#[test]
fn hits_over_weka120_equal_golden() {
    weka120(Which::Flat, 11);
}

#[test]
fn hits_of_prefix_aware_policies_over_weka120_equal_golden() {
    weka120(Which::PrefixAware, 14);
}

#[test]
fn hits_over_oltp_equal_golden() {
    compare("OLTP", "OLTP.lis.zst", arc, Which::Flat, 18);
}

#[test]
fn hits_over_lirs_loop_equal_golden() {
    compare("lirs_loop", "lirs_loop.trace.gz", lirs, Which::Flat, 19);
}

#[test]
fn hits_over_lirs_gli_equal_golden() {
    compare("lirs_gli", "lirs_gli.trace.gz", lirs, Which::Flat, 19);
}

#[test]
fn hits_over_web12_equal_golden() {
    compare("web12", "cache2k_web12.trace.xz", cache2k, Which::Flat, 19);
}

/// Nobody else has numbers for the default: these are its own, so that a change of it shows.
#[test]
fn hits_of_the_default_are_as_recorded() {
    let traces = [
        (
            "conversation",
            "conversation_trace.jsonl.zst",
            [13_267, 31_952, 66_265, 86_969, 100_999, 104_081],
        ),
        (
            "arxiv1000",
            "mooncake_trace_1000.jsonl.zst",
            [4077, 5571, 5704, 5892, 6103, 6737],
        ),
        (
            "weka120",
            "weka_agentic_512.jsonl.zst",
            [16_519, 142_763, 478_717, 658_128, 791_178, 829_878],
        ),
    ];
    for (name, file, recorded) in traces {
        let Some((trace, golden)) = expected(name, file, mooncake) else {
            return;
        };
        let capacities = integers(&golden["caps"]).into_iter();
        let hits = capacities.map(|capacity| trace.count(&run("default", &trace, capacity)));
        let hits: Vec<_> = hits.map(|hits| hits.prefix_valid).collect();
        assert_eq!(hits, recorded, "{name}");
    }
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
