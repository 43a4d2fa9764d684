//! Aim: every counter of a simulation counts what it says, a policy is told what an engine would
//! tell it, and shards have the blocks that the shards of an engine have. Method: traces small
//! enough to follow by hand, and policies that write down what they hear.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use terrace_engine::EngineConfig;
use terrace_engine::policy::{Admission, Policy, PolicyBytes};
use terrace_sim::trace::{Trace, TraceRequest};
use terrace_sim::{
    Capacity, Contender, Outcome, Shard, SimError, Workload, blocks_of_shard, drive, golden,
    prefill_seconds, simulate,
};
use terrace_types::{Access, BlockIx, BlockKind, Namespace, NamespaceName};

const BLOCK_LEN: u32 = 65_536;

fn request(timestamp_ms: u64, input_tokens: u32, blocks: &[u64]) -> TraceRequest {
    TraceRequest {
        timestamp_ms,
        input_tokens,
        output_tokens: 0,
        blocks: blocks.to_vec(),
        is_chain: true,
    }
}

fn trace(requests: Vec<TraceRequest>) -> Trace {
    Trace {
        name: "by hand".to_owned(),
        requests,
    }
}

fn workload(requests: Vec<TraceRequest>) -> Workload {
    Workload::new(&trace(requests), BLOCK_LEN).unwrap()
}

/// Requests of chains, one each millisecond, all blocks full.
fn chains(requests: &[&[u64]]) -> Vec<TraceRequest> {
    let full = |blocks: &[u64]| 512 * blocks.len() as u32;
    let timed = requests.iter().enumerate();
    timed
        .map(|(at, blocks)| request(at as u64, full(blocks), blocks))
        .collect()
}

fn run(name: &str, workload: &Workload, capacity: usize, shards: usize) -> Outcome {
    let contender = Contender::by_name(name).unwrap();
    simulate(contender, workload, capacity, shards).unwrap()
}

/// Room for three: 4 pushes 1 out, 2 is a hit, 1 pushes 3 out, and 2 is a hit behind a miss.
const BEHIND_A_MISS: [&[u64]; 4] = [&[1, 2, 3], &[4], &[2], &[1, 2]];

#[test]
fn hits_behind_a_miss_are_not_prefix_valid() {
    let outcome = run("LRU", &workload(chains(&BEHIND_A_MISS)), 3, 1);
    let (hits, counts) = (outcome.hits, outcome.counts);
    assert_eq!((hits.accesses, hits.hits, hits.misses()), (7, 2, 5));
    assert_eq!(hits.prefix_valid_hits, 1);
    assert_eq!((hits.tokens, hits.token_hits), (7 * 512, 512));
    assert_eq!(
        (counts.evictions, counts.declined, counts.without_room),
        (2, 0, 0)
    );
    // A prompt that hits as a whole still computes its last token.
    assert_eq!(hits.prefill_seconds_saved, prefill_seconds(511));
    assert!(outcome.policy_bytes.resident > 0);
}

#[test]
fn hits_without_chains_stand_for_themselves() {
    let mut requests = chains(&BEHIND_A_MISS);
    for request in &mut requests {
        (request.is_chain, request.input_tokens) = (false, 0);
    }
    let outcome = run("lru", &workload(requests), 3, 1);
    assert_eq!((outcome.hits.hits, outcome.hits.prefix_valid_hits), (2, 2));
    assert_eq!((outcome.hits.tokens, outcome.hits.token_hits), (0, 0));
    assert_eq!(outcome.hits.token_hit_ratio(), None);
    assert_eq!(outcome.hits.prefill_seconds_saved, 0.0);
}

#[test]
fn tokens_of_the_last_block_are_the_rest_of_the_prompt() {
    let whole = [1, 2, 3];
    let requests = vec![
        request(0, 1100, &whole),
        request(1, 1100, &whole),
        request(2, 900, &[1, 2, 9]),
    ];
    let outcome = run("FIFO", &workload(requests), 4, 1);
    assert_eq!((outcome.hits.hits, outcome.hits.prefix_valid_hits), (5, 5));
    assert_eq!(outcome.hits.tokens, 1100 + 1100 + 900);
    // The third prompt is shorter than its blocks could be: it has no more tokens than it says.
    assert_eq!(outcome.hits.token_hits, 1100 + 900);
    let saved = prefill_seconds(1099) + prefill_seconds(899);
    assert!((outcome.hits.prefill_seconds_saved - saved).abs() < 1e-9);
}

