//! A node from its start to its end.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use terrace_engine::{Engine, block_on};
use terrace_runtime::executor::check_memlock;
use terrace_server::{OneSidedConfig, Server, ServerConfig};
use terrace_types::ByteLen;

use crate::admin::{self, Phase, State};
use crate::effective::engine_error;
use crate::identity::{Identity, hex};
use crate::log::Log;
use crate::rails;
use crate::settings::Effective;

/// Descriptors that the node needs beside those of connections.
const DESCRIPTORS_BESIDE: u64 = 256;

/// Checks values and host, and prints what is in force.
pub(crate) fn check(values: &Effective) -> anyhow::Result<()> {
    values.server()?;
    check_host(values)?;
    let text = toml::to_string(values).context("print the values in force")?;
    say(text.trim_end());
    say(rails::report().trim_end());
    Ok(())
}

/// Runs a node until it is told to stop.
pub(crate) fn run(values: &Effective) -> anyhow::Result<()> {
    // Before any thread is made: all of them inherit it, and one waits.
    let signals = stop_signals();
    signals.thread_block().context("block signals")?;
    let log = Log::start(values.log_format).context("start the log")?;
    abort_on_panic(log.clone());
    let outcome = serve(values, &signals, &log);
    log.finish();
    outcome
}

/// Serves until a signal comes.
fn serve(values: &Effective, signals: &SigSet, log: &Log) -> anyhow::Result<()> {
    check_host(values)?;
    let server_config = values.server()?;
    let listener = bind("listen", values.listen)?;
    let metrics = values.metrics.map(|at| bind("metrics", at)).transpose()?;
    let identity = Identity::take(&values.data)?;
    let config = serde_json::to_string(values).context("print the values in force")?;
    let state = State::new(config, values.slow_ms, Some(log.clone()));
    let one_sided = server_config.one_sided.as_ref();
    say_values(values, &listener, metrics.as_ref(), &identity, one_sided);
    if let Some(metrics) = metrics {
        admin::start(metrics, Arc::clone(&state)).context("start the admin thread")?;
    }
    let engine = open(values)?;
    let config = ServerConfig {
        node_id: identity.node_id,
        node_epoch: identity.epoch,
        ..server_config
    };
    let server = Server::start(&engine, listener, config)?;
    state.serve(engine.clone(), server.observer());
    say("ready");
    let signal = signals.wait().context("wait for a signal")?;
    stop(values, &state, &engine, server, signal)
}

fn open(values: &Effective) -> anyhow::Result<Engine> {
    Engine::open(values.engine()?).map_err(|error| match &error {
        terrace_engine::Error::Config { .. } => engine_error(&error).into(),
        _ => anyhow::Error::from(error).context("open the engine"),
    })
}

/// Takes no new work, ends what is under way, writes down what is in DRAM only.
fn stop(
    values: &Effective,
    state: &State,
    engine: &Engine,
    mut server: Server,
    signal: Signal,
) -> anyhow::Result<()> {
    say(&format!(
        "{signal}: draining for at most {} s",
        values.drain
    ));
    state.set_phase(Phase::Draining);
    std::thread::spawn(|| {
        // A second signal means at once. What is durable stays so.
        if stop_signals().wait().is_ok() {
            std::process::exit(1);
        }
    });
    let deadline = Duration::from_secs(values.drain);
    let drained = server.drain(deadline / 2);
    drop(server);
    let closed = block_on(engine.close(deadline / 2));
    say(&format!(
        "closed: {} connections cut off, {} blocks written down, {} lost",
        drained.cut_off, closed.blocks_written, closed.blocks_lost
    ));
    if closed.shards_unclean > 0 {
        bail!("{} shards did not end in time", closed.shards_unclean);
    }
    Ok(())
}

fn stop_signals() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals
}

/// A half-dead shard that clients can still read is worse than a restart, which recovers.
fn abort_on_panic(log: Log) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        log.finish();
        std::process::abort();
    }));
}

/// What the operating system has to allow, with what to do where it does not.
fn check_host(values: &Effective) -> anyhow::Result<()> {
    check_memlock()?;
    let needed = values.connections as u64 + DESCRIPTORS_BESIDE;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("read the limit on files")?;
    if soft < needed && hard >= needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed, hard).context("raise the limit on files")?;
    } else if soft < needed {
        bail!(
            "connections is {}; the limit on open files is {hard}: raise it to {needed} with \
             `ulimit -n` or LimitNOFILE=, or allow fewer connections",
            values.connections
        );
    }
    Ok(())
}

fn bind(field: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "{field} is {address}; the port is taken: stop who has it (`ss -ltnp`), or choose another"
        ),
        _ => anyhow::anyhow!("{field} is {address}; it cannot be listened on: {error}"),
    })
}

fn say(line: &str) {
    // Nobody may be reading; the node runs all the same.
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

fn say_values(
    values: &Effective,
    listener: &TcpListener,
    metrics: Option<&TcpListener>,
    identity: &Identity,
    one_sided: Option<&OneSidedConfig>,
) {
    let shown = |listener: &TcpListener| {
        let address = listener.local_addr();
        address.map_or_else(|error| error.to_string(), |address| address.to_string())
    };
    say(&format!(
        "terrace-node {} on {}, metrics on {}, data in {}",
        env!("CARGO_PKG_VERSION"),
        shown(listener),
        metrics.map_or_else(|| "no address".to_owned(), shown),
        values.data.display()
    ));
    let below = match (values.devices.len(), values.nvme) {
        (0, 0) => "no NVMe tier".to_owned(),
        (0, len) => format!("NVMe tier {}", ByteLen(len)),
        (count, _) => format!("NVMe tier on {count} devices"),
    };
    if let Some(one_sided) = one_sided {
        let ways = match one_sided.rdma {
            None => "TCP".to_owned(),
            Some(_) => format!("RDMA ({}) and TCP", values.rdma),
        };
        say(&format!("one-sided: {} over {ways}", values.one_sided));
    }
    say(&format!(
        "{} shards, DRAM {}, {below}, policy {}; node {} epoch {}",
        values.shards,
        ByteLen(values.dram),
        values.policy,
        hex(&identity.node_id),
        identity.epoch
    ));
}
