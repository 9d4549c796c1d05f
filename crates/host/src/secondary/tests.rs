// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads as secondary cores while core 0 changes the tables of their devices.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use block::{Base, BlockDevice, Buf, Bufs, Class, Flags, Nanos, Sector, Status};
use dm::{Dm, Remove};
use reactor::{Reactor, flush, read, sleep, spawn, write};
use uring::Uring;

use super::*;
use crate::leaves::Leaves;

/// Core 0 on this thread.
struct World {
    reactor: Reactor,
    pool: Arc<CorePool>,
    dm: Rc<Dm>,
    leaves: Leaves,
    owner: Rc<Owner>,
}

impl World {
    fn new() -> World {
        let pool = CorePool::new(4).unwrap();
        let driver = Uring::with_mailboxes(CoreId(0), pool.mailboxes()).unwrap();
        let leaves = Leaves::new(driver.files());
        let reactor = Reactor::enter(CoreId(0), Box::new(driver));
        let dm = Dm::new(Rc::new(leaves.clone()));
        let owner = Owner::new(pool.clone(), &dm, leaves.clone());
        World { reactor, pool, dm, leaves, owner }
    }

    fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.reactor.block_on(future)
    }

    fn create(&self, name: &'static str, table: &str) {
        let (dm, table) = (self.dm.clone(), table.to_owned());
        self.block_on(async move { dm.create(name, None, Some(&table)).await.map(drop) }).unwrap();
    }

    fn lease(&self, name: &str) -> Lease {
        self.reactor.on(|| self.owner.lease(self.dm.open(name).unwrap()))
    }

    /// Serves as core 0 until the thread has ended.
    fn join<T>(&self, thread: thread::ScopedJoinHandle<'_, T>) -> T {
        while !thread.is_finished() {
            self.block_on(sleep(Nanos::from_millis(1)));
        }
        thread.join().unwrap()
    }

    fn first_sectors(&self, name: &'static str) -> [u64; 4] {
        let dm = self.dm.clone();
        self.block_on(async move { numbers_of(&*dm.get(name).unwrap()).await })
    }

    fn end(self) {
        // Devices go while their core is there.
        let World { reactor, dm, leaves, owner, pool: _ } = self;
        reactor.on(|| drop((dm, leaves, owner)));
    }
}

/// The number that a sector holds.
async fn number(device: &dyn BlockDevice, at: Sector) -> u64 {
    let bufs = Bufs::from(Buf::zeroed(512));
    read(device, Class::Normal, at, bufs.clone()).await.unwrap();
    let mut bytes = [0; 512];
    bufs.copy_to(&mut bytes);
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Those of the first four sectors.
async fn numbers_of(device: &dyn BlockDevice) -> [u64; 4] {
    let mut out = [0; 4];
    for (n, out) in out.iter_mut().enumerate() {
        *out = number(device, Sector(n as u64)).await;
    }
    out
}

async fn put(device: &dyn BlockDevice, at: Sector, number: u64) -> Result<(), Status> {
    let mut bytes = [0; 512];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let bufs = Buf::copy_of(&bytes).into();
    write(device, Flags::empty(), Class::Normal, at, bufs).await
}

/// What a replica does at the moment.
fn is_local(secondary: &SecondaryCore, handle: &DeviceHandle) -> bool {
    secondary.device(handle);
    secondary.has_local_mapping(handle)
}

#[test]
fn a_core_uses_its_own_mapping_and_sees_the_same_bytes() {
    let world = World::new();
    world.create("a", "0 1024 linear mem:1M,a 0\n1024 1024 linear mem:1M,b 0");
    let lease = world.lease("a");
    let handle = lease.handle();
    thread::scope(|threads| {
        let pool = world.pool.clone();
        let secondary = threads.spawn(move || {
            let secondary = pool.enter().unwrap();
            let device = secondary.device(&handle);
            assert!(is_local(&secondary, &handle));
            assert_eq!(device.limits().capacity, Sector(2048));
            secondary.block_on(async move {
                // Across the two lines of the table.
                for n in 1020..1030 {
                    put(&*device, Sector(n), n + 1).await.unwrap();
                }
                flush(&*device, Class::Normal).await.unwrap();
                assert_eq!(put(&*device, Sector(2048), 1).await, Err(Status::Invalid));
            });
        });
        // No help of core 0 is needed.
        secondary.join().unwrap();
    });
    let dm = world.dm.clone();
    world.block_on(async move {
        let device = dm.get("a").unwrap();
        for n in 1020..1030 {
            assert_eq!(number(&*device, Sector(n)).await, n + 1);
        }
    });
    world.reactor.on(|| drop(lease));
    world.end();
}

#[test]
fn a_shared_file_is_free_for_others_when_core_0_closes_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let world = World::new();
    let table = format!("0 2048 linear {} 0", path.display());
    world.create("f", &table);
    let lease = world.lease("f");
    let handle = lease.handle();
    let (go, wait) = mpsc::channel::<()>();
    thread::scope(|threads| {
        let pool = world.pool.clone();
        let (wrote, wait_wrote) = mpsc::channel();
        let secondary = threads.spawn(move || {
            let secondary = pool.enter().unwrap();
            assert!(is_local(&secondary, &handle));
            let device = secondary.device(&handle);
            secondary.block_on(async move { put(&*device, Sector(3), 33).await }).unwrap();
            wrote.send(()).unwrap();
            // Asleep elsewhere, with its base of the file.
            wait.recv().unwrap();
            let device = secondary.device(&handle);
            secondary.block_on(async move { put(&*device, Sector(3), 44).await })
        });
        wait_wrote.recv().unwrap();
        assert_eq!(world.first_sectors("f"), [0, 0, 0, 33]);
        let dm = world.dm.clone();
        world.reactor.on(|| drop(lease));
        world.block_on(async move { dm.remove("f", Remove::IfUnused).await }).unwrap();
        // Its lock is free: it can be opened again.
        world.create("g", &table);
        go.send(()).unwrap();
        assert_eq!(world.join(secondary), Err(Status::NoDevice));
    });
    assert_eq!(world.first_sectors("g"), [0, 0, 0, 33]);
    world.end();
}

