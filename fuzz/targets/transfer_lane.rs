//! Fuzzes groups of slices and their answers.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_fabric::fuzzing::transfer_lane(bytes);
});
