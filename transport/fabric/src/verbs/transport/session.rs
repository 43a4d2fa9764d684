//! The queue pairs that this end lends to one peer that opened it.

use std::collections::HashMap;
use std::sync::Arc;

use super::questions::{Connected, NicAddress, Question};
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
    queue_pairs: HashMap<u32, QueuePair>,
    last_name: u32,
}

impl RdmaSession {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            queue_pairs: HashMap::new(),
            last_name: 0,
        }
    }

    fn connect(
        &mut self,
        nic: u8,
        replaces: u32,
        peer: &QueuePairAddress,
    ) -> Result<Connected, TransferError> {
        // Its end of the connection has gone: nothing of it is of use.
        self.queue_pairs.remove(&replaces);
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
        self.last_name = self.last_name.wrapping_add(1).max(1);
        let name = self.last_name;
        self.queue_pairs.insert(name, queue_pair);
        Ok(Connected { name, address })
    }

    /// Takes a queue pair from the peer. When this returns, the NIC does nothing more for it.
    fn fence(&mut self, name: u32) {
        // One that is not there any more was taken before. Dropping it takes it from the NIC.
        self.queue_pairs.remove(&name);
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
            Some(Question::Connect {
                nic,
                replaces,
                address,
            }) => {
                let connected = self.connect(nic, replaces, &address);
                Ok(connected
                    .inspect_err(|error| tracing::warn!(%error, "a peer gets no queue pair"))?
                    .encode())
            }
            Some(Question::Fence { name }) => {
                self.fence(name);
                Ok(Vec::new())
            }
            None => Err(wrong("a question about RDMA cannot be read")),
        }
    }
}
