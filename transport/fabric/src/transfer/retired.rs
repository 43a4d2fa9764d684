//! What stands in the place of a rail whose code has panicked: always down, and all that it knows
//! is how the peer is asked to be done with what the rail wrote.

use std::collections::VecDeque;

use super::error::RailError;
use super::transport::{Ask, Ended, Interest, Rail, RailLink, Slice, SliceId};

/// A rail that is down for good.
pub(super) struct RetiredRail {
    link: RailLink,
    fence: Option<Vec<u8>>,
}

impl RetiredRail {
    pub(super) const fn new(link: RailLink, fence: Option<Vec<u8>>) -> Self {
        Self { link, fence }
    }
}

const fn down() -> RailError {
    RailError::Refused("its code has panicked here: it stays down")
}

impl Rail for RetiredRail {
    fn link(&self) -> &RailLink {
        &self.link
    }

    fn post(&mut self, _slices: &mut VecDeque<Slice>) -> Result<(), RailError> {
        Err(down())
    }

    fn poll(&mut self, _ended: &mut Vec<Ended>) -> Result<(), RailError> {
        Err(down())
    }

    fn arm(&mut self, _interests: &mut Vec<Interest>) -> Result<bool, RailError> {
        Err(down())
    }

    fn cancel(&mut self, _id: SliceId) {}

    fn quiesce(&mut self) {}

    fn fence(&self) -> Option<Vec<u8>> {
        self.fence.clone()
    }

    fn revive(&mut self, _peer: &mut dyn Ask) -> Result<(), RailError> {
        Err(down())
    }
}
