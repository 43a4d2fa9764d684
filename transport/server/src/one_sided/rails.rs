//! The verb by which a client gets rails.

use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use terrace_wire::{Endpoint, ErrorCode, RailsTerms, Reach, Transport, rails as codec};

use super::client::{Client, Grant, Rails};
use super::{OneSidedError, OneSidedReach};
use crate::connection::{Connection, Ticket};

/// Longest frame of rails: a head, a body, and the longest addresses.
const FRAME_LEN: usize = 32 + 56 + 16 * (8 + 48);

/// Gives a client rails, or tells why there are none.
//= docs/wire-protocol.md#WP-28
pub(crate) async fn rails(connection: &Rc<Connection>, ticket: Ticket) {
    let Some(one_sided) = connection.host.shared.one_sided.clone() else {
        let text = "the node has no rails";
        return connection.refuse(ticket.id, ticket.verb.number(), ErrorCode::NoRails, text);
    };
    let owner = Rc::clone(connection);
    let at = ticket.clone();
    let work = async move {
        let client = one_sided.client(owner.client_id.get());
        let granted = granted(Arc::clone(&client));
        let granted = at.before_deadline(owner.shard().runtime(), granted).await;
        let refuse = |text: &str| owner.refuse(at.id, at.verb.number(), ErrorCode::NoRails, text);
        match granted {
            None => refuse("the node did not get the memory in time"),
            Some(Err(text)) => refuse(&text),
            Some(Ok(grant)) => answer(
                &owner,
                at.id,
                Rails { client, grant },
                one_sided.config.reach,
            ),
        }
    };
    connection.run(&ticket, Box::pin(work)).await;
}

/// What the client has or gets, found on a thread of its own, as memory is registered there.
async fn granted(client: Arc<Client>) -> Result<Arc<Grant>, String> {
    let (sender, receiver) = oneshot::channel();
    let spawned = std::thread::Builder::new()
        .name("terrace-rails".to_owned())
        // Whoever asked may be gone.
        .spawn(move || drop(sender.send(client.grant())));
    if let Err(error) = spawned {
        return Err(format!("start a thread: {error}"));
    }
    match receiver.await {
        Ok(granted) => granted.map_err(|error: OneSidedError| error.to_string()),
        Err(_) => Err("the node failed to make rails".to_owned()),
    }
}

fn answer(connection: &Connection, id: u64, rails: Rails, reach: OneSidedReach) {
    let (engine, region) = (
        rails.grant.engine(),
        rails.grant.region(connection.shard().number()),
    );
    let (Some(engine), Some(region)) = (engine, region) else {
        let text = "the shard has no memory for rails";
        return connection.refuse(
            id,
            terrace_wire::Verb::Rails.number(),
            ErrorCode::NoRails,
            text,
        );
    };
    let hosts: Vec<(String, u16)> = engine
        .addresses()
        .iter()
        .map(|address| match address.ip() {
            // The host that the client knows.
            host if host.is_unspecified() => (String::new(), address.port()),
            host => (host.to_string(), address.port()),
        })
        .collect();
    let endpoints = hosts.iter().zip(0..).map(|((host, port), rail)| Endpoint {
        shard: None,
        port: *port,
        rail,
        transport: Transport::Tcp,
        host,
    });
    let terms = RailsTerms {
        ticket: rails.grant.ticket.bytes(),
        slot: region.id().slot,
        epoch: region.id().epoch,
        reach: match reach {
            OneSidedReach::Arena => Reach::Arena,
            OneSidedReach::Staged { .. } => Reach::Staged,
        },
        len: region.len(),
    };
    connection.reply_long(id, FRAME_LEN, |out| {
        codec::encode(id, &terms, endpoints, out)
    });
    connection.rails.replace(Some(rails));
}
