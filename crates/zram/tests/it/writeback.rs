// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback and read-back as a user sees them: data and writes of the device, exact limits, and
//! errors; and the bugs that zram in Linux has had.

use std::cell::Cell;
use std::rc::Rc;

use crate::fixture::{
    self, Fixture, PAGE, drop_pages, expect, fill, get, get_run, noise, numbers, page, put, set,
    told,
};
use block::{Error, ErrorKind, Nanos, Status, Target};
use sim::{DiskStats, Faults, World};
use zram::Zram;

fn stats(lab: &Fixture) -> impl Fn() -> DiskStats + 'static {
    let (world, disk) = (lab.world.clone(), lab.disk);
    move || world.borrow().stats(disk)
}

/// Writes back everything that does not compress.
async fn write_back(zram: &Rc<Zram>) -> Result<(), Error> {
    set(zram, "writeback", "huge").await
}

async fn bd(zram: &Rc<Zram>) -> Vec<u64> {
    numbers(zram, "bd_stat").await
}

#[test]
fn idle_pages_are_written_in_128_kib_and_read_back() {
    for packed in ["0", "1"] {
        let lab = Fixture::new(1024, 2048, &format!("compressed_writeback {packed}"));
        let stats = stats(&lab);
        lab.run(async move |zram| {
            fill(&zram, 0..1024, 1).await;
            set(&zram, "idle", "all").await.unwrap();
            set(&zram, "writeback", "idle").await.unwrap();
            let stats = stats();
            let blocks = if packed == "0" { 1024 } else { stats.write_bytes / 4096 };
            assert!(stats.writes <= 1024 / 31 + 1, "{stats:?}");
            assert_eq!(bd(&zram).await, [blocks, 0, blocks]);
            assert_eq!(numbers(&zram, "mm_stat").await[2], 0, "no memory is used");
            expect(&zram, 0..1024, 1).await;
            assert_eq!(bd(&zram).await, [blocks, 1024, blocks]);
        });
    }
}

#[test]
fn packed_pages_take_what_they_compress_to() {
    let lab = Fixture::new(1024, 1024, "compressed_writeback 1");
    let stats = stats(&lab);
    lab.run(async move |zram| {
        for slot in 0..1024 {
            put(&*zram, slot, &page(slot, 1, 250)).await.unwrap();
        }
        set(&zram, "writeback", "page_indexes=0-1023").await.unwrap();
        let blocks = bd(&zram).await[0];
        assert!((256..290).contains(&blocks), "{blocks} blocks for 1024 quarters of a page");
        assert_eq!(stats().write_bytes, blocks * 4096);
        assert_eq!(stats().writes, blocks.div_ceil(32), "128 KiB each");
        for slot in 0..1024 {
            assert!(get(&*zram, slot).await == Ok(page(slot, 1, 250)), "slot {slot}");
        }
        drop_pages(&*zram, 0, 1024).await;
        assert_eq!(bd(&zram).await[0], 0);
    });
}

#[test]
fn the_limit_is_exact_on_any_number_of_shards() {
    for (parts, cores) in [(1, 1), (3, 1), (2, 2)] {
        let mut lab = Fixture::new(2560, 4096, &format!("shards {parts}"));
        lab.cores = cores;
        lab.run(async move |zram| {
            fill(&zram, 0..2560, 1).await;
            set(&zram, "writeback_limit", "1002").await.unwrap();
            set(&zram, "writeback_limit_enable", "1").await.unwrap();
            let e = write_back(&zram).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Limit);
            assert!(e.to_string().contains("1002 pages written"), "{e}");
            assert_eq!(bd(&zram).await, [1002, 0, 1002]);
            assert_eq!(told(&zram, "writeback_limit").await, "0");
            assert_eq!(write_back(&zram).await.unwrap_err().kind(), ErrorKind::Limit);
            assert_eq!(bd(&zram).await, [1002, 0, 1002]);
            expect(&zram, 0..2560, 1).await;
        });
    }
}

