//! Aim: every format is read right, every error names its evidence, and no input makes the reader
//! panic. Method: tiny files in memory, damaged by hand and at random.

use std::io::{self, BufReader, Cursor, Read, Write};

use proptest::prelude::*;

use super::*;

/// `seq 0 40`, as written by `zstd -19 --check` 1.5.
const SEQ_ZSTD: &str = "28b52ffd2471cd010012470d09b0eb24498870529875837cb1c515533cb1c41137660cf175ebd5a94f971e\
    bd9d1dfa71e3c5890f171ebc9c1cf86dd7f42cc79d43003b670a3c";
/// `seq 0 40`, as written by `xz` 5.
const SEQ_XZ: &str = "fd377a585a000004e6d6b4460200210116000000742fe5a3e0007000505d0018028268b5d94bb3371cb612\
    1722be2f8a6e426a2190904236be39501e46dbb3f0c76400d79ef1463e2463206b7bb4185d02559231f492\
    9431663e04fb27e2c02dd6995e262aee520fa68d446034ffe90045f6cc92da7dd2a000016c712ad0ccce1f\
    b6f37d010000000004595a";
/// `seq 0 40`, as written by `gzip -9n`.
const SEQ_GZIP: &str = "1f8b08000000000002030dccc101c0300803b1ff4d836d92c0fe8bb503488530a1395c1ec3a2424246418d\
    0ebae8a1418b0bffc638b8f1c1173f3c78491191bf0c6972c8258f0c59baf8002aeeac1c71000000";

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
{"hash_ids": [], "output_length": 0, "input_length": 0, "timestamp": 27.6, "type": "text"}

{"timestamp": 3000, "input_length": 1025, "output_length": 9, "hash_ids": [0, 2, 18446744073709551615]}
"#;
const ARC: &str = "5 1 0 0\n7 3 0 1\r\n  9 0 0 2\n";
const LIRS: &str = "*\n4\r\n 5\n*\n4";
const CACHE2K: &[u8] = &[0, 0, 0, 7, 0, 1, 0, 0, 255, 255, 255, 255, 0, 0, 0, 7];
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 23:59:59.9799600,374,44\r
2023-11-17 00:00:00.0319600,1025,109\r
2023-11-17 00:00:01.9799599,0,1";

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

fn read_with(bytes: &[u8], limit: Option<usize>, limits: Limits) -> Result<Trace, TraceError> {
    Trace::read(Path::new("dir/t.x.y"), bytes, limit, limits)
}

fn read(bytes: impl AsRef<[u8]>) -> Result<Trace, TraceError> {
    read_with(bytes.as_ref(), None, Limits::DEFAULT)
}

/// Message of the error that `bytes` must cause.
fn failure(bytes: impl AsRef<[u8]>) -> String {
    read(bytes).unwrap_err().to_string()
}

fn blocks(trace: &Trace) -> Vec<&[u64]> {
    trace
        .requests
        .iter()
        .map(|request| request.blocks.as_slice())
        .collect()
}

#[test]
fn mooncake_lines_become_chains() {
    let trace = read(MOONCAKE).unwrap();
    assert_eq!(trace.name, "t");
    assert_eq!(blocks(&trace), [&[0, 1][..], &[], &[0, 2, u64::MAX]]);
    let first = &trace.requests[0];
    assert_eq!(
        (first.timestamp_ms, first.input_tokens, first.output_tokens),
        (0, 700, 5)
    );
    assert!(first.is_chain);
    assert_eq!(trace.requests[1].timestamp_ms, 28, "fractions are rounded");
    assert_eq!((trace.accesses(), trace.unique_blocks()), (5, 4));
}

#[test]
fn mooncake_missing_field_is_named() {
    for field in ["timestamp", "input_length", "output_length", "hash_ids"] {
        let absent = MOONCAKE.replace(&format!("\"{field}\""), "\"other\"");
        assert_eq!(
            failure(absent),
            format!("dir/t.x.y: line 1: missing field `{field}`")
        );
    }
    let null = MOONCAKE.replace("3000", "null");
    assert_eq!(
        failure(null),
        "dir/t.x.y: line 4: missing field `timestamp`"
    );
}