#[test]
fn the_throttle_of_a_file_is_one_for_all_cores() {
    const MODE: &str = "queue/wbt_mode";
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let world = World::new();
    world.create("f", &format!("0 2048 linear {} 0", path.display()));
    let leaf = world.leaves.opened().pop().unwrap();
    let base: Rc<dyn Base> = leaf.clone();
    let shared = world.leaves.share(&base).unwrap();
    let (set, wait_set) = mpsc::channel::<()>();
    thread::scope(|threads| {
        let pool = world.pool.clone();
        let (seen, wait_seen) = mpsc::channel();
        let secondary = threads.spawn(move || {
            let secondary = pool.enter().unwrap();
            let twin = secondary.open(&shared);
            let mode = || twin.wbt().unwrap().get(MODE).unwrap();
            seen.send(mode()).unwrap();
            wait_set.recv().unwrap();
            let now = mode();
            secondary.block_on(async move { drop(twin) });
            now
        });
        assert_eq!(wait_seen.recv().unwrap(), "[tail] kernel");
        world.reactor.on(|| leaf.wbt().unwrap().set(MODE, "kernel")).unwrap();
        set.send(()).unwrap();
        assert_eq!(world.join(secondary), "tail [kernel]");
    });
    world.reactor.on(|| drop((leaf, base)));
    world.end();
}

#[test]
fn a_leaf_is_leased_and_its_failures_are_reported_to_core_0() {
    let world = World::new();
    world.create("n", "0 1024 linear mem:1M,n 0");
    let leaf = world.leaves.opened().pop().unwrap();
    let lease = world.reactor.on(|| world.owner.lease_leaf(&leaf));
    let handle = lease.handle();
    thread::scope(|threads| {
        let pool = world.pool.clone();
        let secondary = threads.spawn(move || {
            let secondary = pool.enter().unwrap();
            assert!(is_local(&secondary, &handle));
            let device = secondary.device(&handle);
            assert_eq!(device.limits().capacity, Sector(2048));
            secondary.block_on(async move {
                put(&*device, Sector(2), 22).await.unwrap();
                assert_eq!(put(&*device, Sector(2048), 1).await, Err(Status::Invalid));
            });
        });
        world.join(secondary);
    });
    world.block_on(sleep(Nanos::from_millis(1)));
    assert_eq!(leaf.stats().last_error().unwrap().sector, Sector(2048));
    assert_eq!(world.first_sectors("n"), [0, 0, 22, 0]);
    world.reactor.on(|| drop((lease, leaf)));
    world.end();
}

#[test]
fn a_device_that_is_no_mapping_of_leaves_goes_through_core_0() {
    let world = World::new();
    world.create("d", "0 2048 delay mem:1M,d 0 1");
    world.create("on_d", "0 2048 linear d 0");
    let lease = world.lease("on_d");
    let handle = lease.handle();
    thread::scope(|threads| {
        let pool = world.pool.clone();
        let secondary = threads.spawn(move || {
            let secondary = pool.enter().unwrap();
            assert!(!is_local(&secondary, &handle));
            let device = secondary.device(&handle);
            secondary.block_on(async move {
                put(&*device, Sector(5), 55).await.unwrap();
                assert_eq!(number(&*device, Sector(5)).await, 55);
            });
        });
        world.join(secondary);
    });
    world.reactor.on(|| drop(lease));
    world.end();
}

