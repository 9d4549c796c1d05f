// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One seed: what it draws, the lives of the machine, and how each is judged.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Sector, Target};
use policy::destage::Costs;
use reactor::FileId;
use sim::harness::{CrashTest, Engine, Step};
use sim::{DiskSpec, Faults, Machine, Mix, Oracle, Rng, Workload, World, WorldRef, seeds};
use writecache::{Config, Fault, MediaFormat, Order, WriteCache};

use crate::common::growable::{Growable, Growth};
use crate::common::journal_plan::{JournalPlan, Memory};
use crate::common::life;
use crate::common::mode_switch::ModeSwitch;
use crate::common::operator::Operator;
use crate::common::suspend_gate::GatedTarget;
use crate::common::{kernel, number, random_options};

/// Origins on which every gap is worth being filled: one with a head, and one without.
const EAGER: Costs = Costs::with_head(1_000_000_000, 1, 1);
const EAGER_FLAT: Costs = Costs::without_head(EAGER.read, EAGER.write);

thread_local! {
    /// Blocks of gaps that were written in the lives of this thread's seeds.
    pub(crate) static GAPS: Cell<u64> = const { Cell::new(0) };
    /// Blocks that went around the cache.
    pub(crate) static AROUND: Cell<u64> = const { Cell::new(0) };
    /// Blocks that scrub has checked.
    pub(crate) static SCRUBBED_BLOCKS: Cell<u64> = const { Cell::new(0) };
    /// Blocks that entered the cache because they were read.
    pub(crate) static READ_ADMITTED: Cell<u64> = const { Cell::new(0) };
    /// Reads of spans.
    pub(crate) static SLOT_READS: Cell<u64> = const { Cell::new(0) };
    /// How often the cache has grown.
    pub(crate) static GROWN: Cell<u64> = const { Cell::new(0) };
    /// How often nothing needed the cache any more after a switch to writethrough.
    pub(crate) static EMPTIED: Cell<u64> = const { Cell::new(0) };
}

/// Filled writes, as often as may be.
const FILLING: &str = " high_watermark 30 low_watermark 5 max_age none fail_mode retry gap_fill 1 \
                       writeback_io_bytes 1048576 writeback_order sorted writeback_rate_max 0 \
                       foreground_p99_target 0";

/// What a seed runs with.
#[derive(Clone)]
struct Setup {
    plan: Plan,
    config: Config,
    blocks: u64,
    cache: FileId,
    origin: FileId,
    sectors: Sector,
    /// Whether writes are sent around the cache, and whether errors may do that: then a crash may
    /// tear blocks as it tears the origin's.
    around: bool,
    may_go_around: bool,
    /// The cache device becomes larger.
    growth: Option<Growth>,
}

/// What a test asks of every seed; the seed draws the rest.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) fault: Option<Fault>,
    pub(crate) with_faults: bool,
    /// A kill loses what the origin has not flushed.
    pub(crate) origin_dies: bool,
    /// With `p` the cache is persistent memory: a power cut takes any words of unfenced lines.
    pub(crate) mode: &'static str,
    pub(crate) format: &'static str,
    pub(crate) block_sizes: &'static [u32],
    /// Clients send requests of any sectors, and each sector is judged by itself.
    pub(crate) by_sectors: bool,
    pub(crate) area_kib: &'static [u64],
    /// Lives: all but the last end with a power cut, or a kill.
    pub(crate) rounds: u32,
    /// Steps from one power cut to the next.
    pub(crate) cut_after: &'static [u64],
    /// Errors of a thousand, where faults are drawn: reads of the cache, writes and flushes of both
    /// disks.
    pub(crate) cache_read_errors: &'static [u32],
    pub(crate) write_errors: &'static [u32],
    pub(crate) flush_errors: &'static [u32],
    /// How often clients write zeroes, beside 50 writes.
    pub(crate) write_zeroes: u64,
    /// Writes are sent around the cache with every seed.
    pub(crate) around: bool,
    /// `cache_mode` is switched back and forth, and its promises are checked. With `around` only.
    pub(crate) through: bool,
    pub(crate) journal: JournalPlan,
    /// The cache device becomes larger, up to four times, while clients work.
    pub(crate) grows: bool,
    /// Blocks that a commit looks at between two yields, if not the usual number.
    pub(crate) batch_piece: Option<usize>,
    /// Options that count instead of what the seed draws.
    pub(crate) options: &'static str,
}

