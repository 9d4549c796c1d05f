// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that a zram has written back, from arbitrary bytes.
//!
//! What must hold: the decoder never panics; what it accepts, the encoder writes back to exactly
//! the same bytes, so that no field is read without being checked and none is lost.
//!
//! Random bytes have wrong checksums and would test nothing else, so all but every fourth input
//! gets the right checksum first, as an attacker's image would.
#![no_main]

use format::zram::{
    OBJECT_HEADER, ObjectDamage, StoredObject, encode_object, object_bytes, verify,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut bytes = data.to_vec();
    if choice % 4 != 0
        && let Some(len) = bytes.get(8..10)
    {
        let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
        if let Some(body) = bytes.get(4..OBJECT_HEADER + len) {
            let crc = format::checksum(body);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    object(&bytes);
});

/// Asks for the object with the slot and the check that the bytes have.
fn object(bytes: &[u8]) {
    let word = |at: usize| {
        let word = bytes.get(at..at + 4).map(|word| word.try_into().expect("four bytes"));
        word.map_or(0, u32::from_le_bytes)
    };
    let (slot, check) = (word(4), word(0) & format::zram::CHECK_MASK);
    match verify(bytes, slot, check) {
        Ok(found) => {
            let StoredObject { slot, generation, check, priority, bytes: page } = found;
            let mut again = vec![0xFF; object_bytes(page.len())];
            let fill = |to: &mut [u8]| to.copy_from_slice(page);
            let made = encode_object(slot, priority, generation, page.len(), &mut again, fill);
            assert_eq!(made, check);
            assert_eq!(again, bytes[..again.len()]);
            assert_eq!(verify(bytes, slot, check ^ 1), Err(ObjectDamage::OtherImage));
        }
        Err(damaged) => assert!(!damaged.to_string().is_empty()),
    }
}
