//! Fuzzes the footer of a segment.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_nvme::fuzzing::footer(bytes);
});
