//! What is found in a segment, against the list of what was written there.
//!
//! Aim: a sound footer tells all entries in their order; without one the walk finds every sound frame
//! behind any damage, gap or older frame, and of a frame all but the blocks whose payload is
//! damaged. Method: segments of random frames are written byte by byte, damaged at random, and read.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::collection::vec;
use proptest::prelude::*;
use terrace_types::{Clock, Hint, LocalFuture, Nanos, Tasks};

use super::super::{TierConfig, TierDevice, TierSegment};
use super::*;
use crate::device::IoBackend;
use crate::format::{DeviceId, FrameBuilder, SEGMENTS_START, SegmentHead, Sequence};
use crate::mem::{MemDevice, MemImage};

const SEGMENT_LEN: u64 = 8 << 20;
const UNITS: u32 = (SEGMENT_LEN / UNIT) as u32;
const NAMESPACE: &str = "model";
const IDENTITY: SegmentIdentity = SegmentIdentity {
    sequence: Sequence::new(3, 77),
    salt: 0x0123_4567_89ab_cdef,
};

/// No task is started here and no time passes.
struct NoTasks;

impl Clock for NoTasks {
    fn now(&self) -> Nanos {
        Nanos::ZERO
    }
}

impl Tasks for NoTasks {
    fn spawn(&self, _task: LocalFuture<'static, ()>) {
        panic!("reading starts no task");
    }

    fn sleep_until(&self, _deadline: Nanos) -> LocalFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn yield_now(&self) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

fn run<T>(device: &MemDevice, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(end) = future.as_mut().poll(&mut context) {
            return end;
        }
        device.submit();
        assert!(device.reap(Nanos::MAX) > 0, "it waits for nothing");
    }
}

/// One record: `None` for a tombstone, else the payload's length and whether it is damaged.
type Item = Option<(u32, bool)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sound,
    HeadDamaged,
    /// Of an earlier life of the space.
    Old,
}

#[derive(Clone, Debug)]
struct Frame {
    state: State,
    items: Vec<Item>,
    /// Units of something else behind it.
    gap: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Footer {
    Sound,
    Damaged,
    Absent,
}

/// A segment's bytes, and what should be found by the walk and by the footer.
struct World {
    bytes: Vec<u8>,
    all: Vec<(Sequence, u32)>,
    walked: Vec<(Sequence, u32)>,
    frames: u32,
    damaged: u32,
    end: u32,
    walked_end: u32,
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let item = prop::option::weighted(0.8, (1_u32..9000, prop::bool::weighted(0.2)));
    let states = [
        State::Sound,
        State::Sound,
        State::Sound,
        State::HeadDamaged,
        State::Old,
    ];
    let frame = (
        prop::sample::select(states.to_vec()),
        vec(item, 0..6),
        0_u32..80,
    );
    let frame = frame.prop_map(|(state, items, gap)| Frame {
        state,
        items,
        gap: gap.saturating_sub(60),
    });
    vec(frame, 0..12)
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

impl World {
    fn new(frames: &[Frame], footer: Footer) -> Self {
        let mut world = Self {
            bytes: vec![0; UNIT as usize],
            all: Vec::new(),
            walked: Vec::new(),
            frames: 0,
            damaged: 0,
            end: 1,
            walked_end: 1,
        };
        let mut listed = FooterBuilder::new();
        for frame in frames {
            world.append(frame, &mut listed);
        }
        world.bytes.resize(SEGMENT_LEN as usize, 0x5a);
        if footer != Footer::Absent {
            let built = super::super::commit::built_footer(&listed, world.end, &IDENTITY);
            let start = world.bytes.len() - built.bytes().len();
            world.bytes[start..].copy_from_slice(built.bytes());
            world.bytes[start + 100] ^= u8::from(footer == Footer::Damaged);
        }
        world
    }

