//! One rail: a queue pair of this end, and the one that the peer lends for it.
//!
//! **Invariants**
//! - A slice ends with its last request; all before it are done by then, as a queue pair's
//!   requests end in order.
//! - What failed the queue pair is told once: the slices that have ended go first.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use super::keys::RegionKey;
use super::questions::Question;
use super::{Nic, Shared, failed};
use crate::transfer::{
    self, Ask, Ended, Interest, Operation, Rail, RailError, RailLink, Slice, SliceId, TransportKind,
};
use crate::verbs::address::QueuePairAddress;
use crate::verbs::completion::{CompletionQueue, Status, WorkCompletion};
use crate::verbs::in_flight::Completion;
use crate::verbs::queue_pair::{QueuePair, QueuePairState};
use crate::verbs::region::Access;
use crate::verbs::request::{self, WorkRequest};

/// Requests under way on a rail: slices of 256 KiB on a link of 400 Gb/s for 1 ms, and as many
/// again for those that are cut.
const DEPTH: u32 = 512;

/// Polls of an empty completion queue before a thread sleeps: some microseconds, about what it
/// costs to sleep and be woken.
const SPINS: u32 = 100;

/// Marks a request that is not the last of its slice; names of slices stay below.
const MORE_FOLLOW: u64 = 1 << 63;

/// A rail.
pub(super) struct RdmaRail {
    link: RailLink,
    /// Places of the ports in the lists of both ends.
    nic: usize,
    peer_nic: usize,
    completions: CompletionQueue,
    queue_pair: Option<QueuePair>,
    /// Whether something was written since the peer fenced the rail.
    has_written: bool,
    /// What the queue pair failed with, until it is told.
    failure: Option<Status>,
    ended: Vec<Ended>,
    found: Vec<WorkCompletion>,
    completed: Vec<Completion>,
    shared: Arc<Shared>,
}

impl RdmaRail {
    /// A rail that is down until it is revived.
    pub(super) fn new(
        shared: &Arc<Shared>,
        nic: usize,
        peer_nic: usize,
    ) -> Result<Self, RailError> {
        let ours = nic_at(shared, nic)?;
        let depth = shared.settings(ours, DEPTH, Access::Local);
        let completions = CompletionQueue::new(&ours.device, depth.completion_count())
            .map_err(failed("make a completion queue"))?;
        Ok(Self {
            link: RailLink {
                name: format!("{} to the peer's port {peer_nic}", ours.name()),
                kind: TransportKind::Rdma,
                device: Some(ours.device.name().to_owned()),
                bandwidth: ours.bandwidth(),
            },
            nic,
            peer_nic,
            completions,
            queue_pair: None,
            has_written: false,
            failure: None,
            ended: Vec::new(),
            found: Vec::new(),
            completed: Vec::new(),
            shared: Arc::clone(shared),
        })
    }

    /// Its name in questions: no two rails to one peer have the same ports.
    fn name(&self) -> u32 {
        (self.nic << 8 | self.peer_nic) as u32
    }

    /// The queue pair, open and not connected, with the addresses of by now.
    fn open(&mut self) -> Result<&mut QueuePair, RailError> {
        let nic = nic_at(&self.shared, self.nic)?;
        let old = self.queue_pair.take().and_then(|mut old| {
            let is_idle = old.state() == QueuePairState::Idle;
            (is_idle || old.disconnect(&mut Vec::new()).is_ok()).then_some(old)
        });
        let queue_pair = match old {
            Some(mut old) => old.renew().map(|()| old),
            None => {
                let settings = self.shared.settings(nic, DEPTH, Access::Local);
                QueuePair::new(&nic.domain, &self.completions, settings)
            }
        };
        let queue_pair = queue_pair.map_err(failed("make a queue pair"))?;
        Ok(self.queue_pair.insert(queue_pair))
    }

    /// The requests of a slice, appended to `requests`; or what keeps it from being moved.
    fn cut<'a>(
        &self,
        slice: &Slice,
        message_len_max: u64,
        requests: &mut Vec<WorkRequest<'a>>,
    ) -> Result<(), transfer::Status> {
        let unknown = transfer::Status::UnknownRegion;
        let local = self
            .shared
            .region(slice.local.id(), self.nic)
            .ok_or(unknown)?;
        let key = slice.remote.key(TransportKind::Rdma).ok_or(unknown)?;
        let key = RegionKey::decode(key).ok_or(unknown)?;
        let mut done = 0;
        while done < slice.len {
            let offset = slice.local_offset + done;
            let remote_offset = slice.remote_offset + done;
            let (remote, left) = key.remote(self.peer_nic, remote_offset).ok_or(unknown)?;
            let local_left = local.piece_len() - offset % local.piece_len();
            let len = (slice.len - done)
                .min(left)
                .min(local_left)
                .min(message_len_max);
            let part = local.slice(offset, len as u32).map_err(|_| unknown)?;
            done += len;
            let mark = if done < slice.len { MORE_FOLLOW } else { 0 };
            requests.push(WorkRequest {
                token: slice.id.0 | mark,
                operation: match slice.operation {
                    Operation::Read => request::Operation::Read {
                        into: vec![part],
                        from: remote,
                    },
                    Operation::Write => request::Operation::Write {
                        from: vec![part],
                        into: remote,
                        immediate: None,
                    },
                },
            });
        }
        Ok(())
    }

    /// Takes note of how a request ended.
    fn note(&mut self, completion: &Completion) {
        let id = SliceId(completion.token & !MORE_FOLLOW);
        let is_last = completion.token & MORE_FOLLOW == 0;
        match completion.status {
            Status::Success if is_last => self.ended.push(Ended {
                id,
                status: transfer::Status::Done,
            }),
            Status::Success | Status::Flushed => {}
            // Both ends agreed on range and rights when the slice was cut: the peer has taken
            // the region back since.
            Status::RemoteAccess | Status::RemoteInvalidRequest if self.failure.is_none() => {
                self.failure = Some(completion.status);
                self.ended.push(Ended {
                    id,
                    status: transfer::Status::StaleRegion,
                });
            }
            status => self.failure = self.failure.or(Some(status)),
        }
    }
}

