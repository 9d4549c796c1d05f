// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The transmission phase as clients see it.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Client, Disk, SingleExport, with_server};
use block::{Limits, Nanos, Sector};
use nbd::request::Request;
use nbd::wire::cmd;
use nbd::{Options, Run};
use reactor::{now, sleep, spawn};

const MIB: u64 = 1 << 20;
const MS: Nanos = Nanos::from_millis(1);

fn one() -> SingleExport {
    SingleExport::new(&Disk::new(2048, MS))
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (seed * 31 + i / 7) as u8).collect()
}

/// Pipelines `count` writes and then reads of 4 KiB, 64 at a time; replies come in any order.
async fn pipeline(c: &mut Client, count: u64) {
    for kind in [cmd::WRITE, cmd::READ] {
        for batch in 0..count / 64 {
            let mut bytes = Vec::new();
            for cookie in batch * 64..batch * 64 + 64 {
                let (offset, len) = (cookie * 4096, 4096);
                bytes.extend(Request { flags: 0, kind, cookie, offset, len }.encode());
                if kind == cmd::WRITE {
                    bytes.extend(pattern(cookie, 4096));
                }
            }
            let mut seen = [false; 64];
            assert!(c.send(&bytes).await);
            for _ in 0..64 {
                let reads = if kind == cmd::READ { 4096 } else { 0 };
                let (cookie, error, data) = c.reply(|_| reads).await;
                assert_eq!(error, 0);
                assert!(!std::mem::replace(&mut seen[(cookie % 64) as usize], true));
                if kind == cmd::READ {
                    assert_eq!(data, pattern(cookie, 4096));
                }
            }
        }
    }
}

#[test]
fn pipelined_requests_keep_their_data_in_any_fragmentation() {
    let cases = [(1, false, false), (2, false, true), (3, true, false), (4, true, true)];
    for ((seed, fragment, structured), latency) in
        cases.into_iter().flat_map(|case| [(case, MS), (case, Nanos::ZERO)])
    {
        let disk = || SingleExport::new(&Disk::new(2048, latency));
        with_server(seed, Options::default(), disk, |net, listener, server| async move {
            net.0.borrow_mut().fragment = fragment;
            let mut c = net.connect(listener);
            c.go(structured).await;
            pipeline(&mut c, 128).await;
            let stats = server.stats();
            assert_eq!(stats.requests_total, 256);
            assert_eq!((stats.read_bytes_total, stats.write_bytes_total), (MIB / 2, MIB / 2));
        });
    }
}

#[test]
fn a_batch_costs_few_receives_and_few_sends() {
    for latency in [MS, Nanos::ZERO] {
        let disk = || SingleExport::new(&Disk::new(2048, latency));
        with_server(1, Options::default(), disk, |net, listener, server| async move {
            let mut c = net.connect(listener);
            c.go(false).await;
            pipeline(&mut c, 64).await;
            let stats = server.stats();
            // The socket holds 64 KiB: 64 writes need at least five receives.
            assert!(stats.receives_total * 5 < stats.requests_total, "{stats:?}");
            assert!(stats.sends_total * 5 < stats.requests_total, "{stats:?}");
        });
    }
}

#[test]
fn the_largest_request_goes_both_ways() {
    let big = || SingleExport::new(&Disk::new(64 << 11, MS));
    with_server(1, Options::default(), big, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.go(true).await;
        let data = pattern(5, 32 << 20);
        assert_eq!(c.write(0, MIB, &data).await, 0);
        let (error, read) = c.ask(cmd::READ, 4, MIB, 32 << 20).await;
        assert_eq!(error, 0);
        assert!(read == data);
    });
}

