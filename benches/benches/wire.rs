//! A get on the wire, both ends of it, but for sockets and values.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use terrace_benches::{median, wire};

fn main() {
    println!("{:>6} {:>10} {:>12}", "keys", "ns a get", "hash");
    for (keys, count) in [(1, 500_000), (16, 100_000), (128, 20_000), (1024, 2000)] {
        let result = median(7, || wire::gets(keys, count).expect("nothing is refused"));
        println!("{keys:>6} {:>10.0} {:>12x}", result.ns, result.hash);
    }
}
