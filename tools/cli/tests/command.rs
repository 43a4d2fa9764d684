//! Aim: `terrace inspect` as a user calls it, on sound sets and on each kind of damage. Method:
//! sets made by the format's own encoders, damaged byte by byte; the built binary as a child
//! process; its exit code and what it says are compared.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

mod devices;
mod image;
mod said;

use image::{
    DEVICE_LEN, Folder, Image, MIB, SEGMENT_LEN, SEGMENT_UNITS, block, offset, open_set, pair,
    pair_of, segment, write_segment,
};
use said::{both, inspect};

#[test]
fn sound_set_is_told_and_left_alone() {
    let pair = pair(true);
    let before = [&pair.a, &pair.b].map(|it| it.get(0, DEVICE_LEN as usize));
    let said = both(&pair, &["--verify", "--keys", "--segments"]);
    said.is(
        0,
        &[
            "set epoch 1, open epoch 2",
            "last close        clean",
            "in use, 41 MiB: ",
            &format!("device 0: {}", pair.a.arg()),
            "length            41 MiB (42991616 bytes)",
            &pair.b.id.to_string(),
            "superblock 0      valid, write count 5, the one that counts",
            "superblock 1      valid, write count 4",
            "segments          5: 4 free, 1 used (1 sealed)",
            "segments          5: 4 free, 1 used (1 unsealed, walked)",
            "live              5 blocks, 81.44 KiB",
            "dead              3 blocks, 8.89 KiB",
            "tombstones        1 of keys, 1 of namespaces",
            "checkpoints       1, 100 B",
            "namespace gone: live 0 blocks, 0 B; dead 1 blocks, 10 B",
            "0:1       sealed         0/1 1.1 ",
            "1:2       unsealed       0/1 1.10 ",
            "m1 6b657074 \"kept\" 70000 1.3 0:1:4 ",
            "m2 73686f7274 \"short\" 1 1.13 1:2:6 ",
            "verified 9 payloads",
            "no damage found",
        ],
    );
    said.is_not("notices").is_not("\"removed\"");
    let after = [&pair.a, &pair.b].map(|it| it.get(0, DEVICE_LEN as usize));
    assert!(before == after, "the devices were written");
}

#[test]
fn json_has_all_of_it_and_nothing_else_is_on_stdout() {
    let pair = pair(true);
    let said = both(&pair, &["--verify", "--keys", "--segments", "--json"]);
    let json = said.json();
    let at = |path: &str| json.pointer(path).unwrap_or_else(|| panic!("{path}"));
    assert_eq!(at("/exit_code"), 0);
    assert_eq!(at("/set/devices/0/path"), pair.a.arg());
    assert_eq!(at("/set/missing").as_array().unwrap().len(), 0);
    assert_eq!(at("/devices/1/format_version"), 1);
    assert_eq!(at("/devices/0/superblocks/0/write_count"), 5);
    assert_eq!(at("/devices/0/segments/sealed"), 1);
    assert_eq!(at("/devices/1/segments/unsealed"), 1);
    assert_eq!(at("/usage/live/blocks"), 5);
    assert_eq!(at("/usage/blocks"), 8);
    assert_eq!(at("/segments").as_array().unwrap().len(), 10);
    assert_eq!(at("/keys").as_array().unwrap().len(), 5);
    assert_eq!(at("/keys/0/key_text"), "kept");
    assert_eq!(at("/keys/0/sequence/counter"), 3);
    assert_eq!(at("/verified/blocks"), 9);
    assert_eq!(at("/damage").as_array().unwrap().len(), 0);
    let json = both(&pair, &["--json"]).json();
    assert!(json.get("keys").is_none() && json["verified"].is_null());
}

#[test]
fn flipped_payload_byte_is_found_by_verifying() {
    let pair = pair(true);
    pair.a.flip(offset(1, 4) + 69_999);
    both(&pair, &[]).is(
        0,
        &["no damage found (payloads of sealed segments were not read"],
    );
    let said = both(&pair, &["--verify", "--keys"]);
    said.is(
        1,
        &[
            "damage: 1",
            "a.terrace: segment 1, unit 4: live block 6b657074 \"kept\" of m1 (68.36 KiB): the \
             payload's checksum is 0x",
            "70000 1.3 0:1:4",
            " damaged\n",
        ],
    );
    let json = both(&pair, &["--verify", "--json"]).json();
    assert_eq!(json["damage"][0]["block"]["key"], "6b657074");
    assert_eq!(json["damage"][0]["unit"], 4);
    assert_eq!(json["exit_code"], 1);
    pair.a.flip(offset(1, 4) + 69_999);
    pair.a.flip(offset(1, 2));
    both(&pair, &["--verify"]).is(1, &["dead block", "\"replaced\"", "segment 1, unit 2"]);
}

#[test]
fn byte_behind_a_payload_is_nobodys() {
    let pair = pair(true);
    pair.a.flip(offset(1, 4) + 70_001);
    both(&pair, &["--verify"]).is(0, &["no damage found"]);
}