#[test]
fn mooncake_wrong_value_is_named_with_its_field_and_line() {
    let expected = "expected a JSON object with timestamp, input_length, output_length, hash_ids";
    for (from, to, found) in [
        (
            "1025",
            "\"x\"",
            "input_length: invalid type: string \"x\", expected u32",
        ),
        (
            "1025",
            "-1",
            "input_length: invalid value: integer `-1`, expected u32",
        ),
        (
            "1025",
            "4294967296",
            "input_length: invalid value: integer `4294967296`, expected u32",
        ),
        (
            "2, 1",
            "-2, 1",
            "hash_ids: invalid value: integer `-2`, expected u64",
        ),
        (
            "3000",
            "true",
            "timestamp: invalid type: boolean `true`, expected a JSON number",
        ),
    ] {
        let message = failure(MOONCAKE.replace(from, to));
        let start = format!("dir/t.x.y: line 4: {expected}, found {found} (column ");
        assert!(message.starts_with(&start), "{message}");
    }
    assert_eq!(
        failure(MOONCAKE.replace("3000", "-1")),
        "dir/t.x.y: line 4: expected a `timestamp` of 0 to 2^53 ms, found \"-1\""
    );
    let cut = failure(&MOONCAKE[..40]);
    assert!(cut.contains("line 1") && cut.contains("EOF"), "{cut}");
    let repeated = failure(MOONCAKE.replace("\"type\"", "\"timestamp\""));
    assert!(
        repeated.contains("duplicate field `timestamp`"),
        "{repeated}"
    );
}

#[test]
fn mooncake_long_value_is_quoted_in_part() {
    let long = "ü".repeat(5000);
    let message = failure(MOONCAKE.replace("3000", &format!("\"{long}\"")));
    assert!(message.contains("line 4") && message.contains("üü... (column "));
    assert!(message.len() < 600, "{} bytes", message.len());
}

/// Aim: whole and fractional times have one limit.
#[test]
fn mooncake_timestamp_above_its_limit_is_refused() {
    let highest = read(MOONCAKE.replace("3000", "9007199254740992")).unwrap();
    assert_eq!(highest.requests[2].timestamp_ms, 1 << 53);
    for above in ["9007199254740993", "18446744073709551615", "9.1e15"] {
        let message = failure(MOONCAKE.replace("3000", above));
        assert!(message.contains("0 to 2^53 ms"), "{message}");
    }
}

#[test]
fn arc_lines_expand_to_ranges() {
    let trace = read(ARC).unwrap();
    assert_eq!(blocks(&trace), [&[5][..], &[7, 8, 9], &[]]);
    assert!(!trace.requests[0].is_chain);
}

#[test]
fn arc_malformed_line_is_refused_with_its_text() {
    for line in ["7 3 0", "7 3 0 1 2", "7 x 0 1", "7 -3 0 1"] {
        let expected = "expected four integers `start count ignore seq`";
        assert_eq!(
            failure(format!("{ARC}{line}\n")),
            format!("dir/t.x.y: line 4: {expected}, found \"{line}\"")
        );
    }
    let message = failure(format!("{ARC}{} 2 0 1", u64::MAX));
    assert!(
        message.contains("line 4: expected `start + count` to fit in 64 bits"),
        "{message}"
    );
}

#[test]
fn lirs_lines_become_single_accesses() {
    let trace = read(LIRS).unwrap();
    assert_eq!(blocks(&trace), [&[4], &[5], &[4]]);
    assert!(!trace.requests[0].is_chain);
    assert_eq!(
        failure(format!("{LIRS}\n7 8")),
        "dir/t.x.y: line 6: expected one integer or `*`, found \"7 8\""
    );
}

#[test]
fn cache2k_keys_become_single_accesses() {
    let trace = read(CACHE2K).unwrap();
    assert_eq!(blocks(&trace), [&[7], &[65_536], &[0xffff_ffff], &[7]]);
    assert!(!trace.requests[0].is_chain);
}

#[test]
fn cache2k_cut_key_is_refused_at_its_offset() {
    assert!(
        failure(&CACHE2K[..15]).contains("unknown trace format"),
        "length is known at once"
    );
    let mut long = CACHE2K.repeat(20_000);
    long.truncate(200_003);
    assert_eq!(
        failure(&long),
        "dir/t.x.y: byte 200000: expected a 4-byte key (length of the trace divisible by 4), \
         found \"\\x00\\x00\\x00\""
    );
    assert_eq!(
        read_with(&long, Some(50_000), Limits::DEFAULT)
            .unwrap()
            .requests
            .len(),
        50_000
    );
}