#[test]
fn a_sleeping_core_delays_no_swap_and_then_uses_the_new_table() {
    let world = World::new();
    for (name, table) in [("a", "0 8 linear mem:4K,a 0"), ("b", "0 8 linear mem:4K,b 0")] {
        world.create(name, table);
    }
    world.create("d", "0 8 linear a 0");
    let lease = world.lease("d");
    let handle = lease.handle();
    let (go, wait) = mpsc::channel::<()>();
    thread::scope(|threads| {
        let pool = world.pool.clone();
        let (wrote, wait_wrote) = mpsc::channel();
        let secondary = threads.spawn(move || {
            let secondary = pool.enter().unwrap();
            let device = secondary.device(&handle);
            let device_ = device.clone();
            secondary.block_on(async move { put(&*device_, Sector(0), 1).await }).unwrap();
            wrote.send(()).unwrap();
            wait.recv().unwrap();
            secondary.block_on(async move { put(&*device, Sector(0), 2).await }).unwrap();
            assert!(is_local(&secondary, &handle));
        });
        wait_wrote.recv().unwrap();
        let dm = world.dm.clone();
        world.block_on(async move {
            dm.load("d", "0 8 linear b 0").await.unwrap();
            dm.resume("d").await.unwrap();
        });
        go.send(()).unwrap();
        world.join(secondary);
    });
    assert_eq!(world.first_sectors("a")[0], 1);
    assert_eq!(world.first_sectors("b")[0], 2);
    world.reactor.on(|| drop(lease));
    world.end();
}

#[test]
fn bios_of_a_core_wait_while_the_device_is_suspended() {
    let world = World::new();
    world.create("d", "0 8 linear mem:4K,d 0");
    let lease = world.lease("d");
    let handle = lease.handle();
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        let (pool, done) = (world.pool.clone(), &done);
        let dm = world.dm.clone();
        world.block_on(async move { dm.suspend("d").await }).unwrap();
        let secondary = threads.spawn(move || {
            let secondary = pool.enter().unwrap();
            assert!(!is_local(&secondary, &handle));
            let device = secondary.device(&handle);
            secondary.block_on(async move { put(&*device, Sector(0), 7).await }).unwrap();
            done.store(true, Ordering::Release);
        });
        world.block_on(sleep(Nanos::from_millis(20)));
        assert!(!done.load(Ordering::Acquire));
        let dm = world.dm.clone();
        world.block_on(async move { dm.resume("d").await }).unwrap();
        world.join(secondary);
    });
    assert_eq!(world.first_sectors("d")[0], 7);
    world.reactor.on(|| drop(lease));
    world.end();
}

#[test]
fn an_ended_lease_is_not_a_new_device_with_its_minor_number() {
    let world = World::new();
    world.create("d", "0 8 linear mem:4K,d 0");
    let lease = world.lease("d");
    let handle = lease.handle();
    let (go, wait) = mpsc::channel::<()>();
    thread::scope(|threads| {
        let pool = world.pool.clone();
        let secondary = threads.spawn(move || {
            let secondary = pool.enter().unwrap();
            let device = secondary.device(&handle);
            wait.recv().unwrap();
            let (old, new) = (device, secondary.device(&handle));
            secondary.block_on(async move {
                assert_eq!(put(&*old, Sector(0), 1).await, Err(Status::NoDevice));
                assert_eq!(put(&*new, Sector(0), 1).await, Err(Status::NoDevice));
            });
        });
        let dm = world.dm.clone();
        world.reactor.on(|| drop(lease));
        world.block_on(async move { dm.remove("d", Remove::IfUnused).await }).unwrap();
        world.create("e", "0 8 linear mem:4K,e 0");
        go.send(()).unwrap();
        world.join(secondary);
    });
    assert_eq!(world.first_sectors("e")[0], 0);
    world.end();
}

