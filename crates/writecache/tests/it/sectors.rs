// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of sectors on a cache of larger blocks. They were refused, so that the kernel's NBD
//! client could not mount ext4 from a cache of 4096-byte blocks (1 KiB at sector 2: EINVAL), and
//! a door that merged them by itself undid completed writes that came by another door. Both were
//! found by an attack from outside.

use std::rc::Rc;

use crate::common::failing::FailingDevice;
use crate::common::recording::RecordingDevice;
use crate::common::stalled::StalledDevice;
use crate::common::{
    BLOCK, Fixture, at, expect, fill, flush, get, number, pattern, put, say, suspend,
};
use block::{BlockDevice, Buf, Class, Flags, Nanos, Op, Sector, Status, Target};
use sim::Machine;
use writecache::WriteCache;

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

async fn write(dev: &dyn BlockDevice, flags: Flags, at: u64, data: &[u8]) -> Result<(), Status> {
    reactor::write(dev, flags, Class::Normal, Sector(at), Buf::copy_of(data).into()).await
}

async fn read(dev: &dyn BlockDevice, at: u64, len: usize) -> Result<Vec<u8>, Status> {
    let buf = Buf::zeroed(len);
    reactor::read(dev, Class::Foreground, Sector(at), buf.all().into()).await?;
    Ok(buf.read(<[u8]>::to_vec))
}

/// Version 1 of a block with sectors `from..` replaced by `new`.
fn merged(block: u64, from: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = pattern(block, 1);
    bytes[from * 512..from * 512 + new.len()].copy_from_slice(new);
    bytes
}

/// Opens a cache over these devices.
fn open(fixture: &Fixture, origin: Rc<dyn BlockDevice>, device: Rc<dyn BlockDevice>) -> Open {
    let machine = Machine::boot(&fixture.world, 1);
    let cache =
        WriteCache::new("wc", fixture.config.clone(), origin, device, fixture.sectors).unwrap();
    let target = cache.clone();
    machine.block_on(async move { target.resume().await.unwrap() }).unwrap();
    Open { machine, cache }
}

struct Open {
    machine: Machine,
    cache: Rc<WriteCache>,
}

impl Open {
    fn run(self, work: impl AsyncFnOnce(Rc<WriteCache>) + 'static) {
        self.machine.block_on(work(self.cache)).unwrap();
        self.machine.kill();
    }
}

async fn settle() {
    reactor::sleep(Nanos::from_millis(50)).await;
}

#[test]
fn any_sectors_are_read_and_written() {
    for options in [MANUAL, "autocommit_time 1", "cleaner", "ordered"] {
        let fixture = Fixture::small(options);
        let life = fixture.life(async move |cache| {
            assert_eq!(cache.limits().logical_block_bytes, 512);
            assert_eq!(cache.limits().physical_block_bytes, 4096);
            let none = Flags::empty();
            let mut model: Vec<u8> = (0..8).flat_map(|b| pattern(b, 1)).collect();
            fill(&*cache, 0..4, 1).await;
            write(&*cache, none, 32, &model[4 * BLOCK..]).await.unwrap();
            for (n, (from, to)) in
                [(2, 4), (0, 1), (7, 8), (5, 11), (9, 15), (3, 33), (16, 24), (63, 64), (1, 63)]
                    .into_iter()
                    .enumerate()
            {
                let flags = if n % 2 == 0 { none } else { Flags::FUA };
                let new: Vec<u8> = pattern(from, 2 + n as u64).repeat(8);
                let new = &new[..usize::try_from(to - from).unwrap() * 512];
                let bytes = usize::try_from(from).unwrap() * 512;
                write(&*cache, flags, from, new).await.unwrap();
                model[bytes..bytes + new.len()].copy_from_slice(new);
                assert!(read(&*cache, 0, 8 * BLOCK).await.unwrap() == model, "{options} {from}");
                let len = new.len() + if to < 64 { 512 } else { 0 };
                let part = read(&*cache, from, len).await.unwrap();
                assert!(part == model[bytes..bytes + len], "{options}: {from}..{to}");
            }
            for op in [Op::WriteZeroes, Op::Discard] {
                let (first, last) = (13, 27);
                let len = Sector(last - first);
                if op == Op::Discard {
                    let discarded =
                        reactor::discard(&*cache, Class::Normal, Sector(first), len).await;
                    assert!(discarded.is_ok() || options == "ordered");
                } else {
                    let at = Sector(first);
                    reactor::write_zeroes(&*cache, none, Class::Normal, at, len).await.unwrap();
                    model[13 * 512..27 * 512].fill(0);
                }
                let found = read(&*cache, 0, 8 * BLOCK).await.unwrap();
                assert!(found[..16 * 512] == model[..16 * 512], "{options}: before");
                assert!(found[24 * 512..] == model[24 * 512..], "{options}: after");
            }
            flush(&*cache).await;
            say(&cache, "flush").await.unwrap();
            cache.check();
        });
        life.unwrap();
    }
}

