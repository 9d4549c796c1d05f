// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metadata units of the native write cache format, from arbitrary bytes.
//!
//! What must hold (invariants of `format`): a decoder never panics (FM-F1); what it accepts, its
//! encoder writes back to exactly the same bytes (FM-F2), so that no field is read without being
//! checked and none is lost.
//!
//! A random unit has a wrong checksum and would test nothing else, so all but every fourth input
//! gets the right magic, version and checksum first, as an attacker's image would.
#![no_main]

use format::{
    CheckpointRef, Entry, Kind, Op, RecordHeader, SUPERBLOCK_COPIES, Superblock, UNIT,
    decode_record, encode_record,
};
use libfuzzer_sys::fuzz_target;

/// Magic and version: the head of a unit that is the same in every unit of its kind.
const HEAD: std::ops::Range<usize> = 0..10;
const CRC: std::ops::Range<usize> = 12..16;
const INCOMPAT: std::ops::Range<usize> = 136..144;
const UUID: std::ops::Range<usize> = 16..32;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut unit = [0; UNIT];
    let len = data.len().min(UNIT);
    unit[..len].copy_from_slice(&data[..len]);
    let repaired = choice % 4 != 0;
    if choice & 0x80 == 0 {
        if repaired {
            let mut head = superblock_head(choice & 0x20 != 0);
            if choice & 0x10 != 0 {
                // Feature words: mostly bits that are known, else nothing else would be read.
                head[8] = 7;
                unit[INCOMPAT.start] &= if choice & 0x08 != 0 { 7 } else { 0xFF };
                unit[INCOMPAT.start + 1..INCOMPAT.end].fill(0);
            }
            repair(&mut unit, &head);
        }
        superblock(&unit);
        // Lengths other than a unit are refused, not read past.
        let _ = Superblock::decode(0, data);
    } else {
        if repaired {
            repair(&mut unit, &record_head(choice & 0x40 != 0, choice & 0x20 != 0));
        }
        record(&unit);
        let _ = decode_record(data, &[0; 16]).map(|record| record.entries().count());
    }
});

fn superblock(unit: &[u8; UNIT]) {
    let mut copies = [const { None }; SUPERBLOCK_COPIES as usize];
    for (copy, place) in (0..SUPERBLOCK_COPIES).zip(&mut copies) {
        let decoded = Superblock::decode(copy, unit);
        if let Ok(superblock) = &decoded {
            let mut again = [0xFF; UNIT];
            superblock.encode(copy, &mut again);
            assert_eq!(again[..], unit[..]);
            let geometry = superblock.geometry();
            assert!(geometry.slots_start() <= geometry.end_bytes());
        }
        if let Err(damage) = &decoded {
            assert!(!damage.to_string().is_empty());
        }
        *place = Some(decoded);
    }
    let copies = copies.map(|copy| copy.expect("every copy was decoded above"));
    let _ = format::elect(&copies);
}

fn record(unit: &[u8; UNIT]) {
    let uuid: [u8; 16] = unit[UUID].try_into().expect("16 bytes");
    match decode_record(unit, &uuid) {
        Ok(record) => {
            let entries: Vec<Entry> = record.entries().collect();
            let mut again = [0xFF; UNIT];
            assert_eq!(encode_record(&record.header, &entries, &mut again), record.crc);
            assert_eq!(again[..], unit[..]);
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}

/// Gives `unit` this head and the checksum that fits it.
fn repair(unit: &mut [u8; UNIT], head: &[u8]) {
    unit[HEAD].copy_from_slice(head);
    unit[CRC].fill(0);
    let crc = format::checksum(&unit[..]);
    unit[CRC].copy_from_slice(&crc.to_le_bytes());
}

/// Of a cache that guards its origin, or does not.
fn superblock_head(guards_origin: bool) -> [u8; 10] {
    let geometry = format::Geometry::compute(64 << 20, 4096).expect("64 MiB hold a cache");
    let superblock = Superblock {
        uuid: [1; 16],
        generation: 1,
        block_size: geometry.block_size,
        slots: geometry.slots,
        log_units: geometry.log_units,
        checkpoint_units: geometry.checkpoint_units,
        origin_sectors: 1 << 20,
        origin_id: [0; 16],
        checkpoint: CheckpointRef::default(),
        guards_origin,
        moved: None,
        atomic_bytes: 0,
        later: None,
    };
    let mut unit = [0; UNIT];
    superblock.encode(0, &mut unit);
    unit[HEAD].try_into().expect("10 bytes")
}

/// Of a record that tells of epochs, and of zeroes, or of one that does not.
fn record_head(epochs: bool, zeroes: bool) -> [u8; 10] {
    let header = RecordHeader {
        kind: Kind::Log,
        uuid: [1; 16],
        seq: 1,
        incarnation: 1,
        link: 0,
        flushed_seq: 0,
        count: 0,
    };
    let mut unit = [0; UNIT];
    let zero = Entry { op: Op::Zero, block: 0, slot: 0, crc: 1 };
    let entries = [Entry::epoch(1, 1), zero];
    let count = if epochs { 1 + usize::from(zeroes) } else { 0 };
    encode_record(&header, &entries[..count], &mut unit);
    unit[HEAD].try_into().expect("10 bytes")
}
