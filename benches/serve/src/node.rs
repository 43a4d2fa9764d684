//! The node as a child, and the blocking client.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use terrace_client::blocking::{Client, Namespace};
use terrace_client::{CallOptions, ClientConfig, Part, PutItem, Target};
use terrace_types::{Hint, Lookup};

use crate::measure::{Buffers, CpuClocks, Sample, turn};
use crate::peer::{Peer, Worker};
use crate::processes::{Running, folder, free_port};
use crate::shape::Shape;

/// Blocks of a call while it is filled.
const FILL_BATCH: u64 = 16;

pub(crate) struct Node {
    blocks: Namespace,
    count: u64,
    clocks: CpuClocks,
    data: PathBuf,
    _node: Running,
}

impl Node {
    pub(crate) fn start(program: Option<&Path>, dram_len: u64) -> Result<Self> {
        let program = match program {
            Some(program) => program.to_owned(),
            None => std::env::current_exe()?.with_file_name("terrace-node"),
        };
        anyhow::ensure!(
            program.is_file(),
            "{} is not there; run `cargo build --release -p terrace-node`, or give --node FILE",
            program.display()
        );
        let listen = format!("127.0.0.1:{}", free_port()?);
        let data = folder()?.join(format!("node-{}", std::process::id()));
        let mut command = Command::new(program);
        command.args(["--metrics", "off", "--nvme", "0", "--listen", &listen]);
        command.arg("--dram").arg(format!("{}MiB", dram_len >> 20));
        command.arg("--data").arg(&data);
        let mut node = Running::start(&mut command)?;
        node.line("ready")?;
        let mut config = ClientConfig::new(&listen);
        config.connections_per_shard = 8;
        let client = Client::connect(config).context("connect to the node")?;
        Ok(Self {
            blocks: client.namespace("serve")?,
            count: 0,
            clocks: CpuClocks::new(&[node.pid()])?,
            data,
            _node: node,
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // What is left of it is in a temporary folder.
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

impl Peer for Node {
    fn name(&self) -> &'static str {
        "terrace"
    }

    fn takes(&self, _: &Shape) -> bool {
        true
    }

    fn fill(&mut self, len: usize, count: u64) -> Result<()> {
        self.blocks.remove_all(&CallOptions::default())?;
        self.count = count;
        let value: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let mut worker = Caller(self.blocks.clone());
        for first in (0..count).step_by(FILL_BATCH as usize) {
            let keys: Vec<_> = (first..count.min(first + FILL_BATCH)).collect();
            worker.put(&keys, len, &value.repeat(keys.len()))?;
        }
        Ok(())
    }

    fn sample(&mut self, shape: &Shape, span: Duration, buffers: &mut Buffers) -> Result<Sample> {
        let worker = || Caller(self.blocks.clone());
        let mut workers: Vec<_> = (0..shape.threads).map(|_| worker()).collect();
        let workers = &mut workers;
        turn(shape, span, self.count, buffers, workers, &self.clocks)
    }
}

struct Caller(Namespace);

impl Worker for Caller {
    fn get(&mut self, keys: &[u64], len: usize, memory: &mut [u8]) -> Result<()> {
        let options = CallOptions::default();
        let is_whole = |found: &Lookup<Part>| match found {
            Lookup::Hit { value, .. } => value.len == len,
            _ => false,
        };
        let found = if let [key] = keys {
            vec![self.0.get_into(&key.to_le_bytes(), memory, &options)]
        } else {
            let names: Vec<_> = keys.iter().map(|key| key.to_le_bytes()).collect();
            let targets = names.iter().zip(memory.chunks_exact_mut(len));
            let targets = targets.map(|(key, memory)| Target {
                key,
                offset: 0,
                memory: vec![memory],
            });
            self.0.get_batch_into(targets.collect(), &options)
        };
        for found in found {
            let found = found?;
            anyhow::ensure!(is_whole(&found), "a get ended as {found:?}");
        }
        Ok(())
    }

    fn put(&mut self, keys: &[u64], len: usize, memory: &[u8]) -> Result<()> {
        let options = CallOptions::default();
        let stored = if let [key] = keys {
            vec![self.0.put(&key.to_le_bytes(), memory, &options)]
        } else {
            let names: Vec<_> = keys.iter().map(|key| key.to_le_bytes()).collect();
            let values: Vec<_> = memory.chunks_exact(len).map(|value| [value]).collect();
            let items = names.iter().zip(&values).map(|(key, value)| PutItem {
                key,
                value,
                hint: Hint::default(),
            });
            self.0.put_batch(&items.collect::<Vec<_>>(), &options)
        };
        for stored in stored {
            let stored = stored?;
            anyhow::ensure!(stored.is_present(), "a put ended as {stored:?}");
        }
        Ok(())
    }
}
