//! What a peer is told of a region: where it begins, how it is cut, and the keys of its pieces.
//!
//! | offset | bytes | field |
//! |--:|--:|---|
//! | 0 | 8 | address of the first byte |
//! | 8 | 8 | length of a piece |
//! | 16 | 2 | ports that know the region |
//! | 18 | 2 | pieces |
//! | 20 | 4 each | keys of all pieces for the first port, then for the second, and so on |
//!
//! Numbers are little-endian.

use std::sync::Arc;

use crate::verbs::region::{MemoryRegion, RemoteSlice};

const HEAD_LEN: usize = 20;

/// The key of a peer's region, as the peer told it: nothing of it is trusted to be sound.
pub(super) struct RegionKey<'a> {
    base: u64,
    piece_len: u64,
    nic_count: usize,
    piece_count: usize,
    rkeys: &'a [u8],
}

impl<'a> RegionKey<'a> {
    /// The key of a region that each NIC has registered, cut alike.
    pub(super) fn encode(registered: &[Arc<MemoryRegion>]) -> Vec<u8> {
        let Some(first) = registered.first() else {
            return Vec::new();
        };
        let rkeys: Vec<Vec<u32>> = registered
            .iter()
            .map(|region| region.rkeys().collect())
            .collect();
        encode(first.base().addr().get() as u64, first.piece_len(), &rkeys)
    }

    /// Reads a key; `None` when it is not one.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, rkeys) = bytes.split_at_checked(HEAD_LEN)?;
        let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
        let (nic_count, piece_count) = (usize::from(half(16)?), usize::from(half(18)?));
        let piece_len = word(8)?;
        let is_sound = piece_len > 0 && rkeys.len() == 4 * nic_count * piece_count;
        is_sound.then_some(Self {
            base: word(0)?,
            piece_len,
            nic_count,
            piece_count,
            rkeys,
        })
    }

    /// Where byte `offset` is for a request to port `nic` of the peer, and how many bytes of the
    /// same piece follow.
    pub(super) fn remote(&self, nic: usize, offset: u64) -> Option<(RemoteSlice, u64)> {
        let piece = usize::try_from(offset / self.piece_len).ok()?;
        if nic >= self.nic_count || piece >= self.piece_count {
            return None;
        }
        let at = 4 * (nic * self.piece_count + piece);
        let rkey = u32::from_le_bytes(self.rkeys.get(at..at + 4)?.try_into().ok()?);
        let address = self.base.checked_add(offset)?;
        let left = self.piece_len - offset % self.piece_len;
        Some((RemoteSlice { address, rkey }, left))
    }
}

fn encode(base: u64, piece_len: u64, rkeys: &[Vec<u32>]) -> Vec<u8> {
    let piece_count = rkeys.first().map_or(0, Vec::len);
    let mut bytes = Vec::with_capacity(HEAD_LEN + 4 * rkeys.len() * piece_count);
    bytes.extend(base.to_le_bytes());
    bytes.extend(piece_len.to_le_bytes());
    bytes.extend((rkeys.len() as u16).to_le_bytes());
    bytes.extend((piece_count as u16).to_le_bytes());
    for rkey in rkeys.iter().flatten() {
        bytes.extend(rkey.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_is_of_the_piece_and_the_port() {
        let bytes = encode(0x1000, 100, &[vec![1, 2], vec![3, 4]]);
        let key = RegionKey::decode(&bytes).unwrap();
        let at = |nic, offset| {
            let (slice, left) = key.remote(nic, offset)?;
            Some((slice.address, slice.rkey, left))
        };
        assert_eq!(at(0, 0), Some((0x1000, 1, 100)));
        assert_eq!(at(0, 99), Some((0x1063, 1, 1)));
        assert_eq!(at(1, 100), Some((0x1064, 4, 100)));
        assert_eq!(at(1, 200), None);
        assert_eq!(at(2, 0), None);
        assert_eq!(at(0, u64::MAX), None);
    }

    #[test]
    fn decode_unsound_key_is_none() {
        let bytes = encode(0x1000, 100, &[vec![1, 2], vec![3, 4]]);
        for len in 0..bytes.len() {
            assert!(RegionKey::decode(&bytes[..len]).is_none(), "{len} bytes");
        }
        let endless = encode(0, 0, &[vec![1]]);
        assert!(RegionKey::decode(&endless).is_none());
        let beyond = encode(u64::MAX, 100, &[vec![1]]);
        assert!(RegionKey::decode(&beyond).unwrap().remote(0, 1).is_none());
    }
}
