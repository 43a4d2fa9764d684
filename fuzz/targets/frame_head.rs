//! Fuzzes the head of a frame.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_nvme::fuzzing::frame_head(bytes);
});
