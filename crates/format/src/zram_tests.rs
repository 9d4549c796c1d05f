// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden bytes of an object, the round trip, and that damage is seen.

use proptest::prelude::*;

use super::*;

fn made(slot: u32, generation: u32, priority: u8, page: &[u8]) -> (Vec<u8>, u32) {
    let mut bytes = vec![0xee; object_bytes(page.len())];
    let fill = |to: &mut [u8]| to.copy_from_slice(page);
    let check = encode_object(slot, priority, generation, page.len(), &mut bytes, fill);
    (bytes, check)
}

#[test]
fn the_bytes_of_a_page_are_those_of_the_format_page() {
    let (bytes, check) = made(0x0102_0304, 0x0a0b_0c0d, 2, b"abc");
    let mut wanted = vec![0; 4];
    wanted.extend([
        4, 3, 2, 1, 3, 0, 0x21, 0, 0x0d, 0x0c, 0x0b, 0x0a, b'a', b'b', b'c', 0, 0, 0, 0, 0,
    ]);
    let crc = checksum(&wanted[4..19]);
    wanted[..4].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(bytes, wanted);
    assert_eq!(check, crc & 0x000f_ffff);
}

#[test]
fn an_object_is_found_by_its_slot_and_check_alone() {
    let (bytes, check) = made(7, 1, 0, &[9; 100]);
    assert!(verify(&bytes, 7, check).is_ok());
    assert_eq!(verify(&bytes, 8, check), Err(ObjectDamage::OtherSlot { found: 7 }));
    let (older, old_check) = made(7, 0, 0, &[9; 100]);
    assert_ne!(check, old_check);
    assert_eq!(verify(&older, 7, check), Err(ObjectDamage::OtherImage));
}

#[test]
fn what_no_writer_makes_is_refused_though_its_checksum_is_good() {
    let forge = |slot: u32, kind: u8, body: &[u8]| {
        let mut bytes = vec![0; object_bytes(body.len())];
        bytes[OBJECT_HEADER..OBJECT_HEADER + body.len()].copy_from_slice(body);
        seal_object(slot, kind, 0, body.len(), &mut bytes);
        decode(&bytes).unwrap_err()
    };
    assert_eq!(forge(1, 0, &[1]), ObjectDamage::Field("kind"));
    assert_eq!(forge(1, 4, &[1]), ObjectDamage::Field("kind"));
    assert_eq!(forge(1, 1, &[]), ObjectDamage::Field("len"));
    assert_eq!(forge(1, 0x41, &[1]), ObjectDamage::Field("kind"));
    assert_eq!(forge(1, 1, &[1; 4097]), ObjectDamage::Field("len"));
    assert_eq!(forge(1, 0x12, &[1; 8]), ObjectDamage::Field("kind"));
    assert_eq!(forge(1, 2, &[1; 8]), ObjectDamage::Field("kind"));
}

fn any_page() -> impl Strategy<Value = (u8, Vec<u8>)> {
    (0u8..4, proptest::collection::vec(any::<u8>(), 1..=200))
}

proptest! {
    #[test]
    fn what_is_written_is_read(slot: u32, generation: u32, (priority, bytes) in any_page()) {
        let (media, check) = made(slot, generation, priority, &bytes);
        prop_assert_eq!(media.len() % OBJECT_ALIGN, 0);
        let found = StoredObject { slot, generation, check, priority, bytes: &bytes };
        prop_assert_eq!(verify(&media, slot, check), Ok(found));
    }

    #[test]
    fn one_flipped_bit_is_seen(
        (priority, bytes) in any_page(),
        at: prop::sample::Index,
        bit in 0u32..8,
    ) {
        let (mut media, check) = made(3, 4, priority, &bytes);
        let at = at.index(media.len());
        media[at] ^= 1u8 << bit;
        prop_assert!(verify(&media, 3, check).is_err());
    }

    #[test]
    fn any_bytes_at_all_are_refused_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..100)
    ) {
        prop_assert!(verify(&bytes, 0, 0).is_err());
    }
}