#[test]
fn the_budget_of_a_failed_write_is_used_for_others() {
    for (parts, cores) in [(1, 1), (3, 2)] {
        let options = format!("shards {parts} writeback_batch_size 4");
        let mut lab = Fixture::within(World::calm(3), 2560, 8192, &options);
        lab.cores = cores;
        let (world, disk) = (lab.world.clone(), lab.disk);
        lab.run(async move |zram| {
            fill(&zram, 0..2560, 1).await;
            set(&zram, "writeback_limit", "1002").await.unwrap();
            set(&zram, "writeback_limit_enable", "1").await.unwrap();
            let faults = Faults { write_error_per_mille: 200, ..Faults::default() };
            world.borrow_mut().set_faults(disk, faults);
            let e = write_back(&zram).await.unwrap_err();
            world.borrow_mut().set_faults(disk, Faults::default());
            assert_eq!(e.kind(), ErrorKind::Io, "an error of the device goes first: {e}");
            assert!(e.to_string().contains("1002 pages written"), "{e}");
            assert_eq!(bd(&zram).await, [1002, 0, 1002]);
            expect(&zram, 0..2560, 1).await;
        });
    }
}

/// Linux bf989ade270d: the error of a failed write was not returned.
#[test]
fn a_failed_write_is_reported_and_can_be_repeated() {
    let lab = Fixture::new(64, 64, "");
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.run(async move |zram| {
        fill(&zram, 0..64, 1).await;
        let fails = Faults { write_error_per_mille: 1000, ..Faults::default() };
        world.borrow_mut().set_faults(disk, fails);
        let e = write_back(&zram).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io);
        let said = e.to_string();
        assert!(said.contains("slot 0") && said.contains("0 pages written"), "{said}");
        assert_eq!(bd(&zram).await, [0, 0, 0]);
        assert_eq!(numbers(&zram, "mm_stat").await[7], 64, "all in memory");
        assert!(told(&zram, "last_error").await.contains("writeback: write at block"));
        world.borrow_mut().set_faults(disk, Faults::default());
        write_back(&zram).await.unwrap();
        assert_eq!(bd(&zram).await, [64, 0, 64]);
        expect(&zram, 0..64, 1).await;
    });
}

/// Linux 3e8d8eb8d7f5: a reserved block leaked when its slot went away meanwhile.
#[test]
fn blocks_of_pages_that_changed_meanwhile_are_freed() {
    for packed in ["0", "1"] {
        let lab = Fixture::new(64, 80, &format!("compressed_writeback {packed}"));
        lab.run(async move |zram| {
            for round in 1..50 {
                fill(&zram, 0..64, round).await;
                // They are written at each step of the writeback.
                let pages: Vec<(u64, Vec<u8>)> =
                    (0..64).step_by(2).map(|slot| (slot, noise(slot, round + 1000))).collect();
                let untouched = noise(3, round);
                let (of, done) = (zram.clone(), Rc::new(Cell::new(false)));
                let tell = done.clone();
                reactor::spawn(async move {
                    write_back(&of).await.unwrap();
                    tell.set(true);
                });
                while !done.get() {
                    for (slot, page) in &pages {
                        put(&*zram, *slot, page).await.unwrap();
                    }
                    drop_pages(&*zram, 1, 1).await;
                    assert!(get(&*zram, 3).await.as_ref() == Ok(&untouched));
                    reactor::sleep(Nanos(5_000)).await;
                }
                for (slot, page) in &pages {
                    assert!(get(&*zram, *slot).await.as_ref() == Ok(page));
                }
            }
            drop_pages(&*zram, 0, 64).await;
            assert_eq!(bd(&zram).await[0], 0);
            fill(&zram, 0..64, 99).await;
            write_back(&zram).await.unwrap();
            expect(&zram, 0..64, 99).await;
        });
    }
}

/// Linux 3bf1c285dc40: bytes of other pages went to the device behind a compressed one.
#[test]
fn nothing_but_its_objects_goes_to_a_packed_block() {
    let lab = Fixture::new(64, 64, "compressed_writeback 1");
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.run(async move |zram| {
        // Buffers that have held something else.
        fill(&zram, 0..32, 1).await;
        write_back(&zram).await.unwrap();
        put(&*zram, 40, &page(40, 1, 100)).await.unwrap();
        let size = numbers(&zram, "mm_stat").await[1] as usize;
        let at = bd(&zram).await[2];
        set(&zram, "writeback", "page_index=40").await.unwrap();
        let mut block = vec![9; PAGE];
        world.borrow().peek(disk, fixture::at(at), &mut block);
        assert!(block[..16 + size].iter().any(|b| *b != 0));
        assert!(block[(16 + size).next_multiple_of(8)..].iter().all(|b| *b == 0));
    });
}

