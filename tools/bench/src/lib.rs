//! The parts of `terrace-bench`: traces, payloads that can be verified, and the replay.

#![forbid(unsafe_code)]

pub mod payload;
pub mod replay;
pub mod report;
pub mod trace;
