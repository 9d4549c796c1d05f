// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulator tested by itself: its disks keep the border contract under every seed, and
//! devices that break it on purpose are found.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Buf, Class, CoreId, Flags, Limits, Op, Sector};
use reactor::{Msg, Remote};
use sim::{Faults, Machine, Mix, Oracle, PowerCut, RunEnd, Workload, World, seeds};

const SECTORS: u64 = 64;
const CLIENTS: u64 = 6;
const EPOCHS: u64 = 4;

/// What is planted between the clients and a good disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    FlushesNothing,
    IgnoresFua,
    /// Sends the flush before the writes it must cover have completed below.
    FlushOvertakesWrites,
    /// Remembers what it read, and is not told of writes.
    StaleReads,
    WritesElsewhere,
    ReusesBuffer,
    LosesZeroes,
}

struct Device {
    below: Rc<dyn BlockDevice>,
    planted: Planted,
    remembered: Rc<RefCell<Vec<Option<Vec<u8>>>>>,
    writes: Cell<u64>,
}

impl Device {
    fn new(below: Rc<dyn BlockDevice>, planted: Planted) -> Device {
        let remembered = Rc::new(RefCell::new(vec![None; SECTORS as usize]));
        Device { below, planted, remembered, writes: Cell::new(0) }
    }

    /// Answers a one-sector read from memory once it has been read.
    fn read_remembered(&self, bio: Bio) {
        let at = usize::try_from(bio.sector.0).expect("few sectors");
        if let Some(data) = &self.remembered.borrow()[at] {
            bio.bufs.copy_from(data);
            return bio.complete(block::Status::Ok);
        }
        let Bio { sector, bufs, done, .. } = bio;
        let remembered = self.remembered.clone();
        let read = reactor::read(&*self.below, Class::Normal, sector, bufs.clone());
        reactor::spawn(async move {
            let status = read.await.into();
            let mut data = vec![0; 512];
            bufs.copy_to(&mut data);
            remembered.borrow_mut()[at] = Some(data);
            done.complete(status);
        });
    }
}

impl BlockDevice for Device {
    fn name(&self) -> &str {
        "planted"
    }
    fn limits(&self) -> Limits {
        self.below.limits()
    }
    fn submit(&self, mut bio: Bio) {
        match (self.planted, bio.op) {
            (Planted::FlushesNothing, Op::Flush) => return bio.complete(block::Status::Ok),
            (Planted::IgnoresFua, Op::Write) => bio.flags.remove(Flags::FUA),
            (Planted::FlushOvertakesWrites, Op::Write) => {
                // Acknowledged at once, written later: the flush does not wait for it.
                let Bio { sector, bufs, done, .. } = bio;
                let mut data = vec![0; bufs.len_bytes()];
                bufs.copy_to(&mut data);
                let copy = Buf::copy_of(&data).all().into();
                let below = self.below.clone();
                let write = reactor::write(&*below, Flags::empty(), Class::Normal, sector, copy);
                reactor::spawn(async move {
                    let _ = write.await;
                });
                return done.complete(block::Status::Ok);
            }
            (Planted::StaleReads, Op::Read) if bio.len == Sector(1) => {
                return self.read_remembered(bio);
            }
            (Planted::WritesElsewhere, Op::Write) => {
                self.writes.set(self.writes.get() + 1);
                if self.writes.get().is_multiple_of(50) && bio.end() < Sector(SECTORS) {
                    bio.sector += Sector(1);
                }
            }
            (Planted::ReusesBuffer, Op::Write) => {
                let bufs = bio.bufs.clone();
                self.below.submit(bio);
                reactor::spawn(async move {
                    reactor::sleep(block::Nanos(500)).await;
                    bufs.zero();
                });
                return;
            }
            (Planted::LosesZeroes, Op::WriteZeroes) => return bio.complete(block::Status::Ok),
            _ => {}
        }
        self.below.submit(bio);
    }
}

