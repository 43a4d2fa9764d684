//! How far devices are from memory: NUMA nodes and where each device is attached, from sysfs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use super::chooser::{Distances, NODE_COUNT_MAX};

/// The distance that sysfs gives a node from itself.
const LOCAL_DISTANCE: f64 = 10.0;

/// Nodes, their distances, and the node of each network device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// Distances of each node to all nodes, 1 for its own.
    nodes: Vec<Vec<f64>>,
    /// The node that a device is attached to; none where the machine does not say.
    devices: BTreeMap<String, Option<usize>>,
    /// Distances that were given instead.
    given: BTreeMap<(String, usize), f64>,
}

impl Topology {
    /// What this machine says of itself. What it does not say counts as near.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::read(Path::new("/sys"))
    }

    fn read(sysfs: &Path) -> Self {
        let mut topology = Self::default();
        for node in 0..NODE_COUNT_MAX {
            let file = sysfs.join(format!("devices/system/node/node{node}/distance"));
            let Ok(text) = fs::read_to_string(file) else {
                break;
            };
            let far = |word: &str| word.parse().map_or(1.0, |far: f64| far / LOCAL_DISTANCE);
            topology
                .nodes
                .push(text.split_whitespace().map(far).collect());
        }
        for class in ["class/net", "class/infiniband"] {
            let devices = fs::read_dir(sysfs.join(class))
                .into_iter()
                .flatten()
                .flatten();
            for device in devices {
                let node = fs::read_to_string(device.path().join("device/numa_node"));
                // -1: the device belongs to no node in particular.
                let node = node.ok().and_then(|text| text.trim().parse().ok());
                let name = device.file_name().to_string_lossy().into_owned();
                topology.devices.insert(name, node);
            }
        }
        topology
    }

    /// Takes `distance` for the truth about `device` and memory of `node`: 1 is beside it, 2 takes
    /// twice the time. Distances below 1 and nodes that cannot be are left out.
    #[must_use]
    pub fn with(mut self, device: &str, node: usize, distance: f64) -> Self {
        if distance >= 1.0 && distance.is_finite() && node < NODE_COUNT_MAX {
            self.given.insert((device.to_owned(), node), distance);
            self.devices.entry(device.to_owned()).or_default();
        }
        self
    }

    /// How far `device` is from memory of `node`.
    #[must_use]
    pub fn distance(&self, device: &str, node: usize) -> f64 {
        if let Some(distance) = self.given.get(&(device.to_owned(), node)) {
            return *distance;
        }
        let of_device = self.devices.get(device).copied().flatten();
        let distances = of_device.and_then(|of_device| self.nodes.get(of_device));
        distances
            .and_then(|distances| distances.get(node))
            .map_or(1.0, |far| far.max(1.0))
    }

    /// The distances of a device from all nodes.
    pub(super) fn distances(&self, device: Option<&str>) -> Distances {
        let mut distances = Distances::default();
        if let Some(device) = device {
            for (node, distance) in distances.0.iter_mut().enumerate() {
                *distance = self.distance(device, node);
            }
        }
        distances
    }
}

/// A row for each device, a column for each node.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.len().max(1);
        write!(f, "{:16}", "device")?;
        for node in 0..nodes {
            write!(f, " {:>6}", format!("node{node}"))?;
        }
        for device in self.devices.keys() {
            write!(f, "\n{device:16}")?;
            for node in 0..nodes {
                write!(f, " {:>6.2}", self.distance(device, node))?;
            }
        }
        Ok(())
    }
}

/// The network interface that has an address.
pub(super) fn interface_of(address: std::net::IpAddr) -> Option<String> {
    let interfaces = nix::ifaddrs::getifaddrs().ok()?;
    let is_that = |interface: &nix::ifaddrs::InterfaceAddress| {
        let Some(storage) = &interface.address else {
            return false;
        };
        match address {
            std::net::IpAddr::V4(wanted) => storage
                .as_sockaddr_in()
                .is_some_and(|has| has.ip() == wanted),
            std::net::IpAddr::V6(wanted) => storage
                .as_sockaddr_in6()
                .is_some_and(|has| has.ip() == wanted),
        }
    };
    let mut named = interfaces.filter(is_that);
    named.next().map(|interface| interface.interface_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_sockets() -> Topology {
        Topology {
            nodes: vec![vec![1.0, 2.1], vec![2.1, 1.0]],
            devices: BTreeMap::from([
                ("eth0".to_owned(), Some(0)),
                ("mlx5_1".to_owned(), Some(1)),
                ("veth0".to_owned(), None),
            ]),
            given: BTreeMap::new(),
        }
    }

    #[test]
    fn matrix_is_printed_and_can_be_overridden() {
        let topology = two_sockets().with("eth0", 1, 1.5).with("eth0", 0, 0.1);
        let expected = "device            node0  node1\n\
                        eth0               1.00   1.50\n\
                        mlx5_1             2.10   1.00\n\
                        veth0              1.00   1.00";
        assert_eq!(topology.to_string(), expected);
        assert_eq!(topology.distances(Some("mlx5_1")).0[0], 2.1);
        assert_eq!(topology.distances(None), Distances::default());
    }

    #[test]
    fn this_machine_can_be_read() {
        let topology = Topology::of_machine();
        assert!(topology.to_string().starts_with("device"));
        let loopback = interface_of(std::net::Ipv4Addr::LOCALHOST.into());
        assert!(loopback.is_none_or(|name| topology.distance(&name, 0) >= 1.0));
    }
}
