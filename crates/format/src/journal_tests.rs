// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal: its bytes, torn and damaged ones, and what no writer makes.
use proptest::prelude::*;

use super::*;

const CAPACITY: u64 = 8;
const INCARNATION: u64 = 7;

fn header() -> JournalHeader {
    let (uuid, boot_id) = ([0x11; 16], [0x22; 16]);
    JournalHeader { uuid, boot_id, incarnation: INCARNATION, capacity: CAPACITY, frames: 5 }
}

fn blank() -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(journal_bytes(CAPACITY)).unwrap()];
    header().encode(&mut bytes[..UNIT]);
    bytes
}

fn put(bytes: &mut [u8], entry: JournalEntry) {
    let at = usize::try_from(journal_offset(entry.seq, CAPACITY)).unwrap();
    bytes[at..at + JOURNAL_ENTRY_BYTES].copy_from_slice(&entry.encode(INCARNATION));
}

fn write(block: u64, slot: u32) -> JournalChange {
    let entry = Entry { op: Op::Write, block, slot, crc: 0x0bad_cafe };
    JournalChange { entry, epoch: 0, oldest: 0 }
}

fn nth(seq: u64, start: u64) -> JournalEntry {
    let slot = u32::try_from(seq).unwrap();
    JournalEntry { seq, start, change: Some(write(100 + seq, slot)) }
}

fn blocks(bytes: &[u8]) -> Vec<u64> {
    let journal = Journal::decode(bytes).unwrap();
    journal.changes.iter().map(|change| change.entry.block - 100).collect()
}

