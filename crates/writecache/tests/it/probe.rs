// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probes: what tools report about a cache is what the engine would find; damage has its offset; no
//! bytes make it panic.

use std::rc::Rc;

use crate::common::{BITS, Fixture, config, fill, flush, number, say, suspend};
use block::{BlockDevice, Sector};
use format::{Geometry, SUPERBLOCK_COPIES, UNIT};
use sim::{Machine, Rng};
use writecache::{Contents, Depth, Occupancy, ProbeReport, WriteCache};

fn look(fixture: &Fixture, depth: Depth) -> ProbeReport {
    let before = fixture.image();
    let machine = Machine::boot(&fixture.world, 1);
    let device: Rc<dyn BlockDevice> = fixture.leaf(fixture.cache);
    let start = fixture.config.start_sector;
    let report = machine.block_on(async move { writecache::probe(device, start, depth).await });
    machine.kill();
    assert!(fixture.image() == before, "a probe writes nothing");
    report.expect("no power cut was planned").unwrap()
}

/// A cache with dirty, clean and overwritten blocks, of which the newest record is not durable.
fn used(options: &str) -> Fixture {
    let fixture = Fixture::small(options);
    let filled = fixture.life(async |cache| {
        fill(&*cache, 0..10, 1).await;
        flush(&*cache).await;
        fill(&*cache, 4..6, 2).await;
        fill(&*cache, 100..103, 1).await;
        fill(&*cache, 200..201, 1).await;
        flush(&*cache).await;
    });
    filled.unwrap();
    fixture
}

fn occupancy(report: &ProbeReport) -> &Occupancy {
    report.occupancy().expect("a sound cache")
}

#[test]
fn a_blank_device_is_blank_and_foreign_data_are_unknown() {
    let fixture = Fixture::small("");
    assert!(matches!(look(&fixture, Depth::Data).contents, Contents::Blank));
    fixture.poke_area(8192, &[1; 512]);
    assert!(matches!(look(&fixture, Depth::Data).contents, Contents::Unknown));
}

#[test]
fn a_sound_cache_is_reported_as_the_engine_finds_it() {
    for options in ["", "start_sector 136"] {
        let fixture = used(options);
        let report = look(&fixture, Depth::Data);
        assert_eq!((&report.damage[..], report.damage_left_out), (&[][..], 0));
        let o = occupancy(&report);
        let runs = [(0, 80), (800, 24), (1600, 8)].map(|(at, len)| (Sector(at), Sector(len)));
        assert_eq!(o.dirty_ranges, runs);
        assert_eq!((o.dirty, o.clean, o.bad), (14, 0, 0));
        assert_eq!(o.dirty_bytes(), 14 * 4096);
        let Contents::Native(cache) = &report.contents else { panic!("{report:?}") };
        assert_eq!((cache.agreeing, cache.superblock.clone()), (4, fixture.superblock()));
        assert_eq!(cache.log_end.unwrap().0, fixture.last_record());
        let (free, total) = (o.free, o.total);
        let live = fixture.life(async move |cache: Rc<WriteCache>| {
            assert_eq!(number(&cache, "total_blocks"), total);
            assert_eq!(number(&cache, "dirty_blocks"), 14);
            assert_eq!(number(&cache, "free_blocks"), free);
        });
        live.unwrap();
    }
}

#[test]
fn a_cache_that_was_flushed_holds_nothing() {
    let fixture = used("");
    let flushed = fixture.life(async |cache| {
        say(&cache, "flush").await.unwrap();
        suspend(&cache).await;
    });
    flushed.unwrap();
    let report = look(&fixture, Depth::Data);
    assert!(report.damage.is_empty(), "{report:?}");
    let o = occupancy(&report);
    assert_eq!((o.dirty, o.clean, o.free), (0, 0, o.total));
    assert!(o.dirty_ranges.is_empty());
}

#[test]
fn a_token_stands_for_the_cache_as_it_is() {
    let fixture = used("");
    let token = look(&fixture, Depth::Metadata).token("wipe");
    assert_eq!(look(&fixture, Depth::Metadata).token("wipe"), token);
    assert_ne!(look(&fixture, Depth::Metadata).token("recover"), token);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..1, 7).await;
            flush(&*cache).await;
        })
        .unwrap();
    assert_ne!(look(&fixture, Depth::Metadata).token("wipe"), token);
}

#[test]
fn each_damaged_superblock_copy_is_reported_with_its_offset() {
    for copy in 0..4 {
        let fixture = used("");
        let offset = Geometry::superblock_offset(copy);
        fixture.flip(offset + BITS[1].0, BITS[1].1);
        let report = look(&fixture, Depth::Metadata);
        assert_eq!(report.damage.len(), 1, "{report:?}");
        assert_eq!(report.damage[0].offset, offset);
        assert!(report.damage[0].what.contains("the next opening mends it"), "{report:?}");
        assert_eq!(occupancy(&report).dirty, 14);
        for other in (0..4).filter(|other| *other != copy).take(2) {
            fixture.flip(Geometry::superblock_offset(other) + BITS[1].0, BITS[1].1);
        }
        let report = look(&fixture, Depth::Metadata);
        assert!(matches!(report.contents, Contents::Ruined), "{report:?}");
        assert_eq!(report.damage.len(), 4);
    }
}

