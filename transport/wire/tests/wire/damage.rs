//! Aim: bytes that are cut, flipped or lie are refused by name, and nothing else is read from them.
//! Method: every frame of the samples, at every byte; fields set to what they may not be, with
//! checksums that are right.

use terrace_wire::{
    ErrorCode, Flags, FrameHead, FrameLimits, GetEntry, KeyEntry, KeyStatus, Limit,
    NamespaceNumber, NodeTerms, OpenNamespace, Options, Partial, PullEntry, PutEntry, Reply,
    ReplyHead, Request, RequestHead, Verb, WireError, rails, reply, request,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::samples::{self, ID, Sample};

const LIMITS: FrameLimits = FrameLimits {
    body_len_max: 1 << 20,
    values_len_max: 1 << 30,
};

fn parse(bytes: &[u8]) -> Result<FrameHead, WireError> {
    match FrameHead::parse(bytes, &LIMITS)? {
        Partial::Whole(head) => Ok(head),
        Partial::Needs(count) => panic!("{count} bytes are missing"),
    }
}

/// Decodes a whole frame as what its name says.
fn decode(sample: &Sample) -> Result<(), WireError> {
    let head = parse(&sample.bytes)?;
    let body = head.body(&sample.bytes[32..])?;
    if sample.name.ends_with("-reply") {
        Reply::decode(&head, body).map(drop)
    } else {
        Request::decode(&head, body).map(drop)
    }
}

/// Puts lengths and checksums right.
fn seal(bytes: &mut [u8]) {
    let body_len = bytes.len() as u32 - 32;
    bytes[16..20].copy_from_slice(&body_len.to_le_bytes());
    let body = xxh3_64(&bytes[32..]) as u32;
    bytes[24..28].copy_from_slice(&body.to_le_bytes());
    let head = xxh3_64(&bytes[..28]) as u32;
    bytes[28..32].copy_from_slice(&head.to_le_bytes());
}

fn all() -> Vec<Sample> {
    let mut all = samples::requests();
    all.extend(samples::replies());
    all
}

#[test]
fn frame_cut_anywhere_needs_the_rest() {
    for sample in all() {
        let bytes = &sample.bytes;
        for len in 0..32 {
            let needed = FrameHead::parse(&bytes[..len], &LIMITS);
            assert_eq!(needed, Ok(Partial::Needs(32 - len)), "{}", sample.name);
        }
        let head = parse(&bytes[..32]).unwrap();
        for len in 32..bytes.len() {
            let cut = head.body(&bytes[32..len]);
            assert!(
                matches!(cut, Err(WireError::Field { .. })),
                "{}: {len}",
                sample.name
            );
        }
        assert_eq!(head.body(&bytes[32..]), Ok(&bytes[32..]));
        decode(&sample).unwrap();
    }
}

#[test]
fn bit_flipped_anywhere_is_found() {
    for sample in all() {
        for bit in 0..sample.bytes.len() * 8 {
            let mut bytes = sample.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let name = sample.name.clone();
            let found = decode(&Sample { name, bytes });
            assert!(found.is_err(), "{}: bit {bit}", sample.name);
        }
    }
}

/// A body that ends early is refused wherever it ends, with checksums that are right; the sender
/// is the only one who can know that something is missing behind the last field.
#[test]
fn body_cut_anywhere_is_refused() {
    for sample in all() {
        for len in (32..sample.bytes.len()).step_by(8) {
            let mut bytes = sample.bytes[..len].to_vec();
            seal(&mut bytes);
            let name = sample.name.clone();
            let error = decode(&Sample { name, bytes }).unwrap_err();
            assert_eq!(error.code(), ErrorCode::MalformedBody, "{error}");
            assert!(error.is_of_request());
        }
    }
}

//= docs/wire-protocol.md#WP-4
#[test]
fn bytes_behind_the_last_field_are_ignored() {
    for mut sample in all() {
        sample.bytes.extend([0x5a; 24]);
        seal(&mut sample.bytes);
        decode(&sample).unwrap_or_else(|error| panic!("{}: {error}", sample.name));
    }
}

/// Any byte of any body may be any value: what is decoded then is decoded, or refused.
#[test]
fn byte_of_any_value_anywhere_never_panics() {
    let mut refused = 0;
    for sample in all() {
        for at in 32..sample.bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = sample.bytes.clone();
                bytes[at] = value;
                seal(&mut bytes);
                let name = sample.name.clone();
                refused += usize::from(decode(&Sample { name, bytes }).is_err());
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn something_else_is_refused_at_its_first_byte() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x16\x03\x01",
        b"TERX",
        b"T\0",
    ] {
        let error = FrameHead::parse(bytes, &LIMITS).unwrap_err();
        assert!(matches!(error, WireError::NotOurs { .. }), "{error}");
        assert_eq!(error.code(), ErrorCode::MalformedFrame);
        assert!(!error.is_of_request());
    }
    assert_eq!(
        FrameHead::parse(b"TER", &LIMITS),
        Ok(Partial::Needs(29)),
        "it may become one"
    );
}

#[test]
fn frame_over_a_limit_is_refused_by_its_head_alone() {
    let all = samples::requests();
    let put = all.iter().find(|sample| sample.name == "put").unwrap();
    let head = parse(&put.bytes).unwrap();
    let limits = FrameLimits {
        body_len_max: head.body_len - 8,
        ..LIMITS
    };
    let error = FrameHead::parse(&put.bytes[..32], &limits).unwrap_err();
    let expected = WireError::OverLimit {
        field: "body length",
        value: head.body_len.into(),
        limit: limits.body_len_max.into(),
    };
    assert_eq!(error, expected);
    let limits = FrameLimits::BEFORE_HELLO;
    let error = FrameHead::parse(&put.bytes[..32], &limits).unwrap_err();
    assert_eq!(error.code(), ErrorCode::FrameOverLimit);
    let text = error.to_string();
    assert!(
        text.contains("values length") && text.contains("limit is 0"),
        "{text}"
    );
}

/// A frame with `value` at `at`, put right otherwise; the error of it.
fn patched(name: &str, at: usize, value: &[u8]) -> WireError {
    let mut sample = all()
        .into_iter()
        .find(|sample| sample.name == name)
        .unwrap();
    sample.bytes[at..at + value.len()].copy_from_slice(value);
    seal(&mut sample.bytes);
    decode(&sample).expect_err(name)
}

/// A frame, the place and the length of a field, what it is set to, and what the error calls it.
type Row = (&'static str, usize, usize, u64, &'static str);

/// Where a request head, its first entry, and the first record of a reply are.
const REQUEST: usize = 32;
const ENTRY: usize = REQUEST + 32;
const RECORD: usize = 32 + 16;

const HEADS: [Row; 11] = [
    ("get", 4, 1, 2, "layout"),
    ("get", 6, 1, 0x10, "unknown flags"),
    ("get", 6, 1, 1, "flags of a reply"),
    ("get", 6, 1, 2, "flags of a reply"),
    ("get-reply", 6, 1, 0, "flag of a reply"),
    ("list-reply", 6, 1, 3, "flag of more"),
    ("get", 20, 4, 1, "values length"),
    ("put", 20, 4, 1, "values length"),
    ("get-reply", 20, 4, 1, "values length"),
    ("get", 5, 1, 6, "verb"),
    ("ping-reply", 5, 1, 5, "verb"),
];

const REQUESTS: [Row; 26] = [
    ("get", REQUEST + 20, 4, 8193, "count of entries"),
    ("get", REQUEST + 20, 4, 8000, "count of entries"),
    ("get", REQUEST + 20, 4, 0xffff_ffff, "count of entries"),
    ("put_begin", REQUEST + 20, 4, 0, "count of entries"),
    ("pull", 20, 4, 1, "values length"),
    ("pull", REQUEST + 20, 4, 4, "count of entries"),
    ("pull", ENTRY + 16, 4, 0, "value length"),
    ("pull", ENTRY + 48, 8, u64::MAX, "offset"),
    ("rails", REQUEST + 16, 2, 17, "count of endpoints"),
    ("list", REQUEST + 20, 4, 1, "count of entries"),
    ("get", ENTRY, 2, 0, "key length"),
    ("get", ENTRY, 2, 513, "key length"),
    ("get", ENTRY, 2, 512, "count of bytes given"),
    ("get", ENTRY + 2, 1, 3, "block kind"),
    ("get", ENTRY + 3, 1, 2, "unknown flags"),
    ("put", ENTRY + 16, 4, 0, "value length"),
    ("put", ENTRY + 16, 4, (128 << 20) + 1, "value length"),
    ("announce", ENTRY + 20, 4, (128 << 20) + 1, "value length"),
    ("announce", ENTRY + 24, 1, 9, "block kind"),
    ("list", ENTRY + 8, 2, 513, "prefix length"),
    ("open_namespace", 32, 2, 4096, "number"),
    ("open_namespace", 34, 2, 0, "name length"),
    ("open_namespace", 34, 2, 256, "name length"),
    ("open_namespace", 40, 1, 0xff, "name"),
    ("open_namespace", 40, 1, 0x0a, "name"),
    ("goodbye", 32, 2, 0, "reason"),
];

const HELLOS: [Row; 18] = [
    ("hello", 32, 2, 4, "highest version"),
    ("hello", 34, 2, 0, "highest version"),
    ("hello", 64, 4, 4095, "body limit"),
    ("hello", 64, 4, (1 << 20) + 1, "body limit"),
    ("hello", 68, 4, (1 << 30) + 1, "values limit"),
    ("hello", 72, 2, 1025, "token length"),
    ("hello", 74, 2, 65, "name length"),
    ("hello-reply", 36, 4, 7, "shard"),
    ("hello-reply", 80, 2, 2, "hash rule"),
    ("hello-reply", 82, 2, 999, "count of entries"),
    ("hello-reply", 84, 4, 0, "count of shards"),
    ("hello-reply", 84, 4, 1025, "count of shards"),
    ("hello-reply", 96, 4, 0, "batch limit"),
    ("hello-reply", 100, 4, 65537, "credit of requests"),
    ("hello-reply", 104, 8, 0, "credit of bytes"),
    ("hello-reply", 112, 4, 0, "longest block"),
    ("hello-reply", 157, 1, 9, "transport"),
    ("hello-reply", 158, 2, 256, "host length"),
];

const REPLIES: [Row; 16] = [
    ("get-reply", 32, 4, 8193, "first"),
    ("get-reply", 36, 4, 8193, "count of records"),
    ("get-reply", RECORD, 1, 9, "status code"),
    ("get-reply", RECORD + 1, 1, 3, "status detail"),
    ("get-reply", RECORD + 8, 4, (128 << 20) + 1, "block length"),
    (
        "get-reply",
        RECORD + 12,
        4,
        0x0001_0204,
        "bytes in this frame",
    ),
    ("get-reply", RECORD, 1, 6, "bytes in this frame"),
    ("locate-reply", RECORD + 48, 4, 5, "bytes in this frame"),
    ("list-reply", RECORD + 8 + 2, 1, 0, "tier"),
    ("events-reply", RECORD + 8 + 20, 1, 6, "kind"),
    ("error-reply", 32, 2, 11, "code"),
    ("rails-reply", 52, 1, 0, "kind"),
    ("rails-reply", 72, 2, 0, "count of endpoints"),
    ("rails-reply", 72, 2, 17, "count of endpoints"),
    ("rails-reply", 72, 2, 16, "count of entries"),
    ("error-reply", 34, 2, 513, "text length"),
];

#[test]
fn fields_of_wrong_value_are_named() {
    let rows = HEADS.iter().chain(&REQUESTS).chain(&HELLOS).chain(&REPLIES);
    for (name, at, len, value, field) in rows {
        match patched(name, *at, &value.to_le_bytes()[..*len]) {
            WireError::Field { field: found, .. } => assert_eq!(found, *field, "{name} at {at}"),
            error => panic!("{name} at {at}: {error}"),
        }
    }
}

#[test]
fn unknown_verbs_and_options_end_the_request_only() {
    let error = patched("get", 5, &[77]);
    assert_eq!(error, WireError::UnknownVerb { verb: 77 });
    assert_eq!(
        (error.code(), error.is_of_request()),
        (ErrorCode::UnknownVerb, true)
    );
    let error = patched("get", 32 + 24, &[2, 2]);
    let (verb, bits) = ("get", 0x200);
    assert_eq!(error, WireError::UnknownOptions { verb, bits });
    assert_eq!(
        (error.code(), error.is_of_request()),
        (ErrorCode::UnknownOption, true)
    );
    assert!(error.to_string().contains("0x200"));
}

//= docs/wire-protocol.md#WP-5
#[test]
fn upper_half_of_the_flags_is_ignored() {
    let mut sample = samples::requests().remove(0);
    sample.bytes[7] = 0xff;
    seal(&mut sample.bytes);
    decode(&sample).unwrap();
}

#[test]
fn encoding_what_is_not_allowed_names_it() {
    let out = &mut [0; 2048];
    let head = RequestHead::default();
    let field = |result: Result<usize, WireError>| match result {
        Err(WireError::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    for key in [&b""[..], &[1; 513]] {
        let entries = [KeyEntry::plain(key)];
        let result = request::encode(Verb::Exists, 1, &head, entries, out);
        assert_eq!(field(result), "key length");
    }
    let empty = PutEntry {
        len: 0,
        ..samples::PUT
    };
    let result = request::encode(Verb::Put, 1, &head, [empty], out);
    assert_eq!(field(result), "value length");
    let past = PullEntry {
        offset: u64::MAX,
        ..samples::PULL
    };
    let result = request::encode(Verb::Pull, 1, &head, [past], out);
    assert_eq!(field(result), "offset");
    let many = || samples::endpoints().into_iter().cycle();
    let result = rails::encode_wanted(1, &[1; 16], many().take(17), out);
    assert_eq!(field(result), "count of endpoints");
    for count in [0, 17] {
        let result = rails::encode(1, &samples::RAILS, many().take(count), out);
        assert_eq!(field(result), "count of endpoints");
    }
    let result = request::encode(Verb::PutBegin, 1, &head, [samples::PUT; 2], out);
    assert_eq!(field(result), "count of entries");
    let many = std::iter::repeat_n(KeyEntry::plain(b"k"), 8193);
    let result = request::encode(Verb::Exists, 1, &head, many, out);
    assert_eq!(field(result), "count of entries");
    let result = request::encode(Verb::Get, 1, &head, [KeyEntry::plain(b"k")], out);
    assert_eq!(field(result), "verb");
    let statuses = [KeyStatus::Miss];
    let reply_head = ReplyHead::default();
    let result = reply::encode(Verb::Get, 1, Flags::NONE, &reply_head, statuses, out);
    assert_eq!(field(result), "verb");
    let options = RequestHead {
        options: Options::DURABLE,
        ..head
    };
    let entries = [GetEntry::whole(b"k", terrace_types::Hint::default())];
    let result = request::encode(Verb::Get, 1, &options, entries, out);
    assert!(matches!(
        result,
        Err(WireError::UnknownOptions { bits: 1, .. })
    ));
    for (number, name, wrong) in [
        (4096, "m", "number"),
        (1, "", "name length"),
        (1, "\n", "name"),
    ] {
        let number = NamespaceNumber(number);
        let result = OpenNamespace { number, name }.encode(1, out);
        assert_eq!(field(result), wrong);
    }
    let terms = NodeTerms {
        credit_bytes: 1,
        ..samples::TERMS
    };
    let result = terms.encode([], out);
    let least = Limit::AtLeast(terms.credit_bytes_min());
    assert!(matches!(result, Err(WireError::Field { limit, .. }) if limit == least));
}

#[test]
fn encoding_without_room_tells_how_much_it_needs() {
    let entries = [KeyEntry::plain(&[7; 512]); 4];
    let head = RequestHead::default();
    let encode = |out: &mut [u8]| request::encode(Verb::Exists, ID, &head, entries, out);
    for given in [0, 31, 32, 64, 100, 1000] {
        let mut out = vec![0; given];
        let WireError::NoRoom { needed, .. } = encode(&mut out).unwrap_err() else {
            panic!("{given}");
        };
        assert_eq!(needed, 32 + 32 + 4 * (16 + 512));
        out.resize(needed, 0);
        assert_eq!(encode(&mut out), Ok(needed));
    }
}
