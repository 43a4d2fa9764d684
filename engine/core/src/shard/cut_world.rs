//! Power that is lost at every operation of a scripted workload: the script's run, the moments
//! taken note of in it, the choices of what survives, and the recovery from each.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::rc::Weak;
use std::time::Duration;

use futures_util::future::join_all;
use terrace_nvme::mem::{Kind, MemImage, Moment, Operation, PowerCut, SeededFaults};
use terrace_runtime::sim::Sim;

use super::crash_model::{CALL_MAX, Client, Model, audit, close_model, excuse};
use super::sim_world::{Spec, World, is_longest};
use super::*;

/// What a client does next, to a key of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Put(u64),
    Durable(u64),
    /// Removes a block and puts another under its key.
    Upsert(u64),
    /// The same, durable.
    Replace(u64),
    /// The same with a block as long as they get.
    Large(u64),
    /// The same, volatile.
    Big(u64),
    Remove(u64),
    /// Removes the client's namespace.
    Drop,
    Read(u64),
    /// Lets so many microseconds pass.
    Wait(u64),
    /// A clean close of all shards; nothing can follow.
    Close,
}

/// A workload that is the same in every run.
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) spec: Spec,
    /// Nothing may be given up.
    pub(super) strict: bool,
    /// For each open the count of shards, and the steps of its clients, which go side by side.
    pub(super) opens: Vec<(usize, Vec<Vec<Step>>)>,
    /// Shards of the two opens after power was lost.
    pub(super) reopens: [usize; 2],
    /// Whether the last open got to do what the script is about.
    pub(super) reaches: fn(&[Rc<World>]) -> bool,
}

/// A moment at which power may be lost.
pub(super) struct Cut {
    /// The operation's place among the writes and flushes of all devices.
    index: u64,
    moment: Moment,
    epoch: u32,
    /// What clients were told by then.
    model: Model,
    devices: Vec<PowerCut>,
    /// Flushes completed by then: with the writes that survive they tell images apart.
    flushes: u64,
}

impl Cut {
    fn name(&self) -> String {
        let moment = match self.moment {
            Moment::Submitted => 's',
            Moment::Completed => 'c',
        };
        format!("{}{moment}", self.index)
    }

    /// Equal for equal cuts.
    pub(super) fn identity(&self) -> (String, usize, u64) {
        (self.name(), self.at_stake(), self.flushes)
    }

    /// Writes of which any part may survive.
    pub(super) fn at_stake(&self) -> usize {
        self.devices.iter().map(|cut| cut.writes().count()).sum()
    }

    /// The bytes of the last write, when the device just got it.
    pub(super) fn newest(&self) -> Option<&[u8]> {
        let last = self.devices.last()?.writes().last();
        last.map(|(_, bytes)| bytes)
            .filter(|_| self.moment == Moment::Submitted)
    }
}

/// Which of the writes at stake survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subset {
    None,
    All,
    /// About every other one, and half of one of them.
    Mixed,
    /// All but one.
    Without(usize),
    /// That one alone.
    Only(usize),
    /// All, but only so many sectors of the last.
    Torn(u32),
}

impl fmt::Display for Subset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Mixed => f.write_str("mixed"),
            Self::Without(at) => write!(f, "without{at}"),
            Self::Only(at) => write!(f, "only{at}"),
            Self::Torn(sectors) => write!(f, "torn{sectors}"),
        }
    }
}

impl Subset {
    /// How many sectors survive of write `at` of `count` at a cut.
    fn keeps(self, cut: &Cut, at: usize, count: usize, sectors: u32) -> u32 {
        let whole = |survives: bool| if survives { sectors } else { 0 };
        match self {
            Self::None => 0,
            Self::All => sectors,
            Self::Mixed => match (at as u64 * 7 + cut.index) % 5 {
                0 | 1 => sectors,
                2 => sectors / 2,
                _ => 0,
            },
            Self::Without(other) => whole(at != other),
            Self::Only(other) => whole(at == other),
            Self::Torn(kept) if at + 1 == count => kept,
            Self::Torn(_) => sectors,
        }
    }

    /// What the devices hold after the cut, and which sectors of which writes survived.
    fn images(self, cut: &Cut) -> (Vec<MemImage>, Vec<(usize, u64, u32)>) {
        let count = cut.at_stake();
        let (mut from, mut survived) = (0, Vec::new());
        let mut images = Vec::new();
        for (device, power_cut) in cut.devices.iter().enumerate() {
            let numbers: Vec<u64> = power_cut.writes().map(|(number, _)| number).collect();
            images.push(power_cut.image(&mut |at, sectors| {
                let kept = self.keeps(cut, from + at, count, sectors).min(sectors);
                survived.extend((kept > 0).then_some((device, numbers[at], kept)));
                kept
            }));
            from += numbers.len();
        }
        (images, survived)
    }
}

