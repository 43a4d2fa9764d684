//! The replay to a node: the same requests as an engine's, by the client, over the network.
//!
//! Calls that have no answer are counted by their cause, and the request goes on with its next
//! block: a node that is started again meanwhile costs failures and not the run.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use terrace_client::{
    Announced, CallOptions, Cause, Client, ClientConfig, ClientStats, Error, Namespace, OneSided,
    OneSidedOptions, Part, RailReport, RdmaFlags, Region, RegisteredRegion, TlsFiles, TlsOptions,
    read_token,
};
use terrace_engine::{EngineStats, Lookup, PutOutcome, Tier, block_on, hugepages};
use terrace_sim::trace::{Trace, TraceRequest};
use terrace_types::{NamespaceName, limits::BLOCK_LEN_MAX};

use crate::chain::{self, ChainOptions, Link, PREFETCH_DEADLINE};
use crate::pace::{Pace, Speed, drive};
use crate::payload;
use crate::replay::{self, IODEPTH_MAX, ReplayOutcome, add_up, cpu_time, nanos, now, record};
use crate::sim::flag;

/// Most threads: each has a client of its own.
const THREADS_MAX: usize = 256;

/// Flags that only an engine of this process takes, as the parser knows them.
const ENGINE_ONLY: [&str; 13] = [
    "policy",
    "shards",
    "dram",
    "dram_blocks",
    "nvme",
    "nvme_path",
    "nvme_drain",
    "nvme_accept_missing",
    "nvme_format",
    "io_poll",
    "write_through",
    "hugepages",
    "scratch",
];

const REMOTE_ONLY: [&str; 9] = [
    "namespace",
    "token_file",
    "rdma",
    "rdma_listen",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_name",
    "threads",
];

/// The first flag given that only an engine of this process takes, as users write it.
pub fn engine_flag(is_given: impl Fn(&str) -> bool) -> Option<String> {
    flag(&ENGINE_ONLY, is_given)
}

/// The first flag given that only a replay to a node takes, as users write it.
pub fn remote_flag(is_given: impl Fn(&str) -> bool) -> Option<String> {
    flag(&REMOTE_ONLY, is_given)
}

/// What a replay to a node is told beside the replay itself.
#[derive(Clone, Debug, clap::Args)]
pub struct RemoteArgs {
    /// Play to the node at this address, in place of an engine of this process.
    #[arg(long, value_name = "HOST:PORT")]
    pub remote: Option<String>,
    /// Namespace at the node; `replay/` and the block length without it.
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// File whose first line the node is shown.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Whom to trust, and what to show.
    #[command(flatten)]
    pub tls: TlsFiles,
    /// Whether blocks go one-sided.
    #[command(flatten)]
    pub rdma: RdmaFlags,
    /// Threads, each with connections of its own. They take requests in turn, and share --iodepth.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
}

/// How to replay to a node.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Host and port.
    pub address: String,
    /// Namespace; `None` for one of the block length.
    pub namespace: Option<String>,
    /// What the node is shown; empty for nothing.
    pub token: Vec<u8>,
    /// TLS to the node; `None` for none.
    pub tls: Option<TlsOptions>,
    /// One-sided access, where the node grants it; `None` for none.
    pub one_sided: Option<OneSidedOptions>,
    /// Threads, each with a client.
    pub threads: usize,
    /// What is done with a chain before it is read.
    pub chain: ChainOptions,
    /// Puts wait until their blocks survive power loss.
    pub durable: bool,
    /// Length of every block, in bytes.
    pub block_len: u64,
    /// Requests in flight, over all threads.
    pub iodepth: usize,
    /// Arrival of requests.
    pub speed: Speed,
    /// Whether to show progress on a terminal.
    pub progress: bool,
}

impl RemoteOptions {
    /// Those of the command's flags, the rest as the command's defaults are.
    ///
    /// # Errors
    /// When the file of the token or one of TLS is of no use.
    pub fn new(args: &RemoteArgs) -> anyhow::Result<Self> {
        let file = args.token_file.as_deref();
        let token = file
            .map(|path| read_token("--token-file", path))
            .transpose()?;
        Ok(Self {
            address: args.remote.clone().unwrap_or_default(),
            namespace: args.namespace.clone(),
            token: token.unwrap_or_default(),
            tls: args.tls.options()?,
            one_sided: args.rdma.options(),
            threads: args.threads,
            chain: ChainOptions::default(),
            durable: false,
            block_len: 64 << 10,
            iodepth: 4,
            speed: Speed::Max,
            progress: false,
        })
    }

