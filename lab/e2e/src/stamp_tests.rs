// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stamps allow after a crash, and what they find.
use super::*;

/// A check of the blocks `held`, each (block, version).
fn check(stamps: &mut Stamps, held: &[(u64, u64)]) -> Result<Found> {
    let mut media = vec![0; stamps.known.len() * BLOCK_BYTES];
    for (block, data) in stamps.blocks().zip(media.chunks_exact_mut(BLOCK_BYTES)) {
        let version = held.iter().find(|h| h.0 == block).map_or(0, |h| h.1);
        fill(data, block, version);
    }
    stamps.check(|at, data| {
        let at = at as usize;
        data.copy_from_slice(&media[at..at + data.len()]);
        Ok(())
    })
}

fn sent(stamps: &mut Stamps, block: u64, fua: bool) {
    stamps.begin(block..block + 1);
    let asked = Sent::Write { blocks: block..block + 1, fua };
    stamps.answered(asked, &mut Written::default());
}

/// Of blocks that hold these versions.
fn check_order(stamps: &Stamps, held: [u64; 4], order: Order) -> Result<()> {
    let read = |_, data: &mut [u8]| {
        for (block, data) in (0..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
            fill(data, block, held[block as usize]);
        }
        Ok(())
    };
    stamps.check_order(read, order)
}

#[test]
fn a_whole_block_names_its_version_and_a_torn_one_none() {
    let mut data = vec![0; BLOCK_BYTES];
    fill(&mut data, 7, 3);
    assert_eq!(version_of(&data, 7), Some(3));
    assert_eq!(version_of(&data, 8), None);
    let mut other = vec![0; BLOCK_BYTES];
    fill(&mut other, 7, 4);
    data[2048..].copy_from_slice(&other[2048..]);
    assert_eq!(version_of(&data, 7), None);
}

#[test]
fn compressible_blocks_are_checked_sector_by_sector() {
    let mut data = [vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]];
    for (version, data) in (3..).zip(&mut data) {
        fill_grains(data, 7, version, Grain::Sector);
        assert_eq!(version_in_grains(data, 7, Grain::Sector), Some(version));
        assert_eq!(version_of(data, 7), None);
    }
    let [old, new] = data;
    for sector in (0..BLOCK_BYTES).step_by(512) {
        let mut torn = old.clone();
        torn[sector..sector + 512].copy_from_slice(&new[sector..sector + 512]);
        assert_eq!(version_in_grains(&torn, 7, Grain::Sector), None, "{sector}");
    }
}

#[test]
fn a_record_demands_what_was_flushed() {
    let mut stamps = Stamps::new(4..8, 1).compressible();
    sent(&mut stamps, 5, true);
    sent(&mut stamps, 6, false);
    for held in [[0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 1, 2, 0]] {
        let mut recalled = Stamps::of_record(&stamps.record()).unwrap();
        let checked = recalled.check(|at, data| {
            assert_eq!(at, 4 * BLOCK_BYTES as u64);
            for (nth, data) in data.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                fill_grains(data, 4 + nth as u64, held[nth], Grain::Sector);
            }
            Ok(())
        });
        let is_allowed = held[1] == 1 && held[2] < 2;
        assert_eq!(checked.is_ok(), is_allowed, "{held:?}: {checked:?}");
    }
}

#[test]
fn what_was_not_flushed_may_be_lost_or_kept() {
    for held in [0, 1] {
        let mut stamps = Stamps::new(0..4, 1);
        sent(&mut stamps, 2, false);
        check(&mut stamps, &[(2, held)]).unwrap();
    }
}

#[test]
fn what_was_flushed_or_fua_must_be_there() {
    let mut stamps = Stamps::new(0..4, 1);
    sent(&mut stamps, 2, true);
    assert!(check(&mut stamps, &[]).unwrap_err().contains("block 2 holds version 0"));
    let mut stamps = Stamps::new(0..4, 1);
    sent(&mut stamps, 2, false);
    let flush = Sent::Flush { answered: vec![(2, 1)], sent: stamps.now() };
    stamps.answered(flush, &mut Written::default());
    assert!(check(&mut stamps, &[]).is_err());
}

#[test]
fn a_version_that_was_lost_never_comes_back() {
    let mut stamps = Stamps::new(0..4, 1);
    sent(&mut stamps, 2, false);
    check(&mut stamps, &[]).unwrap();
    sent(&mut stamps, 2, false);
    assert!(check(&mut stamps, &[(2, 1)]).is_err());
    check(&mut stamps, &[(2, 2)]).unwrap();
}

#[test]
fn a_write_without_the_one_before_is_out_of_order() {
    let mut stamps = Stamps::new(0..4, 1);
    sent(&mut stamps, 0, false);
    sent(&mut stamps, 1, false);
    let flush = Sent::Flush { answered: Vec::new(), sent: stamps.now() };
    stamps.answered(flush, &mut Written::default());
    sent(&mut stamps, 1, false);
    stamps.begin(2..4); // not answered
    for held in [[0; 4], [1, 0, 0, 0], [1, 1, 0, 0], [1, 2, 0, 0], [1, 2, 1, 0]] {
        check_order(&stamps, held, Order::Writes).unwrap();
        check_order(&stamps, held, Order::Flushes).unwrap();
    }
    // Before a flush writes have no order; they have one over it.
    for (held, is_torn) in [([0, 1, 0, 0], false), ([0, 2, 0, 0], true), ([1, 1, 1, 0], false)] {
        check_order(&stamps, held, Order::Writes).unwrap_err();
        assert_eq!(check_order(&stamps, held, Order::Flushes).is_err(), is_torn, "{held:?}");
    }
    check_order(&stamps, [1, 3, 0, 0], Order::Flushes).unwrap_err();
    // What a crash has left is older than what follows, and what it took never comes back.
    check(&mut stamps, &[(0, 1), (1, 1)]).unwrap();
    sent(&mut stamps, 0, false);
    check_order(&stamps, [2, 0, 0, 0], Order::Flushes).unwrap_err();
    check_order(&stamps, [2, 2, 0, 0], Order::Flushes).unwrap_err();
    check_order(&stamps, [0, 1, 0, 0], Order::Flushes).unwrap();
    check_order(&stamps, [2, 1, 0, 0], Order::Writes).unwrap();
}

#[test]
fn a_version_nobody_wrote_and_a_strange_block_are_found() {
    let mut stamps = Stamps::new(0..4, 1);
    assert!(check(&mut stamps, &[(0, 1)]).is_err());
    let zeroes = stamps.check(|_, data| {
        data.fill(0xff);
        Ok(())
    });
    assert!(zeroes.unwrap_err().contains("no version"));
}
