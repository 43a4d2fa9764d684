//! The parts of `terrace`: calls of a node; opening devices to read, what lies on them, and the report
//! of it.

#![forbid(unsafe_code)]

pub mod content;
pub mod inspect;
pub mod open;
pub mod remote;
pub mod report;
pub mod top;
