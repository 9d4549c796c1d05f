// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What garbage collection costs: bytes written to the store for each byte of a client, and how
//! much of the store is live meanwhile.
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Nanos, Op, Sector};
use objvol::{Fault, Geometry, OpenOptions, Volume, create};
use sim::{Machine, Rng, World, Zipf};

use crate::bucket::{Bucket, Connection};
use crate::fixture::options;

/// Blocks of 4 KiB.
const BLOCKS: u64 = 2048;
const BLOCK_SECTORS: u64 = 8;
const SEGMENT_BYTES: u32 = 64 << 10;
const GEOMETRY: Geometry =
    Geometry { sectors: Sector(BLOCKS * BLOCK_SECTORS), segment_bytes: SEGMENT_BYTES, window: 8 };

/// Costs of random overwrites after the volume was filled once.
#[derive(Debug)]
struct Costs {
    /// Bytes of segments for each byte of the client, per cent.
    written_per_cent: u64,
    /// Live bytes of all bytes of segments in the store, per cent, at the end.
    live_per_cent: u64,
}

fn overwrite(gc_threshold: u32, writes: u64, next: impl Fn(&mut Rng) -> u64 + 'static) -> Costs {
    let world = World::calm(7);
    let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
    let often = OpenOptions { checkpoint_every: 8, checkpoint_worth: 32, ..options("host", None) };
    let options = OpenOptions { gc_threshold, ..often };
    let store = Rc::new(Connection::new(&bucket));
    let (sent, mut rng) = (bucket.clone(), world.borrow_mut().rng.fork());
    let sent_bytes = move || sent.borrow().segment_bytes();
    let written = machine.block_on(async move {
        create(store.clone(), &GEOMETRY, &options).await.unwrap();
        let volume = Volume::open(store, options).await.unwrap();
        let device: Rc<dyn BlockDevice> = volume.clone();
        let data = Buf::zeroed(4096);
        let write = async |block: u64| {
            let range = (Sector(block * BLOCK_SECTORS), Sector(BLOCK_SECTORS));
            let bufs = data.all().into();
            reactor::io(&*device, Op::Write, Flags::empty(), Class::Normal, range, bufs).await
        };
        for block in 0..BLOCKS {
            write(block).await.unwrap();
        }
        let mut before = 0;
        for n in 0..writes {
            if n == writes / 2 {
                before = sent_bytes(); // the first half is for a steady state
            }
            write(next(&mut rng)).await.unwrap();
            if n % 16 == 15 {
                // A client that leaves the store time: about 5 segments a second.
                reactor::sleep(Nanos::from_millis(200)).await;
            }
        }
        let written = sent_bytes() - before;
        // What is garbage by now is deleted.
        reactor::sleep(Nanos::from_secs(5)).await;
        written
    });
    let live = BLOCKS * 4096;
    let mut bucket = bucket.borrow_mut();
    let stored: u64 = bucket
        .names()
        .iter()
        .filter(|name| name.starts_with("segment/"))
        .map(|name| bucket.object(name).unwrap().len() as u64)
        .sum();
    Costs {
        written_per_cent: written.unwrap() * 100 / (writes / 2 * 4096),
        live_per_cent: live * 100 / stored,
    }
}

/// Draws from blocks by Zipf; their order is mixed.
fn zipf() -> impl Fn(&mut Rng) -> u64 {
    let ranks = Zipf::new(BLOCKS, 0.99);
    move |rng| ranks.draw(rng) * 1021 % BLOCKS
}

/// The goals of the design: 2.4 at 75 % live for uniform overwrites, and 1.5 at 60 %. Heads of
/// segments are part of what is written. For zipf 0.99 the goal is 1.5 at 75 %, which takes
/// segments of 4 MiB (decision 0046): here, with 16 blocks in one, 1.77. Without OV-L6 it takes
/// 2.00, and the choice by live data alone, with moved data beside new ones, 2.09.
#[test]
fn collection_costs_what_the_live_share_allows() {
    let uniform = |rng: &mut Rng| rng.below(BLOCKS);
    let costs = overwrite(75, 30_000, uniform);
    assert!(costs.written_per_cent <= 205 && costs.live_per_cent >= 74, "{costs:?}");
    let costs = overwrite(60, 30_000, uniform);
    assert!(costs.written_per_cent <= 150 && costs.live_per_cent >= 59, "{costs:?}");
    let costs = overwrite(75, 30_000, zipf());
    assert!(costs.written_per_cent <= 182 && costs.live_per_cent >= 74, "{costs:?}");
}

