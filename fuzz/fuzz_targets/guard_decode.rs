// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slots of a guarded origin and their records, from arbitrary bytes.
//!
//! What must hold (invariants of `format`): a decoder never panics (FM-F1), and allocates no more
//! than a range; a record that is accepted is written back to exactly the same bytes (FM-F2); an
//! image that is accepted is as long as its range.
//!
//! Random bytes have a wrong checksum and would test nothing else, so all but every fourth input
//! gets the right head and checksum first, as somebody's forged disk would.
#![no_main]

use format::{
    GUARD_HEAD_BYTES, GUARD_RECORD_BYTES, GUARD_TAIL_BYTES, GuardRecord, GuardSlot, UNIT,
};
use libfuzzer_sys::fuzz_target;

const SLOT_HEAD: &[u8] = b"MPWCGRDO\x01\0";
const RECORD_HEAD: &[u8] = b"MPWCGRDC\x01\0";
const CRC: std::ops::Range<usize> = 12..16;
const VERSION: usize = 8;
const STATE: usize = 52;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let (nth, number, is_repaired) = (choice & 1, choice >> 1 & 1, choice % 4 != 0);
    let is_record = choice & 0x80 != 0;
    let range = if nth == 0 { GUARD_HEAD_BYTES } else { GUARD_TAIL_BYTES };
    let mut bytes = vec![0; if is_record { GUARD_RECORD_BYTES } else { range / 2 }];
    let len = data.len().min(bytes.len());
    bytes[..len].copy_from_slice(&data[..len]);
    if is_repaired {
        let head = if is_record { RECORD_HEAD } else { SLOT_HEAD };
        bytes[..head.len()].copy_from_slice(head);
        if !is_record && choice & 0x40 != 0 {
            bytes[VERSION] = 2; // with feature words
        }
        (bytes[10], bytes[11]) = (nth, number);
        let end = match bytes[STATE] {
            2 | 4 if is_record => UNIT,
            _ if is_record => UNIT + range / 2,
            _ => bytes.len(),
        };
        bytes[CRC].fill(0);
        let crc = format::checksum(&bytes[..end]);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    }
    match GuardSlot::decode(nth, number, &bytes) {
        Ok((slot, image)) => {
            assert_eq!(image.len(), slot.range.bytes);
            assert_eq!(GuardSlot::owner(&bytes), Some(slot.uuid));
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
    match GuardRecord::decode(nth, number, &bytes) {
        Ok(record) => {
            let again = record.encode(number);
            assert_eq!(again[..], bytes[..again.len()]);
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
    let _ = GuardSlot::decode(nth, number, data);
    let _ = GuardRecord::decode(nth, number, data);
});
