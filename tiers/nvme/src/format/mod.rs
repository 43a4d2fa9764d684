//! The on-disk format of `docs/on-disk-format.md`: encoding and decoding, no I/O.
