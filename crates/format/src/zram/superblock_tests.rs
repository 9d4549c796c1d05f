// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden bytes of a superblock, its refusals, and which copies decide.

use proptest::prelude::*;

use super::*;
use crate::{elect, highest_generation};

fn example() -> Superblock {
    let geometry = Geometry::of_slots(1000, 400);
    Superblock {
        uuid: *b"0123456789abcdef",
        generation: 7,
        part: 1,
        parts: 2,
        slots: 2000,
        region_blocks: geometry.region_blocks,
        map_units: geometry.map_units,
        incarnation: 3,
        codecs: [
            CodecId { algorithm: 1, ..CodecId::default() },
            CodecId { algorithm: 2, parameter: 9, dictionary: 0xdead_beef },
            CodecId::default(),
            CodecId::default(),
        ],
        checkpoint: Checkpoint { area: 1, units: 4, id: 12 },
        chain: ChainStart { next: 100, next_end: 200, sequence: 34, link: 0x0102_0304 },
    }
}

fn encoded(superblock: &Superblock, copy: u8) -> Vec<u8> {
    let mut unit = vec![0xa5; UNIT];
    superblock.encode(copy, &mut unit);
    unit
}

fn of_generation(generation: u64) -> Result<Superblock, Damage> {
    Ok(Superblock { generation, ..example() })
}

#[test]
fn the_bytes_of_a_superblock_are_those_of_the_format_page() {
    let unit = encoded(&example(), 2);
    let at = |offset: usize, bytes: &[u8]| {
        assert_eq!(&unit[offset..offset + bytes.len()], bytes, "offset {offset}");
    };
    at(0, b"MPZRSUPR\x01\x00\x02\x00");
    at(16, b"0123456789abcdef");
    at(32, &[7, 0, 0, 0, 0, 0, 0, 0]);
    at(40, &[0xd0, 7, 0, 0, 0, 0, 0, 0]);
    at(48, &[0x90, 1, 0, 0, 4, 0, 0, 0]);
    at(56, &[1, 0, 2, 0, 3, 0, 0, 0]);
    at(64, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 9, 0, 0, 0xef, 0xbe, 0xad, 0xde]);
    at(96, &[12, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]);
    at(112, &[34, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 200, 0, 0, 0, 4, 3, 2, 1]);
    assert!(is_blank(&unit[132..]));
}

#[test]
fn a_superblock_is_read_from_its_four_places_only() {
    for copy in 0..SUPERBLOCK_COPIES {
        let unit = encoded(&example(), copy);
        assert_eq!(Superblock::decode(copy, &unit), Ok(example()));
        let other = (copy + 1) % SUPERBLOCK_COPIES;
        let wrong = Damage::WrongCopy { found: copy, wanted: other };
        assert_eq!(Superblock::decode(other, &unit), Err(wrong));
    }
}

#[test]
fn any_flipped_bit_is_detected() {
    let mut unit = encoded(&example(), 0);
    for bit in 0..UNIT * 8 {
        unit[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(0, &unit).is_err(), "bit {bit}");
        unit[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn invalid_values_are_refused_despite_a_good_checksum() {
    let forged = |offset: usize, byte: u8| {
        let mut unit = encoded(&example(), 0);
        unit[offset] = byte;
        seal(unit.as_mut_slice().try_into().unwrap());
        Superblock::decode(0, &unit)
    };
    for (offset, byte, field) in [
        (11, 1, "reserved"),
        (58, 0, "parts"),
        (58, 65, "parts"),
        (56, 2, "part"),
        (44, 33, "slots"),
        (47, 255, "slots"),
        (49, 0, "chain_next"),
        (52, 0, "map_units"),
        (66, 1, "reserved"),
        (104, 5, "checkpoint_units"),
        (108, 2, "checkpoint_area"),
        (109, 1, "reserved"),
        (112, 0, "chain_sequence"),
        (120, 71, "chain_next"),
        (120, 0, "chain_next"),
        (120, 200, "chain_next"),
        (125, 2, "chain_next"),
        (132, 1, "reserved"),
    ] {
        assert_eq!(forged(offset, byte), Err(Damage::Field(field)), "{offset} {byte}");
    }
    assert_eq!(forged(120, 72).map(|s| s.chain.next), Ok(72));
}

/// A bitmap with a bit for each block of a region must number the end of its last word:
/// with more blocks that was 0, and a search for a free one never ended.
#[test]
fn a_region_of_more_than_whole_words_of_blocks_is_refused() {
    for (blocks, refused) in [(u32::MAX - 63, false), (u32::MAX - 62, true), (u32::MAX, true)] {
        let mut unit = encoded(&example(), 0);
        unit[48..52].copy_from_slice(&blocks.to_le_bytes());
        seal(unit.as_mut_slice().try_into().unwrap());
        let wanted = refused.then_some(Damage::Field("region_blocks"));
        assert_eq!(Superblock::decode(0, &unit).err(), wanted, "{blocks}");
    }
}

#[test]
fn two_copies_that_agree_decide_and_the_newer_pair_wins() {
    let (old, new) = (of_generation(6), of_generation(7));
    let rotten = || Err(Damage::Checksum);
    let elect =
        |copies: crate::Copies<Superblock>| elect(&copies).map(|elected| elected.generation);
    assert_eq!(elect([old.clone(), old.clone(), new.clone(), new.clone()]), Ok(7));
    assert_eq!(elect([new.clone(), old.clone(), old.clone(), rotten()]), Ok(6));
    assert_eq!(elect([new.clone(), rotten(), rotten(), new.clone()]), Ok(7));
    assert!(elect([new.clone(), rotten(), rotten(), old.clone()]).is_err());
    let other = Ok(Superblock { incarnation: 99, ..example() });
    assert!(elect([new.clone(), new.clone(), other.clone(), other]).is_err());
    assert_eq!(highest_generation(&[rotten(), old, new, rotten()]), 7);
}

proptest! {
    #[test]
    fn any_bytes_at_all_are_refused_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200)
    ) {
        let mut unit = encoded(&example(), 0);
        unit[..bytes.len()].copy_from_slice(&bytes);
        prop_assert!(Superblock::decode(0, &bytes).is_err());
        let _ = Superblock::decode(0, &unit);
        seal(unit.as_mut_slice().try_into().unwrap());
        if let Ok(superblock) = Superblock::decode(0, &unit) {
            prop_assert_eq!(encoded(&superblock, 0), unit);
        }
    }
}
