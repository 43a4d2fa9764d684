//! Fuzzes the look at what a device holds.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_nvme::fuzzing::device_content(bytes);
});
