//! Tests of the codec through its public API.

#![forbid(unsafe_code)]

mod damage;
mod golden;
mod messages;
mod samples;
