// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes of increments, and the map that they make: it is the one that was written.
use proptest::prelude::*;

use super::*;

const UUID: [u8; 16] = *b"0123456789abcdef";
const VOLUME: u64 = 1 << 20;

fn header(sequence: u64) -> CheckpointHeader {
    let identity = Identity { uuid: UUID, place: Place::new(3, sequence), nonce: 0x11 };
    CheckpointHeader { identity, tail_hash: 0xbeef }
}

fn layer(sequence: u64) -> Layer {
    Layer { place: Place::new(3, sequence), hash: 0xfeed, extents: 2 }
}

fn segment(sequence: u64, live: u32) -> CheckpointSegment {
    CheckpointSegment { place: Place::new(3, sequence), sectors: 100, live }
}

fn extent(start: u64, segment: u32) -> CheckpointExtent {
    CheckpointExtent { start, sectors: 8, segment, at: 1, skip: 0, whole: 8, crc: 0x0403_0201 }
}

fn snapshot(name: &str, sequence: u64) -> Snapshot {
    let place = Place::new(3, sequence);
    Snapshot { name: name.into(), place, created_at: 1_700_000_000, volume_sectors: VOLUME }
}

fn increment() -> Increment {
    Increment {
        header: header(7),
        layers: vec![layer(2), layer(5)],
        segments: vec![segment(6, 8), segment(7, 8)],
        gone: vec![Place::new(3, 1)],
        cleared: vec![ClearedRange { start: 24, sectors: 1 << 17 }],
        extents: vec![extent(0, 1), extent(16, 0)],
        retained: vec![RetainedPlace { place: Place::new(3, 4), dead_at: Place::new(3, 6) }],
        snapshots: vec![snapshot("a", 5)],
        map: MapTotals { extents: 3, live: 24 },
    }
}

/// Gives the bytes the head of an increment whose body is what they are.
pub(super) fn with_good_checksums(object: &[u8], place: Place) -> Vec<u8> {
    let mut object = object.to_vec();
    if object.len() >= 128 {
        let body = hash(&object[128..]).to_le_bytes();
        object[88..96].copy_from_slice(&body);
        let identity = Identity { uuid: UUID, place, nonce: 0 };
        finish_version(&mut object, *b"MPOVCKPT", &identity, 128, 2);
    }
    object
}

fn decode(object: &[u8]) -> Result<Increment, ObjectDamage> {
    Increment::decode(object, &UUID, Place::new(3, 7), VOLUME)
}

