//! What a policy has learned, kept over a clean close beside the checkpoint.
//!
//! It is a payload of the same kind of entry, under the number of the shard that wrote it:
//! `TERRLRND`, version, length, then the policy's own bytes; see `docs/on-disk-format.md`.

use terrace_nvme::format::Sequence;
use terrace_nvme::tier::NvmeTier;

use super::Shard;
use crate::policy::LEARNED_LEN_MAX;

const MAGIC: &[u8; 8] = b"TERRLRND";
const VERSION: u32 = 1;
/// Bytes before the policy's own.
const HEAD_LEN: usize = 16;

/// What the policy of one shard had learned.
pub(super) struct Learned {
    /// The number of the shard that wrote it.
    shard: u32,
    sequence: Sequence,
    bytes: Vec<u8>,
}

impl Learned {
    /// What was found under `key`; `None` when that is no shard's number.
    pub(super) fn of(key: &[u8], sequence: Sequence, bytes: &[u8]) -> Option<Self> {
        Some(Self {
            shard: u32::from_le_bytes(key.try_into().ok()?),
            sequence,
            bytes: bytes.to_vec(),
        })
    }
}

/// What the policy of shard `number` goes on with: what the shard of this number learned, else
/// the first shard. After a change of the count all have seen traffic of the same kind.
pub(super) fn choose(found: &[Learned], number: usize) -> Option<&[u8]> {
    let rank = |learned: &&Learned| {
        let own = usize::try_from(learned.shard).is_ok_and(|shard| shard == number);
        (!own, learned.shard, std::cmp::Reverse(learned.sequence))
    };
    let chosen = found.iter().min_by_key(rank);
    chosen.map(|learned| learned.bytes.as_slice())
}

impl Shard {
    /// What the policy has learned, as a payload; `None` when that is nothing, or too long for
    /// the devices.
    pub(super) fn learned(&self, tier: &NvmeTier) -> Option<Vec<u8>> {
        let learned = self.state.borrow().policy.save_learned();
        if learned.is_empty() {
            return None;
        }
        let (len, longest) = (learned.len(), tier.block_len_max());
        if len > LEARNED_LEN_MAX || (len + HEAD_LEN) as u64 > longest {
            tracing::warn!(
                shard = self.number,
                len,
                "what the policy has learned is too long to be kept"
            );
            return None;
        }
        Some(encode(&learned))
    }
}

fn encode(learned: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_LEN + learned.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(learned.len() as u32).to_le_bytes());
    bytes.extend_from_slice(learned);
    bytes
}

/// The policy's bytes in a payload; `None` when it is not one that this build reads.
pub(super) fn decode(payload: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        let bytes = payload.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if payload.get(..8)? != MAGIC || word(8)? != VERSION {
        return None;
    }
    let learned = payload.get(HEAD_LEN..)?;
    let whole = learned.len() == word(12)? as usize && learned.len() <= LEARNED_LEN_MAX;
    whole.then_some(learned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learned_survives_its_encoding_and_nothing_else_is_taken() {
        let bytes = encode(b"weights");
        assert_eq!(decode(&bytes), Some(&b"weights"[..]));
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode(b""), None);
        assert_eq!(decode(&encode(&vec![0; LEARNED_LEN_MAX + 1])), None);
        for at in [0, 8, 12] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(decode(&other), None, "byte {at}");
        }
    }

    #[test]
    fn choice_is_the_own_number_then_the_first_and_the_latest_of_it() {
        let found = |shard: u32, sequence: u64, text: &[u8]| {
            Learned::of(&shard.to_le_bytes(), Sequence(sequence), text).unwrap()
        };
        let all = [found(2, 1, b"c"), found(1, 9, b"b"), found(1, 8, b"old")];
        assert_eq!(choose(&all, 2), Some(&b"c"[..]));
        assert_eq!(choose(&all, 1), Some(&b"b"[..]));
        assert_eq!(choose(&all, 7), Some(&b"b"[..]));
        assert_eq!(choose(&[], 0), None);
        assert!(Learned::of(b"12345", Sequence(1), b"").is_none());
    }
}