/// Linux bf62f69574b1: a completion used memory that the end of the command had freed.
#[test]
fn a_device_may_be_dropped_while_its_writes_are_in_flight() {
    let lab = Fixture::new(4096, 4096, "writeback_batch_size 2 writeback_inflight 64");
    lab.run(async move |zram| {
        fill(&zram, 0..4096, 1).await;
        let of = zram.clone();
        reactor::spawn(async move { drop(write_back(&of).await) });
        while bd(&zram).await[0] == 0 {
            reactor::sleep(Nanos(10_000)).await;
        }
        // Ends the command, waits for its writes.
        zram.clone().suspend().await.unwrap();
        let settled = bd(&zram).await;
        assert!(settled[0] < 4096);
        reactor::sleep(Nanos::from_secs(1)).await;
        assert_eq!(bd(&zram).await, settled, "nothing was in flight");
    });
}

/// Linux once leaked the bio of a discard that was not aligned to pages.
#[test]
fn every_discard_ends_and_leaves_pages_that_it_does_not_cover() {
    let lab = Fixture::new(64, 64, "");
    lab.run(async move |zram| {
        fill(&zram, 0..64, 1).await;
        write_back(&zram).await.unwrap();
        let before = [get(&*zram, 0).await, get(&*zram, 1).await];
        let beyond = Err(Status::Invalid);
        for (sector, len, then) in
            [(1, 8, Ok(())), (0, 7, Ok(())), (0, 513, beyond), (8 * 63, 16, beyond)]
        {
            let (at, len) = (block::Sector(sector), block::Sector(len));
            let done = reactor::discard(&*zram, block::Class::Normal, at, len).await;
            assert_eq!(done, then, "{sector}+{len}");
        }
        assert_eq!([get(&*zram, 0).await, get(&*zram, 1).await], before);
        drop_pages(&*zram, 0, 64).await;
        assert_eq!(bd(&zram).await[0], 0);
        assert_eq!(get(&*zram, 0).await, Ok(vec![0; PAGE]));
    });
}

/// Linux ba4c3698e696: the attribute was called otherwise for a while.
#[test]
fn compressed_writeback_is_the_attributes_name() {
    Fixture::new(8, 8, "compressed_writeback 1").run(async move |zram| {
        assert_eq!(told(&zram, "compressed_writeback").await, "1");
        assert_eq!(
            set(&zram, "compressed_writeback", "0").await.unwrap_err().kind(),
            ErrorKind::Busy
        );
    });
}

#[test]
fn a_page_that_is_accessed_while_it_is_written_stays_in_memory() {
    let lab = Fixture::new(64, 64, "");
    lab.run(async move |zram| {
        fill(&zram, 0..64, 1).await;
        let of = zram.clone();
        let done = Rc::new(Cell::new(false));
        let tell = done.clone();
        reactor::spawn(async move {
            write_back(&of).await.unwrap();
            tell.set(true);
        });
        // Its write takes 20 us at least.
        reactor::sleep(Nanos(10_000)).await;
        expect(&zram, 7..8, 1).await;
        put(&*zram, 8, &noise(8, 2)).await.unwrap();
        drop_pages(&*zram, 9, 1).await;
        while !done.get() {
            reactor::sleep(Nanos(10_000)).await;
        }
        assert_eq!(bd(&zram).await, [61, 0, 64]);
        let state = told(&zram, "block_state").await;
        let backed = |line: &&str| line.ends_with(".wh...");
        assert_eq!(state.lines().filter(backed).count(), 61, "{state}");
        expect(&zram, 8..9, 2).await;
        assert_eq!(get(&*zram, 9).await, Ok(vec![0; PAGE]));
        assert_eq!(bd(&zram).await[1], 0, "nothing was read back");
    });
}

#[test]
fn a_full_device_takes_what_fits_and_goes_on_with_more_room() {
    for packed in ["0", "1"] {
        let lab = Fixture::new(128, 66, &format!("compressed_writeback {packed}"));
        lab.run(async move |zram| {
            fill(&zram, 0..128, 1).await;
            let e = write_back(&zram).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NoSpace);
            let count = bd(&zram).await[0];
            let said = e.to_string();
            assert!(said.contains("pages written") && count >= 65, "{said}, {count} blocks");
            expect(&zram, 0..128, 1).await;
            drop_pages(&*zram, 0, 40).await;
            assert_eq!(write_back(&zram).await.unwrap_err().kind(), ErrorKind::NoSpace);
            assert!(bd(&zram).await[0] >= 64, "what was free is used at once");
            expect(&zram, 40..128, 1).await;
        });
    }
}

