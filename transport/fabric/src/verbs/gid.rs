//! GIDs: the addresses of a port, and which of them to use.
//!
//! A port has a table of them, whose order is the driver's and changes as addresses come and go:
//! they are chosen by type and prefix, never by a fixed place. The kernel's files tell the type
//! of each place; the library's call for it does not exist in all versions.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::str::FromStr;

use super::device::LinkLayer;
use super::error::VerbsError;

/// The global address of a port, 16 bytes in network order. Over Ethernet it is an IPv6 address,
/// or an IPv4 address mapped into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID that an address of an Ethernet port gives.
    #[must_use]
    pub fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }

    fn as_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    fn is_set(self) -> bool {
        self.0 != [0; 16]
    }

    /// How far the address reaches, for the choice among several: IPv4 before routable IPv6, as
    /// it is what most networks of this kind route, and addresses of one link last.
    fn rank(self) -> u8 {
        let address = self.as_ipv6();
        match address.to_ipv4_mapped() {
            Some(_) => 0,
            None if !address.is_unicast_link_local() => 1,
            None => 2,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ipv6().fmt(f)
    }
}

/// How packets with a GID look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: an Ethernet protocol of its own, which no router passes on.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// One place of a port's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidRecord {
    /// The place, which queue pairs name.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// How its packets look.
    pub kind: GidKind,
    /// The network interface it belongs to, when there is one.
    pub interface: Option<String>,
}

impl fmt::Display for GidRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.gid, self.kind)
    }
}

/// Which GID is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidChoice {
    /// On InfiniBand the first; on Ethernet RoCE v2, IPv4 first, addresses of one link last.
    #[default]
    Auto,
    /// This address, over RoCE v2 or InfiniBand.
    Exactly(Gid),
}

impl GidChoice {
    /// The place in `table` that is wanted, if there is one.
    #[must_use]
    pub fn pick(self, table: &[GidRecord]) -> Option<&GidRecord> {
        // Version 1 does not cross routers and is going away: never taken by itself.
        let usable = table
            .iter()
            .filter(|record| record.kind != GidKind::RoceV1 && record.gid.is_set());
        match self {
            Self::Auto => usable.min_by_key(|record| match record.kind {
                GidKind::InfiniBand => 0,
                _ => record.gid.rank(),
            }),
            Self::Exactly(gid) => usable.into_iter().find(|record| record.gid == gid),
        }
    }
}

impl fmt::Display for GidChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("InfiniBand or RoCE v2"),
            Self::Exactly(gid) => write!(f, "{gid}"),
        }
    }
}

impl FromStr for GidChoice {
    type Err = VerbsError;

    /// `auto`, or an address.
    fn from_str(text: &str) -> Result<Self, VerbsError> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let address: IpAddr = text.parse().map_err(|_| VerbsError::GidText {
            text: text.to_owned(),
        })?;
        Ok(Self::Exactly(Gid::from_ip(address)))
    }
}

/// Reads the table of a port from the kernel's folder of it, such as
/// `/sys/class/infiniband/mlx5_0/ports/1`. Empty places are left out.
pub(super) fn read_table(port: &Path, link: LinkLayer) -> Result<Vec<GidRecord>, VerbsError> {
    let folder = port.join("gids");
    let places = fs::read_dir(&folder).map_err(|error| sysfs(&folder, &error))?;
    let mut table = Vec::new();
    for place in places {
        let path = place.map_err(|error| sysfs(&folder, &error))?.path();
        let index = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        // Queue pairs name a place by one byte; what lies behind cannot be used.
        let Some(index) = index else { continue };
        if let Some(record) = read_place(port, index, link)? {
            table.push(record);
        }
    }
    table.sort_by_key(|record| record.index);
    Ok(table)
}

