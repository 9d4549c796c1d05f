// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What later programs have written: what this one may not know is refused by name, and nothing
//! changes; what it may ignore is gone before it changes anything.
use std::rc::Rc;

use block::{BlockDevice, Sector};
use format::{Geometry, JOURNAL_PREFIX, Later, LaterFormat, SUPERBLOCK_COPIES, Superblock, UNIT};
use sim::Machine;
use writecache::{Contents, Depth, Fault, ProbeReport, SignedArea, find_guard, restore_origin};

use crate::common::{Fixture, config, expect, fill, flush};
use crate::guard::{GUARDED, formatted};

const INCOMPAT_AT: usize = 136;
const ROOM: usize = UNIT - 160;

/// A cache with 20 blocks, of which 10 were flushed.
fn used(options: &str) -> Fixture {
    let fixture = Fixture::new(256, 512, options);
    let done = fixture.life(async |cache| {
        fill(&*cache, 0..10, 1).await;
        flush(&*cache).await;
        fill(&*cache, 10..20, 1).await;
        flush(&*cache).await;
    });
    done.unwrap();
    fixture
}

fn put(fixture: &Fixture, copies: &[u8], superblock: &Superblock, incompat: u8) {
    for &copy in copies {
        let mut unit = vec![0; UNIT];
        superblock.encode(copy, &mut unit);
        if incompat != 0 {
            unit[INCOMPAT_AT] |= incompat;
            reseal(&mut unit);
        }
        fixture.poke_area(Geometry::superblock_offset(copy), &unit);
    }
}

