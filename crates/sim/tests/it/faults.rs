// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each fault does what it says, and stalls find what even latencies hide.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Nanos, Sector, Status};
use reactor::{FileId, WaitList};
use sim::model::Uniform;
use sim::{Disk, DiskSpec, Faults, Machine, PowerCut, Rng, RunEnd, Swarm, World, WorldRef};

fn world(faults: Faults) -> (WorldRef, FileId, Rc<Disk>) {
    let world = World::calm(1);
    let spec = DiskSpec::new("disk", Sector(1024), Box::new(Uniform::new(1, 1_000, 2_000)));
    let file = world.borrow_mut().add_disk(spec);
    world.borrow_mut().set_faults(file, faults);
    let leaf = world.borrow().leaf(file);
    (world, file, leaf)
}

fn write(machine: &Machine, disk: &Rc<Disk>, at: u64, byte: u8) -> Result<(), Status> {
    let disk = disk.clone();
    let done = machine.block_on(async move {
        let buf = Buf::copy_of(&[byte; 512]);
        reactor::write(&*disk, Flags::empty(), Class::Normal, Sector(at), buf.all().into()).await
    });
    done.expect("no power cut")
}

fn read(machine: &Machine, disk: &Rc<Disk>, at: u64) -> Result<u8, Status> {
    let disk = disk.clone();
    let done = machine.block_on(async move {
        let buf = Buf::zeroed(512);
        let bufs = buf.all().into();
        reactor::read(&*disk, Class::Normal, Sector(at), bufs).await?;
        Ok(buf.read(|b| b[511]))
    });
    done.expect("no power cut")
}

#[test]
fn a_bad_sector_fails_to_read_until_it_is_rewritten() {
    let (world, file, disk) = world(Faults::default());
    world.borrow_mut().set_bad_sector(file, Sector(5));
    let machine = Machine::boot(&world, 1);
    assert_eq!(read(&machine, &disk, 5), Err(Status::Io));
    assert_eq!(read(&machine, &disk, 6), Ok(0));
    assert_eq!(write(&machine, &disk, 5, 7), Ok(()));
    assert_eq!(read(&machine, &disk, 5), Ok(7));
}

#[test]
fn from_the_nth_request_on_everything_fails() {
    let (world, file, disk) = world(Faults { fail_from_op: Some(2), ..Faults::default() });
    let machine = Machine::boot(&world, 1);
    assert_eq!(write(&machine, &disk, 0, 1), Ok(()));
    assert_eq!(read(&machine, &disk, 0), Ok(1));
    assert_eq!(read(&machine, &disk, 0), Err(Status::Io));
    assert_eq!(write(&machine, &disk, 0, 2), Err(Status::Io));
    assert_eq!(world.borrow().disk_ops(file), 4);
}

#[test]
fn one_request_alone_fails() {
    let (world, _, disk) = world(Faults { fail_op: Some(1), ..Faults::default() });
    let machine = Machine::boot(&world, 1);
    assert_eq!(write(&machine, &disk, 0, 1), Ok(()));
    assert_eq!(read(&machine, &disk, 0), Err(Status::Io));
    assert_eq!(read(&machine, &disk, 0), Ok(1));
}

