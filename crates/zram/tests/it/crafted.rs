// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crafted images: right checksums over numbers that no device counts to, and places that are none.
//! They are refused by name when the device is opened, and nothing is changed; none makes anybody
//! panic.

use std::ops::Range;

use crate::common::media::{
    BLOCK, Fixture, expect, fill, flush, put, read, suspend, writeback_all,
};
use block::{Error, Flags, Target};
use format::zram::{
    Geometry, Image, MapEntry, MapHeader, OBJECT_HEADER, Object, Superblock, UNIT_HEADER,
    UnitHeader, decode_map, decode_unit, encode_map, object_bytes,
};
use sim::Rng;

const COUNTER_MAX: u64 = u64::MAX / 2;
const INCARNATION_MAX: u32 = u32::MAX / 2;

/// A device with a checkpoint, and units after it.
fn used() -> Fixture {
    let lab = Fixture::new(300, 4000);
    lab.life(async |zram| {
        fill(&*zram, 0..100, 1).await;
        suspend(&zram).await;
    })
    .expect("a first life");
    lab.life(async |zram| {
        fill(&*zram, 50..120, 2).await;
        flush(&*zram).await.expect("a flush");
    })
    .expect("a second life");
    lab
}

/// Changes these copies of the superblock alike.
fn forge_superblock(lab: &Fixture, copies: &[u8], change: impl FnOnce(&mut Superblock)) {
    let mut superblock = lab.superblock();
    change(&mut superblock);
    for &copy in copies {
        let mut unit = vec![0; 4096];
        superblock.encode(copy, &mut unit);
        lab.poke(Geometry::superblock(copy), &unit);
    }
}

/// Changes the entries of the checkpoint, which has one unit.
fn forge_map(lab: &Fixture, change: impl FnOnce(&mut MapHeader, &mut Vec<MapEntry>)) {
    let superblock = lab.superblock();
    assert_eq!(superblock.checkpoint.units, 1);
    let at = superblock.geometry().map(superblock.checkpoint.area);
    let mut unit = lab.peek(at, 1);
    let map = decode_map(&unit, &superblock.uuid).expect("a checkpoint");
    let (mut header, mut entries) = (map.header, map.entries().collect());
    change(&mut header, &mut entries);
    encode_map(&header, &entries, &mut unit);
    lab.poke(at, &unit);
}

/// Changes the header of the first unit after the checkpoint.
fn forge_unit(lab: &Fixture, change: impl FnOnce(&mut UnitHeader)) {
    let superblock = lab.superblock();
    let at = superblock.chain.next;
    let mut header = decode_unit(&lab.peek(at, 1), &superblock.uuid).expect("a unit").header;
    let mut unit = lab.peek(at, header.blocks as usize);
    change(&mut header);
    header.seal(&mut unit);
    lab.poke(at, &unit);
}

fn is_refused(lab: &Fixture, wanted: &str) {
    let before = lab.image();
    let why: Error = lab.refusal();
    let why = why.chain().to_string();
    assert!(why.contains("backing_dev disk") && why.contains(wanted), "{why}, not {wanted}");
    assert!(lab.image() == before, "{wanted}: it was changed");
}

/// A life of it with everything in it.
fn is_used_on(lab: &Fixture) {
    lab.life(async |zram| {
        for version in 3..6 {
            fill(&*zram, 0..120, version).await;
            flush(&*zram).await.expect("a flush");
            writeback_all(&zram).await;
        }
        expect(&*zram, 0..120, 5).await;
        suspend(&zram).await;
    })
    .expect("it is used on");
}

type Change = fn(&mut Superblock, u64);
const COUNTERS: [(&str, u64, Change); 4] = [
    ("generation", COUNTER_MAX, |s, n| s.generation = n),
    ("checkpoint_id", COUNTER_MAX, |s, n| s.checkpoint.id = n),
    ("chain_sequence", COUNTER_MAX, |s, n| s.chain.sequence = n),
    ("incarnation", INCARNATION_MAX as u64, |s, n| {
        s.incarnation = u32::try_from(n).expect("within 32 bits");
    }),
];

