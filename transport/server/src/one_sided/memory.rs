//! An arena as a transfer engine takes it.

use std::sync::Arc;

use terrace_engine::ArenaShared;
use terrace_fabric::transfer::{Memory, MemoryKind, TransferError};

use super::page_len;

/// All bytes of an arena, which stays mapped as long as the memory.
pub(super) fn of_arena(shared: &Arc<ArenaShared>) -> Result<Memory, TransferError> {
    let arena = shared.arena();
    let kind = match page_len(arena.backing()) {
        Some(page_len) => MemoryKind::Hugepage { page_len },
        None => MemoryKind::Host,
    };
    let base = arena.address(0, arena.len());
    let owner = Box::new(Arc::clone(shared));
    // SAFETY: the owner keeps the arena mapped. It is registered for reading alone, so nothing is
    // written through it; who reads a slot that is written meanwhile is told by its checksum.
    unsafe { Memory::from_raw(base, arena.len(), kind, owner) }
}
