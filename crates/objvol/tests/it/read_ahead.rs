// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-ahead: what sequential and random readers cost in requests, what it holds in memory, that
//! it is never old, and that its errors are nobody's.
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Nanos, Op, Sector, Status};
use objvol::{Fault, Geometry, OpenOptions, RequestCounts, SnapshotDevice, Volume, create};
use sim::{Machine, Rng, World, seeds};

use crate::bucket::{Bucket, BucketRef, Connection, Lies};
use crate::fixture;

const MIB: u64 = 1 << 20;
const VOLUME: u64 = 32 * MIB;
/// Bytes of a read.
const READ: u64 = 64 << 10;

/// A bucket with a volume of whole segments, written in order; the first byte of each `READ` is
/// its number.
struct Stage {
    bucket: BucketRef,
    machine: Machine,
    volume: Rc<Volume>,
}

fn options(read_ahead: u64, fault: Option<Fault>) -> OpenOptions {
    OpenOptions { read_ahead, ..fixture::options("host", fault) }
}

async fn write(device: &dyn BlockDevice, at: u64, byte: u8) -> Result<(), Status> {
    let data = Buf::copy_of(&vec![byte; usize::try_from(READ).unwrap()]);
    let range = (Sector(at / 512), Sector(READ / 512));
    let (flags, bufs) = (Flags::empty(), data.all().into());
    reactor::io(device, Op::Write, flags, Class::Normal, range, bufs).await
}

/// The first byte at `at`.
async fn read(device: &dyn BlockDevice, at: u64, len: u64) -> Result<u8, Status> {
    let buf = Buf::alloc(usize::try_from(len).unwrap());
    reactor::read(device, Class::Normal, Sector(at / 512), buf.all().into()).await?;
    Ok(buf.read(|data| data[0]))
}

fn byte_at(at: u64) -> u8 {
    u8::try_from(at / READ % 251).unwrap()
}

impl Stage {
    fn new(seed: u64, read_ahead: u64, fault: Option<Fault>) -> Stage {
        Stage::with(seed, options(read_ahead, fault))
    }

    fn with(seed: u64, options: OpenOptions) -> Stage {
        let world = World::calm(seed);
        let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
        let store = Rc::new(Connection::new(&bucket));
        let made = machine.block_on(async move {
            let geometry = Geometry::new(Sector(VOLUME / 512));
            create(store.clone(), &geometry, &options).await.unwrap();
            let volume = Volume::open(store, options).await.unwrap();
            for at in (0..VOLUME).step_by(READ as usize) {
                write(&*volume, at, byte_at(at)).await.unwrap();
            }
            reactor::flush(&*volume, Class::Normal).await.unwrap();
            volume
        });
        Stage { bucket, machine, volume: made.unwrap() }
    }

    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.machine.block_on(future).unwrap()
    }

    /// GETs of a reader of the whole device.
    fn gets_of_a_scan(&self, device: Rc<dyn BlockDevice>) -> u64 {
        let before = self.bucket.borrow().counts().gets;
        self.run(async move {
            for at in (0..VOLUME).step_by(READ as usize) {
                assert_eq!(read(&*device, at, READ).await, Ok(byte_at(at)), "at {at}");
            }
        });
        self.bucket.borrow().counts().gets - before
    }
}

#[test]
fn a_sequential_reader_takes_a_get_for_each_segment() {
    let stage = Stage::new(1, 0, None);
    assert_eq!(stage.gets_of_a_scan(stage.volume.clone()), VOLUME / READ);
    drop(stage);
    let stage = Stage::new(1, 16 * MIB, None);
    let gets = stage.gets_of_a_scan(stage.volume.clone());
    // 8 segments; the first of them in windows that grow.
    assert!(gets <= 8 + 7, "{gets} GETs");
    stage.run(reactor::sleep(Nanos::from_secs(11)));
    assert_eq!(stage.volume.status().ahead_bytes, 0);
}

#[test]
fn the_reader_of_a_snapshot_takes_as_few() {
    let stage = Stage::new(1, 0, None);
    let (volume, store) = (stage.volume.clone(), Rc::new(Connection::new(&stage.bucket)));
    let snapshot = stage.run(async move {
        volume.create_snapshot("x", 0).await.unwrap();
        SnapshotDevice::open(store, "x", &options(16 * MIB, None)).await.unwrap()
    });
    let gets = stage.gets_of_a_scan(snapshot);
    assert!(gets <= 8 + 7, "{gets} GETs");
}