#[test]
fn damaged_footer_is_told_and_frames_stand_in() {
    for at in [0, 20, 100, 4096 - 32, 4096 - 28, 4096 - 1] {
        let pair = pair(true);
        pair.a.flip(offset(1, SEGMENT_UNITS - 1) + at);
        let said = both(&pair, &[]);
        said.is(
            1,
            &[
                "damage: 1\n",
                "a.terrace: segment 1, unit 2047: ",
                "footer",
                "its frames were walked",
                "(1 with a damaged footer, walked)",
                "live              5 blocks, 81.44 KiB",
            ],
        );
    }
}

#[test]
fn damaged_frame_head_of_an_unsealed_segment_is_told() {
    // The magic, the checksum, and all of it.
    for at in [vec![0], vec![70], (0..4096).collect()] {
        let pair = pair(true);
        let unit = pair.unsealed[1];
        at.iter().for_each(|at| pair.b.flip(offset(2, unit) + at));
        let said = both(&pair, &["--keys"]);
        let place = format!("b.terrace: segment 2, unit {unit}: ");
        said.is(1, &["damage: 1\n", &place, "live              3 blocks"]);
        said.is_not("\"mid\"");
    }
}

#[test]
fn last_frame_that_a_crash_cut_off_is_no_damage() {
    for is_payload in [false, true] {
        let pair = pair(false);
        let unit = pair.unsealed[2] + u32::from(is_payload);
        pair.b.flip(offset(2, unit) + 80);
        both(&pair, &["--verify"]).is(
            0,
            &[
                "last close        not clean",
                "notices\n",
                &format!("segment 2, unit {unit}: "),
                "cut off before it was durable",
                "no damage found",
            ],
        );
    }
}

#[test]
fn clean_close_leaves_nothing_unsealed_and_nothing_cut_off() {
    let pair = pair_of(1, true);
    let lost = "segment 2, unit 2047: the footer is lost: the set was closed cleanly";
    both(&pair, &[]).is(1, &["damage: 1\n", lost, "live              5 blocks"]);
    let unit = pair.unsealed[2];
    pair.b.flip(offset(2, unit) + 80);
    let place = format!("segment 2, unit {unit}: frame head: checksum is");
    both(&pair, &[]).is(1, &["damage: 2\n", lost, &place]);
    // A segment that was made ready and never used is no loss.
    let pair = pair_of(1, false);
    write_segment(&pair.a, &unused(), &[]);
    both(&pair, &[]).is(0, &["5: 3 free, 1 used (1 sealed), 1 made ready"]);
}

fn unused() -> image::Segment {
    let mut unused = segment(4, 9);
    unused.is_sealed = false;
    unused
}

#[test]
fn damaged_payload_of_an_unsealed_segment_is_told_without_verifying() {
    let pair = pair(false);
    let unit = pair.unsealed[0] + 1;
    pair.b.flip(offset(2, unit));
    let place = format!("segment 2, unit {unit}: block 7265706c61636564 \"replaced\" of m1");
    both(&pair, &[]).is(1, &["damage: 1\n", &place]);
}

#[test]
fn damaged_frame_head_of_a_sealed_segment_is_found_by_verifying() {
    for frame in [0, 1] {
        let pair = pair(true);
        let unit = pair.sealed[frame];
        pair.a.flip(offset(1, unit) + 90);
        both(&pair, &[]).is(0, &[]);
        let place = format!("segment 1, unit {unit}: the frame head here is damaged");
        let said = both(&pair, &["--verify"]);
        said.is(1, &["damage: 1\n", &place, "verified 9 payloads"]);
    }
}

#[test]
fn damaged_segment_head_is_told() {
    let pair = pair(true);
    pair.a.flip(offset(1, 0) + 50);
    both(&pair, &[]).is(
        1,
        &[
            "5: 4 free, 0 used, 1 with a damaged head",
            "segment 1, unit 0: segment head: checksum is",
        ],
    );
    // A valid one that was written elsewhere.
    let head = pair.b.get(offset(2, 0), 4096);
    pair.a.put(offset(1, 0), &head);
    both(&pair, &[]).is(1, &["segment 1, unit 0: the segment head is of device"]);
}

#[test]
fn payloads_longer_than_a_window_are_verified() {
    let folder = Folder::new();
    let mut images = [Image::new(&folder.path("long"))];
    open_set(&mut images, true);
    let [image] = images;
    let len = 3 * MIB as usize + 5;
    let frames = [
        vec![block("m", "long", 2, len)],
        vec![block("m", "b", 3, len)],
    ];
    write_segment(&image, &segment(0, 1), &frames);
    inspect(&[image.arg(), "--verify"]).is(0, &["verified 2 payloads, 6.00 MiB"]);
    image.flip(offset(0, 2) + 2 * MIB + 1);
    inspect(&[image.arg(), "--verify"]).is(1, &["damage: 1\n", "\"long\""]);
    assert!(SEGMENT_LEN > 2 * len as u64);
}