#[test]
fn a_wrong_request_gets_its_error_and_the_next_one_is_served() {
    let (inval, nospc) = (22, 28);
    let cases = [
        (cmd::READ, 0, 0, 0, inval),
        (cmd::READ, 0, 1, 512, inval),
        (cmd::READ, 0, 0, 513, inval),
        (cmd::READ, 0, MIB, 512, inval),
        (cmd::READ, 0, MIB - 512, 1024, inval),
        (cmd::READ, 0, u64::MAX - 511, 512, inval),
        (cmd::READ, 0, u64::MAX - 511, 1024, inval),
        (cmd::READ, 0, 0, (32 << 20) + 512, inval),
        (cmd::READ, 2, 0, 512, inval),
        (cmd::READ, 1 << 9, 0, 512, inval),
        (cmd::TRIM, 0, MIB, 512, inval),
        (cmd::TRIM, 0, 1, 512, inval),
        (cmd::WRITE_ZEROES, 0, 0, u32::MAX, inval),
        (cmd::WRITE_ZEROES, 0, 0, 0xffff_fe00, nospc),
        (cmd::WRITE_ZEROES, 0, u64::MAX - 511, 512, nospc),
        (cmd::BLOCK_STATUS, 0, 0, 0, inval),
        (cmd::BLOCK_STATUS, 0, MIB, 512, inval),
        (cmd::CACHE, 0, 0, 512, inval),
        (4711, 0, 0, 512, inval),
    ];
    for structured in [false, true] {
        with_server(1, Options::default(), one, move |net, listener, server| async move {
            let mut c = net.connect(listener);
            c.go(structured).await;
            for (kind, flags, offset, len, want) in cases {
                let (error, _) = c.ask(kind, flags, offset, len).await;
                assert_eq!(error, want, "{kind} flags {flags} {offset}+{len}");
            }
            assert_eq!(c.write(0, MIB, &[1; 512]).await, nospc, "a write beyond the end");
            assert_eq!(c.write(0, 100, &vec![1; 300_000]).await, inval, "an unaligned write");
            assert_eq!(c.write(0, 512, &[1; 512]).await, 0);
            assert_eq!(c.ask(cmd::READ, 0, 512, 512).await, (0, vec![1; 512]));
            assert_eq!(server.stats().errors_total, cases.len() as u64 + 2);
        });
    }
}

#[test]
fn writing_is_refused_on_a_read_only_export() {
    let read_only = || SingleExport { read_only: true, ..one() };
    with_server(1, Options::default(), read_only, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.go(false).await;
        assert_eq!(c.write(0, 0, &[1; 512]).await, 1);
        assert_eq!(c.ask(cmd::TRIM, 0, 0, 512).await.0, 1);
        assert_eq!(c.ask(cmd::WRITE_ZEROES, 0, 0, 512).await.0, 1);
        assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0).await.0, 0);
        assert_eq!(c.ask(cmd::READ, 0, 0, 512).await.0, 0);
    });
}

#[test]
fn nonsense_and_oversize_writes_end_only_their_own_connection() {
    with_server(1, Options::default(), one, |net, listener, _| async move {
        let mut good = net.connect(listener);
        good.go(false).await;
        let mut bad = net.connect(listener);
        bad.go(false).await;
        bad.request(cmd::READ, 0, 1, 0, 512).await;
        bad.request(cmd::WRITE, 0, 2, 0, (32 << 20) + 1).await;
        assert_eq!(bad.reply(|_| 512).await.0, 1, "what came before is answered");
        assert!(bad.at_end().await);
        let mut bad = net.connect(listener);
        bad.go(false).await;
        bad.send(&[0x55; 28]).await;
        assert!(bad.at_end().await);
        assert_eq!(good.ask(cmd::READ, 0, 0, 512).await.0, 0);
    });
}

#[test]
fn a_device_error_is_told_and_carries_no_data() {
    for structured in [false, true] {
        let disk = || {
            let disk = Disk::new(2048, MS);
            disk.bad.set(Some(Sector(3)));
            SingleExport::new(&disk)
        };
        with_server(1, Options::default(), disk, move |net, listener, _| async move {
            let mut c = net.connect(listener);
            c.go(structured).await;
            assert_eq!(c.ask(cmd::READ, 0, 0, 4096).await, (5, vec![]));
            assert_eq!(c.write(0, 1536, &[1; 512]).await, 5);
            assert_eq!(c.ask(cmd::READ, 0, 4096, 512).await, (0, vec![0; 512]));
        });
    }
}

#[test]
fn a_half_closed_client_gets_all_its_replies() {
    with_server(1, Options::default(), one, |net, listener, server| async move {
        let mut c = net.connect(listener);
        c.go(false).await;
        for cookie in 0..100 {
            c.request(cmd::READ, 0, cookie, 0, 4096).await;
        }
        net.half_close(c.file);
        for _ in 0..100 {
            assert_eq!(c.reply(|_| 4096).await.1, 0);
        }
        assert!(c.at_end().await);
        assert_eq!(server.stats().connections, 0);
    });
}

