//! Fuzzes a peer's list of its regions.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_fabric::fuzzing::transfer_regions(bytes);
});
