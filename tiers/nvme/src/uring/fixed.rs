//! Which memory the kernel knows beforehand, so that operations need not pin it each time.
//!
//! **Invariants**
//! - Spans are sorted by their first byte; each has a place of the ring's table of its own.
//! - A span is at most 1 GiB long, which is as much as the kernel takes in one place.

use super::setup::RingError;

/// Places of the table that a ring opens for fixed memory.
pub(super) const PLACES: u16 = 256;

/// Longest memory that one place takes.
const SPAN_LEN_MAX: usize = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) place: u16,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct FixedMemory {
    spans: Vec<Span>,
    vacant: Vec<u16>,
    opened: u16,
}

impl FixedMemory {
    /// The place whose span holds all of the range. A range across two spans has none.
    pub(super) fn place_of(&self, start: usize, len: usize) -> Option<u16> {
        let after = self.spans.partition_point(|span| span.start <= start);
        let span = self.spans[..after].last()?;
        (start - span.start)
            .checked_add(len)
            .is_some_and(|end| end <= span.len)
            .then_some(span.place)
    }

    /// Cuts a range into spans and takes places for them.
    ///
    /// # Errors
    /// [`RingError::Places`] when too few are left; then none is taken.
    pub(super) fn take(&mut self, start: usize, len: usize) -> Result<Vec<Span>, RingError> {
        let needed = len.div_ceil(SPAN_LEN_MAX);
        let left = self.vacant.len() + usize::from(PLACES - self.opened);
        if needed > left {
            return Err(RingError::Places { needed, left });
        }
        let cuts = (start..start + len).step_by(SPAN_LEN_MAX);
        let spans: Vec<Span> = cuts
            .map(|at| Span {
                start: at,
                len: (start + len - at).min(SPAN_LEN_MAX),
                place: self.vacant.pop().unwrap_or_else(|| {
                    self.opened += 1;
                    self.opened - 1
                }),
            })
            .collect();
        self.spans.extend(&spans);
        self.spans.sort_by_key(|span| span.start);
        Ok(spans)
    }

    /// Gives back the spans that lie in a range; returns them.
    pub(super) fn give_back(&mut self, start: usize, len: usize) -> Vec<Span> {
        let inside = |span: &mut Span| span.start >= start && span.start + span.len <= start + len;
        let spans: Vec<Span> = self.spans.extract_if(.., inside).collect();
        self.vacant.extend(spans.iter().map(|span| span.place));
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_memory_is_cut_at_1_gib_and_found_again() {
        let gib = 1 << 30;
        let mut fixed = FixedMemory::default();
        let spans = fixed.take(gib, 2 * gib + 4096).unwrap();
        let lens: Vec<usize> = spans.iter().map(|span| span.len).collect();
        assert_eq!(lens, [gib, gib, 4096]);
        assert_eq!(fixed.place_of(gib, gib), Some(0));
        assert_eq!(fixed.place_of(2 * gib + 4096, 8192), Some(1));
        assert_eq!(fixed.place_of(3 * gib, 4096), Some(2));
        assert_eq!(fixed.place_of(2 * gib - 4096, 8192), None, "across a cut");
        assert_eq!(fixed.place_of(3 * gib, 8192), None, "past the end");
        assert_eq!(fixed.place_of(0, 4096), None);

        assert_eq!(fixed.give_back(gib, 2 * gib + 4096).len(), 3);
        assert_eq!(fixed.place_of(gib, 4096), None);
        let again = fixed.take(0, 256 * gib).unwrap();
        assert_eq!(again.len(), usize::from(PLACES));
        let refused = fixed.take(300 * gib, 4096).unwrap_err();
        assert!(matches!(refused, RingError::Places { needed: 1, left: 0 }));
    }
}
