// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table is loaded again and again while clients work, and the power goes: the new instance, made
//! while the old one is at work, takes over when that is suspended. Nothing is lost on the way, and
//! nothing of the old one comes later.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::journal_plan::{JournalPlan, Memory};
use crate::common::suspend_gate::SuspendGate;
use block::{Bio, BlockDevice, Limits, Nanos, Sector, Target};
use reactor::FileId;
use sim::harness::{self, CrashTest, Engine, OperatorState, Step, Work};
use sim::{Machine, Mix, Oracle, Workload, World, WorldRef, seeds};
use writecache::{Config, Fault, WriteCache};

const CLIENTS: u64 = 3;
const LIVES: u32 = 3;

#[derive(Clone)]
struct Setup {
    world: WorldRef,
    config: Config,
    blocks: u64,
    origin: FileId,
    cache: FileId,
    is_native: bool,
}

impl Setup {
    fn draw(world: &WorldRef, journal: JournalPlan) -> Setup {
        let mut w = world.borrow_mut();
        let block_size: u32 = w.rng.pick(&[512, 4096]);
        let blocks = w.rng.range(4, 60);
        let format = w.rng.pick(&["native", "native", "dm"]);
        let area_kib = w.rng.pick(&[416, 440, 1024]);
        let cache = w.add_swarm_disk("cache", Sector(area_kib * 2));
        let sectors = Sector(blocks * u64::from(block_size) / 512);
        let origin = w.add_swarm_disk("origin", sectors);
        let high = w.rng.pick(&[0, 10, 100]);
        let line = format!(
            "s origin cache {block_size} 8 format {format} high_watermark {high} \
             low_watermark 0 autocommit_time {}",
            w.rng.pick(&[1, 1000]),
        );
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut config = Config::parse(&words).expect("the line above is good");
        journal.draw_capacity(&mut w.rng, &mut config);
        drop(w);
        let is_native = format == "native";
        Setup { world: world.clone(), config, blocks, origin, cache, is_native }
    }

    /// A new table.
    fn load(&self, fault: Option<Fault>) -> Rc<WriteCache> {
        let w = self.world.borrow();
        let (origin, cache) = (w.leaf(self.origin), w.leaf(self.cache));
        let sectors = origin.limits().capacity;
        drop(w);
        let mut config = self.config.clone();
        config.plant(fault);
        WriteCache::new("wc", config, origin, cache, sectors).expect("devices that fit")
    }
}

/// The device, whatever its table is: a table is swapped when no bio is in flight.
struct Mapped {
    live: Rc<RefCell<Rc<WriteCache>>>,
    gate: Rc<SuspendGate>,
}

impl Mapped {
    fn over(live: Rc<WriteCache>) -> Rc<Mapped> {
        Rc::new(Mapped { live: Rc::new(RefCell::new(live)), gate: Rc::default() })
    }

    async fn swap(&self, new: Rc<WriteCache>) -> Result<(), String> {
        self.gate.close().await;
        let old = self.live.borrow().clone();
        old.suspend().await.map_err(|e| e.chain())?;
        new.clone().resume().await.map_err(|e| e.chain())?;
        *self.live.borrow_mut() = new;
        self.gate.open();
        Ok(())
    }
}

impl BlockDevice for Mapped {
    fn name(&self) -> &str {
        "mapped"
    }
    fn limits(&self) -> Limits {
        self.live.borrow().limits()
    }
    fn submit(&self, bio: Bio) {
        let live = self.live.clone();
        self.gate.pass(bio, move |bio| {
            let live = live.borrow().clone();
            live.submit(bio);
        });
    }
}

/// Loads tables, one after the other.
struct Operator {
    setup: Setup,
    device: Rc<Mapped>,
    fault: Option<Fault>,
    state: OperatorState,
}

impl Operator {
    async fn work(self: Rc<Self>) {
        let pause = |most: u64| {
            let pause = self.setup.world.borrow_mut().rng.below(most);
            reactor::sleep(Nanos(pause))
        };
        while !self.state.is_stopping() {
            pause(2_000_000).await;
            let new = self.setup.load(self.fault);
            pause(2_000_000).await;
            if let Err(why) = self.device.swap(new).await {
                return self.state.fail(why);
            }
            RELOADS.set(RELOADS.get() + 1);
        }
        self.state.end();
    }
}