#[test]
fn the_guard_of_a_lost_client_lives_until_its_last_bio_ends() {
    let disk = Rc::new(Cell::new(None));
    let seen = disk.clone();
    let exports = move || {
        let one = SingleExport::new(&Disk::new(2048, Nanos::from_secs(1)));
        seen.set(Some((one.disk.clone(), one.opened.clone())));
        one
    };
    with_server(1, Options::default(), exports, |net, listener, server| async move {
        let (disk, opened) = disk.take().unwrap();
        let mut c = net.connect(listener);
        c.go(false).await;
        for cookie in 0..10 {
            c.request(cmd::READ, 0, cookie, 0, 4096).await;
        }
        c.request(cmd::WRITE, 0, 11, 0, 4096).await;
        c.send(&[1; 100]).await; // in the middle of a payload
        sleep(MS).await;
        c.close().await;
        sleep(Nanos::from_millis(500)).await;
        assert_eq!((disk.started.get(), disk.finished.get(), opened.get()), (10, 0, 1));
        let mut other = net.connect(listener);
        other.go(false).await;
        assert_eq!(other.ask(cmd::READ, 0, 0, 512).await.0, 0);
        assert_eq!((disk.finished.get(), opened.get()), (11, 1));
        assert_eq!(server.stats().connections, 1);
    });
}

#[test]
fn a_slow_reader_is_bounded_and_holds_nobody_else() {
    let disk = Rc::new(Cell::new(None));
    let seen = disk.clone();
    let exports = move || {
        let one = SingleExport::new(&Disk::new(4 << 11, MS));
        seen.set(Some(one.disk.clone()));
        one
    };
    let options = Options { bytes_max: 48 << 20, ..Options::default() };
    with_server(1, options, exports, |net, listener, _| async move {
        let disk = disk.take().unwrap();
        for _ in 0..3 {
            let mut slow = net.connect(listener);
            slow.go(false).await;
            for cookie in 0..200 {
                slow.request(cmd::READ, 0, cookie, 0, 1 << 20).await;
            }
            drop(slow); // stays connected and never reads
        }
        sleep(Nanos::from_secs(1)).await;
        // The shared budget, and each connection's reserve of 1 MiB.
        assert!(disk.started.get() <= 48 + 3, "{} MiB in flight", disk.started.get());
        let mut other = net.connect(listener);
        other.go(false).await;
        let before = now();
        pipeline(&mut other, 64).await;
        assert!(now() - before < Nanos::from_millis(20));
    });
}

#[test]
fn requests_in_flight_are_bounded() {
    let disk = Rc::new(Cell::new(None));
    let seen = disk.clone();
    let exports = move || {
        let one = SingleExport::new(&Disk::new(2048, Nanos::from_secs(1)));
        seen.set(Some(one.disk.clone()));
        one
    };
    let options = Options { requests_max: 10, ..Options::default() };
    with_server(1, options, exports, |net, listener, _| async move {
        let disk = disk.take().unwrap();
        let mut c = net.connect(listener);
        c.go(false).await;
        for cookie in 0..30 {
            c.request(cmd::READ, 0, cookie, 0, 512).await;
        }
        sleep(Nanos::from_millis(500)).await;
        assert_eq!(disk.started.get(), 10);
        for _ in 0..30 {
            c.reply(|_| 512).await;
        }
        assert_eq!(disk.finished.get(), 30);
    });
}

#[test]
fn requests_that_wait_on_a_stuck_device_keep_no_others_waiting() {
    let stuck = || SingleExport::new(&Disk::new(2048, Nanos::from_secs(3600)));
    with_server(1, Options::default(), stuck, |net, listener, server| async move {
        let request = Request { flags: 0, kind: cmd::READ, cookie: 1, offset: 0, len: 512 };
        for _ in 0..20 {
            let mut c = net.connect(listener);
            c.go(false).await;
            assert!(c.send(&request.encode().repeat(1024)).await);
        }
        sleep(MS).await;
        assert_eq!(server.stats().requests_total, 20 * 1024);
        let mut other = net.connect(listener);
        other.go(true).await;
        let before = now();
        // The one request that this device has no part in.
        other.ask(cmd::BLOCK_STATUS, 0, 0, 4096).await;
        assert!(now() - before < MS);
    });
}

