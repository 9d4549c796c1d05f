// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device as a whole: parts on several cores, life cycle, memory, recompression.

use std::cell::Cell;
use std::rc::Rc;

use crate::fixture::{
    Fixture, PAGE, at, drop_pages, expect, fill, get, get_run, noise, numbers, page, put, set, told,
};
use block::{BlockDevice, Buf, Class, ErrorKind, Flags, Sector, Status, Target};
use sim::{Rng, World, seeds};

/// Slots of a chunk: those that lie on one part in a row.
const CHUNK: u64 = 256;

#[test]
fn bios_across_parts_of_two_cores_touch_only_their_pages() {
    seeds::run(30, |seed| {
        let slots = 5 * CHUNK + 77;
        let mut lab = Fixture::within(World::new(seed), slots, 4096, "shards 3");
        lab.cores = 2;
        let wrong = lab.run(async move |zram| {
            let mut rng = Rng::new(seed);
            let mut versions = vec![0_u64; slots as usize];
            for version in 1..40 {
                let pages = 1 + rng.below(2 * CHUNK + 9).min(slots - 1);
                let first = rng.below(slots - pages + 1);
                let range = first as usize..(first + pages) as usize;
                if rng.chance_per_mille(200) {
                    drop_pages(&*zram, first, pages).await;
                    versions[range].fill(0);
                    continue;
                }
                let data: Vec<u8> =
                    (first..first + pages).flat_map(|s| noise(s, version)).collect();
                // A buffer of which the parts of both cores have parts at once.
                let buf = Buf::copy_of(&data);
                let sent = reactor::write(
                    &*zram,
                    Flags::empty(),
                    Class::Normal,
                    at(first),
                    buf.all().into(),
                );
                sent.await.expect("a write");
                versions[range].fill(version);
            }
            let all = get_run(&*zram, 0, slots as usize).await.expect("a read");
            let page_of = |(slot, version): (usize, &u64)| match version {
                0 => vec![0; PAGE],
                version => noise(slot as u64, *version),
            };
            let want = versions.iter().enumerate().map(page_of);
            want.zip(all.chunks(PAGE)).position(|(want, is)| want != is)
        });
        wrong.map_or(Ok(()), |slot| Err(format!("slot {slot} is not what was written last")))
    });
}

#[test]
fn data_survive_a_suspend_and_commands_wait_for_resume() {
    Fixture::new(64, 64, "").run(async move |zram| {
        fill(&zram, 0..64, 1).await;
        zram.clone().suspend().await.unwrap();
        for (attribute, value) in [("idle", "all"), ("writeback", "idle"), ("compact", "1")] {
            let e = set(&zram, attribute, value).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Busy, "{attribute}: {e}");
        }
        assert_eq!(numbers(&zram, "mm_stat").await[0], 64 * 4096);
        zram.clone().resume().await.unwrap();
        expect(&zram, 0..64, 1).await;
        set(&zram, "idle", "all").await.unwrap();
    });
}

#[test]
fn a_writeback_delays_no_attribute_and_a_suspend_ends_it() {
    Fixture::new(4096, 4096, "writeback_batch_size 1 writeback_inflight 1").run(
        async move |zram| {
            fill(&zram, 0..4096, 1).await;
            set(&zram, "idle", "all").await.unwrap();
            let (ended, of_task) = (Rc::new(Cell::new(None)), zram.clone());
            let tell = ended.clone();
            reactor::spawn(async move {
                tell.set(Some(set(&of_task, "writeback", "idle").await));
            });
            while numbers(&zram, "bd_stat").await[0] < 100 {
                reactor::sleep(block::Nanos(10_000)).await;
            }
            let [done, to_do] = numbers(&zram, "writeback_progress").await[..] else {
                panic!("two")
            };
            assert!(done >= 100 && done < to_do && to_do == 4096, "{done} of {to_do}");
            put(&*zram, 4000, &noise(4000, 2)).await.unwrap();
            zram.clone().suspend().await.unwrap();
            let ended = loop {
                match ended.take() {
                    Some(ended) => break ended,
                    None => reactor::sleep(block::Nanos(10_000)).await,
                }
            };
            let e = ended.expect_err("it was ended before its time");
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            let written = numbers(&zram, "bd_stat").await[0];
            assert!(written < 4000, "{written} pages were written before it ended");
            zram.clone().resume().await.unwrap();
            expect(&zram, 0..4000, 1).await;
            expect(&zram, 4000..4001, 2).await;
            expect(&zram, 4001..4096, 1).await;
        },
    );
}

