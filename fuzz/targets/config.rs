//! Fuzzes the check of a config.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_engine::fuzzing::config(bytes);
});
