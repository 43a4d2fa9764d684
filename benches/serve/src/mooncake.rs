//! Mooncake's store from PyPI: its master, a process that keeps blocks, and one that calls its
//! zero-copy functions, over TCP.

use std::io::Write;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::measure::{Buffers, CpuClocks, Sample};
use crate::peer::Peer;
use crate::processes::{Running, complete, folder, free_port};
use crate::shape::{Shape, Verb};

/// What is installed.
const PACKAGE: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";

/// The processes of the store.
const SCRIPT: &str = include_str!("store_process.py");

/// Bytes that a turn of puts stores at most: what it stored is removed behind it, as puts fail for a
/// while when the store is full.
const PUT_LEN_MAX: u64 = 640 << 20;

pub(crate) struct Mooncake {
    count: u64,
    clocks: CpuClocks,
    input: ChildStdin,
    client: Running,
    _source: Running,
    _master: Running,
}

impl Mooncake {
    pub(crate) fn start(dram_len: u64) -> Result<Self> {
        let folder = folder()?;
        let programs = install(&folder)?;
        let script = folder.join("store_process.py");
        std::fs::write(&script, SCRIPT).context("write the script")?;
        let port = free_port()?.to_string();
        let mut master = Command::new(programs.join("mooncake_master"));
        master.arg(format!("--rpc_port={port}"));
        master.arg(format!("--metrics_port={}", free_port()?));
        master.stderr(Stdio::null());
        let master = Running::start(&mut master)?;
        let python = |role: &str| {
            let mut command = Command::new(programs.join("python3"));
            command.arg(&script).arg(role).arg(&port);
            command.arg(dram_len.to_string());
            command.env("MC_LOG_LEVEL", "ERROR");
            command.stdin(Stdio::piped()).stderr(Stdio::null());
            let mut process = Running::start(&mut command)?;
            process
                .line("ready")
                .with_context(|| format!("start Mooncake's {role}"))?;
            anyhow::Ok(process)
        };
        let source = python("source")?;
        let mut client = python("client")?;
        let input = client
            .child()
            .stdin
            .take()
            .context("the client has no input")?;
        Ok(Self {
            count: 0,
            clocks: CpuClocks::new(&[master.pid(), source.pid(), client.pid()])?,
            input,
            client,
            _source: source,
            _master: master,
        })
    }

    fn ask(&mut self, told: &Value) -> Result<Value> {
        writeln!(self.input, "{told}").context("tell the client")?;
        let answer = self.client.line("answer ")?;
        serde_json::from_str(&answer).context("read the client's answer")
    }
}

/// The folder of its programs.
pub(crate) fn install(folder: &std::path::Path) -> Result<PathBuf> {
    let environment = folder.join("mooncake");
    let programs = environment.join("bin");
    if !programs.join("mooncake_master").is_file() {
        complete(
            Command::new("python3")
                .args(["-m", "venv"])
                .arg(&environment),
        )?;
        complete(Command::new(programs.join("pip")).args(["install", "--quiet", PACKAGE]))?;
    }
    Ok(programs)
}

impl Peer for Mooncake {
    fn name(&self) -> &'static str {
        "Mooncake"
    }

    fn takes(&self, shape: &Shape) -> bool {
        shape.threads != 2 && shape.len != 256 << 10
    }

    fn fill(&mut self, len: usize, count: u64) -> Result<()> {
        self.count = count;
        self.ask(&json!({"do": "fill", "length": len, "count": count}))?;
        Ok(())
    }

    fn sample(&mut self, shape: &Shape, span: Duration, _: &mut Buffers) -> Result<Sample> {
        let verb = match shape.verb {
            Verb::Get => "get",
            Verb::Put => "put",
        };
        if shape.verb == Verb::Put {
            self.ask(&json!({"do": "clear"}))?;
        }
        let mut told = json!({
            "do": "run", "verb": verb, "length": shape.len, "batch": shape.batch,
            "threads": shape.threads, "seconds": 0.0, "count": self.count,
            "bytes_max": if shape.verb == Verb::Put { PUT_LEN_MAX } else { u64::MAX },
        });
        // Once without measuring: memory is registered at its first use.
        self.ask(&told)?;
        told["seconds"] = json!(span.as_secs_f64());
        let cpu = self.clocks.read()?;
        let answer = self.ask(&told)?;
        let cpu = self.clocks.read()?.saturating_sub(cpu);
        let of = |name: &str| answer[name].as_f64().context("the answer lacks a number");
        let failed = of("failed")?;
        if failed > 0.0 {
            writeln!(
                std::io::stderr(),
                "Mooncake: {shape}: {failed} blocks failed"
            )?;
        }
        Ok(Sample {
            bytes: of("bytes")?,
            seconds: of("seconds")?,
            cpu_seconds: cpu.as_secs_f64(),
            p50_us: of("p50_us")?,
            p99_us: of("p99_us")?,
        })
    }
}