#[test]
fn rot_and_lost_and_misdirected_writes_are_not_reported() {
    let (world, file, disk) = world(Faults { lost_write_per_mille: 1000, ..Faults::default() });
    let machine = Machine::boot(&world, 1);
    assert_eq!(write(&machine, &disk, 3, 9), Ok(()));
    assert_eq!(read(&machine, &disk, 3), Ok(0));

    let misdirected = Faults { misdirected_write_per_mille: 1000, ..Faults::default() };
    world.borrow_mut().set_faults(file, misdirected);
    assert_eq!(write(&machine, &disk, 3, 9), Ok(()));
    let mut all = vec![0; 1024 * 512];
    world.borrow().peek(file, Sector(0), &mut all);
    assert_eq!(all.iter().filter(|&&b| b == 9).count(), 512);
    assert_ne!(all[3 * 512], 9);

    world.borrow_mut().set_faults(file, Faults { rot_per_mille: 1000, ..Faults::default() });
    assert!(read(&machine, &disk, 100).is_ok());
    let mut sector = vec![0; 512];
    world.borrow().peek(file, Sector(100), &mut sector);
    assert_eq!(sector.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
}

#[test]
fn invalid_ranges_unknown_files_and_sockets_are_refused() {
    let (world, _, disk) = world(Faults::default());
    let machine = Machine::boot(&world, 1);
    assert_eq!(read(&machine, &disk, 1024), Err(Status::Invalid));
    let status = machine.block_on(async {
        let accept = reactor::driver_io(FileId(0), reactor::SqeOp::Accept).await.status;
        (accept, reactor::driver_io(FileId(9), reactor::SqeOp::Flush).await.status)
    });
    assert_eq!(status, Ok((Status::NotSupported, Status::NoDevice)));
}

/// A log with a group commit that forgets one thing: the block that a write replaces is given to
/// the writers before the commit that frees it is durable. It takes three parties to see it: a
/// commit that hangs while two other writers both take a slot.
struct Reuses {
    disk: Rc<Disk>,
    /// First in, first out.
    free: RefCell<VecDeque<u64>>,
    committing: Cell<bool>,
    turn: WaitList,
}

const SLOTS: u64 = 3;
const WRITERS: u64 = 3;
const RECORD: Sector = Sector(100);

impl Reuses {
    async fn put(&self, disk: &dyn BlockDevice, sector: u64, byte: u8) {
        let bufs = Buf::copy_of(&[byte; 512]).all().into();
        let write = reactor::write(disk, Flags::FUA, Class::Normal, Sector(sector), bufs);
        assert_eq!(write.await, Ok(()));
    }

    /// Puts `version` into a free slot and points the record at it.
    async fn store(&self, version: u8) {
        let Some(slot) = self.free.borrow_mut().pop_front() else { return };
        self.put(&*self.disk, slot, version).await;
        self.turn.wait_for(|| !self.committing.get()).await;
        self.committing.set(true);
        let mut old = [0; 512];
        let record = Buf::zeroed(512);
        let read = reactor::read(&*self.disk, Class::Normal, RECORD, record.all().into());
        assert_eq!(read.await, Ok(()));
        record.read(|b| old.copy_from_slice(b));
        if old[0] > 0 {
            // The bug: not before the record below is durable.
            self.free.borrow_mut().push_back(u64::from(old[0] - 1));
        }
        let mut new = [0; 512];
        new[0] = u8::try_from(slot).expect("few slots") + 1;
        new[1] = version;
        let bufs = Buf::copy_of(&new).all().into();
        let commit = reactor::write(&*self.disk, Flags::FUA, Class::Normal, RECORD, bufs);
        assert_eq!(commit.await, Ok(()));
        self.committing.set(false);
        self.turn.wake_all();
    }
}

/// The power goes after a while: does the record point at what it says?
fn reuse(seed: u64, swarm: Swarm) -> Result<(), String> {
    let world = World::with_swarm(Rng::new(seed), swarm);
    let model = Box::new(Uniform::new(seed, 20_000, 22_000));
    let file = world.borrow_mut().add_disk(DiskSpec::new("disk", Sector(128), model));
    let machine = Machine::boot(&world, 1);
    let disk = world.borrow().leaf(file);
    let free = RefCell::new((0..SLOTS).collect());
    let log =
        Rc::new(Reuses { disk, free, committing: Cell::new(false), turn: WaitList::default() });
    let next = Rc::new(Cell::new(1u8));
    for _ in 0..WRITERS {
        let (log, next) = (log.clone(), next.clone());
        machine.spawn(0, async move {
            while next.get() < 60 {
                let version = next.replace(next.get() + 1);
                log.store(version).await;
                reactor::sleep(Nanos(200_000)).await;
            }
        });
    }
    let cut = Nanos(world.borrow_mut().rng.below(6_000_000));
    world.borrow_mut().power_cut_at(Some(PowerCut::Time(cut)));
    if machine.run(|| next.get() >= 60) == RunEnd::Idle {
        return Err("the writers hang".to_owned());
    }
    machine.power_cut();
    let (mut record, mut data) = ([0; 512], [0; 512]);
    world.borrow().peek(file, RECORD, &mut record);
    if record[0] > 0 {
        world.borrow().peek(file, Sector(u64::from(record[0]) - 1), &mut data);
        if data.iter().any(|&b| b != record[1]) {
            return Err(format!("the record says version {}, the slot has {}", record[1], data[0]));
        }
    }
    Ok(())
}

#[test]
fn stalls_find_a_slot_reused_too_early_that_even_latencies_hide() {
    let stalls = Swarm { stall_per_mille: 50, stall_factor: 64, ..Swarm::CALM };
    let count = |swarm| (0..2000).filter(|&seed| reuse(seed, swarm).is_err()).count();
    let (even, stalled) = (count(Swarm::CALM), count(stalls));
    println!("found by {even} of 2000 seeds with even latencies, by {stalled} with stalls");
    assert_eq!(even, 0);
    assert!(stalled >= 10, "{stalled}");
}

#[test]
fn a_disk_without_data_has_equal_timing_and_reads_zeroes() {
    let run = |keeps_data| {
        let world = World::calm(1);
        let flash = sim::model::FlashParams::sata();
        let spec = DiskSpec::flash("disk", Sector(1024), flash);
        assert_eq!(spec.queue_depth, 32);
        let file = world.borrow_mut().add_disk(DiskSpec { keeps_data, ..spec });
        let disk = world.borrow().leaf(file);
        assert_eq!(disk.limits().queue_depth, 32);
        let machine = Machine::boot(&world, 1);
        assert_eq!(write(&machine, &disk, 3, 9), Ok(()));
        let found = read(&machine, &disk, 3).expect("reads are fine");
        machine.shut_down();
        let now = world.borrow().now();
        (found, now, world.borrow().stats(file))
    };
    let (with, without) = (run(true), run(false));
    assert_eq!((with.0, without.0), (9, 0));
    assert_eq!((with.1, with.2), (without.1, without.2));
}

#[test]
fn a_failed_write_is_told_at_once_and_may_leave_rubbish() {
    let faults =
        Faults { write_error_per_mille: 1000, rubbish_per_mille: 1000, ..Faults::default() };
    let (world, file, disk) = world(faults);
    let told = Rc::new(RefCell::new(Vec::new()));
    let tell = told.clone();
    let note = move |offset, data: &[u8]| tell.borrow_mut().push((offset, data.len()));
    world.borrow_mut().on_failed_write(file, note);
    let machine = Machine::boot(&world, 1);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        assert_eq!(write(&machine, &disk, 3, 7), Err(Status::Io));
        seen.insert(read(&machine, &disk, 3).expect("reads are fine"));
    }
    assert_eq!(*told.borrow(), vec![(1536, 512); 100]);
    // Rubbish ends in 255.
    assert_eq!(seen.into_iter().collect::<Vec<u8>>(), [0, 7, 255]);
}