/// GETs of reads of 4 KiB at random, and their bytes.
fn gets_of_random_reads(read_ahead: u64, fault: Option<Fault>) -> (u64, u64) {
    let counts = Rc::new(RequestCounts::default());
    let options = OpenOptions { counts: counts.clone(), ..options(read_ahead, fault) };
    let stage = Stage::with(1, options);
    let (volume, gets, bytes) = (stage.volume.clone(), counts.gets.get(), counts.get_bytes.get());
    stage.run(async move {
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            let at = rng.below(VOLUME / 4096) * 4096;
            assert_eq!(read(&*volume, at, 4096).await, Ok(byte_at(at)));
        }
    });
    (counts.gets.get() - gets, counts.get_bytes.get() - bytes)
}

#[test]
fn random_reads_read_nothing_ahead() {
    let without = gets_of_random_reads(0, None);
    assert_eq!(without, (1000, 1000 * READ));
    // Some reads follow another one by chance: 8192 places are few.
    let (gets, bytes) = gets_of_random_reads(16 * MIB, None);
    assert!(gets <= 1000 && bytes <= 1000 * READ * 21 / 20, "{gets} GETs of {bytes} bytes");
    let (_, bytes) = gets_of_random_reads(16 * MIB, Some(Fault::ReadAheadOfAll));
    assert!(bytes > 1000 * READ * 23 / 20, "the fault shows: {bytes} bytes");
}

#[test]
fn streams_beside_each_other_keep_within_the_memory() {
    for (memory, gets_max) in [(2 * MIB, VOLUME / READ), (16 * MIB, VOLUME / READ / 4)] {
        let stage = Stage::new(1, memory, None);
        let (volume, before) = (stage.volume.clone(), stage.bucket.borrow().counts().gets);
        let most = stage.run(async move {
            let mut most = 0;
            for at in (0..VOLUME / 8).step_by(READ as usize) {
                for stream in 0..8 {
                    let at = stream * VOLUME / 8 + at;
                    assert_eq!(read(&*volume, at, READ).await, Ok(byte_at(at)));
                    most = most.max(volume.status().ahead_bytes);
                }
            }
            most
        });
        assert!(most <= memory && most > memory / 2, "{most} of {memory}");
        let gets = stage.bucket.borrow().counts().gets - before;
        assert!(gets < gets_max, "{gets} GETs with {memory}");
    }
}

/// Two reads in order, then an overwrite of what was read ahead: what is read there.
fn read_after_an_overwrite(fault: Option<Fault>) -> u8 {
    let stage = Stage::new(1, 16 * MIB, fault);
    let volume = stage.volume.clone();
    stage.run(async move {
        for at in [0, READ, 2 * READ] {
            read(&*volume, at, READ).await.unwrap();
        }
        assert!(volume.status().ahead_bytes > 0);
        write(&*volume, 3 * READ, 255).await.unwrap();
        reactor::flush(&*volume, Class::Normal).await.unwrap();
        read(&*volume, 3 * READ, READ).await.unwrap()
    })
}

#[test]
fn what_was_read_ahead_is_never_old() {
    assert_eq!(read_after_an_overwrite(None), 255);
    assert_eq!(read_after_an_overwrite(Some(Fault::ReadAheadByOldMap)), 3, "the fault shows");
}

/// A scan of a volume whose store loses answers.
fn scan_of_a_lossy_store(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let stage = Stage::new(seed, 4 * MIB, fault);
    let lies = Lies { lost_answer: 300, throttled: 200, ..Lies::default() };
    stage.bucket.borrow_mut().set_lies(lies);
    let volume = stage.volume.clone();
    stage.run(async move {
        for at in (0..VOLUME / 2).step_by(READ as usize) {
            let found = read(&*volume, at, READ).await;
            if found != Ok(byte_at(at)) {
                return Err(format!("at {at}: {found:?}"));
            }
        }
        Ok(())
    })
}

#[test]
fn errors_of_a_read_ahead_are_nobodys() {
    seeds::run(10, |seed| scan_of_a_lossy_store(seed, None));
    let planted = |seed| scan_of_a_lossy_store(seed, Some(Fault::ReadAheadErrors));
    assert!(seeds::first_failure(0..10, planted).is_some(), "the fault shows");
}
