//! Aim: whatever a node does, a call ends with an outcome or an error that says why, within its
//! deadline, and bytes that fail their checksum are never handed out. Method: a small node with
//! switches for what may go wrong, over real sockets; no test waits by the clock alone.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod faults;
mod node;
mod one_sided;
mod rails;
mod store;
mod verbs;
