// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden bytes of a unit's header, the round trip, and its refusals.

use proptest::prelude::*;

use super::*;

const UUID: [u8; 16] = *b"0123456789abcdef";
const HEADER: UnitHeader = UnitHeader {
    uuid: UUID,
    part: 2,
    incarnation: 0x0708,
    sequence: 34,
    durable: 33,
    next: 100,
    next_end: 200,
    link: 0x0a0b_0c0d,
    blocks: 2,
};

fn sealed(header: &UnitHeader) -> (Vec<u8>, u32) {
    let mut unit = vec![0x5a; header.blocks as usize * UNIT];
    let crc = header.seal(&mut unit);
    (unit, crc)
}

#[test]
fn the_bytes_of_a_unit_are_those_of_the_format_page() {
    let (unit, crc) = sealed(&HEADER);
    let at = |offset: usize, bytes: &[u8]| {
        assert_eq!(&unit[offset..offset + bytes.len()], bytes, "offset {offset}");
    };
    at(0, b"MPZRUNIT\x01\x00\x02\x00");
    at(12, &crc.to_le_bytes());
    at(16, &UUID);
    at(32, &[34, 0, 0, 0, 0, 0, 0, 0, 33, 0, 0, 0, 0, 0, 0, 0]);
    at(48, &[100, 0, 0, 0, 200, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a]);
    at(60, &checksum(&unit[UNIT_HEADER..]).to_le_bytes());
    at(64, &[2, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x5a]);
}

#[test]
fn a_header_holds_though_the_objects_behind_it_are_torn() {
    let (mut unit, crc) = sealed(&HEADER);
    let found = decode_unit(&unit, &UUID).unwrap();
    assert_eq!((found.header, found.crc), (HEADER, crc));
    assert!(found.is_whole(&unit));
    unit[5000] ^= 1;
    assert!(!decode_unit(&unit, &UUID).unwrap().is_whole(&unit));
    assert!(!found.is_whole(&unit[..UNIT]));
}

#[test]
fn any_flipped_bit_is_detected() {
    let (mut unit, _) = sealed(&HEADER);
    for bit in 0..unit.len() * 8 {
        unit[bit / 8] ^= 1 << (bit % 8);
        let whole = decode_unit(&unit, &UUID).is_ok_and(|found| found.is_whole(&unit));
        assert!(!whole, "bit {bit}");
        unit[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn invalid_values_are_refused_despite_a_good_checksum() {
    let forged = |offset: usize, byte: u8| {
        let (mut unit, _) = sealed(&HEADER);
        unit[offset] = byte;
        let crc = header_checksum(&unit);
        unit[CRC].copy_from_slice(&crc.to_le_bytes());
        decode_unit(&unit, &UUID).unwrap_err()
    };
    assert_eq!(forged(40, 34), Damage::Field("durable"));
    assert_eq!(forged(64, 0), Damage::Field("blocks"));
    assert_eq!(forged(65, 2), Damage::Field("blocks"));
    assert_eq!(forged(48, 0), Damage::Field("next"));
    assert_eq!(forged(48, 200), Damage::Field("next"));
    assert_eq!(forged(53, 2), Damage::Field("next"));
    assert_eq!(forged(79, 1), Damage::Field("reserved"));
    assert_eq!(forged(8, 2), Damage::Version { found: 2, known: 1 });
    assert_eq!(forged(16, b'x'), Damage::WrongCache { found: *b"x123456789abcdef" });
}

proptest! {
    #[test]
    fn any_bytes_at_all_are_refused_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200)
    ) {
        prop_assert!(decode_unit(&bytes, &UUID).is_err());
    }
}
