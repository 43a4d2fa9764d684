//! The command `events`: what happens to blocks, line by line.

use clap::Args;
use serde_json::json;
use terrace_client::{Event, EventKind};

use super::said::{hex, print_more, shown};
use super::{DONE, NodeArgs, Stop};

/// What to tell of.
#[derive(Args, Debug)]
pub struct EventsArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Only events of this kind: stored, evicted, removed, demoted, promoted or undurable. May be given
    /// several times.
    #[arg(long = "kind", value_name = "KIND", value_parser = kind)]
    kinds: Vec<EventKind>,
    /// End after so many events.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

fn kind(text: &str) -> Result<EventKind, String> {
    let known = EventKind::ALL.into_iter().find(|kind| kind.name() == text);
    known.ok_or_else(|| {
        let names = EventKind::ALL.map(EventKind::name).join(", ");
        format!("allowed is one of {names}")
    })
}

/// `terrace events`; its exit code. It ends after --count events, or when nobody reads it.
///
/// # Errors
/// What ends it early, as the end of a connection: what happens meanwhile would not be told.
pub fn run(args: &EventsArgs) -> Result<u8, Stop> {
    let node = args.node.node()?;
    let kinds = match &args.kinds[..] {
        [] => &EventKind::ALL[..],
        kinds => kinds,
    };
    let mut events = node.blocks.events(kinds, &node.options)?;
    let mut left = args.count.unwrap_or(u64::MAX);
    // Events lost so far, by shard.
    let mut lost = Vec::new();
    while left > 0 {
        let batch = events.next_batch()?;
        let shard = batch.shard as usize;
        lost.resize(lost.len().max(shard + 1), 0);
        let more = batch.lost - lost[shard].min(batch.lost);
        lost[shard] = batch.lost;
        let mut text = String::new();
        if more > 0 {
            match args.node.json {
                true => text.push_str(&format!("{}\n", json!({ "shard": shard, "lost": more }))),
                false => eprintln!("terrace: shard {shard}: {more} events were lost"),
            }
        }
        for event in &batch.events {
            if left == 0 {
                break;
            }
            left -= 1;
            text.push_str(&told(batch.shard, event, args.node.json));
        }
        if !print_more(text.as_bytes())? {
            break;
        }
    }
    Ok(DONE)
}

fn told(shard: u32, event: &Event, is_json: bool) -> String {
    let (sequence, kind) = (event.sequence, event.kind.name());
    if is_json {
        let object = json!({
            "shard": shard,
            "sequence": sequence,
            "kind": kind,
            "key": shown(&event.key),
            "key_hex": hex(&event.key),
        });
        return format!("{object}\n");
    }
    format!("{shard}\t{sequence}\t{kind}\t{}\n", shown(&event.key))
}
