// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cores and threads: bios cross by mailbox, other threads call in, and calls to a core that has
//! ended return an error.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::common::{self, bytes, to_vec};
use block::{BlockDevice, Buf, Bufs, Class, CoreId, Flags, Limits, Nanos, Sector, Status};
use queue::Mem;
use reactor::{Export, Msg, Reactor, Remote, export, post, read, sleep, spawn, unexport, write};
use uring::{Mailbox, PollLimit, Uring};

/// A device of core 1.
fn remote(export: Export) -> Remote {
    Remote::new(CoreId(1), export, "remote", Limits::new(Sector(1 << 16)))
}

fn enter(id: u16, mailboxes: &[Mailbox]) -> Reactor {
    let driver = Uring::with_mailboxes(CoreId(id), mailboxes.to_vec()).unwrap();
    Reactor::enter(CoreId(id), Box::new(driver))
}

fn mem() -> Rc<dyn BlockDevice> {
    Rc::new(Mem::new("mem", Sector(1 << 16)).unwrap())
}

/// The core that owns a device, until it is asked to stop.
fn serve(mailboxes: &[Mailbox], exported: &mpsc::Sender<Export>, stop: &AtomicBool) {
    let reactor = enter(1, mailboxes);
    exported.send(reactor.on(|| export(mem()))).unwrap();
    assert!(reactor.run(|| stop.load(Ordering::Relaxed)));
}

#[test]
fn bios_go_to_the_owning_core_and_their_completions_return() {
    let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
    let stop = Arc::new(AtomicBool::new(false));
    let (to_owner, stopped) = (mailboxes[1].sender(), stop.clone());
    let (exported, wait_exported) = mpsc::channel();
    thread::scope(|threads| {
        threads.spawn(|| serve(&mailboxes, &exported, &stop));
        let reactor = enter(0, &mailboxes);
        let dev = Rc::new(remote(wait_exported.recv().unwrap()));
        reactor.block_on(async move {
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
    let export = thread::scope(|threads| {
        let ended = threads.spawn(|| enter(1, &mailboxes).on(|| export(mem())));
        ended.join().unwrap()
    });
    let reactor = enter(0, &mailboxes);
    reactor.block_on(async move {
        let dev = remote(export);
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
            entered.send(reactor.on(|| export(mem()))).unwrap();
            wait_posted.recv().unwrap();
            drop(reactor);
        });
        let reactor = enter(0, &mailboxes);
        let dev = remote(wait_entered.recv().unwrap());
        reactor.block_on(async move {
            let waiting = read(&dev, Class::Normal, Sector(0), Buf::alloc(512).into());
            // It goes out with the round that posts it.
            sleep(Nanos::from_millis(1)).await;
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

#[test]
fn a_bio_for_a_removed_export_fails_and_reaches_no_device() {
    let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
    let stop = Arc::new(AtomicBool::new(false));
    let (exported, wait_exported) = mpsc::channel();
    thread::scope(|threads| {
        let (boxes, stop_1) = (&mailboxes, stop.clone());
        threads.spawn(move || {
            let reactor = enter(1, boxes);
            reactor.on(|| {
                let old = export(mem());
                unexport(old);
                exported.send((old, export(mem()))).unwrap();
            });
            assert!(reactor.run(|| stop_1.load(Ordering::Relaxed)));
        });
        let (old, new) = wait_exported.recv().unwrap();
        enter(0, &mailboxes).block_on(async move {
            let late = read(&remote(old), Class::Normal, Sector(0), Buf::alloc(512).into()).await;
            assert_eq!(late, Err(Status::NoDevice));
            let dev = remote(new);
            read(&dev, Class::Normal, Sector(0), Buf::alloc(512).into()).await.unwrap();
            post(CoreId(1), Msg::Call(Box::new(move || stop.store(true, Ordering::Relaxed))));
        });
    });
}

#[test]
fn messages_between_two_cores_arrive_in_order() {
    const MESSAGES: u64 = 20_000;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
    thread::scope(|threads| {
        threads.spawn(|| {
            let reactor = enter(1, &mailboxes);
            reactor.on(|| export(mem()));
            assert!(reactor.run(|| NEXT.load(Ordering::Relaxed) == MESSAGES));
        });
        enter(0, &mailboxes).block_on(async {
            for n in 0..MESSAGES {
                let check = move || assert_eq!(NEXT.fetch_add(1, Ordering::Relaxed), n);
                post(CoreId(1), Msg::Call(Box::new(check)));
                if n % 97 == 0 {
                    // A new round, sometimes with the other core asleep.
                    sleep(Nanos(n % 1000)).await;
                }
            }
        });
    });
}

#[test]
fn a_core_may_follow_another_at_the_same_address() {
    let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
    drop(enter(1, &mailboxes));
    assert!(mailboxes[1].sender().call(|| ()).is_err());
    let reactor = enter(1, &mailboxes);
    let seen = Arc::new(AtomicBool::new(false));
    let see = seen.clone();
    mailboxes[1].sender().call(move || see.store(true, Ordering::Relaxed)).unwrap();
    reactor.on(|| export(mem()));
    assert!(reactor.run(|| seen.load(Ordering::Relaxed)));
}

/// Two cores that poll before they sleep: one sends the other a request at a time, and now and then
/// waits for longer than any poll.
#[test]
fn cores_that_poll_miss_no_message_and_no_deadline() {
    uring::set_poll_limit(PollLimit::Time(Nanos::from_millis(1)));
    let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
    let stop = Arc::new(AtomicBool::new(false));
    let (to_owner, stopped) = (mailboxes[1].sender(), stop.clone());
    let (exported, wait_exported) = mpsc::channel();
    thread::scope(|threads| {
        threads.spawn(|| serve(&mailboxes, &exported, &stop));
        let reactor = enter(0, &mailboxes);
        let dev = remote(wait_exported.recv().unwrap());
        reactor.block_on(async move {
            for round in 0..500 {
                read(&dev, Class::Normal, Sector(0), Buf::alloc(512).into()).await.unwrap();
                if round % 100 == 0 {
                    sleep(Nanos::from_millis(3)).await;
                }
            }
        });
        to_owner.call(move || stopped.store(true, Ordering::Relaxed)).unwrap();
        drop(to_owner);
    });
    uring::set_poll_limit(PollLimit::Time(Nanos::ZERO));
}
