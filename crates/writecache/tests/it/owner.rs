// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache knows its origin: what it adopts, what it refuses, and that it refuses it untouched.

use std::rc::Rc;

use crate::common::{Fixture, config, expect, fill, flush, say, suspend};
use block::{Bio, BlockDevice, Error, Limits, Sector, Target};
use sim::{Machine, PowerCut};
use writecache::WriteCache;

/// A device that says who it is.
struct Named {
    below: Rc<dyn BlockDevice>,
    identity: Option<&'static str>,
}

impl BlockDevice for Named {
    fn name(&self) -> &str {
        self.below.name()
    }
    fn limits(&self) -> Limits {
        self.below.limits()
    }
    fn submit(&self, bio: Bio) {
        self.below.submit(bio);
    }
    fn identity(&self) -> Option<String> {
        self.identity.map(str::to_owned)
    }
}

/// A life of the cache over an origin of this identity.
fn life_over(
    fixture: &Fixture,
    identity: Option<&'static str>,
    options: &str,
    work: impl AsyncFnOnce(Rc<WriteCache>) + 'static,
) -> Result<(), Error> {
    let machine = Machine::boot(&fixture.world, 1);
    let origin = Rc::new(Named { below: fixture.leaf(fixture.origin), identity });
    let cache = fixture.leaf(fixture.cache);
    let target =
        WriteCache::new("wc", config(4096, options), origin, cache, fixture.sectors).unwrap();
    let done = machine.block_on(async move {
        target.clone().resume().await?;
        work(target).await;
        Ok(())
    });
    machine.kill();
    done.expect("no power cut was planned")
}

/// A cache of `identity` that holds blocks 0 to 9, dirty.
fn dirty_of(identity: Option<&'static str>) -> Fixture {
    let fixture = Fixture::small("");
    let filled = life_over(&fixture, identity, "", async |cache| {
        fill(&*cache, 0..10, 1).await;
        flush(&*cache).await;
        suspend(&cache).await;
    });
    filled.unwrap();
    fixture
}

fn owner(fixture: &Fixture) -> [u8; 16] {
    fixture.superblock().origin_id
}

#[test]
fn a_format_records_the_origin_and_the_same_one_opens_again() {
    let fixture = dirty_of(Some("disk a"));
    assert_eq!(owner(&fixture), format::origin_id("disk a"));
    let before = fixture.superblock().generation;
    life_over(&fixture, Some("disk a"), "", async |cache| expect(&*cache, 0..10, 1).await).unwrap();
    assert_eq!(fixture.superblock().generation, before, "nothing was written");
}

#[test]
fn the_blocks_of_one_origin_are_refused_to_another() {
    let fixture = dirty_of(Some("disk a"));
    let before = fixture.image();
    let why = life_over(&fixture, Some("disk b"), "", async |_| ()).unwrap_err().to_string();
    for part in ["holds 10 blocks (10 dirty) of another origin", "(disk b)", "adopt_origin"] {
        assert!(why.contains(part), "{why}");
    }
    assert!(fixture.image() == before);
}

#[test]
fn the_table_may_say_that_another_origin_takes_its_place() {
    let fixture = dirty_of(Some("disk a"));
    let seen = async |cache: Rc<WriteCache>| expect(&*cache, 0..10, 1).await;
    life_over(&fixture, Some("disk b"), "adopt_origin", seen).unwrap();
    assert_eq!(owner(&fixture), format::origin_id("disk b"));
    life_over(&fixture, Some("disk b"), "", seen).unwrap();
    assert!(life_over(&fixture, Some("disk a"), "", async |_| ()).is_err());
}

#[test]
fn a_cache_without_blocks_adopts_any_origin() {
    let fixture = dirty_of(Some("disk a"));
    let emptied = life_over(&fixture, Some("disk a"), "", async |cache| {
        say(&cache, "flush").await.unwrap();
        suspend(&cache).await;
    });
    emptied.unwrap();
    life_over(&fixture, Some("disk b"), "", async |_| ()).unwrap();
    assert_eq!(owner(&fixture), format::origin_id("disk b"));
}

