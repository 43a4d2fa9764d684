//! The transfer engine on one rail and on two beside Mooncake's `transfer_engine_bench`, all over TCP on this
//! host, in turns.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::mooncake;
use crate::processes::{Running, folder, free_port};

/// Memory that each end registers.
const BUFFER_LEN: u64 = 1 << 30;

struct Shape {
    len: u64,
    batch: u32,
    threads: u32,
}

const SHAPES: [Shape; 4] = [
    Shape {
        len: 64 << 10,
        batch: 128,
        threads: 1,
    },
    Shape {
        len: 64 << 10,
        batch: 128,
        threads: 8,
    },
    Shape {
        len: 1 << 20,
        batch: 16,
        threads: 1,
    },
    Shape {
        len: 1 << 20,
        batch: 16,
        threads: 8,
    },
];

/// Runs all shapes on both, `rounds` times, and prints medians and their ratio.
pub(crate) fn compare(bench: &Path, rounds: u32, turn_millis: u64) -> Result<()> {
    let programs = mooncake::install(&folder()?)?;
    let peer = programs.join("transfer_engine_bench");
    let (_target, segment) = target(&peer)?;
    // Its duration is whole seconds.
    let seconds = turn_millis.div_ceil(1000);
    let out = &mut std::io::stdout().lock();
    writeln!(
        out,
        "{rounds} rounds; a turn takes {turn_millis} ms, {seconds} s with Mooncake"
    )?;
    writeln!(
        out,
        "| requests x batch | threads | this, GB/s | on two rails | Mooncake, GB/s | ratio | two rails |"
    )?;
    writeln!(out, "|---|--:|--:|--:|--:|--:|--:|")?;
    for shape in &SHAPES {
        let mut figures = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..rounds as usize {
            // Who comes first changes.
            for at in 0..figures.len() {
                let which = (round + at) % figures.len();
                let figure = match which {
                    0 => turn_of_own(bench, shape, "1", turn_millis)?,
                    1 => turn_of_own(bench, shape, "2", turn_millis)?,
                    _ => turn_of_peer(&peer, &segment, shape, seconds)?,
                };
                figures[which].push(figure);
            }
        }
        let [own, two, theirs] = figures.map(median);
        let (len, batch, threads) = (shape.len >> 10, shape.batch, shape.threads);
        let (ratio, ratio_two) = (own / theirs, two / theirs);
        writeln!(
            out,
            "| {len} KiB x {batch} | {threads} | {own:.2} | {two:.2} | {theirs:.2} | {ratio:.1} | {ratio_two:.1} |"
        )?;
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn turn_of_own(bench: &Path, shape: &Shape, rails: &str, millis: u64) -> Result<f64> {
    let output = Command::new(bench)
        .args(["transfer", "--transport", "tcp", "--rounds", "1", "--json"])
        .args(["--rails", rails])
        .args([
            "--bs",
            &shape.len.to_string(),
            "--batch",
            &shape.batch.to_string(),
        ])
        .args([
            "--threads",
            &shape.threads.to_string(),
            "--turn",
            &millis.to_string(),
        ])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run {}", bench.display()))?;
    ensure!(
        output.status.success(),
        "{} ended with {}",
        bench.display(),
        output.status
    );
    let told: Value = serde_json::from_slice(&output.stdout).context("read its figures")?;
    let of_tcp = told.pointer("/0/rows/0/gb_per_s").and_then(Value::as_f64);
    of_tcp.context("it printed no figure for TCP")
}

/// The process that owns the memory, and how it is called.
fn target(program: &Path) -> Result<(Running, String)> {
    let log = folder()?.join("transfer-target.log");
    let file = std::fs::File::create(&log).context("make a file for the target's log")?;
    let mut command = common(program, "target")?;
    let running = Running::start(command.stderr(file))?;
    // It tells its port on standard error only, and nothing when it is ready.
    for _ in 0..200 {
        let text = std::fs::read_to_string(&log).context("read the target's log")?;
        let is_ready = text.contains("DRAM is used");
        let segment = text
            .lines()
            .find_map(|line| line.split("listening on ").nth(1));
        if let (true, Some(segment)) = (is_ready, segment) {
            return Ok((running, segment.trim().to_owned()));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a program that cannot be waited for"
        )]
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    anyhow::bail!("Mooncake's target did not start; see {}", log.display())
}

fn turn_of_peer(program: &Path, segment: &str, shape: &Shape, seconds: u64) -> Result<f64> {
    let output = common(program, "initiator")?
        .arg(format!("--segment_id={segment}"))
        .arg(format!("--duration={seconds}"))
        .arg(format!("--threads={}", shape.threads))
        .arg(format!("--block_size={}", shape.len))
        .arg(format!("--batch_size={}", shape.batch))
        .output()
        .with_context(|| format!("run {}", program.display()))?;
    let told = String::from_utf8_lossy(&output.stderr);
    let figure = told
        .split("throughput ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let figure = figure.with_context(|| format!("Mooncake printed no figure: {told}"))?;
    figure.parse().context("read Mooncake's figure")
}

fn common(program: &Path, mode: &str) -> Result<Command> {
    let port = free_port()?;
    let mut command = Command::new(program);
    command
        .arg(format!("--mode={mode}"))
        .args([
            "--protocol=tcp",
            "--metadata_server=P2PHANDSHAKE",
            "--operation=read",
        ])
        .args(["--report_unit=GB", "--report_precision=4"])
        .arg(format!("--buffer_size={BUFFER_LEN}"))
        .arg(format!("--local_server_name=127.0.0.1:{port}"));
    Ok(command)
}
