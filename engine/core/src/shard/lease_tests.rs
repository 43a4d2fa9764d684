//! Aim: a leased slot is kept until its holder has said that it is done, or can read no more.
//! Method: a shard on the simulated clock, whose DRAM is put under pressure while leases end by
//! release, by time and by their holder's death.

use std::cell::RefCell;
use std::time::Duration;

use futures_channel::oneshot;
use terrace_runtime::sim::Sim;
use terrace_types::{BlockKey, Lookup};

use super::sim_world::{Spec, World, value};
use super::*;

const TTL: Duration = Duration::from_millis(10);

/// A fence that is up when the test says so.
#[derive(Default)]
struct Gate {
    raised: Cell<u32>,
    up: RefCell<Vec<oneshot::Sender<()>>>,
}

impl Fence for Gate {
    fn raise(self: Rc<Self>) -> LocalFuture<'static, ()> {
        self.raised.set(self.raised.get() + 1);
        let (sender, receiver) = oneshot::channel();
        self.up.borrow_mut().push(sender);
        Box::pin(async move { receiver.await.unwrap() })
    }
}

fn world(sim: &Sim) -> Rc<World> {
    let spec = Spec {
        dram_blocks: 4,
        dram_bytes: 8 << 20,
        ..Spec::default()
    };
    let world = World::new(sim, &spec, spec.blank(), 1);
    sim.run(async {
        world.shard.recover(None).await;
        put(&world, 0).await;
    });
    world
}

fn key(world: &World, number: u64) -> BlockKey {
    world.key("n", number)
}

async fn put(world: &World, number: u64) {
    let (key, bytes) = (key(world, number), value(0, number, 1, 9000));
    let options = PutOptions::default();
    let stored = world.shard.put(&key, &bytes, &options).await;
    assert!(stored.is_present(), "{number}: {stored:?}");
}

async fn lease(world: &World, ttl: Duration, fence: Option<Rc<dyn Fence>>) -> Lease {
    let (key, options) = (key(world, 0), GetOptions::default());
    match world.shard.lease_fenced(&key, ttl, &options, fence).await {
        Lookup::Hit { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

/// Whether the slot still holds the block after many others came, which are new.
async fn is_kept_under_pressure(world: &World, lease: &Lease) -> bool {
    let known = world.shard.stats().counters.puts_stored;
    for number in known + 1..known + 12 {
        put(world, number).await;
    }
    world.shard.resolve(&lease.descriptor).is_some()
}

async fn pass(world: &World, span: Duration) {
    let runtime = world.shard.runtime();
    runtime.sleep_until(runtime.now() + span).await;
}

fn leases(world: &World) -> u64 {
    world.shard.stats().gauges.leases
}

#[test]
fn lease_that_was_not_released_keeps_its_slot_until_the_fence_is_up() {
    let sim = Sim::new(1);
    let world = world(&sim);
    let gate = Rc::new(Gate::default());
    sim.run(async {
        let lease = lease(&world, TTL, Some(gate.clone())).await;
        pass(&world, TTL * 2).await;
        assert_eq!(gate.raised.get(), 1);
        assert!(is_kept_under_pressure(&world, &lease).await);
        assert!(!world.shard.release(lease.id), "its time was over");
        assert_eq!(world.shard.renew(lease.id, TTL), None);
        gate.up
            .take()
            .into_iter()
            .for_each(|up| up.send(()).unwrap());
        pass(&world, TTL).await;
        assert_eq!((leases(&world), gate.raised.get()), (0, 1));
        assert!(!is_kept_under_pressure(&world, &lease).await);
    });
}

#[test]
fn lease_that_was_released_raises_no_fence() {
    let sim = Sim::new(1);
    let world = world(&sim);
    let gate = Rc::new(Gate::default());
    sim.run(async {
        let lease = lease(&world, TTL, Some(gate.clone())).await;
        assert!(world.shard.release(lease.id));
        pass(&world, TTL * 2).await;
        assert_eq!((leases(&world), gate.raised.get()), (0, 0));
        assert_eq!(world.shard.stats().counters.leases_expired, 0);
        assert!(!is_kept_under_pressure(&world, &lease).await);
    });
}

#[test]
fn lease_of_a_holder_that_is_gone_raises_its_fence_at_once() {
    let sim = Sim::new(1);
    let world = world(&sim);
    let gate = Rc::new(Gate::default());
    sim.run(async {
        let fenced = lease(&world, TTL, Some(gate.clone())).await;
        let plain = lease(&world, TTL, None).await;
        world.shard.abandon(plain.id);
        world.shard.abandon(fenced.id);
        world.shard.abandon(fenced.id);
        assert!(is_kept_under_pressure(&world, &fenced).await);
        assert_eq!((leases(&world), gate.raised.get()), (1, 1));
        gate.up
            .take()
            .into_iter()
            .for_each(|up| up.send(()).unwrap());
        pass(&world, Duration::from_millis(1)).await;
        assert_eq!(leases(&world), 0);
        assert_eq!(world.shard.stats().counters.leases_expired, 2);
    });
}

#[test]
fn leases_end_in_the_order_of_their_times_however_they_were_asked_for() {
    let sim = Sim::new(1);
    let world = world(&sim);
    sim.run(async {
        let long = lease(&world, TTL * 10, None).await;
        // The watch sleeps for the long one by now.
        pass(&world, Duration::from_micros(1)).await;
        let short = lease(&world, TTL, None).await;
        let renewed = lease(&world, TTL, None).await;
        assert!(world.shard.renew(renewed.id, TTL * 5).is_some());
        pass(&world, TTL + Duration::from_millis(1)).await;
        assert!(!world.shard.release(short.id));
        assert_eq!(leases(&world), 2);
        pass(&world, TTL * 5).await;
        assert!(!world.shard.release(renewed.id));
        assert!(world.shard.release(long.id));
        assert_eq!(leases(&world), 0);
        // The watch has ended with them, and begins again.
        let again = lease(&world, TTL, None).await;
        pass(&world, TTL * 2).await;
        assert!(!world.shard.release(again.id));
        assert_eq!(leases(&world), 0);
    });
}
