// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The durability contract under every kind of bad day: random clients, messages, suspend and
//! resume, injected errors, power cuts and kills at any step, torn writes, and recovery that is
//! cut itself; all answers judged by the oracle. And the proof that the judge is awake: planted
//! faults of the commit protocol are each caught.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Error, Nanos, Sector, Target};
use common::{kernel, live, number};
use policy::destage::Costs;
use reactor::FileId;
use sim::{
    Cut, DiskSpec, Ended, Faults, Machine, Mix, Oracle, Rng, Workload, World, WorldRef, seeds,
};
use writecache::{Config, MediaFormat, Mutation, WriteCache};

const CLIENTS: u64 = 4;
/// An origin on which every gap is worth being filled.
const EAGER: Costs = Costs { command_ns: 1_000_000_000, read_ns_per_mib: 1, write_ns_per_mib: 1 };

thread_local! {
    /// Blocks of gaps that were written in the lives of this thread's seeds.
    static GAPS: Cell<u64> = const { Cell::new(0) };
}

/// What a seed runs with.
#[derive(Clone)]
struct Setup {
    config: Config,
    blocks: u64,
    cache: FileId,
    origin: FileId,
    sectors: Sector,
    /// Whether writes may go around the cache: then a crash may tear blocks as it tears the
    /// origin's.
    around: bool,
}

/// What a test asks of every seed; the seed draws the rest.
#[derive(Clone, Copy)]
struct Plan {
    mutation: Mutation,
    with_faults: bool,
    /// With `p` the cache is persistent memory: a power cut takes any words of unfenced lines.
    mode: &'static str,
    format: &'static str,
    block_sizes: &'static [u32],
    area_kib: &'static [u64],
    rounds: u32,
    /// Steps from one power cut to the next.
    cut_after: &'static [u64],
}

impl Plan {
    const USUAL: Plan = Plan {
        mutation: Mutation::None,
        with_faults: false,
        mode: "s",
        format: "native",
        block_sizes: &[512, 4096, 4096, 4096],
        area_kib: &[416, 440, 512, 1024],
        rounds: 4,
        cut_after: &[200, 2_000, 20_000],
    };
    /// Tiny caches, too: the format's header takes little.
    const DM: Plan = Plan { format: "dm", area_kib: &[24, 72, 416, 1024], ..Plan::USUAL };
    const MEMORY: Plan = Plan { mode: "p", ..Plan::USUAL };
}

