//! Tests of the codec through its public API.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod golden;
mod messages;
mod samples;
