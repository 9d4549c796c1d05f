// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache whose device is removed keeps no copy of its origin: that is changed without it, and the
//! next table over both serves what it has then. Dirty blocks stay. The drop of the copies meets
//! errors of the cache device and power cuts at any step of it.

use std::rc::Rc;

use crate::common::{at, config, get, pattern, put, suspend};
use block::{Nanos, Sector, Target};
use reactor::FileId;
use sim::{Faults, Machine, PowerCut, Rng, World, WorldRef, seeds};
use writecache::{Config, Fault, WriteCache};

const BLOCK: usize = 4096;
const ROUNDS: u32 = 4;

thread_local! {
    /// Clean blocks that removals have met, over all seeds of this thread.
    static COPIES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// Removals that a power cut has stopped, and that an error has.
    static STOPPED: std::cell::Cell<[u64; 2]> = const { std::cell::Cell::new([0; 2]) };
}

struct Scene {
    world: WorldRef,
    config: Config,
    origin: FileId,
    cache: FileId,
    blocks: u64,
    /// Of each block, what clients must read.
    versions: Vec<u64>,
    written: u64,
}

impl Scene {
    fn new(seed: u64, fault: Option<Fault>) -> Scene {
        let world = World::new(seed);
        let (config, origin, cache, blocks) = {
            let mut w = world.borrow_mut();
            let blocks = w.rng.range(16, 120);
            let kind = w.rng.pick(&[
                "format native",
                "format native",
                "format native ordered",
                "format dm",
                "format native read_cache 1 sequential_read_cutoff 0",
            ]);
            let high = w.rng.pick(&[0, 10, 100]);
            let words = format!("{kind} high_watermark {high} low_watermark 0 autocommit_time 1");
            let area = w.rng.pick(&[416, 512, 1024]);
            let cache = w.add_swarm_disk("cache", Sector(area * 2));
            let origin = w.add_swarm_disk("origin", Sector(blocks * 8));
            (config(4096, &words), origin, cache, blocks)
        };
        let mut scene =
            Scene { world, config, origin, cache, blocks, versions: Vec::new(), written: 0 };
        scene.config.plant(fault);
        scene.versions = vec![0; usize::try_from(blocks).unwrap()];
        scene
    }

    fn target(&self) -> Rc<WriteCache> {
        let w = self.world.borrow();
        let (origin, cache) = (w.leaf(self.origin), w.leaf(self.cache));
        let sectors = Sector(self.blocks * 8);
        WriteCache::new("wc", self.config.clone(), origin, cache, sectors).unwrap()
    }

    fn next_version(&mut self) -> u64 {
        self.written += 1;
        self.written
    }

    /// Changes and reads, in any order; then the device is suspended. Returns which blocks are
    /// dirty.
    fn work(&mut self, machine: &Machine, cache: &Rc<WriteCache>) -> Result<Vec<bool>, String> {
        let mut rng = Rng::new(self.world.borrow_mut().rng.next_u64());
        let mut steps = Vec::new();
        for _ in 0..rng.range(1, 60) {
            let block = rng.below(self.blocks);
            let version = (rng.below(3) > 0).then(|| self.next_version());
            if let Some(version) = version {
                self.versions[block as usize] = version;
            }
            steps.push((block, version, Nanos(rng.below(2_000_000))));
        }
        let (cache, blocks) = (cache.clone(), self.blocks);
        let dirty = machine.block_on(async move {
            for (block, version, pause) in steps {
                match version {
                    Some(version) => put(&*cache, block, version).await.unwrap(),
                    None => drop(get(&*cache, block).await.unwrap()),
                }
                reactor::sleep(pause).await;
            }
            suspend(&cache).await;
            let copies = cache.attribute("clean_blocks").unwrap().number().unwrap();
            COPIES.set(COPIES.get() + copies);
            cache.clone().dirty(Sector::ZERO, Sector(blocks * 8)).await.unwrap()
        });
        let dirty = dirty.map_err(|_| "no power cut was planned".to_owned())?;
        let is_dirty = |block: u64| {
            dirty.iter().any(|&(from, len)| from <= at(block) && at(block) < from + len)
        };
        Ok((0..blocks).map(is_dirty).collect())
    }