impl Plan {
    pub(crate) const USUAL: Plan = Plan {
        fault: None,
        with_faults: false,
        origin_dies: false,
        mode: "s",
        format: "native",
        block_sizes: &[512, 4096, 4096, 4096],
        by_sectors: false,
        area_kib: &[416, 440, 512, 1024],
        rounds: 4,
        cut_after: &[200, 2_000, 20_000],
        cache_read_errors: &[0, 5, 5, 100],
        write_errors: &[0, 5, 50],
        flush_errors: &[0, 20],
        write_zeroes: 3,
        around: false,
        through: false,
        journal: JournalPlan::None,
        grows: false,
        batch_piece: None,
        options: "",
    };
    pub(crate) const FAULTS: Plan = Plan { with_faults: true, ..Plan::USUAL };
    /// The origin has a guard in most lives, and shows in the others what clients see.
    pub(crate) const GUARDED: Plan =
        Plan { options: " guard_origin", block_sizes: &[4096], ..Plan::FAULTS };
    /// Blocks that are read once enter a cache with ample room, however small it is.
    pub(crate) const FIRST_READS: Plan = Plan {
        options: " read_cache 1 sequential_read_cutoff 0 read_admit_bytes_per_day 0",
        ..Plan::USUAL
    };
    /// Gaps are filled wherever there are some, and failed writes leave rubbish: one life, for what
    /// a filled write spoils is in memory alone for a moment.
    pub(crate) const RUBBISH: Plan =
        Plan { options: FILLING, rounds: 1, write_errors: &[3, 10, 30], ..Plan::FAULTS };
    /// Requests of 512 bytes and more on blocks of 1 to 4 KiB. Few blocks, so that merges meet.
    pub(crate) const SECTORS: Plan =
        Plan { by_sectors: true, block_sizes: &[1024, 4096, 4096], ..Plan::USUAL };
    pub(crate) const JOURNAL: Plan = Plan { journal: JournalPlan::Kept, ..Plan::USUAL };
    pub(crate) const THROUGH: Plan = Plan { around: true, through: true, ..Plan::USUAL };
    /// Tiny caches, too: the format's header takes little.
    pub(crate) const DM: Plan =
        Plan { format: "dm", area_kib: &[24, 72, 416, 1024], ..Plan::USUAL };
    pub(crate) const MEMORY: Plan = Plan { mode: "p", ..Plan::USUAL };
}

