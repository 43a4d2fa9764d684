//! What other programs link to reach a node.

#![forbid(unsafe_code)]

mod client;
mod config;
mod connection;
mod error;
mod fan_out;
mod get;
mod keys;
mod pool;
mod put;
mod time;

pub use client::{CallOptions, Client, Namespace};
pub use config::ClientConfig;
pub use error::{Cause, Error};
pub use get::{Part, Target};
pub use keys::BlockFacts;
pub use pool::ClientStats;
pub use put::PutItem;
