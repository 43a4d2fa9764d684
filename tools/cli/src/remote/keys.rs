//! The commands about keys: exists, rm, stat, ls, prefetch, pin.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use terrace_client::{BlockFacts, Error, Listed};
use terrace_types::Lookup;

use super::said::{Row, print, say, shown};
use super::{DONE, MISSING, NodeArgs, Stop, UNAVAILABLE, code_of};

/// Pins are renewed so often: nodes end them after 10 minutes, and connections that are silent for 5,
/// unless they are told otherwise.
const RENEWAL: Duration = Duration::from_secs(30);

/// Keys of blocks.
#[derive(Args, Debug)]
pub struct KeysArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Keys of the blocks.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,
}

/// Keys of blocks, and a span.
#[derive(Args, Debug)]
pub struct SpanArgs {
    #[command(flatten)]
    keys: KeysArgs,
    /// For so many seconds.
    #[arg(long = "for", value_name = "SECONDS", default_value = "60",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: u64,
}

/// What to list.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// What the keys begin with; nothing for all.
    prefix: Option<OsString>,
}

/// What to remove.
#[derive(Args, Debug)]
pub struct RemoveArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Keys of the blocks.
    #[arg(
        required_unless_present = "all",
        conflicts_with = "all",
        value_name = "KEY"
    )]
    keys: Vec<OsString>,
    /// Remove all blocks of the namespace.
    #[arg(long)]
    all: bool,
}

impl KeysArgs {
    fn bytes(&self) -> Vec<&[u8]> {
        self.keys.iter().map(|key| key.as_bytes()).collect()
    }
}