    /// Checks what the client does not check itself.
    ///
    /// # Errors
    /// Names the flag, its value and the limit.
    pub fn validate(&self) -> anyhow::Result<()> {
        let (len, depth, threads) = (self.block_len, self.iodepth, self.threads);
        ensure!(
            (1..=BLOCK_LEN_MAX).contains(&len),
            "--block-len is {len}; allowed is 1 to {BLOCK_LEN_MAX}"
        );
        ensure!(
            (1..=THREADS_MAX).contains(&threads),
            "--threads is {threads}; allowed is 1 to {THREADS_MAX}"
        );
        ensure!(
            (threads..=IODEPTH_MAX).contains(&depth),
            "--iodepth is {depth}; allowed is {threads}, one for each thread, to {IODEPTH_MAX}"
        );
        let name = self.name();
        if let Err(error) = NamespaceName::new(&name) {
            bail!("--namespace is `{}`: {error}", name.escape_debug());
        }
        Ok(())
    }

    pub(crate) fn name(&self) -> String {
        let given = self.namespace.clone();
        given.unwrap_or_else(|| format!("replay/{}", self.block_len))
    }
}

/// Calls that have no answer, by why.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// The node could not be reached, or took no requests.
    pub unavailable: u64,
    /// The deadline came first.
    pub timed_out: u64,
    /// The connection broke under the call.
    pub connection_lost: u64,
    /// The node refused the request.
    pub refused: u64,
    /// Bytes came that were not those of the block; they were not handed out.
    pub corrupt: u64,
    /// Anything else.
    pub other: u64,
    /// What the first one said.
    pub first: Option<String>,
}

impl Failures {
    fn count(&mut self, error: &Error) {
        let counter = match error.cause() {
            Cause::Unavailable { .. } => &mut self.unavailable,
            Cause::TimedOut { .. } => &mut self.timed_out,
            Cause::Io { .. } => &mut self.connection_lost,
            Cause::Rejected { .. } => &mut self.refused,
            Cause::Corrupt { .. } => &mut self.corrupt,
            _ => &mut self.other,
        };
        *counter += 1;
        self.first.get_or_insert_with(|| error.to_string());
    }

    fn add(&mut self, part: Self) {
        let Self {
            unavailable,
            timed_out,
            connection_lost,
            refused,
            corrupt,
            other,
            first,
        } = part;
        add_up!(self; unavailable, timed_out, connection_lost, refused, corrupt, other);
        self.first = self.first.take().or(first);
    }
}

/// What a replay to a node came to.
pub struct RemoteOutcome {
    /// As of an engine, but for what an engine of this process would tell of itself.
    pub replay: ReplayOutcome,
    /// Calls that have no answer.
    pub failures: Failures,
    /// What the clients counted, together.
    pub client: ClientStats,
    /// Shards of the node.
    pub shards: usize,
    /// By which blocks of the first thread went one-sided.
    pub rails: Vec<RailReport>,
    /// Why a block that was to go one-sided did not.
    pub one_sided_fault: Option<String>,
}

/// What one thread came to.
struct Tally {
    outcome: ReplayOutcome,
    failures: Failures,
    buffers: Vec<Buffer>,
}

/// Where a block of the replay lies while it is checked or made.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Registered memory that it is moved by; `None` when it goes over connections.
    region: Option<Region>,
}

struct Player<'a> {
    options: &'a RemoteOptions,
    blocks: Namespace,
    /// The namespace as keys have it, for the hashes of hints.
    keys: terrace_types::Namespace,
    call: CallOptions,
    tally: RefCell<Tally>,
}