struct Outcome {
    trace: u64,
    steps: u64,
}

fn simulate(seed: u64, planted: Planted, faulty: bool) -> Result<Outcome, String> {
    let world = World::new(seed);
    let file = world.borrow_mut().add_swarm_disk("disk", Sector(SECTORS));
    let oracle = Rc::new(RefCell::new(Oracle::new(SECTORS, 512, seed)));
    let cores = world.borrow_mut().rng.pick(&[1, 2, 3]);
    if faulty {
        let rng = &mut world.borrow_mut().rng.fork();
        let faults = Faults {
            read_error_per_mille: rng.pick(&[0, 20]),
            write_error_per_mille: rng.pick(&[0, 20]),
            flush_error_per_mille: rng.pick(&[0, 100]),
            ..Faults::default()
        };
        world.borrow_mut().set_faults(file, faults);
    }
    let mix = Mix { errors_allowed: faulty, ..Mix::default() };
    if faulty {
        oracle.borrow_mut().expect_flush_errors();
    }
    for _ in 0..EPOCHS {
        let machine = Machine::boot(&world, cores);
        let load = Workload::new(&world, &oracle, mix);
        let leaf = world.borrow().leaf(file);
        let device: Rc<dyn BlockDevice> = Rc::new(Device::new(leaf, planted));
        let export = machine.on(0, || reactor::export(device.clone()));
        let remote = Remote::new(CoreId(0), export, "remote", device.limits());
        let remote: Rc<dyn BlockDevice> = Rc::new(remote);
        machine.block_on(load.read_all(device.clone())).expect("no cut is set yet")?;
        let cut = {
            let world = &mut *world.borrow_mut();
            PowerCut::Step(world.steps() + world.rng.below(600))
        };
        world.borrow_mut().power_cut_at(Some(cut));
        for client in 0..CLIENTS as u16 {
            let core = client % cores;
            let here = if core == 0 { device.clone() } else { remote.clone() };
            machine.spawn(core, load.client(here, 60));
        }
        let ended = machine.run(|| load.verdict.is_settled(CLIENTS));
        assert_ne!(ended, RunEnd::Idle, "clients wait for ever");
        load.verdict.result()?;
        if world.borrow_mut().rng.chance_per_mille(300) {
            machine.kill();
            oracle.borrow_mut().kill();
        } else {
            machine.power_cut();
            oracle.borrow_mut().crash();
        }
    }
    let world = world.borrow();
    Ok(Outcome { trace: world.trace(), steps: world.steps() })
}

#[test]
fn a_plain_disk_keeps_the_contract() {
    seeds::run(2000, |seed| simulate(seed, Planted::Nothing, false).map(|_| ()));
}

#[test]
fn a_failing_disk_keeps_what_is_left_of_the_contract() {
    seeds::run(2000, |seed| simulate(seed, Planted::Nothing, true).map(|_| ()));
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..50 {
        let run = || simulate(seed, Planted::Nothing, true).map(|o| (o.trace, o.steps));
        let (first, second) = (run(), run());
        assert_eq!(first, second, "seed {seed}");
        assert!(first.unwrap().1 > 100);
    }
}

