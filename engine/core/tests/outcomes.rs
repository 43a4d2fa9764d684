//! Aim: every error and outcome that a caller can be given is real: a test produces it.
//! Method: the variants are read out of the sources of the engine and its tiers, and a table names
//! for each the test that produces it; a variant without a row, a row without a variant, and a
//! test that is not there fail. What no other test produces is produced here, in child processes
//! where it takes a limit of the process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

mod files;
#[path = "outcomes/limits.rs"]
mod limits;
#[path = "outcomes/table.rs"]
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use files::{CLOSE, Scratch, config, look, put, served};
use table::PRODUCED;
use terrace_engine::policy::{self, BlockIx, Lru, Policy, PolicyBytes, PolicyConfig};
use terrace_engine::{
    Access, Durability, Engine, EngineConfig, Error, PutOutcome, RejectReason, Use, block_on,
};

/// Enums that are outcomes and not errors.
const OUTCOMES: [&str; 6] = [
    "EventKind",
    "Health",
    "Lookup",
    "PutOutcome",
    "RejectReason",
    "UnavailableReason",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust sources below a folder: path from the root, and text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let short = path.strip_prefix(root()).unwrap();
                found.push((short.to_str().unwrap().to_owned(), text));
            }
        }
    }
    found
}

fn all_sources() -> Vec<(String, String)> {
    ["engine", "tiers"].into_iter().flat_map(sources).collect()
}