/// Replays `trace` to the node.
///
/// # Errors
/// When the node cannot be reached at the start, or refuses the client.
pub fn run(options: &RemoteOptions, trace: &Trace) -> anyhow::Result<RemoteOutcome> {
    options.validate()?;
    let mut config = ClientConfig::new(&options.address).token(&options.token);
    config.name = "terrace-bench".to_owned();
    config.tls = options.tls.clone();
    if let Some(one_sided) = &options.one_sided {
        config.one_sided = OneSided::Auto(one_sided.clone());
    }
    let clients: Vec<Client> = (0..options.threads)
        .map(|_| block_on(Client::connect(config.clone())))
        .collect::<Result<_, _>>()
        .context("connect to --remote")?;
    let pongs = block_on(clients[0].ping(&CallOptions::default())).context("ping the node")?;
    let bar = replay::progress_bar(options.progress, trace);
    let (started, cpu_before) = (now(), cpu_time());
    let tallies: anyhow::Result<Vec<Tally>> = std::thread::scope(|scope| {
        let threads = clients.iter().enumerate().map(|(thread, client)| {
            let bar = &bar;
            scope.spawn(move || play(options, trace, (thread, client), started, bar))
        });
        let threads: Vec<_> = threads.collect();
        let ends = threads.into_iter().map(|thread| match thread.join() {
            Ok(tally) => tally,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ends.collect()
    });
    let (elapsed, cpu) = (started.elapsed(), cpu_time().saturating_sub(cpu_before));
    bar.finish_and_clear();
    let mut outcome = RemoteOutcome {
        replay: replay::empty()?,
        failures: Failures::default(),
        client: ClientStats::default(),
        shards: pongs.len(),
        rails: block_on(clients[0].rails()),
        one_sided_fault: clients.iter().find_map(Client::one_sided_fault),
    };
    for tally in tallies? {
        outcome.replay.add(tally.outcome)?;
        outcome.failures.add(tally.failures);
    }
    for client in &clients {
        outcome.client.add(&client.stats());
    }
    let threads = u32::try_from(options.threads).unwrap_or(u32::MAX);
    let replay = &mut outcome.replay;
    (replay.elapsed, replay.cpu) = (elapsed, cpu.saturating_sub(replay.client));
    // Threads make and verify payloads at the same time.
    replay.client /= threads;
    replay.memory_bytes = hugepages::process_memory_bytes();
    replay.stats = EngineStats::default();
    Ok(outcome)
}

/// One thread's part of the trace.
fn play(
    options: &RemoteOptions,
    trace: &Trace,
    (thread, client): (usize, &Client),
    started: Instant,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<Tally> {
    let name = NamespaceName::new(&options.name()).context("name the namespace")?;
    let threads = options.threads;
    let extra = usize::from(thread < options.iodepth % threads);
    let iodepth = options.iodepth / threads + extra;
    let player = Player {
        options,
        blocks: client.namespace(name.as_str())?,
        keys: terrace_types::Namespace::new(0, 0, &name),
        call: CallOptions {
            durable: options.durable,
            ..CallOptions::default()
        },
        tally: RefCell::new(Tally {
            outcome: replay::empty()?,
            failures: Failures::default(),
            buffers: registered(options, client, iodepth)?,
        }),
    };
    let pace = Pace {
        iodepth,
        speed: options.speed,
        started,
    };
    let requests = trace.requests.iter().skip(thread).step_by(threads);
    block_on(drive(requests, pace, bar, |request| {
        player.request(request)
    }));
    Ok(player.tally.into_inner())
}

/// A buffer in registered memory for each request in flight; none where blocks go over connections.
fn registered(
    options: &RemoteOptions,
    client: &Client,
    count: usize,
) -> anyhow::Result<Vec<Buffer>> {
    if options.one_sided.is_none() {
        return Ok(Vec::new());
    }
    let len = usize::try_from(options.block_len)?;
    let memory = RegisteredRegion::allocate(len * count).context("memory for blocks")?;
    let whole = client.register(&memory)?;
    let buffer = |at| {
        let region = whole.slice(at * len..(at + 1) * len)?;
        Ok(Buffer {
            bytes: Vec::new(),
            region: Some(region),
        })
    };
    (0..count).map(buffer).collect()
}

impl Player<'_> {
    async fn request(&self, request: &TraceRequest) {
        let links = chain::links(self.keys, request);
        self.begin(request, &links).await;
        for link in &links {
            if self.access(link).await {
                self.put(link).await;
            }
        }
        self.tally.borrow_mut().outcome.requests += 1;
    }

    /// Announces a request and has it read ahead, as asked for.
    async fn begin(&self, request: &TraceRequest, links: &[Link]) {
        let chain = self.options.chain;
        let call = CallOptions {
            context: chain::context(request),
            ..self.call
        };
        if chain.announce.is_for(request) {
            let accesses = links.iter().map(|link| Announced {
                key: link.key.bytes(),
                hint: link.hint,
                len: 0,
            });
            let accesses: Vec<_> = accesses.collect();
            for outcome in self.blocks.announce(&accesses, &call).await {
                self.answered(outcome);
            }
        }
        if chain.prefetch {
            let keys: Vec<_> = links.iter().map(|link| link.key.bytes()).collect();
            let present = self.blocks.match_prefix(&keys, &call).await;
            let present = self.answered(present).unwrap_or(0);
            let keys = keys.get(..present).unwrap_or_default();
            for outcome in self.blocks.prefetch(keys, PREFETCH_DEADLINE, &call).await {
                self.answered(outcome);
            }
        }
    }

    /// The answer, or none: then it is counted why.
    fn answered<T>(&self, outcome: Result<T, Error>) -> Option<T> {
        let counted = |error| self.tally.borrow_mut().failures.count(&error);
        outcome.map_err(counted).ok()
    }

    fn call_of(&self, link: &Link) -> CallOptions {
        CallOptions {
            hint: link.hint,
            context: link.context,
            ..self.call
        }
    }

    /// A buffer that no other request uses.
    fn buffer(&self) -> Buffer {
        let mut buffer = self.tally.borrow_mut().buffers.pop().unwrap_or_default();
        let len = usize::try_from(self.options.block_len).unwrap_or(0);
        buffer.bytes.resize(len, 0);
        buffer
    }

    async fn get(
        &self,
        link: &Link,
        buffer: &mut Buffer,
        call: &CallOptions,
    ) -> Result<Lookup<Part>, Error> {
        let key = link.key.bytes();
        match &buffer.region {
            Some(region) => self.blocks.get_into_region(key, region, call).await,
            None => self.blocks.get_into(key, &mut buffer.bytes, call).await,
        }
    }

    /// Gets a block and verifies it; whether the node has none.
    async fn access(&self, link: &Link) -> bool {
        let mut buffer = self.buffer();
        let call = self.call_of(link);
        let begun = now();
        let found = self.get(link, &mut buffer, &call).await;
        let took = nanos(begun);
        let found = self.answered(found);
        let mut tally = self.tally.borrow_mut();
        let outcome = &mut tally.outcome;
        outcome.accesses += 1;
        let mut is_missing = false;
        match found {
            Some(Lookup::Hit { tier, value: part }) => {
                let (hits, histogram) = match tier {
                    Tier::Dram => (&mut outcome.dram_hits, &mut outcome.dram_ns),
                    Tier::Nvme => (&mut outcome.nvme_hits, &mut outcome.nvme_ns),
                };
                *hits += 1;
                record(histogram, took);
                outcome.bytes += part.len as u64;
                let checking = now();
                let is_whole = part.block_len == self.options.block_len;
                if let Some(region) = &buffer.region {
                    region.memory().copy_to(&mut buffer.bytes);
                }
                if !is_whole || !payload::verify(link.id, &buffer.bytes) {
                    outcome.verify_failures += 1;
                }
                outcome.client += checking.elapsed();
            }
            Some(Lookup::Miss) => {
                outcome.misses += 1;
                is_missing = true;
            }
            Some(Lookup::Unavailable(_)) => outcome.unavailable += 1,
            None => {}
        }
        tally.buffers.push(buffer);
        is_missing
    }

    async fn put(&self, link: &Link) {
        let mut buffer = self.buffer();
        let making = now();
        payload::fill(link.id, &mut buffer.bytes);
        if let Some(region) = &buffer.region {
            region.memory().copy_from(&buffer.bytes);
        }
        self.tally.borrow_mut().outcome.client += making.elapsed();
        let (key, call) = (link.key.bytes(), self.call_of(link));
        let begun = now();
        let put = match &buffer.region {
            Some(region) => self.blocks.put_from_region(key, region, &call).await,
            None => self.blocks.put(key, &buffer.bytes, &call).await,
        };
        let took = nanos(begun);
        let put = self.answered(put);
        let mut tally = self.tally.borrow_mut();
        tally.buffers.push(buffer);
        let outcome = &mut tally.outcome;
        let Some(put) = put else { return };
        record(&mut outcome.put_ns, took);
        match put {
            PutOutcome::Stored { .. } => {
                outcome.puts.stored += 1;
                outcome.bytes += self.options.block_len;
            }
            PutOutcome::AlreadyExists { .. } => outcome.puts.exists += 1,
            PutOutcome::Rejected(_) => outcome.puts.rejected += 1,
            PutOutcome::Busy => outcome.puts.busy += 1,
        }
    }
}
