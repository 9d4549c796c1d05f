// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bucket of the simulator: it keeps the promises of the border, and it tells every lie.
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{Buf, Nanos};
use objvol::{ObjectStore, StoreError};
use sim::{Machine, World, seeds};

use crate::bucket::{Bucket, Connection, Lies};

const HOURS: Nanos = Nanos::from_secs(3 * 3600);

fn bytes(buf: &Buf) -> Vec<u8> {
    buf.read(<[u8]>::to_vec)
}

#[test]
fn an_honest_bucket_does_what_is_asked() {
    let world = World::new(1);
    let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
    let store = Connection::new(&bucket);
    let done = machine.block_on(async move {
        let put = async |name: &str, text: &str| {
            store.put_absent(name, Buf::copy_of(text.as_bytes())).await
        };
        for n in 10..25 {
            put(&format!("a/{n}"), "text").await.unwrap();
        }
        assert_eq!(put("a/10", "other").await, Err(StoreError::Exists));
        assert_eq!(bytes(&store.get("a/10", 1..3).await.unwrap()), b"ex");
        assert_eq!(bytes(&store.get("a/10", 1..99).await.unwrap()), b"ext");
        assert_eq!(store.get("a/10", 4..9).await.map(|b| bytes(&b)), Err(StoreError::NotFound));
        assert_eq!(store.get("a/9", 0..1).await.map(|b| bytes(&b)), Err(StoreError::NotFound));
        store.delete("a/11").await.unwrap();
        store.delete("a/11").await.unwrap();
        let (mut names, mut after) = (Vec::new(), "a/10".to_owned());
        loop {
            let page = store.list("a/", &after).await.unwrap();
            names.extend(page.objects.into_iter().map(|(name, _)| name));
            if !page.has_more {
                break;
            }
            after.clone_from(names.last().unwrap());
        }
        assert_eq!(names, (12..25).map(|n| format!("a/{n}")).collect::<Vec<_>>());
    });
    done.unwrap();
}

/// Every outcome comes, and of all requests for a name at most one has created it: whoever reads
/// back what is there knows whose it is.
#[test]
fn of_all_puts_of_a_name_one_wins_whatever_was_answered() {
    let answers = Rc::new(RefCell::new(BTreeSet::new()));
    let seen = answers.clone();
    seeds::run(60, move |seed| {
        let world = World::new(seed);
        let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
        let lies = Lies {
            lost_request: 150,
            lost_answer: 150,
            late: 150,
            doubled: 100,
            doubled_answer: 150,
            conflict: 100,
            throttled: 100,
            slow: 100,
        };
        let drawn = Lies::draw(&mut world.borrow_mut().rng);
        bucket.borrow_mut().set_lies(if seed % 4 == 0 { drawn } else { lies });
        let (store, seen) = (Connection::new(&bucket), seen.clone());
        let there = bucket.clone();
        let ran = machine.block_on(async move {
            for n in 0..5 {
                let name = format!("n/{n}");
                let mut has_won = None;
                for writer in ["a", "b"] {
                    let answer = store.put_absent(&name, Buf::copy_of(writer.as_bytes())).await;
                    let object = there.borrow_mut().object(&name);
                    let is_own = object.as_deref() == Some(writer.as_bytes());
                    seen.borrow_mut().insert(format!("{answer:?} {is_own}"));
                    assert!(answer.is_err() || is_own, "a success is one");
                    has_won = has_won.or(object);
                }
                reactor::sleep(HOURS).await;
                let object = there.borrow_mut().object(&name);
                assert!(has_won.is_none() || object == has_won, "an object never changes");
            }
        });
        ran.map_err(|end| format!("{end:?}"))
    });
    if seeds::count(60) < 60 {
        return; // too few to see all
    }
    let all = [
        "Ok(()) true",
        "Err(Exists) true",
        "Err(Exists) false",
        "Err(Conflict) false",
        "Err(Throttled) false",
        "Err(Unknown) true",
        "Err(Unknown) false",
    ];
    for answer in all {
        assert!(answers.borrow().contains(answer), "{answer}: {answers:?}");
    }
}

#[test]
fn a_put_lands_though_its_sender_has_died() {
    let world = World::new(3);
    let bucket = Bucket::new(&world);
    bucket.borrow_mut().set_lies(Lies { late: 1000, ..Lies::default() });
    let machine = Machine::boot(&world, 1);
    let store = Connection::new(&bucket);
    machine.spawn(0, async move {
        let _ = store.put_absent("late", Buf::copy_of(b"x")).await;
    });
    let sent = bucket.clone();
    machine.run(|| sent.borrow().counts().puts == 1);
    assert!(bucket.borrow_mut().names().is_empty());
    machine.kill();
    let machine = Machine::boot(&world, 1);
    machine.block_on(reactor::sleep(HOURS)).unwrap();
    assert_eq!(bucket.borrow_mut().names(), ["late"]);
}

#[test]
fn what_others_do_to_a_bucket_shows_at_once() {
    let world = World::new(5);
    let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
    bucket.borrow_mut().force("a", Some(vec![1]));
    bucket.borrow_mut().land_later("b", &[2], Nanos::from_secs(9));
    assert_eq!(bucket.borrow_mut().names(), ["a"]);
    bucket.borrow_mut().force("a", None);
    machine.block_on(reactor::sleep(Nanos::from_secs(10))).unwrap();
    assert_eq!(bucket.borrow_mut().names(), ["b"]);
}

#[test]
fn an_outage_ends_and_a_pause_holds_answers_back() {
    let world = World::new(4);
    let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
    bucket.borrow_mut().set_outage(Nanos::from_secs(60));
    let store = Connection::new(&bucket);
    let done = machine.block_on(async move {
        let put = async |name| store.put_absent(name, Buf::copy_of(b"x")).await;
        assert_eq!(put("a").await, Err(StoreError::Unknown));
        reactor::sleep(Nanos::from_secs(60)).await;
        assert_eq!(put("a").await, Ok(()));
        store.pause_until(reactor::now() + HOURS);
        let began = reactor::now();
        assert_eq!(put("b").await, Ok(()));
        assert!(reactor::now() >= began + HOURS);
    });
    done.unwrap();
}