/// Fails unless the bug is found, in these words, within so many seeds.
fn must_find(planted: Planted, within: u64, words: &str) {
    let mut failures = (0..within).filter_map(|seed| {
        seeds::first_failure(seed..seed + 1, |seed| simulate(seed, planted, false).map(|_| ()))
    });
    let found = failures.find(|failure| failure.why.contains(words));
    let found = found.unwrap_or_else(|| panic!("{planted:?} survives {within} seeds"));
    println!("{planted:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn a_flush_that_flushes_nothing_is_found() {
    must_find(Planted::FlushesNothing, 50, "is not allowed");
}

#[test]
fn an_ignored_fua_is_found() {
    must_find(Planted::IgnoresFua, 100, "is not allowed");
}

#[test]
fn a_flush_that_overtakes_its_writes_is_found() {
    must_find(Planted::FlushOvertakesWrites, 100, "is not allowed");
}

#[test]
fn stale_reads_are_found() {
    must_find(Planted::StaleReads, 20, "is not allowed");
}

#[test]
fn misplaced_writes_are_found() {
    must_find(Planted::WritesElsewhere, 50, "data of block");
}

#[test]
fn a_buffer_touched_in_flight_is_found() {
    must_find(Planted::ReusesBuffer, 20, "modified in flight");
}

#[test]
fn lost_zeroes_are_found() {
    must_find(Planted::LosesZeroes, 50, "is not allowed");
}

#[test]
fn messages_between_two_cores_arrive_in_order() {
    thread_local!(static CAME: RefCell<Vec<(CoreId, u32)>> = const { RefCell::new(Vec::new()) });
    seeds::run(200, |seed| {
        CAME.take();
        let machine = Machine::boot(&World::new(seed), 3);
        for core in [1, 2] {
            machine.spawn(core, async move {
                for n in 0..100 {
                    let note =
                        Box::new(move || CAME.with_borrow_mut(|c| c.push((CoreId(core), n))));
                    reactor::post(CoreId(0), Msg::Call(note));
                    if n % 7 == 0 {
                        reactor::sleep(block::Nanos(700)).await;
                    }
                }
            });
        }
        machine.shut_down();
        for core in [1, 2] {
            let came = CAME.with_borrow(Clone::clone);
            let from: Vec<u32> = came.iter().filter(|c| c.0.0 == core).map(|c| c.1).collect();
            assert_eq!(from, (0..100).collect::<Vec<u32>>());
        }
        Ok(())
    });
}

/// Who calls may be gone at once, and have what it called about forgotten.
#[test]
fn a_call_finds_what_was_there_when_it_was_sent() {
    seeds::run(50, |seed| {
        let machine = Machine::boot(&World::new(seed), 2);
        let got = machine.block_on(async {
            let mut got = Vec::new();
            for core in [CoreId(0), CoreId(1)] {
                let make = || async { reactor::CoreLocal::keep(Rc::new(Cell::new(7))) };
                let local = reactor::call(core, make).await;
                let found = reactor::call(core, move || {
                    let found = local.get::<Cell<i32>>();
                    async move { found.map(|c| c.get()) }
                });
                let forget = move || local.release();
                if core == reactor::core_id() {
                    forget();
                } else {
                    reactor::post(core, reactor::Msg::Call(Box::new(forget)));
                }
                got.push(found.await);
            }
            got
        });
        assert_eq!(got, Ok(vec![Some(7), Some(7)]));
        Ok(())
    });
}

#[test]
fn a_call_brings_back_what_another_core_made_of_it() {
    seeds::run(200, |seed| {
        let machine = Machine::boot(&World::new(seed), 3);
        let got = machine.block_on(async {
            let calls: Vec<_> = (0..30_u16)
                .map(|n| {
                    reactor::call(CoreId(n % 3), move || async move {
                        reactor::sleep(block::Nanos(u64::from(30 - n))).await;
                        reactor::yield_now().await;
                        (n, reactor::core_id())
                    })
                })
                .collect();
            drop(reactor::call(CoreId(1), || async {}));
            let make = || async { reactor::CoreLocal::keep(Rc::new(Cell::new(7))) };
            let local = reactor::call(CoreId(2), make).await;
            assert_eq!(local.get::<Cell<i32>>(), None, "it is another core's");
            let found = reactor::call(CoreId(2), move || async move {
                let found = local.get::<Cell<i32>>().map(|c| c.get());
                local.release();
                (found, local.get::<Cell<i32>>().is_some())
            });
            assert_eq!(found.await, (Some(7), false));
            let mut got = Vec::new();
            for call in calls {
                got.push(call.await);
            }
            got
        });
        assert_eq!(got, Ok((0..30).map(|n| (n, CoreId(n % 3))).collect()));
        Ok(())
    });
}
