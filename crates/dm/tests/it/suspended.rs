// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Suspended devices below others: who waits for whom, and who does not.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Bench, filled, is_flat, take_log};
use block::{Class, Flags, LocalFuture, Nanos, Op, Sector, Status};
use dm::{Dm, Flat, MappedDevice, Remove, Replicas};
use reactor::BioFuture;

const A: &str = "/ram/a/4096";

/// `low` on a disk, and `mid` and `top` on it.
async fn stack(dm: &Dm) -> [Rc<MappedDevice>; 3] {
    let low = dm.create("low", None, Some(&format!("0 96 linear {A} 0"))).await;
    let mid = dm.create("mid", None, Some("0 96 linear low 0")).await;
    let top = dm.create("top", None, Some("0 96 linear mid 0")).await;
    [low, mid, top].map(|device| device.expect("a table without a mistake"))
}

fn begin_write(dev: &MappedDevice, at: u64) -> BioFuture {
    reactor::write(dev, Flags::empty(), Class::Normal, Sector(at), filled(1, 1))
}

#[test]
fn an_idle_device_is_managed_while_one_below_is_suspended() {
    Bench::new(1).run(|dm, _| async move {
        let [low, mid, top] = stack(&dm).await;
        dm.create("other", None, Some("0 96 linear mid 0")).await.unwrap();
        let other = dm.get("other").unwrap();
        dm.suspend("low").await.unwrap();
        assert!([&mid, &top].iter().all(|d| !is_flat(d)), "their bios are counted");
        // What others sent waits for low. It is not top's.
        let writes = [begin_write(&low, 0), begin_write(&other, 1)];
        dm.suspend("top").await.unwrap();
        dm.load("top", "0 64 linear mid 32").await.unwrap();
        dm.resume("top").await.unwrap();
        dm.remove("top", Remove::IfUnused).await.unwrap();
        dm.resume("low").await.unwrap();
        assert!([&mid, &other].iter().all(|d| is_flat(d)), "flat again");
        for write in writes {
            write.await.unwrap();
        }
    });
}

#[test]
fn a_suspend_waits_for_its_own_bios_that_wait_below() {
    Bench::new(1).run(|dm, state| async move {
        let [low, _, top] = stack(&dm).await;
        dm.suspend("low").await.unwrap();
        let writes: Vec<_> = (0..5).map(|i| begin_write(&top, i)).collect();
        let later = begin_write(&low, 50);
        let suspended = Rc::new(Cell::new(false));
        let (dm2, flag) = (dm.clone(), suspended.clone());
        reactor::spawn(async move {
            dm2.suspend("top").await.unwrap();
            flag.set(true);
        });
        reactor::sleep(Nanos::from_secs(1)).await;
        assert!(!suspended.get());
        // The ways change while they are on theirs.
        dm.set_attribute("top", "mapping", "clone").await.unwrap();
        dm.resume("low").await.unwrap();
        dm.set_attribute("low", "mapping", "clone").await.unwrap();
        reactor::sleep(Nanos(1)).await;
        assert!(!suspended.get() && state.borrow().in_flight() > 0);
        while !suspended.get() {
            reactor::sleep(Nanos(100)).await;
        }
        for write in writes {
            write.await.unwrap();
        }
        later.await.unwrap();
        let order: Vec<_> = take_log(&state, A).iter().map(|l| (l.0, l.1)).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 50].map(|at| (Op::Write, at)));
    });
}

#[test]
fn at_the_end_of_the_program_nothing_waits_for_a_resume() {
    Bench::new(1).run(|dm, _| async move {
        let [low, _, top] = stack(&dm).await;
        dm.suspend("low").await.unwrap();
        let write = begin_write(&top, 0);
        dm.end_waiting();
        dm.suspend("top").await.unwrap();
        assert_eq!(write.await, Err(Status::NoDevice));
        assert_eq!(begin_write(&low, 0).await, Err(Status::NoDevice));
        dm.suspend("mid").await.unwrap();
    });
}

/// Other cores that take their time.
#[derive(Clone, Default)]
struct Slow(Rc<Cell<u32>>);

impl Replicas for Slow {
    fn withdraw(&self, _minor: u32) -> LocalFuture<()> {
        let withdrawing = self.0.clone();
        withdrawing.set(withdrawing.get() + 1);
        Box::pin(async move {
            reactor::sleep(Nanos::from_millis(5)).await;
            withdrawing.set(withdrawing.get() - 1);
        })
    }

    fn publish(&self, _minor: u32, _flat: &Flat) {}
}

#[test]
fn a_suspend_waits_for_a_withdrawal_that_somebody_else_began() {
    Bench::new(1).run(|dm, _| async move {
        let slow = Slow::default();
        dm.set_replicas(Rc::new(slow.clone()));
        stack(&dm).await;
        for (name, device) in [("low", "low"), ("top", "low")] {
            dm.set_attribute(name, "mapping", "clone").await.unwrap();
            reactor::sleep(Nanos::from_millis(1)).await;
            assert!(slow.0.get() > 0, "a core may write by the old mapping still");
            dm.suspend(device).await.unwrap();
            assert_eq!(slow.0.get(), 0);
            dm.resume(device).await.unwrap();
        }
    });
}

/// A FLUSH is in flight, and fails, when the device is suspended; another one comes and waits.
#[test]
fn a_flush_that_waits_fails_if_one_before_it_fails_meanwhile() {
    for mapping in ["in-place", "clone"] {
        Bench::new(1).run(move |dm, state| async move {
            let [low, ..] = stack(&dm).await;
            dm.set_attribute("low", "mapping", mapping).await.unwrap();
            let flush = || reactor::flush(&*low, Class::Normal);
            state.borrow_mut().disks[0].broken = true;
            let in_flight = flush();
            let (inner, is_suspended) = (dm.clone(), Rc::new(Cell::new(false)));
            let flag = is_suspended.clone();
            reactor::spawn(async move {
                inner.suspend("low").await.unwrap();
                flag.set(true);
            });
            reactor::yield_now().await;
            let waits = flush();
            assert_eq!(in_flight.await, Err(Status::Io), "{mapping}");
            state.borrow_mut().disks[0].broken = false;
            while !is_suspended.get() {
                reactor::sleep(Nanos(100)).await;
            }
            let later = flush();
            dm.resume("low").await.unwrap();
            assert_eq!(waits.await, Err(Status::Io), "{mapping}");
            assert_eq!(later.await, Ok(()), "{mapping}: it came after the failure");
            assert_eq!(flush().await, Ok(()), "{mapping}");
        });
    }
}