#[test]
fn a_write_beyond_the_memory_limit_keeps_the_old_page() {
    Fixture::new(4096, 64, "mem_limit 1M").run(async move |zram| {
        let mut failed = 0;
        for slot in 0..512 {
            failed += u64::from(put(&*zram, slot, &noise(slot, 1)).await == Err(Status::Io));
        }
        assert_eq!(failed, 256, "a page each");
        let stat = numbers(&zram, "mm_stat").await;
        assert_eq!(stat[..5], [1 << 20; 5], "{stat:?}");
        assert_eq!(numbers(&zram, "io_stat").await, [0, 256, 0, 0]);
        // An object of another length needs memory before it gives any back; a page like the old
        // one takes its place.
        assert_eq!(put(&*zram, 3, &page(3, 2, 300)).await, Err(Status::Io));
        expect(&zram, 0..256, 1).await;
        put(&*zram, 5, &noise(5, 2)).await.unwrap();
        assert_eq!(get(&*zram, 5).await, Ok(noise(5, 2)));
        assert_eq!(get(&*zram, 300).await, Ok(vec![0; PAGE]));
        // Same-filled pages take none, and what they replace is free.
        put(&*zram, 3, &[7; PAGE]).await.unwrap();
        put(&*zram, 300, &noise(300, 2)).await.unwrap();
        let told = told(&zram, "last_error").await;
        assert!(told.contains("slot 3: mem_limit of 1048576 bytes"), "{told}");
        set(&zram, "mem_limit", "0").await.unwrap();
        put(&*zram, 4, &noise(4, 2)).await.unwrap();
    });
}

#[test]
fn at_the_memory_limit_compaction_makes_room_for_a_page() {
    Fixture::new(4096, 64, "mem_limit 1M").run(async move |zram| {
        let mut filled = 0;
        while put(&*zram, filled, &page(filled, 1, 300)).await.is_ok() {
            filled += 1;
        }
        for slot in (0..filled).filter(|slot| slot % 4 != 0) {
            drop_pages(&*zram, slot, 1).await;
        }
        // All spans are still in use, each by a few of its objects.
        let stat = numbers(&zram, "mm_stat").await;
        assert!(stat[2] > (1 << 20) * 9 / 10 && stat[1] < 1 << 19, "{stat:?}");
        for slot in 2000..2100 {
            put(&*zram, slot, &noise(slot, 1)).await.expect("there is room between the objects");
        }
        for slot in (0..filled).step_by(4) {
            assert!(get(&*zram, slot).await == Ok(page(slot, 1, 300)), "slot {slot}");
        }
    });
}

#[test]
fn recompression_marks_pages_that_it_cannot_shrink() {
    let options = "recomp_algorithm algo=zstd,priority=1 algorithm_params priority=1,level=9";
    Fixture::new(256, 256, options).run(async move |zram| {
        // Letters: zstd takes fewer bits for them, lz4 finds no repetition.
        let letters =
            |slot: u64| -> Vec<u8> { noise(slot, 1).iter().map(|b| b'a' + (b & 7)).collect() };
        for slot in 0..64 {
            put(&*zram, slot, &letters(slot)).await.unwrap();
        }
        fill(&zram, 64..72, 1).await;
        let before = numbers(&zram, "mm_stat").await;
        let state = async |letters: &str| {
            let state = told(&zram, "block_state").await;
            state.lines().filter(|line| line.ends_with(letters)).count()
        };
        set(&zram, "recompress", "max_pages=4").await.unwrap();
        assert_eq!(state("....r.").await, 4, "no more than were asked for");
        set(&zram, "recompress", "priority=1").await.unwrap();
        let after = numbers(&zram, "mm_stat").await;
        assert!(after[1] * 10 < before[1] * 6, "{before:?} {after:?}");
        assert_eq!(after[0], before[0]);
        assert_eq!(after[7], 8, "noise stays as it is");
        assert_eq!(told(&zram, "block_state").await.lines().count(), 72);
        assert_eq!((state("....r.").await, state("..h..n").await), (64, 8));
        for slot in 0..64 {
            assert_eq!(get(&*zram, slot).await, Ok(letters(slot)));
        }
        set(&zram, "writeback", "incompressible").await.unwrap();
        assert_eq!(numbers(&zram, "bd_stat").await, [8, 0, 8]);
        expect(&zram, 64..72, 1).await;
    });
}

#[test]
fn compaction_gives_some_memory_back_and_discard_all() {
    Fixture::new(8192, 64, "").run(async move |zram| {
        for slot in 0..8192 {
            put(&*zram, slot, &page(slot, 1, 100 + (slot % 7) as usize * 100)).await.unwrap();
        }
        for slot in (0..8192).filter(|slot| slot % 5 != 0) {
            drop_pages(&*zram, slot, 1).await;
        }
        let before = numbers(&zram, "mm_stat").await;
        set(&zram, "compact", "1").await.unwrap();
        let after = numbers(&zram, "mm_stat").await;
        assert_eq!(after[6], (before[2] - after[2]) / 4096, "{before:?} {after:?}");
        // Each class keeps one run of pages that is not full.
        assert!(after[2] < after[1] + after[1] / 4, "{after:?}");
        for slot in (0..8192).step_by(5) {
            let want = page(slot, 1, 100 + (slot % 7) as usize * 100);
            assert!(get(&*zram, slot).await == Ok(want), "slot {slot}");
        }
        drop_pages(&*zram, 0, 8192).await;
        assert_eq!(numbers(&zram, "mm_stat").await[..4], [0, 0, 0, 0]);
    });
}

