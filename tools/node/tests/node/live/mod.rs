//! A node and what may befall it: kill -9, a stop, strange clients, many clients, a link that is down.
//!
//! In CI each is short and counts; by hand `TERRACE_KILLS`, `TERRACE_OUTAGE_SECONDS`,
//! `TERRACE_FUZZ_SECONDS` and `TERRACE_IDLE_CONNECTIONS` make it as long as it takes. What was
//! measured is printed.

mod crowd;
mod hostile;
mod killed;
mod link;
mod process;
mod stopped;
