//! What is wrong and what is odd, as text.

use std::io::{self, Write};

use terrace_nvme::set::SetMedium;
use terrace_types::ByteLen;

use crate::inspect::findings::{hex, printable};
use crate::inspect::{BlockName, Finding, Inspection, Severity};

/// Writes all findings, damage last: that is what stays in sight.
pub(super) fn write(out: &mut dyn Write, inspection: &Inspection) -> io::Result<()> {
    let of = |severity: Severity| {
        let findings = inspection.findings.iter();
        findings.filter(move |finding| finding.severity == severity)
    };
    if of(Severity::Notice).next().is_some() {
        writeln!(out, "\nnotices")?;
    }
    for finding in of(Severity::Notice) {
        writeln!(out, "  {}", finding_text(inspection, finding))?;
    }
    let count = inspection.damages();
    if count == 0 {
        let depth = match inspection.verified {
            Some(_) => "",
            None => " (payloads of sealed segments were not read: --verify does)",
        };
        return writeln!(out, "\nno damage found{depth}");
    }
    writeln!(out, "\ndamage: {count}")?;
    for finding in of(Severity::Damage) {
        writeln!(out, "  {}", finding_text(inspection, finding))?;
    }
    Ok(())
}

fn finding_text(inspection: &Inspection, finding: &Finding) -> String {
    let device = finding.device.and_then(|at| inspection.devices.get(at));
    let mut text = device.map_or(String::new(), |it| format!("{}: ", it.medium.name()));
    if let Some((segment, unit)) = finding.segment {
        text += &format!("segment {segment}, unit {unit}: ");
    }
    if let Some(block) = &finding.block {
        text += &block_text(block);
    }
    text + &finding.what
}

fn block_text(block: &BlockName) -> String {
    let state = match block.live {
        Some(true) => "live block",
        Some(false) => "dead block",
        None => "block",
    };
    let (key, len) = (key_text(&block.key), ByteLen(u64::from(block.len)));
    format!("{state} {key} of {} ({len}): ", block.namespace)
}

/// A key in hexadecimal, and as text when that can be read.
pub(super) fn key_text(key: &[u8]) -> String {
    match printable(key) {
        Some(text) => format!("{} {text:?}", hex(key)),
        None => hex(key),
    }
}
