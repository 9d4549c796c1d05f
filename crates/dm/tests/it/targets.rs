// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The built-in targets, each through a mapped device.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Bench, bytes, disk, filled, lay_out, read, take_log, write};
use block::{BlockDevice, Class, Flags, Nanos, Op, Sector, Status};
use proptest::prelude::*;

const A: &str = "/ram/a/1024";
const B: &str = "/ram/b/1024";
const C: &str = "/ram/c/1024";

async fn discard(dev: &dyn BlockDevice, at: u64, len: u64) -> Result<(), Status> {
    reactor::discard(dev, Class::Normal, Sector(at), Sector(len)).await
}

/// An attack from outside found that a table of 60000 lines held up all other devices for a second:
/// each line was compared with all before it, in one turn.
#[test]
fn others_get_turns_while_a_long_table_is_loaded() {
    const LINES: usize = 60_000;
    Bench::new(1).run(|dm, _| async move {
        let table: String = (0..LINES).map(|n| format!("{n} 1 zero\n")).collect();
        let turns = Rc::new(Cell::new(0));
        let (counter, over) = (turns.clone(), Rc::new(Cell::new(false)));
        let end = over.clone();
        reactor::spawn(async move {
            while !end.get() {
                counter.set(counter.get() + 1);
                reactor::yield_now().await;
            }
        });
        dm.create("long", None, Some(&table)).await.unwrap();
        over.set(true);
        assert!(turns.get() >= LINES / 512, "{} turns", turns.get());
        assert_eq!(dm.table("long").unwrap().len(), LINES);
    });
}

#[test]
fn zero_reads_zeroes_and_drops_writes() {
    Bench::new(1).run(|dm, _| async move {
        let dev = dm.create("d", None, Some("0 64 zero")).await.unwrap();
        write(&*dev, 7, 0, 8).await.unwrap();
        assert_eq!(read(&*dev, 0, 8).await.unwrap(), vec![0; 4096]);
        discard(&*dev, 0, 64).await.unwrap();
        reactor::flush(&*dev, Class::Normal).await.unwrap();
    });
}

#[test]
fn error_fails_all_but_a_flush() {
    Bench::new(1).run(|dm, _| async move {
        let dev = dm.create("d", None, Some("0 64 error what ever")).await.unwrap();
        assert_eq!(write(&*dev, 7, 0, 8).await, Err(Status::Io));
        assert_eq!(read(&*dev, 0, 8).await, Err(Status::Io));
        assert_eq!(discard(&*dev, 0, 64).await, Err(Status::Io));
        reactor::flush(&*dev, Class::Normal).await.unwrap();
        assert_eq!(dm.table("d").unwrap()[0].params, "");
    });
}

#[test]
fn delay_waits_by_kind_of_request() {
    let table = format!("0 64 delay {A} 0 10 {B} 0 20 {C} 0 40");
    Bench::new(1).run(|dm, state| async move {
        let dev = dm.create("d", None, Some(&table)).await.unwrap();
        assert_eq!(dm.table("d").unwrap()[0].params, &table[11..]);
        let start = reactor::now();
        let took = |from: Nanos| reactor::now().saturating_sub(from).0 / 1_000_000;
        read(&*dev, 0, 1).await.unwrap();
        assert_eq!(took(start), 10);
        let start = reactor::now();
        let pending = reactor::flush(&*dev, Class::Normal);
        assert_eq!(dm.status("d").unwrap()[0].params, "0 0 1");
        write(&*dev, 1, 0, 1).await.unwrap();
        assert_eq!(took(start), 20);
        pending.await.unwrap();
        assert_eq!(took(start), 40);
        assert_eq!(dm.status("d").unwrap()[0].params, "0 0 0");
        assert_eq!(take_log(&state, A), [(Op::Read, 0, 1)]);
        assert_eq!(take_log(&state, B), [(Op::Write, 0, 1)]);
        assert_eq!(take_log(&state, C), [(Op::Flush, 0, 0)]);
    });
}

#[test]
fn delay_with_three_arguments_serves_all_from_one_device() {
    Bench::new(1).run(|dm, state| async move {
        let table = format!("0 64 delay {A} 8 0");
        let dev = dm.create("d", None, Some(&table)).await.unwrap();
        write(&*dev, 1, 0, 1).await.unwrap();
        reactor::flush(&*dev, Class::Normal).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Write, 8, 1), (Op::Flush, 0, 0)]);
    });
}

#[test]
fn flakey_fails_in_its_down_intervals_only() {
    Bench::new(1).run(|dm, _| async move {
        let table = format!("0 64 flakey {A} 0 2 1");
        let dev = dm.create("d", None, Some(&table)).await.unwrap();
        assert_eq!(
            dm.table("d").unwrap()[0].params,
            format!("{A} 0 2 1 2 error_reads error_writes")
        );
        for _ in 0..3 {
            write(&*dev, 7, 0, 1).await.unwrap();
            reactor::sleep(Nanos::from_millis(2100)).await;
            assert_eq!(write(&*dev, 7, 0, 1).await, Err(Status::Io));
            assert_eq!(read(&*dev, 0, 1).await, Err(Status::Io));
            assert_eq!(reactor::flush(&*dev, Class::Normal).await, Err(Status::Io));
            reactor::sleep(Nanos::from_millis(890)).await;
            reactor::sleep(Nanos::from_millis(20)).await;
        }
    });
}