/// Tried as a new user would: the manual says that a cache without blocks goes to any origin, but
/// one that had been flushed, or was never written to, refused a grown one.
#[test]
fn a_cache_without_blocks_takes_an_origin_of_any_size() {
    for was_used in [true, false] {
        let mut fixture = Fixture::small("");
        let whole = fixture.sectors;
        let opened = life_over(&fixture, Some("disk a"), "", async move |cache| {
            if was_used {
                fill(&*cache, 0..10, 1).await;
                let last = whole.0 / 8;
                fill(&*cache, last - 2..last, 1).await;
                say(&cache, "flush").await.unwrap();
            }
            suspend(&cache).await;
        });
        opened.unwrap();
        // Smaller, then as large as before, then of another identity.
        for (sectors, identity) in [(whole.0 - 80, "disk a"), (whole.0, "disk a"), (800, "disk b")]
        {
            fixture.sectors = Sector(sectors);
            let taken = life_over(&fixture, Some(identity), "", async move |cache| {
                fill(&*cache, 0..3, 2).await;
                say(&cache, "flush").await.unwrap();
                fill(&*cache, 0..3, 3).await;
                say(&cache, "flush").await.unwrap();
                suspend(&cache).await;
            });
            taken.unwrap();
            assert_eq!(fixture.superblock().origin_sectors, sectors);
            assert_eq!(owner(&fixture), format::origin_id(identity));
        }
    }
}

#[test]
fn one_block_is_enough_to_refuse_another_size() {
    let mut fixture = Fixture::small("");
    let filled = life_over(&fixture, Some("disk a"), "", async |cache| {
        fill(&*cache, 3..4, 1).await;
        flush(&*cache).await;
        suspend(&cache).await;
    });
    filled.unwrap();
    let before = fixture.image();
    fixture.sectors = Sector(fixture.sectors.0 - 80);
    for identity in ["disk a", "disk b"] {
        let refused = life_over(&fixture, Some(identity), "adopt_origin", async |_| ());
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("1 blocks (1 dirty) of an origin of"), "{why}");
        assert!(fixture.image() == before);
    }
}

#[test]
fn a_cache_without_a_known_origin_adopts_the_first_known_one() {
    let fixture = dirty_of(None);
    assert_eq!(owner(&fixture), [0; 16]);
    life_over(&fixture, Some("disk a"), "", async |cache| expect(&*cache, 0..10, 1).await).unwrap();
    assert_eq!(owner(&fixture), format::origin_id("disk a"));
}

#[test]
fn of_an_origin_that_nobody_knows_only_the_size_counts() {
    let fixture = dirty_of(Some("disk a"));
    life_over(&fixture, None, "", async |cache| expect(&*cache, 0..10, 1).await).unwrap();
    assert_eq!(owner(&fixture), format::origin_id("disk a"), "it is not forgotten");
}

#[test]
fn an_adoption_cut_at_any_step_leaves_a_cache_of_one_of_the_two() {
    let fixture = dirty_of(Some("disk a"));
    let image = fixture.image();
    for step in 0.. {
        fixture.world.borrow_mut().poke(fixture.cache, Sector::ZERO, &image);
        let machine = Machine::boot(&fixture.world, 1);
        let origin =
            Rc::new(Named { below: fixture.leaf(fixture.origin), identity: Some("disk b") });
        let config = config(4096, "adopt_origin");
        let cache = fixture.leaf(fixture.cache);
        let target = WriteCache::new("wc", config, origin, cache, fixture.sectors).unwrap();
        let until = fixture.world.borrow().steps() + step;
        fixture.world.borrow_mut().power_cut_at(Some(PowerCut::Step(until)));
        let ended = machine.block_on(async move { target.resume().await });
        fixture.world.borrow_mut().power_cut_at(None);
        machine.power_cut();
        let seen = async |cache: Rc<WriteCache>| expect(&*cache, 0..10, 1).await;
        let old = life_over(&fixture, Some("disk a"), "", seen).is_ok();
        let new = life_over(&fixture, Some("disk b"), "", seen).is_ok();
        assert!(old != new, "step {step}: old {old}, new {new}");
        if let Ok(opened) = ended {
            opened.unwrap();
            assert!(new && step > 4, "step {step}");
            return;
        }
    }
}
