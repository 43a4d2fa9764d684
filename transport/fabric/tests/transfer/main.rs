//! Aim: what is moved between two engines arrives whole where it belongs and nowhere else, and what
//! cannot be is refused by name. Method: two engines of one process over loopback, every byte
//! compared, every wrong request checked for its status.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod admission;
mod cancel;
mod fake;
mod kinds;
mod links;
mod moves;
mod pair;
mod shared;
mod wrong;
