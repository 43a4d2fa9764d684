//! Fuzzes a frame of the wire protocol.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_wire::fuzzing::wire_frame(bytes);
});
