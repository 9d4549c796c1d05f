// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the kernel's format: its geometry, golden bytes, and every refusal.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn superblock() -> Superblock {
    Superblock { block_size: 4096, n_blocks: 509, seq_count: 2 }
}

fn header(superblock: &Superblock) -> [u8; HEADER_BYTES] {
    let mut out = [0xff; HEADER_BYTES];
    superblock.encode(&mut out);
    out
}

/// Area, block size, blocks, offset of the data: worked out from the rule of the format by hand,
/// and in part seen on a kernel (2 MiB with 4096 gave 509, with 512 gave 3971; 64 MiB 16320).
#[test]
fn a_new_cache_gets_the_blocks_that_the_kernel_would_give_it() {
    for (area, block_size, n_blocks, data_offset, metadata_blocks) in [
        (MIB, 512, 1985, 32_256, 63),
        (MIB, 4096, 254, 8192, 2),
        (2 * MIB, 512, 3971, 64_000, 125),
        (2 * MIB, 4096, 509, 12_288, 3),
        (16 * MIB, 512, 31_774, 508_928, 994),
        (16 * MIB, 4096, 4080, 65_536, 16),
        (64 * MIB, 512, 127_100, 2_033_664, 3972),
        (64 * MIB, 4096, 16_320, 262_144, 64),
        (1024 * MIB, 512, 2_033_601, 32_538_112, 63_551),
        (1024 * MIB, 4096, 261_123, 4_182_016, 1021),
        (1006 * MIB, 512, 1_997_854, 31_966_208, 62_434),
        (1006 * MIB, 4096, 256_533, 4_108_288, 1003),
        (102_400 * MIB, 512, 203_360_193, 3_253_763_584, 6_355_007),
        (102_400 * MIB, 4096, 26_112_398, 417_800_192, 102_002),
        (1024, 512, 1, 512, 1),
        (8192, 4096, 1, 4096, 1),
    ] {
        let g = Geometry::compute(area, block_size).unwrap();
        let found = (g.n_blocks(), g.data_offset(), g.data_offset() / u64::from(block_size));
        assert_eq!(found, (n_blocks, data_offset, metadata_blocks), "{area} {block_size}");
        assert!(g.end_bytes() <= area);
        assert_eq!(g.block_offset(n_blocks - 1) + u64::from(block_size), g.end_bytes());
    }
}

#[test]
fn an_area_that_holds_no_block_is_refused_with_what_is_needed() {
    for (area, block_size, needed_bytes) in [(1023, 512, 1024), (8191, 4096, 8192), (0, 512, 1024)]
    {
        let refusal = Geometry::compute(area, block_size).unwrap_err();
        assert_eq!(refusal, Refusal::TooSmall { area_bytes: area, needed_bytes });
    }
    let largest = Geometry::compute(u64::MAX, 4096).unwrap();
    assert_eq!(largest.n_blocks(), BLOCKS_MAX);
}

#[test]
fn the_header_has_each_field_in_its_place() {
    let out = header(&Superblock { block_size: 512, n_blocks: 0x0102_0304, seq_count: 0x0506 });
    let mut golden = [0; HEADER_BYTES];
    golden[..4].copy_from_slice(&[0x21, 0x93, 0x48, 0x23]);
    golden[4] = 1;
    golden[9] = 2;
    golden[16..20].copy_from_slice(&[4, 3, 2, 1]);
    golden[24..26].copy_from_slice(&[6, 5]);
    assert_eq!(out, golden);
}