#[test]
fn the_bytes_are_those_of_the_format_page() {
    let bytes = blank();
    assert_eq!(bytes[..12], *b"MPWCJRNL\x02\0\0\0");
    assert_eq!(bytes[12..16], 0x72ab_455f_u32.to_le_bytes(), "crc");
    assert_eq!((&bytes[16..32], &bytes[32..48]), (&[0x11; 16][..], &[0x22; 16][..]));
    assert_eq!(bytes[48..64], *b"\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0");
    assert_eq!(bytes[64..72], *b"\x05\0\0\0\0\0\0\0");
    assert!(is_blank(&bytes[72..UNIT]));
    let entry = Entry { op: Op::Zero, block: 0x0102, slot: 3, crc: 4 };
    let change = JournalChange { entry, epoch: 9, oldest: 7 };
    let bytes = JournalEntry { seq: 5, start: 2, change: Some(change) }.encode(INCARNATION);
    assert_eq!(bytes[..16], *b"\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
    assert_eq!(bytes[16..24], (8 << 48 | 0x0102_u64).to_le_bytes());
    assert_eq!(bytes[24..32], *b"\x03\0\0\0\x04\0\0\0");
    assert_eq!(bytes[32..44], *b"\x09\0\0\0\0\0\0\0\x02\0\0\0");
    assert_eq!(bytes[44..], 0x6f73_7df0_u32.to_le_bytes());
}

#[test]
fn frames_and_their_tags_lie_where_the_format_page_says() {
    let tag = FrameTag { slot: 0x0102_0304, crc: 0xa0b0_c0d0 };
    assert_eq!(tag.encode(), *b"\x04\x03\x02\x01\xd0\xc0\xb0\xa0");
    assert_eq!(FrameTag::decode(tag.encode()), tag);
    let most = FrameTag { slot: u32::MAX, crc: u32::MAX };
    assert_eq!(FrameTag::decode(most.encode()), most);
    // 512 tags fill a unit.
    assert_eq!([0, 1, 5].map(|frame| frame_offset(frame, 5, 512)), [4096, 4608, 6656]);
    assert_eq!(frame_offset(0, 512, 4096), 4096);
    assert_eq!(frame_offset(0, 513, 4096), 8192);
    assert_eq!(frame_offset(513, 513, 4096), 8192 + 513 * 4096, "the length");
    assert_eq!(frame_offset(0, 0, 4096), 0);
    assert_eq!(frame_offset(FRAMES_MAX, FRAMES_MAX, 4096), (128 << 20) + (64 << 30));
}

/// A header of version 1, as its processes wrote it.
#[test]
fn a_journal_of_version_1_is_read() {
    let mut bytes = blank();
    bytes[8] = 1;
    bytes[64..72].fill(0);
    seal((&mut bytes[..UNIT]).try_into().unwrap());
    assert_eq!(bytes[12..16], 0x17fc_1973_u32.to_le_bytes(), "crc");
    for seq in 1..=3 {
        put(&mut bytes, nth(seq, 1));
    }
    assert_eq!(blocks(&bytes), [1, 2, 3]);
    let found = JournalHeader::decode(&bytes[..UNIT]);
    assert_eq!(found, Ok(JournalHeader { frames: 0, ..header() }));
}

#[test]
fn the_most_frames_are_read_and_none_too() {
    for frames in [0, 1, FRAMES_MAX] {
        let mut unit = [0; UNIT];
        let header = JournalHeader { frames, ..header() };
        header.encode(&mut unit);
        assert_eq!(JournalHeader::decode(&unit), Ok(header));
    }
}

#[test]
#[should_panic(expected = "FM-F2")]
fn too_many_frames_are_not_written() {
    JournalHeader { frames: FRAMES_MAX + 1, ..header() }.encode(&mut [0; UNIT]);
}

#[test]
fn the_ring_is_read_from_the_start_that_its_last_entry_names() {
    let mut bytes = blank();
    assert_eq!(Journal::decode(&bytes).unwrap(), Journal { header: header(), changes: vec![] });
    for seq in 1..=5 {
        put(&mut bytes, nth(seq, 1));
    }
    assert_eq!(blocks(&bytes), [1, 2, 3, 4, 5]);
    put(&mut bytes, JournalEntry { seq: 6, start: 5, change: None });
    assert_eq!(blocks(&bytes), [5], "the cache device knows the rest");
    for seq in 7..=12 {
        put(&mut bytes, nth(seq, 5));
    }
    assert_eq!(blocks(&bytes), [5, 7, 8, 9, 10, 11, 12], "around the end of the ring");
    put(&mut bytes, JournalEntry { seq: 13, start: 14, change: None });
    assert_eq!(blocks(&bytes), [0; 0]);
}

/// FM-J2: the process dies while it writes an entry.
#[test]
fn a_torn_entry_counts_as_absent() {
    let whole = nth(6, 2).encode(INCARNATION);
    for len in 0..JOURNAL_ENTRY_BYTES {
        for old in [None, Some(nth(6, 1))] {
            let mut bytes = blank();
            for seq in 2..=5 {
                put(&mut bytes, nth(seq, 2));
            }
            let at = usize::try_from(journal_offset(6, CAPACITY)).unwrap();
            if let Some(old) = old {
                // An entry of an earlier opening.
                let old = old.encode(INCARNATION - 1);
                bytes[at..at + JOURNAL_ENTRY_BYTES].copy_from_slice(&old);
            }
            bytes[at..at + len].copy_from_slice(&whole[..len]);
            assert_eq!(blocks(&bytes), [2, 3, 4, 5], "{len} bytes");
        }
    }
}

#[test]
fn a_flipped_bit_of_an_entry_is_never_believed() {
    let mut good = blank();
    for seq in 1..=5 {
        put(&mut good, nth(seq, 1));
    }
    let whole = Journal::decode(&good).unwrap();
    let at = UNIT + JOURNAL_ENTRY_BYTES;
    for bit in 0..5 * JOURNAL_ENTRY_BYTES * 8 {
        let mut bad = good.clone();
        bad[at + bit / 8] ^= 1 << (bit % 8);
        let found = Journal::decode(&bad);
        let is_last = bit / 8 / JOURNAL_ENTRY_BYTES == 4;
        match found {
            Ok(journal) => assert!(is_last && journal.changes == whole.changes[..4], "bit {bit}"),
            Err(damage) => assert!(!is_last && damage == Damage::Field("start"), "bit {bit}"),
        }
    }
    for bit in 0..UNIT * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let damage = Journal::decode(&bad).unwrap_err();
        assert!(matches!(damage, Damage::Magic | Damage::Checksum), "bit {bit}: {damage}");
    }
}