thread_local! {
    static RELOADS: Cell<u64> = const { Cell::new(0) };
}

fn simulate(seed: u64, fault: Option<Fault>, journal: JournalPlan) -> Result<(), String> {
    let world = World::new(seed);
    let setup = Setup::draw(&world, journal);
    let memory = Memory::of(&world, journal);
    let bytes = setup.config.block_size as usize;
    let oracle = Rc::new(RefCell::new(Oracle::new(setup.blocks, bytes, seed)));
    let mut mix = Mix { blocks_max: 4, discards: 0, ..Mix::default() };
    mix.think_ns_max = world.borrow_mut().rng.pick(&[0, 20_000, 1_000_000]);
    let (lives, cut_after) = (LIVES, &[500, 5_000][..]);
    let test = CrashTest { world, oracle: oracle.clone(), lives, cut_after };
    test.run(&mut Lives { setup, oracle, mix, fault, memory })
}

/// The device, over all lives of a seed.
struct Lives {
    setup: Setup,
    oracle: Rc<RefCell<Oracle>>,
    mix: Mix,
    fault: Option<Fault>,
    memory: Memory,
}

impl Engine for Lives {
    fn begin_life(&mut self) -> u16 {
        self.memory.begin_life(&self.setup.world, &self.oracle);
        1
    }

    fn live(&mut self, machine: &Machine) -> Step {
        let setup = &self.setup;
        let first = setup.load(None);
        machine.block_on(first.clone().resume())?.map_err(|e| e.chain())?;
        let device = Mapped::over(first);
        let load = Workload::new(&setup.world, &self.oracle, self.mix);
        // The kernel's format has no journal.
        let load = self.memory.workload(load, !setup.is_native);
        machine.block_on(load.read_all(device.clone()))??;
        let operator = Rc::new(Operator {
            setup: setup.clone(),
            device: device.clone(),
            fault: self.fault,
            state: OperatorState::default(),
        });
        machine.spawn(0, operator.clone().work());
        for _ in 0..CLIENTS {
            machine.spawn(0, load.client(device.clone(), 60));
        }
        let work = Work {
            is_settled: &|| load.verdict.is_settled(CLIENTS),
            verdict: &|| load.verdict.result(),
            operator: &operator.state,
            disks: &[],
            status: &|| device.live.borrow().status(),
        };
        harness::work(machine, &setup.world, &work)?;
        let end = machine.block_on(async move {
            let live = device.live.borrow().clone();
            live.clone().message(vec!["flush".to_owned()]).await.map_err(|e| e.chain())?;
            live.check();
            load.read_all(device.clone()).await
        });
        Ok(end??)
    }
}

#[test]
fn a_table_loaded_again_while_clients_work_loses_nothing() {
    seeds::run(150, |seed| simulate(seed, None, JournalPlan::None));
    if seeds::count(150) >= 20 {
        assert!(RELOADS.get() > 100, "{} reloads", RELOADS.get());
    }
}

/// One instance leaves its journal, and the next one goes on with it.
#[test]
fn no_kill_undoes_a_change_beside_tables_loaded_again() {
    seeds::run(40, |seed| simulate(seed, None, JournalPlan::Kept));
    seeds::run(20, |seed| simulate(seed, None, JournalPlan::Moved));
}

fn is_found(fault: Option<Fault>) {
    let found = seeds::first_failure(0..2000, |seed| simulate(seed, fault, JournalPlan::None));
    let found = found.unwrap_or_else(|| panic!("{fault:?} was not found in 2000 seeds"));
    eprintln!("{fault:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn reading_the_media_when_a_table_is_loaded_is_found() {
    is_found(Some(Fault::OpenWhenLoaded));
}

#[test]
fn an_instance_whose_suspend_leaves_writes_in_flight_is_found() {
    is_found(Some(Fault::SuspendInFlight));
}

#[test]
fn a_log_that_follows_another_order_than_the_map_is_found() {
    is_found(Some(Fault::CompletionOrder));
}
