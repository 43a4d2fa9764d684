//! Fuzzes the first bytes of a connection between transfer engines.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_fabric::fuzzing::transfer_hello(bytes);
});
