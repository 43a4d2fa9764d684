//! Reliable connected queue pairs: this end's half of a connection between two NICs.
//!
//! A queue pair is made, told its peer's address, and then takes batches of requests: one call,
//! one doorbell, one completion for up to 16 requests. When a request fails, all behind it are flushed, and the
//! queue pair can be renewed for a new connection.
//!
//! **Invariants**
//! - Memory of a request stays registered until the request has ended, or the NIC has left the
//!   queue pair: dropping one with requests under way is safe.
//! - The last request of each batch is signalled, so whatever is posted ends.
//!
//! Time limits are the caller's: a request ends by itself only after the NIC's retries.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::abi;
use super::address::{NUMBER_MAX, QueuePairAddress};
use super::completion::{CompletionQueue, Status, WorkCompletion};
use super::connect;
use super::device::{Device, Port, ProtectionDomain};
use super::error::VerbsError;
use super::gid::GidRecord;
use super::in_flight::{Completion, InFlight, Posted, RequestId, RequestKind};
use super::region::LocalSlice;
use super::request::{Chain, RequestLimits, WorkRequest, at_most, total};
use super::settings::QueuePairSettings;

/// What a queue pair can do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// Nothing, until it is renewed.
    Idle,
    /// It has an address and takes receives; it has no peer yet.
    Open,
    /// It has a peer.
    Connected,
    /// A request failed, or the peer did: nothing more is done.
    Failed,
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Open => "open and not connected",
            Self::Connected => "connected",
            Self::Failed => "failed",
        })
    }
}

/// What a queue pair has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairCounters {
    /// Times the NIC was told of new requests.
    pub doorbells: u64,
    /// Reads, writes and sends posted.
    pub requests: u64,
    /// Completions of them that the NIC wrote.
    pub completions: u64,
    /// Receives posted.
    pub receives: u64,
    /// Bytes that the processor copied into requests: those of inline sends.
    pub copied_bytes: u64,
}

/// A queue pair.
pub struct QueuePair {
    handle: Handle,
    // Behind the queue pair, whose completions they are for.
    _places: Places,
    state: QueuePairState,
    settings: QueuePairSettings,
    port: Port,
    gid: GidRecord,
    first_packet: u32,
    sends: InFlight,
    receives: InFlight,
    chain: Chain,
    counters: QueuePairCounters,
}

/// The library's queue pair, and what has to outlive it.
struct Handle {
    queue_pair: NonNull<abi::Qp>,
    /// Its name in the identifiers of its requests: numbers of queue pairs are used again.
    life: u32,
    /// Longest inline send that the NIC granted, in bytes.
    inline_len: u32,
    // Behind the queue pair, which `drop` destroys.
    completions: CompletionQueue,
    domain: ProtectionDomain,
}

// SAFETY: the library's calls on a queue pair may come from any thread.
unsafe impl Send for Handle {}
// SAFETY: through a shared reference nothing of it is changed.
unsafe impl Sync for Handle {}

