// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The throttle of a leaf in simulation: random clients on one or two cores, whose writes are of
//! any class, beside somebody who switches laws, targets and depths; faults, and power cuts with
//! bios in the line. And what it is for: a reader beside a writer.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Base, Bio, BlockDevice, Buf, Bufs, Class, Flags, Limits, Nanos, Op, Sector};
use policy::wbt::{LatencyHistogram, LatencyTarget, Mode};
use queue::FileLeaf;
use reactor::{FileId, now, read, sleep, spawn, write};
use sim::model::{Flash, FlashParams};
use sim::{
    DiskSpec, Faults, Machine, Mix, Oracle, PowerCut, RunEnd, Workload, World, WorldRef, seeds,
};

/// A sector: a bio that fails in pieces leaves some old and some new before it ends.
const BLOCK: usize = 512;
const BLOCKS: u64 = 1024;
const CLIENTS: u64 = 12;
const MS: u64 = 1_000_000;

/// A leaf whose writes come in all classes.
struct Mixed {
    leaf: Rc<FileLeaf>,
    world: WorldRef,
}

impl BlockDevice for Mixed {
    fn name(&self) -> &str {
        self.leaf.name()
    }
    fn limits(&self) -> Limits {
        self.leaf.limits()
    }
    fn submit(&self, mut bio: Bio) {
        if matches!(bio.op, Op::Write | Op::Discard) {
            let rng = &mut self.world.borrow_mut().rng;
            bio.class = rng.pick(&[Class::Foreground, Class::Normal, Class::Background]);
            let sync = Flags::SYNC | Flags::IDLE;
            bio.flags |= rng.pick(&[Flags::empty(), Flags::empty(), Flags::META, sync]);
        }
        self.leaf.submit(bio);
    }
}

fn limits(queue_depth: u32, volatile_cache: bool) -> Limits {
    Limits {
        discard_granularity_bytes: 512,
        write_zeroes: true,
        volatile_cache,
        queue_depth,
        ..Limits::new(Sector::from_bytes(BLOCKS * BLOCK as u64))
    }
}

/// Nobody may wait while nothing is in flight: by the kernel's law at any moment, where no message
/// is on its way.
fn check_awake(leaf: &FileLeaf) {
    let report = leaf.wbt().report();
    let writes: usize = report.waiting[..3].iter().sum();
    let asleep = (writes > 0 && report.in_flight[0] == 0)
        || (report.waiting[3] > 0 && report.in_flight[1] == 0);
    assert!(!asleep || report.mode == Mode::Tail, "{report:?}");
    assert!(!asleep || report.target_ns > 0, "{report:?}");
}

/// Changes something now and then.
async fn operate(world: WorldRef, leaf: Rc<FileLeaf>, alone: bool, stop: Rc<Cell<bool>>) {
    while !stop.get() {
        let (pause, dice, depth, usec) = {
            let rng = &mut world.borrow_mut().rng;
            let usec = rng.pick(&["-1", "0", "1", "100", "5000"]);
            (rng.below(3 * MS), rng.below(10), rng.range(1, 40), usec)
        };
        sleep(Nanos(pause)).await;
        if alone {
            check_awake(&leaf);
        }
        let set = |name: &str, value: &str| leaf.wbt().set(name, value).expect("it is allowed");
        match dice {
            0 => set("queue/nr_requests", &depth.to_string()),
            1 => set("queue/wbt_mode", "kernel"),
            2 => set("queue/wbt_mode", "tail"),
            3 | 4 => set("queue/wbt_lat_usec", usec),
            5 => leaf.writer_throttled(),
            _ => {}
        }
    }
}

struct RunCounts {
    splits: u64,
    waits: u64,
    cut_waiting: bool,
}