fn read_place(port: &Path, index: u8, link: LinkLayer) -> Result<Option<GidRecord>, VerbsError> {
    let read = |part: &str| {
        let path = port.join(part).join(index.to_string());
        fs::read_to_string(&path).map(|text| (text.trim().to_owned(), path))
    };
    // A place that is emptied meanwhile fails to read; so does the type of an empty one.
    let (Ok((text, path)), Ok((kind, _))) = (read("gids"), read("gid_attrs/types")) else {
        return Ok(None);
    };
    let address: Ipv6Addr = text.parse().map_err(|_| VerbsError::Sysfs {
        path: path.display().to_string(),
        cause: format!("`{text}` is no GID"),
    })?;
    let gid = Gid(address.octets());
    let kind = match (kind.as_str(), link) {
        ("RoCE v2", _) => GidKind::RoceV2,
        (_, LinkLayer::InfiniBand) => GidKind::InfiniBand,
        _ => GidKind::RoceV1,
    };
    let interface = read("gid_attrs/ndevs").ok().map(|(name, _)| name);
    Ok(gid.is_set().then_some(GidRecord {
        index,
        gid,
        kind,
        interface,
    }))
}

fn sysfs(path: &Path, error: &io::Error) -> VerbsError {
    VerbsError::Sysfs {
        path: path.display().to_string(),
        cause: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: u8, address: &str, kind: GidKind) -> GidRecord {
        GidRecord {
            index,
            gid: Gid::from_ip(address.parse().unwrap()),
            kind,
            interface: None,
        }
    }

    #[test]
    fn pick_auto_goes_by_type_and_prefix_not_by_place() {
        use GidKind::{InfiniBand, RoceV1, RoceV2};
        let pick = |table: &[GidRecord]| GidChoice::Auto.pick(table).map(|found| found.index);
        let local = record(0, "fe80::5054:ff:fe77:1", RoceV2);
        let old = record(1, "10.77.0.1", RoceV1);
        let new = record(2, "10.77.0.1", RoceV2);
        let global = record(3, "2001:db8::1", RoceV2);
        assert_eq!(
            pick(&[local.clone(), old.clone(), new, global.clone()]),
            Some(2)
        );
        assert_eq!(pick(&[local.clone(), global]), Some(3));
        assert_eq!(pick(&[old.clone(), local]), Some(0));
        assert_eq!(pick(&[old]), None);
        assert_eq!(pick(&[]), None);
        assert_eq!(pick(&[record(7, "fe80::1", InfiniBand)]), Some(7));
        assert_eq!(pick(&[record(0, "::", RoceV2)]), None);
    }

    #[test]
    fn pick_exact_address_is_found_or_missed() {
        let table = [
            record(4, "10.77.0.1", GidKind::RoceV1),
            record(5, "10.77.0.1", GidKind::RoceV2),
        ];
        let pick = |text: &str| text.parse::<GidChoice>().unwrap().pick(&table);
        assert_eq!(pick("10.77.0.1").map(|found| found.index), Some(5));
        assert_eq!(pick("::ffff:10.77.0.1").map(|found| found.index), Some(5));
        assert_eq!(pick("10.77.0.2"), None);
        let message = "eth0".parse::<GidChoice>().unwrap_err().to_string();
        assert!(message.contains("`eth0`"), "{message}");
    }

    #[test]
    fn read_table_skips_empty_places_and_names_bad_ones() {
        let port = std::env::temp_dir().join(format!("terrace-gids-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = port.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("gids/0", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
        write("gid_attrs/types/0", "IB/RoCE v1\n");
        write("gids/10", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
        write("gid_attrs/types/10", "RoCE v2\n");
        write("gid_attrs/ndevs/10", "eth0\n");
        write("gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        write("gid_attrs/types/2", "RoCE v2\n");
        write("gids/3", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        write("gids/300", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        let table = read_table(&port, LinkLayer::Ethernet).unwrap();
        let mut expected = [
            record(0, "10.77.0.1", GidKind::RoceV1),
            record(10, "10.77.0.1", GidKind::RoceV2),
        ];
        expected[1].interface = Some("eth0".to_owned());
        assert_eq!(table, expected);

        let on_infiniband = read_table(&port, LinkLayer::InfiniBand).unwrap();
        assert_eq!(on_infiniband[0].kind, GidKind::InfiniBand);

        write("gids/4", "not one\n");
        write("gid_attrs/types/4", "RoCE v2\n");
        let message = read_table(&port, LinkLayer::Ethernet)
            .unwrap_err()
            .to_string();
        assert!(message.contains("gids/4"), "{message}");
        fs::remove_dir_all(&port).unwrap();
        let message = read_table(&port, LinkLayer::Ethernet)
            .unwrap_err()
            .to_string();
        assert!(message.contains("gids"), "{message}");
    }
}
