//! Aim: under stores that never end, reads are served first and all of them, and stores keep
//! their least share. Method: readers of cold blocks and clients that put without a pause, in
//! virtual time over a device in memory whose operations take a millisecond; what each side
//! reaches is compared with what it reaches alone.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use terrace_nvme::mem::SeededFaults;
use terrace_runtime::sim::Sim;
use terrace_types::{Lookup, PutOutcome};

use super::sim_world::{Spec, World, value};
use super::*;

const LATENCY: Duration = Duration::from_millis(1);
const SPAN: Duration = Duration::from_millis(60);
/// Blocks that are read: more than DRAM holds.
const COLD: u64 = 400;
const LEN_MAX: u64 = 9000;

fn spec() -> Spec {
    Spec {
        segment_len: 1 << 20,
        segments: vec![64],
        dram_blocks: 64,
        dram_bytes: 8 << 20,
        keep_all: true,
        io_deadline: Duration::from_secs(5),
        ..Spec::default()
    }
}

/// What one run came to.
#[derive(Debug, Default)]
struct Reached {
    /// How long each read took.
    reads: Vec<Duration>,
    stored: u64,
    busy: u64,
    demotions: u64,
}

impl Reached {
    fn p99(&self) -> Duration {
        let mut reads = self.reads.clone();
        reads.sort();
        reads[reads.len() * 99 / 100]
    }
}

async fn read(world: Rc<World>, reached: Rc<RefCell<Reached>>, id: u64, end: Nanos) {
    let mut number = id * 53;
    while world.now() < end {
        number = (number + 97) % COLD;
        let key = world.key("cold", number);
        let begun = world.now();
        let found = world.shard.get(&key, &GetOptions::default()).await;
        let took = world.now().since(begun);
        match found {
            Lookup::Hit { tier, value: pin } => {
                assert!(value(0, number, 1, LEN_MAX) == pin[..]);
                if tier == terrace_types::Tier::Nvme {
                    reached.borrow_mut().reads.push(took);
                }
            }
            Lookup::Miss => panic!("block {number} is gone"),
            Lookup::Unavailable(reason) => panic!("a read was shed: {reason:?}"),
        }
        // One that needs no device takes no time.
        world.sleep(Duration::from_micros(10)).await;
    }
}

async fn store(world: Rc<World>, reached: Rc<RefCell<Reached>>, id: u64, end: Nanos) {
    let mut number = 0;
    while world.now() < end {
        number += 1;
        let key = world.key(&format!("n{id}"), number);
        let bytes = value(id, number, 1, LEN_MAX);
        let put = world.shard.put(&key, &bytes, &PutOptions::default()).await;
        let mut reached = reached.borrow_mut();
        match put {
            PutOutcome::Stored { .. } => reached.stored += 1,
            PutOutcome::Busy => reached.busy += 1,
            outcome => panic!("{outcome:?}"),
        }
    }
}

fn run(readers: u64, writers: u64) -> Reached {
    let sim = Sim::new(5);
    let spec = spec();
    let world = World::new(&sim, &spec, spec.blank(), 1);
    let mut plan = SeededFaults::new(9, LATENCY, Vec::new());
    world.devices[0].set_plan(move |operation| plan.draw(operation));
    sim.run(async {
        for number in 0..COLD {
            let key = world.key("cold", number);
            let options = PutOptions {
                durability: Durability::Durable,
                ..PutOptions::default()
            };
            let bytes = value(0, number, 1, LEN_MAX);
            let put = world.shard.put(&key, &bytes, &options).await;
            assert_eq!(put, PutOutcome::Stored { durable: true });
        }
    });
    let demoted = || world.shard.stats().counters.demotions;
    let (before, end) = (demoted(), world.now() + SPAN);
    let reached = Rc::<RefCell<Reached>>::default();
    let clients = FuturesUnordered::new();
    for id in 0..readers + writers {
        let (world, reached) = (Rc::clone(&world), Rc::clone(&reached));
        let client: terrace_runtime::LocalFuture<'static, ()> = if id < readers {
            Box::pin(read(world, reached, id, end))
        } else {
            Box::pin(store(world, reached, id, end))
        };
        clients.push(client);
    }
    sim.run(clients.for_each(|()| async {}));
    reached.borrow_mut().demotions = demoted() - before;
    sim.run(world.sleep(Duration::from_secs(1)));
    world.check_idle("fairness");
    Rc::try_unwrap(reached).unwrap().into_inner()
}

#[test]
fn reads_beside_endless_stores_are_all_served_and_go_first() {
    let (alone, both) = (run(8, 0), run(8, 24));
    let (quiet, busy) = (alone.p99(), both.p99());
    assert!(both.reads.len() > 100, "{} reads", both.reads.len());
    // A read waits for its own operation, and for room that one write gives.
    assert!(busy <= quiet * 4, "p99 {busy:?} where {quiet:?} alone");
    let (share, of) = (both.reads.len(), alone.reads.len());
    assert!(share * 3 >= of, "{share} reads of {of} alone");
}

#[test]
fn stores_beside_endless_reads_keep_a_share() {
    let (alone, both) = (run(0, 24), run(8, 24));
    assert!(alone.demotions > 100, "{} demotions", alone.demotions);
    let (share, of) = (both.demotions, alone.demotions);
    assert!(share * 3 >= of, "{share} demotions of {of} alone");
    assert!(both.stored > 0 && both.busy <= both.stored / 10, "{both:?}");
}