fn draw_setup(world: &WorldRef, plan: Plan) -> Setup {
    let mut w = world.borrow_mut();
    let block_size: u32 = w.rng.pick(plan.block_sizes);
    let blocks = w.rng.range(16, 200);
    let sectors = Sector(blocks * u64::from(block_size) / 512);
    let start_sector = w.rng.pick(&[0, 0, 8]);
    let area_kib = w.rng.pick(plan.area_kib);
    let capacity = Sector(area_kib * 2 + start_sector);
    let growth = plan.grows.then(|| Growth::of(capacity, Sector(4 * capacity.0)));
    let capacity = if plan.grows { Sector(4 * capacity.0) } else { capacity };
    let cache = match plan.mode {
        "p" => w.add_swarm_memory("cache", capacity),
        _ => w.add_swarm_disk("cache", capacity),
    };
    let around = w.rng.below(2) == 0 || plan.around;
    let model = w.swarm_model();
    // A cache whose device can't read a block takes nothing new, so that writes go around it.
    let may_go_around = around || (plan.with_faults && w.rng.below(2) == 0);
    let unit = if may_go_around { block_size } else { 512 };
    let spec = DiskSpec::new("origin", sectors, model);
    let loses_at_kill = plan.origin_dies;
    let origin = w.add_disk(DiskSpec { atomic_write_unit_bytes: unit, loses_at_kill, ..spec });
    let high = w.rng.range(0, 101);
    let low = w.rng.range(0, high + 1);
    let options = random_options::draw_options(&mut w.rng, plan.mode, around) + plan.options;
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
    config.plant(plan.fault);
    config.trust_origin();
    if let Some(blocks) = plan.batch_piece {
        config.set_batch_piece(blocks);
    }
    if plan.options == Plan::FIRST_READS.options {
        config.admit_first_reads();
    }
    if !options.contains("write_buffer") {
        config.write_buffer = 0;
    }
    // Every second seed reads the slots of many runs together.
    if !blocks.is_multiple_of(2) {
        config.tuning.writeback_buffer = 0;
    }
    plan.journal.draw_capacity(&mut w.rng, &mut config);
    // Seeds last for milliseconds: nothing would be measured. Two thirds fill gaps.
    config.assume_costs([None, Some(EAGER), Some(EAGER_FLAT)][(blocks % 3) as usize]);
    Setup { plan, config, blocks, cache, origin, sectors, around, may_go_around, growth }
}

impl Setup {
    /// The table of one life: the native format may be used in order, and then not, and again.
    fn reload(&mut self, rng: &mut Rng) {
        let may = self.plan.format == "native" && !self.around;
        self.config.ordered = may && rng.below(4) == 0;
        if self.config.ordered {
            self.config.tuning.writeback_order = Order::Sorted;
        }
        if self.plan.options == Plan::GUARDED.options {
            self.config.guard.asked =
                [Some(false), None, Some(true), Some(true)][rng.below(4) as usize];
        }
        if self.plan.through {
            let mode = ["cache_mode", rng.pick(&["writeback", "writethrough"])];
            self.config = self.config.with_option(mode[0], mode[1]).expect("a mode");
        }
    }

    /// Whether failed writes of the origin may leave rubbish. Beside filled writes a power cut must
    /// not come.
    fn may_ruin(&self) -> bool {
        // A slot of a guard with rubbish in the place of its first bytes is a used origin.
        let is_guarded = self.plan.options == Plan::GUARDED.options;
        !is_guarded && (self.config.assumed_costs().is_none() || self.plan.rounds == 1)
    }

    fn make(&self, world: &WorldRef) -> Rc<WriteCache> {
        let w = world.borrow();
        let origin = w.leaf(self.origin);
        let mut cache: Rc<dyn BlockDevice> = w.leaf(self.cache);
        if let Some(growth) = &self.growth {
            cache = Growable::over(cache, &growth.size);
        }
        WriteCache::new("wc", self.config.clone(), origin, cache, self.sectors)
            .expect("devices that fit")
    }
}

pub(crate) fn simulate(seed: u64, plan: Plan) -> Result<(), String> {
    let Plan { with_faults, .. } = plan;
    let world = World::new(seed);
    let setup = draw_setup(&world, plan);
    let bytes = setup.config.block_size as usize;
    let judged = if plan.by_sectors { 512 } else { bytes };
    let units = setup.blocks * (bytes / judged) as u64;
    let oracle = Rc::new(RefCell::new(Oracle::new(units, judged, seed)));
    let Plan { write_zeroes, .. } = plan;
    let mut mix =
        Mix { blocks_max: 6, errors_allowed: with_faults, write_zeroes, ..Mix::default() };
    {
        let rng = &mut world.borrow_mut().rng;
        mix.fua_per_mille = rng.pick(&[0, 50, 500]);
        mix.flushes = rng.pick(&[1, 10, 40]);
        mix.meta_per_mille = rng.pick(&[0, 300]);
        // Long enough for zeroes that go straight to the origin, whose sectors may tear.
        mix.blocks_max = if setup.config.block_size == 512 { rng.pick(&[6, 180]) } else { 6 };
        if plan.by_sectors {
            mix.blocks_max = rng.pick(&[3, 20, 180]);
        }
        mix.think_ns_max = rng.pick(&[0, 20_000, 1_000_000]);
    }
    if with_faults {
        oracle.borrow_mut().expect_flush_errors();
        oracle.borrow_mut().expect_rubbish();
        let told = oracle.clone();
        let failed = move |offset, data: &[u8]| told.borrow_mut().failed_below(offset, data);
        world.borrow_mut().on_failed_write(setup.origin, failed);
    }
    let memory = Memory::of(&world, plan.journal);
    let test = CrashTest {
        world: world.clone(),
        oracle: oracle.clone(),
        lives: plan.rounds,
        cut_after: plan.cut_after,
    };
    let mode = Rc::default();
    test.run(&mut Lives { world, setup, oracle, mix, mode, memory })
}