#[test]
fn flakey_features_do_what_they_are_called() {
    Bench::new(1).run(|dm, state| async move {
        let cases = [
            ("1 drop_writes", Ok(()), Ok(1)),
            ("1 error_writes", Err(Status::Io), Ok(1)),
            ("1 error_reads", Ok(()), Err(Status::Io)),
            ("5 corrupt_bio_byte 2 r 9 0", Ok(()), Ok(2)),
        ];
        let dev = dm.create("d", None, Some("0 8 zero")).await.unwrap();
        for (features, wrote, got) in cases {
            let params = format!("{A} 0 0 1 {features}");
            dm.load("d", &format!("0 64 flakey {params}")).await.unwrap();
            dm.resume("d").await.unwrap();
            assert_eq!(dm.table("d").unwrap()[0].params, params);
            state.borrow_mut().disks[0].bytes.fill(1);
            assert_eq!(write(&*dev, 2, 0, 1).await, wrote, "{features}");
            let read = read(&*dev, 0, 1).await;
            assert_eq!(read.as_ref().map(|b| b[0]).map_err(|e| *e), got, "{features}");
            if let (Ok(data), true) = (read, features.contains("corrupt")) {
                assert_eq!((data[0], data[1], data[2]), (2, 9, 2));
            }
        }
        dm.load("d", &format!("0 64 flakey {A} 0 0 1 5 corrupt_bio_byte 1 w 9 0")).await.unwrap();
        dm.resume("d").await.unwrap();
        let mine = filled(3, 1);
        let (flags, class) = (Flags::empty(), Class::Normal);
        reactor::write(&*dev, flags, class, Sector(5), mine.clone()).await.unwrap();
        assert_eq!(bytes(&mine), vec![3; 512], "the client's buffer is not touched");
        let mut want = vec![3; 512];
        want[0] = 9;
        assert_eq!(read(&*dev, 5, 1).await.unwrap(), want);
    });
}

#[test]
fn flakey_spoils_some_byte_of_as_many_requests_as_asked_for() {
    Bench::new(1).run(|dm, state| async move {
        let dev = dm.create("d", None, Some("0 8 zero")).await.unwrap();
        let load = async |features: &str| {
            let params = format!("{A} 0 0 1 {features}");
            dm.load("d", &format!("0 64 flakey {params}")).await.unwrap();
            dm.resume("d").await.unwrap();
            assert_eq!(dm.table("d").unwrap()[0].params, params.to_lowercase());
        };
        let differ = |got: Vec<u8>| got.iter().filter(|byte| **byte != 1).count();
        // 500,000,000 in 1,000,000,000: half of them; the value is the old one once in 256.
        load("2 RANDOM_READ_CORRUPT 500000000").await;
        state.borrow_mut().disks[0].bytes.fill(1);
        let mut spoilt = 0;
        for _ in 0..400 {
            let bytes = differ(read(&*dev, 0, 8).await.unwrap());
            assert!(bytes <= 1);
            spoilt += bytes;
        }
        assert!((120..280).contains(&spoilt), "{spoilt}");
        assert_eq!(differ(state.borrow().disks[0].bytes.clone()), 0, "the disk is as it was");

        load("2 random_write_corrupt 1000000000").await;
        let mine = filled(1, 1);
        for sector in 0..32 {
            let (flags, class) = (Flags::empty(), Class::Normal);
            reactor::write(&*dev, flags, class, Sector(sector), mine.clone()).await.unwrap();
        }
        assert_eq!(bytes(&mine), vec![1; 512], "the client's buffer is not touched");
        let spoilt = differ(read(&*dev, 0, 32).await.unwrap());
        assert!((24..=32).contains(&spoilt), "{spoilt}");
    });
}

#[test]
fn striped_deals_out_data_and_discards() {
    Bench::new(1).run(|dm, state| async move {
        let table = format!("0 384 striped 3 128 {A} 10 {B} 0 {C} 0");
        let dev = dm.create("d", None, Some(&table)).await.unwrap();
        assert_eq!(dm.table("d").unwrap()[0].params, format!("3 128 {A} 10 {B} 0 {C} 0"));
        write(&*dev, 7, 120, 140).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Write, 130, 8)]);
        assert_eq!(take_log(&state, B), [(Op::Write, 0, 128)]);
        assert_eq!(take_log(&state, C), [(Op::Write, 0, 4)]);
        discard(&*dev, 100, 200).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Discard, 110, 28)]);
        assert_eq!(take_log(&state, B), [(Op::Discard, 0, 128)]);
        assert_eq!(take_log(&state, C), [(Op::Discard, 0, 44)]);
        discard(&*dev, 130, 10).await.unwrap();
        assert_eq!(take_log(&state, B), [(Op::Discard, 2, 10)]);
    });
}

