//! Aim: frames of version 1 are, and stay, the bytes that docs/wire-protocol.md says. Method: the byte
//! tables of the document are read and compared field by field with frames in which every field has
//! a value of its own; and whole frames with those in `fixtures/v1`, which were written once.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use xxhash_rust::xxh3::xxh3_64;

use crate::samples::{self, Sample};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A row of a table: offset, bytes, what it is.
type Row = (usize, usize, String);

/// The byte tables of the document, by title, with the length that the title tells.
fn tables() -> BTreeMap<String, (usize, Vec<Row>)> {
    let text = fs::read_to_string(root().join("../../docs/wire-protocol.md")).unwrap();
    let mut tables = BTreeMap::new();
    let mut title: Option<(String, usize)> = None;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            let (name, rest) = heading.split_once(" (").unwrap();
            let len = rest.split_once(" bytes").unwrap().0.parse().unwrap();
            title = Some((name.to_owned(), len));
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, offset, bytes, what, _] = cells[..] else {
            continue;
        };
        if let (Ok(offset), Ok(bytes), Some((name, len))) =
            (offset.parse(), bytes.parse(), title.clone())
        {
            let (_, rows) = tables.entry(name).or_insert((len, Vec::new()));
            rows.push((offset, bytes, what.to_owned()));
        }
    }
    tables
}

#[test]
fn tables_of_the_document_have_no_gaps_and_their_lengths() {
    let tables = tables();
    assert_eq!(tables.len(), 15, "{:?}", tables.keys());
    for (name, (len, rows)) in tables {
        let mut end = 0;
        for (offset, bytes, what) in rows {
            assert_eq!(offset, end, "{name}: {what}");
            end = offset + bytes;
        }
        assert_eq!(end, len, "{name}");
    }
}

fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Compares the rows of a table with what lies at `at` of a frame, by the values of its rows in
/// order. Rows of more than 8 bytes and reserved ones are `None`.
fn compare(title: &str, bytes: &[u8], at: usize, values: &[Option<u64>]) {
    let tables = tables();
    let (_, rows) = &tables[title];
    assert_eq!(rows.len(), values.len(), "{title}");
    for ((offset, len, what), value) in rows.iter().zip(values) {
        let part = &bytes[at + offset..at + offset + len];
        match value {
            Some(value) => assert_eq!(number(part), *value, "{title}: {what}"),
            None if what == "reserved" => assert!(part.iter().all(|byte| *byte == 0), "{title}"),
            None => assert!(*len > 8, "{title}: {what}"),
        }
    }
}

fn find(samples: &[Sample], name: &str) -> Vec<u8> {
    let found = samples.iter().find(|sample| sample.name == name);
    found.unwrap_or_else(|| panic!("{name}")).bytes.clone()
}

const HEAD_LEN: usize = 32;

#[test]
fn frame_head_lies_as_documented() {
    let bytes = find(&samples::replies(), "get-reply");
    let half = |bytes: &[u8]| Some(xxh3_64(bytes) & 0xffff_ffff);
    let values = [
        Some(number(b"TERW")),
        Some(1),
        Some(16),
        Some(0b011),
        Some(samples::ID),
        Some(bytes.len() as u64 - 32),
        Some(0x0203),
        half(&bytes[32..]),
        half(&bytes[..28]),
    ];
    compare("Frame head", &bytes, 0, &values);
}

#[test]
fn rails_lie_as_documented() {
    let wanted = find(&samples::requests(), "rails");
    compare("Rails wanted", &wanted, HEAD_LEN, &[None, Some(2), None]);
    assert_eq!(wanted[HEAD_LEN..][..16], [0x5a; 16]);
    let rails = find(&samples::replies(), "rails-reply");
    let values = [
        None,
        Some(0x1112_1314),
        Some(2),
        None,
        Some(0x2122_2324_2526_2728),
        Some(0x3132_3334_3536_3738),
        Some(2),
        None,
    ];
    compare("Rails", &rails, HEAD_LEN, &values);
    assert_eq!(rails[HEAD_LEN..][..16], [0xa5; 16]);
}

