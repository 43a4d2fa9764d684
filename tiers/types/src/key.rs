//! Block keys: a namespace and up to 512 bytes, with the hash that routes and indexes them.

use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::limits::{KEY_LEN_MAX, NAMESPACE_LEN_MAX};

/// Hash of a namespace and a key, equal on every node and in every run. The router takes its
/// upper half, the index its lower bits, policies remember ghosts by the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The key's hash within the namespace named `namespace`; for readers of a device, which
    /// know names only.
    #[must_use]
    pub fn of_named(namespace: &str, key: &[u8]) -> Self {
        Self(xxh3_64_with_seed(key, xxh3_64(namespace.as_bytes())))
    }

    /// The shard among `shards` that owns the key: the hash's upper half, scaled to the count.
    #[must_use]
    pub const fn shard(self, shards: u32) -> u32 {
        (((self.0 >> 32) * shards as u64) >> 32) as u32
    }
}

/// The number under which a shard's index keeps a block's record: dense, small and reused, so
/// that policies keep their state in arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIx(pub u32);

/// Why a key or a namespace name is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has no bytes.
    #[error("the key is empty; a key has 1 to {KEY_LEN_MAX} bytes")]
    KeyEmpty,
    /// The key is too long.
    #[error("the key has {len} bytes; a key has 1 to {KEY_LEN_MAX} bytes")]
    KeyTooLong {
        /// Length of the key in bytes.
        len: usize,
    },
    /// The namespace name is empty, too long or not printable.
    #[error(
        "namespace `{name}` is not allowed: {why}; a name has 1 to {NAMESPACE_LEN_MAX} printable \
         bytes"
    )]
    NamespaceName {
        /// The name as given, shortened.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// The name of a namespace: whatever tells apart blocks that must never be mixed, normally a
/// digest of model, weights revision, dtype, layout, parallel rank and block length.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceName(Arc<str>);

impl NamespaceName {
    /// Checks and takes a name of 1 to 255 printable bytes.
    ///
    /// # Errors
    /// [`KeyError::NamespaceName`] when the name is empty, too long or not printable.
    pub fn new(name: &str) -> Result<Self, KeyError> {
        let refuse = |why| {
            let name = name.chars().take(40).flat_map(char::escape_debug).collect();
            Err(KeyError::NamespaceName { name, why })
        };
        if name.is_empty() {
            return refuse("it is empty");
        }
        if name.len() > NAMESPACE_LEN_MAX {
            return refuse("it is too long");
        }
        if name.chars().any(char::is_control) {
            return refuse("it holds a control character");
        }
        Ok(Self(Arc::from(name)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hash of the name; it seeds the hash and the checksum of every key in it.
    #[must_use]
    pub fn seed(&self) -> u64 {
        xxh3_64(self.0.as_bytes())
    }
}

impl fmt::Debug for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A namespace as one engine knows it: small and copied into every key. Only an engine hands
/// these out, and it refuses those of another engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Namespace {
    seed: u64,
    engine: u32,
    index: u16,
}

impl Namespace {
    /// The namespace with number `index` of the engine with id `engine`.
    ///
    /// Engines call this when a name is registered; two names of one engine have different
    /// numbers, so equal seeds of different names cannot mix their blocks.
    #[must_use]
    pub fn new(engine: u32, index: u16, name: &NamespaceName) -> Self {
        Self {
            seed: name.seed(),
            engine,
            index,
        }
    }

    /// A key in this namespace.
    ///
    /// # Errors
    /// [`KeyError::KeyEmpty`] or [`KeyError::KeyTooLong`] outside 1 to 512 bytes.
    pub fn key(self, bytes: &[u8]) -> Result<BlockKey, KeyError> {
        BlockKey::new(self, bytes)
    }

    /// The hash of the namespace's name.
    #[must_use]
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// The id of the engine that handed it out.
    #[must_use]
    pub const fn engine(self) -> u32 {
        self.engine
    }

    /// The namespace's number within its engine.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.index
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({}/{})", self.engine, self.index)
    }
}

/// Keys up to this length are kept without an allocation. A SHA-256 digest has 32 bytes.
const KEY_INLINE_MAX: usize = 39;

#[derive(Clone)]
enum KeyBytes {
    Inline {
        len: u8,
        bytes: [u8; KEY_INLINE_MAX],
    },
    Shared(Arc<[u8]>),
}

/// The name of a block: a namespace and 1 to 512 bytes, with their hash.
#[derive(Clone)]
pub struct BlockKey {
    namespace: Namespace,
    hash: KeyHash,
    bytes: KeyBytes,
}

impl BlockKey {
    fn new(namespace: Namespace, bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.is_empty() {
            return Err(KeyError::KeyEmpty);
        }
        if bytes.len() > KEY_LEN_MAX {
            return Err(KeyError::KeyTooLong { len: bytes.len() });
        }
        let hash = KeyHash(xxh3_64_with_seed(bytes, namespace.seed));
        let bytes = if bytes.len() <= KEY_INLINE_MAX {
            let mut inline = [0; KEY_INLINE_MAX];
            inline[..bytes.len()].copy_from_slice(bytes);
            KeyBytes::Inline {
                len: bytes.len() as u8,
                bytes: inline,
            }
        } else {
            KeyBytes::Shared(Arc::from(bytes))
        };
        Ok(Self {
            namespace,
            hash,
            bytes,
        })
    }

    /// The namespace the key belongs to.
    #[must_use]
    pub const fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// The hash of namespace and key.
    #[must_use]
    pub const fn hash(&self) -> KeyHash {
        self.hash
    }

    /// The key's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            KeyBytes::Inline { len, bytes } => &bytes[..usize::from(*len)],
            KeyBytes::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for BlockKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.namespace == other.namespace
            && self.bytes() == other.bytes()
    }
}

impl Eq for BlockKey {}

impl std::hash::Hash for BlockKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash.0);
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:", self.namespace)?;
        for byte in self.bytes().iter().take(32) {
            write!(f, "{byte:02x}")?;
        }
        if self.bytes().len() > 32 {
            write!(f, "..({} bytes)", self.bytes().len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn namespace(name: &str, index: u16) -> Namespace {
        Namespace::new(7, index, &NamespaceName::new(name).unwrap())
    }

    #[test]
    fn key_outside_its_length_is_refused_by_name() {
        let ns = namespace("m", 0);
        assert_eq!(ns.key(b"").unwrap_err(), KeyError::KeyEmpty);
        assert_eq!(
            ns.key(&[1; 513]).unwrap_err(),
            KeyError::KeyTooLong { len: 513 }
        );
        assert!(ns.key(&[1; 512]).is_ok());
        assert!(ns.key(&[1]).is_ok());
        assert!(ns.key(&[1; 513]).unwrap_err().to_string().contains("513"));
    }

    #[test]
    fn namespace_name_outside_its_rules_is_refused() {
        for name in ["", "a\nb", &"x".repeat(256)] {
            assert!(NamespaceName::new(name).is_err(), "{name:?}");
        }
        assert!(NamespaceName::new("llama-70b/bf16/tp8-0/256").is_ok());
    }

    #[test]
    fn keys_of_two_namespaces_differ() {
        let (a, b) = (namespace("a", 0), namespace("b", 1));
        assert_ne!(a.key(b"k").unwrap(), b.key(b"k").unwrap());
        assert_ne!(a.key(b"k").unwrap().hash(), b.key(b"k").unwrap().hash());
        // Equal seeds, as after a hash collision of two names: the number still tells them apart.
        assert_ne!(
            namespace("a", 0).key(b"k").unwrap(),
            namespace("a", 1).key(b"k").unwrap()
        );
    }

    proptest! {
        #[test]
        fn key_returns_its_bytes(bytes in proptest::collection::vec(any::<u8>(), 1..=512)) {
            let key = namespace("m", 3).key(&bytes).unwrap();
            prop_assert_eq!(key.bytes(), &bytes[..]);
            prop_assert_eq!(key.clone(), key);
        }
    }
}