/// The planted fault of `plan` is found, first at a seed that showed it before, and is what makes
/// that seed fail.
pub(crate) fn is_caught_at(plan: Plan, seen_at: &[(Fault, u64)]) {
    let fault = plan.fault;
    let planted = fault.expect("a fault is planted");
    let found = seeds::first_failure_of(&planted, seen_at, 0..4000, |seed| simulate(seed, plan));
    let found = found.unwrap_or_else(|| panic!("{fault:?} was not caught in 4000 seeds"));
    eprintln!("{fault:?}: seed {}: {}", found.seed, found.why);
    let without = simulate(found.seed, Plan { fault: None, ..plan });
    assert_eq!(without, Ok(()), "{fault:?}: seed {} fails without it, too", found.seed);
}

/// The cache, over all lives of a seed.
struct Lives {
    world: WorldRef,
    setup: Setup,
    oracle: Rc<RefCell<Oracle>>,
    mix: Mix,
    /// Of this life.
    mode: Rc<ModeSwitch>,
    memory: Memory,
}

impl Engine for Lives {
    fn begin_life(&mut self) -> u16 {
        self.mode = Rc::default();
        self.setup.reload(&mut self.world.borrow_mut().rng);
        self.memory.begin_life(&self.world, &self.oracle);
        1
    }

    fn live(&mut self, machine: &Machine) -> Step {
        let (world, setup) = (&self.world, &self.setup);
        let discards = if setup.config.ordered { 0 } else { self.mix.discards };
        let mix = Mix { discards, ..self.mix };
        let with_faults = mix.errors_allowed;
        let cache = setup.make(world);
        self.open(machine, &cache)?;
        let gated = GatedTarget::new(cache.clone());
        let device: Rc<dyn BlockDevice> = gated.clone();
        let mut load = Workload::new(world, &self.oracle, mix);
        if setup.plan.through {
            self.mode.opened(&cache);
            let mode = self.mode.clone();
            // A failed flush of the origin loses what it should have covered.
            load = load.keeping(Rc::new(move |began| !with_faults && mode.keeps(began)));
        }
        // A step of its own only where it may say no: seeds of other plans stay as they are.
        let mut survives = true;
        if setup.plan.origin_dies {
            let limited = device.clone();
            survives = machine.block_on(async move { limited.limits().survives_kill })?;
        }
        load = self.memory.workload(load, with_faults || !survives);
        life::verify(machine, &load, &device)?;
        if with_faults {
            draw_faults(world, setup);
        }
        let operator = Operator::of(world, &gated, setup.around, with_faults);
        machine.spawn(0, operator.clone().work());
        if let Some(growth) = &setup.growth {
            let (growth, world) = (growth.clone(), world.clone());
            machine.spawn(0, growth.work(world, cache.clone(), operator.clone(), with_faults));
        }
        if setup.plan.through {
            let (mode, world) = (self.mode.clone(), world.clone());
            machine.spawn(0, mode.work(world, cache.clone(), operator.clone()));
        }
        let disks = [setup.cache, setup.origin];
        let worked = life::work(machine, world, &load, &device, &cache, &operator.state, disks);
        GAPS.set(GAPS.get() + number(&cache, "gap_blocks_filled"));
        AROUND.set(AROUND.get() + number(&cache, "writes_around"));
        SCRUBBED_BLOCKS.set(SCRUBBED_BLOCKS.get() + number(&cache, "scrubbed_blocks"));
        READ_ADMITTED.set(READ_ADMITTED.get() + number(&cache, "read_admitted"));
        SLOT_READS.set(SLOT_READS.get() + number(&cache, "slot_reads"));
        GROWN.set(GROWN.get() + setup.growth.as_ref().map_or(0, |growth| growth.grown.take()));
        EMPTIED.set(EMPTIED.get() + self.mode.emptied.get());
        worked?;
        self.finish(machine, &cache, &load)
    }

