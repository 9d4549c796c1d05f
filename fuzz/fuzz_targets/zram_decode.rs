// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metadata and objects of a persistent zram's media, from arbitrary bytes.
//!
//! What must hold (invariants of `format::zram`): a decoder never panics (FM-ZF1); what it accepts,
//! its encoder writes back to exactly the same bytes (FM-ZF2), so that no field is read without
//! being checked and none is lost.
//!
//! Random bytes have wrong checksums and would test nothing else, so all but every fourth input
//! gets the right magic, version and checksum first, as an attacker's image would.
#![no_main]

use format::zram::{
    Checkpoint, CodecId, Geometry, MapHeader, OBJECT_HEADER, ObjectDamage, StoredObject,
    Superblock, UNIT_HEADER, UnitHeader, decode_map, decode_unit, encode_map, object_bytes, verify,
    walk,
};
use format::{SUPERBLOCK_COPIES, UNIT};
use libfuzzer_sys::fuzz_target;

/// Magic and version: the head of a unit that is the same in every unit of its kind.
const HEAD: std::ops::Range<usize> = 0..10;
const CRC: std::ops::Range<usize> = 12..16;
const UUID: std::ops::Range<usize> = 16..32;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut unit = [0; UNIT];
    let len = data.len().min(UNIT);
    unit[..len].copy_from_slice(&data[..len]);
    let repaired = choice % 4 != 0;
    match choice >> 6 {
        0 => {
            if repaired {
                repair(&mut unit, &superblock_head(), UNIT);
            }
            superblock(&unit);
            let _ = Superblock::decode(0, data);
        }
        1 => {
            if repaired {
                repair(&mut unit, &map_head(), UNIT);
            }
            map(&unit);
            let _ = decode_map(data, &[0; 16]).map(|map| map.entries().count());
        }
        2 => {
            if repaired {
                let body = format::checksum(&unit[UNIT_HEADER..]);
                unit[60..64].copy_from_slice(&body.to_le_bytes());
                repair(&mut unit, &unit_head(), UNIT_HEADER);
            }
            chained(&unit);
            let _ = decode_unit(data, &[0; 16]);
        }
        _ => {
            if repaired {
                let len = usize::from(u16::from_le_bytes([unit[8], unit[9]]));
                if let Some(body) = unit.get(4..OBJECT_HEADER + len) {
                    let crc = format::checksum(body);
                    unit[..4].copy_from_slice(&crc.to_le_bytes());
                }
            }
            objects(&unit);
            objects(data);
        }
    }
});

fn superblock(unit: &[u8; UNIT]) {
    let copies = [0u8, 1, 2, 3].map(|copy| {
        let decoded = Superblock::decode(copy, unit);
        match &decoded {
            Ok(superblock) => {
                let mut again = [0xFF; UNIT];
                superblock.encode(copy, &mut again);
                assert_eq!(again[..], unit[..]);
                let geometry = superblock.geometry();
                let data = geometry.data();
                assert!(geometry.map(1) + geometry.map_units <= data.start);
                assert!(data.start < data.end && data.end == superblock.region_blocks);
            }
            Err(damage) => assert!(!damage.to_string().is_empty()),
        }
        decoded
    });
    assert_eq!(copies.len(), usize::from(SUPERBLOCK_COPIES));
    let _ = format::zram::elect(&copies);
    let _ = format::zram::highest_generation(&copies);
}

fn map(unit: &[u8; UNIT]) {
    let uuid: [u8; 16] = unit[UUID].try_into().expect("16 bytes");
    match decode_map(unit, &uuid) {
        Ok(map) => {
            let entries: Vec<_> = map.entries().collect();
            let mut again = [0xFF; UNIT];
            assert_eq!(encode_map(&map.header, &entries, &mut again), map.crc);
            assert_eq!(again[..], unit[..]);
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}

fn chained(unit: &[u8; UNIT]) {
    let uuid: [u8; 16] = unit[UUID].try_into().expect("16 bytes");
    match decode_unit(unit, &uuid) {
        Ok(found) if found.is_whole(unit) => {
            let mut again = *unit;
            again[..UNIT_HEADER].fill(0xFF);
            assert_eq!(found.header.seal(&mut again), found.crc);
            assert_eq!(again[..], unit[..]);
        }
        Ok(_) => {}
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}

fn objects(bytes: &[u8]) {
    for object in walk(bytes) {
        match object {
            Ok((offset, found)) => {
                let StoredObject { slot, generation, check, object } = found;
                let len = object_bytes(object.len());
                let mut again = vec![0xFF; len];
                assert_eq!(object.encode(slot, generation, &mut again), check);
                assert_eq!(again, bytes[offset..offset + len]);
                assert_eq!(verify(&bytes[offset..], slot, check), Ok(found));
                assert_eq!(
                    verify(&bytes[offset..], slot, check ^ 1),
                    Err(ObjectDamage::OtherImage)
                );
            }
            Err(damaged) => assert!(!damaged.to_string().is_empty()),
        }
    }
}

/// Gives `unit` this head, and the checksum of its first `covered` bytes.
fn repair(unit: &mut [u8; UNIT], head: &[u8], covered: usize) {
    unit[HEAD].copy_from_slice(head);
    unit[CRC].fill(0);
    let crc = format::checksum(&unit[..covered]);
    unit[CRC].copy_from_slice(&crc.to_le_bytes());
}

fn superblock_head() -> [u8; 10] {
    let geometry = Geometry::of_slots(1000, 1000);
    let superblock = Superblock {
        uuid: [1; 16],
        generation: 1,
        part: 0,
        parts: 1,
        slots: 1000,
        region_blocks: geometry.region_blocks,
        map_units: geometry.map_units,
        incarnation: 1,
        codecs: [CodecId::default(); 4],
        checkpoint: Checkpoint::default(),
        chain: format::zram::ChainStart { sequence: 1, ..Default::default() },
    };
    let mut unit = [0; UNIT];
    superblock.encode(0, &mut unit);
    unit[HEAD].try_into().expect("10 bytes")
}

fn map_head() -> [u8; 10] {
    let header = MapHeader { uuid: [1; 16], part: 0, id: 1, index: 0, link: 0 };
    let mut unit = [0; UNIT];
    encode_map(&header, &[], &mut unit);
    unit[HEAD].try_into().expect("10 bytes")
}

fn unit_head() -> [u8; 10] {
    let header = UnitHeader {
        uuid: [1; 16],
        part: 0,
        incarnation: 1,
        sequence: 1,
        durable: 0,
        next: 0,
        next_end: 0,
        link: 0,
        blocks: 1,
    };
    let mut unit = [0; UNIT];
    header.seal(&mut unit);
    unit[HEAD].try_into().expect("10 bytes")
}
