//! A rail over TCP: two lanes to one address of a peer.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::lane::Lane;
use super::{UNKNOWN_TOKEN, connect};
use crate::transfer::error::{RailError, Status};
use crate::transfer::topology::interface_of;
use crate::transfer::transport::{
    Ask, Ended, Interest, Rail, RailLink, Slice, SliceId, TransportKind,
};
use crate::transfer::wire::{Purpose, Token};

/// What the opener asks of the other end's TCP transport.
pub(in crate::transfer) mod question {
    /// The token by which lanes name their peer.
    pub(in crate::transfer) const TOKEN: u8 = 1;
    /// That the lanes of a rail, whose number follows in 4 bytes, touch nothing any more.
    pub(in crate::transfer) const FENCE: u8 = 2;
}

/// Two connections to one address.
pub(in crate::transfer) struct TcpRail {
    link: RailLink,
    address: SocketAddr,
    number: u32,
    timeout: Duration,
    /// First the one for bulk, then the one for what is urgent. None: the rail is down.
    lanes: Vec<Lane>,
    /// What ended without the peer since the last poll.
    cancelled: Vec<Ended>,
}

impl TcpRail {
    /// A rail that is still down.
    pub(in crate::transfer) fn new(address: SocketAddr, number: u32, timeout: Duration) -> Self {
        let link = RailLink {
            name: format!("tcp {address}"),
            kind: TransportKind::Tcp,
            device: None,
            bandwidth: None,
        };
        Self {
            link,
            address,
            number,
            timeout,
            lanes: Vec::new(),
            cancelled: Vec::new(),
        }
    }

    /// Connects both lanes.
    pub(in crate::transfer) fn connect(&mut self, token: Token) -> Result<(), RailError> {
        self.quiesce();
        let mut lanes = Vec::new();
        for is_urgent in [false, true] {
            let purpose = Purpose::Lane {
                rail: self.number,
                is_urgent,
            };
            let (stream, _) = connect(self.address, purpose, token, self.timeout)?;
            if let Ok(own) = stream.local_addr() {
                self.link.device = interface_of(own.ip());
            }
            lanes.push(Lane::new(stream).map_err(RailError::os("prepare a lane"))?);
        }
        self.lanes = lanes;
        Ok(())
    }
}

impl Rail for TcpRail {
    fn link(&self) -> &RailLink {
        &self.link
    }

    fn post(&mut self, slices: &mut VecDeque<Slice>) -> Result<(), RailError> {
        let [bulk, urgent] = &mut self.lanes[..] else {
            return Err(RailError::Closed);
        };
        // Memory of a device is no memory to the kernel.
        slices.retain(|slice| {
            let is_host = slice.local.memory().is_host();
            if !is_host {
                let status = Status::AccessDenied;
                self.cancelled.push(Ended {
                    id: slice.id,
                    status,
                });
            }
            is_host
        });
        let split = slices.iter().take_while(|slice| slice.is_urgent).count();
        urgent.post(slices.drain(..split))?;
        bulk.post(slices.drain(..))
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> Result<(), RailError> {
        ended.append(&mut self.cancelled);
        if self.lanes.is_empty() {
            return Err(RailError::Closed);
        }
        for lane in self.lanes.iter_mut().rev() {
            lane.send()?;
            lane.receive(ended)?;
        }
        Ok(())
    }

    fn arm(&mut self, interests: &mut Vec<Interest>) -> Result<bool, RailError> {
        if self.lanes.is_empty() || self.lanes.iter().any(Lane::is_closed) {
            return Err(RailError::Closed);
        }
        interests.extend(self.lanes.iter().map(Lane::interest));
        Ok(self.cancelled.is_empty())
    }

    fn cancel(&mut self, id: SliceId) {
        for lane in &mut self.lanes {
            if lane.cancel(id, &mut self.cancelled) {
                return;
            }
        }
    }

    fn quiesce(&mut self) {
        self.lanes.clear();
        self.cancelled.clear();
    }

    fn fence(&self) -> Option<Vec<u8>> {
        let mut question = vec![question::FENCE];
        question.extend(self.number.to_le_bytes());
        Some(question)
    }

    fn revive(&mut self, peer: &mut dyn Ask) -> Result<(), RailError> {
        let answer = peer.ask(&[question::TOKEN])?;
        let token = answer
            .try_into()
            .map_err(|_| RailError::Refused(UNKNOWN_TOKEN))?;
        self.connect(token)
    }
}