    /// The removal. Returns whether it has dropped the copies.
    fn remove(&self, machine: &Machine, cache: Rc<WriteCache>) -> bool {
        let (cut, faults) = {
            let mut w = self.world.borrow_mut();
            let faults = Faults {
                write_error_per_mille: w.rng.pick(&[0, 0, 0, 300]),
                flush_error_per_mille: w.rng.pick(&[0, 0, 0, 300]),
                ..Faults::default()
            };
            let cut = PowerCut::Step(w.steps() + w.rng.below(60));
            ((w.rng.below(2) == 0).then_some(cut), faults)
        };
        self.world.borrow_mut().set_faults(self.cache, faults);
        self.world.borrow_mut().power_cut_at(cut);
        let dropped = machine.block_on(async move { cache.drop_copies().await.is_ok() });
        self.world.borrow_mut().power_cut_at(None);
        self.world.borrow_mut().set_faults(self.cache, Faults::default());
        let [cuts, errors] = STOPPED.get();
        STOPPED.set([cuts + u64::from(dropped.is_err()), errors + u64::from(dropped == Ok(false))]);
        dropped == Ok(true)
    }

    /// Somebody uses the origin alone.
    fn change_origin(&mut self, dirty: &[bool]) {
        for block in 0..self.blocks {
            if dirty[block as usize] || self.world.borrow_mut().rng.below(2) == 0 {
                continue;
            }
            let version = self.next_version();
            self.versions[block as usize] = version;
            let mut world = self.world.borrow_mut();
            world.poke(self.origin, at(block), &pattern(block, version));
        }
    }

    fn verify(&self, machine: &Machine, cache: &Rc<WriteCache>) -> Result<(), String> {
        let (cache, versions) = (cache.clone(), self.versions.clone());
        let looked = machine.block_on(async move {
            cache.clone().resume().await.map_err(|e| e.chain())?;
            for (block, version) in (0..).zip(versions) {
                let want = if version == 0 { vec![0; BLOCK] } else { pattern(block, version) };
                if get(&*cache, block).await != Ok(want) {
                    return Err(format!("block {block} is not version {version}"));
                }
            }
            Ok(())
        });
        looked.map_err(|_| "no power cut was planned".to_owned())?
    }
}

fn simulate(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let mut scene = Scene::new(seed, fault);
    for _ in 0..ROUNDS {
        let machine = Machine::boot(&scene.world, 1);
        let cache = scene.target();
        scene.verify(&machine, &cache)?;
        let dirty = scene.work(&machine, &cache)?;
        let is_dropped = scene.remove(&machine, cache);
        let is_killed = scene.world.borrow_mut().rng.below(2) == 0;
        if is_killed {
            machine.kill();
        } else {
            machine.power_cut();
        }
        if is_dropped {
            scene.change_origin(&dirty);
        }
    }
    let machine = Machine::boot(&scene.world, 1);
    let seen = scene.verify(&machine, &scene.target());
    machine.kill();
    seen
}

#[test]
fn a_removed_cache_has_no_copy_of_an_origin_that_changes() {
    seeds::run(150, |seed| simulate(seed, None));
    if seeds::count(150) >= 150 {
        let (copies, [cuts, errors]) = (COPIES.get(), STOPPED.get());
        assert!(copies > 5000 && cuts > 20 && errors > 20, "{copies} {cuts} {errors}");
    }
}

fn is_caught(fault: Fault) {
    let found = seeds::first_failure(0..400, |seed| simulate(seed, Some(fault)));
    let found = found.unwrap_or_else(|| panic!("{fault:?} was not caught in 400 seeds"));
    assert_eq!(simulate(found.seed, None), Ok(()), "{fault:?}: seed {}", found.seed);
}

/// They come back with the next recovery, over what the origin has by then.
#[test]
fn copies_that_a_removal_leaves_in_the_log_are_caught() {
    is_caught(Fault::CleanKeptInLog);
}

/// Without its flush the record that drops them is lost with the power.
#[test]
fn copies_that_are_dropped_without_a_flush_are_caught() {
    is_caught(Fault::SkipCacheFlush);
}