#[test]
fn an_entry_has_its_sector_first_and_all_ones_when_free() {
    let entry = Entry { original_sector: 0x0102_0304_0506, seq_count: 7 };
    assert_eq!(entry.encode(), [6, 5, 4, 3, 2, 1, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Entry::FREE.encode(), [0xff; 16]);
}

#[test]
fn a_damaged_header_is_refused_in_the_kernels_words() {
    let poked = |at: usize, bytes: &[u8]| {
        let mut out = header(&superblock());
        out[at..at + bytes.len()].copy_from_slice(bytes);
        let refused = Superblock::decode(&out).and_then(|s| s.fit(4096, 2 * MIB));
        refused.unwrap_err().to_string()
    };
    for (at, bytes, text) in [
        (0, &[0xff; 64][..], "Invalid magic in the superblock"),
        (0, &[0; 4], "Invalid magic in the superblock"),
        (4, &[9], "Invalid version in the superblock"),
        (8, &[0, 2], "Block size does not match superblock"),
        (8, &[1, 0], "Invalid block size 1"),
        (16, &[0xfe, 1], "Memory area is too small"),
        (16, &[0xff; 8], "Overflow in size calculation"),
        (16, &[0, 0, 0, 0, 0, 0, 1], "Overflow in size calculation"),
        (16, &[0, 0], "Invalid device size"),
        (24, &[0xff; 8], "impossible sequence number"),
        (24, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "impossible sequence number"),
        (24, &[0, 0, 0, 0, 0, 0, 0, 0x40], "impossible sequence number"),
    ] {
        let found = poked(at, bytes);
        assert!(found.starts_with(text), "{at} {bytes:?}: {found}");
    }
    let short = Superblock::decode(&[0; 63]).unwrap_err().to_string();
    assert!(short.starts_with("Invalid magic in the superblock"), "{short}");
}

#[test]
fn one_block_more_than_fits_is_refused_and_all_that_fit_are_not() {
    assert!(superblock().fit(4096, 2 * MIB).is_ok());
    let grown = Superblock { n_blocks: 510, ..superblock() };
    assert!(matches!(grown.fit(4096, 2 * MIB), Err(Refusal::TooSmall { .. })));
}

#[test]
fn only_no_magic_and_no_version_is_unformatted() {
    let mut bytes = [0; HEADER_BYTES];
    assert!(is_unformatted(&bytes));
    bytes[63] = 1;
    assert!(is_unformatted(&bytes));
    bytes[4] = 1;
    assert!(!is_unformatted(&bytes));
    assert!(!is_unformatted(&[0; 7]));
    assert!(has_magic(&header(&superblock())));
}

#[test]
fn the_header_decides_which_entries_are_committed() {
    let entry = |original_sector, seq_count| Entry { original_sector, seq_count };
    for (entry, fate) in [
        (Entry::FREE, EntryState::Free),
        (entry(8, u64::MAX), EntryState::Free),
        (entry(8, 1), EntryState::Committed),
        (entry(8, 2), EntryState::Leftover),
        (entry(8, 3), EntryState::Leftover),
        (entry(u64::MAX, 1), EntryState::Leftover),
    ] {
        assert_eq!(entry.state(2), fate, "{entry:?}");
    }
}

fn contents_of(entries: &[(u64, u64)]) -> Result<CacheContents, Refusal> {
    let mut contents = CacheContents::new(&superblock());
    for &(original_sector, seq_count) in entries {
        contents.add(Entry { original_sector, seq_count })?;
    }
    Ok(contents)
}

#[test]
fn of_two_committed_entries_the_newer_counts_wherever_it_lies() {
    for entries in [[(80, 0), (8, 0), (80, 1)], [(80, 1), (8, 0), (80, 0)]] {
        let contents = contents_of(&entries).unwrap();
        let newer = entries.iter().position(|e| *e == (80, 1)).unwrap() as u64;
        assert_eq!(contents.live[&80], LiveBlock { index: newer, seq: 1 });
        assert_eq!(contents.superseded, [2 - newer]);
        assert_eq!((contents.live.len(), contents.seen()), (2, 3));
    }
}

#[test]
fn an_entry_of_a_commit_that_never_ended_does_not_count() {
    // Step 6 and 7 of the trace in the reference: the cut came before the superblock.
    let contents = contents_of(&[(80, 0), (8, 0), (80, 2)]).unwrap();
    assert_eq!(contents.live[&80], LiveBlock { index: 0, seq: 0 });
    assert_eq!(contents.leftovers, [2]);
}

#[test]
fn twins_and_strays_are_refused() {
    let twins = contents_of(&[(80, 1), (80, 1)]).unwrap_err();
    assert_eq!(twins, Refusal::Identical { index: 1, sector: 80, seq: 1 });
    assert!(twins.to_string().starts_with("two identical entries, position 1, sector 80"));
    let stray = contents_of(&[(81, 1)]).unwrap_err();
    assert_eq!(stray, Refusal::Unaligned { index: 0, sector: 81 });
}

proptest! {
    #[test]
    fn an_entry_comes_back_as_it_was(original_sector: u64, seq_count: u64) {
        let entry = Entry { original_sector, seq_count };
        prop_assert_eq!(Entry::decode(&entry.encode()), entry);
    }

    #[test]
    fn a_header_comes_back_as_it_was(shift in 9u32..13, n in 1..=BLOCKS_MAX, seq in 0u64..1 << 60) {
        let s = Superblock { block_size: 1 << shift, n_blocks: n, seq_count: seq };
        prop_assert_eq!(Superblock::decode(&header(&s)), Ok(s));
    }

    #[test]
    fn no_larger_layout_fits_the_area(area in 8192u64..1 << 50, shift in 9u32..13) {
        let g = Geometry::compute(area, 1 << shift).unwrap();
        prop_assert!(g.end_bytes() <= area);
        let next = Geometry::of(1 << shift, g.n_blocks() + 1);
        prop_assert!(next.is_err() || next.unwrap().end_bytes() > area);
    }

    #[test]
    fn any_bytes_are_decoded_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = Superblock::decode(&bytes);
        prop_assert_eq!(entries(&bytes).count(), bytes.len() / ENTRY_BYTES);
    }
}