#[test]
fn the_bytes_of_an_increment_are_those_of_the_format_page() {
    let object = increment().encode(VOLUME);
    let at = |offset: usize, bytes: &[u8]| {
        assert_eq!(&object[offset..offset + bytes.len()], bytes, "offset {offset}");
    };
    at(0, b"MPOVCKPT\x02\0\0\0");
    at(48, &[128, 0, 0, 0]);
    at(64, &[0xef, 0xbe, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
    at(96, &[1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    at(112, &[3, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0]);
    // Two layers, two segments, one that has gone, one range, one retained, one snapshot.
    at(128, &[3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0xed, 0xfe]);
    at(152, &[2, 0, 0, 0, 0, 0, 0, 0]);
    at(192, &[3, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 8, 0, 0, 0]);
    at(240, &[3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    at(256, &[24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0]);
    at(272, &[3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    at(288, &[3, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    at(304 + 40, b"a\0");
    // Gaps 0 and 8, sectors 8, segments 1 and 0, at 1, skip 0, whole 8; checksums.
    at(400, &[0, 3, 1, 0b10, 8, 0, 0, 0, 0, 1, 0b01, 1, 0, 0, 0, 0, 0, 8, 0, 0]);
    at(420, &[1, 2, 3, 4, 1, 2, 3, 4]);
    assert_eq!(object.len(), 428);
    let found = Layer::of(&object, Place::new(3, 7));
    assert_eq!(found, Layer { place: Place::new(3, 7), hash: hash(&object[..128]), extents: 2 });
}

#[test]
fn an_increment_is_read_back_and_any_flipped_bit_is_detected() {
    let mut object = increment().encode(VOLUME);
    assert_eq!(decode(&object), Ok(increment()));
    let stored = StoredCheckpoint::decode(&object, &UUID, Place::new(3, 7), VOLUME);
    assert_eq!(stored, Ok(StoredCheckpoint::Increment(increment())));
    for bit in 0..object.len() * 8 {
        object[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&object).is_err(), "bit {bit}");
        object[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn impossible_increments_are_refused() {
    let refused = |change: fn(&mut Increment)| {
        let mut wrong = increment();
        change(&mut wrong);
        std::panic::catch_unwind(|| wrong.encode(VOLUME)).is_err()
    };
    assert!(!refused(|_| ()));
    assert!(refused(|i| i.layers.swap(0, 1)));
    assert!(refused(|i| i.layers[1].place.sequence = 7));
    assert!(refused(|i| i.layers = (1..=65).map(|n| Layer { ..layer(n) }).collect()));
    assert!(refused(|i| i.segments[0].place.sequence = 5), "it is a layer's");
    assert!(refused(|i| i.gone[0].sequence = 6));
    assert!(refused(|i| i.cleared[0].start = 23));
    assert!(refused(|i| i.cleared[0].sectors = VOLUME));
    assert!(refused(|i| i.cleared.push(ClearedRange { start: 30, sectors: 1 })));
    assert!(refused(|i| i.retained[0].dead_at.sequence = 5));
    assert!(refused(|i| i.retained[0].dead_at.sequence = 8));
    assert!(refused(|i| i.snapshots.clear()), "nobody needs what is retained");
    assert!(refused(|i| i.layers.clear()), "the whole map clears nothing");
}

/// Bytes that unpack to the same extents, and are not what a writer packs.
#[test]
fn an_increment_has_one_form() {
    let object = increment().encode(VOLUME);
    let mut other = object[..400].to_vec();
    // The gaps without a shift, in 4 bits.
    other.extend([0, 0, 4, 0x80]);
    other.extend(&object[404..]);
    let other = with_good_checksums(&other, Place::new(3, 7));
    assert_eq!(decode(&other), Err(ObjectDamage::Field("extents")));
    let mut many = object.clone();
    many[72..80].copy_from_slice(&u64::MAX.to_le_bytes());
    let many = with_good_checksums(&many, Place::new(3, 7));
    assert_eq!(decode(&many), Err(ObjectDamage::Field("extents")), "no memory for them");
}

#[test]
fn layers_that_are_not_those_are_refused() {
    let whole = |sequence| Increment {
        header: header(sequence),
        layers: Vec::new(),
        segments: vec![segment(1, 8)],
        gone: Vec::new(),
        cleared: Vec::new(),
        extents: vec![extent(8, 0)],
        retained: Vec::new(),
        snapshots: Vec::new(),
        map: MapTotals { extents: 1, live: 8 },
    };
    let next = Increment {
        layers: vec![layer(2)],
        segments: vec![segment(4, 8)],
        extents: vec![extent(0, 0)],
        map: MapTotals { extents: 2, live: 16 },
        ..whole(4)
    };
    let merged = |base: Increment, next: Increment| map_of(&[base, next]);
    let found = merged(whole(2), next.clone()).unwrap();
    assert_eq!((found.header, found.segments.len()), (header(4), 2));
    assert_eq!(found.extents, [extent(0, 1), extent(8, 0)]);
    let wrong = |field| Err(ObjectDamage::Field(field));
    assert_eq!(merged(whole(3), next.clone()), wrong("layers"));
    let misses = Increment { map: MapTotals { extents: 3, live: 16 }, ..next.clone() };
    assert_eq!(merged(whole(2), misses), wrong("map"));
    let frees = Increment { gone: vec![Place::new(3, 1)], ..next.clone() };
    assert_eq!(merged(whole(2), frees), wrong("gone"));
    let unknown = Increment { gone: vec![Place::new(3, 2)], ..next.clone() };
    assert_eq!(merged(whole(2), unknown), wrong("gone"));
    assert_eq!(LayeredMap::default().finish(VOLUME), wrong("layers"));
    let mut early = LayeredMap::new(map_of(&[whole(2)]).unwrap(), &next.layers).unwrap();
    let behind = Increment { layers: vec![layer(2), layer(3)], ..next.clone() };
    assert_eq!(early.add(behind), Err(ObjectDamage::Field("layers")));
    assert_eq!(early.finish(VOLUME), wrong("layers"), "the newest is missing");
}

/// The map of the last of these, each of which goes on from those before.
fn map_of(stored: &[Increment]) -> Result<Checkpoint, ObjectDamage> {
    let (whole, rest) = stored.split_first().unwrap();
    let mut map = LayeredMap::default();
    map.add(whole.clone())?;
    let base = map.finish(VOLUME)?;
    let Some(newest) = rest.last() else { return Ok(base) };
    let mut map = LayeredMap::new(base, &newest.layers)?;
    for increment in rest {
        map.add(increment.clone())?;
    }
    map.finish(VOLUME)
}

const SECTORS: usize = 120;

/// A plain map: for each sector the write it is of, as layer, number in it, and first sector.
type Plain = [Option<(u64, u16, u64)>; SECTORS];

/// The entries of the map in segments from `first` on; segment `n` is that of layer `n`.
fn entries(plain: &Plain, lengths: &[Vec<u16>], first: u64) -> Vec<CheckpointExtent> {
    let mut extents: Vec<CheckpointExtent> = Vec::new();
    let mut last = None;
    for (sector, written) in (0u64..).zip(plain) {
        let is_same = last == *written;
        last = *written;
        let Some((layer, nth, start)) = written.filter(|(layer, ..)| *layer >= first) else {
            continue;
        };
        if is_same {
            extents.last_mut().unwrap().sectors += 1;
            continue;
        }
        let of = &lengths[usize::try_from(layer - 1).unwrap()];
        let before: u16 = of[..usize::from(nth)].iter().sum();
        extents.push(CheckpointExtent {
            start: sector,
            sectors: 1,
            segment: u32::try_from(layer - first).unwrap(),
            at: 1 + before,
            skip: u16::try_from(sector - start).unwrap(),
            whole: of[usize::from(nth)],
            crc: u32::from(nth),
        });
    }
    extents
}

/// The segments of layers `first..=last`.
fn segments(extents: &[CheckpointExtent], first: u64, last: u64) -> Vec<CheckpointSegment> {
    let mut segments: Vec<_> =
        (first..=last).map(|n| CheckpointSegment { sectors: 1000, ..segment(n, 0) }).collect();
    for extent in extents {
        segments[extent.segment as usize].live += u32::from(extent.sectors);
    }
    segments
}

fn totals(plain: &Plain, lengths: &[Vec<u16>]) -> MapTotals {
    let extents = entries(plain, lengths, 1).len() as u64;
    MapTotals { extents, live: plain.iter().flatten().count() as u64 }
}

proptest! {
    /// FM-LY1, against a plain array.
    #[test]
    fn layers_make_the_map_that_was_written(
        writes in proptest::collection::vec(
            proptest::collection::vec((0usize..100, 1u16..20, 0u8..4), 0..12), 1..9)
    ) {
        let (mut plain, mut lengths): (Plain, Vec<Vec<u16>>) = ([None; SECTORS], Vec::new());
        let (mut stored, mut layers): (Vec<Increment>, Vec<Layer>) = Default::default();
        for (number, writes) in (1u64..).zip(&writes) {
            let (mut touched, mut of) = ([false; SECTORS], Vec::new());
            for &(start, sectors, kind) in writes {
                let nth = u16::try_from(of.len()).unwrap();
                for sector in start..start + usize::from(sectors) {
                    plain[sector] = (kind > 0).then_some((number, nth, start as u64));
                    touched[sector] = true;
                }
                if kind > 0 {
                    of.push(sectors);
                }
            }
            lengths.push(of);
            let first = if layers.is_empty() { 1 } else { number };
            let extents = entries(&plain, &lengths, first);
            let is_cleared = |&sector: &usize| touched[sector] && plain[sector].is_none();
            let range = |sector: usize| ClearedRange { start: sector as u64, sectors: 1 };
            let cleared = (0..SECTORS).filter(is_cleared).map(range).collect();
            let increment = Increment {
                header: header(number),
                layers: layers.clone(),
                segments: segments(&extents, first, number),
                gone: Vec::new(),
                cleared: if layers.is_empty() { Vec::new() } else { cleared },
                extents,
                retained: Vec::new(),
                snapshots: Vec::new(),
                map: totals(&plain, &lengths),
            };
            let object = increment.encode(VOLUME);
            layers.push(Layer::of(&object, Place::new(3, number)));
            let read = Increment::decode(&object, &UUID, Place::new(3, number), VOLUME);
            prop_assert_eq!(read, Ok(increment.clone()));
            stored.push(increment);
            let merged = map_of(&stored).unwrap();
            let all = entries(&plain, &lengths, 1);
            prop_assert_eq!(&merged.segments, &segments(&all, 1, number));
            prop_assert_eq!(merged.extents, all);
        }
    }
}
