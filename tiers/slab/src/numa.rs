//! NUMA placement of an arena, by the `mbind` system call.

use std::ptr::NonNull;

/// `MPOL_PREFERRED` of linux/mempolicy.h: take the node's memory while there is any.
const MPOL_PREFERRED: libc::c_int = 1;

/// Asks for the mapping's pages to come from `node`. A refusal is logged: the memory is then
/// where the kernel puts it, which is slower but not wrong.
pub(crate) fn prefer_node(base: NonNull<u8>, len: u64, node: u32) {
    if node >= 64 {
        tracing::warn!(node, "NUMA nodes above 63 are not placed");
        return;
    }
    let mask: u64 = 1 << node;
    // SAFETY: the range is the caller's mapping; the mask outlives the call and has 64 bits.
    let code = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            base.as_ptr(),
            len,
            MPOL_PREFERRED,
            &raw const mask,
            u64::from(u64::BITS) + 1,
            0,
        )
    };
    if code != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(node, %error, "the arena could not be bound to its NUMA node");
    }
}