fn reseal(unit: &mut [u8]) {
    unit[12..16].fill(0);
    let crc = format::checksum(unit);
    unit[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// What a later program has said: its name, and bits that this one does not know.
fn said(ro_compat: u64, compat: u64) -> Option<Later> {
    let mut room = vec![0x5a; ROOM];
    room[..32].fill(0);
    room[..14].copy_from_slice(b"millpond 1.2.0");
    Some(Later { ro_compat, compat: compat | 1, room })
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

/// Every table refuses it with this, and it stays as it is.
fn assert_refused(fixture: &Fixture, what: &str) {
    let before = fixture.image();
    for options in ["", "format native", "ordered", "guard_origin", "no_guard", "adopt_origin"] {
        let by = Fixture { config: config(4096, options), ..fixture.clone() };
        let refusal = by.refusal();
        let way_out = LaterFormat::WAY_OUT;
        assert!(
            refusal.starts_with(&format!("cache device cache: {what}: {way_out}")),
            "{refusal}"
        );
        assert!(refusal.contains("`millpond wipe cache` gives up"), "{refusal}");
    }
    let by = Fixture { config: config(4096, "format dm"), ..fixture.clone() };
    assert!(by.refusal().contains("the table says `format dm`"), "{}", by.refusal());
    assert!(fixture.image() == before, "it was changed");
}

#[test]
fn features_that_are_not_known_are_refused_by_name() {
    let fixture = used("");
    let old = fixture.superblock();
    let new = Superblock { generation: old.generation + 1, later: said(0, 4), ..old.clone() };
    let what = "it uses features of a later version of millpond (incompat 0x20), written by \
                millpond 1.2.0";
    // Whole; cut off in its first pair, or behind it; and with some copies lost.
    for (later, lost) in [
        (&[0, 1, 2, 3][..], &[][..]),
        (&[0], &[]),
        (&[0, 1], &[]),
        (&[0, 1], &[2, 3]),
        (&[1], &[0, 2, 3]),
    ] {
        put(&fixture, &[0, 1, 2, 3], &old, 0);
        put(&fixture, later, &new, 0x20);
        for &copy in lost {
            fixture.poke_area(Geometry::superblock_offset(copy), &[0; UNIT]);
        }
        assert_refused(&fixture, what);
        let (report, areas) = probed(&fixture);
        let Contents::Later(found) = &report.contents else { panic!("{report:?}") };
        assert_eq!((found.incompat, &*found.written_by), (0x20, "millpond 1.2.0"));
        let loss = Some(format!("holds a cache; {what}: {}", LaterFormat::WAY_OUT));
        assert_eq!(report.loss(), loss);
        let [area] = &areas[..] else { panic!("{areas:?}") };
        assert_eq!((&area.loss, area.sectors.end), (&loss, 1024), "nobody knows how much it has");
    }
    // It was void when the newest state was written.
    put(&fixture, &[0, 1, 2, 3], &Superblock { generation: new.generation + 1, ..old }, 0);
    put(&fixture, &[3], &new, 0x20);
    fixture.life(async |cache| expect(&*cache, 0..20, 1).await).unwrap();
}

#[test]
fn what_may_only_be_read_is_read_and_not_written() {
    let fixture = used("");
    let old = fixture.superblock();
    let atomic = Superblock { atomic_bytes: 16384, ..old.clone() };
    let unknown = Superblock { later: said(6, 0), ..old.clone() };
    for (superblock, bits) in
        [(atomic, "(ro_compat 0x1)"), (unknown, "(ro_compat 0x6), written by millpond 1.2.0")]
    {
        put(&fixture, &[0, 1, 2, 3], &superblock, 0);
        let what = format!("it uses features of a later version of millpond {bits}");
        assert_refused(&fixture, &what);
        let (report, _) = probed(&fixture);
        assert!(matches!(report.contents, Contents::Native(_)), "{report:?}");
        assert_eq!(report.occupancy().map(|found| found.dirty), Some(20));
        let note = format!("this version may read it, and not write to it: {what}");
        assert!(report.notes.contains(&note), "{report:?}");
        assert!(report.loss().unwrap().contains("20 dirty blocks"));
    }
}

#[test]
fn larger_blocks_than_an_engine_takes_are_read_and_not_written() {
    let fixture = Fixture::new(256, 4096, "");
    let geometry = Geometry::compute(4 << 20, 65536).unwrap();
    fixture.life(async |_| ()).unwrap();
    let Geometry { block_size, slots, log_units, checkpoint_units, moved } = geometry;
    let superblock = Superblock {
        block_size,
        slots,
        log_units,
        checkpoint_units,
        moved,
        ..fixture.superblock()
    };
    fixture.poke_area(0, &vec![0; 4 << 20]);
    put(&fixture, &[0, 1, 2, 3], &superblock, 0);
    let bits = "it uses features of a later version of millpond (incompat 0x4)";
    assert_refused(&fixture, bits);
    let (report, _) = probed(&fixture);
    assert_eq!(report.occupancy().map(|found| (found.total, found.dirty)), Some((slots.into(), 0)));
}

/// Whether a table refuses what it finds, and nothing changes.
fn is_kept(mut fixture: Fixture, fault: Option<Fault>) -> bool {
    let before = fixture.image();
    fixture.config.plant(fault);
    fixture.life(async |_| ()).is_err() && fixture.image() == before
}

#[test]
fn a_cache_of_another_version_that_is_formatted_is_found() {
    let later = || {
        let fixture = used("");
        let superblock = Superblock { later: said(0, 4), ..fixture.superblock() };
        put(&fixture, &[0, 1, 2, 3], &superblock, 0x20);
        fixture
    };
    let earlier = || {
        let fixture = used("");
        for copy in 0..SUPERBLOCK_COPIES {
            let at = Geometry::superblock_offset(copy);
            let mut unit = fixture.area(at, UNIT);
            unit[8] = 2; // divided
            reseal(&mut unit);
            fixture.poke_area(at, &unit);
        }
        fixture
    };
    for made in [&later as &dyn Fn() -> Fixture, &earlier] {
        assert!(is_kept(made(), None));
        assert!(
            !is_kept(made(), Some(Fault::OtherVersionTaken)),
            "the planted fault was not found"
        );
    }
}

/// Whether what may be ignored is gone when the cache was opened, and nothing else is.
fn forgets(fault: Option<Fault>) -> bool {
    let mut fixture = used("");
    let old = fixture.superblock();
    put(&fixture, &[0, 1, 2, 3], &Superblock { later: said(0, 4), ..old.clone() }, 0);
    fixture.config.plant(fault);
    // Killed before any request.
    fixture.life(async |_| ()).unwrap();
    let is_gone = (0..SUPERBLOCK_COPIES).all(|copy| {
        let unit = fixture.area(Geometry::superblock_offset(copy), UNIT);
        let found = Superblock::decode(copy, &unit).unwrap();
        found.later.is_none() && found.generation > old.generation
    });
    fixture.life(async |cache| expect(&*cache, 0..20, 1).await).unwrap();
    is_gone
}

#[test]
fn what_may_be_ignored_is_gone_before_anything_changes() {
    assert!(forgets(None));
    assert!(!forgets(Some(Fault::LaterKept)), "the planted fault was not found");
}

/// Its other pair is older: the copies are made equal with all that a later program has said, or a
/// cut would leave two states of one generation.
#[test]
fn a_pair_of_a_later_program_is_mended_as_it_is() {
    let fixture = used("");
    let old = fixture.superblock();
    let generation = old.generation + 1;
    let new = Superblock { generation, later: said(0, 4), ..old.clone() };
    put(&fixture, &[0, 1], &new, 0);
    fixture.life(async |cache| expect(&*cache, 0..20, 1).await).unwrap();
    assert_eq!(fixture.superblock(), Superblock { generation: generation + 1, ..old });
}

#[test]
fn a_guard_of_a_later_program_is_refused_and_stays() {
    let fixture = formatted(GUARDED);
    fixture.life(async |cache| flush(&*cache).await).unwrap();
    for (at, incompat) in [(0, true), (0, false), (36864, true)] {
        let mut slot = fixture.peek(fixture.origin, at, 36864);
        slot[8] = 2;
        slot[3072 + if incompat { 0 } else { 8 }] = 2;
        let whole = fixture.peek(fixture.origin, at, 36864);
        reseal(&mut slot);
        fixture.world.borrow_mut().poke(fixture.origin, Sector::from_bytes(at), &slot);
        let word = if incompat { "incompat" } else { "ro_compat" };
        let what =
            format!("its guard: it uses features of a later version of millpond ({word} 0x2)");
        for options in ["guard_origin", "no_guard", "adopt_origin", "adopt_origin guard_origin"] {
            let by = Fixture { config: config(4096, options), ..fixture.clone() };
            let refusal = by.refusal();
            assert!(refusal.contains(&what), "{options}: {refusal}");
        }
        let origin = fixture.leaf(fixture.origin);
        let machine = Machine::boot(&fixture.world, 1);
        let refusals = machine.block_on(async move {
            let shown = find_guard(&*origin).await.unwrap_err().chain();
            [shown, restore_origin(origin).await.unwrap_err().chain()]
        });
        machine.kill();
        for refusal in refusals.unwrap() {
            assert!(
                refusal.contains(&what) && refusal.contains("nothing was changed"),
                "{refusal}"
            );
        }
        assert!(fixture.peek(fixture.origin, at, 36864) == slot, "it was changed");
        fixture.world.borrow_mut().poke(fixture.origin, Sector::from_bytes(at), &whole);
    }
    fixture.life(async |_| ()).unwrap();
}

/// What is in the journal of a later program is not left out: the cache does not open.
#[test]
fn a_journal_of_a_later_program_is_refused() {
    let fixture = Fixture::small("high_watermark 100 low_watermark 100 autocommit_time 3600000");
    fixture.world.borrow_mut().share_memory();
    fixture.life(async |cache| fill(&*cache, 0..5, 1).await).unwrap();
    let memories = fixture.world.borrow().memories().unwrap();
    let names = memories.names();
    let name = names.iter().find(|name| name.starts_with(JOURNAL_PREFIX)).expect("a journal");
    let memory = memories.contents(name).unwrap();
    let change = |incompat: u8, version: u8| {
        let mut memory = memory.borrow_mut();
        (memory[8], memory[72]) = (version, incompat);
        reseal(&mut memory[..UNIT]);
    };
    let before = fixture.image();
    change(1, 3);
    let refusal = fixture.refusal();
    assert!(
        refusal.contains("features of a later version of millpond (incompat 0x1)"),
        "{refusal}"
    );
    assert!(refusal.contains(name), "{refusal}");
    assert!(fixture.image() == before, "it was changed");
    change(0, 2);
    fixture.life(async |cache| expect(&*cache, 0..5, 1).await).unwrap();
}