#[test]
fn freed_blocks_are_discarded_in_runs_and_used_again() {
    let lab = Fixture::new(1024, 1024, "");
    let stats = stats(&lab);
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.run(async move |zram| {
        fill(&zram, 0..1024, 1).await;
        write_back(&zram).await.unwrap();
        assert_eq!(world.borrow().resident_bytes(disk), 1024 * 4096);
        // One page after the other, as they are overwritten.
        for slot in 0..512 {
            put(&*zram, slot, &[0; PAGE]).await.unwrap();
        }
        reactor::sleep(Nanos::from_secs(1)).await;
        assert!((1..=2).contains(&stats().discards), "{:?}", stats());
        let mut block = vec![9; PAGE];
        world.borrow().peek(disk, fixture::at(500), &mut block);
        assert_eq!(block, vec![0; PAGE]);
        fill(&zram, 0..512, 2).await;
        write_back(&zram).await.unwrap();
        expect(&zram, 0..512, 2).await;
        expect(&zram, 512..1024, 1).await;
    });
}

#[test]
fn neighbours_are_read_back_together() {
    for packed in ["0", "1"] {
        let lab = Fixture::new(1024, 1100, &format!("compressed_writeback {packed}"));
        let stats = stats(&lab);
        lab.run(async move |zram| {
            fill(&zram, 0..1024, 1).await;
            write_back(&zram).await.unwrap();
            let before = stats();
            expect(&zram, 0..1024, 1).await;
            let after = stats();
            let reads = after.reads - before.reads;
            assert!(reads <= 1024 / 31 + 2, "page by page in order: {reads} reads");
            // What is not in order is read by itself.
            for slot in (0..1024).rev().step_by(3) {
                expect(&zram, slot..slot + 1, 1).await;
            }
            assert!(stats().read_bytes - after.read_bytes <= 342 * 8192);
            let before = stats();
            let found = get_run(&*zram, 0, 1024).await.unwrap();
            assert!(found.chunks(PAGE).zip(0..).all(|(p, slot)| p == noise(slot, 1)));
            assert!(stats().reads - before.reads <= 1024 / 31 + 1);
            assert_eq!(bd(&zram).await[1], 1024 + 342 + 1024);
        });
    }
}

#[test]
fn a_page_that_cannot_be_read_back_does_not_fail_neighbours() {
    for packed in ["0", "1"] {
        let lab = Fixture::new(64, 80, &format!("compressed_writeback {packed}"));
        let (world, disk) = (lab.world.clone(), lab.disk);
        lab.run(async move |zram| {
            for slot in 0..64 {
                put(&*zram, slot, &page(slot, 1, 900)).await.unwrap();
            }
            set(&zram, "writeback", "page_indexes=0-63").await.unwrap();
            // In raw mode the middle of slot 7; packed, of about that.
            world.borrow_mut().set_bad_sector(disk, block::Sector(7 * 8 + 4));
            let mut bad = Vec::new();
            for slot in 0..64 {
                match get(&*zram, slot).await {
                    Ok(found) => assert!(found == page(slot, 1, 900), "slot {slot}"),
                    Err(status) => bad.push((slot, status)),
                }
            }
            // A device fails whole blocks of a read: packed, those that share one are lost.
            assert!(!bad.is_empty() && bad.len() <= 3, "{bad:?}");
            let (slot, status) = bad[0];
            assert_eq!(status, Status::Io);
            assert_eq!(numbers(&zram, "io_stat").await[0], bad.len() as u64);
            let last = bad.last().unwrap().0;
            let said = told(&zram, "last_error").await;
            assert!(said.contains(&format!("slot {last}: read-back of block")), "{said}");
            // In one bio: its error, and only its.
            assert_eq!(get_run(&*zram, 0, 64).await, Err(Status::Io));
            assert_eq!(numbers(&zram, "io_stat").await[0], 2 * bad.len() as u64);
            // An overwrite heals it.
            put(&*zram, slot, &noise(slot, 2)).await.unwrap();
            expect(&zram, slot..slot + 1, 2).await;
        });
    }
}