#[test]
fn what_does_not_fit_the_device_is_refused() {
    Fixture::new(64, 64, "shards 2").run(async move |zram| {
        assert_eq!(get_run(&*zram, 63, 2).await, Err(Status::Invalid));
        assert_eq!(numbers(&zram, "io_stat").await, [0, 0, 1, 0]);
        assert_eq!(zram.limits().logical_block_bytes, 512);
        assert_eq!(zram.limits().physical_block_bytes, 4096);
        assert!(!zram.limits().keeps && !zram.limits().volatile_cache && zram.limits().loses_all);
        assert_eq!(reactor::flush(&*zram, Class::Normal).await, Ok(()));
    });
}

/// Requests of less than a page were refused, and what a door merged undid completed writes that
/// came by another one. Found by an attack from outside.
#[test]
fn any_sectors_are_read_and_written_wherever_the_page_is() {
    Fixture::new(600, 600, "shards 2").run(async move |zram| {
        let none = Flags::empty();
        // Pages 254 to 257 lie on two parts.
        let mut model: Vec<u8> = (254..258).flat_map(|slot| noise(slot, 1)).collect();
        let first = 254 * 8;
        for slot in 254..258 {
            put(&*zram, slot, &noise(slot, 1)).await.unwrap();
        }
        for (round, (from, to)) in
            [(1, 2), (7, 9), (12, 20), (3, 29), (0, 31), (15, 17)].into_iter().enumerate()
        {
            if round % 2 == 1 {
                set(&zram, "writeback", "page_indexes=254-257").await.unwrap();
            }
            let new = &noise(from, 7).repeat(4)[..usize::try_from(to - from).unwrap() * 512];
            let bytes = usize::try_from(from).unwrap() * 512;
            let write = reactor::write(
                &*zram,
                none,
                Class::Normal,
                Sector(first + from),
                Buf::copy_of(new).into(),
            );
            write.await.unwrap();
            model[bytes..bytes + new.len()].copy_from_slice(new);
            assert!(get_run(&*zram, 254, 4).await.unwrap() == model, "{from}..{to}");
            let part = Buf::zeroed(new.len());
            let read =
                reactor::read(&*zram, Class::Normal, Sector(first + from), part.all().into());
            read.await.unwrap();
            assert!(part.read(|b| b == new), "{from}..{to}");
        }
        let (at, len) = (Sector(first + 5), Sector(20));
        reactor::write_zeroes(&*zram, none, Class::Normal, at, len).await.unwrap();
        model[5 * 512..25 * 512].fill(0);
        assert!(get_run(&*zram, 254, 4).await.unwrap() == model);
        // Pages that a discard does not cover whole stay.
        reactor::discard(&*zram, Class::Normal, Sector(first + 27), Sector(4)).await.unwrap();
        assert!(get_run(&*zram, 254, 4).await.unwrap() == model);
    });
}

#[test]
fn the_largest_device_takes_memory_for_its_pages_only() {
    let slots = zram::SECTORS_MAX.0 / 8;
    Fixture::new(slots, 64, "shards 2").run(async move |zram| {
        for slot in [0, 256, slots / 2, slots - 1] {
            put(&*zram, slot, &noise(slot, 1)).await.unwrap();
        }
        set(&zram, "writeback", &format!("page_index={}", slots - 1)).await.unwrap();
        assert_eq!(bd_count(&zram).await, 1);
        for slot in [0, 256, slots / 2, slots - 1] {
            assert!(get(&*zram, slot).await == Ok(noise(slot, 1)), "slot {slot}");
        }
        drop_pages(&*zram, slots - 600, 600).await;
        assert_eq!(get(&*zram, slots - 1).await, Ok(vec![0; PAGE]));
        assert_eq!(bd_count(&zram).await, 0);
    });
}

async fn bd_count(zram: &Rc<zram::Zram>) -> u64 {
    numbers(zram, "bd_stat").await[0]
}

#[test]
fn a_suspend_ends_a_compaction_which_says_so() {
    Fixture::new(4096, 64, "").run(async move |zram| {
        for slot in 0..4096 {
            put(&*zram, slot, &page(slot, 1, 300)).await.unwrap();
        }
        for slot in (0..4096).filter(|slot| slot % 8 != 0) {
            drop_pages(&*zram, slot, 1).await;
        }
        let (of, said) = (zram.clone(), Rc::new(Cell::new(None)));
        let tell = said.clone();
        reactor::spawn(async move {
            tell.set(Some(set(&of, "compact", "1").await));
        });
        reactor::yield_now().await;
        zram.clone().suspend().await.unwrap();
        let said = said.take().expect("it has ended");
        assert_eq!(said.expect_err("it was ended").kind(), ErrorKind::Busy);
        zram.clone().resume().await.unwrap();
        set(&zram, "compact", "1").await.unwrap();
        for slot in (0..4096).step_by(8) {
            assert!(get(&*zram, slot).await == Ok(page(slot, 1, 300)), "slot {slot}");
        }
    });
}