#[test]
fn block_status_replies_that_nobody_takes_count_as_data() {
    let runs = (0..4096).map(|n| Run { sector: Sector(n * 2), len: Sector(1), flags: 1 });
    let exports =
        || SingleExport { dirty: Some(runs.collect()), ..SingleExport::new(&Disk::new(8192, MS)) };
    let options = Options { connection_bytes_max: 32 << 20, ..Options::default() };
    with_server(1, options, exports, |net, listener, server| async move {
        let mut c = net.connect(listener);
        c.go(true).await;
        let (offset, len) = (0, 4 << 20);
        let request = Request { flags: 0, kind: cmd::BLOCK_STATUS, cookie: 1, offset, len };
        assert!(c.send(&request.encode().repeat(1024)).await);
        sleep(MS).await;
        // A reply has up to 4096 extents of 8 bytes for each of two contexts.
        let taken = server.stats().requests_total;
        assert!(taken < (32 << 20) / (2 * 4096 * 8), "{taken} replies of 64 KiB wait");
        for _ in 0..2 * 1024 {
            c.reply(|_| 0).await;
        }
        assert_eq!(c.ask(cmd::READ, 0, 0, 512).await.0, 0, "the budget was given back");
    });
}

/// Found by an attack from outside: a flush that stood for FUA of zeroes reported an error of the
/// device below, as an error of the zeroes; the client's FLUSH got no error and succeeded,
/// though other writes were lost.
#[test]
fn a_flush_that_stands_for_fua_has_another_opener() {
    let disk = Rc::new(Cell::new(None));
    let seen = disk.clone();
    let exports = move || {
        let one = SingleExport::new(&Disk::with(Limits::new(Sector(8192)), MS));
        seen.set(Some(one.disk.clone()));
        one
    };
    with_server(1, Options::default(), exports, move |net, listener, _| async move {
        let disk: Rc<Disk> = disk.take().unwrap();
        let mut c = net.connect(listener);
        c.go(false).await;
        for (kind, flags) in
            [(cmd::FLUSH, 0), (cmd::TRIM, 1), (cmd::WRITE_ZEROES, 1), (cmd::FLUSH, 0)]
        {
            let len = if kind == cmd::FLUSH { 0 } else { 4096 };
            assert_eq!(c.ask(kind, flags, 0, len).await.0, 0);
        }
        let by = disk.flushed_by.take();
        assert_eq!((by[0], by[1]), (by[3], by[2]));
        assert_ne!(by[0], by[1]);
    });
}

#[test]
fn flush_fua_trim_and_zeroes_reach_the_device_as_it_needs_them() {
    for write_zeroes in [false, true] {
        let disk = Rc::new(Cell::new(None));
        let seen = disk.clone();
        let exports = move || {
            let limits = Limits { write_zeroes, ..Limits::new(Sector(8192)) };
            let one = SingleExport::new(&Disk::with(limits, MS));
            seen.set(Some(one.disk.clone()));
            one
        };
        with_server(1, Options::default(), exports, move |net, listener, _| async move {
            let disk = disk.take().unwrap();
            let mut c = net.connect(listener);
            c.go(false).await;
            assert_eq!(c.write(1, 0, &vec![7; 4 << 20]).await, 0);
            assert_eq!((disk.fuas.get(), disk.flushes.get()), (1, 0));
            assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0).await.0, 0);
            assert_eq!(c.ask(cmd::TRIM, 0, 0, 4096).await.0, 0, "advice that can't be followed");
            assert_eq!(disk.flushes.get(), 1);
            assert_eq!(c.ask(cmd::TRIM, 1, 0, 4096).await.0, 0);
            assert_eq!(disk.flushes.get(), 2, "FUA on a trim is a flush after it");
            let fast = c.ask(cmd::WRITE_ZEROES, 1 << 4, 0, 4096).await.0;
            assert_eq!(fast, if write_zeroes { 0 } else { 95 });
            assert_eq!(c.ask(cmd::WRITE_ZEROES, 1, 512, (3 << 20) + 512).await.0, 0);
            assert_eq!(disk.flushes.get(), 3);
            let data = disk.data.borrow();
            let end = 512 + (3 << 20) + 512;
            assert!(data[512..end].iter().all(|b| *b == 0), "zeroed");
            assert!(data[end..4 << 20].iter().all(|b| *b == 7), "not more");
        });
    }
}