#[test]
fn a_rotten_page_is_an_error_and_no_data() {
    for packed in ["0", "1"] {
        let lab = Fixture::new(64, 80, &format!("compressed_writeback {packed}"));
        let (world, disk) = (lab.world.clone(), lab.disk);
        lab.run(async move |zram| {
            fill(&zram, 0..64, 1).await;
            write_back(&zram).await.unwrap();
            world.borrow_mut().flip_bit(disk, 9 * 4096 + 2000, 3);
            let mut bad = Vec::new();
            for slot in 0..64 {
                match get(&*zram, slot).await {
                    Ok(found) => assert!(found == noise(slot, 1), "slot {slot}"),
                    Err(status) => bad.push((slot, status)),
                }
            }
            let [(slot, Status::Io)] = bad[..] else { panic!("{bad:?}") };
            let said = told(&zram, "last_error").await;
            assert!(
                said.contains(&format!("slot {slot}: ")) && said.contains("checksum"),
                "{said}"
            );
            assert_eq!(numbers(&zram, "io_stat").await[0], 1);
        });
    }
}

#[test]
fn a_small_batch_and_one_write_in_flight_do_the_same() {
    let lab = Fixture::new(256, 256, "writeback_batch_size 1 writeback_inflight 1");
    let stats = stats(&lab);
    lab.run(async move |zram| {
        fill(&zram, 0..256, 1).await;
        write_back(&zram).await.unwrap();
        assert_eq!((stats().writes, bd(&zram).await), (256, vec![256, 0, 256]));
        expect(&zram, 0..256, 1).await;
    });
}

#[test]
fn a_fragmented_device_is_used_to_its_last_block() {
    let lab = Fixture::new(512, 256, "");
    lab.run(async move |zram| {
        fill(&zram, 0..256, 1).await;
        write_back(&zram).await.unwrap();
        for slot in (0..256).filter(|slot| slot % 3 != 0) {
            drop_pages(&*zram, slot, 1).await;
        }
        reactor::sleep(Nanos::from_secs(1)).await;
        fill(&zram, 256..426, 1).await;
        write_back(&zram).await.unwrap();
        assert_eq!(bd(&zram).await[0], 256);
        expect(&zram, 256..426, 1).await;
        for slot in (0..256).step_by(3) {
            expect(&zram, slot..slot + 1, 1).await;
        }
    });
}

#[test]
fn sparse_blocks_are_emptied_when_no_block_is_free() {
    let lab = Fixture::new(2048, 300, "compressed_writeback 1");
    lab.run(async move |zram| {
        for slot in 0..1024 {
            put(&*zram, slot, &page(slot, 1, 250)).await.unwrap();
        }
        set(&zram, "writeback", "page_indexes=0-1023").await.unwrap();
        let full = bd(&zram).await[0];
        assert!(full > 250, "{full}");
        // One page stays of each block or so, and many blocks have none.
        for slot in (0..1024).filter(|slot| slot % 4 != 0) {
            drop_pages(&*zram, slot, 1).await;
        }
        for slot in 1024..1700 {
            put(&*zram, slot, &page(slot, 1, 250)).await.unwrap();
        }
        set(&zram, "writeback", "page_indexes=1024-1699").await.unwrap();
        let stat = numbers(&zram, "backed_stat").await;
        assert!(bd(&zram).await[0] <= 300, "{stat:?}");
        assert_eq!(stat[0], 256 + 676, "{stat:?}");
        assert_eq!(numbers(&zram, "mm_stat").await[1], 0, "all of them have left memory");
        for slot in (0..1024).step_by(4).chain(1024..1700) {
            assert!(get(&*zram, slot).await == Ok(page(slot, 1, 250)), "slot {slot}");
        }
        assert_eq!(get(&*zram, 1).await, Ok(vec![0; PAGE]));
    });
}

