//! A transport that calls itself RDMA, whose rails go before those over TCP and do what a test says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrace_fabric::transfer::{
    Ask, Ended, Interest, Rail, RailError, RailLink, Region, RegionId, Session, Slice, SliceId,
    Status, TransferError, Transport, TransportKind,
};

/// Regions of this length and longer have no key, or cannot be registered.
pub(crate) const KEYED_LEN_MAX: u64 = 1 << 20;

/// What a rail does with its slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// Ends them as [`Status::UnknownRegion`], so that a test sees who was given to it.
    Refuse,
    /// Panics while it has some.
    Panic,
    /// The same, also when it is asked for its fence.
    PanicAgain,
}

/// The transport.
pub(crate) struct Fake {
    does: Does,
    /// Whether regions beyond the length are an error, not regions without a key.
    is_strict: bool,
    pub(crate) sessions_ended: Arc<AtomicUsize>,
}

impl Fake {
    pub(crate) fn new(does: Does, is_strict: bool) -> Arc<Self> {
        Arc::new(Self {
            does,
            is_strict,
            sessions_ended: Arc::default(),
        })
    }
}

impl Transport for Fake {
    fn kind(&self) -> TransportKind {
        TransportKind::Rdma
    }

    fn register(&self, region: &Arc<Region>) -> Result<Vec<u8>, TransferError> {
        match (region.len() < KEYED_LEN_MAX, self.is_strict) {
            (true, _) => Ok(vec![1]),
            (false, false) => Ok(Vec::new()),
            (false, true) => Err(TransferError::Transport {
                kind: TransportKind::Rdma,
                what: "the region is too long".to_owned(),
            }),
        }
    }

    fn unregister(&self, _id: RegionId) {}

    fn connect(&self, peer: &mut dyn Ask) -> Result<Vec<Box<dyn Rail>>, TransferError> {
        assert!(peer.ask(&[0]).is_ok(), "the owner has no such transport");
        Ok(vec![Box::new(FakeRail {
            link: RailLink {
                name: "fake".to_owned(),
                kind: TransportKind::Rdma,
                device: None,
                bandwidth: None,
            },
            does: self.does,
            slices: Vec::new(),
        })])
    }

    fn accept(&self) -> Result<Box<dyn Session>, TransferError> {
        Ok(Box::new(FakeSession(Arc::clone(&self.sessions_ended))))
    }
}

struct FakeRail {
    link: RailLink,
    does: Does,
    slices: Vec<Slice>,
}

impl Rail for FakeRail {
    fn link(&self) -> &RailLink {
        &self.link
    }

    fn post(&mut self, slices: &mut VecDeque<Slice>) -> Result<(), RailError> {
        self.slices.extend(slices.drain(..));
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> Result<(), RailError> {
        assert!(
            self.does == Does::Refuse || self.slices.is_empty(),
            "this rail panics on purpose"
        );
        ended.extend(self.slices.drain(..).map(|slice| Ended {
            id: slice.id,
            status: Status::UnknownRegion,
        }));
        Ok(())
    }

    fn arm(&mut self, _interests: &mut Vec<Interest>) -> Result<bool, RailError> {
        Ok(true)
    }

    fn cancel(&mut self, _id: SliceId) {}

    fn quiesce(&mut self) {
        self.slices.clear();
    }

    fn fence(&self) -> Option<Vec<u8>> {
        assert!(self.does != Does::PanicAgain, "this rail panics on purpose");
        Some(vec![1])
    }

    fn revive(&mut self, _peer: &mut dyn Ask) -> Result<(), RailError> {
        Ok(())
    }
}

/// Takes a while to end, as one does that has queue pairs to take from a NIC.
struct FakeSession(Arc<AtomicUsize>);

impl Session for FakeSession {
    fn answer(&mut self, _question: &[u8]) -> Result<Vec<u8>, TransferError> {
        Ok(Vec::new())
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        for _ in 0..10_000 {
            std::thread::yield_now();
        }
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
