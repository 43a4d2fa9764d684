//! What can be simulated: the engine's policies, and the bounds that know the future.

use terrace_engine::policy::{OptBound, POLICY_NAMES};

use crate::error::SimError;

/// Names of the bounds, as users write them.
const BOUND_NAMES: [&str; 3] = ["OPT", "OPTbypass", "P-OPT"];

/// The bounds, in the order of their names.
const BOUNDS: [Bound; BOUND_NAMES.len()] = [
    Bound::ByBlock(OptBound::MustInsert),
    Bound::ByBlock(OptBound::MayBypass),
    Bound::ByRequest,
];

/// The name that stands for all.
const ALL: &str = "all";

/// A policy or a bound, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A policy of the engine.
    Policy(&'static str),
    /// A bound.
    Bound(&'static str, Bound),
}

/// What a bound knows of the future, and what it may choose among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Each access by itself.
    ByBlock(OptBound),
    /// Whole requests: after each the best blocks are kept.
    ByRequest,
}

impl Contender {
    /// The contender of this name, in any case.
    ///
    /// # Errors
    /// [`SimError::UnknownPolicy`] with the names there are.
    pub fn by_name(name: &str) -> Result<Self, SimError> {
        if let Some(at) = position_in(&POLICY_NAMES, name) {
            return Ok(Self::Policy(POLICY_NAMES[at]));
        }
        match position_in(&BOUND_NAMES, name) {
            Some(at) => Ok(Self::Bound(BOUND_NAMES[at], BOUNDS[at])),
            None => Err(SimError::UnknownPolicy {
                name: name.to_owned(),
            }),
        }
    }

    /// The contenders of a list of names with commas between them; `all` stands for all.
    ///
    /// # Errors
    /// [`SimError::UnknownPolicy`], [`SimError::EmptyPlace`] or [`SimError::GivenTwice`].
    pub fn list(text: &str) -> Result<Vec<Self>, SimError> {
        let mut contenders = Vec::new();
        for name in places(text)? {
            let named = if name.eq_ignore_ascii_case(ALL) {
                Self::all()
            } else {
                vec![Self::by_name(name)?]
            };
            if named.iter().any(|contender| contenders.contains(contender)) {
                return Err(SimError::GivenTwice {
                    value: name.to_owned(),
                });
            }
            contenders.extend(named);
        }
        Ok(contenders)
    }

    fn all() -> Vec<Self> {
        let names = Self::names().into_iter();
        names.filter_map(|name| Self::by_name(name).ok()).collect()
    }

    /// The names there are.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        POLICY_NAMES.into_iter().chain(BOUND_NAMES).collect()
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Policy(name) | Self::Bound(name, _) => name,
        }
    }
}

/// Where in `names` the name stands, in any case.
pub(crate) fn position_in(names: &[&str], name: &str) -> Option<usize> {
    names
        .iter()
        .position(|known| known.eq_ignore_ascii_case(name))
}

/// The values of a list with commas between them.
pub(crate) fn places(list: &str) -> Result<Vec<&str>, SimError> {
    let places: Vec<&str> = list.split(',').map(str::trim).collect();
    if places.iter().any(|place| place.is_empty()) {
        return Err(SimError::EmptyPlace {
            list: list.to_owned(),
        });
    }
    Ok(places)
}
