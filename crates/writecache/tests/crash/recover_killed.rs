// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond recover` stopped at any moment, by a kill or a power cut, once or more than once:
//! nothing is lost, the cache can still be opened, and running it again makes the origin right.
//!
//! The steps are the tool's: report, open as the target does, `flush`, suspend, flush both devices.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::journal_plan::{JournalPlan, Memory};
use crate::common::{self, number};
use block::{BlockDevice, Class, Error, Sector, Target};
use reactor::FileId;
use sim::{Machine, Mix, Oracle, PowerCut, Workload, World, WorldRef, seeds};
use writecache::{Config, Contents, Depth, Mode, WriteCache, probe};

const CLIENTS: u64 = 3;
/// Moments at which a recovery is stopped, evenly over its steps.
const STOPS: u64 = 16;

/// A cache with blocks in it, after a crash.
struct Scene {
    world: WorldRef,
    oracle: Rc<RefCell<Oracle>>,
    config: Config,
    cache: FileId,
    origin: FileId,
    sectors: Sector,
}

impl Scene {
    /// Clients work on a cache as the seed draws it until the power goes, or the process.
    fn new(seed: u64, journal: JournalPlan) -> Result<Scene, String> {
        let world = World::new(seed);
        let memory = Memory::of(&world, journal);
        let (config, cache, origin, sectors, cut, is_native) = {
            let mut w = world.borrow_mut();
            let block_size: u32 = w.rng.pick(&[512, 4096]);
            let sectors = Sector(w.rng.range(16, 120) * u64::from(block_size) / 512);
            let area = Sector(w.rng.pick(&[416, 512]) * 2);
            let cache = match w.rng.below(3) {
                0 => w.add_swarm_memory("cache", area),
                _ => w.add_swarm_disk("cache", area),
            };
            let origin = w.add_swarm_disk("origin", sectors);
            let kind = w.rng.pick(&["format native", "format native ordered", "format dm"]);
            let words = format!("high_watermark {} low_watermark 0 {kind}", w.rng.pick(&[2, 100]));
            let config = common::config(block_size, &words);
            let is_native = !kind.ends_with("dm");
            let cut = PowerCut::Step(w.rng.range(200, 6_000));
            (config, cache, origin, sectors, cut, is_native)
        };
        let blocks = sectors.bytes() / u64::from(config.block_size);
        let oracle = Oracle::new(blocks, config.block_size as usize, seed);
        let oracle = Rc::new(RefCell::new(oracle));
        let scene = Scene { world, oracle, config, cache, origin, sectors };
        let machine = Machine::boot(&scene.world, 1);
        let target = scene.target(scene.config.clone());
        let open = target.clone();
        machine.block_on(async move { open.resume().await.unwrap() }).unwrap();
        let mix = Mix { discards: 0, ..Mix::default() };
        let load = Workload::new(&scene.world, &scene.oracle, mix);
        // The kernel's format has no journal.
        let load = memory.workload(load, !is_native);
        for _ in 0..CLIENTS {
            machine.spawn(0, load.client(target.clone(), 60));
        }
        scene.world.borrow_mut().power_cut_at(Some(cut));
        machine.run(|| load.verdict.is_settled(CLIENTS));
        load.verdict.result()?;
        drop(target);
        scene.stop(machine);
        Ok(scene)
    }

    fn target(&self, config: Config) -> Rc<WriteCache> {
        let w = self.world.borrow();
        let (origin, cache) = (w.leaf(self.origin), w.leaf(self.cache));
        WriteCache::new("wc", config, origin, cache, self.sectors).unwrap()
    }

    /// The power goes, or only the process.
    fn stop(&self, machine: Machine) {
        let killed = self.world.borrow_mut().rng.below(2) == 0;
        self.world.borrow_mut().power_cut_at(None);
        if killed {
            machine.kill();
            self.oracle.borrow_mut().kill();
        } else {
            machine.power_cut();
            self.oracle.borrow_mut().crash();
        }
    }

    /// Recovers; stopped after so many steps, if it is not done by then. Whether it was done, and
    /// its steps.
    fn recover(&self, stop_after: Option<u64>) -> Result<(bool, u64), String> {
        let machine = Machine::boot(&self.world, 1);
        let began = self.world.borrow().steps();
        let cut = stop_after.map(|steps| PowerCut::Step(began + steps));
        self.world.borrow_mut().power_cut_at(cut);
        let (origin, cache) = {
            let w = self.world.borrow();
            (w.leaf(self.origin), w.leaf(self.cache))
        };
        let done = machine.block_on(recover(origin, cache, self.sectors));
        let steps = self.world.borrow().steps() - began;
        self.stop(machine);
        match done {
            Ok(outcome) => outcome.map(|()| (true, steps)).map_err(|e| e.chain()),
            Err(_) => Ok((false, steps)),
        }
    }