#[test]
fn long_zeroes_end_within_blocks() {
    let fixture = Fixture::small(MANUAL);
    let life = fixture.life(async move |cache| {
        fill(&*cache, 0..64, 1).await;
        let (from, len) = (Sector(3), Sector(300));
        reactor::write_zeroes(&*cache, Flags::FUA, Class::Normal, from, len).await.unwrap();
        assert!(get(&*cache, 0).await.unwrap() == merged(0, 3, &[0; 5 * 512]));
        for block in 1..37 {
            assert_eq!(get(&*cache, block).await, Ok(vec![0; BLOCK]), "block {block}");
        }
        assert!(get(&*cache, 37).await.unwrap() == merged(37, 0, &[0; 7 * 512]));
        expect(&*cache, 38..64, 1).await;
    });
    life.unwrap();
}

#[test]
fn a_merged_fua_write_survives_a_power_cut() {
    let fixture = Fixture::small(MANUAL);
    let machine = Machine::boot(&fixture.world, 1);
    let cache = fixture.target();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        fill(&*cache, 0..2, 1).await;
        write(&*cache, Flags::FUA, 2, &[7; 1024]).await.unwrap();
        write(&*cache, Flags::FUA, 29, &[8; 512]).await.unwrap();
        put(&*cache, 0, 3).await.unwrap();
    });
    done.unwrap();
    machine.power_cut();
    let life = fixture.life(async move |cache| {
        let found = get(&*cache, 0).await.unwrap();
        assert!(found == merged(0, 2, &[7; 1024]) || found == pattern(0, 3));
        assert_eq!(read(&*cache, 29, 512).await.unwrap(), [8; 512]);
        assert_eq!(read(&*cache, 28, 512).await.unwrap(), [0; 512]);
    });
    life.unwrap();
}

#[test]
fn a_merge_into_a_rotten_block_fails_and_rewrites_nothing() {
    let fixture = Fixture::small(MANUAL);
    let life = fixture.life(async move |cache| {
        fill(&*cache, 0..3, 1).await;
        suspend(&cache).await;
    });
    life.unwrap();
    fixture.rot_data_of(1);
    let device = RecordingDevice::over(fixture.leaf(fixture.cache));
    let recorder = device.clone();
    open(&fixture, fixture.leaf(fixture.origin), device).run(async move |cache| {
        recorder.take();
        assert_eq!(write(&*cache, Flags::empty(), 8, &[9; 512]).await, Err(Status::Checksum));
        assert_eq!(read(&*cache, 9, 512).await, Err(Status::Checksum));
        let written = recorder.take().into_iter().filter(|(op, _)| *op == Op::Write).count();
        assert_eq!(written, 0, "nothing is written for a merge that can't be made");
        expect(&*cache, 0..1, 1).await;
        expect(&*cache, 2..3, 1).await;
        // A write of the whole block mends it.
        put(&*cache, 1, 4).await.unwrap();
        write(&*cache, Flags::empty(), 8, &[9; 512]).await.unwrap();
        cache.check();
    });
}

