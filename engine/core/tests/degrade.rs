//! Aim: a set one of whose files is gone, cut or back again is refused, or served as far as it is
//! there, and says what is not. Method: engines over two real files; the test takes one away while
//! no engine has it open.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

mod files;
#[path = "../src/shard/log_lines.rs"]
mod log_lines;

use std::fs::OpenOptions;
use std::path::PathBuf;

use files::{CLOSE, Scratch, config, key, put, served};
use log_lines::LogLines;
use terrace_engine::{Durability, Engine, EngineConfig, Missing, PutOutcome, block_on};

const LEN: usize = 65_536;
const COUNT: u64 = 200;
const FILE_MIB: u64 = 64;

fn over(files: &[&Scratch], missing: Missing) -> EngineConfig {
    let mut config = config(4, files, FILE_MIB);
    config.nvme.missing = missing;
    config
}

fn refusal(config: EngineConfig) -> String {
    Engine::open(config).err().unwrap().to_string()
}

/// Two files of one set with blocks on both, closed cleanly.
async fn pair(name: &str) -> (Scratch, Scratch) {
    let files = ["one", "two"].map(|it| Scratch::new(&format!("degrade-{name}-{it}")));
    let [one, two] = files;
    let engine = Engine::open(over(&[&one, &two], Missing::Refuse)).unwrap();
    for number in 0..COUNT {
        let outcome = put(&engine, number, LEN, Durability::Durable).await;
        assert_eq!(outcome, PutOutcome::Stored { durable: true });
    }
    assert_eq!(engine.stats().await.missing, []);
    assert!(engine.close(CLOSE).await.devices_clean);
    (one, two)
}

/// Takes a file away for the time being.
fn away(file: &Scratch) -> PathBuf {
    let place = file.0.with_extension("away");
    std::fs::rename(&file.0, &place).unwrap();
    place
}

async fn close(engine: Engine) {
    assert!(engine.close(CLOSE).await.devices_clean);
}

#[test]
fn removed_file_is_refused_then_accepted_as_missing_and_taken_back() {
    block_on(async {
        let (one, two) = pair("accept").await;
        let place = away(&two);
        let before = std::fs::read(&one.0).unwrap();
        // Where it was, none is made in its place either.
        for files in [&[&one][..], &[&one, &two]] {
            let error = refusal(over(files, Missing::Refuse));
            assert!(
                error.contains("belongs to the set and was not given"),
                "{error}"
            );
            assert!(!two.0.exists());
            assert!(std::fs::read(&one.0).unwrap() == before, "untouched");
        }

        let lines = LogLines::default();
        let engine = lines.during(|| Engine::open(over(&[&one], Missing::Accept)).unwrap());
        assert_eq!(lines.count("WARN a device is missing"), 1);
        let missing = engine.stats().await.missing;
        assert_eq!((missing.len(), missing[0].len), (1, FILE_MIB << 20));
        let (here, unavailable) = served(&engine, COUNT, LEN).await;
        assert_eq!(unavailable, []);
        assert!(here.len() > 50 && here.len() < 150, "{}", here.len());
        let lost = (0..COUNT).find(|number| !here.contains(number)).unwrap();
        // What is removed or stored meanwhile counts when the file is back.
        let ns = engine.namespace("m").unwrap();
        assert!(!engine.remove(&key(ns, lost)).await.is_hit());
        let outcome = put(&engine, COUNT, LEN, Durability::Durable).await;
        assert_eq!(outcome, PutOutcome::Stored { durable: true });
        close(engine).await;

        // It was accepted once; then it comes back.
        let engine = Engine::open(over(&[&one], Missing::Refuse)).unwrap();
        assert_eq!(engine.stats().await.missing.len(), 1);
        close(engine).await;
        std::fs::rename(place, &two.0).unwrap();
        let engine = Engine::open(over(&[&one, &two], Missing::Refuse)).unwrap();
        assert_eq!(engine.stats().await.missing, []);
        let (all, unavailable) = served(&engine, COUNT + 1, LEN).await;
        let expected: Vec<u64> = (0..=COUNT).filter(|number| *number != lost).collect();
        assert_eq!((all, unavailable), (expected, Vec::new()));
        close(engine).await;
    });
}

#[test]
fn forgotten_file_is_told_and_never_taken_back() {
    block_on(async {
        let (one, two) = pair("forget").await;
        let lines = LogLines::default();
        let engine = lines.during(|| Engine::open(over(&[&one], Missing::Forget)).unwrap());
        assert_eq!(lines.count("WARN a device is forgotten"), 1);
        assert_eq!(engine.stats().await.missing, [], "the set does without it");
        let (here, unavailable) = served(&engine, COUNT, LEN).await;
        assert!(here.len() > 50 && here.len() < 150 && unavailable.is_empty());
        close(engine).await;
        let before = std::fs::read(&two.0).unwrap();
        let error = refusal(over(&[&one, &two], Missing::Accept));
        assert!(error.contains(two.0.to_str().unwrap()), "{error}");
        assert!(error.contains("left the set"), "{error}");
        assert!(std::fs::read(&two.0).unwrap() == before, "untouched");
        let engine = Engine::open(over(&[&one], Missing::Refuse)).unwrap();
        assert_eq!(served(&engine, COUNT, LEN).await.0, here);
        close(engine).await;
    });
}

#[test]
fn cut_file_is_refused_by_name_and_the_other_served_without_it() {
    block_on(async {
        let (one, two) = pair("cut").await;
        let disk = OpenOptions::new().write(true).open(&two.0).unwrap();
        for (len, told) in [
            (32 << 20, "it was cut"),
            (5000, "5000 bytes"),
            (0, "0 bytes"),
        ] {
            disk.set_len(len).unwrap();
            for missing in [Missing::Refuse, Missing::Accept] {
                let error = refusal(over(&[&one, &two], missing));
                assert!(error.contains(two.0.to_str().unwrap()), "{error}");
                assert!(error.contains(told), "{error}");
            }
            assert_eq!(disk.metadata().unwrap().len(), len);
        }
        let engine = Engine::open(over(&[&one], Missing::Accept)).unwrap();
        let (here, unavailable) = served(&engine, COUNT, LEN).await;
        assert!(here.len() > 50 && here.len() < 150 && unavailable.is_empty());
        close(engine).await;
    });
}
