//! Fuzzes the checkpoint of a shard.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_engine::fuzzing::checkpoint(bytes);
});