#[test]
fn bounds_are_simulated_by_name_and_have_no_state() {
    let requests = chains(&[&[1], &[2], &[3], &[1], &[2], &[3]]);
    let workload = workload(requests);
    assert_eq!(run("opt", &workload, 2, 1).hits.hits, 2);
    assert_eq!(run("OptBypass", &workload, 2, 1).hits.hits, 2);
    assert_eq!(run("p-opt", &workload, 2, 1).hits.hits, 2);
    let outcome = run("OPT", &workload, 2, 1);
    assert_eq!(outcome.policy_bytes, PolicyBytes::default());
    assert_eq!(outcome.counts.evictions, 0);
}

/// Declines one block, gives up none, and writes down what it hears.
#[derive(Default)]
struct Stubborn {
    declined: Option<Access>,
    announced: Vec<Vec<Access>>,
    hits: usize,
    known: usize,
}

impl Policy for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }
    fn set_capacity(&mut self, _blocks: usize) {}
    fn on_request(&mut self, accesses: &[Access]) {
        self.announced.push(accesses.to_vec());
    }
    fn on_hit(&mut self, _block: BlockIx, _access: &Access) {
        self.hits += 1;
    }
    fn on_insert(&mut self, _block: BlockIx, _access: &Access) {
        self.known += 1;
    }
    fn on_remove(&mut self, _block: BlockIx) {}
    fn victim(&mut self, _evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        None
    }
    fn admit(&mut self, access: &Access) -> Admission {
        if *self.declined.get_or_insert(*access) == *access {
            Admission::Decline
        } else {
            Admission::Admit
        }
    }
    fn len(&self) -> usize {
        self.known
    }
    fn bytes(&self) -> PolicyBytes {
        PolicyBytes::default()
    }
}

#[test]
fn declined_blocks_and_blocks_without_room_stay_out() {
    let workload = workload(vec![
        request(7, 2048, &[1, 2, 3, 4]),
        request(8, 1024, &[2, 3]),
    ]);
    let (mut policy, mut hits) = (Stubborn::default(), vec![false; 6]);
    let counts = drive(&mut policy, 2, &workload, Shard::WHOLE, &mut hits);
    // 1 is declined, 2 and 3 fill the room, 4 finds none.
    assert_eq!(hits, [false, false, false, false, true, true]);
    assert_eq!(
        (counts.evictions, counts.declined, counts.without_room),
        (0, 1, 1)
    );
    assert_eq!((policy.known, policy.hits), (2, 2));
}

#[test]
fn requests_are_announced_as_chains_with_hints_and_clock() {
    let workload = workload(vec![
        request(7, 1400, &[10, 11, 12]),
        request(9, 512, &[10]),
    ]);
    let (mut policy, mut hits) = (Stubborn::default(), vec![false; 4]);
    drive(&mut policy, 4, &workload, Shard::WHOLE, &mut hits);
    let [first, second] = &policy.announced[..] else {
        panic!("two requests");
    };
    let kinds: Vec<_> = first.iter().map(|access| access.hint.kind).collect();
    assert_eq!(kinds, [BlockKind::Full, BlockKind::Full, BlockKind::Tail]);
    for (depth, access) in first.iter().enumerate() {
        assert_eq!(access.hint.depth as usize, depth);
        let parent = depth.checked_sub(1).map(|above| first[above].id);
        assert_eq!(access.hint.parent, parent);
        assert_eq!((access.context.clock_ms, access.len), (7, BLOCK_LEN));
    }
    assert_eq!(second[0].id, first[0].id);
    assert_eq!(
        (second[0].context.clock_ms, second[0].hint.kind),
        (9, BlockKind::Tail)
    );
}

/// A shard hears of its own blocks only, with what is true of the whole chain.
#[test]
fn shards_hear_of_their_own_accesses_with_hints_of_the_whole() {
    let ids: Vec<u64> = (0..64).collect();
    let workload = workload(vec![request(0, 64 * 512, &ids)]);
    let whole = announced(&workload, Shard::WHOLE);
    let mut heard = Vec::new();
    for index in 0..4 {
        let own = announced(&workload, Shard { index, count: 4 });
        assert!(own.iter().all(|access| access.id.shard(4) == index));
        assert!(own.is_sorted_by_key(|access| access.hint.depth));
        assert!(!own.is_empty());
        heard.extend(own);
    }
    heard.sort_by_key(|access| access.hint.depth);
    assert_eq!(heard, whole);
}

