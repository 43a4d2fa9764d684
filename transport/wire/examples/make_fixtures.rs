//! Writes the frames of version 1 to a folder; run once, when a message is new.

#![forbid(unsafe_code)]

#[path = "../tests/wire/samples.rs"]
mod samples;

use std::error::Error;
use std::fs;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder")?;
    let folder = PathBuf::from(folder);
    for sample in samples::requests().into_iter().chain(samples::replies()) {
        fs::write(folder.join(sample.name), sample.bytes)?;
    }
    Ok(())
}