#[test]
fn values_that_no_writer_makes_are_refused() {
    let sealed = |change: &dyn Fn(&mut EntryInMemory)| {
        let mut media = EntryInMemory::read_from_bytes(&nth(3, 1).encode(INCARNATION)).unwrap();
        change(&mut media);
        media.check = U32::new(media.check(INCARNATION));
        JournalEntry::decode(media.as_bytes(), INCARNATION).unwrap_err()
    };
    let op = |op, block, slot, crc| {
        sealed(&move |media| media.entry = EntryMedia::encode(&Entry { op, block, slot, crc }))
    };
    assert_eq!(sealed(&|media| media.seq = U64::ZERO), Damage::Field("seq"));
    assert_eq!(sealed(&|media| media.seq = U64::new(u64::MAX)), Damage::Field("seq"));
    assert_eq!(sealed(&|media| media.start = U64::new(5)), Damage::Field("start"));
    assert_eq!(sealed(&|media| media.pending = U32::new(1)), Damage::Field("pending"));
    let trim = |media: &mut EntryInMemory| {
        media.entry = EntryMedia::BLANK;
        media.epoch = U64::new(1);
    };
    assert_eq!(sealed(&trim), Damage::Field("epoch"));
    assert_eq!(op(Op::Clean, 1, 1, 1), Damage::Field("op"));
    assert_eq!(op(Op::Epoch, 1, 1, 0), Damage::Field("op"));
    assert_eq!(op(Op::Write, 1, u32::MAX, 1), Damage::Field("slot"));
    assert_eq!(op(Op::Drop, 1, 0, 0), Damage::Field("slot"));
    assert_eq!(op(Op::Drop, BLOCK_LIMIT - 1, 2, 0), Damage::Field("slot"));
    assert_eq!(op(Op::Zero, 1, 1, 0), Damage::Field("crc"));
    assert_eq!(op(Op::Zero, 1, 1, 1), Damage::Field("epoch"));
    let header = |change: &dyn Fn(&mut [u8; UNIT])| {
        let mut unit = [0; UNIT];
        header().encode(&mut unit);
        change(&mut unit);
        seal(&mut unit);
        JournalHeader::decode(&unit).unwrap_err()
    };
    assert_eq!(header(&|unit| unit[56] = 0), Damage::Field("capacity"));
    assert_eq!(header(&|unit| unit[60] = 1), Damage::Field("capacity"));
    assert_eq!(header(&|unit| unit[10] = 1), Damage::Field("reserved"));
    assert_eq!(header(&|unit| unit[100] = 1), Damage::Field("reserved"));
    assert_eq!(header(&|unit| unit[72] = 1), Damage::Field("reserved"));
    assert_eq!(header(&|unit| unit[8] = 4), Damage::Version { found: 4, known: 3 });
    assert_eq!(header(&|unit| unit[8] = 0), Damage::Version { found: 0, known: 3 });
    // 2^24 + 5 frames; and 2^32 + 5.
    assert_eq!(header(&|unit| unit[67] = 1), Damage::Field("frames"));
    assert_eq!(header(&|unit| unit[68] = 1), Damage::Field("frames"));
    assert_eq!(header(&|unit| unit[8] = 1), Damage::Field("frames"), "version 1 has none");
    assert!(matches!(Journal::decode(&blank()[..4400]), Err(Damage::Length { .. })));
    assert!(matches!(Journal::decode(&[]), Err(Damage::Length { .. })));
}

/// A header of a later program: feature words at 72, and a room behind them.
#[test]
fn a_header_of_a_later_program_is_read_as_its_words_say() {
    let decoded = |words: [u64; 3], room: u8| {
        let mut unit = [0; UNIT];
        header().encode(&mut unit);
        unit[8] = 3;
        unit[72..96].copy_from_slice(&words.map(u64::to_le_bytes).concat());
        unit[96..].fill(room);
        seal(&mut unit);
        JournalHeader::decode(&unit)
    };
    assert_eq!(decoded([0, 0, 1 << 63], 7), Ok(header()));
    for words in [[1, 0, 0], [0, 1, 2]] {
        let found = decoded(words, 7);
        let Err(Damage::Later(later)) = found else { panic!("{words:?}: {found:?}") };
        assert_eq!([later.incompat, later.ro_compat], words[..2]);
    }
    assert_eq!(decoded([0, 0, 0], 7), Err(Damage::Field("reserved")));
}

proptest! {
    /// FM-F1.
    #[test]
    fn any_bytes_at_all_are_refused_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..CAPACITY as usize * JOURNAL_ENTRY_BYTES),
    ) {
        let mut journal = blank();
        journal[UNIT..UNIT + bytes.len()].copy_from_slice(&bytes);
        prop_assert_eq!(Journal::decode(&journal).unwrap().changes, vec![]);
        prop_assert!(Journal::decode(&bytes).is_err());
    }

    #[test]
    fn what_is_written_is_read(
        op in prop::sample::select(vec![Op::Write, Op::Drop, Op::Zero]),
        block in 0..BLOCK_LIMIT / 2,
        slot in 1..u32::MAX,
        crc in 1..u32::MAX,
        oldest in 1..u64::MAX / 2,
        pending in any::<u32>(),
        seq in 1..u64::MAX - 1,
    ) {
        let entry = Entry { op, block, slot, crc };
        let change = JournalChange { entry, epoch: oldest + u64::from(pending), oldest };
        let entry = JournalEntry { seq, start: seq / 2, change: Some(change) };
        let decoded = JournalEntry::decode(&entry.encode(INCARNATION), INCARNATION);
        prop_assert_eq!(decoded, Ok(Some(entry)));
        let other = JournalEntry::decode(&entry.encode(INCARNATION), INCARNATION + 1);
        prop_assert_eq!(other, Ok(None));
    }
}