fn announced(workload: &Workload, shard: Shard) -> Vec<Access> {
    let (mut policy, mut hits) = (Stubborn::default(), vec![false; workload.accesses()]);
    drive(&mut policy, 1, workload, shard, &mut hits);
    policy.announced.concat()
}

/// A namespace of an engine gives the keys, and the key's hash the shard.
#[test]
fn keys_and_rooms_are_those_of_the_engine() {
    let ids = [3, 1, 4, 1, 5, 9, 2, 6, 1 << 40];
    let workload = workload(chains(&[&ids]));
    let name = NamespaceName::new(&format!("replay/{BLOCK_LEN}")).unwrap();
    let namespace = Namespace::new(0, 0, &name);
    for (&id, &number) in ids.iter().zip(workload.blocks()) {
        let key = namespace.key(&id.to_le_bytes()).unwrap();
        assert_eq!(workload.keys()[number as usize], key.hash());
    }
    assert_eq!(workload.unique_blocks(), 8);
    for (capacity, shards) in [(8, 8), (9, 2), (1827, 4), (1827, 7)] {
        let config = EngineConfig {
            dram_blocks: Some(capacity),
            shards,
            ..EngineConfig::default()
        };
        let rooms = (0..shards).map(|shard| blocks_of_shard(capacity, shards, shard));
        let engine = (0..shards).map(|shard| config.blocks_of_shard(shard).unwrap());
        assert!(rooms.clone().eq(engine));
        assert_eq!(rooms.sum::<usize>(), capacity);
    }
}

/// Some thousand accesses with a few popular blocks.
fn mixed() -> Vec<TraceRequest> {
    let mut random = terrace_sim::trace::Random::new(5);
    let mut chain = || {
        let family = random.bits() % 12;
        let len = 1 + random.bits() % 9;
        (0..len)
            .map(|depth| family * 100 + depth)
            .collect::<Vec<_>>()
    };
    let chains: Vec<Vec<u64>> = (0..600).map(|_| chain()).collect();
    let requests = chains.iter().enumerate();
    requests
        .map(|(at, blocks)| request(at as u64, 512 * blocks.len() as u32, blocks))
        .collect()
}

/// Flat policies and bounds do not look at chains: a shard of a simulation is a simulation of the
/// shard's own accesses.
#[test]
fn sharded_simulation_is_the_sum_of_its_shards() {
    let requests = mixed();
    let whole = workload(requests.clone());
    for (name, shards) in [("LRU", 3), ("S3FIFO", 2), ("OPT", 3), ("P-OPT", 4)] {
        let together = run(name, &whole, 25, shards);
        let alone = (0..shards).map(|index| {
            let is_own = |id: &u64| {
                let key = terrace_types::KeyHash::of_named(
                    &format!("replay/{BLOCK_LEN}"),
                    &id.to_le_bytes(),
                );
                key.shard(shards as u32) as usize == index
            };
            let mut own = requests.clone();
            own.iter_mut()
                .for_each(|request| request.blocks.retain(is_own));
            run(name, &workload(own), blocks_of_shard(25, shards, index), 1)
                .hits
                .hits
        });
        assert_eq!(together.hits.hits, alone.sum::<u64>(), "{name}");
        assert_eq!(together.hits.accesses, whole.accesses() as u64);
    }
}

#[test]
fn joined_traces_share_no_block_and_go_on_in_time() {
    let first = trace(vec![request(5, 512, &[1]), request(90, 1024, &[1, 2])]);
    let second = trace(vec![request(0, 512, &[1]), request(10, 512, &[1])]);
    let joined = Workload::joined(&[first.clone(), second], BLOCK_LEN).unwrap();
    assert_eq!(joined.name(), "by hand+by hand");
    assert_eq!(joined.blocks(), [0, 0, 1, 2, 2]);
    let clocks: Vec<u64> = joined.requests().map(|request| request.clock_ms).collect();
    assert_eq!(clocks, [5, 90, 1090, 1100]);
    let keys = joined.keys();
    assert!(keys[0] != keys[2], "one id in two traces");
    assert_eq!(keys[..2], *Workload::new(&first, BLOCK_LEN).unwrap().keys());
}

