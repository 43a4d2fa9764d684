//! Fuzzes the node's end of a connection.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = terrace_wire::fuzzing::wire_session(bytes);
});
