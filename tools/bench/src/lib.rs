//! The parts of `terrace-bench`: payloads that can be verified, the replay, simulations, and what
//! the layers below the engine do by themselves.

#![forbid(unsafe_code)]

pub mod burst;
pub mod chain;
pub mod pace;
pub mod payload;
pub mod raw;
pub mod recover;
pub mod remote;
pub mod replay;
pub mod report;
pub mod sim;
pub mod soak;
pub mod transfer;
