// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of records: round trips, refusals, and the bytes on the media.

use proptest::prelude::*;

use super::*;

const UUID: [u8; 16] = *b"0123456789abcdef";

fn log_header(seq: u64) -> RecordHeader {
    let kind = Kind::Log;
    RecordHeader {
        kind,
        uuid: UUID,
        seq,
        incarnation: 2,
        link: 0xfeed,
        flushed_seq: seq - 1,
        count: 0,
    }
}

fn write(block: u64, slot: u32) -> Entry {
    Entry { op: Op::Write, block, slot, crc: 0x1234_5678 }
}

fn encoded(header: &RecordHeader, entries: &[Entry]) -> Vec<u8> {
    let mut unit = vec![0xa5; UNIT];
    encode_record(header, entries, &mut unit);
    unit
}

/// Changes bytes of a sound record of two entries and makes its checksum good again.
fn forge(kind: Kind, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let header = RecordHeader { kind, ..log_header(5) };
    let mut unit = encoded(&header, &[write(1, 2), write(3, 4)]);
    unit[offset..offset + bytes.len()].copy_from_slice(bytes);
    seal(unit.as_mut_slice().try_into().unwrap());
    unit
}

#[test]
fn a_full_record_comes_back_and_its_checksum_is_the_next_link() {
    let entries: Vec<Entry> = (0..252).map(|n| write(u64::from(n) << 30, n)).collect();
    let mut unit = vec![0xa5; UNIT];
    let crc = encode_record(&log_header(9), &entries, &mut unit);
    let record = decode_record(&unit, &UUID).unwrap();
    assert_eq!(record.crc, crc);
    assert_eq!(record.header, RecordHeader { count: 252, ..log_header(9) });
    assert!(record.entries().eq(entries));
}

#[test]
fn an_empty_record_is_a_record() {
    let unit = encoded(&log_header(1), &[]);
    assert_eq!(decode_record(&unit, &UUID).unwrap().entries().len(), 0);
}

