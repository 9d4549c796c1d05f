// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the superblock: round trips, refusals, and every state a cut can leave.

use proptest::prelude::*;

use super::*;
use crate::elect;

fn example() -> Superblock {
    let geometry = Geometry::compute(1 << 30, 4096).unwrap();
    Superblock {
        uuid: *b"0123456789abcdef",
        generation: 7,
        block_size: geometry.block_size,
        slots: geometry.slots,
        log_units: geometry.log_units,
        checkpoint_units: geometry.checkpoint_units,
        origin_sectors: 4_194_304,
        origin_id: [0xee; 16],
        checkpoint: CheckpointRef {
            area: 1,
            units: 12,
            id: 3,
            log_start_seq: 1234,
            log_start_link: 0xdead_beef,
        },
        guards_origin: false,
        moved: None,
        atomic_bytes: 0,
        later: None,
    }
}

fn encoded(superblock: &Superblock, copy: u8) -> Vec<u8> {
    let mut unit = vec![0xa5; UNIT];
    superblock.encode(copy, &mut unit);
    unit
}

/// Changes bytes of a sound unit and makes its checksum good again.
fn forged(offset: usize, bytes: &[u8]) -> Result<Superblock, Damage> {
    forged_of(&example(), offset, bytes)
}

fn forged_of(sound: &Superblock, offset: usize, bytes: &[u8]) -> Result<Superblock, Damage> {
    let mut unit = encoded(sound, 0);
    unit[offset..offset + bytes.len()].copy_from_slice(bytes);
    seal(unit.as_mut_slice().try_into().unwrap());
    Superblock::decode(0, &unit)
}

fn with_generation(generation: u64) -> Superblock {
    Superblock { generation, ..example() }
}

#[test]
fn a_superblock_comes_back_from_every_copy() {
    for copy in 0..SUPERBLOCK_COPIES {
        assert_eq!(Superblock::decode(copy, &encoded(&example(), copy)), Ok(example()));
    }
}

#[test]
fn a_copy_in_the_place_of_another_is_refused() {
    let unit = encoded(&example(), 2);
    assert_eq!(Superblock::decode(1, &unit), Err(Damage::WrongCopy { found: 2, wanted: 1 }));
}