fn simulate(seed: u64) -> Result<RunCounts, String> {
    let world = World::new(seed);
    let capacity = Sector::from_bytes(BLOCKS * BLOCK as u64);
    let file = world.borrow_mut().add_swarm_disk("disk", capacity);
    let oracle = Rc::new(RefCell::new(Oracle::new(BLOCKS, BLOCK, seed)));
    let (cores, depth, volatile, faulty, cuts, kernel) = {
        let rng = &mut world.borrow_mut().rng;
        let (cores, depth) = (rng.pick(&[1, 2]), rng.pick(&[0, 1, 2, 4, 16, 64]));
        let mut coin = || rng.chance_per_mille(500);
        (cores, depth, coin(), coin(), coin(), coin())
    };
    if faulty {
        let faults = Faults {
            read_error_per_mille: 10,
            write_error_per_mille: 20,
            flush_error_per_mille: 20,
            ..Faults::default()
        };
        world.borrow_mut().set_faults(file, faults);
        oracle.borrow_mut().expect_flush_errors();
    }
    let mix = Mix { errors_allowed: faulty, blocks_max: 256, writes: 80, ..Mix::default() };
    let mut counts = RunCounts { splits: 0, waits: 0, cut_waiting: false };
    for life in 0..2 {
        let machine = Machine::boot(&world, cores);
        let load = Workload::new(&world, &oracle, mix);
        let first = Rc::new(FileLeaf::new("disk", file, limits(depth, volatile)));
        if kernel {
            first.wbt().set_mode(Mode::Kernel);
        }
        let shared = first.shared_wbt();
        let twin = || Rc::new(FileLeaf::with_wbt("twin", file, limits(depth, volatile), &shared));
        let mut leaves = vec![first.clone()];
        leaves.extend((1..cores).map(|core| machine.on(core, twin)));
        let devices: Vec<Rc<dyn BlockDevice>> = leaves
            .iter()
            .map(|leaf| Rc::new(Mixed { leaf: leaf.clone(), world: world.clone() }) as _)
            .collect();
        machine.block_on(load.read_all(devices[0].clone())).expect("no cut is set yet")?;
        let cut = (cuts && life == 0).then(|| {
            let world = &mut *world.borrow_mut();
            PowerCut::Step(world.steps() + world.rng.below(3000))
        });
        world.borrow_mut().power_cut_at(cut);
        let stop = Rc::new(Cell::new(false));
        machine.spawn(0, operate(world.clone(), first.clone(), cores == 1, stop.clone()));
        for client in 0..CLIENTS as u16 {
            let core = client % cores;
            machine.spawn(core, load.client(devices[usize::from(core)].clone(), 40));
        }
        let ended = machine.run(|| load.verdict.is_settled(CLIENTS));
        load.verdict.result()?;
        let report = first.wbt().report();
        counts.splits += report.splits;
        counts.waits += report.waits;
        let waiting = |leaf: &Rc<FileLeaf>| leaf.wbt().report().waiting.iter().sum::<usize>();
        match ended {
            RunEnd::Idle => return Err(format!("clients wait for ever: {report:?}")),
            RunEnd::PowerCut => {
                counts.cut_waiting |= leaves.iter().any(|leaf| waiting(leaf) > 0);
                machine.power_cut();
                oracle.borrow_mut().crash();
            }
            RunEnd::Until => {
                stop.set(true);
                world.borrow_mut().power_cut_at(None);
                let settled = machine.run(|| false);
                assert_eq!(settled, RunEnd::Idle);
                for leaf in &leaves {
                    let report = leaf.wbt().report();
                    let left = (report.in_flight, report.in_flight_bytes, waiting(leaf));
                    if left != ([0, 0], 0, 0) || leaf.stats().in_flight() > 0 {
                        return Err(format!("left behind: {report:?}"));
                    }
                }
                machine.kill();
                oracle.borrow_mut().kill();
            }
        }
    }
    Ok(counts)
}

#[test]
fn throttled_writes_keep_the_contract_whatever_is_switched() {
    let (mut splits, mut waits, mut cuts_waiting) = (0, 0, 0);
    let runs = seeds::count(100);
    seeds::run(100, |seed| {
        let counts = simulate(seed)?;
        splits += counts.splits;
        waits += counts.waits;
        cuts_waiting += u64::from(counts.cut_waiting);
        Ok(())
    });
    println!("{runs} seeds: {waits} waits, {splits} in pieces, {cuts_waiting} cuts with waiters");
    // One seed alone need not have everything.
    if runs >= 50 && std::env::var_os("MILLPOND_SEED").is_none() {
        assert!(waits > runs && splits > runs && cuts_waiting > runs / 20);
    }
}

