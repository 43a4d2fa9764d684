//! The parts of `terrace`: opening devices to read, what lies on them, and the report of it.

#![forbid(unsafe_code)]

pub mod content;
pub mod inspect;
pub mod open;
pub mod report;
