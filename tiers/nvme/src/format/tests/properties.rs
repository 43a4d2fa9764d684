//! Random values are read back; random changes and bytes stay within bounds.

use super::*;

proptest! {
    #[test]
    fn superblock_is_read_back(
        numbers in any::<(u64, u64, u64)>(),
        open_epoch in 0..=OPEN_EPOCH_MAX,
        (shards, count) in (1_u32..=1024, 1_usize..=DEVICES_MAX),
        place in any::<proptest::sample::Index>(),
        closed_cleanly in any::<bool>(),
    ) {
        let place = place.index(count) as u32;
        let device = |at: usize| SetDevice {
            id: DeviceId([at as u8 + 1; 16]),
            len: numbers.2,
            state: [DeviceState::InUse, DeviceState::Absent, DeviceState::Draining][at % 3],
            last_set_epoch: numbers.1,
        };
        let superblock = Superblock {
            write_count: numbers.0,
            device_id: DeviceId([place as u8 + 1; 16]),
            set_epoch: numbers.1,
            open_epoch,
            closed_cleanly,
            shards,
            place,
            devices: (0..count).map(device).collect(),
            ..superblock()
        };
        let mut bytes = vec![0xee; 4096];
        superblock.encode(&mut bytes);
        prop_assert_eq!(Superblock::decode(&bytes), Ok(superblock));
    }

    #[test]
    fn segment_head_is_read_back(number in any::<u32>(), sequence in any::<u64>(), salt in any::<u64>()) {
        let sequence = Sequence(sequence);
        let head = SegmentHead { number, sequence, salt, ..segment_head() };
        let mut bytes = vec![0xee; 4096];
        head.encode(&mut bytes);
        prop_assert_eq!(SegmentHead::decode(&bytes), Ok(head));
        let (epoch, counter) = (sequence.open_epoch(), sequence.counter());
        prop_assert_eq!(Sequence::new(epoch, counter), sequence);
    }

    #[test]
    fn frame_head_is_read_back(entries in entries(), number in any::<u32>()) {
        let (bytes, frame_units) = frame(&entries, number);
        prop_assert_eq!(FrameView::head_len_hint(&bytes[..4096]), Ok(bytes.len() as u32));
        let view = FrameView::decode(&bytes, &IDENTITY, PLACE, SEGMENT_UNITS).unwrap();
        prop_assert_eq!((view.frame_units, view.number), (frame_units, number));
        let mut end = PLACE + units(view.head_len);
        let mut read = view.entries();
        for entry in &entries {
            let entry = entry.at(end);
            end += units(entry.len);
            prop_assert_eq!(read.next(), Some(entry));
        }
        prop_assert_eq!(read.next(), None);
        prop_assert!(FrameView::decode(&bytes, &IDENTITY, PLACE + 1, SEGMENT_UNITS).is_err());
        prop_assert!(FrameView::decode(&bytes, &IDENTITY, PLACE, end - 1).is_err());
        let other = SegmentIdentity { salt: 1, ..IDENTITY };
        prop_assert!(FrameView::decode(&bytes, &other, PLACE, SEGMENT_UNITS).is_err());
    }

    #[test]
    fn footer_is_read_back(entries in entries(), end in 10_u32..1000) {
        let bytes = footer(&entries, end);
        let last_unit = &bytes[bytes.len() - 4096..];
        let len = footer_len_from_tail(last_unit, &IDENTITY, SEGMENT_UNITS);
        prop_assert_eq!(len, Ok(bytes.len() as u32));
        let view = FooterView::decode(&bytes, &IDENTITY, SEGMENT_UNITS).unwrap();
        let written: Vec<EntryRef<'_>> = entries.iter().map(|entry| entry.at(2)).collect();
        let lowest = written.iter().map(|entry| entry.sequence).min();
        prop_assert_eq!(view.lowest, lowest.unwrap_or(Sequence(u64::MAX)));
        prop_assert_eq!(view.end_units, end);
        prop_assert_eq!(view.entries().collect::<Vec<_>>(), written);
        let other = SegmentIdentity { salt: 1, ..IDENTITY };
        prop_assert!(FooterView::decode(&bytes, &other, SEGMENT_UNITS).is_err());
    }

    #[test]
    fn sequence_of_a_later_open_is_higher(
        (earlier, later) in (0..OPEN_EPOCH_MAX).prop_flat_map(|at| (Just(at), at + 1..=OPEN_EPOCH_MAX)),
        counters in (0..=SEQUENCE_COUNTER_MAX, 0..=SEQUENCE_COUNTER_MAX),
    ) {
        prop_assert!(Sequence::new(earlier, counters.0) < Sequence::new(later, counters.1));
    }

    #[test]
    fn random_changes_under_a_right_checksum_stay_within_bounds(
        which in 0_usize..4,
        changes in vec((0_usize..700, any::<u8>()), 1..6),
    ) {
        let mut bytes = structures()[which].clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        seal(&mut bytes);
        accepted(&bytes);
    }

    #[test]
    fn random_bytes_are_refused(
        mut bytes in vec(any::<u8>(), 0..9000),
        magic in proptest::sample::select(&[b"TERRACES", b"TERRSEGM", b"TERRFRAM", b"TERRFOOT"][..]),
    ) {
        prop_assert_eq!(accepted(&bytes), 0);
        if bytes.len() >= 16 {
            put(&mut bytes, 0, magic);
            prop_assert_eq!(accepted(&bytes), 0);
            seal(&mut bytes);
            accepted(&bytes);
        }
    }

    #[test]
    fn device_as_long_as_four_shortest_segments_a_shard_holds_four(
        shards in 1_u32..64,
        block in 0_u64..(129 << 20),
        more in 0_u64..(1 << 40),
    ) {
        let shortest = segment_len_for(0, shards, block);
        let len = SEGMENTS_START + 4 * u64::from(shards) * shortest + more;
        let segment_len = segment_len_for(len, shards, block);
        prop_assert!(segment_len >= 2 * block);
        prop_assert!(segment_count(len, segment_len) >= 4 * shards);
    }
}