/// Takes note of every moment of one open of a script.
struct Recorder {
    worlds: Vec<Weak<World>>,
    model: Rc<Model>,
    epoch: u32,
    strict: bool,
    /// Indices of operations, by device and number.
    begun: RefCell<HashMap<(usize, u64), u64>>,
    next: Cell<u64>,
    flushes: Cell<u64>,
    cuts: RefCell<Vec<Cut>>,
}

impl Recorder {
    fn watch(
        worlds: &[Rc<World>],
        model: &Rc<Model>,
        (epoch, strict, next): (u32, bool, u64),
    ) -> Rc<Self> {
        let recorder = Rc::new(Self {
            worlds: worlds.iter().map(Rc::downgrade).collect(),
            model: Rc::clone(model),
            epoch,
            strict,
            begun: RefCell::default(),
            next: Cell::new(next),
            flushes: Cell::default(),
            cuts: RefCell::default(),
        });
        for (at, device) in worlds[0].devices.iter().enumerate() {
            let recorder = Rc::clone(&recorder);
            device.set_watch(move |operation, moment| recorder.note(at, operation, moment));
        }
        recorder
    }

    fn note(&self, device: usize, operation: &Operation, moment: Moment) {
        if operation.kind == Kind::Read {
            return;
        }
        let known = (device, operation.number);
        let index = match moment {
            Moment::Submitted => {
                self.next.set(self.next.get() + 1);
                self.begun.borrow_mut().insert(known, self.next.get() - 1);
                self.next.get() - 1
            }
            Moment::Completed => self.begun.borrow()[&known],
        };
        let flushed = moment == Moment::Completed && operation.kind == Kind::Flush;
        self.flushes.set(self.flushes.get() + u64::from(flushed));
        self.cut(index, moment);
    }

    fn cut(&self, index: u64, moment: Moment) {
        let worlds: Vec<_> = self.worlds.iter().filter_map(Weak::upgrade).collect();
        let model = Model::clone(&self.model);
        if !self.strict {
            excuse(&worlds, &model, false, "");
        }
        let devices = worlds[0].devices.iter();
        self.cuts.borrow_mut().push(Cut {
            index,
            moment,
            epoch: self.epoch,
            model,
            devices: devices.map(|device| device.power_cut()).collect(),
            flushes: self.flushes.get(),
        });
    }
}

async fn act(client: &Client, steps: &[Step]) {
    for step in steps {
        match *step {
            Step::Put(number) => put(client, number, Durability::Volatile).await,
            Step::Durable(number) => put(client, number, Durability::Durable).await,
            Step::Upsert(number) => {
                client.remove(number, &client.key(number)).await;
                put(client, number, Durability::Volatile).await;
            }
            Step::Replace(number) => {
                client.remove(number, &client.key(number)).await;
                put(client, number, Durability::Durable).await;
            }
            Step::Large(number) | Step::Big(number) => {
                client.remove(number, &client.key(number)).await;
                while !is_longest(number, client.model.version.get() + 1) {
                    client.model.next_version();
                }
                let key = client.key(number);
                let durability = match step {
                    Step::Large(_) => Durability::Durable,
                    _ => Durability::Volatile,
                };
                client.put(number, &key, durability).await;
            }
            Step::Remove(number) => client.remove(number, &client.key(number)).await,
            Step::Drop => client.remove_all(&client.key(0)).await,
            Step::Read(number) => client.read(number, &client.key(number)).await,
            Step::Wait(span) => client.worlds[0].sleep(Duration::from_micros(span)).await,
            Step::Close => close(client).await,
        }
    }
}

/// Puts a block that is not as long as they get: of those a segment takes few.
async fn put(client: &Client, number: u64, durability: Durability) {
    while is_longest(number, client.model.version.get() + 1) {
        client.model.next_version();
    }
    client.put(number, &client.key(number), durability).await;
}

async fn close(client: &Client) {
    let deadline = client.worlds[0].now() + Duration::from_secs(5);
    let closes = client
        .worlds
        .iter()
        .map(|world| world.shard.persist(deadline));
    for report in join_all(closes).await {
        assert!(report.clean && report.blocks_lost == 0, "{report:?}");
    }
    close_model(&client.worlds, &client.model);
}

async fn recover(worlds: &[Rc<World>], context: &str) {
    let recoveries = worlds.iter().map(|world| {
        let recovery = world.shard.recover(None);
        world.within(|| format!("{context}: recover"), CALL_MAX, recovery)
    });
    join_all(recoveries).await;
    worlds.iter().for_each(|world| world.shard.check());
}