#[test]
fn traces_without_accesses_are_refused() {
    for requests in [vec![], chains(&[&[]])] {
        let error = Workload::new(&trace(requests), BLOCK_LEN).err().unwrap();
        assert!(matches!(error, SimError::NoAccesses { .. }), "{error}");
    }
    assert!(Workload::joined(&[], BLOCK_LEN).is_err());
}

#[test]
fn rooms_and_shards_out_of_range_are_refused() {
    let workload = workload(chains(&[&[1, 2, 3]]));
    let lru = Contender::by_name("LRU").unwrap();
    for (capacity, shards) in [(0, 1), (4, 1), (3, 0), (3, 4)] {
        assert!(simulate(lru, &workload, capacity, shards).is_err());
    }
}

#[test]
fn capacities_are_counts_or_shares() {
    let blocks = |text: &str, unique| text.parse::<Capacity>().and_then(|it| it.blocks(unique));
    // As in the expected counts: rounded down, and one at least.
    for (text, unique, expected) in [
        ("0.1%", 182_790, 182),
        (".1%", 182_790, 182),
        ("1%", 182_790, 1827),
        ("5%", 182_790, 9139),
        ("20%", 12_205, 2441),
        ("100%", 7, 7),
        ("1%", 7, 1),
        ("1827", 182_790, 1827),
        ("7", 7, 7),
    ] {
        assert_eq!(
            blocks(text, unique).unwrap(),
            expected,
            "{text} of {unique}"
        );
    }
    for text in [
        "0", "8", "0%", "101%", "100.1%", "-1", "1e3", "x", "%", ".%", "", "1.5", "+1%",
    ] {
        assert!(blocks(text, 7).is_err(), "{text}");
    }
    assert_eq!(Capacity::list("1%, 5%,1827").unwrap().len(), 3);
    for list in ["", "1%,", ",1%", "1%,1.0%", "5,5", "1%,x"] {
        assert!(Capacity::list(list).is_err(), "{list}");
    }
}

#[test]
fn lists_of_policies_take_any_case_and_refuse_doubles() {
    let names = |list: &str| -> Vec<_> {
        let list = Contender::list(list).unwrap();
        list.iter().map(Contender::name).collect()
    };
    assert_eq!(names("lru, s3fifo-LCS,opt"), ["LRU", "S3FIFO-lcs", "OPT"]);
    assert_eq!(names("all"), Contender::names());
    for list in ["", "LRU,", "LRU,lru", "all,LRU", "LRU,all", "MRU"] {
        assert!(Contender::list(list).is_err(), "{list}");
    }
    let said = Contender::list("LRU,MRU").unwrap_err().to_string();
    assert!(
        said.contains("`MRU`") && said.contains("OPTbypass"),
        "{said}"
    );
}

#[test]
fn expected_counts_are_compared_by_name_and_capacity() {
    let folder = std::env::temp_dir().join(format!("terrace-golden-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    let line = r#"{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}"#;
    let path = write("t.jsonl", &format!("{line}\n{line}\n"));
    let counts = r#"{"t": {"N": 4, "U": 2, "caps": [1, 2],
        "LRU": [0, 2], "LRU:prefix_valid": [0, 3], "NEW": [0, 0]}}"#;
    let all = golden::read(&write("golden.json", counts)).unwrap();
    let mut seen = Vec::new();
    let workload = all["t"].workload(&path).unwrap();
    let visit = &mut |it: golden::Comparison| seen.push((it.differences(), it.name, it.got));
    all["t"].compare(&workload, visit).unwrap();
    let expected = [
        (0, "LRU", Some(vec![0, 2])),
        (1, "LRU:prefix_valid", Some(vec![0, 2])),
        (2, "NEW", None),
    ];
    let expected = expected.map(|(count, name, got)| (count, name.to_owned(), got));
    assert_eq!(seen, expected);

    for broken in [
        "[]",
        "{",
        r#"{"t": {"N": 4, "U": 2}}"#,
        r#"{"t": {"N": 4, "U": 2, "caps": [1], "LRU": [1, 2]}}"#,
    ] {
        let error = golden::read(&write("broken.json", broken)).err().unwrap();
        assert!(error.to_string().contains("broken.json"), "{error}");
    }
    let other = golden::read(&write(
        "other.json",
        &counts.replace("\"N\": 4", "\"N\": 5"),
    ))
    .unwrap();
    assert!(other["t"].workload(&path).is_err(), "another trace");
    assert!(golden::read(Path::new("/nowhere/golden.json")).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}
