//! Cost of giving a slot back and taking another, at several block lengths.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use terrace_benches::{median, slab_churn};

fn main() {
    println!("{:>10} {:>14}", "length", "give+take ns");
    for len in [4096, 65_536, 1_124_352, 5 << 20] {
        let result = median(5, || {
            slab_churn(512, len, 2_000_000).expect("an arena of 512 MiB")
        });
        println!("{len:>10} {:>14.1}", result.ns);
    }
}