/// Writes of a secondary core thread: each to its own sector, counting up, two at a time.
fn write_for_ever(
    pool: &Arc<CorePool>,
    handle: &DeviceHandle,
    at: u64,
    stop: &AtomicBool,
) -> [u64; 2] {
    let secondary = pool.enter().unwrap();
    let mut numbers = [0; 2];
    while !stop.load(Ordering::Relaxed) {
        let device = secondary.device(handle);
        numbers = secondary.block_on(async move {
            let done = Rc::new(RefCell::new(numbers));
            let left = Rc::new(Cell::new(2));
            for lane in 0..2 {
                let (device, done, left) = (device.clone(), done.clone(), left.clone());
                spawn(async move {
                    for _ in 0..50 {
                        let next = done.borrow()[lane] + 1;
                        let sector = Sector(at + lane as u64);
                        assert_eq!(put(&*device, sector, next).await, Ok(()));
                        // The last completed write is there, under any table.
                        assert_eq!(number(&*device, sector).await, next);
                        done.borrow_mut()[lane] = next;
                    }
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                sleep(Nanos::from_micros(20)).await;
            }
            done.take()
        });
    }
    numbers
}

/// Ends the process when core 0 panics: its secondary cores would wait for it for ever.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::exit(101);
        }
    }
}

/// Two secondary cores write and read while core 0 swaps the device between two leaves that are
/// mirrors: whenever the device is suspended both hold the same, copied by core 0.
fn swap_under_load(leaf_a: &str, leaf_b: &str, swaps: u64) {
    let world = World::new();
    world.create("a", &format!("0 8 linear {leaf_a} 0"));
    world.create("b", &format!("0 8 linear {leaf_b} 0"));
    world.create("mid", "0 8 linear a 0");
    world.create("top", "0 8 linear mid 0");
    let lease = world.lease("top");
    let stop = AtomicBool::new(false);
    let numbers = thread::scope(|threads| {
        let _end = EndOnPanic;
        let writers: Vec<_> = [0, 2]
            .map(|at| {
                let (pool, handle, stop) = (world.pool.clone(), lease.handle(), &stop);
                threads.spawn(move || write_for_ever(&pool, &handle, at, stop))
            })
            .into();
        for swap in 0..swaps {
            let (old, new) = if swap % 2 == 0 { ("a", "b") } else { ("b", "a") };
            let dm = world.dm.clone();
            // Sometimes the device that the secondary cores use, sometimes the one below.
            let name = if swap % 3 == 0 { "top" } else { "mid" };
            world.block_on(async move {
                dm.suspend(name).await.unwrap();
                let (from, to) = (dm.get(old).unwrap(), dm.get(new).unwrap());
                let all = Bufs::from(Buf::zeroed(4096));
                read(&*from, Class::Normal, Sector(0), all.clone()).await.unwrap();
                write(&*to, Flags::empty(), Class::Normal, Sector(0), all.clone()).await.unwrap();
                dm.load("mid", &format!("0 8 linear {new} 0")).await.unwrap();
                dm.resume("mid").await.unwrap();
                dm.resume(name).await.unwrap();
                // From here on nothing may reach the old leaf.
                let before = numbers_of(&*from).await;
                sleep(Nanos::from_micros(300 * (swap % 5))).await;
                let after = numbers_of(&*from).await;
                assert_eq!(before, after, "a write reached the old leaf after the swap");
            });
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|w| world.join(w)).collect::<Vec<u64>>()
    });
    assert!(numbers.iter().all(|n| *n > 0), "{numbers:?}");
    assert_eq!(world.first_sectors("top")[..], numbers);
    world.reactor.on(|| drop(lease));
    world.end();
}

#[test]
fn memory_tables_are_swapped_under_load_and_no_write_is_lost() {
    swap_under_load("mem:4K,a", "mem:4K,b", 400);
}

#[test]
fn file_tables_are_swapped_under_load_and_no_write_is_lost() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, vec![0; 4096]).unwrap();
        path.display().to_string()
    };
    swap_under_load(&path("a"), &path("b"), 60);
}

#[test]
fn a_core_ends_with_its_thread_and_its_slot_is_used_again() {
    let pool = CorePool::new(1).unwrap();
    let seen = AtomicU64::new(0);
    for _ in 0..3 {
        thread::scope(|threads| {
            threads.spawn(|| {
                for _ in 0..2 {
                    let core = pool.on_this_thread(|secondary| {
                        secondary.block_on(sleep(Nanos::from_micros(1)));
                        secondary.core()
                    });
                    assert_eq!(core.unwrap(), CoreId(1));
                }
                let full = pool.enter().unwrap_err().to_string();
                assert_eq!(full, "no core is free: there is room for 1");
                seen.fetch_add(1, Ordering::Relaxed);
            });
        });
        // The scope waits for the function, not for the thread's variables.
        while pool.taken.lock().unwrap()[0] {
            thread::yield_now();
        }
    }
    assert_eq!(seen.load(Ordering::Relaxed), 3);
}
