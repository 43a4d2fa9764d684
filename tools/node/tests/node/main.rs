//! Nodes as processes of their own: what they say, serve and show, and what may befall them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

mod certificates;
mod client;
mod life;
mod live;
mod observe;
mod one_sided;
#[path = "../../../../transport/server/tests/plain/mod.rs"]
mod plain;
mod settings;
mod started;
mod stream;
mod tls;
