//! Fuzzes a length in bytes as a person types it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_types::fuzzing::byte_len(bytes);
});