/// The row of a key, with what `facts` has to say of a hit.
fn row<T>(
    key: &[u8],
    result: Result<Lookup<T>, Error>,
    hit: &str,
    facts: impl FnOnce(T) -> Vec<(&'static str, serde_json::Value)>,
) -> Row {
    match result {
        Ok(Lookup::Hit { value, tier }) => {
            let mut row = Row::plain(key, DONE, hit);
            row.facts.push(("tier", tier.to_string().into()));
            row.facts.extend(facts(value));
            row
        }
        Ok(Lookup::Miss) => Row::plain(key, MISSING, "missing"),
        Ok(Lookup::Unavailable(reason)) => {
            Row::plain(key, UNAVAILABLE, format!("unavailable: {reason}"))
        }
        Err(error) => Row::plain(key, code_of(&error), error.to_string()),
    }
}

fn rows(keys: &[&[u8]], results: Vec<Result<Lookup<()>, Error>>, hit: &str) -> Vec<Row> {
    let results = keys.iter().zip(results);
    results
        .map(|(key, result)| row(key, result, hit, |()| Vec::new()))
        .collect()
}

/// `terrace exists`; its exit code.
///
/// # Errors
/// What ends it early.
pub fn exists(args: &KeysArgs) -> Result<u8, Stop> {
    let node = args.node.node()?;
    let keys = args.bytes();
    let results = node.blocks.exists_batch(&keys, &node.options);
    say(&rows(&keys, results, "stored"), args.node.json)
}

/// `terrace rm`; its exit code.
///
/// # Errors
/// What ends it early.
pub fn remove(args: &RemoveArgs) -> Result<u8, Stop> {
    let node = args.node.node()?;
    if args.all {
        let count = node.blocks.remove_all(&node.options)?;
        let text = match args.node.json {
            true => format!("{}\n", json!({ "removed": count, "exit_code": DONE })),
            false => format!("{count} blocks removed\n"),
        };
        return print(text.as_bytes()).map(|()| DONE);
    }
    let keys: Vec<_> = args.keys.iter().map(|key| key.as_bytes()).collect();
    let results = node.blocks.remove_batch(&keys, &node.options);
    let mut rows = rows(&keys, results, "removed");
    // Where it was tells nothing any more.
    rows.iter_mut().for_each(|row| row.facts.clear());
    say(&rows, args.node.json)
}

/// `terrace stat`; its exit code.
///
/// # Errors
/// What ends it early.
pub fn stat(args: &KeysArgs) -> Result<u8, Stop> {
    let node = args.node.node()?;
    let keys = args.bytes();
    let results = node.blocks.stat(&keys, &node.options);
    let facts = |facts: BlockFacts| {
        vec![
            ("len", facts.len.into()),
            ("durable", facts.durable.into()),
            ("in_dram", facts.in_dram.into()),
            ("on_nvme", facts.on_nvme.into()),
            ("pinned", facts.pinned.into()),
            ("leased", facts.leased.into()),
            ("checksum", format!("{:016x}", facts.checksum.0).into()),
        ]
    };
    let rows = keys.iter().zip(results);
    let rows: Vec<_> = rows
        .map(|(key, result)| row(key, result, "stored", facts))
        .collect();
    say(&rows, args.node.json)
}

/// `terrace ls`; its exit code. Without a block it is 0, too.
///
/// # Errors
/// What ends it early.
pub fn list(args: &ListArgs) -> Result<u8, Stop> {
    let node = args.node.node()?;
    let prefix = args
        .prefix
        .as_ref()
        .map_or(&b""[..], |prefix| prefix.as_bytes());
    let mut listing = node.blocks.list(prefix, &node.options);
    let mut all = Vec::new();
    while let Some(page) = listing.next_page()? {
        let rows: Vec<_> = page.iter().map(listed).collect();
        if args.node.json {
            all.extend(rows);
        } else {
            say(&rows, false)?;
        }
    }
    if args.node.json {
        say(&all, true)?;
    }
    Ok(DONE)
}

fn listed(block: &Listed) -> Row {
    let mut row = Row::plain(&block.key, DONE, block.tier.to_string());
    row.facts.push(("len", block.len.into()));
    row.facts.push(("durable", block.durable.into()));
    row
}

/// `terrace prefetch`; its exit code.
///
/// # Errors
/// What ends it early.
pub fn prefetch(args: &SpanArgs) -> Result<u8, Stop> {
    let node = args.keys.node.node()?;
    let keys = args.keys.bytes();
    let span = Duration::from_secs(args.seconds);
    let results = node.blocks.prefetch(&keys, span, &node.options);
    say(&rows(&keys, results, "stored"), args.keys.node.json)
}

/// `terrace pin`; its exit code. Pins end with their connection, so it stays for as long as they are
/// to hold, and renews them.
///
/// # Errors
/// What ends it early.
pub fn pin(args: &SpanArgs) -> Result<u8, Stop> {
    let node = args.keys.node.node()?;
    let keys = args.keys.bytes();
    let span = Duration::from_secs(args.seconds);
    let results = node.blocks.pin(&keys, span, &node.options);
    let rows = rows(&keys, results, "pinned");
    let code = say(&rows, args.keys.node.json)?;
    let pinned = keys.iter().zip(&rows);
    let pinned = pinned.filter_map(|(key, row)| (row.code == DONE).then_some(*key));
    let held = hold(pinned.collect(), span, RENEWAL, |keys, left| {
        node.blocks.pin(keys, left, &node.options)
    });
    held.map(|()| code).map_err(|stop| Stop {
        code: stop.code.max(code),
        ..stop
    })
}

/// Stays for `span` and pins `keys` again each `renewal` for what is left of it. One that cannot be
/// pinned any more is given up; the others are held to the end, and then the first such is told.
fn hold(
    mut keys: Vec<&[u8]>,
    span: Duration,
    renewal: Duration,
    pin: impl Fn(&[&[u8]], Duration) -> Vec<Result<Lookup<()>, Error>>,
) -> Result<(), Stop> {
    let mut lost = None;
    let mut left = span;
    while !left.is_zero() && !keys.is_empty() {
        let step = left.min(renewal);
        async_io::block_on(async_io::Timer::after(step));
        left -= step;
        if left.is_zero() {
            break;
        }
        let rows = rows(&keys, pin(&keys, left), "pinned");
        let (held, ended): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.code == DONE);
        lost = lost.or(ended.into_iter().next());
        keys.retain(|key| held.iter().any(|row| row.key == *key));
    }
    match lost {
        None => Ok(()),
        Some(Row {
            key, code, status, ..
        }) => {
            let line = format!("key `{}`: pinned no longer: {status}", shown(&key));
            Err(Stop { code, line })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use terrace_types::Tier;

    use super::*;

    #[test]
    fn pins_are_renewed_for_what_is_left_and_a_lost_one_is_told() {
        let of = Duration::from_millis;
        let asked = RefCell::new(Vec::new());
        let pin = |keys: &[&[u8]], left| {
            let place = asked.borrow().len();
            asked.borrow_mut().push((keys.len(), left));
            let tier = Tier::Dram;
            let hit = Lookup::Hit { value: (), tier };
            let answer = |key: &&[u8]| match (place, *key) {
                (1, b"b") => Lookup::Miss,
                _ => hit,
            };
            keys.iter().map(|key| Ok(answer(key))).collect()
        };
        let stop = hold(vec![b"a", b"b"], of(7), of(2), pin).unwrap_err();
        assert_eq!(*asked.borrow(), [(2, of(5)), (2, of(3)), (1, of(1))]);
        assert_eq!(stop.code, MISSING);
        assert_eq!(stop.line, "key `b`: pinned no longer: missing");
    }
}