#[test]
fn errors_of_a_merge_leave_the_block_as_it_was() {
    let fixture = Fixture::small(MANUAL);
    let (origin, device) = (
        FailingDevice::over(fixture.leaf(fixture.origin)),
        FailingDevice::over(fixture.leaf(fixture.cache)),
    );
    let (o, d) = (origin.clone(), device.clone());
    open(&fixture, origin, device).run(async move |cache| {
        fill(&*cache, 0..1, 1).await;
        o.refuse(Op::Read, 5..6);
        assert_eq!(write(&*cache, Flags::empty(), 40, &[9; 512]).await, Err(Status::Io));
        d.refuse(Op::Write, 0..256);
        assert_eq!(write(&*cache, Flags::empty(), 1, &[9; 512]).await, Err(Status::Io));
        assert_eq!(write(&*cache, Flags::empty(), 17, &[9; 512]).await, Err(Status::Io));
        o.repair();
        d.repair();
        expect(&*cache, 0..1, 1).await;
        assert_eq!(get(&*cache, 2).await, Ok(vec![0; BLOCK]));
        assert_eq!(get(&*cache, 5).await, Ok(vec![0; BLOCK]));
        write(&*cache, Flags::empty(), 40, &[9; 512]).await.unwrap();
        cache.check();
    });
}

/// A block that is being written back is merged at once, and is not lost when that has ended.
#[test]
fn a_merged_fua_write_does_not_wait_for_destage() {
    let fixture = Fixture::small(MANUAL);
    let origin = StalledDevice::over(fixture.leaf(fixture.origin));
    let stalled = origin.clone();
    open(&fixture, origin, fixture.leaf(fixture.cache)).run(async move |cache| {
        fill(&*cache, 0..1, 1).await;
        stalled.hold(|bio| bio.op == Op::Write);
        let other = cache.clone();
        reactor::spawn(async move { drop(say(&other, "flush").await) });
        settle().await;
        assert_eq!(stalled.count(), 1, "block 0 is on its way to the origin");
        write(&*cache, Flags::FUA, 3, &[5; 512]).await.unwrap();
        stalled.release();
        settle().await;
        assert!(get(&*cache, 0).await.unwrap() == merged(0, 3, &[5; 512]));
        assert_eq!(number(&cache, "dirty_blocks"), 1, "the merged version is not on the origin");
        say(&cache, "flush").await.unwrap();
        assert!(get(&*cache, 0).await.unwrap() == merged(0, 3, &[5; 512]));
    });
}

/// What the attack saw: the merge put back what a completed write of the whole block had replaced.
#[test]
fn a_merge_never_undoes_a_completed_write_of_the_block() {
    for (cached, by_part) in [(true, false), (false, false), (true, true), (false, true)] {
        let fixture = Fixture::small(MANUAL);
        let (origin, device) = (
            StalledDevice::over(fixture.leaf(fixture.origin)),
            StalledDevice::over(fixture.leaf(fixture.cache)),
        );
        let (o, d) = (origin.clone(), device.clone());
        open(&fixture, origin, device).run(async move |cache| {
            if cached {
                fill(&*cache, 0..1, 1).await;
            }
            let hold = |bio: &block::Bio| bio.op == Op::Read;
            o.hold(hold);
            d.hold(hold);
            let other = cache.clone();
            reactor::spawn(async move {
                write(&*other, Flags::empty(), 0, &[6; 512]).await.unwrap();
            });
            settle().await;
            assert_eq!(o.count() + d.count(), 1, "the merge reads");
            if by_part {
                // Another merge of the block waits for this one.
                let other = cache.clone();
                reactor::spawn(async move {
                    write(&*other, Flags::empty(), 1, &[7; 512]).await.unwrap();
                });
                settle().await;
                assert_eq!(o.count() + d.count(), 1, "one at a time");
            } else {
                put(&*cache, 0, 2).await.unwrap();
            }
            o.release();
            d.release();
            settle().await;
            let found = get(&*cache, 0).await.unwrap();
            if by_part {
                assert_eq!(found[..1024], [[6; 512], [7; 512]].concat());
            } else {
                assert!(found[512..] == pattern(0, 2)[512..], "cached: {cached}");
            }
            cache.check();
        });
    }
}