#[test]
fn azure_rows_get_fresh_chains() {
    let trace = read(AZURE).unwrap();
    assert_eq!(blocks(&trace), [&[0][..], &[1, 2, 3], &[]]);
    let times: Vec<_> = trace
        .requests
        .iter()
        .map(|request| request.timestamp_ms)
        .collect();
    assert_eq!(times, [0, 52, 1999]);
    let second = &trace.requests[1];
    assert_eq!(
        (second.input_tokens, second.output_tokens, second.is_chain),
        (1025, 109, true)
    );
}

#[test]
fn azure_malformed_row_is_refused_with_its_field() {
    for (row, expected) in [
        (
            "2023-11-17 00:00:02,1",
            "three fields `time,context,generated`",
        ),
        (
            "2023-11-17 00:00:02,1,2,3",
            "three fields `time,context,generated`",
        ),
        (
            "2023-11-17,1,2",
            "a TIMESTAMP `YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM]`",
        ),
        (
            "2023-11-16 00:00:00,1,2",
            "a TIMESTAMP not before that of the first row",
        ),
        (
            "2023-11-17 00:00:02,x,2",
            "ContextTokens to be an integer of 32 bits",
        ),
        (
            "2023-11-17 00:00:02,1,-2",
            "GeneratedTokens to be an integer of 32 bits",
        ),
    ] {
        let message = failure(format!("{AZURE}\n{row}\n"));
        let start = format!("dir/t.x.y: line 5: expected {expected}, found \"");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn text_not_utf8_is_refused_at_its_line() {
    let mut bytes = format!("{LIRS}\n").repeat(2000).into_bytes();
    bytes.extend(b"\nab\xff\xfe\n");
    let message = failure(bytes);
    assert!(
        message.ends_with("expected UTF-8 text, found \"\\xff\\xfe\""),
        "{message}"
    );
}

#[test]
fn unknown_format_lists_the_formats_and_the_start() {
    let message = failure("<html>".repeat(100));
    assert!(message.contains("starts with \"<html><html>"), "{message}");
    assert!(
        message.contains("\"..."),
        "the start is shortened: {message}"
    );
    for format in ["Mooncake", "ARC", "LIRS", "cache2k", "Azure"] {
        assert!(message.contains(format), "{message}");
    }
    assert!(failure("").contains("starts with \"\""));
}

#[test]
fn unknown_compression_is_named() {
    for (bytes, name) in [
        (&b"BZh91AY&SY"[..], "bzip2"),
        (b"\x04\x22\x4d\x18abc", "lz4"),
        (b"PK\x03\x04abc", "zip"),
    ] {
        let message = failure(bytes);
        assert!(message.contains(&format!("compressed with {name}; expected zstd, gzip, xz")));
    }
}

#[test]
fn compressed_traces_are_told_by_magic_and_read_whole() {
    let expected: Vec<Vec<u64>> = (0..=40).map(|id| vec![id]).collect();
    for packed in [SEQ_ZSTD, SEQ_XZ, SEQ_GZIP] {
        assert_eq!(blocks(&read(unhex(packed)).unwrap()), expected, "{packed}");
    }
}

#[test]
fn zstd_frames_and_gzip_members_are_read_one_after_the_other() {
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let zstd = unhex(SEQ_ZSTD);
    let frames = [&zstd[..], &skipped, &zstd].concat();
    assert_eq!(read(&frames).unwrap().requests.len(), 82);
    let message = failure([&zstd[..], &skipped[..9]].concat());
    assert!(
        message.contains("zstd stream damaged after 113 decompressed bytes"),
        "{message}"
    );
    let gzip = unhex(SEQ_GZIP);
    assert_eq!(
        read([&gzip[..], &gzip].concat()).unwrap().requests.len(),
        82
    );
}

#[test]
fn compressed_traces_cut_anywhere_are_damaged() {
    for (packed, name) in [(SEQ_ZSTD, "zstd"), (SEQ_XZ, "xz"), (SEQ_GZIP, "gzip")] {
        let packed = unhex(packed);
        for len in 6..packed.len() {
            let error = read(&packed[..len]).unwrap_err();
            assert!(
                matches!(error, TraceError::Damaged { compression, .. } if compression == name),
                "{name} cut to {len}: {error}"
            );
        }
    }
}

#[test]
fn compressed_traces_with_a_flipped_content_bit_are_damaged() {
    // The last bytes of zstd and the ones before the lengths of gzip are content checksums.
    for (packed, from_end) in [(SEQ_ZSTD, 1), (SEQ_GZIP, 8), (SEQ_GZIP, 1), (SEQ_XZ, 1)] {
        let mut packed = unhex(packed);
        let at = packed.len() - from_end;
        packed[at] ^= 1;
        assert!(
            matches!(read(&packed).unwrap_err(), TraceError::Damaged { .. }),
            "{from_end}"
        );
    }
}

#[test]
fn zstd_frame_of_other_length_than_stated_is_damaged() {
    let mut packed = unhex(SEQ_ZSTD);
    assert_eq!(packed[5], 113, "the length of the content");
    packed[5] = 114;
    let message = failure(packed);
    assert!(
        message.contains("frame of 113 bytes states 114"),
        "{message}"
    );
}

#[test]
fn zstd_window_over_100_mib_is_refused_before_it_is_allocated() {
    // Window descriptor 0xd8: 2^37 bytes.
    let message = failure([0x28, 0xb5, 0x2f, 0xfd, 0, 0xd8, 1, 0, 0]);
    assert!(
        message.contains("zstd stream damaged") && message.contains("window"),
        "{message}"
    );
}

#[test]
fn xz_index_length_of_all_ones_is_damaged() {
    let mut packed = unhex(SEQ_XZ);
    let footer = packed.len() - 12;
    packed[footer + 4..footer + 8].fill(0xff);
    assert!(failure(packed).contains("footer states an index of 16 GiB"));
}

#[test]
fn xz_stated_length_equals_content_of_many_blocks_and_kinds() {
    let packed_of = |content: &[u8]| {
        let mut packed = Vec::new();
        lzma_rs::xz_compress(&mut Cursor::new(content), &mut packed).unwrap();
        packed
    };
    for len in [1, 113, 65_535, 65_536, 65_537, 300_000] {
        assert_eq!(xz::stated_len(&packed_of(&vec![b'1'; len])), Ok(len as u64));
    }
    assert_eq!(xz::stated_len(&unhex(SEQ_XZ)), Ok(113));
    let mut two_filters = unhex(SEQ_XZ);
    two_filters[13] |= 1;
    assert!(failure(two_filters).contains("more than one filter in an xz block"));
}

#[test]
fn over_limit_each_is_refused_by_name() {
    type Case<'a> = (&'a [u8], fn(&mut Limits), &'a str);
    let (zstd, xz, cache2k) = (unhex(SEQ_ZSTD), unhex(SEQ_XZ), CACHE2K.repeat(10));
    let cases: [Case<'_>; 7] = [
        (
            &zstd,
            |l| l.decompressed_len_max = 112,
            "byte 113: bytes after decompression: 113",
        ),
        (
            &xz,
            |l| l.xz_len_max = 139,
            "byte 0: bytes of an xz file: 140",
        ),
        (
            MOONCAKE.as_bytes(),
            |l| l.line_len_max = 80,
            "line 2: bytes of a line: 81",
        ),
        (
            MOONCAKE.as_bytes(),
            |l| l.request_blocks_max = 2,
            "line 4: blocks of a request: 3",
        ),
        (
            ARC.as_bytes(),
            |l| l.request_blocks_max = 2,
            "line 2: blocks of a request: 3",
        ),
        (
            &zstd,
            |l| l.requests_max = 40,
            "line 41: requests of a trace: 41",
        ),
        (
            &cache2k,
            |l| l.accesses_max = 39,
            "byte 156: block accesses of a trace: 40",
        ),
    ];
    for (bytes, shrink, found) in cases {
        let mut limits = Limits::DEFAULT;
        shrink(&mut limits);
        let message = read_with(bytes, None, limits).unwrap_err().to_string();
        let start = format!("dir/t.x.y: {found} or more, over the limit of ");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn line_of_exactly_the_longest_length_is_read() {
    let longest = MOONCAKE.lines().map(str::len).max().unwrap() as u64;
    let with = |line_len_max| Limits {
        line_len_max,
        ..Limits::DEFAULT
    };
    assert!(read_with(MOONCAKE.as_bytes(), None, with(longest)).is_ok());
    assert!(read_with(MOONCAKE.as_bytes(), None, with(longest - 1)).is_err());
}

#[test]
fn xz_content_over_the_limit_is_refused_before_it_is_decoded() {
    let packed = unhex(ZEROS_XZ);
    let limits = Limits {
        xz_len_max: 9_999,
        ..Limits::DEFAULT
    };
    assert_eq!(
        read_with(&packed, None, limits).unwrap_err().to_string(),
        "dir/t.x.y: byte 0: bytes of an xz file after decompression: 10000 or more, over the \
         limit of 9999"
    );
    let exact = Limits {
        xz_len_max: 10_000,
        ..Limits::DEFAULT
    };
    assert_eq!(read_with(&packed, None, exact).unwrap().accesses(), 2500);
}

/// `head -c 10000 /dev/zero`, as written by `xz` 5.
const ZEROS_XZ: &str = "fd377a585a000004e6d6b4460200210116000000742fe5a3e0270f002b5d00006ffdffffa3b7ff473e4815\
    72396151b89228e6a38607f9eee41e82d32fc53a3c014bb17ec986bcf42a000000f38b21c0c6993b640001\
    47904e00000017e6c57bb1c467fb020000000004595a";

#[test]
fn arc_count_of_all_ones_is_refused_before_it_is_expanded() {
    let message = failure(format!("0 {} 0 0", u64::MAX));
    assert!(message.contains("over the limit of 1048576"), "{message}");
}

#[test]
fn open_limit_stops_before_what_follows() {
    let damaged = format!("{LIRS}\nnot a number");
    for limit in 0..=3 {
        let trace = read_with(damaged.as_bytes(), Some(limit), Limits::DEFAULT).unwrap();
        assert_eq!(trace.requests.len(), limit);
    }
    assert!(read_with(damaged.as_bytes(), Some(4), Limits::DEFAULT).is_err());
}

#[test]
fn open_missing_file_and_folder_name_the_operation() {
    let missing = Trace::open(Path::new("/nonexistent/t"), None).unwrap_err();
    assert!(
        missing.to_string().starts_with("open /nonexistent/t: "),
        "{missing}"
    );
    let folder = Trace::open(Path::new("/"), None).unwrap_err();
    assert!(folder.to_string().starts_with("read /: "), "{folder}");
}

#[test]
fn read_error_of_the_file_is_not_called_damage() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _buf: &mut [u8]) -> io::Result<usize> {
            /// EIO on Linux.
            const EIO: i32 = 5;
            Err(io::Error::from_raw_os_error(EIO))
        }
    }
    let gzip = unhex(SEQ_GZIP);
    let input = BufReader::new(gzip[..30].chain(Failing));
    let error = Trace::read(Path::new("t"), input, None, Limits::DEFAULT).unwrap_err();
    assert!(
        matches!(error, TraceError::Io { op: "read", .. }),
        "{error}"
    );
}

#[test]
fn name_of_path_is_what_stands_before_the_first_dot() {
    assert_eq!(name_of(Path::new("a/OLTP.lis.zst")), "OLTP");
    assert_eq!(name_of(Path::new(".hidden.gz")), "hidden");
    assert_eq!(name_of(Path::new("/")), "/");
}

fn gzip_of(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// One valid file per format and compression.
fn valid_files() -> Vec<Vec<u8>> {
    let plain: [&[u8]; 5] = [
        MOONCAKE.as_bytes(),
        ARC.as_bytes(),
        LIRS.as_bytes(),
        CACHE2K,
        AZURE.as_bytes(),
    ];
    let mut files: Vec<Vec<u8>> = plain.iter().map(|bytes| bytes.to_vec()).collect();
    files.extend(plain.iter().map(|bytes| gzip_of(bytes)));
    files.extend([SEQ_ZSTD, SEQ_XZ, SEQ_GZIP, ZEROS_XZ].map(unhex));
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn read_random_bytes_never_panics(
        magic in prop::sample::select(vec![
            &b""[..], b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08\0", b"\xfd7zXZ\0", b"{", b"1 1 0 0\n", b"1\n",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = read([magic, &rest].concat());
    }

    #[test]
    fn read_damaged_file_never_panics(
        file in prop::sample::select(valid_files()),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 0..4),
        bytes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = file;
        for (at, bit) in flips {
            let at = at.index(file.len());
            file[at] ^= 1 << bit;
        }
        for (at, byte) in bytes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let _ = read(file);
    }
}
