//! Serves an engine to other processes, docs/wire-protocol.md: a session for each connection, on
//! the thread of the shard that the connection is for.
//!
//! One thread accepts. A shard reads the hello, and passes the connection on when it is for another
//! one. From there on nothing leaves the thread: a get goes from the slot to the socket, a put from
//! the socket into its slot, hashed as it comes.
//!
//! What a client can make a node keep is bounded: requests by credit, bytes that wait for it by a
//! window, slots by its streamed puts; a watch ends what is silent, stalled or does not read.

#![deny(unsafe_code)]

mod accept;
mod config;
mod connection;
mod dispatch;
mod events;
mod get;
mod host;
mod latency;
mod leases;
mod list;
mod locate;
mod namespaces;
mod one_sided;
mod outbox;
mod pins;
mod put;
mod session;
mod slow;
mod socket;
mod stats;
mod stream;
mod trace;
mod values;

pub use accept::{DrainReport, Observer, Server, ServerError};
pub use config::ServerConfig;
pub use latency::{EDGES, EDGES_NS, Histogram, Hop, Latencies};
pub use one_sided::{OneSidedConfig, OneSidedError, OneSidedReach};
pub use slow::{SLOW_MAX, SlowRequest};
pub use stats::{ServerCounters, ServerReport};
pub use terrace_fabric::tls;
