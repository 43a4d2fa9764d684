//! What P-HAZ has learned: how likely blocks of a category are to be used again, and after how
//! many requests.
//!
//! After "KVCache Cache in the Wild" (USENIX ATC'25), which fits an exponential to the ages at
//! which the blocks of a kind of request are used again; here the categories are of uses and
//! depth, and are learned as the load goes on.

use super::leaves::Key;

/// Blocks used once, twice, three times, and more often.
const BY_USES: usize = 4;
/// Blocks of small, middle and large depth.
const BY_DEPTH: usize = 3;
/// Count of categories when depth counts.
pub(super) const CATEGORIES: usize = BY_USES * BY_DEPTH;

/// How the learned state begins when it is saved: a name and the number of its layout.
const MAGIC: &[u8; 8] = b"P-HAZ \0\x01";
/// No count or sum of ages comes near this.
const LEARNED_MAX: f64 = 1e15;

/// The category of a block by its uses.
pub(super) fn by_uses(key: Key) -> usize {
    (key.uses() as usize).clamp(1, BY_USES) - 1
}

/// The category of a block by its uses and depth.
pub(super) fn by_uses_and_depth(key: Key) -> usize {
    let bucket = match key.depth() {
        0..8 => 0,
        8..32 => 1,
        _ => 2,
    };
    by_uses(key) * BY_DEPTH + bucket
}

/// One category.
#[derive(Clone, Copy)]
struct Category {
    /// How many blocks came into it.
    entered: f64,
    /// How many of these were used again.
    used_again: f64,
    /// Sum of their ages then, in requests.
    ages: f64,
}

/// What is assumed before anything is learned.
const BEGIN: Category = Category {
    entered: 1.0,
    used_again: 0.5,
    ages: 100.0,
};

/// See the module's text.
pub(super) struct Hazards([Category; CATEGORIES]);

impl Hazards {
    /// Nothing learned yet.
    pub(super) const fn new() -> Self {
        Self([BEGIN; CATEGORIES])
    }

    /// A block came into `category`.
    pub(super) fn enter(&mut self, category: usize) {
        self.0[category].entered += 1.0;
    }

    /// A block of `category` was used again at `age` requests.
    pub(super) fn use_again(&mut self, category: usize, age: f64) {
        self.0[category].used_again += 1.0;
        self.0[category].ages += age;
    }

    /// How likely a block of `category` and this age is to be used by the next request.
    pub(super) fn score(&self, category: usize, age: f64) -> f64 {
        let Category {
            entered,
            used_again,
            ages,
        } = self.0[category];
        let again = (used_again / entered).min(0.999);
        let mean = ages / used_again.max(1.0);
        let left = (-age / mean).exp();
        (again * left / mean) / (1.0 - again + again * left)
    }

    /// The learned state as bytes.
    pub(super) fn save(&self) -> Vec<u8> {
        let fields = self.0.iter();
        let fields = fields.flat_map(|of| [of.entered, of.used_again, of.ages]);
        let bytes = fields.flat_map(f64::to_le_bytes);
        MAGIC.iter().copied().chain(bytes).collect()
    }

    /// The state that [`Hazards::save`] gave these bytes for; none for any other bytes.
    pub(super) fn of_saved(bytes: &[u8]) -> Option<Self> {
        let (fields, rest) = bytes.strip_prefix(MAGIC)?.as_chunks::<8>();
        if fields.len() != 3 * CATEGORIES || !rest.is_empty() {
            return None;
        }
        let mut learned = Self::new();
        for (category, fields) in learned.0.iter_mut().zip(fields.as_chunks::<3>().0) {
            let [entered, used_again, ages] = fields.map(f64::from_le_bytes);
            *category = Category {
                entered,
                used_again,
                ages,
            };
            let least = [(entered, 1.0), (used_again, 0.5), (ages, 100.0)];
            if !least
                .iter()
                .all(|(field, least)| (*least..=LEARNED_MAX).contains(field))
            {
                return None;
            }
        }
        Some(learned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn category_used_again_soon_scores_above_one_used_again_late_until_it_is_old() {
        let mut hazards = Hazards::new();
        for _ in 0..100 {
            for (category, age) in [(0, 5.0), (1, 500.0)] {
                hazards.enter(category);
                hazards.use_again(category, age);
            }
            hazards.enter(2);
        }
        assert!(hazards.score(0, 0.0) > hazards.score(1, 0.0));
        assert!(hazards.score(0, 300.0) < hazards.score(1, 300.0));
        assert!(hazards.score(2, 0.0) < hazards.score(1, 0.0));
    }

    #[test]
    fn saved_state_is_read_again_and_foreign_bytes_are_not() {
        let mut hazards = Hazards::new();
        hazards.enter(3);
        hazards.use_again(3, 7.0);
        let saved = hazards.save();
        let read = Hazards::of_saved(&saved).unwrap();
        assert_eq!(read.save(), saved);
        for len in 0..saved.len() {
            assert!(Hazards::of_saved(&saved[..len]).is_none());
        }
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
            let mut bytes = saved.clone();
            bytes[8..16].copy_from_slice(&wrong.to_le_bytes());
            assert!(Hazards::of_saved(&bytes).is_none(), "{wrong}");
        }
    }
}