#[test]
fn hellos_lie_as_documented() {
    let hello = find(&samples::requests(), "hello");
    let values = [
        Some(1),
        Some(3),
        Some(5),
        Some(0x33f),
        None,
        Some(0x0001_0000),
        Some(0x0100_0000),
        Some(6),
        Some(4),
        None,
    ];
    compare("Client hello", &hello, HEAD_LEN, &values);
    assert_eq!(&hello[HEAD_LEN + 16..][..16], b"client-id-client");
    assert_eq!(&hello[HEAD_LEN + 56..], b"secret\0\0vllm\0\0\0\0");

    let hello = find(&samples::replies(), "hello-reply");
    let values = [
        Some(1),
        Some(3),
        Some(5),
        Some(0x33f),
        None,
        Some(0x3132_3334_3536_3738),
        Some(0x4142_4344_4546_4748),
        Some(1),
        Some(2),
        Some(7),
        Some(0x0001_0008),
        Some(0x0200_0000),
        Some(0x0404),
        Some(0x0111),
        Some(0x1_0000_0000),
        Some(0x0100_0000),
        Some(0x6162_6364),
        Some(0x7172_7374),
        Some(0x8182_8384),
        None,
    ];
    compare("Server hello", &hello, HEAD_LEN, &values);
    assert_eq!(&hello[HEAD_LEN + 16..][..16], b"node-id-node-id-");
    let first = HEAD_LEN + 120;
    let values = [0x0506, 0x1112, 3, 2, 8].map(Some);
    compare("Endpoint", &hello, first, &values);
    assert_eq!(&hello[first + 8..][..8], b"10.0.0.1");
    let values = [0xffff, 7440, 0, 1, 0].map(Some);
    compare("Endpoint", &hello, first + 16, &values);
    assert_eq!(hello.len(), first + 16 + 8);
}

