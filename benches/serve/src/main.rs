//! `terrace-serve`: the node beside a bare hashed exchange over sockets, Mooncake's store and
//! memcached, interleaved in one run.
//!
//! ```text
//! cargo build --release -p terrace-node -p terrace-serve
//! target/release/terrace-serve [--peers] [--tls] [--rounds N] [--quick]
//! cargo build --release -p terrace-bench -p terrace-serve
//! target/release/terrace-serve --transfer [--rounds N] [--turn MS]
//! ```
//!
//! For each length of blocks every peer is filled; then, round after round, every peer in turn runs
//! every shape for a while. What counts are the ratios of medians.

#![forbid(unsafe_code)]

mod bare;
mod measure;
mod memcached;
mod mooncake;
mod node;
mod peer;
mod processes;
mod shape;
mod table;
mod transfer;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use measure::Buffers;
use peer::Peer;
use shape::{Shape, Verb};
use table::Table;

/// Memory for blocks that each peer has.
const DRAM_LEN: u64 = 1 << 30;

/// What of it the blocks that are read take, so that every peer keeps them all.
const FILLED_LEN: u64 = DRAM_LEN * 3 / 4;

/// The node beside plain sockets and its peers. Prints a table of ratios.
#[derive(Parser)]
#[command(name = "terrace-serve", version)]
struct Cli {
    /// Also run Mooncake's store and memcached. What is missing is installed to a folder under the
    /// temporary one by pip and apt-get.
    #[arg(long)]
    peers: bool,
    /// Also run a second node, whose clients come by TLS.
    #[arg(long)]
    tls: bool,
    /// Rounds; each runs every shape on every peer.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Short turns and three rounds: shows that it works, not how fast it is.
    #[arg(long)]
    quick: bool,
    /// Only shapes whose name has this text, as `get 1 MiB`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// How long a turn takes, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    turn: u64,
    /// The node's program; the one beside this program by default.
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// Only the transfer engine beside Mooncake's own benchmark of its one, over TCP. That one is
    /// installed as for --peers.
    #[arg(long)]
    transfer: bool,
    /// Serves the bare exchange; started by the command itself.
    #[arg(long, hide = true)]
    bare_source: bool,
}

fn main() -> Result<()> {
    let mut cli = Cli::parse();
    if cli.bare_source {
        return bare::serve(DRAM_LEN);
    }
    if cli.transfer {
        let program = std::env::current_exe().context("find this program")?;
        let bench = program.with_file_name("terrace-bench");
        return transfer::compare(&bench, cli.rounds, cli.turn);
    }
    if cli.quick {
        (cli.turn, cli.rounds) = (cli.turn.min(100), cli.rounds.min(3));
    }
    let shapes = shape::all(cli.peers);
    let wanted = |shape: &Shape| {
        let only = cli.only.as_deref().unwrap_or_default();
        shape.to_string().contains(only)
    };
    let shapes: Vec<_> = shapes.into_iter().filter(wanted).collect();
    anyhow::ensure!(!shapes.is_empty(), "--only names no shape");
    let mut peers = peers(&cli)?;
    let mut buffers = Buffers::new(&shapes);
    let mut table = Table::default();
    let mut lens: Vec<_> = shapes.iter().map(|shape| shape.len).collect();
    lens.sort_unstable();
    lens.dedup();
    for len in lens {
        for peer in &mut peers {
            peer.fill(len, FILLED_LEN / len as u64)
                .with_context(|| format!("fill {}", peer.name()))?;
        }
        for verb in [Verb::Get, Verb::Put] {
            let shapes = shapes.iter().filter(|s| s.len == len && s.verb == verb);
            let shapes: Vec<_> = shapes.copied().collect();
            run(&cli, &shapes, &mut peers, &mut buffers, &mut table)?;
        }
    }
    let out = &mut std::io::stdout().lock();
    writeln!(out, "{}", measure::circumstances(cli.rounds, cli.turn))?;
    table.print(out)?;
    Ok(())
}

fn peers(cli: &Cli) -> Result<Vec<Box<dyn Peer>>> {
    let mut peers: Vec<Box<dyn Peer>> = vec![
        Box::new(bare::Bare::start(DRAM_LEN)?),
        Box::new(node::Node::start(cli.node.as_deref(), DRAM_LEN, false)?),
    ];
    if cli.tls {
        let node = node::Node::start(cli.node.as_deref(), DRAM_LEN, true)?;
        peers.push(Box::new(node));
    }
    if cli.peers {
        peers.push(Box::new(mooncake::Mooncake::start(DRAM_LEN)?));
        for is_verified in [true, false] {
            peers.push(Box::new(memcached::Memcached::start(
                DRAM_LEN,
                is_verified,
            )?));
        }
    }
    Ok(peers)
}

/// All rounds of some shapes.
fn run(
    cli: &Cli,
    shapes: &[Shape],
    peers: &mut [Box<dyn Peer>],
    buffers: &mut Buffers,
    table: &mut Table,
) -> Result<()> {
    let turn = Duration::from_millis(cli.turn);
    for round in 0..cli.rounds as usize {
        for shape in shapes {
            // Who comes first changes, so that nobody always has the same one before it.
            for at in 0..peers.len() {
                let count = peers.len();
                let peer = &mut peers[(at + round) % count];
                if !peer.takes(shape) {
                    continue;
                }
                let sample = peer
                    .sample(shape, turn, buffers)
                    .with_context(|| format!("{shape} on {}", peer.name()))?;
                table.add(shape, peer.name(), sample);
            }
        }
    }
    Ok(())
}
