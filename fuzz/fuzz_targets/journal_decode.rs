// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Journals in memory, from arbitrary bytes.
//!
//! What must hold (invariants of `format`): a decoder never panics (FM-F1); an entry that is
//! accepted is written back to exactly the same bytes (FM-F2); a journal has no more changes than
//! it has room for.
//!
//! Random bytes have wrong checksums and would test nothing else, so most entries get the right
//! one first, as memory that somebody has forged would have.
#![no_main]

use format::{
    JOURNAL_ENTRY_BYTES, Journal, JournalEntry, JournalHeader, UNIT, checksum, journal_bytes,
};
use libfuzzer_sys::fuzz_target;

const INCARNATION: u64 = 3;
const CAPACITY_MAX: u64 = 64;
/// Of the header.
const VERSION: usize = 8;
const CRC: std::ops::Range<usize> = 12..16;
const WORDS: usize = 72;
const CHECK: std::ops::Range<usize> = JOURNAL_ENTRY_BYTES - 4..JOURNAL_ENTRY_BYTES;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let _ = Journal::decode(data).map_err(|damage| assert!(!damage.to_string().is_empty()));
    let capacity = 1 + u64::from(*choice) % CAPACITY_MAX;
    let mut bytes = vec![0; usize::try_from(journal_bytes(capacity)).expect("a few KiB")];
    let header = JournalHeader {
        uuid: [1; 16],
        boot_id: [2; 16],
        incarnation: INCARNATION,
        capacity,
        frames: 0,
    };
    header.encode(&mut bytes[..UNIT]);
    with_words(bytes[..UNIT].to_vec(), data, &header);
    let len = data.len().min(bytes.len() - UNIT);
    bytes[UNIT..UNIT + len].copy_from_slice(&data[..len]);
    for entry in bytes[UNIT..].chunks_exact_mut(JOURNAL_ENTRY_BYTES) {
        // A byte of the input decides, so that some entries stay incomplete.
        if entry[0] % 4 != 3 {
            let mut covered = entry[..CHECK.start].to_vec();
            covered.extend_from_slice(&INCARNATION.to_le_bytes());
            entry[CHECK].copy_from_slice(&checksum(&covered).to_le_bytes());
        }
        match JournalEntry::decode(entry, INCARNATION) {
            Ok(Some(decoded)) => assert_eq!(decoded.encode(INCARNATION)[..], *entry),
            Ok(None) => {}
            Err(damage) => assert!(!damage.to_string().is_empty()),
        }
    }
    match Journal::decode(&bytes) {
        Ok(journal) => {
            assert_eq!(journal.header, header);
            assert!(journal.changes.len() as u64 <= capacity);
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
});

/// A header with the feature words and the room of a later program: it is refused, or the same.
fn with_words(mut unit: Vec<u8>, data: &[u8], header: &JournalHeader) {
    let len = data.len().min(UNIT - WORDS);
    unit[WORDS..WORDS + len].copy_from_slice(&data[..len]);
    unit[VERSION] = 3;
    unit[CRC].fill(0);
    let crc = checksum(&unit);
    unit[CRC].copy_from_slice(&crc.to_le_bytes());
    match JournalHeader::decode(&unit) {
        Ok(decoded) => {
            assert_eq!(decoded, *header);
            assert!(unit[WORDS..WORDS + 16].iter().all(|&byte| byte == 0));
        }
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
}
