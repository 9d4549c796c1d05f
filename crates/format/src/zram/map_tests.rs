// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden bytes of a checkpoint unit, the round trip, and its refusals.

use proptest::prelude::*;

use super::*;

const UUID: [u8; 16] = *b"0123456789abcdef";
const HEADER: MapHeader = MapHeader { uuid: UUID, part: 2, id: 9, index: 5, link: 0x0a0b_0c0d };

fn page(slot: u32) -> MapEntry {
    let image = Image::Page { block: 0x0102, offset: 8, check: 0x0f_00aa, size: 4096, priority: 3 };
    MapEntry { slot, image }
}

fn encoded(entries: &[MapEntry]) -> Vec<u8> {
    let mut unit = vec![0xa5; UNIT];
    encode_map(&HEADER, entries, &mut unit);
    unit
}

fn forged(offset: usize, bytes: &[u8]) -> Damage {
    let mut unit = encoded(&[page(7), page(8)]);
    unit[offset..offset + bytes.len()].copy_from_slice(bytes);
    seal(unit.as_mut_slice().try_into().unwrap());
    decode_map(&unit, &UUID).unwrap_err()
}

#[test]
fn the_bytes_of_a_checkpoint_unit_are_those_of_the_format_page() {
    let same = MapEntry { slot: 0x0203, image: Image::Same(0x0807_0605_0403_0201) };
    let unit = encoded(&[page(7), same]);
    let at = |offset: usize, bytes: &[u8]| {
        assert_eq!(&unit[offset..offset + bytes.len()], bytes, "offset {offset}");
    };
    at(0, b"MPZRMAPS\x01\x00\x02\x00");
    at(16, &UUID);
    at(32, &[9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 2, 0]);
    at(64, &[0xaa, 0x00, 0x8f, 0, 2, 1, 0, 0, 7, 0, 0, 0, 0, 0x10, 0, 0xc0]);
    at(80, &[1, 2, 3, 4, 5, 6, 7, 8, 3, 2, 0, 0, 0, 0x20, 0, 0]);
    assert!(is_blank(&unit[96..]));
}

#[test]
fn any_flipped_bit_is_detected() {
    let mut unit = encoded(&[page(1), page(2)]);
    for bit in 0..UNIT * 8 {
        unit[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_map(&unit, &UUID).is_err(), "bit {bit}");
        unit[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn invalid_values_are_refused_despite_a_good_checksum() {
    let entry = |index, field| Damage::Entry { index, field };
    assert_eq!(forged(48, &[253, 0]), Damage::Field("count"));
    assert_eq!(forged(50, &[1]), Damage::Field("reserved"));
    assert_eq!(forged(96, &[1]), Damage::Field("reserved"));
    assert_eq!(forged(68, &[0, 0, 0, 0]), entry(0, "block"));
    assert_eq!(forged(66, &[0x9f]), entry(0, "offset"));
    assert_eq!(forged(76, &[0, 0]), entry(0, "size"));
    assert_eq!(forged(76, &[1, 0x10]), entry(0, "size"));
    assert_eq!(forged(78, &[1]), entry(0, "bits"));
    assert_eq!(forged(88, &[7]), entry(1, "slot"));
    assert_eq!(forged(16, &[0]), Damage::WrongCache { found: *b"\x00123456789abcdef" });
}

fn any_image() -> impl Strategy<Value = Image> {
    let page = (1..u32::MAX, 0u16..512, 0..=CHECK_MASK, 1u16..=4096, 0u8..4);
    let page = page.prop_map(|(block, eighth, check, size, priority)| Image::Page {
        block,
        offset: eighth * 8,
        check,
        size,
        priority,
    });
    prop_oneof![page, any::<u64>().prop_map(Image::Same)]
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        images in proptest::collection::btree_map(0..u32::MAX, any_image(), 0..=MAP_ENTRIES)
    ) {
        let entries: Vec<_> =
            images.into_iter().map(|(slot, image)| MapEntry { slot, image }).collect();
        let unit = encoded(&entries);
        let found = decode_map(&unit, &UUID).unwrap();
        prop_assert_eq!(found.header, HEADER);
        prop_assert_eq!(found.entries().collect::<Vec<_>>(), entries);
    }

    #[test]
    fn any_bytes_at_all_are_refused_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200)
    ) {
        prop_assert!(decode_map(&bytes, &UUID).is_err());
        let mut unit = encoded(&[page(1), page(2)]);
        unit[32..32 + bytes.len()].copy_from_slice(&bytes);
        seal(unit.as_mut_slice().try_into().unwrap());
        if let Ok(found) = decode_map(&unit, &UUID) {
            let entries: Vec<_> = found.entries().collect();
            let mut again = vec![0; UNIT];
            encode_map(&found.header, &entries, &mut again);
            prop_assert_eq!(again, unit);
        }
    }
}