#[test]
fn a_discard_beside_a_merge_leaves_no_old_sectors() {
    let fixture = Fixture::small(MANUAL);
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let stalled = device.clone();
    open(&fixture, fixture.leaf(fixture.origin), device).run(async move |cache| {
        fill(&*cache, 0..64, 1).await;
        stalled.hold(|bio| bio.op == Op::Read);
        let other = cache.clone();
        reactor::spawn(async move {
            write(&*other, Flags::empty(), 8, &[6; 512]).await.unwrap();
        });
        settle().await;
        let other = cache.clone();
        reactor::spawn(async move {
            let len = at(64);
            let zeroes = reactor::write_zeroes(&*other, Flags::empty(), Class::Normal, at(0), len);
            zeroes.await.unwrap();
        });
        settle().await;
        stalled.release();
        reactor::sleep(Nanos::from_millis(500)).await;
        let found = get(&*cache, 1).await.unwrap();
        assert!(found[512..] == [0; BLOCK - 512], "sectors that were cleared came back");
    });
}

/// Zeroes of an epoch go to the origin, and out of the map, while a merge that has read what the
/// origin stalled before waits for the cache device: their blocks are then as absent as they were.
#[test]
fn zeroes_beside_a_merge_leave_no_old_sectors() {
    let mut fixture = Fixture::small(&format!("ordered {MANUAL}"));
    fixture.config.set_zeroes_as_data_max(0);
    fixture.world.borrow_mut().poke(fixture.origin, at(1), &pattern(1, 1));
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let (stalled, inner) = (device.clone(), fixture.clone());
    open(&fixture, fixture.leaf(fixture.origin), device).run(async move |cache| {
        stalled.hold_next();
        let other = cache.clone();
        reactor::spawn(async move {
            write(&*other, Flags::empty(), 8, &[6; 512]).await.unwrap();
        });
        settle().await;
        assert_eq!(stalled.count(), 1, "the merged version is on its way to its slot");
        let zeroes = reactor::write_zeroes(&*cache, Flags::FUA, Class::Normal, at(0), at(64));
        zeroes.await.unwrap();
        let other = cache.clone();
        reactor::spawn(async move { drop(say(&other, "flush").await) });
        settle().await;
        stalled.release();
        settle().await;
        let wanted = [[6; 512].as_slice(), &[0; BLOCK - 512]].concat();
        assert!(get(&*cache, 1).await.unwrap() == wanted, "old sectors came back");
        say(&cache, "flush").await.unwrap();
        assert!(inner.origin_block(1) == wanted);
        cache.check();
    });
}

#[test]
fn what_goes_around_the_cache_goes_in_sectors() {
    for (options, flags) in [("cleaner", Flags::empty()), ("metadata_only", Flags::FUA)] {
        let fixture = Fixture::small(&format!("{MANUAL} {options}"));
        let origin = RecordingDevice::over(fixture.leaf(fixture.origin));
        let recorder = origin.clone();
        let inner = fixture.clone();
        open(&fixture, origin, fixture.leaf(fixture.cache)).run(async move |cache| {
            recorder.take();
            write(&*cache, flags, 3, &[4; 512]).await.unwrap();
            write(&*cache, flags, 13, &[5; 6 * 512]).await.unwrap();
            let writes: Vec<_> = recorder
                .take()
                .into_iter()
                .filter(|(op, _)| *op == Op::Write)
                .map(|w| w.1)
                .collect();
            assert_eq!(writes, [3..4, 13..16, 16..19], "{options}");
            flush(&*cache).await;
            assert_eq!(read(&*cache, 2, 1024).await.unwrap()[512..], [4; 512]);
            assert_eq!(inner.peek(inner.origin, 13 * 512, 6 * 512), [5; 6 * 512]);
        });
    }
}
