//! Fuzzes the head of a segment.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_nvme::fuzzing::segment_head(bytes);
});