#[test]
fn a_stripe_with_errors_raises_at_most_fifteen_events() {
    Bench::new(1).run(|dm, state| async move {
        let table = format!("0 64 striped 2 8 {A} 0 {B} 0");
        let dev = dm.create("d", None, Some(&table)).await.unwrap();
        assert_eq!(dm.status("d").unwrap()[0].params, format!("2 {A} {B} 1 AA"));
        let index = disk(&state, B);
        state.borrow_mut().disks[index].broken = true;
        write(&*dev, 1, 0, 8).await.unwrap();
        assert_eq!(dm.info("d").unwrap().event_nr, 0);
        assert_eq!(write(&*dev, 1, 4, 8).await, Err(Status::Io));
        assert_eq!(dm.info("d").unwrap().event_nr, 1);
        assert_eq!(dm.status("d").unwrap()[0].params, format!("2 {A} {B} 1 AD"));
        for _ in 0..20 {
            assert_eq!(read(&*dev, 8, 1).await, Err(Status::Io));
        }
        assert_eq!(dm.info("d").unwrap().event_nr, 15);
    });
}

/// A table over disks `a`, `b`, `c` of 1024 sectors, its lines' areas disjoint.
fn table() -> impl Strategy<Value = String> {
    let striped = (1..4_u64, 1..20_u64, 1..6_u64).prop_map(|(n, chunk, rows)| {
        let devices: String =
            [A, B, C].iter().take(n as usize).map(|d| format!(" {d} @")).collect();
        (n * chunk * rows, chunk * rows, format!("striped {n} {chunk}{devices}"))
    });
    let linear = (1..100_u64, 0..3_usize)
        .prop_map(|(len, d)| (len, len, format!("linear {} @", [A, B, C][d])));
    prop::collection::vec(prop_oneof![striped, linear], 1..6).prop_map(|l| lay_out(l).1)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(5),
        ..Default::default()
    })]

    #[test]
    fn every_sector_lives_at_one_place_of_its_own(text in table()) {
        Bench::new(1).run(|dm, _| async move {
            let dev = dm.create("d", None, Some(&text)).await.unwrap();
            let pure = "linear and striped are pure";
            let map = |at, len| dev.map_blocks(at, len).expect(pure);
            let capacity = dev.limits().capacity;
            let mut places = std::collections::BTreeSet::new();
            let mut at = Sector::ZERO;
            while at < capacity {
                let run = map(at, capacity - at);
                assert!(run.len > Sector::ZERO && at + run.len <= capacity);
                let name = run.base.name().to_owned();
                for i in 0..run.len.0 {
                    assert!(places.insert((name.clone(), run.sector.0 + i)), "{text}: {at}+{i}");
                    let one = map(at + Sector(i), Sector(1));
                    let same = one.base.name() == name;
                    assert!(same && one.sector == run.sector + Sector(i), "{text}: {at}+{i}");
                }
                at += run.len;
            }
            assert_eq!(places.len() as u64, capacity.0);
        });
    }

    #[test]
    fn a_split_request_does_what_the_same_sectors_one_by_one_do(
        text in table(),
        requests in prop::collection::vec((0..4_u8, 0..1000_u64, 1..200_u64), 1..20),
    ) {
        Bench::new(1).run(|dm, state| async move {
            let dev = dm.create("d", None, Some(&text)).await.unwrap();
            let pure = "linear and striped are pure";
            let map = |at, len| dev.map_blocks(at, len).expect(pure);
            let capacity = dev.limits().capacity.0;
            let mut model = vec![0_u8; capacity as usize * 512];
            for (i, (what, at, len)) in requests.into_iter().enumerate() {
                let at = at % capacity;
                let len = len.min(capacity - at);
                let range = at as usize * 512..(at + len) as usize * 512;
                match what {
                    0 => {
                        let bufs = filled(0, len);
                        let data: Vec<u8> =
                            range.clone().map(|b| (b / 512 * 7 + i) as u8 | 1).collect();
                        bufs.copy_from(&data);
                        let (flags, class) = (Flags::FUA, Class::Normal);
                        reactor::write(&*dev, flags, class, Sector(at), bufs).await.unwrap();
                        model[range].copy_from_slice(&data);
                    }
                    1 => assert_eq!(read(&*dev, at, len).await.unwrap(), model[range]),
                    2 => {
                        discard(&*dev, at, len).await.unwrap();
                        model[range].fill(0);
                    }
                    _ => {
                        let (flags, class) = (Flags::empty(), Class::Normal);
                        let (at, len) = (Sector(at), Sector(len));
                        reactor::write_zeroes(&*dev, flags, class, at, len).await.unwrap();
                        model[range].fill(0);
                    }
                }
            }
            for sector in 0..capacity {
                let at = map(Sector(sector), Sector(1));
                let index = disk(&state, at.base.name());
                let from = at.sector.0 as usize * 512;
                let s = state.borrow();
                let on_disk = &s.disks[index].bytes[from..from + 512];
                let want = &model[sector as usize * 512..][..512];
                assert!(on_disk == want, "{text}: sector {sector}");
            }
        });
    }
}
