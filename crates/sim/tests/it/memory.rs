// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Persistent memory as the machine sees it: what a client that fences wrongly loses, and what one
//! that trusts a sector to be whole gets.

use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Class, Flags, Sector, Status};
use sim::{Disk, DiskSpec, Machine, PowerCut, RunEnd, World, WorldRef, seeds};

const CLASS: Class = Class::Normal;
const SLOTS: u64 = 64;

/// A log of one number a sector, each in all words of its sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// Fences before it counts an entry as there; takes an entry for one if all its words agree.
    Careful,
    ByFua,
    /// Counts it without a fence.
    ForgetsTheFence,
    /// Sends the fence with the write.
    FencesTooEarly,
    /// Looks at the first word of an entry only.
    TrustsSectors,
}

async fn append(disk: &Disk, client: Client, nth: u64) -> Result<(), Status> {
    let words = vec![nth + 1; 64];
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let flags = if client == Client::ByFua { Flags::FUA } else { Flags::empty() };
    let write = reactor::write(disk, flags, CLASS, Sector(nth), Buf::copy_of(&bytes).into());
    match client {
        Client::Careful | Client::TrustsSectors => {
            write.await?;
            reactor::flush(disk, CLASS).await
        }
        Client::ByFua | Client::ForgetsTheFence => write.await,
        Client::FencesTooEarly => {
            let fence = reactor::flush(disk, CLASS);
            write.await?;
            fence.await
        }
    }
}

/// How many entries there are, as the client would say after a crash.
fn entries(world: &WorldRef, client: Client, file: reactor::FileId) -> Result<u64, String> {
    for nth in 0..SLOTS {
        let mut bytes = [0; 512];
        world.borrow().peek(file, Sector(nth), &mut bytes);
        let words: Vec<u64> =
            bytes.chunks(8).map(|b| u64::from_le_bytes(b.try_into().expect("eight"))).collect();
        let is_entry = |word: &u64| *word == nth + 1;
        let looked_at = if client == Client::TrustsSectors { &words[..1] } else { &words[..] };
        let is_there = looked_at.iter().all(is_entry);
        if !is_there {
            return Ok(nth);
        }
        if !words.iter().all(is_entry) {
            return Err(format!("entry {nth} is torn: {words:?}"));
        }
    }
    Ok(SLOTS)
}

fn simulate(seed: u64, client: Client) -> Result<(), String> {
    let world = World::new(seed);
    let file = world.borrow_mut().add_swarm_memory("pmem", Sector(SLOTS));
    let disk = world.borrow().leaf(file);
    let machine = Machine::boot(&world, 1);
    let cut = world.borrow_mut().rng.below(200);
    world.borrow_mut().power_cut_at(Some(PowerCut::Step(cut)));
    let acknowledged = Rc::new(Cell::new(0));
    let count = acknowledged.clone();
    machine.spawn(0, async move {
        for nth in 0..SLOTS {
            append(&disk, client, nth).await.expect("no faults");
            count.set(nth + 1);
        }
    });
    let ended = machine.run(|| acknowledged.get() == SLOTS);
    assert_ne!(ended, RunEnd::Idle);
    machine.power_cut();
    let (found, acknowledged) = (entries(&world, client, file)?, acknowledged.get());
    if found < acknowledged {
        return Err(format!("{acknowledged} entries were acknowledged, {found} are there"));
    }
    Ok(())
}

#[test]
fn who_fences_and_checks_each_word_loses_nothing() {
    seeds::run(300, |seed| simulate(seed, Client::Careful));
    seeds::run(300, |seed| simulate(seed, Client::ByFua));
}

fn must_find(client: Client, why: &str) {
    let found = seeds::first_failure(0..300, |seed| simulate(seed, client));
    let found = found.unwrap_or_else(|| panic!("{client:?} was not found in 300 seeds"));
    assert!(found.why.contains(why), "{client:?}: {}", found.why);
}

#[test]
fn a_missing_fence_is_found() {
    must_find(Client::ForgetsTheFence, "were acknowledged");
}

#[test]
fn a_fence_that_does_not_wait_for_the_write_is_found() {
    must_find(Client::FencesTooEarly, "were acknowledged");
}

#[test]
fn an_entry_taken_by_its_first_word_is_found_torn() {
    must_find(Client::TrustsSectors, "is torn");
}

#[test]
fn memory_says_what_it_is_and_knows_no_zeroes() {
    let world = World::calm(1);
    let file = world.borrow_mut().add_swarm_memory("pmem", Sector(64));
    let disk = world.borrow().leaf(file);
    assert_eq!(block::BlockDevice::limits(&*disk).atomic_write_unit_bytes, 8);
    let machine = Machine::boot(&world, 1);
    let answers = machine.block_on(async move {
        let zeroes = reactor::write_zeroes(&*disk, Flags::empty(), CLASS, Sector(0), Sector(8));
        (zeroes.await, reactor::discard(&*disk, CLASS, Sector(0), Sector(8)).await)
    });
    let no = Err(Status::NotSupported);
    assert_eq!(answers, Ok((no, no)));
}

#[test]
fn a_write_is_seen_by_reads_before_it_has_completed() {
    let world = World::calm(1);
    let model = Box::new(sim::model::Uniform::new(1, 1_000_000, 1_000_001));
    let file = world.borrow_mut().add_disk(DiskSpec::memory("pmem", Sector(8), model));
    let disk = world.borrow().leaf(file);
    let machine = Machine::boot(&world, 1);
    let seen = machine.block_on({
        let world = world.clone();
        async move {
            let data = Buf::copy_of(&[7; 512]);
            let write = reactor::write(&*disk, Flags::empty(), CLASS, Sector(0), data.into());
            reactor::sleep(block::Nanos(10)).await;
            let mut byte = [0];
            world.borrow().peek(file, Sector(0), &mut byte);
            write.await.map(|()| byte[0])
        }
    });
    assert_eq!(seen, Ok(Ok(7)));
}