impl Handle {
    fn new(
        domain: &ProtectionDomain,
        completions: &CompletionQueue,
        settings: &QueuePairSettings,
    ) -> Result<Self, VerbsError> {
        let device = domain.device();
        let mut wanted = abi::QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.raw(),
            recv_cq: completions.raw(),
            srq: std::ptr::null_mut(),
            cap: abi::QpCap {
                max_send_wr: settings.send_depth,
                // Some drivers refuse a queue pair without receives.
                max_recv_wr: settings.receive_depth.max(1),
                max_send_sge: settings.slice_count_max,
                max_recv_sge: settings.slice_count_max,
                max_inline_data: settings.inline_len,
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue are there, and of the same device.
        let made = unsafe { (device.library().create_qp)(domain.raw(), &raw mut wanted) };
        let made = NonNull::new(made)
            .ok_or_else(|| VerbsError::last_os("making a queue pair", device.name()))?;
        Ok(Self {
            queue_pair: made,
            life: next_life(),
            inline_len: wanted.cap.max_inline_data,
            completions: completions.clone(),
            domain: domain.clone(),
        })
    }

    fn number(&self) -> u32 {
        // SAFETY: a record of the library's, whose number does not change.
        unsafe { (*self.queue_pair.as_ptr()).qp_num }
    }

    fn device(&self) -> &Device {
        self.domain.device()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `Handle::new`. When this returns, the NIC has left the memory of
        // requests that were under way, which their queue gives back afterwards.
        unsafe { (self.domain.device().library().destroy_qp)(self.queue_pair.as_ptr()) };
        // Should the queue be in trouble, its other users learn of it themselves.
        let _ = self.completions.forget(self.life);
    }
}

/// Places taken in a completion queue.
struct Places {
    count: u32,
    completions: CompletionQueue,
}

impl Places {
    fn take(completions: &CompletionQueue, count: u32) -> Result<Self, VerbsError> {
        completions.reserve(count)?;
        let completions = completions.clone();
        Ok(Self { count, completions })
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.completions.release(self.count);
    }
}

impl QueuePair {
    /// A new queue pair, open for a connection.
    ///
    /// # Errors
    /// [`VerbsError`] when a setting is out of bounds, the port is down or has no such GID, the
    /// completion queue has too few places, or the device has no room.
    pub fn new(
        domain: &ProtectionDomain,
        completions: &CompletionQueue,
        settings: QueuePairSettings,
    ) -> Result<Self, VerbsError> {
        let device = domain.device();
        if !device.is_same(completions.device()) {
            return Err(VerbsError::ForeignMemory {
                device: device.name().to_owned(),
            });
        }
        settings.check(device.limits())?;
        let port = device.active_port(settings.port)?;
        let gid = device.gid(settings.port, settings.gid)?;
        let places = Places::take(completions, settings.completion_count())?;
        let handle = Handle::new(domain, completions, &settings)?;
        let mut this = Self {
            sends: InFlight::new(settings.send_depth, handle.life, false),
            receives: InFlight::new(settings.receive_depth, handle.life, true),
            handle,
            _places: places,
            state: QueuePairState::Idle,
            settings,
            port,
            gid,
            first_packet: 0,
            chain: Chain::default(),
            counters: QueuePairCounters::default(),
        };
        this.open()?;
        Ok(this)
    }

    /// Its number, by which its completions are known. Each time it is renewed, it has another.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.handle.number()
    }

    /// What it can do now.
    #[must_use]
    pub fn state(&self) -> QueuePairState {
        self.state
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> QueuePairCounters {
        self.counters
    }

    /// How many reads, writes and sends may be posted now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.sends.room()
    }

