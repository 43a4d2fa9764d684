//! The thread of one rail: gives it slices, moves what can be moved, sleeps, and nurses it when
//! it fails.
//!
//! **Invariants**
//! - A panic in a rail's code is the failure of that rail alone. It is dropped, which quiesces it,
//!   and another one that is always down stands in its place.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::control::{AskTransport, Control};
use super::error::RailError;
use super::link::Link;
use super::retired::RetiredRail;
use super::transport::{Ask, Ended, Interest, Rail, Slice};

/// How long a rail without work sleeps at most: it looks for a peer that has closed it.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// How often a rail that is down looks at deadlines.
const DOWN_SLEEP_MAX: Duration = Duration::from_millis(50);

/// One rail and its thread's view of the link.
pub(super) struct Driver {
    link: Arc<Link>,
    control: Arc<Control>,
    rail: Box<dyn Rail>,
    ix: usize,
    wake: RawFd,
    /// What the rail was given and did not take yet.
    slices: VecDeque<Slice>,
    ended: Vec<Ended>,
}

impl Driver {
    pub(super) fn new(
        link: Arc<Link>,
        control: Arc<Control>,
        rail: Box<dyn Rail>,
        ix: usize,
    ) -> Self {
        let wake = link.state().wake_fd(ix);
        let (slices, ended) = (VecDeque::new(), Vec::new());
        Self {
            link,
            control,
            rail,
            ix,
            wake,
            slices,
            ended,
        }
    }

    /// Runs until the link closes. Then nothing of the rail is under way.
    pub(super) fn run(mut self) {
        while let Err(error) = self.guarded(Self::work) {
            let name = self.rail_name();
            // A peer that goes away takes its rails along; that is no fault while they are idle.
            if self.link.is_idle(self.ix) {
                tracing::info!(rail = name, %error, "an idle rail ended");
            } else {
                tracing::warn!(rail = name, %error, "a rail failed; its slices go elsewhere");
            }
            // The second time it is a rail that has no code to panic.
            let outcome = self.guarded(Self::recover);
            let is_back = outcome.or_else(|_| self.guarded(Self::recover));
            if !is_back.unwrap_or(false) {
                break;
            }
            tracing::info!(rail = name, "a rail is back");
        }
        // What panics here was told, and is dropped.
        let _ = self.guarded(|driver| {
            driver.rail.quiesce();
            Ok(())
        });
        let mut state = self.link.state();
        state.rail_failed(self.ix, false);
        state.end_if_lost(Duration::MAX);
    }

    fn rail_name(&self) -> String {
        self.link.state().rail_link(self.ix).name
    }

