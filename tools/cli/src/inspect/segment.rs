//! What a segment holds: by its footer, or by walking its frames and reading every payload.

use std::collections::HashMap;
use std::sync::Arc;

use terrace_nvme::format::{
    DeviceId, EntryKind, EntryRef, FooterView, FormatError, SegmentHead, Sequence,
    footer_len_from_tail, units,
};
use terrace_types::Checksum;

use super::Finding;
use super::units::UnitReader;
use super::walk;

/// How a segment was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Its head is zero.
    Free,
    /// It has a valid footer.
    Sealed,
    /// It has a head and no frame: it was made ready to be written.
    Ready,
    /// It has frames and no footer: they were walked.
    Unsealed,
    /// Its footer is damaged: its frames were walked.
    FooterDamaged,
    /// Its head is neither valid nor zero, so nothing in it counts.
    HeadDamaged,
    /// Its head cannot be read.
    Unreadable,
}

impl SegmentState {
    /// One word for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Sealed => "sealed",
            Self::Ready => "ready",
            Self::Unsealed => "unsealed",
            Self::FooterDamaged => "footer-damaged",
            Self::HeadDamaged => "head-damaged",
            Self::Unreadable => "unreadable",
        }
    }
}

/// An entry of a segment, owned.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What it is.
    pub kind: EntryKind,
    /// Its namespace, by number.
    pub name: u32,
    /// Its key.
    pub key: Box<[u8]>,
    /// Orders it among those of its key.
    pub sequence: Sequence,
    /// Checksum of the payload.
    pub checksum: Checksum,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Where the payload is, in units from the start of the segment.
    pub place: u32,
    /// Whether a get would be answered with it.
    pub live: bool,
    /// Whether its payload was found to be damaged.
    pub damaged: bool,
}

/// A segment as it was found.
#[derive(Debug)]
pub struct Segment {
    /// The device's place among those inspected.
    pub device: usize,
    /// Its number on the device.
    pub number: u32,
    /// Its head, when valid.
    pub head: Option<SegmentHead>,
    /// How it was found.
    pub state: SegmentState,
    /// Unit behind the last frame.
    pub end_units: u32,
    /// Its entries, those with an unsound payload left out when it was walked.
    pub entries: Vec<Entry>,
    /// Names that its entries refer to, until they are numbered for all segments.
    pub names: Vec<Arc<str>>,
    /// What is wrong with it, and what is odd.
    pub findings: Vec<Finding>,
}

/// The segment to read.
#[derive(Clone, Copy, Debug)]
pub struct SegmentPlace {
    /// The device's place among those inspected.
    pub device: usize,
    /// The device's id, when known.
    pub id: Option<DeviceId>,
    /// The segment's number.
    pub number: u32,
    /// Length of a segment in bytes.
    pub segment_len: u64,
    /// The open epoch that a clean close ended, if one did: nothing of it was cut off.
    pub clean_epoch: Option<u32>,
}

/// Numbers names in the order they come.
#[derive(Default)]
pub struct Names {
    /// By number.
    pub list: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Names {
    /// The number of a name, a new one when it is new.
    pub fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name: Arc<str> = name.into();
        let number = self.list.len() as u32;
        self.list.push(Arc::clone(&name));
        self.numbers.insert(name, number);
        number
    }

    /// An entry, owned.
    pub(super) fn own(&mut self, entry: &EntryRef<'_>) -> Entry {
        Entry {
            kind: entry.kind,
            name: self.number(entry.namespace),
            key: entry.key.into(),
            sequence: entry.sequence,
            checksum: entry.checksum,
            len: entry.len,
            place: entry.place,
            live: false,
            damaged: false,
        }
    }
}

impl Segment {
    fn new(place: &SegmentPlace, state: SegmentState) -> Self {
        Self {
            device: place.device,
            number: place.number,
            head: None,
            state,
            end_units: 0,
            entries: Vec::new(),
            names: Vec::new(),
            findings: Vec::new(),
        }
    }

    fn damaged(mut self, what: String) -> Self {
        let place = (self.device, self.number, 0);
        self.findings.push(Finding::damage(place, what));
        self
    }
}

/// Reads a segment.
#[must_use]
pub fn read(reader: &mut UnitReader<'_>, place: &SegmentPlace) -> Segment {
    let unit = match reader.fetch(0, 1) {
        Ok(unit) => unit,
        Err(error) => {
            let segment = Segment::new(place, SegmentState::Unreadable);
            return segment.damaged(format!("the segment head cannot be read: {error}"));
        }
    };
    if unit.bytes().iter().all(|byte| *byte == 0) {
        return Segment::new(place, SegmentState::Free);
    }
    let head = match SegmentHead::decode(unit.bytes()) {
        Ok(head) => head,
        Err(error) => {
            return Segment::new(place, SegmentState::HeadDamaged).damaged(error.to_string());
        }
    };
    if let Some(what) = misplaced(&head, place) {
        return Segment::new(place, SegmentState::HeadDamaged).damaged(what);
    }
    let mut segment = Segment::new(place, SegmentState::Sealed);
    segment.head = Some(head);
    match by_footer(reader, &mut segment, &head) {
        Footer::Valid => return segment,
        Footer::None => segment.state = SegmentState::Unsealed,
        Footer::Damaged(what) => {
            let at = reader.units.saturating_sub(1);
            let what = format!("{what}; its frames were walked");
            let found = Finding::damage((place.device, place.number, at), what);
            segment.findings.push(found);
            segment.state = SegmentState::FooterDamaged;
        }
    }
    let is_clean = place.clean_epoch == Some(head.sequence.open_epoch());
    walk::walk(reader, &mut segment, &head, is_clean);
    segment
}

/// How a head that is valid in itself does not belong here.
fn misplaced(head: &SegmentHead, place: &SegmentPlace) -> Option<String> {
    if place.id.is_some_and(|id| id != head.device) {
        return Some(format!("the segment head is of device {}", head.device));
    }
    if head.number != place.number {
        return Some(format!("the segment head is of segment {}", head.number));
    }
    let len = head.len;
    (len != place.segment_len).then(|| format!("the segment head is of one of {len} bytes"))
}

enum Footer {
    Valid,
    None,
    Damaged(String),
}

fn by_footer(reader: &UnitReader<'_>, segment: &mut Segment, head: &SegmentHead) -> Footer {
    let (identity, all) = (head.identity(), reader.units);
    let unreadable = |error| Footer::Damaged(format!("the footer cannot be read: {error}"));
    let tail = match reader.fetch(all - 1, 1) {
        Ok(tail) => tail,
        Err(error) => return unreadable(error),
    };
    let len = match footer_len_from_tail(tail.bytes(), &identity, all) {
        Ok(len) => len,
        // Payload or free space, or the footer of an earlier life.
        Err(FormatError::NotOurs { .. }) => return Footer::None,
        Err(FormatError::Field {
            field: "segment sequence",
            ..
        }) => return Footer::None,
        Err(error) => return Footer::Damaged(error.to_string()),
    };
    let count = units(len);
    let footer = match count {
        1 => Ok(tail),
        _ => reader.fetch(all.saturating_sub(count), count),
    };
    let footer = match footer {
        Ok(footer) => footer,
        Err(error) => return unreadable(error),
    };
    let view = match FooterView::decode(footer.bytes(), &identity, all) {
        Ok(view) => view,
        Err(error) => return Footer::Damaged(error.to_string()),
    };
    let mut names = Names::default();
    segment.end_units = view.end_units;
    segment.entries = view.entries().map(|entry| names.own(&entry)).collect();
    segment.names = names.list;
    Footer::Valid
}
