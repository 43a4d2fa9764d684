//! What the node is told: by a file, by the environment, by flags, each stronger than the one
//! before.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use terrace_types::ByteLen;

use crate::log::LogFormat;

/// What one source says; what it leaves out is left to the weaker ones.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Address to serve clients on.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Address of the admin interface over HTTP, metrics and health; `off` for none.
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    /// Folder of the node's identity and of its NVMe tier's file.
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// DRAM for blocks, as 4GiB.
    #[arg(long, value_name = "SIZE")]
    pub(crate) dram: Option<String>,
    /// Length of the NVMe tier's file in the data folder, as 64GiB; 0 for no such tier.
    #[arg(long, value_name = "SIZE")]
    pub(crate) nvme: Option<String>,
    /// Block devices or files of the NVMe tier, in place of a file in the data folder. May be
    /// given several times.
    #[arg(long = "device", value_name = "PATH")]
    #[serde(default, rename = "devices")]
    pub(crate) devices: Option<Vec<PathBuf>>,
    /// Shards, each on a thread of its own.
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<usize>,
    /// Whether each shard stays on a processor of its own.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) pinned: Option<bool>,
    /// Whether DRAM lies on hugepages: require, prefer or off.
    #[arg(long, value_name = "MODE")]
    pub(crate) hugepages: Option<String>,
    /// Policy of the DRAM tier, by name.
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// File whose first line, 8 to 1024 bytes, clients have to show.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file of the certificate that clients are shown, and of those that lead to its CA: clients
    /// come by TLS only.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file of the certificate's private key.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// PEM file of CAs; clients have to show a certificate of one of them.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// RDMA devices for one-sided reads and pulled puts: auto for all that carry packets, off, or
    /// names with commas between them.
    #[arg(long, value_name = "auto|off|DEVICE,...")]
    pub(crate) rdma: Option<String>,
    /// What clients read by themselves: staged, copies for each client alone; arena, any block of the
    /// node; or off.
    #[arg(long, value_name = "MODE")]
    pub(crate) one_sided: Option<String>,
    /// Memory for the copies of one client, as 64MiB.
    #[arg(long, value_name = "SIZE")]
    pub(crate) staging: Option<String>,
    /// Listen beyond this machine though clients show nothing.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) insecure: Option<bool>,
    /// Take files and devices though they hold something else; that is lost.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) format: Option<bool>,
    /// Most connections at once.
    #[arg(long, value_name = "N")]
    pub(crate) connections: Option<usize>,
    /// Seconds after which a silent client without pins and leases is closed.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) silence: Option<u64>,
    /// Milliseconds from which on a request is slow: it is told at /slow and in the log; 0 for none.
    #[arg(long, value_name = "MS")]
    pub(crate) slow_ms: Option<u64>,
    /// How lines of the log look: text or json.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,
    /// Seconds that a stop may take to answer what is under way and to write blocks down.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) drain: Option<u64>,
}

/// Why settings are of no use: at most three lines, with field, value and limit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("read {}: {cause}; give --config an existing file", path.display())]
    Read {
        path: PathBuf,
        cause: std::io::Error,
    },
    #[error("{}: {what}", path.display())]
    Parse { path: PathBuf, what: String },
    #[error("{field} is {value}; allowed is {limit}")]
    Field {
        field: &'static str,
        value: String,
        limit: String,
    },
    #[error("{name} is set and not known; known are {known}")]
    UnknownVariable { name: String, known: String },
}

impl SettingsError {
    pub(crate) fn field(
        field: &'static str,
        value: impl ToString,
        limit: impl Into<String>,
    ) -> Self {
        Self::Field {
            field,
            value: value.to_string(),
            limit: limit.into(),
        }
    }
}

const PREFIX: &str = "TERRACE_";

/// Variables that other programs and the tests of the project read.
const FOREIGN: [&str; 15] = [
    "TERRACE_ADDR",
    "TERRACE_NAMESPACE",
    "TERRACE_CLIENT_TLS_CA",
    "TERRACE_CLIENT_TLS_CERT",
    "TERRACE_CLIENT_TLS_KEY",
    "TERRACE_CLIENT_TLS_NAME",
    "TERRACE_TRACES",
    "TERRACE_SIM_SEED",
    "TERRACE_SIM_SEEDS",
    "TERRACE_CUT",
    "TERRACE_CUTS",
    "TERRACE_KILLS",
    "TERRACE_OUTAGE_SECONDS",
    "TERRACE_FUZZ_SECONDS",
    "TERRACE_IDLE_CONNECTIONS",
];

/// Whether Kubernetes sets a variable in every container beside a Service named `terrace`.
fn is_of_service(field: &str) -> bool {
    field == "PORT" || field.starts_with("PORT_") || field.starts_with("SERVICE_")
}

/// The names of all fields, as a config file and, in capitals, the environment have them.
pub(crate) const FIELDS: [&str; 24] = [
    "listen",
    "metrics",
    "data",
    "dram",
    "nvme",
    "devices",
    "shards",
    "pinned",
    "hugepages",
    "policy",
    "token_file",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "rdma",
    "one_sided",
    "staging",
    "insecure",
    "format",
    "connections",
    "silence",
    "slow_ms",
    "log_format",
    "drain",
];