fn word(text: &str) -> &str {
    let end = text.find(|char: char| !char.is_alphanumeric() && char != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The variants of the public enums of a file that are errors or outcomes, as `Enum::Variant`.
/// rustfmt lays them out: a variant stands four columns in, and the enum ends at the margin.
fn variants(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("pub enum ") {
            let name = word(rest);
            let counts = name.ends_with("Error") || OUTCOMES.contains(&name);
            inside = counts.then_some(name);
        } else if line == "}" {
            inside = None;
        }
        let variant = line.strip_prefix("    ").map_or("", word);
        if let Some(name) = inside
            && variant.starts_with(|char: char| char.is_ascii_uppercase())
        {
            found.push(format!("{name}::{variant}"));
        }
    }
    found
}

#[test]
fn variants_are_all_produced_by_a_test_that_is_there() {
    let sources = all_sources();
    let texts: BTreeMap<_, _> = sources.iter().map(|(path, text)| (&**path, text)).collect();
    let there: BTreeSet<String> = sources
        .iter()
        .flat_map(|(_, text)| variants(text))
        .collect();
    assert!(there.len() > 80, "the sources are read: {there:?}");
    let mut named = BTreeSet::new();
    for (path, test, produced) in PRODUCED {
        let text = texts
            .get(path)
            .unwrap_or_else(|| panic!("{path} is not there"));
        let marked = text.split("#[test]\n").skip(1);
        let mut tests = marked.filter_map(|rest| rest.split_once("fn ").map(|(_, it)| word(it)));
        assert!(tests.any(|it| it == *test), "{path} has no test {test}");
        named.extend(produced.iter().map(|it| (*it).to_owned()));
    }
    let untested: Vec<_> = there.difference(&named).collect();
    assert!(untested.is_empty(), "no test produces {untested:?}");
    let gone: Vec<_> = named.difference(&there).collect();
    assert!(gone.is_empty(), "there is no {gone:?}");
}

/// Who prints a chain of errors would say twice what is both in the text and a source.
#[test]
fn errors_say_their_cause_once() {
    for (path, text) in all_sources() {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (at, line) in text.lines().enumerate() {
            let is_error = line.trim_start().starts_with("#[error(") || line.contains("{source}");
            let both = is_error && line.contains("{source}");
            assert!(!both, "{path}:{}: name it `cause`: {line}", at + 1);
        }
        let from = text.split("#[error(").skip(1);
        for error in from {
            let text = error.split(")]").next().unwrap_or_default();
            let variant = error.split_once(")]").map_or("", |(_, rest)| rest);
            let variant = variant.trim_start().lines().next().unwrap_or_default();
            let is_source = variant.contains("#[from]") || variant.contains("#[source]");
            assert!(!(is_source && text.contains("{0}")), "{path}: {variant}");
        }
    }
    let folder = Scratch::new("outcomes-no-folder");
    let file = Scratch(folder.0.join("file"));
    let error = Engine::open(config(4, &[&file], 64)).err().unwrap();
    let (mut chain, mut next) = (error.to_string(), std::error::Error::source(&error));
    while let Some(source) = next {
        chain = format!("{chain}: {source}");
        next = source.source();
    }
    assert_eq!(chain.matches("No such file").count(), 1, "{chain}");
    assert!(chain.contains(file.0.to_str().unwrap()), "{chain}");
}

fn small() -> EngineConfig {
    config(4, &[], 64)
}

/// A policy that lets nothing in whose key hashes to an odd number.
struct Even(Lru);

impl Policy for Even {
    fn name(&self) -> &'static str {
        "even"
    }
    fn set_capacity(&mut self, blocks: usize) {
        self.0.set_capacity(blocks);
    }
    fn admit(&mut self, access: &Access) -> policy::Admission {
        if access.id.0.is_multiple_of(2) {
            policy::Admission::Admit
        } else {
            policy::Admission::Decline
        }
    }
    fn on_hit(&mut self, block: BlockIx, access: &Access) {
        self.0.on_hit(block, access);
    }
    fn on_insert(&mut self, block: BlockIx, access: &Access) {
        self.0.on_insert(block, access);
    }
    fn on_remove(&mut self, block: BlockIx) {
        self.0.on_remove(block);
    }
    fn victim(&mut self, evictable: &mut dyn FnMut(BlockIx) -> bool) -> Option<BlockIx> {
        self.0.victim(evictable)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn bytes(&self) -> PolicyBytes {
        self.0.bytes()
    }
}

#[test]
fn put_that_the_policy_declines_is_not_admitted() {
    let engine = Engine::builder(small())
        .policy(|config| Ok(Box::new(Even(Lru::new(config)?)) as Box<dyn Policy>))
        .open()
        .unwrap();
    block_on(async {
        let mut declined = Vec::new();
        for number in 0..40 {
            match put(&engine, number, 100, Durability::Volatile).await {
                PutOutcome::Stored { .. } => {}
                PutOutcome::Rejected(RejectReason::NotAdmitted) => declined.push(number),
                other => panic!("{other:?}"),
            }
        }
        assert!(declined.len() > 5 && declined.len() < 35, "{declined:?}");
        for number in &declined {
            assert!(!look(&engine, *number, 100).await.is_hit());
        }
        let (there, _) = served(&engine, 40, 100).await;
        assert_eq!(there.len() + declined.len(), 40);
        assert_eq!(
            engine.stats().await.counters.puts_rejected,
            declined.len() as u64
        );
        engine.close(CLOSE).await;
    });
}

#[test]
fn open_with_a_policy_or_a_name_that_cannot_be_says_so() {
    let made = |make: fn(PolicyConfig) -> Result<Box<dyn Policy>, Error>| {
        Engine::builder(small()).policy(make).open().err().unwrap()
    };
    let unknown = made(|config| Ok(policy::by_name("MRU", config)?));
    assert!(matches!(
        unknown,
        Error::Policy(policy::PolicyError::UnknownName { .. })
    ));
    assert!(
        unknown
            .to_string()
            .contains("`MRU` is not a policy; there are FIFO")
    );
    let panicked = made(|_| panic!("on purpose"));
    assert!(
        matches!(panicked, Error::ShardStart { shard: 0, .. }),
        "{panicked}"
    );
    let engine = Engine::open(small()).unwrap();
    assert!(matches!(engine.namespace(""), Err(Error::Key(_))));
}

#[test]
fn open_of_a_device_that_does_not_fit_names_it() {
    let file = Scratch::new("outcomes-devices");
    let path = file.0.to_str().unwrap();
    let mut polled = config(4, &[&file], 64);
    polled.nvme.io_poll = Use::Require;
    let error = Engine::open(polled).err().unwrap();
    assert!(
        matches!(&error, Error::NotPolled { device, .. } if device == path),
        "{error}"
    );
    assert!(!file.0.exists(), "it was made for an open that failed");
    std::fs::write(&file.0, vec![7; 64 << 20]).unwrap();
    let error = Engine::open(config(4, &[&file], 64)).err().unwrap();
    assert!(
        matches!(&error, Error::ForeignContent { path, .. } if *path == file.0),
        "{error}"
    );
    assert!(
        std::fs::read(&file.0)
            .unwrap()
            .iter()
            .all(|byte| *byte == 7),
        "untouched"
    );
}