#[test]
fn any_flipped_bit_is_detected() {
    let mut unit = encoded(&example(), 0);
    for bit in 0..UNIT * 8 {
        unit[bit / 8] ^= 1 << (bit % 8);
        let expected = if bit < 64 { Damage::Magic } else { Damage::Checksum };
        assert_eq!(Superblock::decode(0, &unit), Err(expected), "bit {bit}");
        unit[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_unit_torn_at_any_sector_is_detected() {
    // Only the first sector of a superblock is not zero, so over an older superblock a tear
    // gives the old or the new one; over anything else it must be seen.
    let new = encoded(&example(), 0);
    for old in [vec![0; UNIT], vec![0xff; UNIT], encoded(&with_generation(6), 0)] {
        for sectors in 1..8 {
            let mut torn = old.clone();
            torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
            let decoded = Superblock::decode(0, &torn);
            assert!(torn == new || decoded.is_err(), "{sectors} sectors: {decoded:?}");
        }
    }
}

#[test]
fn impossible_values_under_a_good_checksum_are_refused_by_name() {
    let cases: [(usize, &[u8], &str); 11] = [
        (11, &[1], "reserved"),
        (40, &[0, 0, 0, 0], "block_size"),
        (40, &[0, 0x20, 0, 0], "version"),
        (40, &[0, 0, 2, 0], "block_size"),
        (44, &[15, 0, 0, 0], "slots"),
        (44, &[0xff; 4], "slots"),
        (48, &[0; 4], "log_units"),
        (52, &[1, 0, 0, 0], "checkpoint_units"),
        (56, &[0xff; 8], "origin_sectors"),
        (100, &[0xff; 4], "checkpoint_written_units"),
        (4095, &[1], "reserved"),
    ];
    for (offset, bytes, field) in cases {
        assert_eq!(forged(offset, bytes), Err(Damage::Field(field)), "offset {offset}");
    }
    assert_eq!(forged(104, &[2]), Err(Damage::Field("checkpoint_area")));
    assert_eq!(forged(8, &[9, 0]), Err(Damage::Version { found: 9, known: 7 }));
    assert_eq!(forged(8, &[7, 0]), Err(Damage::Field("version")), "it says nothing new");
    for offset in (105..120).chain(136..200) {
        assert_eq!(forged(offset, &[2]), Err(Damage::Field("reserved")), "offset {offset}");
    }
}

/// What versions 2, 5 and 6 had in their own fields is not asked: they are never damage.
#[test]
fn the_superblock_of_a_divided_cache_is_known_by_name() {
    for version in [2, 5, 6] {
        for (offset, bytes) in [(105, vec![1, 2]), (107, vec![0xff]), (136, vec![1; 3960])] {
            let mut unit = encoded(&example(), 3);
            unit[8] = version;
            unit[offset..offset + bytes.len()].copy_from_slice(&bytes);
            seal(unit.as_mut_slice().try_into().unwrap());
            let gone = Err(Damage::Gone(Gone::DividedCache));
            assert_eq!(Superblock::decode(3, &unit), gone);
            assert_eq!(Superblock::decode(0, &unit), gone, "in whatever place");
            unit[200] ^= 1;
            assert_eq!(Superblock::decode(3, &unit), Err(Damage::Checksum));
        }
    }
}

#[test]
fn a_buffer_of_another_length_is_refused() {
    let unit = encoded(&example(), 0);
    let found_bytes = 4095;
    assert_eq!(Superblock::decode(0, &unit[..4095]), Err(Damage::Length { found_bytes }));
    assert_eq!(Superblock::decode(0, &[]), Err(Damage::Length { found_bytes: 0 }));
}

#[test]
#[should_panic(expected = "would be refused on read")]
fn an_impossible_superblock_is_never_written() {
    let slots = 0;
    Superblock { slots, ..example() }.encode(0, &mut [0; UNIT]);
}

#[test]
fn bytes_are_where_the_byte_map_says() {
    // Made once from the byte map of docs/format/writecache.md, its checksum by another
    // implementation of CRC-32C (bitwise, in Python). A change here is a change of format.
    let superblock = Superblock {
        uuid: *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f",
        generation: 0x1122_3344_5566_7788,
        block_size: 4096,
        slots: 0x0003_f0f0,
        log_units: 0x800,
        checkpoint_units: 0x0451,
        origin_sectors: 0x40_0000,
        origin_id: *b"origin identity!",
        checkpoint: CheckpointRef {
            area: 1,
            units: 0x10,
            id: 0x2233,
            log_start_seq: 0x0a0b_0c0d,
            log_start_link: 0xcafe_f00d,
        },
        guards_origin: false,
        moved: None,
        atomic_bytes: 0,
        later: None,
    };
    let (unit, mut golden) = (encoded(&superblock, 2), GOLDEN.concat());
    assert_eq!(unit[..golden.len()], golden);
    assert!(is_blank(&unit[golden.len()..]));
    // The same of a cache that guards its origin: another version and checksum.
    let guards = Superblock { guards_origin: true, ..superblock };
    let unit = encoded(&guards, 2);
    golden[8] = 3;
    golden[12..16].copy_from_slice(&unit[12..16]);
    assert_eq!(unit[..golden.len()], golden);
    assert_eq!(Superblock::decode(2, &unit), Ok(guards));
}

/// The same after it has grown.
fn grown() -> Superblock {
    let geometry = example().geometry().grown(2 << 30).unwrap();
    let Geometry { slots, log_units, checkpoint_units, moved, .. } = geometry;
    Superblock { slots, log_units, checkpoint_units, moved, ..example() }
}

#[test]
fn a_cache_that_has_grown_has_a_version_of_its_own() {
    let moved = grown().moved.unwrap();
    for guards_origin in [false, true] {
        let superblock = Superblock { guards_origin, ..grown() };
        let unit = encoded(&superblock, 3);
        assert_eq!(unit[8..10], [4, 0]);
        assert_eq!(unit[107], u8::from(guards_origin));
        assert_eq!(unit[120..128], moved.metadata_start.to_le_bytes());
        assert_eq!(unit[128..136], moved.slots_start.to_le_bytes());
        assert!(is_blank(&unit[136..]));
        assert_eq!(Superblock::decode(3, &unit), Ok(superblock));
    }
    let cases = [
        (107, vec![2], "reserved"),
        (120, 0u64.to_le_bytes().to_vec(), "metadata_start"),
        (120, (moved.metadata_start + 512).to_le_bytes().to_vec(), "metadata_start"),
        (120, moved.slots_start.to_le_bytes().to_vec(), "metadata_start"),
        (120, u64::MAX.to_le_bytes().to_vec(), "metadata_start"),
        (128, 0u64.to_le_bytes().to_vec(), "slots_start"),
        (128, (moved.slots_start + 1).to_le_bytes().to_vec(), "slots_start"),
        (128, (u64::MAX << 12).to_le_bytes().to_vec(), "slots_start"),
        (106, vec![3], "reserved"),
        (8, vec![1], "reserved"),
        (8, vec![3], "reserved"),
    ];
    for (offset, bytes, name) in cases {
        let found = forged_of(&grown(), offset, &bytes);
        assert_eq!(found, Err(Damage::Field(name)), "{offset}: {bytes:?}");
    }
    // And without it nothing is there.
    assert_eq!(forged(120, &[1]), Err(Damage::Field("reserved")));
    assert_eq!(forged(135, &[1]), Err(Damage::Field("reserved")));
}

/// What a later program has said: bits of both words, and all of the room.
fn later(ro_compat: u64, compat: u64) -> Later {
    let mut room: Vec<u8> = (0..ROOM).map(|n| (n % 251) as u8).collect();
    room[..WRITTEN_BY_BYTES].fill(0);
    room[..14].copy_from_slice(b"millpond 1.2.0");
    Later { ro_compat, compat, room }
}

#[test]
fn feature_words_are_where_the_byte_map_says() {
    let large = Geometry::compute(1 << 30, 16384).unwrap();
    let Geometry { block_size, slots, checkpoint_units, .. } = large;
    let large = Superblock { block_size, slots, checkpoint_units, ..example() };
    let atomic = Superblock { atomic_bytes: 16384, guards_origin: true, ..grown() };
    let added = Superblock { later: Some(later(6, 9)), guards_origin: true, ..example() };
    for (superblock, words) in [(large, [4, 0, 0]), (atomic, [3, 1, 0]), (added, [1, 6, 9])] {
        let unit = encoded(&superblock, 1);
        assert_eq!((superblock.version(), &unit[8..10]), (7, &[7, 0][..]));
        assert_eq!(unit[107], 0, "no flags");
        assert_eq!(unit[108..112], superblock.atomic_bytes.to_le_bytes());
        assert_eq!(unit[136..160], words.map(u64::to_le_bytes).concat()[..]);
        let room = superblock.later.as_ref().map_or(vec![0; ROOM], |later| later.room.clone());
        assert_eq!(unit[160..], room[..]);
        assert_eq!(Superblock::decode(1, &unit), Ok(superblock));
    }
}

#[test]
fn words_must_be_those_that_the_fields_need() {
    let sound = Superblock { later: Some(later(0, 8)), ..grown() };
    let field = |offset, bytes: &[u8]| match forged_of(&sound, offset, bytes) {
        Err(Damage::Field(name)) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(152, &[0]), "reserved", "a room of no bit");
    assert_eq!(field(136, &[0]), "reserved", "moved, and does not say so");
    assert_eq!(field(136, &[6]), "version", "large blocks of 4096 bytes");
    assert_eq!(field(144, &[1]), "version", "an atomic unit of no bytes");
    assert_eq!(field(108, &[0, 64, 0, 0]), "version", "an atomic unit without its bit");
    assert_eq!(field(108, &[0, 16, 0, 0]), "atomic_bytes", "a block");
    assert_eq!(field(108, &[0, 128, 0, 0]), "atomic_bytes", "32 KiB");
    assert_eq!(field(107, &[1]), "reserved", "flags");
}

#[test]
fn unknown_bits_are_refused_by_word() {
    let sound = Superblock { later: Some(later(0, 1)), ..example() };
    let found = forged_of(&sound, 136, &[0x18, 0, 0, 0, 0, 0, 0, 0x80]);
    let expected = LaterFormat {
        generation: 7,
        incompat: 0x8000_0000_0000_0018,
        ro_compat: 0,
        written_by: "millpond 1.2.0".into(),
    };
    assert_eq!(found, Err(Damage::Later(expected.clone())));
    let nameless = Superblock { later: Some(later(0, 2)), ..example() };
    let Err(Damage::Later(found)) = forged_of(&nameless, 136, &[8]) else { panic!("decoded") };
    assert_eq!(found.written_by, "", "the room is of something else");
    // What may be read.
    assert_eq!(sound.unwritable(), None);
    let bits = |superblock: &Superblock| {
        superblock.unwritable().map(|later| (later.incompat, later.ro_compat))
    };
    assert_eq!(bits(&Superblock { later: Some(later(6, 0)), ..example() }), Some((0, 6)));
    assert_eq!(bits(&Superblock { atomic_bytes: 8192, ..example() }), Some((0, 1)));
    assert_eq!(bits(&Superblock { block_size: 8192, ..example() }), Some((4, 0)));
}

#[test]
fn two_copies_agree_only_with_what_later_programs_said() {
    let of = |compat| Ok(Superblock { later: Some(later(0, compat)), ..example() });
    let copies = [of(1), of(2), Err(Damage::Checksum), of(2)];
    assert_eq!(elect(&copies), of(2));
}

const GOLDEN: [&[u8]; 11] = [
    b"MPWCSUPR",
    b"\x01\x00\x02\x00\xf5\x66\xca\x39",
    b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f",
    b"\x88\x77\x66\x55\x44\x33\x22\x11",
    b"\x00\x10\x00\x00\xf0\xf0\x03\x00\x00\x08\x00\x00\x51\x04\x00\x00",
    b"\x00\x00\x40\x00\x00\x00\x00\x00",
    b"origin identity!",
    b"\x33\x22\x00\x00\x00\x00\x00\x00",
    b"\x0d\x0c\x0b\x0a\x00\x00\x00\x00",
    b"\x0d\xf0\xfe\xca\x10\x00\x00\x00",
    b"\x01",
];

/// The copies after a writer that went from `old` to `new` was cut: of each pair it had begun,
/// any copy may be old, new or torn.
fn cut_states(old: &Superblock, new: &Superblock) -> Vec<[Result<Superblock, Damage>; 4]> {
    let fates = [Ok(old.clone()), Ok(new.clone()), Err(Damage::Checksum)];
    let mut states = Vec::new();
    for one in &fates {
        for other in &fates {
            let (one, other) = (one.clone(), other.clone());
            states.push([one.clone(), other.clone(), Ok(old.clone()), Ok(old.clone())]);
            states.push([Ok(new.clone()), Ok(new.clone()), one, other]);
        }
    }
    states
}

#[test]
fn a_cut_during_an_update_leaves_the_old_or_the_new_state() {
    let (old, new) = (with_generation(7), with_generation(8));
    for copies in cut_states(&old, &new) {
        let first_pair_is_new = copies[..2].iter().all(|copy| copy.as_ref() == Ok(&new));
        let expected = if first_pair_is_new { &new } else { &old };
        assert_eq!(elect(&copies).as_ref(), Ok(expected), "{copies:?}");
    }
}

#[test]
fn one_copy_alone_elects_nothing_and_every_copy_is_told() {
    let copies =
        [Ok(with_generation(9)), Err(Damage::Checksum), Ok(with_generation(8)), Err(Damage::Magic)];
    let states = [Ok(9), Err(Damage::Checksum), Ok(8), Err(Damage::Magic)];
    assert_eq!(elect(&copies), Err(Damage::NoQuorum(Box::new(states))));
}

#[test]
fn equal_generations_with_different_contents_do_not_agree() {
    let other = Superblock { origin_sectors: 8, ..with_generation(7) };
    let copies = [Ok(with_generation(7)), Ok(other.clone()), Err(Damage::Magic), Ok(other.clone())];
    assert_eq!(elect(&copies), Ok(other.clone()));
    let tied = [Ok(with_generation(7)), Ok(other.clone()), Ok(with_generation(7)), Ok(other)];
    assert!(matches!(elect(&tied), Err(Damage::NoQuorum(_))));
}

#[test]
fn a_blank_device_has_no_quorum() {
    let copies = [0, 1, 2, 3].map(|copy| Superblock::decode(copy, &[0; UNIT]));
    assert!(matches!(elect(&copies), Err(Damage::NoQuorum(_))));
}

proptest! {
    #[test]
    fn every_possible_superblock_comes_back(
        uuid in any::<[u8; 16]>(), origin_id in any::<[u8; 16]>(), generation in any::<u64>(),
        area_bytes in (4u64 << 20)..(1 << 44), shift in 9u32..=16,
        origin_sectors in 0u64..1 << 48, area in 0u8..2, fill in any::<u32>(),
        id in any::<u64>(), log_start_seq in any::<u64>(), log_start_link in any::<u32>(),
        copy in 0u8..4, guards_origin in any::<bool>(), words in any::<Option<(u64, u64)>>(),
    ) {
        let geometry = Geometry::compute(area_bytes, 1 << shift).unwrap();
        let units = fill % (geometry.checkpoint_units + 1);
        let superblock = Superblock {
            uuid, generation, origin_sectors, origin_id,
            block_size: geometry.block_size,
            slots: geometry.slots,
            log_units: geometry.log_units,
            checkpoint_units: geometry.checkpoint_units,
            checkpoint: CheckpointRef { area, units, id, log_start_seq, log_start_link },
            guards_origin,
            moved: None,
            atomic_bytes: 0,
            later: words.map(|(ro, compat)| later(ro & !1, compat | 1)),
        };
        prop_assert_eq!(superblock.geometry(), geometry);
        prop_assert_eq!(Superblock::decode(copy, &encoded(&superblock, copy)), Ok(superblock));
    }

    #[test]
    fn forged_units_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 1..16), offset in 16usize..104,
    ) {
        if let Ok(superblock) = forged(offset, &bytes) {
            let geometry = superblock.geometry();
            prop_assert!(geometry.end_bytes() >= geometry.slots_bytes());
        }
    }
}
