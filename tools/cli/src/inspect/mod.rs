//! Reading a set offline: devices, segments, which blocks count, and what is damaged.

pub mod catalog;
pub mod device;
pub mod findings;
mod parallel;
pub mod segment;
pub mod set;
pub mod survey;
pub mod units;
mod verify;
mod walk;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use terrace_nvme::set::SetMedium;
use terrace_types::ByteLen;

use catalog::Usage;
use device::Device;
use segment::{Segment, SegmentPlace};
use set::SetView;
use units::UnitReader;

pub use findings::{BlockName, Finding, Severity};

/// What to inspect.
#[derive(Clone, Debug)]
pub struct InspectOptions {
    /// The devices.
    pub paths: Vec<PathBuf>,
    /// Whether payloads and frame heads are read too.
    pub verify: bool,
    /// Length of a segment, for a device whose superblocks are both damaged.
    pub segment_len: Option<ByteLen>,
    /// Whether progress is shown, if standard error is a terminal.
    pub progress: bool,
}

/// What was read to verify.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerifyTotals {
    /// Payloads read.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// How long that took.
    pub elapsed: Duration,
}

/// All that was found.
#[derive(Debug)]
pub struct Inspection {
    /// The devices that could be opened.
    pub devices: Vec<Device>,
    /// The set that they belong to, when a superblock tells.
    pub set: Option<SetView>,
    /// By device and number.
    pub segments: Vec<Segment>,
    /// By number, as entries refer to them.
    pub names: Vec<Arc<str>>,
    /// What the segments hold.
    pub usage: Usage,
    /// What is wrong or odd, damage first.
    pub findings: Vec<Finding>,
    /// What was verified, when that was asked for.
    pub verified: Option<VerifyTotals>,
    /// Paths that were not inspected, and why.
    pub errors: Vec<String>,
}

impl Inspection {
    /// Count of damages.
    #[must_use]
    pub fn damages(&self) -> usize {
        let damages = self.findings.iter();
        damages.filter(|it| it.severity == Severity::Damage).count()
    }

    /// 0 when all is sound, 1 when something is damaged, 2 when a path was not inspected.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match (self.errors.is_empty(), self.damages()) {
            (false, _) => 2,
            (true, 0) => 0,
            (true, _) => 1,
        }
    }
}

/// Reads the devices. Nothing is written to them.
#[must_use]
pub fn inspect(options: &InspectOptions) -> Inspection {
    let (devices, errors) = open_devices(options);
    let set = SetView::of(&devices);
    let mut findings = Vec::new();
    for (place, device) in devices.iter().enumerate() {
        findings.extend(device.findings(place));
    }
    findings.extend(set.iter().flat_map(|set| set.findings(&devices)));
    let mut segments = read_segments(&devices, set.as_ref(), options.progress);
    let names = catalog::unite_names(&mut segments);
    catalog::mark_live(&mut segments, &names);
    let usage = catalog::usage(&segments, &names);
    findings.extend(epoch_finding(set.as_ref(), &segments));
    for segment in &mut segments {
        findings.append(&mut segment.findings);
    }
    let verified = options
        .verify
        .then(|| verify::verify_all(&devices, &mut segments, &names, &mut findings, options));
    findings.sort_by_key(|it| (it.severity, it.device, it.segment));
    Inspection {
        devices,
        set,
        segments,
        names,
        usage,
        findings,
        verified,
        errors,
    }
}

/// Opens the paths; those of another set than the first, or of the same device, are left out.
fn open_devices(options: &InspectOptions) -> (Vec<Device>, Vec<String>) {
    let (mut devices, mut errors) = (Vec::<Device>::new(), Vec::new());
    for path in &options.paths {
        let device = match Device::open(path, options.segment_len) {
            Ok(device) => device,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        match devices.iter().find_map(|other| conflict(other, &device)) {
            Some(error) => errors.push(error),
            None => devices.push(device),
        }
    }
    (devices, errors)
}

fn conflict(other: &Device, device: &Device) -> Option<String> {
    let (name, other_name) = (device.medium.name(), other.medium.name());
    if let Some(id) = device.id()
        && other.id() == Some(id)
    {
        return Some(format!(
            "{name}: the same device {id} as {other_name}, or a copy of it; it is left out"
        ));
    }
    let (own, theirs) = (device.superblock()?.set_id, other.superblock()?.set_id);
    (own != theirs).then(|| {
        format!(
            "{name}: of set {own}, and {other_name} is of set {theirs}; it is left out: give \
             the devices of one set"
        )
    })
}

fn read_segments(devices: &[Device], set: Option<&SetView>, progress: bool) -> Vec<Segment> {
    let mut places = Vec::new();
    for (device, it) in devices.iter().enumerate() {
        let Some(geometry) = &it.geometry else {
            continue;
        };
        let is_clean = set.is_some_and(|set| set.closed_cleanly);
        places.extend(
            (0..geometry.count_within(it.medium.len())).map(|number| SegmentPlace {
                device,
                id: geometry.device,
                number,
                segment_len: geometry.segment_len,
                clean_epoch: set.map(|set| set.open_epoch).filter(|_| is_clean),
            }),
        );
    }
    // Devices work side by side when their segments alternate.
    places.sort_by_key(|place| (place.number, place.device));
    let bar = bar(
        places.len() as u64,
        "{msg} {wide_bar} {pos}/{len}",
        progress,
    );
    bar.set_message("segments");
    let read = |at: usize| {
        let place = places.get(at)?;
        let medium = &devices.get(place.device)?.medium;
        let mut reader = UnitReader::new(medium, place.number, place.segment_len);
        let segment = segment::read(&mut reader, place);
        bar.inc(1);
        Some(segment)
    };
    let mut segments: Vec<Segment> = parallel::map(places.len(), read)
        .into_iter()
        .flatten()
        .collect();
    bar.finish_and_clear();
    segments.sort_by_key(|segment| (segment.device, segment.number));
    segments
}

//= docs/on-disk-format.md#OD-3
/// The newest copy of a superblock may be lost without the other telling: heads do.
fn epoch_finding(set: Option<&SetView>, segments: &[Segment]) -> Option<Finding> {
    let known = set?.open_epoch;
    let heads = segments.iter().filter_map(|segment| segment.head);
    let written = heads.map(|head| head.sequence.open_epoch()).max()?;
    (written > known).then(|| {
        Finding::of_set(format!(
            "segments were opened in open epoch {written}, and the superblocks tell of {known}: \
             the newest copies of them are lost"
        ))
    })
}

/// A bar on standard error, if that is a terminal.
fn bar(len: u64, template: &str, is_shown: bool) -> ProgressBar {
    if !is_shown {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
