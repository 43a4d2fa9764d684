//! Fuzzes the reader of traces.
//!
//! The reader counts a panic of a foreign decoder as damage of the file: the run goes on after those
//! and ends at any other.

#![no_main]

use std::panic;
use std::process;

libfuzzer_sys::fuzz_target!(
    init: {
        panic::set_hook(Box::new(|info| {
            let file = info.location().map_or("", |location| location.file());
            let is_foreign = ["ruzstd", "lzma-rs", "flate2", "miniz_oxide"]
                .iter()
                .any(|name| file.contains(name));
            if !is_foreign {
                eprintln!("{info}");
                process::abort();
            }
        }));
    },
    |bytes: &[u8]| {
        let _ = terrace_sim::trace::fuzzing::trace(bytes);
    }
);