#[test]
fn a_lost_record_is_reported_with_its_offset() {
    let fixture = used("");
    let last = fixture.last_record();
    let offset = fixture.geometry().log_offset(last - 1);
    fixture.flip(offset + 100, 1);
    let report = look(&fixture, Depth::Metadata);
    assert_eq!(report.damage.len(), 1, "{report:?}");
    assert_eq!(report.damage[0].offset, offset);
    let wanted = format!("log record {} was durable, and is lost: checksum mismatch", last - 1);
    assert!(report.damage[0].what.contains(&wanted), "{report:?}");
    assert!(report.occupancy().is_none());
}

#[test]
fn a_rotten_checkpoint_unit_is_reported_with_its_offset() {
    let fixture = Fixture::small("");
    let filled = fixture.life(async |cache| {
        let mut version = 0;
        while number(&cache, "checkpoints") < 1 {
            version += 1;
            fill(&*cache, version % 10..version % 10 + 1, 1).await;
            flush(&*cache).await;
        }
        suspend(&cache).await;
    });
    filled.unwrap();
    let offset = fixture.geometry().checkpoint_offset(fixture.superblock().checkpoint.area);
    fixture.flip(offset + BITS[1].0, BITS[1].1);
    let report = look(&fixture, Depth::Metadata);
    assert_eq!(report.damage.first().map(|f| f.offset), Some(offset), "{report:?}");
    assert!(report.damage[0].what.starts_with("checkpoint unit 0: checksum"), "{report:?}");
}

#[test]
fn bit_rot_is_found_by_the_reads_of_that_block_only() {
    let fixture = used("");
    let flushed_by_a_later_record = fixture.life(async |cache| {
        fill(&*cache, 220..221, 1).await;
        flush(&*cache).await;
    });
    flushed_by_a_later_record.unwrap();
    fixture.rot_data_of(100);
    assert!(look(&fixture, Depth::Metadata).damage.is_empty());
    let report = look(&fixture, Depth::Data);
    assert_eq!(report.damage.len(), 1, "{report:?}");
    assert_eq!(report.damage[0].offset, fixture.geometry().slot_offset(fixture.slot_of(100)));
    assert!(report.damage[0].what.contains("sector 800: its data do not match"), "{report:?}");
}

/// Makes the checksum of a unit right.
fn seal(unit: &mut [u8]) {
    unit[12..16].fill(0);
    let crc = format::checksum(unit);
    unit[12..16].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn no_bytes_make_a_survey_panic() {
    let mut rng = Rng::new(20_261_122);
    let (native, mut seen) = (used("").image(), [0; 6]);
    let mut gone = native.clone();
    for copy in 0..SUPERBLOCK_COPIES {
        let unit = usize::try_from(Geometry::superblock_offset(copy)).unwrap();
        gone[unit + 8] = 2;
        seal(&mut gone[unit..unit + UNIT]);
    }
    let mut kernel = vec![0; native.len()];
    let header = format::dm::Superblock { block_size: 4096, n_blocks: 200, seq_count: 3 };
    header.encode(&mut kernel[..format::dm::HEADER_BYTES]);
    for round in 0..400 {
        let fixture = Fixture::small("");
        let mut image = [&kernel, &native, &gone][round % 3].clone();
        // Mostly where metadata are, and with checksums that are right, as an attacker's would be.
        for _ in 0..rng.below(6) {
            let units = if rng.below(4) == 0 { image.len() / UNIT } else { 80 };
            let unit = usize::try_from(rng.below(units as u64)).unwrap() * UNIT;
            for _ in 0..=rng.below(3) {
                let at = unit + usize::try_from(rng.below(128)).unwrap();
                image[at] = u8::try_from(rng.below(256)).unwrap();
            }
            if rng.below(4) > 0 && round % 3 != 0 {
                seal(&mut image[unit..unit + UNIT]);
            }
        }
        fixture.poke_area(0, &image);
        seen[match look(&fixture, Depth::Data).contents {
            Contents::Blank => 0,
            Contents::Unknown => 1,
            Contents::Ruined => 2,
            Contents::Native(_) => 3,
            Contents::Dm(_) => 4,
            Contents::Gone(_) | Contents::Later(_) => 5,
            Contents::Replaced(_) => panic!("no image had a mark"),
        }] += 1;
    }
    assert!(seen[1] + seen[2] > 0 && seen[3..].iter().all(|&times| times > 50), "{seen:?}");
}

#[test]
fn an_area_beyond_the_end_is_refused() {
    let mut fixture = Fixture::small("");
    fixture.config = config(4096, "start_sector 2048");
    let machine = Machine::boot(&fixture.world, 1);
    let device: Rc<dyn BlockDevice> = fixture.leaf(fixture.cache);
    let looked =
        machine.block_on(async move { writecache::probe(device, Sector(2048), Depth::Data).await });
    machine.kill();
    let why = looked.unwrap().unwrap_err().to_string();
    assert!(why.contains("has 2048 sectors, none at start sector 2048"), "{why}");
}
