//! Aim: bytes that are cut, flipped or lie are refused by name, and nothing else is read from them.
//! Method: every frame of the samples, at every byte; fields set to what they may not be, with
//! checksums that are right.

use terrace_wire::{
    ErrorCode, Flags, FrameHead, FrameLimits, GetEntry, KeyEntry, KeyStatus, Limit,
    NamespaceNumber, NodeTerms, OpenNamespace, Options, Partial, PutEntry, Reply, ReplyHead,
    Request, RequestHead, Verb, WireError, reply, request,
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
    let put = &samples::requests()[10];
    assert_eq!(put.name, "put");
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

#[test]
fn fields_of_wrong_value_are_named() {
    let four = |word: u32| word.to_le_bytes().to_vec();
    let two = |word: u16| word.to_le_bytes().to_vec();
    let request = 32;
    let entry = request + 32;
    let record = 32 + 16;
    for (name, at, value, field) in [
        ("get", 4, vec![2], "layout"),
        ("get", 6, vec![0x10], "unknown flags"),
        ("get", 6, vec![1], "flags of a reply"),
        ("get", 6, vec![2], "flags of a reply"),
        ("get-reply", 6, vec![0], "flag of a reply"),
        ("list-reply", 6, vec![3], "flag of more"),
        ("get", 20, four(1), "values length"),
        ("put", 20, four(1), "values length"),
        ("get-reply", 20, four(1), "values length"),
        ("get", 5, vec![6], "verb"),
        ("ping-reply", 5, vec![5], "verb"),
        ("get", request + 20, four(8193), "count of entries"),
        ("get", request + 20, four(8000), "count of entries"),
        ("get", request + 20, four(u32::MAX), "count of entries"),
        ("put_begin", request + 20, four(0), "count of entries"),
        ("list", request + 20, four(1), "count of entries"),
        ("get", entry, two(0), "key length"),
        ("get", entry, two(513), "key length"),
        ("get", entry, two(512), "count of bytes given"),
        ("get", entry + 2, vec![3], "block kind"),
        ("get", entry + 3, vec![2], "unknown flags"),
        ("put", entry + 16, four(0), "value length"),
        ("put", entry + 16, four((128 << 20) + 1), "value length"),
        (
            "announce",
            entry + 20,
            four((128 << 20) + 1),
            "value length",
        ),
        ("announce", entry + 24, vec![9], "block kind"),
        ("list", entry + 8, two(513), "prefix length"),
        ("open_namespace", 32, two(4096), "number"),
        ("open_namespace", 34, two(0), "name length"),
        ("open_namespace", 34, two(256), "name length"),
        ("open_namespace", 40, vec![0xff], "name"),
        ("open_namespace", 40, vec![b'\n'], "name"),
        ("goodbye", 32, two(0), "reason"),
        ("hello", 32, two(4), "highest version"),
        ("hello", 34, two(0), "highest version"),
        ("hello", 64, four(4095), "body limit"),
        ("hello", 64, four((1 << 20) + 1), "body limit"),
        ("hello", 68, four((1 << 30) + 1), "values limit"),
        ("hello", 72, two(1025), "token length"),
        ("hello", 74, two(65), "name length"),
        ("hello-reply", 36, four(7), "shard"),
        ("hello-reply", 80, two(2), "hash rule"),
        ("hello-reply", 82, two(999), "count of entries"),
        ("hello-reply", 84, four(0), "count of shards"),
        ("hello-reply", 84, four(1025), "count of shards"),
        ("hello-reply", 96, four(0), "batch limit"),
        ("hello-reply", 100, four(65537), "credit of requests"),
        ("hello-reply", 104, vec![0; 8], "credit of bytes"),
        ("hello-reply", 112, four(0), "longest block"),
        ("hello-reply", 157, vec![9], "transport"),
        ("hello-reply", 158, two(256), "host length"),
        ("get-reply", 32, four(8193), "first"),
        ("get-reply", 36, four(8193), "count of records"),
        ("get-reply", record, vec![9], "status code"),
        ("get-reply", record + 1, vec![3], "status detail"),
        (
            "get-reply",
            record + 8,
            four((128 << 20) + 1),
            "block length",
        ),
        (
            "get-reply",
            record + 12,
            four(0x0001_0204),
            "bytes in this frame",
        ),
        ("get-reply", record, vec![6], "bytes in this frame"),
        ("locate-reply", record + 48, four(5), "bytes in this frame"),
        ("list-reply", record + 8 + 2, vec![0], "tier"),
        ("events-reply", record + 8 + 20, vec![6], "kind"),
        ("error-reply", 32, two(11), "code"),
        ("error-reply", 34, two(513), "text length"),
    ] {
        match patched(name, at, &value) {
            WireError::Field { field: found, .. } => assert_eq!(found, field, "{name} at {at}"),
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