impl Settings {
    /// Those of a TOML file.
    pub(crate) fn of_file(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|cause| SettingsError::Read {
            path: path.to_owned(),
            cause,
        })?;
        toml::from_str(&text).map_err(|error| SettingsError::Parse {
            path: path.to_owned(),
            what: one_line(&text, &error),
        })
    }

    /// Those of the environment, `TERRACE_LISTEN` and others.
    pub(crate) fn of_environment(
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        for (name, value) in variables {
            let Some(field) = name.strip_prefix(PREFIX) else {
                continue;
            };
            let is_foreign = FOREIGN.contains(&name.as_str()) || is_of_service(field);
            if is_foreign || field == "CONFIG" || field == "LOG" {
                continue;
            }
            settings.set(&name, &field.to_ascii_lowercase(), value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, field: &str, value: String) -> Result<(), SettingsError> {
        match field {
            "listen" => self.listen = Some(value),
            "metrics" => self.metrics = Some(value),
            "data" => self.data = Some(value.into()),
            "dram" => self.dram = Some(value),
            "nvme" => self.nvme = Some(value),
            "devices" => self.devices = Some(value.split(':').map(PathBuf::from).collect()),
            "shards" => self.shards = Some(parse("shards", &value, "a count")?),
            "pinned" => self.pinned = Some(parse("pinned", &value, "true or false")?),
            "hugepages" => self.hugepages = Some(value),
            "policy" => self.policy = Some(value),
            "token_file" => self.token_file = Some(value.into()),
            "tls_cert" => self.tls_cert = Some(value.into()),
            "tls_key" => self.tls_key = Some(value.into()),
            "tls_client_ca" => self.tls_client_ca = Some(value.into()),
            "rdma" => self.rdma = Some(value),
            "one_sided" => self.one_sided = Some(value),
            "staging" => self.staging = Some(value),
            "insecure" => self.insecure = Some(parse("insecure", &value, "true or false")?),
            "format" => self.format = Some(parse("format", &value, "true or false")?),
            "connections" => self.connections = Some(parse("connections", &value, "a count")?),
            "silence" => self.silence = Some(parse("silence", &value, "a count of seconds")?),
            "slow_ms" => self.slow_ms = Some(parse("slow_ms", &value, "a count of milliseconds")?),
            "log_format" => self.log_format = Some(value),
            "drain" => self.drain = Some(parse("drain", &value, "a count of seconds")?),
            _ => {
                return Err(SettingsError::UnknownVariable {
                    name: name.to_owned(),
                    known: FIELDS
                        .map(|field| format!("{PREFIX}{}", field.to_ascii_uppercase()))
                        .join(", "),
                });
            }
        }
        Ok(())
    }

    /// These, and from `weaker` what they leave out.
    pub(crate) fn or(self, weaker: Self) -> Self {
        Self {
            listen: self.listen.or(weaker.listen),
            metrics: self.metrics.or(weaker.metrics),
            data: self.data.or(weaker.data),
            dram: self.dram.or(weaker.dram),
            nvme: self.nvme.or(weaker.nvme),
            devices: self.devices.or(weaker.devices),
            shards: self.shards.or(weaker.shards),
            pinned: self.pinned.or(weaker.pinned),
            hugepages: self.hugepages.or(weaker.hugepages),
            policy: self.policy.or(weaker.policy),
            token_file: self.token_file.or(weaker.token_file),
            tls_cert: self.tls_cert.or(weaker.tls_cert),
            tls_key: self.tls_key.or(weaker.tls_key),
            tls_client_ca: self.tls_client_ca.or(weaker.tls_client_ca),
            rdma: self.rdma.or(weaker.rdma),
            one_sided: self.one_sided.or(weaker.one_sided),
            staging: self.staging.or(weaker.staging),
            insecure: self.insecure.or(weaker.insecure),
            format: self.format.or(weaker.format),
            connections: self.connections.or(weaker.connections),
            silence: self.silence.or(weaker.silence),
            slow_ms: self.slow_ms.or(weaker.slow_ms),
            log_format: self.log_format.or(weaker.log_format),
            drain: self.drain.or(weaker.drain),
        }
    }
}

/// A TOML error on one line, with the line it is about.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', " ");
    match error.span() {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or_default();
            let line = before.matches('\n').count();
            // It names the field, which the message need not.
            let shown: String = text
                .lines()
                .nth(line)
                .unwrap_or_default()
                .trim()
                .chars()
                .take(80)
                .collect();
            format!("line {}, `{shown}`: {message}", line + 1)
        }
        None => message,
    }
}

pub(crate) fn parse<T: std::str::FromStr>(
    field: &'static str,
    value: &str,
    limit: &str,
) -> Result<T, SettingsError> {
    value
        .parse()
        .map_err(|_| SettingsError::field(field, value, limit))
}

/// A byte length of a field.
pub(crate) fn byte_len(field: &'static str, value: &str) -> Result<u64, SettingsError> {
    let len: ByteLen = value
        .parse()
        .map_err(|error: terrace_types::ParseByteLenError| {
            SettingsError::field(field, value, format!("a length: {error}"))
        })?;
    Ok(len.0)
}

/// The address of a field.
pub(crate) fn address(field: &'static str, value: &str) -> Result<SocketAddr, SettingsError> {
    parse(
        field,
        value,
        "an address and a port, as 127.0.0.1:7440 or [::1]:7440",
    )
}

/// Values in force, as `--check` and `/config` show them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Effective {
    pub(crate) listen: SocketAddr,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) data: PathBuf,
    pub(crate) dram: u64,
    pub(crate) nvme: u64,
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) shards: usize,
    pub(crate) pinned: bool,
    pub(crate) hugepages: String,
    pub(crate) policy: String,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_client_ca: Option<PathBuf>,
    pub(crate) rdma: String,
    pub(crate) one_sided: String,
    pub(crate) staging: u64,
    pub(crate) insecure: bool,
    pub(crate) format: bool,
    pub(crate) connections: usize,
    pub(crate) silence: u64,
    pub(crate) slow_ms: u64,
    pub(crate) log_format: LogFormat,
    pub(crate) drain: u64,
}
