//! Errors that a limit of the process brings about, each in a child process of its own.

use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use terrace_engine::{
    Engine, EngineConfig, Error, RegionError, RegisteredRegion, block_on, policy,
};

use crate::files::{CLOSE, Scratch, config};

/// In the child's environment: what it is to do.
const CASE: &str = "TERRACE_OUTCOMES_CASE";

/// Runs `case` in a child of this test below a line of shell, which sets limits; what it said.
fn child(test: &str, case: &str, shell: &str) -> Vec<String> {
    let output = Command::new("sh")
        .args(["-c", &format!("{shell} exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("limits::{test}"), "--nocapture"])
        .env(CASE, case)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {text}");
    let told = text.lines().filter_map(|line| line.split("told: ").nth(1));
    told.map(str::to_owned).collect()
}

fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

/// The name of an error's variant, and what it says.
fn tell(error: &Error) {
    let name = format!("{error:?}");
    let name = name.split([' ', '(']).next().unwrap();
    eprintln!("told: {name}: {error}");
}

/// Lowers a limit while `f` runs.
fn limited<T>(resource: Resource, limit: u64, f: impl FnOnce() -> T) -> T {
    let (soft, hard) = getrlimit(resource).unwrap();
    setrlimit(resource, limit.min(soft), hard).unwrap();
    let outcome = f();
    setrlimit(resource, soft, hard).unwrap();
    outcome
}

#[test]
fn open_below_the_limit_on_locked_memory_says_how_to_raise_it() {
    let name = "open_below_the_limit_on_locked_memory_says_how_to_raise_it";
    if case().is_some() {
        return tell(&Engine::open(config(4, &[], 64)).err().unwrap());
    }
    let told = child(name, "memlock", "ulimit -S -l 64;");
    assert!(told[0].starts_with("Executor: "), "{told:?}");
    assert!(
        told[0].contains("65536 bytes") && told[0].contains("ulimit -l"),
        "{told:?}"
    );
}

/// Opens with so many descriptors more than there are.
fn open_with(more: u64, config: &EngineConfig) -> Result<Engine, Error> {
    // One of them is the folder that is read.
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
    let open = || Engine::open(config.clone());
    limited(Resource::RLIMIT_NOFILE, used + more, open)
}

/// Method: the first engine of a process, which makes an executor.
#[test]
fn open_without_descriptors_for_an_executor_says_so() {
    let name = "open_without_descriptors_for_an_executor_says_so";
    if case().is_some() {
        let tries = (0..8).filter_map(|more| open_with(more, &config(4, &[], 64)).err());
        let mut refused = tries.filter(|error| matches!(error, Error::Executor(_)));
        return tell(&refused.next().unwrap());
    }
    let told = child(name, "first", "");
    assert!(
        told[0].starts_with("Executor: start the executor of shard 0: "),
        "{told:?}"
    );
}

/// Aim: wherever opening runs out of descriptors, it says at which step. Method: the limit is
/// raised by one at each try, from one below which nothing is free, until it opens: what earlier
/// tries give back meanwhile only repeats a step. Executors are taken over from an engine that was closed:
/// glommio remembers for good that its first look at the kernel failed.
#[test]
fn open_that_runs_out_of_descriptors_names_the_step() {
    let name = "open_that_runs_out_of_descriptors_names_the_step";
    let Some(path) = case() else {
        let file = Scratch::new("outcomes-descriptors");
        let told = child(name, file.0.to_str().unwrap(), "");
        for step in ["Mailbox: ", "Ring: ", "open"] {
            let is_told = told.iter().any(|line| line.starts_with(step));
            assert!(is_told, "no {step}in {told:#?}");
        }
        return;
    };
    let file = Scratch(path.into());
    let config = config(4, &[&file], 64);
    let engine = Engine::open(config.clone()).unwrap();
    block_on(engine.close(CLOSE));
    drop(engine);
    let (mut limit, mut tries) = (3, 0);
    while limit < 200 && tries < 100_000 {
        tries += 1;
        let open = || Engine::open(config.clone());
        match limited(Resource::RLIMIT_NOFILE, limit, open) {
            Ok(_) => return eprintln!("told: open"),
            // The shards of the try before end by themselves.
            Err(error) if error.to_string().contains("in use") => continue,
            Err(error) => tell(&error),
        }
        limit += 1;
    }
}

/// Bytes of address space in use.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmSize:"))
        .unwrap();
    let kib = line.split_ascii_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// Method: the policy is made right before the index; it sets the limit before or after what it
/// needs itself. A long file makes both need more than a thread's stack.
#[test]
fn open_without_address_space_names_what_it_is_for() {
    let name = "open_without_address_space_names_what_it_is_for";
    let file = Scratch::new("outcomes-space");
    let Some(case) = case() else {
        let told = child(name, "policy", "");
        assert!(
            told[0].starts_with("Policy: reserve the policy's state: "),
            "{told:?}"
        );
        let told = child(name, "index", "");
        assert!(told[0].starts_with("Index: open the index: "), "{told:?}");
        return;
    };
    std::fs::File::create(&file.0)
        .unwrap()
        .set_len(16 << 30)
        .unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    let engine = Engine::builder(config(4, &[&file], 64)).policy(move |config| {
        let little = || setrlimit(Resource::RLIMIT_AS, address_space() + (16 << 20), hard).unwrap();
        if case == "policy" {
            little();
        }
        let made = policy::by_name("LRU", config)?;
        little();
        Ok(made)
    });
    let outcome = engine.open();
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    tell(&outcome.err().unwrap());
}

#[test]
fn arena_beyond_the_limit_of_the_process_is_refused() {
    let name = "arena_beyond_the_limit_of_the_process_is_refused";
    if case().is_some() {
        return tell(&Engine::open(config(4, &[], 64)).err().unwrap());
    }
    let told = child(name, "arena", "trap '' XFSZ; ulimit -f 1000;");
    let start = "Arena: open shard 0: set the length of an arena of 4194304 bytes: EFBIG";
    assert!(told[0].starts_with(start), "{told:?}");
}

#[test]
fn format_that_may_not_write_so_far_names_the_file() {
    let name = "format_that_may_not_write_so_far_names_the_file";
    if let Some(path) = case() {
        let file = Scratch(path.into());
        let mut config = config(4, &[&file], 64);
        config.nvme.format = true;
        return tell(&Engine::open(config).err().unwrap());
    }
    let file = Scratch::new("outcomes-wipe");
    std::fs::write(&file.0, vec![7; 64 << 20]).unwrap();
    let told = child(
        name,
        file.0.to_str().unwrap(),
        "trap '' XFSZ; ulimit -f 1000;",
    );
    let start = format!("Wipe: format {}: File too large", file.0.display());
    assert!(told[0].starts_with(&start), "{told:?}");
}

#[test]
fn region_longer_than_the_address_space_is_refused() {
    let error = RegisteredRegion::allocate(1 << 60).err().unwrap();
    assert!(matches!(error, RegionError::Os { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("a region of 1152921504606846976 bytes")
    );
}
