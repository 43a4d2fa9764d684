//! The checksum that is bound to what a block is, not only to its bytes.

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::key::BlockKey;

/// `xxh3_64(payload, seed = xxh3_64(namespace, key, length))`.
///
/// The seed ties the payload to its name: the bytes of another block, of another namespace or
/// of an earlier length fail the comparison as flipped bytes do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl Checksum {
    /// The checksum of `payload` stored under `key`.
    #[must_use]
    pub fn of(key: &BlockKey, payload: &[u8]) -> Self {
        let seed = seed(key.namespace().seed(), key.bytes(), payload.len() as u64);
        Self(xxh3_64_with_seed(payload, seed))
    }
}

impl Checksum {
    /// The checksum of `payload` stored under `key` of the namespace named `namespace`; for
    /// readers of a device, which know names only.
    #[must_use]
    pub fn of_named(namespace: &str, key: &[u8], payload: &[u8]) -> Self {
        let namespace_seed = xxh3_64(namespace.as_bytes());
        Self(xxh3_64_with_seed(
            payload,
            seed(namespace_seed, key, payload.len() as u64),
        ))
    }
}

/// Computes a [`Checksum`] from pieces of the payload as they arrive.
pub struct ChecksumStream(Box<Xxh3>);

impl ChecksumStream {
    /// Begins the checksum of a payload of `len` bytes under `key`.
    #[must_use]
    pub fn new(key: &BlockKey, len: u64) -> Self {
        Self(Box::new(Xxh3::with_seed(seed(
            key.namespace().seed(),
            key.bytes(),
            len,
        ))))
    }

    /// Takes the next piece of the payload.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The checksum of all pieces taken.
    #[must_use]
    pub fn finish(&self) -> Checksum {
        Checksum(self.0.digest())
    }
}

/// The seed that ties a payload to its name. The namespace enters by its 64-bit seed, which
/// is the hash of its name; the length enters last, as 8 little-endian bytes.
fn seed(namespace_seed: u64, key: &[u8], len: u64) -> u64 {
    let key_hash = xxh3_64_with_seed(key, namespace_seed);
    xxh3_64_with_seed(&len.to_le_bytes(), key_hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Namespace, NamespaceName};

    fn key(namespace: &str, bytes: &[u8]) -> BlockKey {
        let name = NamespaceName::new(namespace).unwrap();
        Namespace::new(1, 0, &name).key(bytes).unwrap()
    }

    #[test]
    fn checksum_differs_by_namespace_key_length_and_bytes() {
        let base = Checksum::of(&key("m", b"k"), b"payload");
        assert_eq!(base, Checksum::of(&key("m", b"k"), b"payload"));
        assert_eq!(base, Checksum::of_named("m", b"k", b"payload"));
        assert_ne!(base, Checksum::of(&key("n", b"k"), b"payload"));
        assert_ne!(base, Checksum::of(&key("m", b"j"), b"payload"));
        assert_ne!(base, Checksum::of(&key("m", b"k"), b"payloae"));
        assert_ne!(base, Checksum::of(&key("m", b"k"), b"payload\0"));
    }

    #[test]
    fn checksum_in_pieces_equals_whole() {
        let key = key("m", b"k");
        let payload: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        let mut stream = ChecksumStream::new(&key, payload.len() as u64);
        for piece in payload.chunks(7777) {
            stream.update(piece);
        }
        assert_eq!(stream.finish(), Checksum::of(&key, &payload));
    }
}