/// Runs a script to its end; returns each moment at which power may be lost in it.
pub(super) fn record(script: &Script) -> Vec<Cut> {
    let model: Rc<Model> = Rc::default();
    let strict = script.strict;
    let (mut images, mut cuts) = (script.spec.blank(), Vec::new());
    let (mut next, mut operations) = (0, 0);
    for (open, (shards, steps)) in script.opens.iter().enumerate() {
        let epoch = open as u32 + 1;
        let context = format!("{}, epoch {epoch}", script.name);
        let sim = Sim::new(u64::from(epoch));
        let worlds = World::several(&sim, &script.spec, images, (epoch, *shards));
        let recorder = Recorder::watch(&worlds, &model, (epoch, strict, next));
        for (at, device) in worlds[0].devices.iter().enumerate() {
            let seed = at as u64 + 1;
            let mut plan = SeededFaults::new(seed, Duration::from_micros(100), Vec::new());
            device.set_plan(move |operation| plan.draw(operation));
        }
        sim.run(recover(&worlds, &context));
        sim.run(audit(&worlds, &model, strict, &context));
        let clients: Vec<Client> = (0..steps.len())
            .map(|id| Client {
                worlds: worlds.clone(),
                model: Rc::clone(&model),
                id: id as u64,
                strict,
                context: format!("{context}, client {id}"),
            })
            .collect();
        let acts = clients.iter().zip(steps);
        sim.run(join_all(acts.map(|(client, steps)| act(client, steps))));
        // Frames that wait for more are written, segments sealed.
        sim.run(worlds[0].sleep(Duration::from_millis(20)));
        worlds.iter().for_each(|world| world.check_idle(&context));
        let reached = open + 1 < script.opens.len() || (script.reaches)(&worlds);
        assert!(reached, "{context}: it is not what it was written for");
        next = recorder.next.get();
        recorder.cut(next, Moment::Submitted);
        cuts.append(&mut recorder.cuts.borrow_mut());
        let counts = worlds[0].devices.iter().map(|device| device.counts());
        operations += counts
            .map(|count| count.writes + count.flushes)
            .sum::<u64>();
        images = worlds[0].devices.iter().map(|d| d.image()).collect();
    }
    assert_eq!(next, operations, "{}: an operation was missed", script.name);
    let ends = script.opens.len() as u64;
    assert_eq!(cuts.len() as u64, operations * 2 + ends, "{}", script.name);
    cuts
}

/// Opens what a cut left, twice, and compares it with what clients were told.
fn reopen(script: &Script, cut: &Cut, mut images: Vec<MemImage>, context: &str) {
    let strict = script.strict;
    let model = cut.model.clone();
    for (again, shards) in script.reopens.iter().enumerate() {
        let epoch = cut.epoch + 1 + again as u32;
        let sim = Sim::new(u64::from(epoch));
        let worlds = World::several(&sim, &script.spec, images, (epoch, *shards));
        let context = format!("{context}, open {epoch} with {shards} shards");
        sim.run(recover(&worlds, &context));
        sim.run(audit(&worlds, &model, strict, &context));
        for world in &worlds {
            world.shard.check();
            // Power loss damages nothing that a footer or a walk vouches for (OD-7, OD-8).
            let damaged = world.shard.stats().counters.checksum_mismatches;
            assert_eq!(damaged, 0, "{context}: blocks with wrong bytes");
        }
        excuse(&worlds, &model, strict, &context);
        images = worlds[0]
            .devices
            .iter()
            .map(|d| d.crash(&mut |_| false))
            .collect();
    }
}

/// Recovers from each of `subsets` at each cut of a script, but from equal devices with equal
/// promises once only. Returns the count of cuts with one to recover from, and of recoveries.
pub(super) fn cut_everywhere(
    script: &Script,
    subsets: impl Fn(&Cut) -> Vec<Subset>,
) -> (usize, usize) {
    let only = only_cut();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if only
        .as_deref()
        .is_some_and(|only| !only.starts_with(&format!("{}:", script.name)))
    {
        return (0, 0);
    }
    let (mut seen, mut cases, mut cuts) = (HashSet::new(), 0, 0);
    for cut in record(script) {
        let subsets = subsets(&cut);
        cuts += usize::from(!subsets.is_empty());
        for subset in subsets {
            let name = format!("{}:{}:{subset}", script.name, cut.name());
            let (images, survived) = subset.images(&cut);
            let state = (cut.epoch, cut.flushes, survived, cut.model.promises());
            if !wanted(&name) || !seen.insert(state) && only.is_none() {
                continue;
            }
            cases += 1;
            let run = AssertUnwindSafe(|| reopen(script, &cut, images, &name));
            if let Err(panic) = std::panic::catch_unwind(run) {
                let message = terrace_runtime::executor::panic_message(&*panic);
                panic!("TERRACE_CUT={name} cargo test cut_tests: {message}");
            }
        }
    }
    (cuts, cases)
}

/// The one case that is asked for by `TERRACE_CUT`.
pub(super) fn only_cut() -> Option<String> {
    std::env::var("TERRACE_CUT").ok()
}