/// The story, found by an attack from outside: `chain_sequence` 2^64 - 1 wrapped to 0, which the
/// superblock's own encoder asserts against; the daemon ended with all of its devices. The other
/// counters wrapped without a word.
#[test]
fn counters_without_headroom_are_refused_by_name() {
    for (name, most, change) in COUNTERS {
        let end = if most == COUNTER_MAX { u64::MAX } else { u64::from(u32::MAX) };
        for n in [most + 1, end - 1, end] {
            let lab = used();
            forge_superblock(&lab, &[0, 1, 2, 3], |s| change(s, n));
            is_refused(&lab, &format!("{name} is {n}, at most {most} is allowed"));
        }
    }
}

/// The next generation is above that of every copy, also of one that no other agrees with.
#[test]
fn a_stray_copy_without_headroom_is_refused() {
    let lab = used();
    forge_superblock(&lab, &[3], |s| s.generation = u64::MAX);
    is_refused(&lab, &format!("generation is {}, at most {COUNTER_MAX} is allowed", u64::MAX));
}

#[test]
fn the_largest_allowed_counters_are_used() {
    for (name, most, change) in COUNTERS {
        let lab = Fixture::new(300, 4000);
        lab.life(async |zram| {
            fill(&*zram, 0..100, 1).await;
            suspend(&zram).await;
        })
        .expect("a first life");
        // The checkpoint's units carry its id; nothing else carries any of the counters now.
        forge_superblock(&lab, &[0, 1, 2, 3], |s| change(s, most));
        if name == "checkpoint_id" {
            forge_map(&lab, |header, _| header.id = most);
        }
        is_used_on(&lab);
    }
}

/// The story, found by an attack from outside: the end of an object of two blocks at block 2^32 - 2
/// wrapped to 0, passed for one that lies in the data, and was an index beyond the end.
#[test]
fn an_object_of_a_checkpoint_outside_of_the_data_is_refused() {
    for at in [1, 63, 4000, u32::MAX - 2, u32::MAX - 1] {
        let lab = used();
        let mut slot = 0;
        forge_map(&lab, |_, entries| {
            let is_long =
                |e: &&mut MapEntry| matches!(e.image, Image::Page { size, .. } if size > 4090);
            let found = entries.iter_mut().find(is_long).expect("a page that did not compress");
            slot = found.slot;
            if let Image::Page { block, .. } = &mut found.image {
                *block = at;
            }
        });
        is_refused(&lab, &format!("slot {slot} lies outside of"));
    }
}

/// A superblock of fewer parts than the table may name more slots than a part can have: their
/// number did not fit where it was put.
#[test]
fn more_slots_than_a_shard_can_have_are_refused() {
    let lab = used();
    let slots = 1u64 << 32;
    forge_superblock(&lab, &[0, 1, 2, 3], |s| s.slots = slots);
    let mut lab = lab.with("lz4 5 backing_dev disk persist shards 8");
    lab.slots = slots;
    is_refused(&lab, "slots of a part is 4294967296, at most 2147483648 is allowed");
}

#[test]
fn a_unit_that_leads_out_of_the_region_is_refused() {
    for next in [1, 3999, 4000, u32::MAX - 256, u32::MAX - 1] {
        let lab = used();
        forge_unit(&lab, |header| {
            (header.next, header.next_end) = (next, next.saturating_add(255));
        });
        is_refused(&lab, "it leads out of the region");
    }
}

/// A unit with right checksums that names all slots again and again held up its core for hours
/// where there are millions of slots.
#[test]
fn a_unit_that_names_slots_again_and_again_is_refused() {
    for (times, refused) in [(4, false), (5, true)] {
        let lab = used();
        let superblock = lab.superblock();
        let at = superblock.chain.next;
        let mut header = decode_unit(&lab.peek(at, 1), &superblock.uuid).expect("a unit").header;
        let mut unit = vec![0; header.blocks as usize * BLOCK];
        let slots = u32::try_from(superblock.slots).expect("a few hundred");
        let all = Object::Discarded { slots };
        for nth in 0..times {
            let from = UNIT_HEADER + nth * object_bytes(4);
            all.encode(0, 1, &mut unit[from..]);
        }
        (header.next, header.next_end) = (0, 0);
        header.seal(&mut unit);
        lab.poke(at, &unit);
        match refused {
            true => is_refused(&lab, "it tells of slots again and again"),
            false => is_used_on(&lab),
        }
    }
}

const CRC: Range<usize> = 12..16;
const BODY_CRC: Range<usize> = 60..64;