fn draw_setup(world: &WorldRef, plan: Plan) -> Setup {
    let mut w = world.borrow_mut();
    let block_size: u32 = w.rng.pick(plan.block_sizes);
    let blocks = w.rng.range(16, 200);
    let sectors = Sector(blocks * u64::from(block_size) / 512);
    let start_sector = w.rng.pick(&[0, 0, 8]);
    let area_kib = w.rng.pick(plan.area_kib);
    let capacity = Sector(area_kib * 2 + start_sector);
    let cache = match plan.mode {
        "p" => w.add_swarm_memory("cache", capacity),
        _ => w.add_swarm_disk("cache", capacity),
    };
    // A write to the origin that fails may leave part of itself in a block that goes around the
    // cache; the oracle of whole blocks does not know that. The native tests risk it.
    let may_go_around = plan.format == "native" || !plan.with_faults;
    let around = w.rng.below(2) == 0 && may_go_around;
    let model = w.swarm_model();
    let unit = if around { block_size } else { 512 };
    let spec = DiskSpec::new("origin", sectors, model);
    let origin = w.add_disk(DiskSpec { atomic_write_unit_bytes: unit, ..spec });
    let high = w.rng.range(0, 101);
    let low = w.rng.range(0, high + 1);
    let options = live::draw_options(&mut w.rng, plan.mode, around);
    let count = 20 + options.split_whitespace().count();
    let line = format!(
        "{} origin cache {block_size} {count} format {} start_sector {start_sector} \
         high_watermark {high} low_watermark {low} writeback_jobs {} autocommit_blocks {} \
         autocommit_time {} writeback_order {} writeback_io_bytes {} fail_mode {}{options}",
        plan.mode,
        plan.format,
        w.rng.pick(&[0, 1, 7, 1000]),
        w.rng.pick(&[0, 1, 9, 65536]),
        w.rng.pick(&[1, 5, 1000]),
        w.rng.pick(&["sorted", "sorted", "lru"]),
        w.rng.pick(&[4096, 16384, 1 << 20]),
        w.rng.pick(&["retry", "retry", "retry", "kernel"]),
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut config = Config::parse(&words).expect("the line above is good");
    config.mutation = plan.mutation;
    // Seeds last for milliseconds: nothing would be measured. Two thirds fill gaps.
    config.assumed_costs = (!blocks.is_multiple_of(3)).then_some(EAGER);
    Setup { config, blocks, cache, origin, sectors, around }
}

impl Setup {
    fn make(&self, world: &WorldRef) -> Rc<WriteCache> {
        let w = world.borrow();
        let (origin, cache) = (w.leaf(self.origin), w.leaf(self.cache));
        WriteCache::new("wc", self.config.clone(), origin, cache, self.sectors)
            .expect("devices that fit")
    }
}

/// Messages and suspends, at random, until told to stop.
async fn operator(world: WorldRef, cache: Rc<WriteCache>, gate: Rc<Gate>) {
    while !gate.stop.get() {
        let (pause, dice) = {
            let rng = &mut world.borrow_mut().rng;
            (rng.below(3_000_000), rng.below(16))
        };
        reactor::sleep(Nanos(pause)).await;
        let say = |word: &str| cache.clone().message(vec![word.to_owned()]);
        let outcome = match dice {
            0 | 1 => say("flush").await.map(drop),
            2 => say("clear_stats").await.map(drop),
            3 => say("flush_on_suspend").await.map(drop),
            4 | 5 => gate.suspend_and_resume(&cache).await,
            6 if gate.around => say("cleaner").await.map(drop),
            7..=10 => {
                // Drawn beforehand: nothing of the world is borrowed while it runs.
                let mut rng = Rng::new(world.borrow_mut().rng.next_u64());
                live::change(&cache, &mut rng, gate.around).await
            }
            _ => {
                cache.check();
                Ok(())
            }
        };
        if let (Err(e), false) = (outcome, gate.errors_allowed) {
            gate.failure.borrow_mut().get_or_insert(e.chain());
        }
    }
    gate.operator_done.set(true);
}

/// Keeps bios away while the target is suspended, as a mapped device does.
#[derive(Default)]
struct Gate {
    closed: Cell<bool>,
    in_flight: Cell<u64>,
    changed: reactor::WaitList,
    stop: Cell<bool>,
    operator_done: Cell<bool>,
    errors_allowed: bool,
    around: bool,
    failure: RefCell<Option<String>>,
}

impl Gate {
    async fn suspend_and_resume(&self, cache: &Rc<WriteCache>) -> Result<(), Error> {
        self.closed.set(true);
        self.changed.wait_for(|| self.in_flight.get() == 0).await;
        let suspended = cache.clone().suspend().await;
        let resumed = cache.clone().resume().await;
        self.closed.set(false);
        self.changed.wake_all();
        suspended.and(resumed)
    }
}

struct Gated {
    cache: Rc<WriteCache>,
    gate: Rc<Gate>,
}

impl BlockDevice for Gated {
    fn name(&self) -> &str {
        "gated"
    }
    fn limits(&self) -> block::Limits {
        self.cache.limits()
    }
    fn submit(&self, mut bio: block::Bio) {
        struct Leave(Rc<Gate>);
        impl reactor::OnDone for Leave {
            fn on_done(&self, _: block::Status, _: u64) {
                self.0.in_flight.set(self.0.in_flight.get() - 1);
                self.0.changed.wake_all();
            }
        }
        let (cache, gate) = (self.cache.clone(), self.gate.clone());
        let enter = move |gate: Rc<Gate>| {
            gate.in_flight.set(gate.in_flight.get() + 1);
            bio.done = reactor::chain(bio.done, Rc::new(Leave(gate)), 0);
            cache.submit(bio);
        };
        if gate.closed.get() {
            reactor::spawn(async move {
                gate.changed.wait_for(|| !gate.closed.get()).await;
                enter(gate);
            });
        } else {
            enter(gate);
        }
    }
}

/// Opens the cache; with faults about, more than once. `Err(None)`: the power went.
fn open(
    machine: &Machine,
    world: &WorldRef,
    setup: &Setup,
) -> Result<Rc<WriteCache>, Option<String>> {
    if setup.config.format == Some(MediaFormat::Dm) {
        // After every crash: would the kernel open it too?
        let found = kernel::survey(world, setup.cache, &setup.config);
        found.map_err(|why| Some(format!("the kernel would not open it: {why}")))?;
    }
    let cache = setup.make(world);
    let target = cache.clone();
    match machine.block_on(async move { target.resume().await }) {
        Ok(Ok(())) => Ok(cache),
        Ok(Err(e)) => Err(Some(format!("open failed: {}", e.chain()))),
        Err(_) => Err(None),
    }
}

fn simulate(seed: u64, plan: Plan) -> Result<(), String> {
    let Plan { with_faults, .. } = plan;
    let world = World::new(seed);
    let setup = draw_setup(&world, plan);
    let bytes = setup.config.block_size as usize;
    let oracle = Rc::new(RefCell::new(Oracle::new(setup.blocks, bytes, seed)));
    let mut mix = Mix { blocks_max: 6, errors_allowed: with_faults, ..Mix::default() };
    {
        let rng = &mut world.borrow_mut().rng;
        mix.fua_per_mille = rng.pick(&[0, 50, 500]);
        mix.flushes = rng.pick(&[1, 10, 40]);
        mix.meta_per_mille = rng.pick(&[0, 300]);
        // Long enough for zeroes that go straight to the origin, whose sectors may tear.
        mix.blocks_max = if setup.config.block_size == 512 { rng.pick(&[6, 180]) } else { 6 };
        mix.think_ns_max = rng.pick(&[0, 20_000, 1_000_000]);
    }
    if with_faults {
        oracle.borrow_mut().expect_flush_errors();
    }
    for round in 0..plan.rounds {
        let machine = Machine::boot(&world, 1);
        let steps = world.borrow().steps();
        let after = world.borrow_mut().rng.pick(plan.cut_after);
        let cut = Cut::Step(steps + world.borrow_mut().rng.below(after));
        world.borrow_mut().power_cut_at((round + 1 < plan.rounds).then_some(cut));
        live(&machine, &world, &setup, &oracle, mix)?;
        crash(machine, &world, &oracle);
    }
    Ok(())
}

/// One life of the machine: open, check what is there, work; until the power goes or all is done.
fn live(
    machine: &Machine,
    world: &WorldRef,
    setup: &Setup,
    oracle: &Rc<RefCell<Oracle>>,
    mix: Mix,
) -> Result<(), String> {
    let with_faults = mix.errors_allowed;
    let cache = match open(machine, world, setup) {
        Ok(cache) => cache,
        Err(Some(why)) => return Err(why),
        Err(None) => return Ok(()),
    };
    let gate =
        Rc::new(Gate { errors_allowed: with_faults, around: setup.around, ..Gate::default() });
    let device: Rc<dyn BlockDevice> = Rc::new(Gated { cache: cache.clone(), gate: gate.clone() });
    let load = Workload::new(world, oracle, mix);
    // What a crash left must be there before anything else happens.
    match machine.block_on(load.read_all(device.clone())) {
        Ok(result) => result?,
        Err(_) => return Ok(()),
    }
    if with_faults {
        draw_faults(world, setup);
    }
    machine.spawn(0, operator(world.clone(), cache.clone(), gate.clone()));
    for _ in 0..CLIENTS {
        machine.spawn(0, load.client(device.clone(), 80));
    }
    let ended = machine.run(|| load.verdict.is_settled(CLIENTS) || gate.failure.borrow().is_some());
    GAPS.set(GAPS.get() + number(&cache, "gap_blocks_filled"));
    load.verdict.result()?;
    if let Some(why) = gate.failure.borrow().clone() {
        return Err(why);
    }
    for disk in [setup.cache, setup.origin] {
        world.borrow_mut().set_faults(disk, Faults::default());
    }
    match ended {
        Ended::PowerCut => return Ok(()),
        Ended::Idle => return Err(format!("deadlock: clients wait: {}", books(&cache))),
        Ended::Until => gate.stop.set(true),
    }
    match machine.run(|| gate.operator_done.get()) {
        Ended::PowerCut => Ok(()),
        Ended::Idle => Err(format!("deadlock: a message waits: {}", books(&cache))),
        Ended::Until => finish(machine, world, setup, &cache, &load, with_faults),
    }
}

/// Everything that the cache counts, for a failure report.
fn books(cache: &WriteCache) -> String {
    let value = |name| cache.attribute(name).unwrap_or_default();
    cache.attributes().iter().map(|&name| format!("{name} {}; ", value(name))).collect()
}

fn draw_faults(world: &WorldRef, setup: &Setup) {
    let mut w = world.borrow_mut();
    for disk in [setup.cache, setup.origin] {
        let faults = match w.rng.below(2) {
            0 => Faults::default(),
            _ => Faults {
                read_error_per_mille: w.rng.pick(&[0, 5]),
                write_error_per_mille: w.rng.pick(&[0, 5, 50]),
                flush_error_per_mille: w.rng.pick(&[0, 20]),
                ..Faults::default()
            },
        };
        w.set_faults(disk, faults);
    }
}

/// The power goes, or only the process.
fn crash(machine: Machine, world: &WorldRef, oracle: &Rc<RefCell<Oracle>>) {
    let killed = world.borrow_mut().rng.below(3) == 0;
    world.borrow_mut().power_cut_at(None);
    if killed {
        machine.kill();
        oracle.borrow_mut().kill();
    } else {
        machine.power_cut();
        oracle.borrow_mut().crash();
    }
}

/// A quiet end: read all, flush, suspend; then the origin alone is the device.
fn finish(
    machine: &Machine,
    world: &WorldRef,
    setup: &Setup,
    cache: &Rc<WriteCache>,
    load: &Workload,
    with_faults: bool,
) -> Result<(), String> {
    let (check, target) = (cache.clone(), cache.clone());
    let (cache, load, setup, world) = (cache.clone(), load.clone(), setup.clone(), world.clone());
    let quiet = machine.block_on(async move {
        load.read_all(cache.clone()).await?;
        let flushed = target.clone().message(vec!["flush".to_owned()]).await;
        let suspended = target.clone().suspend().await;
        let is_zero = |name| target.attribute(name).is_ok_and(|value| value == "0");
        let hurt = !is_zero("error") || !is_zero("bad_blocks");
        match (flushed, suspended) {
            (Ok(_), Ok(())) => {}
            // Origin and cache work again: only what they can't mend keeps blocks dirty.
            (Err(_), _) | (_, Err(_)) if with_faults && hurt => return Ok(()),
            (Err(e), _) | (_, Err(e)) => return Err(e.chain()),
        }
        let dirty = target.attribute("dirty_blocks").map_err(|e| e.chain())?;
        if dirty != "0" {
            return Err(format!("{dirty} blocks are dirty after a flush"));
        }
        if setup.config.format == Some(MediaFormat::Dm) {
            let found = kernel::survey(&world, setup.cache, &setup.config)?;
            if found.is_none_or(|f| !f.live.is_empty() || !f.leftovers.is_empty()) {
                return Err("the kernel finds blocks after a flush".to_owned());
            }
        }
        let origin: Rc<dyn BlockDevice> = world.borrow().leaf(setup.origin);
        load.read_all(origin).await.map_err(|e| format!("origin after a flush: {e}"))
    });
    check.check();
    quiet.unwrap_or(Ok(()))
}

#[test]
fn acknowledged_durability_survives_any_crash() {
    seeds::run(200, |seed| simulate(seed, Plan::USUAL));
    if seeds::count(2000) > 100 {
        assert!(GAPS.get() > 1000, "{} blocks of gaps were filled", GAPS.get());
    }
}

#[test]
fn errors_of_origin_and_cache_lose_nothing_that_was_acknowledged() {
    seeds::run(200, |seed| simulate(seed, Plan { with_faults: true, ..Plan::USUAL }));
}

#[test]
fn the_kernels_format_survives_any_crash_and_error_too() {
    seeds::run(200, |seed| {
        simulate(seed, Plan { with_faults: seed.is_multiple_of(3), ..Plan::DM })
    });
}

#[test]
fn in_persistent_memory_what_was_acknowledged_survives_any_crash() {
    seeds::run(200, |seed| simulate(seed, Plan::MEMORY));
}

#[test]
fn errors_of_origin_and_persistent_memory_lose_nothing_that_was_acknowledged() {
    seeds::run(200, |seed| simulate(seed, Plan { with_faults: true, ..Plan::MEMORY }));
}

#[test]
fn in_persistent_memory_a_commit_without_its_fence_is_caught() {
    is_caught_by(Plan { mutation: Mutation::SkipCacheFlush, ..Plan::MEMORY });
}

#[test]
fn in_persistent_memory_a_superblock_before_its_checkpoint_is_caught() {
    is_caught_by(Plan { mutation: Mutation::SuperblockBeforeData, ..Plan::MEMORY });
}

/// Disks leave sectors whole: there the same fault does no harm.
#[test]
fn a_checksum_of_the_heads_of_sectors_is_caught_by_words_of_8_bytes_only() {
    let mutation = Mutation::TrustSectors;
    is_caught_by(Plan { mutation, ..Plan::MEMORY });
    seeds::run(200, |seed| simulate(seed, Plan { mutation, ..Plan::USUAL }));
}

fn is_caught(mutation: Mutation) {
    is_caught_by(Plan { mutation, ..Plan::USUAL });
}

fn is_caught_with_faults(mutation: Mutation) {
    is_caught_by(Plan { mutation, with_faults: true, ..Plan::USUAL });
}

fn is_caught_in_dm(mutation: Mutation) {
    is_caught_by(Plan { mutation, ..Plan::DM });
}

fn is_caught_by(plan: Plan) {
    let mutation = plan.mutation;
    let found = seeds::first_failure(0..4000, |seed| simulate(seed, plan));
    let found = found.unwrap_or_else(|| panic!("{mutation:?} was not caught in 4000 seeds"));
    eprintln!("{mutation:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn a_write_around_the_cache_beside_a_live_entry_is_caught() {
    is_caught(Mutation::AroundBesideLive);
}

#[test]
fn a_flush_that_forgets_what_went_around_the_cache_is_caught() {
    is_caught(Mutation::FlushWithoutOrigin);
}

#[test]
fn a_commit_without_its_flush_is_caught() {
    is_caught(Mutation::SkipCacheFlush);
    is_caught_in_dm(Mutation::SkipCacheFlush);
}

#[test]
fn a_superblock_before_its_checkpoint_is_caught() {
    is_caught(Mutation::SuperblockBeforeData);
}

#[test]
fn an_ignored_fua_is_caught() {
    is_caught(Mutation::IgnoreFua);
    is_caught_in_dm(Mutation::IgnoreFua);
}

#[test]
fn a_dropped_checksum_check_is_caught() {
    is_caught(Mutation::DropChecksumCheck);
}

#[test]
fn retiring_before_the_origin_is_durable_is_caught() {
    is_caught(Mutation::FreeBeforeOriginDurable);
    is_caught_in_dm(Mutation::FreeBeforeOriginDurable);
}

#[test]
fn reusing_a_slot_before_the_commit_is_caught() {
    is_caught(Mutation::ReuseBeforeCommit);
    is_caught_in_dm(Mutation::ReuseBeforeCommit);
}

/// In the kernel's format this is a bug that dm-writecache had: a flush was sent before the data
/// writes that it was to cover had completed.
#[test]
fn a_record_before_its_data_is_caught() {
    is_caught(Mutation::RecordBeforeData);
    is_caught_in_dm(Mutation::RecordBeforeData);
}

#[test]
fn writing_back_before_the_commit_is_caught() {
    is_caught(Mutation::WritebackBeforeCommit);
}

#[test]
fn a_superblock_before_the_entries_that_it_makes_valid_is_caught() {
    is_caught_in_dm(Mutation::SuperblockBeforeEntries);
}

#[test]
fn reusing_a_slot_before_its_entry_is_erased_is_caught() {
    // The newer copy of a superseded block hides what its slot holds; only of a block that has left
    // the cache the entry counts. So the slots must be few, and cuts frequent.
    is_caught_by(Plan {
        mutation: Mutation::ReuseBeforeErase,
        area_kib: &[24, 72],
        rounds: 12,
        cut_after: &[200, 600],
        ..Plan::DM
    });
}

#[test]
fn entries_of_a_commit_that_never_ended_left_at_recovery_are_caught() {
    // Seen only where the next commit has no reason to write the same unit of entries, so there
    // must be several, and after a cut in the middle of a commit.
    is_caught_by(Plan {
        mutation: Mutation::LeftoversKept,
        block_sizes: &[512],
        area_kib: &[416, 1024],
        rounds: 12,
        cut_after: &[200, 600],
        ..Plan::DM
    });
}

#[test]
fn forgetting_that_the_origin_refused_a_block_is_caught() {
    is_caught_with_faults(Mutation::ForgetWriteError);
}

#[test]
fn counting_blocks_as_written_after_a_failed_flush_of_the_origin_is_caught() {
    is_caught_with_faults(Mutation::PretendAfterFlushError);
}

#[test]
fn writing_back_what_the_cache_device_could_not_read_is_caught() {
    is_caught_with_faults(Mutation::WriteBackUnreadable);
}

#[test]
fn filling_gaps_that_are_not_locked_is_caught() {
    is_caught(Mutation::GapFillUnlocked);
}

#[test]
fn filling_gaps_with_whatever_a_slot_holds_is_caught() {
    is_caught(Mutation::GapFillUnchecked);
}
