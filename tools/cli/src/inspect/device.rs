//! One device that was opened and surveyed.

use std::path::Path;

use terrace_nvme::format::{DeviceId, FORMAT_VERSION, SUPERBLOCK_OFFSETS, Superblock};
use terrace_nvme::set::SetMedium;
use terrace_types::ByteLen;

use super::Finding;
use super::survey::{Geometry, Survey};
use crate::content;
use crate::open::{self, ReadOnlyDevice};

/// A device of ours.
#[derive(Debug)]
pub struct Device {
    /// The open file.
    pub medium: ReadOnlyDevice,
    /// Its superblocks.
    pub survey: Survey,
    /// How it is divided; `None` when nothing tells.
    pub geometry: Option<Geometry>,
}

impl Device {
    /// Opens a path and reads its superblocks. `segment_len` helps when both are damaged.
    ///
    /// # Errors
    /// What is in the way, or what lies there instead; the path is named.
    pub fn open(path: &Path, segment_len: Option<ByteLen>) -> Result<Self, String> {
        let medium = open::open(path).map_err(|error| error.to_string())?;
        let survey = Survey::of(&medium);
        if let Some(version) = survey.later_version() {
            return Err(format!(
                "{}: its format is version {version}, and this build reads {FORMAT_VERSION}",
                path.display()
            ));
        }
        let geometry = match survey.current() {
            Some((_, superblock)) => Some(Geometry::of(superblock)),
            None => Geometry::guess(&medium, segment_len.map(|len| len.0)),
        };
        if !survey.is_ours() && geometry.is_none() {
            return Err(format!(
                "{}: {}",
                path.display(),
                content::describe(&medium)
            ));
        }
        Ok(Self {
            medium,
            survey,
            geometry,
        })
    }

    /// The superblock that counts.
    #[must_use]
    pub fn superblock(&self) -> Option<&Superblock> {
        self.survey.current().map(|(_, superblock)| superblock)
    }

    /// Its id, when anything tells it.
    #[must_use]
    pub fn id(&self) -> Option<DeviceId> {
        self.geometry.as_ref().and_then(|geometry| geometry.device)
    }

    /// What is wrong with the device itself.
    #[must_use]
    pub fn findings(&self, place: usize) -> Vec<Finding> {
        let mut findings = Vec::new();
        let offset = |copy: usize| SUPERBLOCK_OFFSETS.get(copy).copied().unwrap_or(0);
        for (copy, what) in self.survey.damages() {
            let what = format!("superblock copy {copy} at byte {}: {what}", offset(copy));
            findings.push(Finding::damage_of_device(place, what));
        }
        let Some(superblock) = self.superblock() else {
            let what = match &self.geometry {
                Some(_) => {
                    "both copies of the superblock are damaged: what the segment heads tell is \
                     shown"
                }
                None => {
                    "both copies of the superblock are damaged and no segment head was found: \
                     give --segment-len to have the segments looked at"
                }
            };
            findings.push(Finding::damage_of_device(place, what.to_owned()));
            return findings;
        };
        let (len, needed) = (self.medium.len(), superblock.device_len);
        if len < needed {
            let what = format!("{len} bytes long, and {needed} when it was formatted: it was cut");
            findings.push(Finding::damage_of_device(place, what));
        }
        findings
    }
}