    fn append(&mut self, frame: &Frame, listed: &mut FooterBuilder) {
        let place = (self.bytes.len() as u64 / UNIT) as u32;
        let identity = SegmentIdentity {
            salt: IDENTITY.salt ^ u64::from(frame.state == State::Old),
            ..IDENTITY
        };
        let mut builder = FrameBuilder::new(UNIT as u32, &identity, place, self.frames);
        let mut payloads = Vec::new();
        for item in &frame.items {
            let number = self.bytes.len() as u64 + u64::from(builder.entry_count());
            let (len, is_damaged) = item.unwrap_or_default();
            let mut payload = vec![number as u8; len as usize];
            let key = key(number);
            let unit = place + 1 + (payloads.len() as u64 / UNIT) as u32;
            let entry = EntryRef {
                kind: item.map_or(EntryKind::Tombstone, |_| EntryKind::Block),
                namespace: NAMESPACE,
                key: &key,
                sequence: Sequence::new(2, number),
                checksum: Checksum::of_named(NAMESPACE, &key, &payload),
                len,
                place: if len > 0 { unit } else { 0 },
                hint: Hint::default(),
            };
            builder.push(&entry);
            if is_damaged {
                payload[len as usize - 1] ^= 1;
            }
            payload.resize(payload.len().next_multiple_of(UNIT as usize), 0);
            payloads.extend(payload);
            if frame.state != State::Old {
                listed.push(&entry);
                self.all.push((entry.sequence, entry.place));
            }
            if frame.state == State::Sound {
                self.damaged += u32::from(is_damaged);
                self.walked
                    .extend((!is_damaged).then_some((entry.sequence, entry.place)));
            }
        }
        let units = 1 + (payloads.len() as u64 / UNIT) as u32;
        let mut head = vec![0; UNIT as usize];
        builder.finish(units, &mut head);
        head[50] ^= u8::from(frame.state == State::HeadDamaged);
        self.bytes.extend(head);
        self.bytes.extend(payloads);
        self.end = place + units;
        if frame.state == State::Sound {
            self.frames += 1;
            self.walked_end = self.end;
        }
        let gap = frame.gap as usize * UNIT as usize;
        self.bytes.extend(std::iter::repeat_n(0xa5, gap));
    }

    /// The tier over a device that holds the segment's bytes.
    fn tier(&self) -> (Rc<MemDevice>, Rc<NvmeTier>) {
        let mut image = MemImage::empty(SEGMENTS_START + 2 * SEGMENT_LEN);
        image.write(SEGMENTS_START, &self.bytes);
        let device = MemDevice::from_image(image, None);
        let head = SegmentHead {
            device: DeviceId([1; 16]),
            number: 0,
            shard: 0,
            shards: 1,
            sequence: IDENTITY.sequence,
            salt: IDENTITY.salt,
            len: SEGMENT_LEN,
        };
        let segment = |number: u32, head| TierSegment {
            number,
            head,
            owned: true,
            legacy: false,
        };
        let devices = vec![TierDevice {
            device: Rc::<MemDevice>::clone(&device),
            id: head.device,
            segment_len: SEGMENT_LEN,
            draining: false,
            segments: vec![segment(0, Some(head)), segment(1, None)],
        }];
        let config = TierConfig::default();
        let tier = NvmeTier::new(config, Rc::new(NoTasks), devices, 7, false);
        (device, tier.unwrap())
    }
}

fn found(contents: &Contents) -> Vec<(Sequence, u32)> {
    let mut found = Vec::new();
    contents.for_each(|entry| {
        assert_eq!(entry.namespace, NAMESPACE);
        assert_eq!(entry.key, key(entry.sequence.counter()));
        found.push((entry.sequence, entry.place));
    });
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn contents_are_what_was_written_and_is_sound(
        frames in frames(),
        footer in prop::sample::select(&[Footer::Sound, Footer::Damaged, Footer::Absent][..]),
    ) {
        let world = World::new(&frames, footer);
        let (device, tier) = world.tier();
        prop_assert_eq!(tier.used_segments(), [SegmentIx(0)]);
        let contents = run(&device, tier.contents(SegmentIx(0)));
        prop_assert!(!contents.unreadable);
        prop_assert_eq!(contents.units, UNITS);
        prop_assert_eq!(contents.walked, footer != Footer::Sound);
        if footer == Footer::Sound {
            prop_assert_eq!(found(&contents), world.all);
            prop_assert_eq!(contents.end_units(), world.end);
            prop_assert_eq!(contents.bytes_read, contents.footer.bytes().len() as u64);
        } else {
            prop_assert_eq!(found(&contents), world.walked);
            prop_assert_eq!(contents.end_units(), world.walked_end);
            prop_assert_eq!((contents.frames, contents.damaged), (world.frames, world.damaged));
        }
    }
}
