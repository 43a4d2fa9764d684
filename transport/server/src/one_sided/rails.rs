//! The verb by which a client gets rails.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use terrace_fabric::thread::on_thread;
use terrace_fabric::transfer;
use terrace_wire::{
    Endpoint, ErrorCode, RailsTerms, RailsWanted, Reach, Transport, rails as codec,
};

use super::OneSidedReach;
use super::client::{Client, Grant, Rails};
use crate::connection::{Connection, Ticket};

/// Longest frame of rails: a head, a body, and the longest addresses.
const FRAME_LEN: usize = 32 + 56 + 16 * (8 + 48);

/// Gives a client rails, or tells why there are none.
//= docs/wire-protocol.md#WP-28
pub(crate) async fn rails(connection: &Rc<Connection>, ticket: Ticket, wanted: &RailsWanted<'_>) {
    let Some(one_sided) = connection.host.shared.one_sided.clone() else {
        let text = "the node has no rails";
        return connection.refuse(ticket.id, ticket.verb.number(), ErrorCode::NoRails, text);
    };
    let source = match Source::of(connection.peer.ip(), wanted) {
        Ok(source) => source,
        Err(text) => {
            let verb = ticket.verb.number();
            return connection.refuse(ticket.id, verb, ErrorCode::NoRails, &text);
        }
    };
    let owner = Rc::clone(connection);
    let at = ticket.clone();
    let work = async move {
        let client = one_sided.client(owner.client_id.get());
        let granted = granted(Arc::clone(&client), source);
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
async fn granted(client: Arc<Client>, source: Option<Source>) -> Result<Arc<Grant>, String> {
    let work = move || {
        let opened = source.map(|source| client.open(&source.addresses, source.ticket));
        if let Some(Err(error)) = opened {
            // Its puts come over its connections, then.
            tracing::warn!(%error, "values of a client cannot be read from it");
        }
        client.grant()
    };
    let granted = on_thread("terrace-rails", work).await;
    let granted = granted.map_err(|error| error.to_string())?;
    granted.map_err(|error| error.to_string())
}

/// Where values of a client's puts are.
struct Source {
    addresses: Vec<SocketAddr>,
    ticket: transfer::Ticket,
}

impl Source {
    /// Where a client says that its engine listens; `None` when the node is to open nothing. A
    /// node connects to no other host than the client's.
    fn of(peer: IpAddr, wanted: &RailsWanted<'_>) -> Result<Option<Self>, String> {
        let mut addresses = Vec::new();
        for endpoint in wanted.endpoints {
            let host = match endpoint.host {
                "" => peer,
                host => host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            };
            if host.to_canonical() != peer.to_canonical() {
                let host = endpoint.host;
                return Err(format!(
                    "the client's engine is at {host:?}: it has to be at {peer}, where the client is"
                ));
            }
            addresses.push(SocketAddr::new(peer, endpoint.port));
        }
        let ticket = transfer::Ticket::from_bytes(wanted.ticket);
        Ok((!addresses.is_empty()).then_some(Self { addresses, ticket }))
    }
}

fn answer(connection: &Connection, id: u64, rails: Rails, reach: OneSidedReach) {
    let Some(region) = rails.grant.region(connection.shard().number()) else {
        let text = "the shard has no memory for rails";
        let verb = terrace_wire::Verb::Rails.number();
        return connection.refuse(id, verb, ErrorCode::NoRails, text);
    };
    let engine = rails.grant.engine();
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
