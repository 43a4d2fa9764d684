//! The queue pairs that this end lends to one peer that opened it.

use std::collections::HashMap;
use std::sync::Arc;

use super::questions::{NicAddress, Question};
use super::{Shared, refused};
use crate::transfer::limits::RAIL_COUNT_MAX;
use crate::transfer::{Session, TransferError};
use crate::verbs::address::QueuePairAddress;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::region::Access;

/// The queue pairs of one peer. They only serve; nothing is posted on them.
pub(super) struct RdmaSession {
    shared: Arc<Shared>,
    /// By the rails that they are for.
    queue_pairs: HashMap<u32, QueuePair>,
}

impl RdmaSession {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            queue_pairs: HashMap::new(),
        }
    }

    fn connect(
        &mut self,
        nic: u8,
        rail: u32,
        peer: &QueuePairAddress,
    ) -> Result<QueuePairAddress, TransferError> {
        // The peer's end of an earlier one has gone.
        self.fence(rail);
        let Some(nic) = self.shared.nics.get(usize::from(nic)) else {
            return Err(wrong("it asks for an RDMA port that is not there"));
        };
        if self.queue_pairs.len() >= RAIL_COUNT_MAX {
            return Err(wrong("it asks for more queue pairs than rails"));
        }
        let settings = self.shared.settings(nic, 1, Access::RemoteReadWrite);
        let open = || {
            let completions = CompletionQueue::new(&nic.device, settings.completion_count())?;
            let mut queue_pair = QueuePair::new(&nic.domain, &completions, settings)?;
            queue_pair.connect(peer)?;
            Ok(queue_pair)
        };
        let queue_pair = open().map_err(|error| refused(&error))?;
        let address = queue_pair.address();
        self.queue_pairs.insert(rail, queue_pair);
        Ok(address)
    }

    /// Takes a rail's queue pair from the peer, if it has one. When this returns, the NIC does
    /// nothing more for it.
    fn fence(&mut self, rail: u32) {
        self.queue_pairs.remove(&rail);
    }
}

fn wrong(what: &'static str) -> TransferError {
    TransferError::Protocol {
        peer: "a peer".to_owned(),
        what,
    }
}

impl Session for RdmaSession {
    fn answer(&mut self, question: &[u8]) -> Result<Vec<u8>, TransferError> {
        match Question::decode(question) {
            Some(Question::List) => Ok(NicAddress::encode_list(&self.shared.addresses())),
            Some(Question::Connect { nic, rail, address }) => {
                let connected = self.connect(nic, rail, &address);
                Ok(connected
                    .inspect_err(|error| tracing::warn!(%error, "a peer gets no queue pair"))?
                    .encode()
                    .to_vec())
            }
            Some(Question::Fence { rail }) => {
                self.fence(rail);
                Ok(Vec::new())
            }
            None => Err(wrong("a question about RDMA cannot be read")),
        }
    }
}