    /// Runs a step; a panic in it is the failure of the rail.
    fn guarded<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, RailError>,
    ) -> Result<T, RailError> {
        let outcome = catch_unwind(AssertUnwindSafe(|| step(self)));
        outcome.unwrap_or_else(|_| {
            self.retire();
            Err(RailError::Device {
                op: "drive a rail",
                what: "its code panicked".to_owned(),
            })
        })
    }

    /// Drops a rail whose code cannot be relied on any more.
    fn retire(&mut self) {
        let fence = catch_unwind(AssertUnwindSafe(|| {
            self.rail.quiesce();
            self.rail.fence()
        }));
        let link = self.link.state().rail_link(self.ix);
        let name = link.name.clone();
        let (has_fence, fence) = (fence.is_ok(), fence.unwrap_or_default());
        let broken = std::mem::replace(&mut self.rail, Box::new(RetiredRail::new(link, fence)));
        if catch_unwind(AssertUnwindSafe(|| drop(broken))).is_err() {
            tracing::error!(rail = name, "a rail panicked as it was dropped");
        }
        if !has_fence {
            // Nobody can ask the peer to be done with them.
            self.link.state().lose_writes(self.ix);
        }
    }

    /// Works until the link closes.
    fn work(&mut self) -> Result<(), RailError> {
        loop {
            if !self.take()? {
                return Ok(());
            }
            if !self.slices.is_empty() {
                self.rail.post(&mut self.slices)?;
            }
            self.rail.poll(&mut self.ended)?;
            if self.ended.is_empty() {
                self.sleep()?;
            } else {
                self.link.state().ended(self.ix, &mut self.ended);
            }
        }
    }

    /// Takes what the link has for the rail; whether it goes on.
    fn take(&mut self) -> Result<bool, RailError> {
        let stall = self.link.times.stall;
        let mut state = self.link.state();
        state.expire();
        if state.is_closing() {
            return Ok(false);
        }
        if state.stalled_for(self.ix) > stall {
            return Err(RailError::TimedOut { waited: stall });
        }
        let cancels = state.take_cancels(self.ix);
        state.give(self.ix, self.link.slice_len(), &mut self.slices);
        drop(state);
        for id in cancels.map_err(|()| RailError::TimedOut { waited: stall })? {
            let waiting = self.slices.iter().position(|slice| slice.id == id);
            if let Some(at) = waiting {
                self.slices.remove(at);
                let status = super::error::Status::Cancelled;
                self.ended.push(Ended { id, status });
            } else {
                self.rail.cancel(id);
            }
        }
        Ok(true)
    }

    fn sleep(&mut self) -> Result<(), RailError> {
        let mut interests = Vec::with_capacity(4);
        if !self.rail.arm(&mut interests)? {
            return Ok(());
        }
        let stall = self.link.times.stall;
        let mut state = self.link.state();
        let longest = SLEEP_MAX.min(stall.saturating_sub(state.stalled_for(self.ix)));
        // What came since the last look has woken the rail, and makes this end at once.
        let timeout = state.fall_asleep(self.ix, longest + Duration::from_millis(1));
        drop(state);
        wait(self.wake, &interests, timeout)?;
        self.link.state().woke(self.ix);
        Ok(())
    }

    /// Brings a rail that failed back; `false` when the link closes first.
    fn recover(&mut self) -> Result<bool, RailError> {
        self.rail.quiesce();
        self.slices.clear();
        self.ended.clear();
        let fence = self.rail.fence();
        self.link.state().rail_failed(self.ix, fence.is_some());
        let control = Arc::clone(&self.control);
        let mut peer = AskTransport {
            control: &control,
            kind: self.rail.link().kind,
        };
        let mut is_fenced = fence.is_none();
        loop {
            if let (false, Some(question)) = (is_fenced, &fence) {
                is_fenced = peer.ask(question).is_ok();
                if is_fenced {
                    self.link.state().fenced(self.ix);
                }
            }
            let mut state = self.link.state();
            state.expire();
            state.end_if_lost(self.link.times.lost);
            if state.is_closing() {
                return Ok(false);
            }
            let rest = state.rest_of(self.ix);
            if rest > Duration::ZERO || !is_fenced {
                let rest = rest.clamp(Duration::from_millis(1), DOWN_SLEEP_MAX);
                let timeout = state.fall_asleep(self.ix, rest);
                drop(state);
                // An error here is one of the arguments, which are right.
                let _ = wait(self.wake, &[], timeout);
                self.link.state().woke(self.ix);
                continue;
            }
            drop(state);
            match self.rail.revive(&mut peer) {
                Ok(()) => {
                    self.link.state().rail_returned(self.ix);
                    return Ok(true);
                }
                Err(error) => {
                    tracing::debug!(rail = self.rail.link().name, %error, "a rail is still down");
                    self.link.state().probe_failed(self.ix);
                }
            }
        }
    }
}

/// Sleeps until `wake` or one of `interests` is ready.
fn wait(wake: RawFd, interests: &[Interest], timeout: Duration) -> Result<(), RailError> {
    let all = std::iter::once(Interest {
        fd: wake,
        read: true,
        write: false,
    })
    .chain(interests.iter().copied());
    let mut fds: Vec<PollFd<'_>> = all
        .map(|interest| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, interest.read);
            flags.set(PollFlags::POLLOUT, interest.write);
            PollFd::new(borrow(interest.fd), flags)
        })
        .collect();
    let millis = timeout.as_micros().div_ceil(1000);
    let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(cause) => Err(RailError::Os {
            op: "wait for a rail",
            source: cause.into(),
        }),
    }
}

#[expect(
    unsafe_code,
    reason = "descriptors that a rail names are its own while it lives"
)]
fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the link keeps its eventfd, and a rail keeps what it named in `arm` open while it
    // lives; the thread that waits owns the rail.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
