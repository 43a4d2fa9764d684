//! Walking the frames of a segment without a footer, as recovery does.
//!
//! What a crash cuts off is no damage: the frames behind the last one that is whole were never
//! acknowledged as durable, unless a clean close says that they were.

use terrace_nvme::format::{EntryKind, EntryRef, FrameView, SegmentHead, units};

use super::segment::{Names, Segment, SegmentState};
use super::units::{UnitReader, Unsound};
use super::{BlockName, Finding};

/// What is broken, and where.
struct Broken {
    unit: u32,
    what: String,
    block: Option<BlockName>,
}

struct Walk {
    names: Names,
    broken: Vec<Broken>,
    /// Unit behind the last frame of which everything is sound.
    whole_end: u32,
    /// The number that the next frame has, when none was lost.
    next_number: u32,
    /// First of the units that the device does not give, and their count.
    unreadable: Option<(u32, u32)>,
}

//= docs/on-disk-format.md#OD-8
/// Fills a segment with what its frames hold.
pub(super) fn walk(
    reader: &mut UnitReader<'_>,
    segment: &mut Segment,
    head: &SegmentHead,
    is_clean: bool,
) {
    let identity = head.identity();
    let mut walk = Walk {
        names: Names::default(),
        broken: Vec::new(),
        whole_end: 1,
        next_number: 0,
        unreadable: None,
    };
    segment.end_units = 1;
    let mut at = 1;
    while at < reader.given {
        match head_at(reader, head, at) {
            Ok(Some(bytes)) => at = take_frame(reader, segment, head, (at, &bytes), &mut walk),
            Ok(None) => {
                let (first, count) = walk.unreadable.unwrap_or((at, 0));
                walk.unreadable = Some((first, count + 1));
                at += 1;
            }
            Err(what) => {
                if reader.carries(at, &identity) {
                    let magic = reader.piece(at, 1).map(Magic::of);
                    let magic = magic.unwrap_or(Magic::Neither);
                    broken_structure(segment, &mut walk, (at, what, magic));
                }
                at += 1;
            }
        }
    }
    segment.names = walk.names.list;
    if let Some((first, count)) = walk.unreadable {
        let place = (segment.device, segment.number, first);
        let what = format!("{count} units cannot be read, this is the first");
        segment.findings.push(Finding::damage(place, what));
    }
    let is_unsealed = segment.state == SegmentState::Unsealed;
    let has_traces = !walk.broken.is_empty() || walk.unreadable.is_some();
    if is_unsealed && segment.end_units == 1 && !has_traces {
        segment.state = SegmentState::Ready;
    } else if is_clean && is_unsealed {
        let place = (segment.device, segment.number, reader.units - 1);
        let what = "the footer is lost: the set was closed cleanly, which seals every segment; \
                    its frames were walked";
        segment
            .findings
            .push(Finding::damage(place, what.to_owned()));
        segment.state = SegmentState::FooterDamaged;
    }
    for broken in walk.broken {
        let place = (segment.device, segment.number, broken.unit);
        let finding = if is_clean || broken.unit < walk.whole_end {
            Finding::damage(place, broken.what)
        } else {
            let what = format!("cut off before it was durable: {}", broken.what);
            Finding::notice(place, what)
        };
        segment.findings.push(finding.with(broken.block));
    }
}

/// What a unit that carries the segment's identity begins with.
#[derive(Clone, Copy)]
enum Magic {
    FrameHead,
    Footer,
    Neither,
}

impl Magic {
    fn of(unit: &[u8]) -> Self {
        match unit.first_chunk() {
            Some(b"TERRFRAM") => Self::FrameHead,
            Some(b"TERRFOOT") => Self::Footer,
            _ => Self::Neither,
        }
    }
}

fn broken_structure(
    segment: &mut Segment,
    walk: &mut Walk,
    (unit, what, magic): (u32, String, Magic),
) {
    let is_footer_told = segment.state == SegmentState::FooterDamaged;
    match magic {
        // A lost frame head is told by the number of the frame behind it, too.
        Magic::Footer | Magic::Neither if is_footer_told => {}
        Magic::FrameHead | Magic::Neither => {
            let block = None;
            walk.broken.push(Broken { unit, what, block });
        }
        Magic::Footer => {
            let place = (segment.device, segment.number, unit);
            let what = "the footer is damaged: its end is missing; its frames were walked";
            let finding = Finding::damage(place, what.to_owned());
            segment.findings.push(finding);
            segment.state = SegmentState::FooterDamaged;
        }
    }
}

/// The bytes of the frame head at a unit, decoded before; `None` when the unit cannot be read.
pub(super) fn head_at(
    reader: &mut UnitReader<'_>,
    head: &SegmentHead,
    at: u32,
) -> Result<Option<Vec<u8>>, String> {
    let Ok(first) = reader.piece(at, 1) else {
        return Ok(None);
    };
    let len = FrameView::head_len_hint(first).map_err(|error| error.to_string())?;
    let bytes = match units(len) {
        1 => first.to_vec(),
        count => {
            let count = count.min(reader.units - at);
            let fetched = reader.fetch(at, count).map_err(|error| error.to_string())?;
            fetched.bytes().to_vec()
        }
    };
    let frame = FrameView::decode(&bytes, &head.identity(), at, reader.units);
    frame.map_err(|error| error.to_string())?;
    Ok(Some(bytes))
}

/// Takes in the frame at `at`; returns where the next may be.
fn take_frame(
    reader: &mut UnitReader<'_>,
    segment: &mut Segment,
    head: &SegmentHead,
    (at, bytes): (u32, &[u8]),
    walk: &mut Walk,
) -> u32 {
    let Ok(frame) = FrameView::decode(bytes, &head.identity(), at, reader.units) else {
        return at + 1;
    };
    if frame.number > walk.next_number {
        let (first, last) = (walk.next_number, frame.number - 1);
        let what = match first == last {
            true => format!("frame {first} is missing: it has no valid frame head"),
            false => format!("frames {first} to {last} are missing: no valid frame heads"),
        };
        let unit = segment.end_units;
        let is_told = walk.broken.iter().any(|broken| broken.unit >= unit);
        if !is_told {
            let block = None;
            walk.broken.push(Broken { unit, what, block });
        }
    }
    walk.next_number = walk.next_number.max(frame.number.saturating_add(1));
    let mut is_whole = true;
    for entry in frame.entries() {
        if matches!(entry.kind, EntryKind::Block | EntryKind::Checkpoint)
            && let Err(unsound) = reader.check_payload(
                (entry.namespace, entry.key),
                (entry.place, entry.len),
                entry.checksum,
            )
        {
            is_whole = false;
            walk.broken.push(broken_payload(&entry, at, &unsound));
            continue;
        }
        let own = walk.names.own(&entry);
        segment.entries.push(own);
    }
    let end = at + frame.frame_units;
    segment.end_units = segment.end_units.max(end);
    if is_whole {
        walk.whole_end = end;
    }
    end
}

fn broken_payload(entry: &EntryRef<'_>, frame: u32, unsound: &Unsound) -> Broken {
    Broken {
        unit: if entry.len == 0 { frame } else { entry.place },
        what: unsound.describe(entry.checksum),
        block: Some(BlockName::new(entry.namespace, entry.key, entry.len)),
    }
}
