//! Fuzzes what the two ends of the RDMA transport say to each other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_fabric::fuzzing::transfer_rdma(bytes);
});
