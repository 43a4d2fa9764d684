//! How clients read the node's memory by themselves, as the settings ask for and the machine allows.

use std::fmt::Write;

use terrace_fabric::verbs::{
    Device, GidChoice, PortState, RdmaConfig, RdmaTransport, VerbsError, device_names,
};
use terrace_server::{OneSidedConfig, OneSidedReach};

use crate::settings::{Effective, SettingsError};

/// All devices that carry packets.
pub(crate) const AUTO: &str = "auto";

const OFF: &str = "off";
const STAGED: &str = "staged";
const ARENA: &str = "arena";

/// Memory for the copies of one client.
pub(crate) const STAGING: u64 = 64 << 20;

/// What a client may have for copies, in bytes.
const STAGING_RANGE: (u64, u64) = (1 << 20, 1 << 40);

/// Most clients that have memory for copies at once.
const CLIENTS_MAX: usize = 64;

/// Whether RDMA may be used, and the devices that are named.
fn devices(rdma: &str) -> Option<Vec<String>> {
    match rdma {
        OFF => None,
        AUTO => Some(Vec::new()),
        names => Some(
            names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
        ),
    }
}

/// What is in force when nobody says: copies where there is RDMA, unless clients come by TLS, as what
/// goes over rails is not encrypted.
pub(crate) fn mode_default(rdma: &str, has_tls: bool) -> &'static str {
    let has_rdma = match devices(rdma) {
        None => false,
        Some(names) => !names.is_empty() || device_names().is_ok_and(|found| !found.is_empty()),
    };
    if has_rdma && !has_tls { STAGED } else { OFF }
}

/// What the settings ask for.
pub(crate) fn of(values: &Effective) -> Result<Option<OneSidedConfig>, SettingsError> {
    let (least, most) = STAGING_RANGE;
    if !(least..=most).contains(&values.staging) {
        let limit = "1 MiB to 1 TiB";
        return Err(SettingsError::field("staging", values.staging, limit));
    }
    let named = devices(&values.rdma);
    if named.iter().flatten().any(String::is_empty) {
        let limit = "auto, off, or names of devices with commas between them, as mlx5_0,mlx5_1/2";
        return Err(SettingsError::field("rdma", &values.rdma, limit));
    }
    let reach = match values.one_sided.as_str() {
        OFF => return Ok(None),
        STAGED => OneSidedReach::Staged {
            client_len: values.staging,
            clients_max: CLIENTS_MAX,
        },
        ARENA => OneSidedReach::Arena,
        other => {
            let limit = "off, staged or arena";
            return Err(SettingsError::field("one_sided", other, limit));
        }
    };
    Ok(Some(OneSidedConfig {
        reach,
        hosts: vec![values.listen.ip()],
        rdma: named.map_or(Ok(None), |devices| usable(&values.rdma, devices))?,
        skip_fence: false,
    }))
}

/// RDMA over these devices, or all there are if none is named. `None`: rails go over TCP, as no device
/// carries packets now.
fn usable(rdma: &str, devices: Vec<String>) -> Result<Option<RdmaConfig>, SettingsError> {
    let is_named = !devices.is_empty();
    let config = RdmaConfig {
        devices,
        ..RdmaConfig::default()
    };
    let refused = |error: VerbsError| {
        let limit = format!("a device that can be used ({error})");
        Err(SettingsError::field("rdma", rdma, limit))
    };
    match RdmaTransport::open(&config) {
        Ok(_) => Ok(Some(config)),
        Err(error) if is_named => refused(error),
        Err(_) => match device_names() {
            Err(error) if !error.is_absent() => refused(error),
            _ => Ok(None),
        },
    }
}

/// What there is of RDMA in the machine, line by line, with what is missing.
pub(crate) fn report() -> String {
    let mut text = String::new();
    let mut say = |line: std::fmt::Arguments<'_>| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "# {line}");
    };
    match device_names() {
        Err(error) => say(format_args!("{error}")),
        Ok(names) if names.is_empty() => say(format_args!("{}", VerbsError::NoDevice)),
        Ok(names) => {
            for name in &names {
                match Device::open(name) {
                    Err(error) => say(format_args!("RDMA device {name}: {error}")),
                    Ok(device) => report_device(&device, &mut say),
                }
            }
        }
    }
    let memlock = terrace_fabric::verbs::memlock_limit();
    let memlock = memlock.map_or_else(|| "none".to_owned(), |limit| format!("{limit} bytes"));
    say(format_args!("limit of locked memory: {memlock}"));
    text
}

fn report_device(device: &Device, say: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    let (name, limits) = (device.name(), device.limits());
    say(format_args!(
        "RDMA device {name}: regions of {} bytes at most, {} requests a queue, {} completions a queue",
        limits.region_len_max, limits.queue_depth_max, limits.completion_depth_max
    ));
    for number in 1..=limits.port_count {
        let port = match device.port(number) {
            Ok(port) => port,
            Err(error) => {
                say(format_args!("  rail {name}/{number}: {error}"));
                continue;
            }
        };
        let gid = match device.gid(number, GidChoice::default()) {
            Ok(record) => format!("GID {} at {}", record.gid, record.index),
            Err(error) => error.to_string(),
        };
        let unused = if port.state == PortState::Active {
            ""
        } else {
            ", goes unused"
        };
        say(format_args!(
            "  rail {name}/{number}: {}, {}, MTU {}, {gid}{unused}",
            port.link,
            port.state,
            port.mtu.bytes()
        ));
    }
}