/// What 32 writers of 1 MiB each get in a second of virtual time beside a reader of 500 a second
/// on a SATA SSD, and the reader's 99th percentile.
fn reader_beside_writers(mode: Mode, target: LatencyTarget) -> (u64, u64) {
    let world = World::calm(1);
    let capacity = Sector(1 << 20);
    let model = Box::new(Flash::new(FlashParams::sata()));
    let spec = DiskSpec { keeps_history: false, ..DiskSpec::new("disk", capacity, model) };
    let file: FileId = world.borrow_mut().add_disk(spec);
    let machine = Machine::boot(&world, 1);
    let test = async move {
        let limits = Limits { queue_depth: 32, ..Limits::new(capacity) };
        let leaf = Rc::new(FileLeaf::new("disk", file, limits));
        leaf.wbt().set_mode(mode);
        leaf.wbt().set_target(target);
        let (stop, written) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0_u64)));
        let data: Bufs = Buf::zeroed(1 << 20).into();
        for nth in 0..32 {
            let (leaf, stop, written) = (leaf.clone(), stop.clone(), written.clone());
            let data = data.clone();
            spawn(async move {
                while !stop.get() {
                    let (flags, class) = (Flags::BACKGROUND, Class::Background);
                    let at = Sector(nth << 11);
                    let done = write(&*leaf, flags, class, at, data.clone()).await;
                    assert_eq!(done, Ok(()));
                    written.set(written.get() + (1 << 20));
                }
            });
        }
        let times = Rc::new(RefCell::new(LatencyHistogram::default()));
        for nth in 0..1000 {
            let (leaf, times) = (leaf.clone(), times.clone());
            spawn(async move {
                let due = now();
                let into = Buf::zeroed(4096).into();
                let done = read(&*leaf, Class::Foreground, Sector(nth * 8), into).await;
                assert_eq!(done, Ok(()));
                times.borrow_mut().record(now().0 - due.0);
            });
            sleep(Nanos(2 * MS)).await;
        }
        let seconds = now().0 / (1000 * MS);
        let rate = written.get() / seconds.max(1);
        stop.set(true);
        leaf.clone().quiesced().await;
        let tail_ns = times.borrow().percentile_ns(990).expect("there were reads");
        (rate, tail_ns)
    };
    machine.block_on(test).expect("nobody cuts the power")
}

#[test]
fn reads_beside_writers_are_quick_and_the_writers_too() {
    let (off_rate, off_ns) = reader_beside_writers(Mode::Tail, LatencyTarget::Off);
    let (kernel_rate, kernel_ns) = reader_beside_writers(Mode::Kernel, LatencyTarget::Default);
    let (rate, ns) = reader_beside_writers(Mode::Tail, LatencyTarget::Default);
    println!("off {off_rate} {off_ns}, kernel {kernel_rate} {kernel_ns}, tail {rate} {ns}");
    assert!(off_ns > 50 * MS, "the queue of the writers: {off_ns} ns");
    assert!(kernel_ns < off_ns / 4, "{kernel_ns} ns");
    assert!(ns < 2 * MS, "{ns} ns, the start included");
    assert!(rate > off_rate / 10 * 8 && kernel_rate > off_rate / 10 * 8);
}

/// On a device that works on one request at a time reads queue behind a write, and others behind
/// them: those have waited for the write, too, although it has ended when they come.
#[test]
fn a_read_behind_reads_that_waited_is_not_clean() {
    let stick = FlashParams {
        queue_depth: 1,
        read_latency_ns: 500_000,
        write_bytes_per_s: 20_000_000,
        ..FlashParams::sata()
    };
    let world = World::calm(1);
    let capacity = Sector(1 << 20);
    let model = Box::new(Flash::new(stick));
    let spec = DiskSpec { keeps_history: false, ..DiskSpec::new("stick", capacity, model) };
    let file: FileId = world.borrow_mut().add_disk(spec);
    let machine = Machine::boot(&world, 1);
    let test = async move {
        let limits = Limits { queue_depth: 1, ..Limits::new(capacity) };
        let leaf = Rc::new(FileLeaf::new("stick", file, limits));
        let clean = || leaf.wbt().report().control.clean_read_ns;
        let get = || {
            let sent = read(&*leaf, Class::Foreground, Sector(0), Buf::zeroed(4096).into());
            async move { assert_eq!(sent.await, Ok(())) }
        };
        let put = || {
            let (flags, class) = (Flags::BACKGROUND, Class::Background);
            let sent = write(&*leaf, flags, class, Sector(0), Buf::zeroed(4096).into());
            async move { assert_eq!(sent.await, Ok(())) }
        };
        for _ in 0..20 {
            let written = put();
            spawn(get());
            spawn(get());
            written.await;
            assert_eq!(leaf.wbt().report().in_flight, [0, 0]);
            get().await;
            sleep(Nanos(200 * MS)).await;
        }
        assert_eq!(clean(), None);
        for _ in 0..10 {
            get().await;
        }
        put().await;
        sleep(Nanos(200 * MS)).await;
        let usec = clean().map(|ns| ns / 1000);
        assert!(usec.is_some_and(|usec| (500..600).contains(&usec)), "{usec:?}");
    };
    machine.block_on(test).expect("nobody cuts the power");
}