fn nic_at(shared: &Shared, place: usize) -> Result<&Nic, RailError> {
    let nic = shared.nics.get(place);
    nic.ok_or(RailError::Refused("there is no such RDMA port"))
}

impl Rail for RdmaRail {
    fn link(&self) -> &RailLink {
        &self.link
    }

    fn post(&mut self, slices: &mut VecDeque<Slice>) -> Result<(), RailError> {
        let Some(queue_pair) = self.queue_pair.as_ref() else {
            return Err(RailError::Closed);
        };
        let (room, message_len_max) = (queue_pair.room(), queue_pair.message_len_max().into());
        let mut requests = Vec::new();
        while let Some(slice) = slices.front() {
            let before = requests.len();
            if let Err(status) = self.cut(slice, message_len_max, &mut requests) {
                requests.truncate(before);
                self.ended.push(Ended {
                    id: slice.id,
                    status,
                });
            } else if requests.len() > room {
                requests.truncate(before);
                break;
            }
            self.has_written |= slice.operation == Operation::Write;
            slices.pop_front();
        }
        let Some(queue_pair) = self.queue_pair.as_mut() else {
            return Err(RailError::Closed);
        };
        let before = queue_pair.counters();
        let outcome = queue_pair.post(requests);
        self.shared.counters.add(before, queue_pair.counters());
        outcome.map_err(failed("post"))
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> Result<(), RailError> {
        let Some(queue_pair) = self.queue_pair.as_mut() else {
            return Err(RailError::Closed);
        };
        self.completions
            .poll(&mut self.found)
            .map_err(failed("poll"))?;
        let before = queue_pair.counters();
        for completion in self.found.drain(..) {
            queue_pair.resolve(&completion, &mut self.completed);
        }
        self.shared.counters.add(before, queue_pair.counters());
        let mut completed = std::mem::take(&mut self.completed);
        for completion in completed.drain(..) {
            self.note(&completion);
        }
        self.completed = completed;
        if self.ended.is_empty()
            && let Some(status) = self.failure.take()
        {
            return Err(RailError::Device {
                op: "move slices",
                what: status.to_string(),
            });
        }
        ended.append(&mut self.ended);
        Ok(())
    }

    fn arm(&mut self, interests: &mut Vec<Interest>) -> Result<bool, RailError> {
        if self.failure.is_some() || !self.ended.is_empty() {
            return Ok(false);
        }
        let is_busy = self
            .queue_pair
            .as_ref()
            .is_some_and(|own| own.in_flight() > 0);
        let spins = if is_busy { SPINS } else { 0 };
        let is_ready = self.completions.prepare_wait(spins);
        if is_ready.map_err(failed("wait"))? {
            return Ok(false);
        }
        interests.push(Interest {
            fd: self.completions.as_fd().as_raw_fd(),
            read: true,
            write: false,
        });
        Ok(true)
    }

    fn cancel(&mut self, _id: SliceId) {
        // A NIC takes no request back. It ends by itself, in the time of the NIC's retries.
    }

    fn quiesce(&mut self) {
        let mut flushed = Vec::new();
        let outcome = self
            .queue_pair
            .as_mut()
            .map(|own| own.disconnect(&mut flushed));
        if let Some(Err(error)) = outcome {
            tracing::warn!(rail = self.link.name, %error, "a queue pair is given up");
            // What is left takes it from the NIC.
            self.queue_pair = None;
        }
        self.failure = None;
        self.ended.clear();
    }

    fn fence(&self) -> Option<Vec<u8>> {
        // Packets of a write may still be on their way to the peer's NIC.
        self.has_written.then(|| {
            let rail = self.name();
            Question::Fence { rail }.encode()
        })
    }

    fn revive(&mut self, peer: &mut dyn Ask) -> Result<(), RailError> {
        let (nic, rail) = (self.peer_nic as u8, self.name());
        let own = self.open()?;
        let address = own.address();
        let question = Question::Connect { nic, rail, address };
        let answer = peer.ask(&question.encode())?;
        let unreadable = "the answer about a queue pair cannot be read";
        let answer = <&[u8; QueuePairAddress::LEN]>::try_from(answer.as_slice())
            .map_err(|_| RailError::Protocol(unreadable))?;
        QueuePairAddress::decode(answer)
            .and_then(|theirs| own.connect(&theirs))
            .map_err(failed("connect a queue pair"))?;
        self.has_written = false;
        Ok(())
    }
}