/// Whether a write that was in flight when a flush failed is there after a good flush and a cut.
fn survives_a_failed_flush(seed: u64, takes_in_flight: bool) -> bool {
    let world = World::with_swarm(Rng::new(seed), Swarm::CALM);
    let spec = DiskSpec::new("disk", Sector(1024), Box::new(Uniform::new(seed, 1_000, 2_000)));
    let file = world.borrow_mut().add_disk(spec);
    let disk = world.borrow().leaf(file);
    let machine = Machine::boot(&world, 1);
    let faults = Faults {
        flush_error_per_mille: 1000,
        flush_error_takes_in_flight: takes_in_flight,
        ..Faults::default()
    };
    world.borrow_mut().set_faults(file, faults);
    let inner = world.clone();
    let done = machine.block_on(async move {
        let all = Buf::copy_of(&[7; 8 << 10]).into();
        let write = reactor::write(&*disk, Flags::empty(), Class::Normal, Sector(0), all);
        assert!(reactor::flush(&*disk, Class::Normal).await.is_err());
        write.await.expect("the write ends well");
        let faults = Faults { flush_error_takes_in_flight: takes_in_flight, ..Faults::default() };
        inner.borrow_mut().set_faults(file, faults);
        reactor::flush(&*disk, Class::Normal).await.expect("no faults any more");
    });
    done.expect("no power cut");
    machine.power_cut();
    let mut found = [0; 512];
    world.borrow().peek(file, Sector(0), &mut found);
    found[0] == 7
}

#[test]
fn a_failed_flush_may_take_writes_in_flight_with_it() {
    assert!((0..100).all(|seed| survives_a_failed_flush(seed, false)));
    assert!(!(0..100).all(|seed| survives_a_failed_flush(seed, true)));
}
