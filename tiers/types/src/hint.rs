//! What a caller may tell about a block and a request; policies live on it.

use crate::key::KeyHash;

/// What a block holds, as far as its caller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockKind {
    /// Nothing known.
    #[default]
    Unknown = 0,
    /// A full block of a prompt prefix.
    Full = 1,
    /// The last, normally partial block of a request.
    Tail = 2,
}

/// What a caller knows about one block. All fields are optional knowledge: the default says
/// nothing and is always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Hash of the key of the block before this one in its chain.
    pub parent: Option<KeyHash>,
    /// Count of blocks before this one in its chain.
    pub depth: u32,
    /// What the block holds.
    pub kind: BlockKind,
}

/// What a caller knows about the request an access belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestContext {
    /// The request's clock in milliseconds, on whatever origin the caller keeps; accesses of
    /// one request carry the same value. Zero means that the engine's own clock is taken.
    pub clock_ms: u64,
    /// Whom the request belongs to; zero when tenants are not told apart.
    pub tenant: u32,
    /// Higher is more important; zero is the default.
    pub priority: u8,
}

/// One access as a policy sees it: ids and small metadata, never bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Hash of the block's key; ghosts are remembered by it.
    pub id: KeyHash,
    /// Payload length in bytes; zero when the block is not resident and its length unknown.
    pub len: u32,
    /// What the caller knows about the block.
    pub hint: Hint,
    /// What the caller knows about the request.
    pub context: RequestContext,
}

impl Access {
    /// An access that tells a policy nothing but the block's id.
    #[must_use]
    pub fn plain(id: KeyHash) -> Self {
        Self {
            id,
            len: 0,
            hint: Hint::default(),
            context: RequestContext::default(),
        }
    }
}