/// Puts a number that is no genuine one, or nearly one, somewhere into `unit`.
fn spoil(rng: &mut Rng, unit: &mut [u8], head: usize) {
    let bytes = rng.pick(&[1, 2, 4, 8]);
    let places = if rng.below(4) == 0 { unit.len() } else { head };
    let at = rng.index(places / bytes) * bytes;
    let old = unit[at..at + bytes].iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
    let most = u64::MAX >> (64 - 8 * bytes);
    let number = match rng.below(8) {
        0 => most,
        1 => most - rng.below(200),
        2 => most / 2 + rng.below(3),
        3 => 1 << rng.below(8 * bytes as u64),
        4 => rng.next_u64(),
        5 => rng.below(5000),
        6 => old.wrapping_add(1),
        _ => old.wrapping_sub(1),
    };
    unit[at..at + bytes].copy_from_slice(&number.to_le_bytes()[..bytes]);
}

fn put_checksum(unit: &mut [u8], covered: usize) {
    unit[CRC].fill(0);
    let crc = format::checksum(&unit[..covered]);
    unit[CRC].copy_from_slice(&crc.to_le_bytes());
}

/// Spoils the superblock, the checkpoint or a unit of a device, and gives it right checksums.
fn spoil_image(rng: &mut Rng, lab: &Fixture, units: &[u32]) {
    let superblock = lab.superblock();
    match rng.below(3) {
        0 => {
            let mut unit = lab.peek(0, 1);
            spoil(rng, &mut unit[16..], 120);
            for copy in 0..4 {
                unit[10] = copy;
                put_checksum(&mut unit, BLOCK);
                lab.poke(Geometry::superblock(copy), &unit);
            }
        }
        1 => {
            let at = superblock.geometry().map(superblock.checkpoint.area).min(3999);
            let mut unit = lab.peek(at, 1);
            spoil(rng, &mut unit[32..], 600);
            put_checksum(&mut unit, BLOCK);
            lab.poke(at, &unit);
        }
        _ => {
            let at = units[rng.index(units.len())];
            let Ok(found) = decode_unit(&lab.peek(at, 1), &superblock.uuid) else { return };
            let mut unit = lab.peek(at, (found.header.blocks as usize).min(4000 - at as usize));
            spoil(rng, &mut unit[32..], 200);
            if rng.below(2) == 0 {
                // The first object too: its own checksum.
                let object = &mut unit[UNIT_HEADER..];
                let len = usize::from(u16::from_le_bytes([object[8], object[9]]));
                if let Some(body) = object.get(4..OBJECT_HEADER + len) {
                    let crc = format::checksum(body);
                    object[..4].copy_from_slice(&crc.to_le_bytes());
                }
            }
            let body = format::checksum(&unit[UNIT_HEADER..]);
            unit[BODY_CRC].copy_from_slice(&body.to_le_bytes());
            put_checksum(&mut unit, UNIT_HEADER);
            lab.poke(at, &unit);
        }
    }
}

/// Right checksums over numbers at random, as many images as there are seeds: each is refused, or
/// opened and used with errors at most. A panic would end the daemon.
#[test]
fn damaged_images_with_right_checksums_stop_no_process() {
    let mut opened = 0;
    sim::seeds::run(300, |seed| {
        let mut rng = Rng::new(seed);
        let lab = used();
        let units = lab.units();
        for _ in 0..=rng.below(3) {
            if Superblock::decode(0, &lab.peek(0, 1)).is_err() {
                break;
            }
            spoil_image(&mut rng, &lab, &units);
        }
        let lived = lab.life(async |zram| {
            for slot in 0..300 {
                let _ = read(&*zram, slot).await;
            }
            for slot in (0..300).step_by(3) {
                let _ = put(&*zram, slot, 9, Flags::empty()).await;
            }
            let _ = flush(&*zram).await;
            for (name, value) in [("idle", "all"), ("writeback", "idle")] {
                let _ = zram.clone().set_attribute(name.to_owned(), value.to_owned()).await;
            }
            let _ = zram.clone().suspend().await;
        });
        opened += u32::from(lived.is_ok());
        // What such a life has left is opened or refused again.
        let _ = lab.life(async |zram| drop(read(&*zram, 0).await));
        Ok(())
    });
    println!("{opened} were opened");
}
