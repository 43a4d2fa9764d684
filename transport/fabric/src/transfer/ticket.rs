//! Who may open an engine.

use std::fmt;

/// Whose connections an engine takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Everybody's who reaches its addresses.
    #[default]
    Anyone,
    /// Those of openers with a ticket that was given out by
    /// [`invite`](super::TransferEngine::invite) and not taken back. Memory is not shared with
    /// them, as what they have mapped could not be taken from them again.
    Invited,
}

/// What an opener shows to an engine that takes invited ones only: 16 random bytes. Who knows
/// them is the opener.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket([u8; 16]);

impl Ticket {
    /// The ticket of these bytes, as another program was told them.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be told to the opener over a connection that nobody else reads.
    #[must_use]
    pub const fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Debug for Ticket {
    // It stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}