    /// How many reads, writes and sends are under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.sends.len()
    }

    /// Longest request in bytes.
    #[must_use]
    pub fn message_len_max(&self) -> u32 {
        self.port.message_len_max
    }

    /// Longest inline send in bytes.
    #[must_use]
    pub fn inline_len_max(&self) -> u32 {
        self.handle.inline_len
    }

    /// What its peer has to know. Each time it is renewed, it has another.
    #[must_use]
    pub fn address(&self) -> QueuePairAddress {
        QueuePairAddress {
            link: self.port.link,
            mtu: self.port.mtu,
            reads_in: self.settings.reads.min(self.device().limits().reads_in_max),
            queue_pair: self.number(),
            first_packet: self.first_packet,
            lid: self.port.lid,
            gid: self.gid.gid,
        }
    }

    /// Connects it to a peer that has, or will, connect to it.
    ///
    /// # Errors
    /// [`VerbsError::WrongState`] when it is not open, [`VerbsError::LinkLayers`], or the kernel
    /// knows no way to the peer.
    pub fn connect(&mut self, peer: &QueuePairAddress) -> Result<(), VerbsError> {
        self.need("connecting", QueuePairState::Open)?;
        if peer.link != self.port.link {
            return Err(VerbsError::LinkLayers {
                device: self.device().name().to_owned(),
                ours: self.port.link,
                theirs: peer.link,
            });
        }
        let ours = self.address();
        let (mut ready, mask) =
            connect::ready_to_receive(&self.settings, &ours, peer, self.gid.index);
        self.modify("connecting", &mut ready, mask)?;
        let out_max = self.device().limits().reads_out_max;
        let (mut ready, mask) = connect::ready_to_send(&self.settings, &ours, peer, out_max)?;
        self.modify("connecting", &mut ready, mask)?;
        self.state = QueuePairState::Connected;
        Ok(())
    }

    /// Ends the connection: when this returns, the NIC serves no request of the peer any more
    /// and has left all memory; what was under way is told as flushed.
    ///
    /// # Errors
    /// The device is in trouble; only dropping the queue pair is safe then.
    pub fn disconnect(&mut self, ended: &mut Vec<Completion>) -> Result<(), VerbsError> {
        for state in [abi::QPS_ERR, abi::QPS_RESET] {
            let mut change = abi::QpAttr {
                qp_state: state,
                ..abi::QpAttr::default()
            };
            self.modify("disconnecting", &mut change, abi::QP_STATE)?;
        }
        self.handle.completions.forget(self.handle.life)?;
        self.sends.flush(ended);
        self.receives.flush(ended);
        self.state = QueuePairState::Idle;
        Ok(())
    }

    /// Opens it for another connection, with the port and the GID as they are by now. The NIC
    /// gets a new queue pair: with soft-RoCE one that was reset loses requests.
    ///
    /// # Errors
    /// [`VerbsError::WrongState`] when it was not disconnected, [`VerbsError::PortDown`] or
    /// [`VerbsError::NoGid`]; it can be tried again.
    pub fn renew(&mut self) -> Result<(), VerbsError> {
        self.need("renewing", QueuePairState::Idle)?;
        self.port = self.device().active_port(self.settings.port)?;
        self.gid = self.device().gid(self.settings.port, self.settings.gid)?;
        let Handle {
            domain,
            completions,
            ..
        } = &self.handle;
        self.handle = Handle::new(domain, completions, &self.settings)?;
        self.sends.begin(self.handle.life);
        self.receives.begin(self.handle.life);
        self.open()
    }

    /// Posts requests with one doorbell. All or none of them are taken.
    ///
    /// # Errors
    /// [`VerbsError`] when it is not connected, has no room for all, or one asks for too much;
    /// nothing was posted then. When the NIC itself refuses one, the queue pair has failed.
    pub fn post(&mut self, requests: Vec<WorkRequest<'_>>) -> Result<(), VerbsError> {
        self.need("posting", QueuePairState::Connected)?;
        if requests.is_empty() {
            return Ok(());
        }
        fits(&self.sends, requests.len())?;
        let limits = self.request_limits();
        for request in &requests {
            request.operation.check(limits)?;
            self.check_memory(request.operation.slices())?;
        }
        for (index, request) in requests.iter().enumerate() {
            let id = self.sends.id(index);
            self.chain.push(id.raw(), &request.operation);
            if let super::Operation::SendInline { message, .. } = &request.operation {
                self.counters.copied_bytes += message.len() as u64;
            }
        }
        self.counters.requests += requests.len() as u64;
        let outcome = self.ring();
        // Also when it failed: part of them may be under way.
        for request in requests {
            self.sends.push(Posted {
                token: request.token,
                kind: request.operation.kind(),
                len: request.operation.len(),
                held: request.operation.into_slices(),
            });
        }
        outcome.inspect_err(|_| self.state = QueuePairState::Failed)
    }

    /// Posts a receive: the next message goes into `into`, one slice after the other.
    ///
    /// # Errors
    /// [`VerbsError`] when it is neither open nor connected, has no room, or the receive asks for
    /// too much.
    pub fn post_receive(&mut self, token: u64, into: Vec<LocalSlice>) -> Result<(), VerbsError> {
        if self.state != QueuePairState::Open {
            self.need("posting a receive", QueuePairState::Connected)?;
        }
        fits(&self.receives, 1)?;
        let slices_max = u64::from(self.settings.slice_count_max);
        at_most("receive", "slices", into.len() as u64, slices_max)?;
        self.check_memory(&into)?;
        let mut pieces: Vec<abi::Sge> = into.iter().map(LocalSlice::raw).collect();
        let mut request = abi::RecvWr {
            wr_id: self.receives.id(0).raw(),
            next: std::ptr::null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge: pieces.len() as u32,
        };
        let mut refused = std::ptr::null_mut();
        let device = self.device();
        let unsupported = VerbsError::os("posting a receive", device.name(), libc::EOPNOTSUPP);
        let post = device.ops().post_recv.ok_or(unsupported)?;
        // SAFETY: the queue pair is there; request and pieces live through the call. The memory
        // is kept by the slices until the receive has ended.
        let code = unsafe { post(self.raw(), &raw mut request, &raw mut refused) };
        if code != 0 {
            return Err(VerbsError::os("posting a receive", device.name(), code));
        }
        self.counters.receives += 1;
        self.receives.push(Posted {
            token,
            kind: RequestKind::Receive,
            len: total(&into),
            held: into,
        });
        Ok(())
    }

    /// Takes a completion of this queue pair, and appends to `ended` which requests it ends: the
    /// one it is of, and those before it that were not signalled. One of another queue pair, or
    /// of before this one was renewed, ends nothing.
    pub fn resolve(&mut self, completion: &WorkCompletion, ended: &mut Vec<Completion>) {
        let raw = &completion.0;
        if raw.qp_num != self.number() {
            return;
        }
        let id = RequestId::from_raw(raw.wr_id);
        let status = Status::from_raw(raw.status);
        if !status.is_success() && self.state == QueuePairState::Connected {
            self.state = QueuePairState::Failed;
        }
        if !id.is_receive() {
            self.counters.completions += 1;
            self.sends.end(id, status, None, ended);
            return;
        }
        let has_immediate = raw.wc_flags & abi::WC_WITH_IMM != 0;
        let immediate = has_immediate.then(|| u32::from_be(raw.imm_data));
        let received = Some((u64::from(raw.byte_len), immediate));
        self.receives.end(id, status, received, ended);
    }

    /// Gives the NIC what the chain holds.
    fn ring(&mut self) -> Result<(), VerbsError> {
        let first = self.chain.finish();
        let mut refused = std::ptr::null_mut();
        let code = match self.device().ops().post_send {
            // SAFETY: the queue pair is there; the chain lives through the call and inline
            // messages, too. Other memory is kept by slices until the requests have ended.
            Some(post) => unsafe { post(self.raw(), first, &raw mut refused) },
            None => libc::EOPNOTSUPP,
        };
        self.chain.clear();
        self.counters.doorbells += 1;
        match code {
            0 => Ok(()),
            code => Err(VerbsError::os("posting", self.device().name(), code)),
        }
    }

    fn open(&mut self) -> Result<(), VerbsError> {
        // A number that nobody can guess, so that no packet of an earlier connection fits.
        let random = RandomState::new().hash_one(self.number());
        self.first_packet = random as u32 & NUMBER_MAX;
        let (mut init, mask) = connect::init(&self.settings);
        self.modify("opening", &mut init, mask)?;
        self.state = QueuePairState::Open;
        Ok(())
    }

    fn modify(
        &mut self,
        op: &'static str,
        change: &mut abi::QpAttr,
        mask: i32,
    ) -> Result<(), VerbsError> {
        let device = self.handle.device();
        // SAFETY: the queue pair is there, and the record lives through the call.
        let code = unsafe { (device.library().modify_qp)(self.raw(), change, mask) };
        match code {
            0 => Ok(()),
            code => Err(VerbsError::os(op, device.name(), code)),
        }
    }

    fn need(&self, op: &'static str, needed: QueuePairState) -> Result<(), VerbsError> {
        let state = self.state;
        if state == needed {
            return Ok(());
        }
        Err(VerbsError::WrongState { op, state })
    }

    fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            slice_count: self.settings.slice_count_max as usize,
            message_len: self.port.message_len_max,
            inline_len: self.handle.inline_len,
        }
    }

    fn check_memory(&self, slices: &[LocalSlice]) -> Result<(), VerbsError> {
        let domain = &self.handle.domain;
        let is_own = |slice: &LocalSlice| slice.region().domain().is_same(domain);
        if slices.iter().all(is_own) {
            return Ok(());
        }
        Err(VerbsError::ForeignMemory {
            device: self.device().name().to_owned(),
        })
    }

    fn device(&self) -> &Device {
        self.handle.device()
    }

    fn raw(&self) -> *mut abi::Qp {
        self.handle.queue_pair.as_ptr()
    }
}

fn fits(queue: &InFlight, count: usize) -> Result<(), VerbsError> {
    if count <= queue.room() {
        return Ok(());
    }
    Err(VerbsError::QueueFull {
        count,
        room: queue.room(),
        capacity: queue.capacity(),
    })
}

/// Another life of a queue pair: no two in a process have the same, for as long as completions
/// of an old one could be about.
fn next_life() -> u32 {
    static LIVES: AtomicU32 = AtomicU32::new(0);
    LIVES.fetch_add(1, Ordering::Relaxed)
}
