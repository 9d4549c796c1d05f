// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What only earlier versions can open: it is refused by name, whatever is left of its superblocks,
//! and nothing on it changes. `tests/e2e` has images that such versions have made.
use std::rc::Rc;

use block::{BlockDevice, Sector};
use format::{Geometry, Gone, SUPERBLOCK_COPIES, UNIT};
use sim::Machine;
use writecache::{Contents, Depth, ProbeReport, SignedArea};

use crate::common::{Fixture, config, fill, flush};

/// A cache of 512 KiB whose four superblock copies begin with these bytes.
fn made_by_an_earlier_version(begin: &[u8]) -> Fixture {
    let fixture = Fixture::new(256, 512, "");
    let used = fixture.life(async |cache| {
        fill(&*cache, 0..20, 1).await;
        flush(&*cache).await;
    });
    used.unwrap();
    for copy in 0..SUPERBLOCK_COPIES {
        let at = Geometry::superblock_offset(copy);
        let mut unit = fixture.area(at, UNIT);
        unit[..begin.len()].copy_from_slice(begin);
        unit[12..16].fill(0);
        let crc = format::checksum(&unit);
        unit[12..16].copy_from_slice(&crc.to_le_bytes());
        fixture.poke_area(at, &unit);
    }
    fixture
}

fn each_kind() -> Vec<(Gone, Fixture)> {
    let divided = |version: u8| [&b"MPWCSUPR"[..], &[version, 0]].concat();
    let kinds = [2, 5, 6].map(|version| (Gone::DividedCache, divided(version)));
    let zram = (Gone::PersistentZram, b"MPZRSUPR\x01\0".to_vec());
    let kinds = kinds.into_iter().chain([zram]);
    kinds.map(|(gone, begin)| (gone, made_by_an_earlier_version(&begin))).collect()
}

/// Loses some of the copies: with blank bytes in their places, or with others.
fn lose(fixture: &Fixture, copies: &[u8], byte: u8) {
    for copy in copies {
        fixture.poke_area(Geometry::superblock_offset(*copy), &[byte; UNIT]);
    }
}

fn probed(fixture: &Fixture) -> (ProbeReport, Vec<SignedArea>) {
    let machine = Machine::boot(&fixture.world, 1);
    let device: Rc<dyn BlockDevice> = fixture.leaf(fixture.cache);
    let found = machine.block_on(async move {
        let report = writecache::probe(device.clone(), Sector::ZERO, Depth::Data).await.unwrap();
        (report, writecache::find_signed_areas(&device).await.unwrap())
    });
    machine.kill();
    found.unwrap()
}

#[test]
fn what_went_is_refused_by_name_and_stays_as_it_is() {
    for (gone, fixture) in each_kind() {
        for lost in [&[][..], &[0], &[0, 1], &[2, 3], &[1, 2, 3], &[0, 2, 3], &[0, 1, 2]] {
            for byte in [0, 0x5a] {
                let damaged = Fixture { world: fixture.world.clone(), ..fixture.clone() };
                let whole = fixture.image();
                lose(&damaged, lost, byte);
                let before = damaged.image();
                for options in ["", "format native", "ordered", "format dm", "guard_origin"] {
                    let by = Fixture { config: config(4096, options), ..damaged.clone() };
                    let refusal = by.refusal();
                    let holds = format!("cache device cache: it holds {gone}: {}", gone.way_out());
                    assert!(refusal.starts_with(&holds), "{lost:?}, `{options}`: {refusal}");
                    assert!(refusal.contains("`millpond wipe cache` gives up"), "{refusal}");
                }
                assert!(damaged.image() == before, "{gone:?}: it was changed");
                damaged.poke_area(0, &whole);
            }
        }
    }
}

#[test]
fn a_probe_and_whoever_would_overwrite_it_know_what_went() {
    for (gone, fixture) in each_kind() {
        let whole = fixture.image();
        for lost in [&[][..], &[0], &[0, 1], &[1, 2, 3]] {
            fixture.poke_area(0, &whole);
            lose(&fixture, lost, 0);
            let (report, areas) = probed(&fixture);
            assert!(
                matches!(report.contents, Contents::Gone(found) if found == gone),
                "{report:?}"
            );
            assert!(report.occupancy().is_none() && report.damage.is_empty(), "{report:?}");
            let loss = format!("holds {gone}: {}", gone.way_out());
            assert_eq!(report.loss(), Some(loss.clone()));
            let [area] = &areas[..] else { panic!("{areas:?}") };
            assert_eq!(area.loss, Some(loss), "{lost:?}");
            // All of the device: nobody knows how much it has.
            assert_eq!(area.sectors.end, 1024);
        }
    }
}

/// Two sound copies are a cache, whatever the others were once.
#[test]
fn a_cache_that_was_made_over_what_went_is_a_cache() {
    let fixture = Fixture::new(256, 512, "");
    fixture.life(async |cache| fill(&*cache, 0..20, 1).await).unwrap();
    let (_, old) = each_kind().swap_remove(0);
    for copy in [2, 3] {
        let at = Geometry::superblock_offset(copy);
        fixture.poke_area(at, &old.area(at, UNIT));
    }
    fixture.life(async |_| ()).unwrap();
}
