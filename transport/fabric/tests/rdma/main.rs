//! RDMA on a real device, or on soft-RoCE in the virtual machines of `cargo xtask rdma`: bytes
//! that are read, written and sent arrive, and what goes wrong has a name and an end.
//!
//! Without a device each test says that it was skipped. The tests of [`pair`] need two machines,
//! which run the same tests at the same time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bounds;
mod engine;
mod faults;
mod fixture;
mod loopback;
mod pair;
