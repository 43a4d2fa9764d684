//! What the fuzz targets of this crate call: whatever a transfer engine decodes of what a peer sends.
//!
//! Aim: no bytes make a decoder panic; what is decoded keeps the protocol's limits and is the same
//! after it was encoded again. Each function tells whether it accepted anything; a test replays
//! `fuzz/corpus` through the same functions.

pub use crate::transfer::fuzzing::{transfer_hello, transfer_lane, transfer_regions};
pub use crate::verbs::transport::fuzzing::transfer_rdma;

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora_replayed_are_accepted_and_refused() {
        replay::all(&[
            ("transfer_hello", transfer_hello),
            ("transfer_lane", transfer_lane),
            ("transfer_rdma", transfer_rdma),
            ("transfer_regions", transfer_regions),
        ]);
    }
}
