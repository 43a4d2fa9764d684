//! What other programs link to reach a node: connections, routing, deadlines, verification. No engine
//! inside.
//!
//! A [`Client`] learns which shards a node has and keeps connections to each; a [`Namespace`] of it
//! has the calls about blocks. They run under any executor, as they bring their own reactor, and may
//! be shared by any number of threads and tasks. [`blocking`] has the same for code without one.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use terrace_client::{CallOptions, Client, ClientConfig};
//! use terrace_types::Lookup;
//!
//! # async fn example() -> Result<(), terrace_client::Error> {
//! let client = Client::connect(ClientConfig::new("127.0.0.1:7440")).await?;
//! let blocks = client.namespace("llama-70b/bf16/tp8-0/256")?;
//! let options = CallOptions::within(Duration::from_millis(500));
//!
//! blocks.put(b"block 1", &[7; 65536], &options).await?;
//! let mut memory = vec![0; 65536];
//! match blocks.get_into(b"block 1", &mut memory, &options).await? {
//!     Lookup::Hit { value: part, .. } => println!("{} bytes are there", part.len),
//!     Lookup::Miss => println!("compute it again"),
//!     Lookup::Unavailable(reason) => println!("compute it again: {reason}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **What holds**
//! - Every call ends by its deadline, whatever the node and the network do.
//! - A block that is missing, and a put that the node declined, are outcomes. [`Error`] is for calls
//!   that have no answer; it names the address and the key, and its [`Cause`] what to make of it.
//! - Bytes are compared with the checksum that was made at the put, while they arrive. Others are
//!   never handed out.
//! - Values go from the caller's memory to the socket and from the socket to the caller's memory. A
//!   call that is dropped is cancelled, and nothing touches its memory any more.
//! - With [`TlsOptions`] nothing is sent before the node showed a certificate of a CA that they name,
//!   for the host of the address.
//! - With [`OneSided`] access blocks go between memory of this program and the node's by a transfer
//!   engine at each end: over RDMA without the node's processor, else over rails of TCP. Whatever it
//!   cannot do goes over the connections. A read that was given up is cut off from its region before
//!   the region is given back, not before the call returns.
//! - Calls that only read are tried again when a connection breaks. A put or a removal is tried again
//!   only when it was not carried out.

#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod config;
mod connection;
mod error;
mod events;
mod fan_out;
mod flags;
mod get;
mod keys;
mod lease;
mod locate;
mod one_sided;
mod pool;
mod prefix;
mod put;
mod region;
mod shards;
mod stream;
mod time;
mod tls;
mod wait;

pub use client::{CallOptions, Client, Namespace};
pub use config::ClientConfig;
pub use error::{Cause, Error};
pub use events::{Event, EventBatch, Events};
pub use flags::{FileError, RdmaFlags, TlsFiles, read_token};
pub use get::{Part, Target};
pub use keys::BlockFacts;
pub use lease::{Lease, Leased};
pub use locate::{Located, Place};
pub use one_sided::{OneSided, OneSidedOptions};
pub use pool::ClientStats;
pub use prefix::Announced;
pub use put::PutItem;
pub use region::Region;
pub use shards::{Listed, Listing, ShardPong};
pub use stream::{PutStart, PutStream};
pub use terrace_fabric::tls::TlsFault;
pub use terrace_fabric::transfer::RailReport;
pub use terrace_fabric::transfer::chooser::RailState;
pub use terrace_slab::RegisteredRegion;
pub use terrace_wire::EventKind;
pub use tls::TlsOptions;
