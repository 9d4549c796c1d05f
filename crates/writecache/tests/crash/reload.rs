// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table is loaded again and again while clients work, and the power goes: the new instance, made
//! while the old one is at work, takes over when that is suspended. Nothing is lost on the way, and
//! nothing of the old one comes later.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::gate::Gate;
use block::{Bio, BlockDevice, Limits, Nanos, Sector, Target};
use reactor::FileId;
use sim::{Machine, Mix, Oracle, PowerCut, RunEnd, Workload, World, WorldRef, seeds};
use writecache::{Config, Mutation, WriteCache};

const CLIENTS: u64 = 3;
const ROUNDS: u32 = 3;

#[derive(Clone)]
struct Setup {
    world: WorldRef,
    config: Config,
    blocks: u64,
    origin: FileId,
    cache: FileId,
}

impl Setup {
    fn draw(world: &WorldRef) -> Setup {
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
        let config = Config::parse(&words).expect("the line above is good");
        Setup { world: world.clone(), config, blocks, origin, cache }
    }

    /// A new table.
    fn load(&self, mutation: Mutation) -> Rc<WriteCache> {
        let w = self.world.borrow();
        let (origin, cache) = (w.leaf(self.origin), w.leaf(self.cache));
        let sectors = origin.limits().capacity;
        drop(w);
        let mut config = self.config.clone();
        config.mutation = mutation;
        WriteCache::new("wc", config, origin, cache, sectors).expect("devices that fit")
    }
}

/// The device, whatever its table is: a table is swapped when no bio is in flight.
struct Mapped {
    live: Rc<RefCell<Rc<WriteCache>>>,
    gate: Rc<Gate>,
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

/// What the operator has done, and what came of it.
#[derive(Default)]
struct Operator {
    stop: Cell<bool>,
    done: Cell<bool>,
    failure: RefCell<Option<String>>,
}

impl Operator {
    async fn reload(self: Rc<Self>, setup: Setup, device: Rc<Mapped>, mutation: Mutation) {
        let pause = |most: u64| {
            let pause = setup.world.borrow_mut().rng.below(most);
            reactor::sleep(Nanos(pause))
        };
        while !self.stop.get() {
            pause(2_000_000).await;
            let new = setup.load(mutation);
            pause(2_000_000).await;
            if let Err(why) = device.swap(new).await {
                *self.failure.borrow_mut() = Some(why);
                return;
            }
            RELOADS.set(RELOADS.get() + 1);
        }
        self.done.set(true);
    }
}

thread_local! {
    static RELOADS: Cell<u64> = const { Cell::new(0) };
}

fn simulate(seed: u64, mutation: Mutation) -> Result<(), String> {
    let world = World::new(seed);
    let setup = Setup::draw(&world);
    let bytes = setup.config.block_size as usize;
    let oracle = Rc::new(RefCell::new(Oracle::new(setup.blocks, bytes, seed)));
    let mut mix = Mix { blocks_max: 4, discards: 0, ..Mix::default() };
    mix.think_ns_max = world.borrow_mut().rng.pick(&[0, 20_000, 1_000_000]);
    for round in 0..ROUNDS {
        let machine = Machine::boot(&world, 1);
        let steps = world.borrow().steps();
        let after = world.borrow_mut().rng.pick(&[500, 5_000]);
        let cut = PowerCut::Step(steps + world.borrow_mut().rng.below(after));
        world.borrow_mut().power_cut_at((round + 1 < ROUNDS).then_some(cut));
        live(&machine, &setup, &oracle, mix, mutation)?;
        world.borrow_mut().power_cut_at(None);
        machine.power_cut();
        oracle.borrow_mut().crash();
    }
    Ok(())
}

/// One life of the machine, until the power goes or all is done.
fn live(
    machine: &Machine,
    setup: &Setup,
    oracle: &Rc<RefCell<Oracle>>,
    mix: Mix,
    mutation: Mutation,
) -> Result<(), String> {
    let first = setup.load(Mutation::None);
    match machine.block_on(first.clone().resume()) {
        Ok(opened) => opened.map_err(|e| e.chain())?,
        Err(_) => return Ok(()),
    }
    let device = Mapped::over(first);
    let load = Workload::new(&setup.world, oracle, mix);
    match machine.block_on(load.read_all(device.clone())) {
        Ok(read) => read?,
        Err(_) => return Ok(()),
    }
    let operator = Rc::new(Operator::default());
    machine.spawn(0, operator.clone().reload(setup.clone(), device.clone(), mutation));
    for _ in 0..CLIENTS {
        machine.spawn(0, load.client(device.clone(), 60));
    }
    let failed = || operator.failure.borrow().clone();
    let mut ended = machine.run(|| load.verdict.is_settled(CLIENTS) || failed().is_some());
    load.verdict.result()?;
    failed().map_or(Ok(()), Err)?;
    if ended == RunEnd::Until {
        operator.stop.set(true);
        ended = machine.run(|| operator.done.get() || failed().is_some());
        failed().map_or(Ok(()), Err)?;
    }
    match ended {
        RunEnd::PowerCut => return Ok(()),
        RunEnd::Idle => return Err("deadlock".to_owned()),
        RunEnd::Until => {}
    }
    let end = machine.block_on(async move {
        let live = device.live.borrow().clone();
        live.clone().message(vec!["flush".to_owned()]).await.map_err(|e| e.chain())?;
        live.check();
        load.read_all(device.clone()).await
    });
    end.unwrap_or(Ok(()))
}

#[test]
fn a_table_loaded_again_while_clients_work_loses_nothing() {
    seeds::run(400, |seed| simulate(seed, Mutation::None));
    if seeds::count(400) >= 20 {
        assert!(RELOADS.get() > 100, "{} reloads", RELOADS.get());
    }
}

fn is_found(mutation: Mutation) {
    let found = seeds::first_failure(0..2000, |seed| simulate(seed, mutation));
    let found = found.unwrap_or_else(|| panic!("{mutation:?} was not found in 2000 seeds"));
    eprintln!("{mutation:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn an_instance_that_reads_the_media_when_its_table_is_loaded_is_found() {
    is_found(Mutation::OpenWhenLoaded);
}

#[test]
fn an_instance_whose_suspend_leaves_writes_in_flight_is_found() {
    is_found(Mutation::SuspendInFlight);
}

#[test]
fn a_log_that_follows_another_order_than_the_map_is_found() {
    is_found(Mutation::CompletionOrder);
}