    /// Looks at the device as a client does: with the cache opened by its own table.
    fn look(&self) -> Result<u64, String> {
        let machine = Machine::boot(&self.world, 1);
        let target = self.target(self.config.clone());
        let load = Workload::new(&self.world, &self.oracle, Mix::default());
        let looked = machine.block_on(async move {
            target
                .clone()
                .resume()
                .await
                .map_err(|e| format!("it does not open: {}", e.chain()))?;
            load.read_all(target.clone()).await?;
            Ok(number(&target, "dirty_blocks") + number(&target, "clean_blocks"))
        });
        self.stop(machine);
        looked.unwrap()
    }

    /// Looks at the origin alone.
    fn look_at_origin(&self) -> Result<(), String> {
        let machine = Machine::boot(&self.world, 1);
        let load = Workload::new(&self.world, &self.oracle, Mix::default());
        let origin: Rc<dyn BlockDevice> = self.world.borrow().leaf(self.origin);
        let looked = machine.block_on(load.read_all(origin));
        machine.kill();
        looked.unwrap().map_err(|e| format!("origin: {e}"))
    }
}

/// As the tool does it.
async fn recover(
    origin: Rc<dyn BlockDevice>,
    cache: Rc<dyn BlockDevice>,
    sectors: Sector,
) -> Result<(), Error> {
    let report = probe(cache.clone(), Sector::ZERO, Depth::Metadata).await?;
    let is_native = match &report.contents {
        Contents::Native(_) => true,
        Contents::Dm(_) => false,
        Contents::Blank
        | Contents::Unknown
        | Contents::Ruined
        | Contents::Replaced(_)
        | Contents::Gone(_)
        | Contents::Later(_) => panic!("no cache any more: {:?}", report.damage),
    };
    let block_size = report.occupancy().expect("its metadata are whole").block_size;
    let mut config = Config::new(Mode::Ssd, "origin", "cache", block_size);
    config.set_journal_capacity(200); // reading a large one takes time
    config.ordered = is_native;
    let target = WriteCache::new("recover", config, origin.clone(), cache.clone(), sectors)?;
    target.clone().resume().await?;
    target.clone().message(vec!["flush".to_owned()]).await?;
    target.clone().suspend().await?;
    for device in [origin, cache] {
        reactor::flush(&*device, Class::Foreground).await.unwrap();
    }
    Ok(())
}

/// Stopped after `stop_after` steps, then looked at now and then, stopped again now and then, and
/// at last let go on to its end.
fn simulate(seed: u64, journal: JournalPlan, stop_after: u64) -> Result<(), String> {
    let scene = Scene::new(seed, journal)?;
    let (mut done, _) = scene.recover(Some(stop_after))?;
    while !done {
        let dice = scene.world.borrow_mut().rng.below(4);
        match dice {
            0 => drop(scene.look()?),
            1 => {
                let again = scene.world.borrow_mut().rng.below(stop_after + 1);
                (done, _) = scene.recover(Some(again))?;
            }
            _ => (done, _) = scene.recover(None)?,
        }
    }
    scene.look_at_origin()?;
    match scene.look()? {
        0 => Ok(()),
        left => Err(format!("{left} blocks are in the cache after it was recovered")),
    }
}

fn stop_anywhere(seed: u64, journal: JournalPlan) -> Result<(), String> {
    let (done, steps) = Scene::new(seed, journal)?.recover(None)?;
    assert!(done, "nothing stopped it");
    let mut stops = (0..STOPS).map(|n| (n * steps + seed % steps) / STOPS);
    let stop = |at| simulate(seed, journal, at).map_err(|e| format!("stopped at {at}: {e}"));
    stops.try_for_each(stop)
}

#[test]
fn a_recovery_stopped_at_any_moment_loses_nothing() {
    seeds::run(20, |seed| stop_anywhere(seed, JournalPlan::None));
}

/// The recovery applies the journal of the process before.
#[test]
fn a_recovery_with_a_journal_stopped_anywhere_loses_nothing() {
    seeds::run(4, |seed| stop_anywhere(seed, JournalPlan::Kept));
}
