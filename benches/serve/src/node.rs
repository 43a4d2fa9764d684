//! The node as a child, and the blocking client.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use terrace_client::blocking::{Client, Namespace};
use terrace_client::{CallOptions, ClientConfig, Part, PutItem, Target, TlsOptions};
use terrace_types::{Hint, Lookup};

use crate::measure::{Buffers, CpuClocks, Sample, turn};
use crate::peer::{Peer, Worker};
use crate::processes::{Running, folder, free_port};
use crate::shape::Shape;

/// Blocks of a call while it is filled.
const FILL_BATCH: u64 = 16;

pub(crate) struct Node {
    name: &'static str,
    blocks: Namespace,
    count: u64,
    clocks: CpuClocks,
    data: PathBuf,
    _node: Running,
}

impl Node {
    /// A node that speaks TLS or does not, and a client for it.
    pub(crate) fn start(program: Option<&Path>, dram_len: u64, has_tls: bool) -> Result<Self> {
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
        let name = if has_tls { "terrace, TLS" } else { "terrace" };
        let data = folder()?.join(format!("node-{}-{has_tls}", std::process::id()));
        let mut command = Command::new(program);
        command.args(["--metrics", "off", "--nvme", "0", "--listen", &listen]);
        command.arg("--dram").arg(format!("{}MiB", dram_len >> 20));
        command.arg("--data").arg(&data);
        let mut config = ClientConfig::new(&listen);
        if has_tls {
            let [certificate, key] = write_certificate(&data)?;
            command.arg("--tls-cert").arg(&certificate);
            command.arg("--tls-key").arg(key);
            let pem = std::fs::read(certificate).context("read the certificate")?;
            config.tls = Some(TlsOptions::new(&pem));
        }
        let mut node = Running::start(&mut command)?;
        node.line("ready")?;
        config.connections_per_shard = 8;
        let client = Client::connect(config).context("connect to the node")?;
        Ok(Self {
            name,
            blocks: client.namespace("serve")?,
            count: 0,
            clocks: CpuClocks::new(&[node.pid()])?,
            data,
            _node: node,
        })
    }
}

/// Files of a certificate for the loopback that is its own CA, and of its key, in a new folder.
fn write_certificate(folder: &Path) -> Result<[PathBuf; 2]> {
    let names = vec!["127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).context("make a certificate")?;
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let texts = [
        ("node.pem", made.cert.pem()),
        ("node.key", made.signing_key.serialize_pem()),
    ];
    let files = texts.map(|(name, text)| -> Result<PathBuf> {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        // The node takes no key that others may read.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))
            .with_context(|| format!("protect {}", path.display()))?;
        Ok(path)
    });
    let [certificate, key] = files;
    Ok([certificate?, key?])
}

impl Drop for Node {
    fn drop(&mut self) {
        // What is left of it is in a temporary folder.
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

impl Peer for Node {
    fn name(&self) -> &'static str {
        self.name
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