/// Bytes of checkpoints for each byte of segments, in thousandths, of a full volume that is
/// overwritten.
fn checkpoints_per_mille(checkpoint_worth: u64) -> u64 {
    let world = World::calm(7);
    let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
    let options = OpenOptions { checkpoint_every: 8, checkpoint_worth, ..options("host", None) };
    let (store, there) = (Rc::new(Connection::new(&bucket)), bucket.clone());
    let mut rng = world.borrow_mut().rng.fork();
    let ran = machine.block_on(async move {
        create(store.clone(), &GEOMETRY, &options).await.unwrap();
        let volume = Volume::open(store, options).await.unwrap();
        let (data, mut seen, mut bytes, mut before) = (Buf::zeroed(4096), BTreeSet::new(), 0, 0);
        for n in 0..8 * BLOCKS {
            let block = if n < BLOCKS { n } else { rng.below(BLOCKS) };
            let range = (Sector(block * BLOCK_SECTORS), Sector(BLOCK_SECTORS));
            let (class, bufs) = (Class::Normal, data.all().into());
            reactor::io(&*volume, Op::Write, Flags::empty(), class, range, bufs).await.unwrap();
            if n % 16 < 15 {
                continue;
            }
            reactor::sleep(Nanos::from_millis(200)).await;
            let mut bucket = there.borrow_mut();
            if n < BLOCKS {
                before = bucket.segment_bytes();
            }
            let names = bucket.names();
            for name in names.iter().filter(|name| name.starts_with("checkpoint/")) {
                if seen.insert(name.clone()) && n >= BLOCKS {
                    bytes += bucket.object(name).unwrap().len() as u64;
                }
            }
        }
        let written = there.borrow().segment_bytes() - before;
        bytes * 1000 / written
    });
    ran.unwrap()
}

#[test]
fn checkpoints_are_little_beside_what_is_written() {
    let waiting = checkpoints_per_mille(32);
    assert!((1..=3).contains(&waiting), "{waiting} of 1000");
    let soon = checkpoints_per_mille(0);
    assert!((waiting..=6).contains(&soon), "nothing to wait for: {soon} of 1000");
}

/// Most bytes of segments in the store for each live byte, per cent, while a client overwrites the
/// volume as fast as it is let.
fn most_stored_per_cent(fault: Option<Fault>) -> u64 {
    let world = World::calm(7);
    let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
    let options = OpenOptions { gc_threshold: 75, checkpoint_every: 8, ..options("host", fault) };
    let store = Rc::new(Connection::new(&bucket));
    let mut rng = world.borrow_mut().rng.fork();
    let most = machine.block_on(async move {
        create(store.clone(), &GEOMETRY, &options).await.unwrap();
        let volume = Volume::open(store, options).await.unwrap();
        let device: Rc<dyn BlockDevice> = volume.clone();
        let data = Buf::zeroed(4096);
        let mut most = 0;
        for n in 0..60_000 {
            let block = if n < BLOCKS { n } else { rng.below(BLOCKS) };
            let range = (Sector(block * BLOCK_SECTORS), Sector(BLOCK_SECTORS));
            let bufs = data.all().into();
            let class = Class::Normal;
            reactor::io(&*device, Op::Write, Flags::empty(), class, range, bufs).await.unwrap();
            if n > BLOCKS && n % 64 == 0 {
                let status = volume.status();
                most = most.max(status.collectable_bytes * 100 / status.live_bytes);
            }
        }
        most
    });
    most.unwrap()
}

#[test]
fn a_fast_writer_waits_for_the_collection_of_its_garbage() {
    // Half of 75 % live are 267 % stored; the window's segments come on top.
    let paced = most_stored_per_cent(None);
    assert!(paced <= 290, "{paced} % of the live bytes are stored");
    let unpaced = most_stored_per_cent(Some(Fault::UnpacedWriters));
    assert!(unpaced > 340, "nothing to pace: {unpaced} %");
}

/// Rounds of the next test whose segments are damaged.
const DAMAGED_ROUNDS: u64 = 4;

/// Damages the data of all segments.
fn damage_segments(bucket: &mut Bucket) {
    for name in bucket.names().iter().filter(|name| name.starts_with("segment/")) {
        let mut object = bucket.object(name).unwrap().to_vec();
        let head = object.len().min(4096);
        object[head..].fill(0xee);
        bucket.force(name, Some(object));
    }
}

/// What can't be collected is no reason to wait: only readers of damaged data get errors.
#[test]
fn garbage_in_damaged_segments_does_not_stop_writers() {
    let world = World::calm(7);
    let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
    let options = OpenOptions { gc_threshold: 90, checkpoint_every: 8, ..options("host", None) };
    let (store, there) = (Rc::new(Connection::new(&bucket)), bucket.clone());
    let written = Rc::new(Cell::new(0));
    let count = written.clone();
    let ran = machine.block_on(async move {
        create(store.clone(), &GEOMETRY, &options).await.unwrap();
        let volume = Volume::open(store, options).await.unwrap();
        reactor::spawn(async move {
            let data = Buf::zeroed(4096);
            for n in 0..10 * BLOCKS {
                let round = (n / BLOCKS).min(DAMAGED_ROUNDS);
                if round < DAMAGED_ROUNDS && n % 512 == 511 {
                    reactor::flush(&*volume, Class::Normal).await.unwrap();
                    damage_segments(&mut there.borrow_mut());
                }
                // Of 15 blocks the first keeps the data of the first round, and so on: all segments
                // of these rounds keep live data.
                let nth = n % BLOCKS % 15;
                let block = if nth < round { n % BLOCKS - nth + 14 } else { n % BLOCKS };
                let range = (Sector(block % BLOCKS * BLOCK_SECTORS), Sector(BLOCK_SECTORS));
                let (class, bufs) = (Class::Normal, data.all().into());
                reactor::io(&*volume, Op::Write, Flags::empty(), class, range, bufs).await.unwrap();
                count.set(count.get() + 1);
            }
        });
        reactor::sleep(Nanos::from_secs(3600)).await;
    });
    ran.unwrap();
    assert_eq!(written.get(), 10 * BLOCKS);
}

