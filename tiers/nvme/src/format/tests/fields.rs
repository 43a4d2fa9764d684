//! A field with a value that it cannot have is refused by name, right checksum or not.

use super::*;

/// Sets a field under a right checksum; the field that the decoder then names.
fn field_of<T: std::fmt::Debug>(
    bytes: &[u8],
    (at, value): (usize, &[u8]),
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
) -> &'static str {
    let mut bytes = bytes.to_vec();
    put(&mut bytes, at, value);
    seal(&mut bytes);
    match decode(&bytes) {
        Err(FormatError::Field { field, .. }) => field,
        other => panic!("byte {at}: {other:?}"),
    }
}

#[test]
fn superblock_field_outside_its_limit_is_named() {
    let bytes = superblock_bytes();
    let cases: [(usize, u32, &str); 16] = [
        (12, 8192, "length"),
        (80, 1 << 24, "open epoch"),
        (88, 0, "shard count"),
        (88, 1025, "shard count"),
        (92, 3, "place in the list"),
        (92, 0, "place in the list"),
        (96, 0, "segment count"),
        (104, 0, "segment length"),
        (104, (8 << 20) + 4096, "segment length"),
        (108, 1, "segment count"),
        (112, 128, "segment count"),
        (116, 0, "sector length"),
        (116, 8192, "sector length"),
        (120, 0, "count of devices"),
        (120, 65, "count of devices"),
        (256 + 24, 5, "state of a device"),
    ];
    for (at, value, field) in cases {
        let change = (at, &value.to_le_bytes()[..]);
        assert_eq!(field_of(&bytes, change, Superblock::decode), field);
    }
    let twice = (256, &[3; 16][..]);
    let field = field_of(&bytes, twice, Superblock::decode);
    assert_eq!(field, "place in the list");
}

#[test]
fn segment_head_field_outside_its_limit_is_named() {
    let bytes = segment_bytes();
    let cases: [(usize, u32, &str); 5] = [
        (32, 4, "shard"),
        (36, 0, "shard count"),
        (36, 1025, "shard count"),
        (56, 4 << 20, "segment length"),
        (56, (8 << 20) + 1, "segment length"),
    ];
    for (at, value, field) in cases {
        let change = (at, &value.to_le_bytes()[..]);
        assert_eq!(field_of(&bytes, change, SegmentHead::decode), field);
    }
}

/// Where the first entry of [`some_entries`] lies.
const FIRST_ENTRY: usize = 64 + 1 + "model".len();

#[test]
fn frame_head_field_outside_its_limit_is_named() {
    let (bytes, frame_units) = frame(&some_entries(), 0);
    let decode = |bytes: &[u8]| FrameView::decode(bytes, &IDENTITY, PLACE, SEGMENT_UNITS).map(drop);
    let end = PLACE + frame_units;
    let cases: [(usize, u32, &str); 24] = [
        (8, 0, "length"),
        (8, 4097, "length"),
        (8, (1 << 20) + 4096, "length"),
        (8, 8192, "count of bytes given"),
        (12, 0, "length of the frame"),
        (12, SEGMENT_UNITS - PLACE + 1, "length of the frame"),
        (12, frame_units - 1, "end of the payload"),
        (16, 0, "segment sequence"),
        (24, 0, "salt"),
        (32, PLACE + 1, "place"),
        (40, 8, "bytes behind the last entry"),
        (40, u32::MAX, "count of bytes given"),
        (44, 0, "kind"),
        (44, u32::MAX, "count of names"),
        (48, 4096, "bytes of names and entries"),
        (FIRST_ENTRY, 0, "kind"),
        (FIRST_ENTRY, 0x0301, "block kind"),
        (FIRST_ENTRY, 0x0001_0001, "namespace"),
        (FIRST_ENTRY + 4, 0, "key length"),
        (FIRST_ENTRY + 24, 0, "payload length"),
        (FIRST_ENTRY + 24, (128 << 20) + 1, "payload length"),
        (FIRST_ENTRY + 24, 128 << 20, "end of the payload"),
        (FIRST_ENTRY + 28, PLACE, "place of the payload"),
        (FIRST_ENTRY + 28, end - 1, "end of the payload"),
    ];
    for (at, value, field) in cases {
        let change = (at, &value.to_le_bytes()[..]);
        assert_eq!(field_of(&bytes, change, decode), field, "{value} at {at}");
    }
    let mut placed = bytes[FIRST_ENTRY..FIRST_ENTRY + 28].to_vec();
    placed[0] = 2;
    placed[24..].fill(0);
    let field = field_of(&bytes, (FIRST_ENTRY, &placed), decode);
    assert_eq!(field, "place of no payload");
    let tombstone = (FIRST_ENTRY, &[2][..]);
    let field = field_of(&bytes, tombstone, decode);
    assert_eq!(field, "payload length of a tombstone");
    for name in [&[0][..], b"\x05m\0del", b"\x05m\xffdel"] {
        assert_eq!(field_of(&bytes, (64, name), decode), "place of a name");
    }
}

#[test]
fn footer_field_outside_its_limit_is_named() {
    let bytes = footer(&some_entries(), 100);
    let decode = |bytes: &[u8]| FooterView::decode(bytes, &IDENTITY, SEGMENT_UNITS).map(drop);
    let cases: [(usize, u32, &str); 11] = [
        (8, 0, "length"),
        (8, 4097, "length"),
        (8, 8192, "length"),
        (12, 0, "end of the last frame"),
        (12, SEGMENT_UNITS, "end of the last frame"),
        (12, 3, "end of the payload"),
        (16, 0, "segment sequence"),
        (24, 0, "salt"),
        (32, 5, "lowest sequence"),
        (4096 - 24, 8192, "length in the tail"),
        (4096 - 16, 1, "segment sequence"),
    ];
    for (at, value, field) in cases {
        let change = (at, &value.to_le_bytes()[..]);
        assert_eq!(field_of(&bytes, change, decode), field, "{value} at {at}");
    }
    let too_long = (4096 - 24, &(8_u32 << 20).to_le_bytes()[..]);
    let from_tail = |bytes: &[u8]| footer_len_from_tail(bytes, &IDENTITY, SEGMENT_UNITS);
    assert_eq!(field_of(&bytes, too_long, from_tail), "length");
}
