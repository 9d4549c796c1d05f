// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cores and threads: bios cross by mailbox, other threads call in, and what is gone says so.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use block::{Bio, BlockDevice, Buf, Bufs, Class, CoreId, Flags, Limits, Nanos, Sector, Status};
use common::{bytes, to_vec};
use queue::Mem;
use reactor::{Msg, Reactor, export, post, read, sleep, spawn, write};
use uring::{Mailbox, Uring};

/// A device of another core.
struct Remote {
    core: CoreId,
    device: usize,
}

impl BlockDevice for Remote {
    fn name(&self) -> &str {
        "remote"
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector(1 << 16))
    }
    fn submit(&self, bio: Bio) {
        post(self.core, Msg::Submit { device: self.device, bio });
    }
}

fn enter(id: u16, mailboxes: &[Mailbox]) -> Reactor {
    let driver = Uring::with_mailboxes(CoreId(id), mailboxes.to_vec()).unwrap();
    Reactor::enter(CoreId(id), Box::new(driver))
}

/// The core that owns a device, until it is told to stop.
fn serve(mailboxes: &[Mailbox], stop: &AtomicBool) {
    let reactor = enter(1, mailboxes);
    let device = reactor.on(|| export(Rc::new(Mem::new("mem", Sector(1 << 16)).unwrap())));
    assert_eq!(device, 0);
    assert!(reactor.run(|| stop.load(Ordering::Relaxed)));
}

#[test]
fn bios_cross_to_the_core_that_owns_the_device_and_their_ends_come_back() {
    let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
    let stop = Arc::new(AtomicBool::new(false));
    let (to_owner, stopped) = (mailboxes[1].sender(), stop.clone());
    thread::scope(|threads| {
        threads.spawn(|| serve(&mailboxes, &stop));
        let reactor = enter(0, &mailboxes);
        reactor.block_on(async {
            let dev: Rc<dyn BlockDevice> = Rc::new(Remote { core: CoreId(1), device: 0 });
            // Several at once, and again and again.
            let left = Rc::new(Cell::new(64));
            for n in 0..64 {
                let (dev, left) = (dev.clone(), left.clone());
                spawn(async move {
                    for round in 0..50 {
                        let data: Bufs = Buf::copy_of(&bytes(4096, n * 50 + round)).into();
                        let at = Sector(n * 8);
                        write(&*dev, Flags::empty(), Class::Normal, at, data.clone())
                            .await
                            .unwrap();
                        let back = Bufs::from(Buf::alloc(4096));
                        read(&*dev, Class::Normal, at, back.clone()).await.unwrap();
                        assert_eq!(to_vec(&back), to_vec(&data));
                    }
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                sleep(Nanos::from_millis(1)).await;
            }
            let beyond = read(&*dev, Class::Normal, Sector(1 << 16), Buf::alloc(512).into()).await;
            assert_eq!(beyond, Err(Status::Invalid));
        });
        to_owner.call(move || stopped.store(true, Ordering::Relaxed)).unwrap();
        drop(to_owner);
    });
}

#[test]
fn a_bio_for_a_core_that_has_ended_fails_instead_of_waiting() {
    let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
    thread::scope(|threads| {
        threads.spawn(|| drop(enter(1, &mailboxes)));
    });
    let reactor = enter(0, &mailboxes);
    reactor.block_on(async {
        let dev = Remote { core: CoreId(1), device: 0 };
        let result = read(&dev, Class::Normal, Sector(0), Buf::alloc(512).into()).await;
        assert_eq!(result, Err(Status::NoDevice));
    });
    assert!(mailboxes[1].sender().call(|| ()).is_err());
}

#[test]
fn a_bio_that_a_core_did_not_take_before_it_ended_fails_too() {
    let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
    let (posted, wait_posted) = mpsc::channel();
    let (entered, wait_entered) = mpsc::channel();
    thread::scope(|threads| {
        let boxes = &mailboxes;
        threads.spawn(move || {
            let reactor = enter(1, boxes);
            entered.send(()).unwrap();
            wait_posted.recv().unwrap();
            drop(reactor);
        });
        let reactor = enter(0, &mailboxes);
        wait_entered.recv().unwrap();
        reactor.block_on(async move {
            let dev = Remote { core: CoreId(1), device: 0 };
            let waiting = read(&dev, Class::Normal, Sector(0), Buf::alloc(512).into());
            posted.send(()).unwrap();
            assert_eq!(waiting.await, Err(Status::NoDevice));
        });
    });
}

#[test]
fn other_threads_call_a_core_that_waits_for_nothing_else() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 1000;
    let driver = Uring::new().unwrap();
    let sender = driver.sender();
    let reactor = Reactor::enter(CoreId(0), Box::new(driver));
    static SUM: AtomicU64 = AtomicU64::new(0);
    let sum = &SUM;
    thread::scope(|threads| {
        for n in 0..THREADS {
            let sender = sender.clone();
            threads.spawn(move || {
                for _ in 0..CALLS {
                    let add = move || {
                        sum.fetch_add(n + 1, Ordering::Relaxed);
                    };
                    sender.call(add).unwrap();
                }
            });
        }
        drop(sender);
        // Ends by itself when the last sender is gone and its calls are done.
        assert!(!reactor.run(|| false));
    });
    assert_eq!(sum.load(Ordering::Relaxed), CALLS * (1 + 2 + 3 + 4));
}

#[test]
fn random_bits_differ() {
    common::on_core(async |_files| {
        assert_ne!(reactor::random(), reactor::random());
    });
}