#[test]
fn request_head_and_entries_lie_as_documented() {
    let all = samples::requests();
    let get = find(&all, "get");
    let values = [
        Some(0x0102),
        Some(5),
        None,
        Some(0x1112_1314),
        Some(0x2122_2324_2526_2728),
        Some(0x3132_3334),
        Some(2),
        Some(2),
        Some(0x5152_5354),
    ];
    compare("Request head", &get, HEAD_LEN, &values);
    let first = HEAD_LEN + 32;
    let key = [10, 2, 1, 0x3132_3334, 0x4142_4344_4546_4748].map(Some);
    compare("Key entry", &get, first, &key);
    let range = [None, Some(0x0001_0203), Some(0x1112_1314)];
    compare("Get entry", &get, first, &range);
    assert_eq!(&get[first + 24..][..10], samples::KEY);
    assert_eq!(&get[first + 34..][..6], [0; 6]);
    compare("Key entry", &get, first + 40, &[8, 0, 0, 0, 0].map(Some));
    let range = [None, Some(0), Some(0xffff_ffff)];
    compare("Get entry", &get, first + 40, &range);

    let put = find(&all, "put");
    compare("Key entry", &put, first, &key);
    let value = [None, Some(0x0001_0203), None, Some(0x6162_6364_6566_6768)];
    compare("Put entry", &put, first, &value);
    assert_eq!(number(&put[20..24]), 2 * 0x0001_0203);

    let pull = find(&all, "pull");
    assert_eq!(pull[first..first + 32], put[first..first + 32]);
    let source = [
        None,
        Some(0x8182_8384),
        None,
        Some(0x9192_9394_9596_9798),
        Some(0xa1a2_a3a4_a5a6_a7a8),
    ];
    compare("Pull entry", &pull, first, &source);
    assert_eq!(&pull[first + 56..][..10], samples::KEY);
    assert_eq!(number(&pull[20..24]), 0, "no values follow");

    let announce = find(&all, "announce");
    let mut access = Vec::new();
    access.extend(0x7172_7374_7576_7778_u64.to_le_bytes());
    access.extend(0x4142_4344_4546_4748_u64.to_le_bytes());
    access.extend(0x3132_3334_u32.to_le_bytes());
    access.extend(0x0001_0203_u32.to_le_bytes());
    access.extend([2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(announce[first..], access);
}

#[test]
fn reply_head_and_records_lie_as_documented() {
    let all = samples::replies();
    let get = find(&all, "get-reply");
    let values = [0x102, 2, 0x2122_2324_2526_2728].map(Some);
    compare("Reply head", &get, HEAD_LEN, &values);
    let first = HEAD_LEN + 16;
    let status = [Some(5), Some(2), Some(0), None, Some(0)];
    compare("Status", &get, first, &status);
    let hit_of_nvme = Some(0x0205);
    let values = [
        hit_of_nvme,
        Some(0x0001_0203),
        Some(0x0203),
        Some(0x6162_6364_6566_6768),
    ];
    compare("Value, or facts", &get, first, &values);
    let stat = find(&all, "stat-reply");
    let values = [
        hit_of_nvme,
        Some(0x0001_0203),
        Some(0b101),
        Some(0x6162_6364_6566_6768),
    ];
    compare("Value, or facts", &stat, first, &values);

    let mut lease = vec![5, 1, 0, 0, 0, 0, 0, 0];
    lease.extend(0x2122_2324_2526_2728_u64.to_le_bytes());
    lease.extend(0x0001_0203_u32.to_le_bytes());
    lease.extend(0x3132_3334_u32.to_le_bytes());
    assert_eq!(find(&all, "lease-reply")[first..], lease);
    let locate = find(&all, "locate-reply");
    assert_eq!(locate[first..first + 24], lease);
    let values = [
        None,
        Some(0x6162_6364_6566_6768),
        Some(0x7172_7374_7576_7778),
        Some(0x8182_8384),
        Some(0x9192_9394),
        Some(0x0001_0203),
        None,
    ];
    compare("Descriptor", &locate, first, &values);
}

#[test]
fn statuses_have_their_documented_numbers() {
    let put = find(&samples::replies(), "put-reply");
    let records: Vec<[u8; 8]> = put[HEAD_LEN + 16..]
        .chunks(8)
        .map(|record| record.try_into().unwrap())
        .collect();
    let expected: [[u8; 8]; 13] = [
        [1, 0, 1, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0],
        [2, 0, 1, 0, 0, 0, 0, 0],
        [3, 2, 0, 0, 4, 3, 2, 1],
        [3, 5, 0, 0, 0, 0, 0, 0],
        [4, 0, 0, 0, 0, 0, 0, 0],
        [5, 2, 0, 0, 0, 0, 0, 0],
        [6, 0, 0, 0, 0, 0, 0, 0],
        [7, 5, 0, 0, 0, 0, 0, 0],
        [8, 0, 0, 0, 0, 0, 0, 0],
        [16, 0, 0, 0, 0x14, 0x13, 0x12, 0x11],
        [17, 0, 0, 0, 0, 0, 0, 0],
        [18, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(records, expected);
}

/// The verbs and the codes of errors in the document's tables are those of the code.
#[test]
fn numbers_of_verbs_and_errors_are_those_documented() {
    let text = fs::read_to_string(root().join("../../docs/wire-protocol.md")).unwrap();
    let mut verbs = BTreeMap::new();
    let mut codes = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, number, verb, _, _, _, _] = cells[..]
            && let Ok(number) = number.parse::<u8>()
        {
            verbs.insert(number, verb.trim_matches('`').to_owned());
        }
        if let [_, low, _, high, _, _] = cells[..] {
            codes.extend(
                [low, high]
                    .iter()
                    .filter_map(|code| code.parse::<u16>().ok()),
            );
        }
    }
    let known: BTreeMap<u8, String> = terrace_wire::Verb::ALL
        .iter()
        .map(|verb| (verb.number(), verb.name().to_owned()))
        .collect();
    assert_eq!(verbs, known);
    codes.sort_unstable();
    let known: Vec<u16> = terrace_wire::ErrorCode::ALL
        .iter()
        .map(|code| code.number())
        .collect();
    assert_eq!(codes, known);
}

#[test]
fn frames_are_those_of_the_fixtures() {
    let folder = root().join("fixtures/v1");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let samples = samples::requests().into_iter().chain(samples::replies());
    for sample in samples {
        let expected = fs::read(folder.join(&sample.name));
        let expected = expected.unwrap_or_else(|error| panic!("{}: {error}", sample.name));
        assert_eq!(sample.bytes, expected, "{}", sample.name);
        names.retain(|name| *name != sample.name);
    }
    assert!(names.is_empty(), "nothing encodes {names:?}");
}