#[test]
fn any_flipped_bit_is_detected() {
    let mut unit = encoded(&log_header(5), &[write(1, 2), write(3, 4)]);
    for bit in 0..UNIT * 8 {
        unit[bit / 8] ^= 1 << (bit % 8);
        let expected = if bit < 64 { Damage::Magic } else { Damage::Checksum };
        assert_eq!(decode_record(&unit, &UUID).unwrap_err(), expected, "bit {bit}");
        unit[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_record_torn_over_an_older_one_is_detected() {
    let entries: Vec<Entry> = (0..252).map(|n| write(u64::from(n), n)).collect();
    let (old, new) = (encoded(&log_header(5), &entries), encoded(&log_header(69), &entries));
    for kept in 1u8..0xff {
        let mut torn = old.clone();
        for sector in (0..8).filter(|sector| kept >> sector & 1 == 1) {
            let range = sector * 512..(sector + 1) * 512;
            torn[range.clone()].copy_from_slice(&new[range]);
        }
        // The two records differ in their first sector only: the rest may come from either.
        let whole = torn == old || torn == new;
        assert_eq!(decode_record(&torn, &UUID).is_ok(), whole, "sectors {kept:08b}");
    }
}

#[test]
fn a_tear_within_the_entries_is_detected() {
    let entries = |crc| (0..252).map(|n| Entry { crc, ..write(n, 1) }).collect::<Vec<Entry>>();
    let (old, new) = (encoded(&log_header(5), &entries(1)), encoded(&log_header(69), &entries(2)));
    for kept in 1u8..0xff {
        let mut torn = old.clone();
        for sector in (0..8).filter(|sector| kept >> sector & 1 == 1) {
            let range = sector * 512..(sector + 1) * 512;
            torn[range.clone()].copy_from_slice(&new[range]);
        }
        assert_eq!(decode_record(&torn, &UUID).unwrap_err(), Damage::Checksum, "{kept:08b}");
    }
}

#[test]
fn a_record_of_another_cache_is_told_from_damage() {
    let unit = encoded(&log_header(1), &[]);
    let error = decode_record(&unit, &[7; 16]).unwrap_err();
    assert_eq!(error, Damage::WrongCache { found: UUID });
}

#[test]
fn impossible_values_under_a_good_checksum_are_refused_by_name() {
    let field = |offset, bytes: &[u8]| {
        decode_record(&forge(Kind::Log, offset, bytes), &UUID).map(|_| ()).unwrap_err()
    };
    let entry = |index, field| Damage::Entry { index, field };
    assert_eq!(field(8, &[4]), Damage::Version { found: 4, known: 3 });
    assert_eq!(field(8, &[2]), entry(0, "op"));
    assert_eq!(field(8, &[3]), entry(0, "op"));
    assert_eq!(field(10, &[3]), Damage::Field("kind"));
    assert_eq!(field(48, &[5]), Damage::Field("flushed_seq"));
    assert_eq!(field(60, &[253]), Damage::Field("count"));
    assert_eq!(field(60, &[1]), Damage::Field("reserved"));
    assert_eq!(field(60, &[3]), entry(2, "op"));
    assert_eq!(field(62, &[1]), Damage::Field("reserved"));
    assert_eq!(field(64 + 6, &[6]), entry(0, "op"));
    assert_eq!(field(64 + 16 + 6, &[0]), entry(1, "op"));
    assert_eq!(field(64 + 16 + 8, &[0xff; 4]), entry(1, "slot"));
    assert_eq!(field(4095, &[1]), Damage::Field("reserved"));
}

#[test]
fn a_record_has_epochs_from_its_first_entry_or_none() {
    let next = Entry { op: Op::WriteNext, ..write(3, 4) };
    let all = [Entry::epoch(9, 5), write(1, 2), next];
    for kind in [Kind::Log, Kind::Checkpoint] {
        let unit = encoded(&RecordHeader { kind, ..log_header(5) }, &all);
        assert_eq!(unit[8..10], [2, 0], "the version");
        let record = decode_record(&unit, &UUID).unwrap();
        assert!(record.entries().eq(all));
        // The entry in bytes: the epoch, the operation, how many before it pend, no checksum.
        assert_eq!(unit[64..80], *b"\x09\0\0\0\0\0\x06\0\x04\0\0\0\0\0\0\0");
    }
    for entry in [Entry::epoch(9, 5), next] {
        let all = [write(1, 2), entry];
        assert_eq!(all[1].wrong_field(Kind::Log, false), Some("op"));
        assert!(std::panic::catch_unwind(|| encoded(&log_header(5), &all)).is_err());
    }
    let wrong = |e: Entry| e.wrong_field(Kind::Log, true);
    assert_eq!(wrong(Entry { slot: 10, ..Entry::epoch(9, 5) }), Some("slot"));
    assert_eq!(wrong(Entry { crc: 1, ..Entry::epoch(9, 5) }), Some("crc"));
}

/// A program that does not know zeroes must not read past them: it would serve what the origin held
/// before.
#[test]
fn a_record_is_of_version_3_if_and_only_if_it_tells_of_zeroes() {
    let zero = Entry { op: Op::Zero, block: 0x0102_0304_0506, slot: 7, crc: 0x0010_0000 };
    let all = [Entry::epoch(9, 5), write(1, 2), zero];
    for kind in [Kind::Log, Kind::Checkpoint] {
        let mut unit = encoded(&RecordHeader { kind, ..log_header(5) }, &all);
        assert_eq!(unit[8..10], [3, 0], "the version");
        // The entry in bytes: the first block, the operation, its slot, how many blocks.
        assert_eq!(unit[96..112], *b"\x06\x05\x04\x03\x02\x01\x08\0\x07\0\0\0\0\0\x10\0");
        assert!(decode_record(&unit, &UUID).unwrap().entries().eq(all));
        unit[8] = 2;
        seal(unit.as_mut_slice().try_into().unwrap());
        assert_eq!(decode_record(&unit, &UUID).unwrap_err(), Damage::Field("version"));
    }
    let mut unit = encoded(&log_header(5), &all[..2]);
    assert_eq!(unit[8..10], [2, 0], "as ever");
    unit[8] = 3;
    seal(unit.as_mut_slice().try_into().unwrap());
    assert_eq!(decode_record(&unit, &UUID).unwrap_err(), Damage::Field("version"));
    let wrong = |e: Entry| e.wrong_field(Kind::Log, true);
    assert_eq!(wrong(zero), None);
    assert_eq!(zero.wrong_field(Kind::Log, false), Some("op"), "of no epoch");
    assert_eq!(wrong(Entry { slot: u32::MAX, ..zero }), Some("slot"));
    assert_eq!(wrong(Entry { crc: 0, ..zero }), Some("crc"));
    assert_eq!(wrong(Entry { block: BLOCK_LIMIT - 9, crc: 9, ..zero }), None);
    assert_eq!(wrong(Entry { block: BLOCK_LIMIT - 9, crc: 10, ..zero }), Some("crc"));
}

#[test]
fn a_drop_names_at_least_one_block_and_ends_below_the_limit() {
    let drop_entry = |block, slot| Entry { op: Op::Drop, block, slot, crc: 0 };
    assert_eq!(drop_entry(0, 0).wrong_field(Kind::Log, false), Some("slot"));
    assert_eq!(drop_entry(BLOCK_LIMIT - 2, 2).wrong_field(Kind::Log, false), None);
    assert_eq!(drop_entry(BLOCK_LIMIT - 2, 3).wrong_field(Kind::Log, false), Some("slot"));
    assert_eq!(drop_entry(0, u32::MAX).wrong_field(Kind::Log, false), None);
    assert_eq!(drop_entry(BLOCK_LIMIT, 1).wrong_field(Kind::Log, false), Some("block"));
}

#[test]
fn a_checkpoint_holds_states_and_no_events() {
    for (op, code) in [(Op::Evict, 3), (Op::Drop, 4)] {
        assert!(decode_record(&forge(Kind::Log, 70, &[code]), &UUID).is_ok());
        let error = decode_record(&forge(Kind::Checkpoint, 70, &[code]), &UUID).unwrap_err();
        assert_eq!(error, Damage::Entry { index: 0, field: "op" }, "{op:?}");
    }
    for code in [1, 2, 5] {
        assert!(decode_record(&forge(Kind::Checkpoint, 70, &[code]), &UUID).is_ok());
    }
}

#[test]
#[should_panic(expected = "would be refused")]
fn a_block_beyond_48_bits_is_never_written() {
    encoded(&log_header(1), &[write(BLOCK_LIMIT, 0)]);
}

#[test]
#[should_panic(expected = "FM-R2")]
fn a_record_that_calls_itself_durable_is_never_written() {
    encoded(&RecordHeader { flushed_seq: 4, ..log_header(4) }, &[]);
}

#[test]
fn bytes_are_where_the_byte_map_says() {
    // As the superblock's golden test: bytes by hand from docs/format/writecache.md, checksum by
    // another implementation.
    let header = RecordHeader {
        kind: Kind::Log,
        uuid: *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f",
        seq: 0x0102_0304_0506_0708,
        incarnation: 0x11,
        link: 0xaabb_ccdd,
        flushed_seq: 0x0102_0304_0506_0700,
        count: 5,
    };
    let entries = [
        Entry { op: Op::Write, block: 0x0605_0403_0201, slot: 0x1000, crc: 0xdead_beef },
        Entry { op: Op::Clean, block: 2, slot: 0x2000, crc: 1 },
        Entry { op: Op::Evict, block: 3, slot: 0x3000, crc: 0 },
        Entry { op: Op::Drop, block: 4, slot: 0x4000, crc: 0 },
        Entry { op: Op::Bad, block: 5, slot: 0x5000, crc: 0 },
    ];
    let golden = GOLDEN.concat();
    let written = encoded(&header, &entries);
    assert_eq!(written[..golden.len()], golden);
    assert!(is_blank(&written[golden.len()..]));
}

const GOLDEN: [&[u8]; 11] = [
    b"MPWCRECD",
    b"\x01\x00\x01\x00\x6c\x49\x0c\xf2",
    b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f",
    b"\x08\x07\x06\x05\x04\x03\x02\x01\x11\x00\x00\x00\x00\x00\x00\x00",
    b"\x00\x07\x06\x05\x04\x03\x02\x01",
    b"\xdd\xcc\xbb\xaa\x05\x00\x00\x00",
    b"\x01\x02\x03\x04\x05\x06\x01\x00\x00\x10\x00\x00\xef\xbe\xad\xde",
    b"\x02\x00\x00\x00\x00\x00\x02\x00\x00\x20\x00\x00\x01\x00\x00\x00",
    b"\x03\x00\x00\x00\x00\x00\x03\x00\x00\x30\x00\x00\x00\x00\x00\x00",
    b"\x04\x00\x00\x00\x00\x00\x04\x00\x00\x40\x00\x00\x00\x00\x00\x00",
    b"\x05\x00\x00\x00\x00\x00\x05\x00\x00\x50\x00\x00\x00\x00\x00\x00",
];

fn any_entry() -> impl Strategy<Value = Entry> {
    let ops = prop::sample::select(vec![
        Op::Write,
        Op::Clean,
        Op::Evict,
        Op::Drop,
        Op::Bad,
        Op::WriteNext,
        Op::Zero,
    ]);
    (ops, 0u64..1 << 47, 1u32..u32::MAX, 1u32..).prop_map(|(op, block, slot, crc)| Entry {
        op,
        block,
        slot,
        crc,
    })
}

proptest! {
    #[test]
    fn every_possible_record_comes_back(
        entries in prop::collection::vec(any_entry(), 0..=ENTRIES_PER_UNIT),
        uuid in any::<[u8; 16]>(), seq in 1u64.., incarnation in any::<u64>(),
        link in any::<u32>(), lag in any::<u64>(), is_log in any::<bool>(),
        epochs in prop::option::of(0..BLOCK_LIMIT),
    ) {
        let kind = if is_log { Kind::Log } else { Kind::Checkpoint };
        let flushed_seq = (seq - 1).saturating_sub(lag);
        let mut entries: Vec<Entry> =
            entries.into_iter().filter(|entry| is_log || entry.op.is_state()).collect();
        if let (Some(epoch), Some(first)) = (epochs, entries.first_mut()) {
            *first = Entry::epoch(epoch, epoch - epoch % 100);
        } else {
            entries.retain(|entry| !entry.op.is_of_epochs());
        }
        let count = u16::try_from(entries.len()).unwrap();
        let header = RecordHeader { kind, uuid, seq, incarnation, link, flushed_seq, count };
        let mut unit = vec![0xa5; UNIT];
        let crc = encode_record(&header, &entries, &mut unit);
        let record = decode_record(&unit, &uuid).unwrap();
        prop_assert_eq!(record.header, header);
        prop_assert_eq!(record.crc, crc);
        prop_assert!(record.entries().eq(entries));
    }

    #[test]
    fn noise_of_any_length_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..2 * UNIT)) {
        prop_assert!(decode_record(&bytes, &UUID).is_err());
    }

    #[test]
    fn forged_records_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 1..200), offset in 32usize..1000,
    ) {
        let unit = forge(Kind::Log, offset, &bytes);
        if let Ok(record) = decode_record(&unit, &UUID) {
            let entries: Vec<Entry> = record.entries().collect();
            let again = encoded(&record.header, &entries);
            prop_assert_eq!(again, unit, "what is read is exactly what would be written");
        }
    }
}