    /// If nothing needed the cache, the origin alone has all that a FLUSH covered; and after a kill
    /// all that was written.
    fn check_crash(&mut self) -> Result<(), String> {
        if !self.mode.is_empty() {
            return Ok(());
        }
        let mut oracle = self.oracle.borrow().clone();
        let (world, bytes) = (self.world.borrow(), oracle.block_bytes() as u64);
        let origin = |block: u64, out: &mut [u8]| {
            world.peek(self.setup.origin, Sector::from_bytes(block * bytes), out);
        };
        oracle.verify_after_crash(origin).map_err(|why| format!("the origin alone: {why}"))
    }
}

impl Lives {
    /// Opens the cache, and asks after every crash whether the kernel would open it too.
    fn open(&self, machine: &Machine, cache: &Rc<WriteCache>) -> Step {
        if self.setup.config.format == Some(MediaFormat::Dm) {
            let found = kernel::survey(&self.world, self.setup.cache, &self.setup.config);
            found.map_err(|why| format!("the kernel would not open it: {why}"))?;
        }
        life::open(machine, cache)
    }

    /// A quiet end; then the origin alone is the device.
    fn finish(&self, machine: &Machine, cache: &Rc<WriteCache>, load: &Workload) -> Step {
        let with_faults = self.mix.errors_allowed;
        let (cache, load) = (cache.clone(), load.clone());
        let (setup, world) = (self.setup.clone(), self.world.clone());
        let quiet = machine.block_on(async move {
            if !life::end(&cache, &load, with_faults).await? {
                return Ok(());
            }
            if setup.config.format == Some(MediaFormat::Dm) {
                let found = kernel::survey(&world, setup.cache, &setup.config)?;
                if found.is_none_or(|f| !f.live.is_empty() || !f.leftovers.is_empty()) {
                    return Err("the kernel finds blocks after a flush".to_owned());
                }
            }
            let released = cache.clone().release_origin().await;
            released.map_err(|e| format!("the guard stays: {}", e.chain()))?;
            let origin = world.borrow().leaf(setup.origin);
            life::read_origin(origin, &load).await
        });
        Ok(quiet??)
    }
}

fn draw_faults(world: &WorldRef, setup: &Setup) {
    let mut w = world.borrow_mut();
    for disk in [setup.cache, setup.origin] {
        let is_cache = disk == setup.cache;
        let reads: &[u32] = match (is_cache, setup.may_go_around) {
            (true, true) => setup.plan.cache_read_errors,
            (true, false) => &[0],
            (false, _) => &[0, 5],
        };
        let rubbish: &[u32] = if !is_cache && setup.may_ruin() { &[0, 500] } else { &[0] };
        let faults = match w.rng.below(2) {
            0 => Faults::default(),
            _ => Faults {
                read_error_per_mille: w.rng.pick(reads),
                write_error_per_mille: w.rng.pick(setup.plan.write_errors),
                rubbish_per_mille: w.rng.pick(rubbish),
                flush_error_per_mille: w.rng.pick(setup.plan.flush_errors),
                flush_error_takes_in_flight: !is_cache,
                ..Faults::default()
            },
        };
        w.set_faults(disk, faults);
    }
}
