//! From what the node was told to what is in force: defaults from the machine, and every check.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_engine::{EngineConfig, HugepageMode, NvmeConfig, Pinning};
use terrace_server::ServerConfig;
use terrace_wire::limits::TOKEN_LEN_MAX;
use terrace_wire::token_of;

use crate::log::LogFormat;
use crate::machine;
use crate::rails;
use crate::settings::{Effective, Settings, SettingsError, address, byte_len};
use crate::tls;

const LISTEN: &str = "127.0.0.1:7440";
const METRICS: &str = "127.0.0.1:7441";
const DATA: &str = "terrace-data";
/// Name of the NVMe tier's file in the data folder.
const DEVICE_FILE: &str = "blocks.nvme";
/// Most connections that a configuration may ask for: two descriptors of 2^20 each.
const CONNECTIONS_MAX: usize = 1 << 19;
/// Longest wait that a configuration may ask for, in seconds.
const SECONDS_MAX: u64 = 24 * 3600;
/// A request that takes longer is slow: more than a read of a device by far.
const SLOW_MS: u64 = 100;
/// Shortest token: a shorter one is soon guessed.
const TOKEN_LEN_MIN: usize = 8;

impl Effective {
    /// The values in force, each checked by itself.
    pub(crate) fn of(settings: Settings) -> Result<Self, SettingsError> {
        let data = settings.data.unwrap_or_else(|| PathBuf::from(DATA));
        let dram = match &settings.dram {
            Some(text) => byte_len("dram", text)?,
            None => machine::dram_default(),
        };
        let devices = settings.devices.unwrap_or_default();
        let nvme = match &settings.nvme {
            Some(text) => byte_len("nvme", text)?,
            None if !devices.is_empty() => 0,
            // The file itself takes of what is free, and opens with its own length only.
            None => match data.join(DEVICE_FILE).metadata() {
                Ok(file) if file.len() > 0 => file.len(),
                _ => machine::nvme_default(&data, dram),
            },
        };
        let metrics = match settings.metrics.as_deref().unwrap_or(METRICS) {
            "off" => None,
            text => Some(address("metrics", text)?),
        };
        let rdma = settings.rdma.unwrap_or_else(|| rails::AUTO.to_owned());
        let has_tls = settings.tls_cert.is_some();
        let effective = Self {
            listen: address("listen", settings.listen.as_deref().unwrap_or(LISTEN))?,
            metrics,
            data,
            dram,
            nvme,
            devices,
            shards: settings.shards.unwrap_or_else(machine::shards_default),
            pinned: settings.pinned.unwrap_or(false),
            hugepages: settings.hugepages.unwrap_or_else(|| "prefer".to_owned()),
            policy: settings
                .policy
                .unwrap_or_else(|| EngineConfig::default().policy),
            token_file: settings.token_file,
            tls_cert: settings.tls_cert,
            tls_key: settings.tls_key,
            tls_client_ca: settings.tls_client_ca,
            one_sided: match settings.one_sided {
                Some(mode) => mode,
                None => rails::mode_default(&rdma, has_tls).to_owned(),
            },
            rdma,
            staging: match &settings.staging {
                Some(text) => byte_len("staging", text)?,
                None => rails::STAGING,
            },
            insecure: settings.insecure.unwrap_or(false),
            format: settings.format.unwrap_or(false),
            connections: settings.connections.unwrap_or(16_384),
            silence: settings.silence.unwrap_or(300),
            slow_ms: settings.slow_ms.unwrap_or(SLOW_MS),
            log_format: log_format(settings.log_format.as_deref())?,
            drain: settings.drain.unwrap_or(30),
        };
        effective.check()?;
        Ok(effective)
    }

    fn check(&self) -> Result<(), SettingsError> {
        let counts = [
            (
                "connections",
                self.connections as u64,
                CONNECTIONS_MAX as u64,
            ),
            ("silence", self.silence, SECONDS_MAX),
            ("drain", self.drain, SECONDS_MAX),
        ];
        for (field, value, most) in counts {
            if !(1..=most).contains(&value) {
                return Err(SettingsError::field(field, value, format!("1 to {most}")));
            }
        }
        if self.slow_ms > SECONDS_MAX * 1000 {
            let limit = format!("0 to {}", SECONDS_MAX * 1000);
            return Err(SettingsError::field("slow_ms", self.slow_ms, limit));
        }
        if !self.devices.is_empty() && self.nvme > 0 {
            let limit = "0, or none, when devices are given: they have lengths of their own";
            return Err(SettingsError::field("nvme", self.nvme, limit));
        }
        if self.data.as_os_str().is_empty() {
            return Err(SettingsError::field("data", "empty", "a folder"));
        }
        if self.metrics == Some(self.listen) && self.listen.port() != 0 {
            let limit = "another address than that of listen";
            return Err(SettingsError::field("metrics", self.listen, limit));
        }
        self.check_tls_files()?;
        rails::of(self)?;
        let is_guarded = self.token_file.is_some() || self.tls_client_ca.is_some();
        self.check_exposure("listen", self.listen, is_guarded)?;
        if let Some(metrics) = self.metrics {
            self.check_exposure("metrics", metrics, false)?;
        }
        self.engine()?
            .validate()
            .map_err(|error| engine_error(&error))
    }