#[test]
fn a_restored_page_that_changes_meanwhile_is_read_as_changed() {
    let lab = Fixture::new(2048, 300, "compressed_writeback 1 writeback_batch_size 4");
    lab.run(async move |zram| {
        for slot in 1024..2048 {
            put(&*zram, slot, &page(slot, 1, 250)).await.unwrap();
        }
        set(&zram, "writeback", "page_indexes=1024-2047").await.unwrap();
        for slot in (1024..2048).filter(|slot| slot % 4 != 0) {
            drop_pages(&*zram, slot, 1).await;
        }
        for slot in 0..180 {
            put(&*zram, slot, &page(slot, 1, 250)).await.unwrap();
        }
        let (of, done) = (zram.clone(), Rc::new(Cell::new(false)));
        let tell = done.clone();
        reactor::spawn(async move {
            // The walk reaches the pages that were read back after they were written again.
            drop(set(&of, "writeback", "page_indexes=0-2047").await);
            tell.set(true);
        });
        let mut versions = vec![1; 2048];
        let (mut before, mut brought) = (u64::MAX, Vec::new());
        while !done.get() {
            reactor::sleep(Nanos(if brought.is_empty() { 200_000 } else { 2_000 })).await;
            let backed = numbers(&zram, "backed_stat").await[0];
            if brought.is_empty() && backed == before && backed < 256 {
                // All that is brought back has come, and is written when blocks have come free.
                let state = told(&zram, "block_state").await;
                let resident = state.lines().filter(|line| !line.contains('w'));
                let slots = resident.map(|line| line[..12].trim().parse().unwrap());
                brought = slots.filter(|slot: &u64| *slot >= 1900).collect();
            }
            before = backed;
            // One of them changes in the middle of a write, and has time to leave memory then.
            let Some(slot) = brought.first().copied() else { continue };
            let version = &mut versions[slot as usize];
            let found = get(&*zram, slot).await;
            assert!(found == Ok(page(slot, *version, 250)), "slot {slot} is not version {version}");
            *version += 1;
            put(&*zram, slot, &page(slot, *version, 250)).await.unwrap();
            brought.rotate_left(1);
        }
        assert!(!brought.is_empty(), "nothing was brought back");
        for slot in (1024..2048).step_by(4) {
            let version = versions[slot as usize];
            let found = get(&*zram, slot).await;
            assert!(found == Ok(page(slot, version, 250)), "slot {slot} is not version {version}");
        }
    });
}

/// Another object of a slot, of `len` bytes, whose check is the one of that which was there.
fn forged(slot: u32, len: usize, there: &[u8]) -> Vec<u8> {
    let encode = |generation| {
        let mut block = vec![0; PAGE];
        format::zram::encode_object(slot, 0, generation, len, &mut block, |bytes| bytes.fill(7));
        block
    };
    let crc = |block: &[u8]| u32::from_le_bytes(block[..4].try_into().expect("four bytes"));
    let none = crc(&encode(0));
    // A CRC is linear: each bit of the generation turns the same bits of it over.
    let turns: Vec<u32> = (0..32).map(|bit| crc(&encode(1 << bit)) ^ none).collect();
    let (mut generation, mut is) = (0_u32, none);
    for n in 1_u32.. {
        generation ^= 1 << n.trailing_zeros();
        is ^= turns[n.trailing_zeros() as usize];
        if (is ^ crc(there)) & 0xf_ffff == 0 {
            break;
        }
    }
    encode(generation)
}

#[test]
fn a_forged_object_in_a_sparse_block_fails_its_page_only() {
    let lab = Fixture::new(2048, 300, "compressed_writeback 1");
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.run(async move |zram| {
        for slot in 0..1024 {
            put(&*zram, slot, &page(slot, 1, 250)).await.unwrap();
        }
        set(&zram, "writeback", "page_indexes=0-1023").await.unwrap();
        for slot in (0..1024).filter(|slot| slot % 4 != 0) {
            drop_pages(&*zram, slot, 1).await;
        }
        let mut block = vec![0; PAGE];
        world.borrow().peek(disk, fixture::at(0), &mut block);
        // Of a length that no compressed page has.
        let other = forged(0, 3900, &block);
        world.borrow_mut().poke(disk, fixture::at(0), &other);
        for slot in 1024..1700 {
            put(&*zram, slot, &page(slot, 1, 250)).await.unwrap();
        }
        set(&zram, "writeback", "page_indexes=1024-1699").await.unwrap();
        assert_eq!(get(&*zram, 0).await, Err(Status::Io));
        for slot in (4..1024).step_by(4).chain(1024..1700) {
            assert!(get(&*zram, slot).await == Ok(page(slot, 1, 250)), "slot {slot}");
        }
    });
}
