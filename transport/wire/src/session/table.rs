//! The requests under way on a connection.

use super::SessionError;
use crate::error::Limit;

/// A request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnderWay {
    pub(super) id: u64,
    pub(super) verb_number: u8,
    /// Bytes of credit that it took; `None` when it took none at all.
    pub(super) bytes: Option<u64>,
    /// Entries that have to be answered one by one.
    pub(super) entries: u32,
    /// How many are.
    pub(super) answered: u32,
}

impl UnderWay {
    /// Takes the answers to `count` entries from `first` on.
    pub(super) fn answer(&mut self, first: u32, count: usize) -> Result<(), SessionError> {
        //= docs/wire-protocol.md#WP-10
        let wrong = |field, value, limit| {
            let id = self.id;
            Err(SessionError::Answers {
                id,
                field,
                value,
                limit,
            })
        };
        if first != self.answered {
            let next = Limit::Exactly(self.answered.into());
            return wrong("first", first.into(), next);
        }
        let left = self.entries - self.answered;
        match u32::try_from(count) {
            Ok(count) if count <= left => self.answered += count,
            _ => return wrong("count of records", count as u64, Limit::AtMost(left.into())),
        }
        Ok(())
    }

    /// Whether its last reply may come now.
    pub(super) fn check_complete(&self) -> Result<(), SessionError> {
        //= docs/wire-protocol.md#WP-10
        if self.answered == self.entries {
            return Ok(());
        }
        Err(SessionError::Answers {
            id: self.id,
            field: "entries answered at the last reply",
            value: self.answered.into(),
            limit: Limit::Exactly(self.entries.into()),
        })
    }
}

/// All of them. Ids rise, so a new one goes to the end.
#[derive(Debug, Default)]
pub(super) struct Table {
    list: Vec<UnderWay>,
}

impl Table {
    /// Makes room for `count` at a time.
    pub(super) fn reserve(&mut self, count: usize) {
        self.list.reserve(count.saturating_sub(self.list.len()));
    }

    pub(super) fn push(&mut self, request: UnderWay) {
        debug_assert!(self.list.last().is_none_or(|last| last.id < request.id));
        self.list.push(request);
    }

    fn place(&self, id: u64) -> Result<usize, SessionError> {
        let found = self.list.binary_search_by_key(&id, |request| request.id);
        found.map_err(|_| SessionError::NotUnderWay { id })
    }

    pub(super) fn get(&mut self, id: u64) -> Result<&mut UnderWay, SessionError> {
        let place = self.place(id)?;
        Ok(&mut self.list[place])
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.place(id).is_ok()
    }

    pub(super) fn remove(&mut self, id: u64) -> Result<UnderWay, SessionError> {
        let place = self.place(id)?;
        Ok(self.list.remove(place))
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &UnderWay> {
        self.list.iter()
    }
}
