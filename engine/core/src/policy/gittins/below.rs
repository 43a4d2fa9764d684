//! What P-GIT says of writes to the tiers below: how likely a block is used again within the time
//! that it would stay there.

use terrace_types::{Access, BlockIx};

use super::super::{Admission, BelowRule};
use super::Gittins;
use super::groups::GroupIx;
use super::settle::Place;

impl Gittins {
    /// Whether a block that was just given up is worth a write. One that left no ghost is.
    pub(super) fn judge_victim(&mut self, access: &Access) -> Admission {
        let worth = self.worth_below(None, access);
        let admitted = match (worth, &mut self.below) {
            (Some(worth), Some(below)) => below.admit(worth),
            _ => true,
        };
        if admitted {
            Admission::Admit
        } else {
            Admission::Decline
        }
    }

    /// Whether a block is worth a second write; none when nothing is known of it, as after a
    /// restart.
    pub(super) fn judge_kept(
        &mut self,
        resident: Option<BlockIx>,
        access: &Access,
    ) -> Option<bool> {
        let worth = self.worth_below(resident, access)?;
        self.below.as_mut().map(|below| below.keep(worth))
    }

    /// The chance that a known block is used while it would stay below.
    fn worth_below(&self, resident: Option<BlockIx>, access: &Access) -> Option<f64> {
        let stay_ms = self.below.as_ref().map(BelowRule::stay_ms)?;
        let (category, bin) = match (resident, self.gone) {
            (None, Some((id, category, bin))) if id == access.id => (category, bin),
            _ => {
                let group = match resident {
                    Some(block) => self.facts[block.0 as usize].group,
                    None => self.group_of_gone(access)?,
                };
                // One whose use is being settled is in no group: it is used now.
                if group == 0 {
                    return Some(1.0);
                }
                (self.groups.category(group), self.groups.bin(group))
            }
        };
        Some(self.index.chance_within(category, bin, stay_ms))
    }

    /// The group of a block that is not resident.
    fn group_of_gone(&self, access: &Access) -> Option<GroupIx> {
        if let Some(facts) = self.history.get(access.id) {
            return Some(facts.group);
        }
        let mut steps = self.current.request.steps().iter();
        let step = steps.position(|step| step.id == access.id)?;
        match self.current.places.get(step)? {
            Place::Waiting(facts) => Some(facts.group),
            Place::Resident(_) | Place::Nowhere => None,
        }
    }
}