/// Segments that the next test damages: more than are collected in a round.
const DAMAGED: u64 = 6;

/// The emptiest segments are damaged: bytes of all others with live data for each live byte, per
/// cent, when collection has come to rest; and how many segments it has met that it can't read.
fn stored_beside_damage(fault: Option<Fault>) -> (u64, u64) {
    let world = World::calm(7);
    let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
    let options = OpenOptions { gc_threshold: 75, checkpoint_every: 8, ..options("host", fault) };
    let (store, there) = (Rc::new(Connection::new(&bucket)), bucket.clone());
    let mut rng = world.borrow_mut().rng.fork();
    let ran = machine.block_on(async move {
        create(store.clone(), &GEOMETRY, &options).await.unwrap();
        let volume = Volume::open(store, options).await.unwrap();
        let data = Buf::zeroed(4096);
        let write = async |block: u64| {
            let range = (Sector(block * BLOCK_SECTORS), Sector(BLOCK_SECTORS));
            let (class, bufs) = (Class::Normal, data.all().into());
            reactor::io(&*volume, Op::Write, Flags::empty(), class, range, bufs).await.unwrap();
        };
        let of_segment = u64::from(SEGMENT_BYTES) / 4096;
        for block in 0..DAMAGED * of_segment {
            write(block).await;
        }
        reactor::flush(&*volume, Class::Normal).await.unwrap();
        damage_segments(&mut there.borrow_mut());
        for block in DAMAGED * of_segment..BLOCKS {
            write(block).await;
        }
        // One block of each damaged segment stays live.
        for block in (0..DAMAGED * of_segment).filter(|block| block % of_segment > 0) {
            write(block).await;
        }
        for _ in 0..BLOCKS / 2 {
            write(rng.range(DAMAGED * of_segment, BLOCKS)).await;
        }
        reactor::sleep(Nanos::from_secs(600)).await;
        let status = volume.status();
        let readable = status.collectable_bytes - DAMAGED * u64::from(SEGMENT_BYTES);
        let met = volume.wait_for_unreadable(0);
        reactor::spawn({
            let volume = volume.clone();
            async move { drop(volume.close().await) }
        });
        let met = met.await.map_or(0, |(met, _)| met);
        assert_eq!(met, status.unreadable_segments);
        (readable * 100 / status.live_bytes, met)
    });
    ran.unwrap()
}

#[test]
fn garbage_is_collected_beside_damaged_segments() {
    let (stored, met) = stored_beside_damage(None);
    assert!(stored <= 136 && met == DAMAGED, "{stored} %, {met} unreadable");
    let (stored, met) = stored_beside_damage(Some(Fault::StopAtDamage));
    assert!(stored > 136 && met == 0, "the fault shows: {stored} %, {met} unreadable");
}

/// It waited for the segments, or the checkpoint, of a collection as long as the store was away.
#[test]
fn a_close_beside_a_collection_ends_without_a_store() {
    let pauses = [0, 50, 1600, 1700, 1750, 1900];
    for (after, pause) in [100, 200, 300].iter().flat_map(|a| pauses.map(|pause| (*a, pause))) {
        let world = World::calm(7);
        let (bucket, machine) = (Bucket::new(&world), Machine::boot(&world, 1));
        let options = options("host", None);
        let patience = Some(Nanos::from_secs(60));
        let options = OpenOptions { checkpoint_every: 8, gc_threshold: 90, patience, ..options };
        let (store, there) = (Rc::new(Connection::new(&bucket)), bucket.clone());
        let mut rng = world.borrow_mut().rng.fork();
        let took = machine.block_on(async move {
            create(store.clone(), &GEOMETRY, &options).await.unwrap();
            let volume = Volume::open(store, options).await.unwrap();
            let data = Buf::zeroed(4096);
            for n in 0..3 * BLOCKS {
                let block = if n < BLOCKS { n } else { rng.below(BLOCKS) };
                let range = (Sector(block * BLOCK_SECTORS), Sector(BLOCK_SECTORS));
                let (class, bufs) = (Class::Normal, data.all().into());
                let written = reactor::io(&*volume, Op::Write, Flags::empty(), class, range, bufs);
                written.await.unwrap();
            }
            reactor::sleep(Nanos::from_millis(pause)).await;
            let began = reactor::now();
            reactor::spawn(async move {
                reactor::sleep(Nanos::from_millis(after)).await;
                there.borrow_mut().set_outage(began + Nanos::from_secs(3600));
            });
            drop(volume.close().await);
            reactor::now().saturating_sub(began)
        });
        let took = took.unwrap();
        assert!(took < Nanos::from_secs(240), "{pause} ms, {after} ms: {took:?}");
    }
}
