//! Lists: stored blocks by name, in as many requests as their client likes.

use std::rc::Rc;

use terrace_engine::ListedBlock;
use terrace_wire::limits::BATCH_MAX;
use terrace_wire::{ErrorCode, Flags, ListRequest, RequestHead, Verb, reply};

use crate::connection::Connection;

/// Bytes of a reply beside its blocks.
const HEADS_LEN: usize = 24;

//= docs/wire-protocol.md#WP-23
pub(crate) async fn list(
    connection: &Rc<Connection>,
    id: u64,
    told: &RequestHead,
    list: ListRequest<'_>,
) {
    let verb = Verb::List;
    let Some(namespace) = connection.namespace(id, verb, told) else {
        return;
    };
    let ticket = connection.ticket(id, verb, told.deadline_ms);
    let most = match told.argument {
        0 => BATCH_MAX,
        most => most.min(BATCH_MAX),
    };
    let client = connection.session.borrow().client_limits();
    let mut page = Page {
        blocks: Vec::new(),
        most: most as usize,
        room: (client.body_len_max as usize).saturating_sub(HEADS_LEN),
    };
    let (owner, prefix) = (Rc::clone(connection), list.prefix.to_vec());
    // A cursor that this node never gave lists what lies behind it, or nothing.
    let mut place = u32::try_from(list.cursor).unwrap_or(u32::MAX);
    let at = ticket.clone();
    let work = async move {
        let cursor = loop {
            let (blocks, next) = match owner.shard().list(namespace, &prefix, place) {
                Ok(step) => step,
                Err(reason) => {
                    let text = format!("the shard does not list: {reason:?}");
                    return owner.refuse(id, verb.number(), ErrorCode::Internal, &text);
                }
            };
            if let Some(place) = page.take(blocks) {
                break place;
            }
            match next {
                None => break 0,
                Some(next) => place = next,
            }
            // In time is better than all: the client goes on from here.
            if at.is_over(owner.host.now()).is_some() {
                break place;
            }
            owner.shard().runtime().yield_now().await;
        };
        page.send(&owner, id, cursor);
    };
    connection.run(&ticket, Box::pin(work)).await;
}

/// The blocks of one reply.
struct Page {
    blocks: Vec<ListedBlock>,
    most: usize,
    /// Bytes that the reply may still have.
    room: usize,
}

impl Page {
    /// Adds blocks; the place of the first one that the page has no room for.
    fn take(&mut self, blocks: Vec<ListedBlock>) -> Option<u32> {
        for block in blocks {
            let len = record_len(&block);
            if self.blocks.len() >= self.most || len > self.room {
                return Some(block.place);
            }
            self.room -= len;
            self.blocks.push(block);
        }
        None
    }

    fn send(&self, connection: &Rc<Connection>, id: u64, cursor: u32) {
        let len: usize = self.blocks.iter().map(record_len).sum();
        let records = self.blocks.iter().map(|block| terrace_wire::ListedBlock {
            key: &block.key,
            tier: block.tier,
            durable: block.durable,
            len: block.len,
        });
        let head = connection.reply_head(0);
        connection.reply_long(id, 64 + len, |out| {
            reply::encode_listed(id, Flags::NONE, &head, cursor.into(), records, out)
        });
    }
}

const fn record_len(block: &ListedBlock) -> usize {
    8 + block.key.len().next_multiple_of(8)
}