    /// The files of TLS come together, or not at all.
    fn check_tls_files(&self) -> Result<(), SettingsError> {
        let needs = [
            ("tls_key", &self.tls_key, "tls_cert", &self.tls_cert),
            ("tls_cert", &self.tls_cert, "tls_key", &self.tls_key),
            (
                "tls_client_ca",
                &self.tls_client_ca,
                "tls_cert",
                &self.tls_cert,
            ),
        ];
        for (field, file, other, needed) in needs {
            if let Some(path) = file
                && needed.is_none()
            {
                let limit = format!("none, unless {other} is given too");
                return Err(SettingsError::field(field, path.display(), limit));
            }
        }
        Ok(())
    }

    /// Nobody is served beyond this machine who shows nothing, unless that is wanted.
    fn check_exposure(
        &self,
        field: &'static str,
        address: SocketAddr,
        is_guarded: bool,
    ) -> Result<(), SettingsError> {
        if address.ip().is_loopback() || is_guarded || self.insecure {
            return Ok(());
        }
        let limit = match field {
            "listen" => {
                "a loopback address, unless token_file or tls_client_ca is given or --insecure"
            }
            _ => "a loopback address, unless --insecure: it answers to anybody",
        };
        Err(SettingsError::field(field, address, limit))
    }

    /// The engine's configuration.
    pub(crate) fn engine(&self) -> Result<EngineConfig, SettingsError> {
        let hugepages = match self.hugepages.as_str() {
            "require" => HugepageMode::Require,
            "prefer" => HugepageMode::Prefer,
            "off" => HugepageMode::Off,
            other => {
                let limit = "require, prefer or off";
                return Err(SettingsError::field("hugepages", other, limit));
            }
        };
        let paths = if self.devices.is_empty() && self.nvme > 0 {
            vec![self.data.join(DEVICE_FILE)]
        } else {
            self.devices.clone()
        };
        Ok(EngineConfig {
            dram_bytes: self.dram,
            shards: self.shards,
            pinning: if self.pinned {
                Pinning::Pinned
            } else {
                Pinning::Unpinned
            },
            hugepages,
            policy: self.policy.clone(),
            nvme: NvmeConfig {
                paths,
                file_bytes: (self.nvme > 0).then_some(self.nvme),
                format: self.format,
                ..NvmeConfig::default()
            },
            ..EngineConfig::default()
        })
    }

    /// The server's configuration, but for the node's identity.
    pub(crate) fn server(&self) -> Result<ServerConfig, SettingsError> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        Ok(ServerConfig {
            token,
            tls: tls::of(self)?,
            connections_max: self.connections,
            silence_max: Duration::from_secs(self.silence),
            slow: Duration::from_millis(self.slow_ms),
            one_sided: rails::of(self)?,
            ..ServerConfig::default()
        })
    }
}

/// An error of the engine, in the node's words for its fields.
pub(crate) fn engine_error(error: &terrace_engine::Error) -> SettingsError {
    let terrace_engine::Error::Config {
        field,
        value,
        limit,
    } = error
    else {
        return SettingsError::field("engine", error, "what opens");
    };
    let field = match *field {
        "dram_bytes" => "dram",
        "nvme.file_bytes" => "nvme",
        "nvme.paths" => "devices",
        other => other,
    };
    SettingsError::field(field, value, limit.clone())
}

fn log_format(text: Option<&str>) -> Result<LogFormat, SettingsError> {
    match text {
        None | Some("text") => Ok(LogFormat::Text),
        Some("json") => Ok(LogFormat::Json),
        Some(other) => Err(SettingsError::field("log_format", other, "text or json")),
    }
}

fn read_token(path: &Path) -> Result<Vec<u8>, SettingsError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let limit = format!("a file that can be read ({error})");
        SettingsError::field("token_file", path.display(), limit)
    })?;
    let token = token_of(&text).filter(|token| token.len() >= TOKEN_LEN_MIN);
    let token = token.ok_or_else(|| {
        let limit = format!("a file whose first line has {TOKEN_LEN_MIN} to {TOKEN_LEN_MAX} bytes");
        SettingsError::field("token_file", path.display(), limit)
    })?;
    Ok(token.to_vec())
}
