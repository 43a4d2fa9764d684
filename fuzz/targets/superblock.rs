//! Fuzzes a copy of a superblock.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_nvme::fuzzing::superblock(bytes);
});
