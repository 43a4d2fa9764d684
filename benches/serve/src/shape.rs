//! What is measured: verb, lengths, entries of a batch, threads.

use std::fmt;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Get,
    Put,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) verb: Verb,
    /// Bytes of a block.
    pub(crate) len: usize,
    /// Blocks of a call.
    pub(crate) batch: usize,
    /// Threads that call, each with a connection of its own.
    pub(crate) threads: usize,
    /// Whether it is there for memcached, which has no batches of these.
    pub(crate) is_single: bool,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All shapes; those that are there for memcached only with `peers`.
pub(crate) fn all(peers: bool) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for verb in [Verb::Get, Verb::Put] {
        for (len, batch) in [(64 * KIB, 1), (MIB, 1), (64 * KIB, 16), (4 * MIB, 16)] {
            for threads in [1, 8] {
                let is_single = batch == 1 && threads == 1;
                shapes.push(Shape {
                    verb,
                    len,
                    batch,
                    threads,
                    is_single,
                });
            }
        }
        for len in [64 * KIB, 256 * KIB, MIB] {
            for threads in [1, 2] {
                shapes.push(Shape {
                    verb,
                    len,
                    batch: 1,
                    threads,
                    is_single: true,
                });
            }
        }
    }
    shapes.sort_unstable();
    shapes.dedup();
    shapes.retain(|shape| peers || !(shape.threads == 2 || shape.len == 256 * KIB));
    shapes
}

impl Shape {
    /// Bytes of a call.
    pub(crate) const fn call_len(&self) -> usize {
        self.len * self.batch
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Get => "get",
            Verb::Put => "put",
        };
        write!(f, "{verb} ")?;
        if self.batch > 1 {
            write!(f, "{} x ", self.batch)?;
        }
        match self.len {
            len if len >= MIB => write!(f, "{} MiB", len / MIB)?,
            len => write!(f, "{} KiB", len / KIB)?,
        }
        let plural = if self.threads == 1 { "" } else { "s" };
        write!(f, ", {} thread{plural}", self.threads)
    }
}
