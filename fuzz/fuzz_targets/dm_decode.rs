// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A whole area of the kernel's cache format, from arbitrary bytes.
//!
//! What must hold (invariants of `format::dm`): a decoder never panics (FM-K1); what it accepts
//! comes back from its encoder the same (FM-K2); offsets of an accepted layout ascend; a survey of
//! any entries names each of them at most once (FM-K3).
#![no_main]

use format::dm::{CacheContents, Entry, Geometry, HEADER_BYTES, Superblock, entries};
use libfuzzer_sys::fuzz_target;

/// Magic and version 1: without them nearly every input would end at the first check.
const HEAD: [u8; 8] = [0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0];

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut area = data.to_vec();
    if choice % 4 != 0 && area.len() >= HEAD.len() {
        area[..HEAD.len()].copy_from_slice(&HEAD);
    }
    let superblock = match Superblock::decode(&area) {
        Ok(superblock) => superblock,
        Err(refusal) => return assert!(!refusal.to_string().is_empty()),
    };
    let mut again = [0xff; HEADER_BYTES];
    superblock.encode(&mut again);
    assert_eq!(Superblock::decode(&again).as_ref(), Ok(&superblock));
    let geometry = superblock.geometry();
    assert!(geometry.entries_end() <= geometry.data_offset());
    assert!(geometry.data_offset() < geometry.end_bytes());
    let last = geometry.n_blocks() - 1;
    assert!(geometry.entry_offset(last) < geometry.block_offset(last));
    if let Ok(computed) = Geometry::compute(geometry.end_bytes(), superblock.block_size) {
        assert!(computed.n_blocks() >= geometry.n_blocks());
    }
    let _ = superblock.fit(4096, area.len() as u64).map_err(|refusal| refusal.to_string());

    let mut survey = CacheContents::new(&superblock);
    let mut refused = 0;
    for entry in entries(&area[HEADER_BYTES..]) {
        assert_eq!(Entry::decode(&entry.encode()), entry);
        if let Err(refusal) = survey.add(entry) {
            assert!(!refusal.to_string().is_empty());
            refused += 1;
        }
    }
    let mut named: Vec<u64> = survey.live.values().map(|live| live.index).collect();
    named.extend(&survey.leftovers);
    named.extend(&survey.superseded);
    named.sort_unstable();
    assert!(named.is_sorted_by(|a, b| a < b), "an entry has two fates");
    assert!(named.len() as u64 + refused <= survey.seen());
});