#[test]
fn block_status_tells_allocation_and_dirty_runs() {
    let run = |sector, len| Run { sector: Sector(sector), len: Sector(len), flags: 1 };
    let exports =
        move || SingleExport { dirty: Some(vec![run(0, 8), run(8, 8), run(100, 10)]), ..one() };
    with_server(1, Options::default(), exports, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.go(true).await;
        let words = |bytes: Vec<u8>| -> Vec<u32> {
            bytes.as_chunks().0.iter().map(|w| u32::from_be_bytes(*w)).collect()
        };
        c.request(cmd::BLOCK_STATUS, 0, 5, 4096, 64 << 10).await;
        assert_eq!(words(c.reply(|_| 0).await.2), [1, 64 << 10, 0]);
        let dirty = [2, 4096, 1, 84 * 512, 0, 10 * 512, 1, 26 * 512, 0];
        assert_eq!(words(c.reply(|_| 0).await.2), dirty);
        c.request(cmd::BLOCK_STATUS, 1 << 3, 5, 4096, 64 << 10).await;
        assert_eq!(words(c.reply(|_| 0).await.2), [1, 64 << 10, 0]);
        assert_eq!(words(c.reply(|_| 0).await.2), [2, 4096, 1]);
        assert_eq!(c.ask(cmd::READ, 0, 0, 512).await.0, 0, "two chunks were one request");
        for (offset, len) in [((1 << 20) - 512, 1024), (1 << 20, 512), (u64::MAX - 511, 512)] {
            assert_eq!(c.ask(cmd::BLOCK_STATUS, 0, offset, len).await.0, 22, "beyond the end");
        }
    });
}

#[test]
fn block_status_needs_a_context() {
    with_server(1, Options::default(), one, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.go(false).await;
        assert_eq!(c.ask(cmd::BLOCK_STATUS, 0, 0, 512).await.0, 22);
    });
}

#[test]
fn shutdown_answers_what_is_in_flight_and_closes_the_rest() {
    let slow = || SingleExport::new(&Disk::new(2048, Nanos::from_secs(1)));
    with_server(1, Options::default(), slow, |net, listener, server| async move {
        let mut busy = net.connect(listener);
        busy.go(false).await;
        for cookie in 0..20 {
            busy.request(cmd::READ, 0, cookie, 0, 4096).await;
        }
        let mut idle = net.connect(listener);
        idle.go(false).await;
        let mut halfway = net.connect(listener);
        halfway.go(false).await;
        halfway.request(cmd::WRITE, 0, 1, 0, 4096).await;
        let mut greeting = net.connect(listener);
        greeting.greet().await;
        sleep(MS).await;
        let before = now();
        let ended = Rc::new(Cell::new(false));
        let set = ended.clone();
        spawn(async move {
            server.shutdown().await;
            set.set(true);
        });
        sleep(MS).await;
        busy.request(cmd::READ, 0, 99, 0, 4096).await;
        for _ in 0..20 {
            let (cookie, error, _) = busy.reply(|_| 4096).await;
            assert!(cookie < 20 && error == 0);
        }
        assert!(busy.at_end().await && idle.at_end().await);
        assert!(halfway.at_end().await && greeting.at_end().await);
        assert!(now() - before < Nanos::from_secs(2));
        sleep(MS).await;
        assert!(ended.get() && !net.is_open(listener));
    });
}

#[test]
fn shutdown_cuts_off_a_client_that_takes_no_replies() {
    with_server(1, Options::default(), one, |net, listener, server| async move {
        let mut c = net.connect(listener);
        c.go(false).await;
        for cookie in 0..20 {
            c.request(cmd::READ, 0, cookie, 0, 1 << 20).await;
        }
        sleep(Nanos::from_secs(1)).await;
        let before = now();
        server.shutdown().await;
        // It has taken nothing for a second already, and 30 are the limit of either.
        let waited = now() - before;
        assert!((Nanos::from_secs(29)..Nanos::from_secs(32)).contains(&waited), "{waited:?}");
    });
}

/// 28 bytes ask for 4 GiB of zeroes, and a connection may have 1024 such requests in flight.
#[test]
fn a_session_ends_while_much_is_filled_with_zeroes() {
    let slow = || SingleExport::new(&Disk::new(1 << 18, Nanos::from_secs(10)));
    with_server(1, Options::default(), slow, |net, listener, server| async move {
        let mut c = net.connect(listener);
        c.go(false).await;
        c.request(cmd::WRITE_ZEROES, 0, 1, 0, 128 << 20).await;
        sleep(MS).await;
        let before = now();
        server.shutdown().await;
        // The 30 seconds for its reply, and a write that is under way.
        let waited = now() - before;
        assert!(waited < Nanos::from_secs(45), "{waited:?}");
    });
}
