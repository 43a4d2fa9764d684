//! What is wrong with a set, and what is odd about it.

use std::fmt::Write as _;

use terrace_types::Checksum;

use super::units::Unsound;

/// How much a finding means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Bytes are not those that were written.
    Damage,
    /// Odd, or what a crash leaves: nothing that was acknowledged is lost by it.
    Notice,
}

/// The block that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockName {
    /// Its namespace.
    pub namespace: String,
    /// Its key.
    pub key: Vec<u8>,
    /// Length of its payload in bytes.
    pub len: u32,
    /// Whether a get would be answered with it; `None` when it does not count, being damaged.
    pub live: Option<bool>,
}

impl BlockName {
    pub(super) fn new(namespace: &str, key: &[u8], len: u32) -> Self {
        Self {
            namespace: namespace.to_owned(),
            key: key.to_vec(),
            len,
            live: None,
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it means.
    pub severity: Severity,
    /// The device's place among those inspected.
    pub device: Option<usize>,
    /// The segment and the unit in it.
    pub segment: Option<(u32, u32)>,
    /// The block, when it is about one.
    pub block: Option<BlockName>,
    /// What it is.
    pub what: String,
}

impl Finding {
    pub(super) const fn damage(place: (usize, u32, u32), what: String) -> Self {
        Self::at(Severity::Damage, place, what)
    }

    pub(super) const fn notice(place: (usize, u32, u32), what: String) -> Self {
        Self::at(Severity::Notice, place, what)
    }

    const fn at(severity: Severity, place: (usize, u32, u32), what: String) -> Self {
        let (device, segment, unit) = place;
        Self {
            severity,
            device: Some(device),
            segment: Some((segment, unit)),
            block: None,
            what,
        }
    }

    pub(super) fn of_set(what: String) -> Self {
        Self {
            severity: Severity::Notice,
            device: None,
            segment: None,
            block: None,
            what,
        }
    }

    pub(super) fn of_device(device: usize, what: String) -> Self {
        Self {
            device: Some(device),
            ..Self::of_set(what)
        }
    }

    pub(super) fn damage_of_device(device: usize, what: String) -> Self {
        Self {
            severity: Severity::Damage,
            ..Self::of_device(device, what)
        }
    }

    pub(super) fn with(mut self, block: Option<BlockName>) -> Self {
        self.block = block;
        self
    }
}

impl Unsound {
    pub(super) fn describe(&self, expected: Checksum) -> String {
        match self {
            Self::Checksum(actual) => format!(
                "the payload's checksum is {:#018x}, its bytes have {:#018x}",
                expected.0, actual.0
            ),
            Self::Unreadable(error) => format!("the payload cannot be read: {error}"),
        }
    }
}

/// Bytes in hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The bytes as text, when all of them are printable ASCII.
#[must_use]
pub fn printable(bytes: &[u8]) -> Option<&str> {
    let is_printable = bytes.iter().all(|byte| (b' '..=b'~').contains(byte));
    std::str::from_utf8(bytes).ok().filter(|_| is_printable)
}
