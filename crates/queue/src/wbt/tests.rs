// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The throttle against a driver that ends requests when it is told to: who goes, who waits, what
//! lets them go. Planted faults show that each would be found.
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use block::{Base, BlockDevice, Buf, Bufs, Class, Flags, Limits, Nanos, Op, Sector, Status};
use policy::wbt::{LatencyTarget, Mode};
use reactor::{FileId, discard, flush, io, read, sleep, spawn, write, write_zeroes, yield_now};

use crate::FileLeaf;
use crate::planted::Fault;
use crate::testing::{Script, with_core};

mod windows;

const BLOCK: u64 = 4096;

fn leaf(mode: Mode, queue_depth: u32) -> Rc<FileLeaf> {
    let limits = Limits {
        discard_granularity_bytes: 512,
        write_zeroes: true,
        volatile_cache: false,
        queue_depth,
        ..Limits::new(Sector(1 << 30))
    };
    let leaf = FileLeaf::new("disk0", FileId(7), limits);
    leaf.wbt().set_mode(mode);
    Rc::new(leaf)
}

fn data(bytes: u64) -> Bufs {
    Buf::zeroed(usize::try_from(bytes).unwrap()).into()
}

/// Runs `test` with a driver that keeps what it is given.
fn keeping<F: Future<Output = ()> + 'static>(test: impl FnOnce(Script) -> F) {
    let script = Script::default();
    script.keep();
    with_core(script.driver(), test(script));
}

/// Counts how bios have ended that no task waits for.
#[derive(Clone, Default)]
struct Endings {
    ok: Rc<Cell<u32>>,
    failed: Rc<Cell<u32>>,
}

impl Endings {
    /// Sends a write of `bytes` whose end is counted.
    fn write(&self, leaf: &Rc<FileLeaf>, flags: Flags, class: Class, at: u64, bytes: u64) {
        let sent = write(&**leaf, flags, class, Sector::from_bytes(at), data(bytes));
        self.count(sent);
    }

    fn background(&self, leaf: &Rc<FileLeaf>, at: u64, bytes: u64) {
        self.write(leaf, Flags::BACKGROUND, Class::Background, at, bytes);
    }

    fn count(&self, sent: impl Future<Output = Result<(), Status>> + 'static) {
        let ends = self.clone();
        spawn(async move {
            let end = if sent.await.is_ok() { &ends.ok } else { &ends.failed };
            end.set(end.get() + 1);
        });
    }

    fn all(&self) -> u32 {
        self.ok.get() + self.failed.get()
    }
}

/// Until everything that was sent and released has come through.
async fn settle() {
    for _ in 0..8 {
        yield_now().await;
    }
}

fn waiting(leaf: &FileLeaf) -> usize {
    leaf.wbt().report().waiting.iter().sum()
}

/// Nothing is left behind.
fn check_idle(leaf: &FileLeaf) {
    let report = leaf.wbt().report();
    assert_eq!((report.in_flight, report.in_flight_bytes), ([0, 0], 0));
    assert_eq!(waiting(leaf), 0);
    assert_eq!(leaf.stats().in_flight(), 0);
    assert!(leaf.wbt().throttle().line().is_none());
}

#[test]
fn background_writes_wait_in_order_and_each_end_lets_one_go() {
    keeping(|script| async move {
        let (leaf, ends) = (leaf(Mode::Kernel, 16), Endings::default());
        for nth in 0..20 {
            ends.background(&leaf, nth * BLOCK, BLOCK);
        }
        settle().await;
        let line = |nth: u64| format!("write {}+4096", nth * BLOCK);
        assert_eq!(script.take_seen(), (0..4).map(line).collect::<Vec<_>>(), "background: 4");
        assert_eq!(waiting(&leaf), 16);
        assert_eq!(leaf.wbt().report().in_flight, [4, 0]);
        assert_eq!(leaf.stats().in_flight(), 20, "QU-W5");
        for nth in 0..16 {
            script.release(1);
            settle().await;
            assert_eq!(script.take_seen(), [line(nth + 4)]);
        }
        script.release(4);
        settle().await;
        assert_eq!(ends.ok.get(), 20);
        assert_eq!(leaf.wbt().report().waits, 16);
        check_idle(&leaf);
    });
}

#[test]
fn limits_go_by_who_writes() {
    keeping(|script| async move {
        let (leaf, ends) = (leaf(Mode::Kernel, 16), Endings::default());
        let sent = |flags, class, count: u64| {
            (0..count).for_each(|nth| ends.write(&leaf, flags, class, nth * BLOCK, BLOCK));
        };
        sent(Flags::BACKGROUND, Class::Normal, 4);
        sent(Flags::empty(), Class::Normal, 4);
        sent(Flags::META, Class::Background, 4);
        sent(Flags::empty(), Class::Foreground, 4);
        settle().await;
        assert_eq!((script.kept(), waiting(&leaf)), (16, 0));
        sent(Flags::FUA, Class::Normal, 1);
        settle().await;
        assert_eq!((script.kept(), waiting(&leaf)), (16, 1), "the most at all");
        script.release(17);
        settle().await;
        script.release(1);
        settle().await;
        assert_eq!(ends.ok.get(), 17);
        check_idle(&leaf);
    });
}

fn reads_of_writeback(fault: Option<Fault>) {
    for mode in Mode::ALL {
        keeping(move |script| async move {
            let (leaf, ends) = (leaf(mode, 16), Endings::default());
            leaf.wbt().throttle().planted.set(fault.into());
            ends.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
            settle().await;
            for nth in 0..20 {
                let at = Sector::from_bytes(nth << 20);
                ends.count(read(&*leaf, Class::Background, at, data(1 << 20)));
            }
            settle().await;
            match mode {
                Mode::Tail => assert!(waiting(&leaf) > 10, "{} wait", waiting(&leaf)),
                Mode::Kernel => assert_eq!(waiting(&leaf), 0),
            }
            let report = leaf.wbt().report();
            assert_eq!(report.splits > 0, mode == Mode::Tail);
            assert!(report.in_flight_bytes <= report.control.limit_bytes, "the lowest limit");
            while ends.all() < 21 {
                script.release(usize::MAX);
                sleep(Nanos::from_millis(1)).await;
            }
            assert_eq!(leaf.stats().of(Op::Read).bytes, (20 << 20) + BLOCK);
            check_idle(&leaf);
        });
    }
}

#[test]
fn writeback_reads_wait_in_tail_mode_only() {
    reads_of_writeback(None);
}

#[test]
#[should_panic(expected = "0 wait")]
fn reads_of_writeback_that_pass_would_be_found() {
    reads_of_writeback(Some(Fault::ReadsPass));
}

#[test]
fn reads_flushes_zeroes_and_direct_writes_never_wait() {
    for mode in Mode::ALL {
        keeping(|script| async move {
            let (leaf, ends) = (leaf(mode, 16), Endings::default());
            ends.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
            settle().await;
            for nth in 0..40 {
                ends.background(&leaf, nth << 20, 1 << 20);
                ends.count(discard(&*leaf, Class::Normal, Sector(nth * 8), Sector(8)));
            }
            settle().await;
            assert!(waiting(&leaf) > 20, "{}", waiting(&leaf));
            script.take_seen();
            let zeroes = write_zeroes(&*leaf, Flags::empty(), Class::Normal, Sector(0), Sector(8));
            ends.count(zeroes);
            ends.count(flush(&*leaf, Class::Foreground));
            ends.count(read(&*leaf, Class::Idle, Sector(8), data(BLOCK)));
            ends.write(&leaf, Flags::SYNC | Flags::IDLE, Class::Foreground, 0, 1 << 20);
            settle().await;
            assert_eq!(
                script.take_seen(),
                ["write_zeroes 0+4096 unmap", "flush", "read 4096+4096", "write 0+1048576"]
            );
            while ends.all() < 85 {
                script.release(usize::MAX);
                sleep(Nanos::from_millis(1)).await;
            }
            check_idle(&leaf);
        });
    }
}

/// QU-W3; and what a fault there would look like.
fn switched_off(turn: fn(&FileLeaf), fault: Option<Fault>) {
    for mode in Mode::ALL {
        keeping(|script| async move {
            let (leaf, ends) = (leaf(mode, 16), Endings::default());
            ends.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
            for nth in 0..100 {
                ends.background(&leaf, nth << 20, 1 << 20);
            }
            settle().await;
            assert!(waiting(&leaf) >= 96);
            leaf.wbt().throttle().planted.set(fault.into());
            turn(&leaf);
            // At once: nothing has ended, no window either.
            assert_eq!(waiting(&leaf), 0, "{mode:?}: who waits goes");
            while ends.all() < 101 {
                sleep(Nanos::from_millis(1)).await;
                script.release(usize::MAX);
            }
            check_idle(&leaf);
        });
    }
}

#[test]
fn switched_off_it_lets_everybody_go() {
    switched_off(|leaf| leaf.wbt().set_target(LatencyTarget::Off), None);
    switched_off(|leaf| leaf.wbt().set("queue/wbt_lat_usec", "0").unwrap(), None);
}

#[test]
#[should_panic(expected = "who waits goes")]
fn a_switch_that_wakes_nobody_would_be_found() {
    switched_off(|leaf| leaf.wbt().set_target(LatencyTarget::Off), Some(Fault::NoWakeOnChange));
}

#[test]
fn with_another_law_goes_who_may_by_it() {
    for first in Mode::ALL {
        keeping(|script| async move {
            let (leaf, ends) = (leaf(first, 1), Endings::default());
            ends.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
            for nth in 0..10 {
                ends.background(&leaf, nth << 20, 1 << 20);
            }
            settle().await;
            leaf.wbt().set_mode(Mode::Kernel);
            let before = leaf.wbt().report();
            leaf.wbt().set_queue_depth(64);
            let report = leaf.wbt().report();
            assert_eq!((report.depth.background, report.in_flight), (4, [4, 0]));
            assert!(before.in_flight[0] < 4);
            while ends.all() < 11 {
                script.release(1);
                sleep(Nanos(1000)).await;
            }
            check_idle(&leaf);
        });
    }
}

fn all_end(fault: Option<Fault>) {
    for mode in Mode::ALL {
        keeping(|script| async move {
            let (leaf, ends) = (leaf(mode, 4), Endings::default());
            leaf.wbt().throttle().planted.set(fault.into());
            ends.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
            for nth in 0..50 {
                ends.background(&leaf, nth << 20, 1 << 20);
            }
            // Less than a window, in which nobody is let go by anything but an end.
            settle().await;
            while script.kept() > 0 {
                script.release(1);
                settle().await;
            }
            assert_eq!(ends.ok.get(), 51, "{mode:?}: somebody waits for ever");
            check_idle(&leaf);
        });
    }
}

#[test]
fn ends_alone_let_everybody_go() {
    all_end(None);
}

#[test]
#[should_panic(expected = "somebody waits for ever")]
fn a_lost_wake_up_would_be_found() {
    all_end(Some(Fault::LoseWakeUp));
}

#[test]
#[should_panic(expected = "somebody waits for ever")]
fn a_token_that_is_not_given_back_would_be_found() {
    all_end(Some(Fault::LeakToken));
}

/// A long write beside reads, in pieces that the driver ends as they come.
async fn cut(script: &Script, leaf: &Rc<FileLeaf>, fault: Option<Fault>) -> (Vec<String>, Endings) {
    let ends = Endings::default();
    leaf.wbt().throttle().planted.set(fault.into());
    let first = Endings::default();
    first.count(read(&**leaf, Class::Foreground, Sector(0), data(BLOCK)));
    settle().await;
    script.take_seen();
    ends.background(leaf, 1 << 30, 8 << 20);
    while script.kept() > 0 {
        script.release(1);
        settle().await;
    }
    assert_eq!(ends.all(), 1, "it ends once");
    assert_eq!(first.all(), 1);
    (script.take_seen(), ends)
}

#[test]
fn pieces_are_the_whole_in_order() {
    keeping(|script| async move {
        let leaf = leaf(Mode::Tail, 16);
        let (seen, ends) = cut(&script, &leaf, None).await;
        assert_eq!(ends.ok.get(), 1);
        assert!(seen.len() > 8, "{} pieces", seen.len());
        let mut at: u64 = 1 << 30;
        for line in seen {
            let (from, len) = line.strip_prefix("write ").unwrap().split_once('+').unwrap();
            assert_eq!(from.parse(), Ok(at));
            let len: u64 = len.parse().unwrap();
            assert_eq!(len % 4096, 0);
            at += len;
        }
        assert_eq!(at, (1 << 30) + (8 << 20));
        let counts = leaf.stats().of(Op::Write);
        assert_eq!((counts.ios, counts.bytes), (1, 8 << 20), "one bio for those who count");
        assert_eq!(leaf.wbt().report().splits, 1);
        check_idle(&leaf);
    });
}

async fn cut_and_fail(script: Script, fault: Option<Fault>) {
    let leaf = leaf(Mode::Tail, 16);
    let failing = script.clone();
    // The read goes first: the second piece of the write is the third request.
    spawn(async move {
        while failing.kept() == 0 {
            yield_now().await;
        }
        failing.fail_next(Status::NoSpace);
    });
    let (seen, ends) = cut(&script, &leaf, fault).await;
    assert_eq!(ends.failed.get(), 1, "a failed piece");
    assert!(seen.len() < 64, "what is left of it is given up");
    let said = leaf.stats().last_error().unwrap();
    assert_eq!((said.cause, said.sector), (Status::NoSpace, Sector::from_bytes(1 << 30)));
    assert_eq!(leaf.stats().of(Op::Write).errors, 1);
    check_idle(&leaf);
}

#[test]
fn a_bio_in_pieces_fails_once_with_what_failed_first() {
    keeping(|script| cut_and_fail(script, None));
}

#[test]
#[should_panic(expected = "a failed piece")]
fn a_forgotten_error_would_be_found() {
    keeping(|script| cut_and_fail(script, Some(Fault::ForgetError)));
}

#[test]
fn who_waits_is_waited_for() {
    keeping(|script| async move {
        let (leaf, ends) = (leaf(Mode::Kernel, 1), Endings::default());
        for nth in 0..5 {
            ends.background(&leaf, nth * BLOCK, BLOCK);
        }
        settle().await;
        assert_eq!((script.kept(), waiting(&leaf)), (1, 4));
        let quiet = Rc::new(Cell::new(false));
        let (base, set) = (leaf.clone(), quiet.clone());
        spawn(async move {
            base.quiesced().await;
            set.set(true);
        });
        for _ in 0..5 {
            assert!(!quiet.get());
            script.release(1);
            settle().await;
        }
        assert!(quiet.get());
        assert_eq!(ends.ok.get(), 5);
        check_idle(&leaf);
    });
}

/// QU-W6: a steady stream of urgent writes leaves the background something.
#[test]
fn nobody_starves_by_our_law() {
    keeping(|script| async move {
        let (leaf, ends) = (leaf(Mode::Tail, 16), Endings::default());
        let reads = Endings::default();
        reads.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
        settle().await;
        let urgent = Rc::new(Cell::new(0));
        for nth in 0..16 {
            let (leaf, urgent, long) = (leaf.clone(), urgent.clone(), data(1 << 20));
            spawn(async move {
                while leaf.wbt().target() != LatencyTarget::Off {
                    let (class, at) = (Class::Foreground, Sector(nth << 11));
                    write(&*leaf, Flags::SYNC, class, at, long.clone()).await.unwrap();
                    urgent.set(urgent.get() + 1);
                }
            });
        }
        settle().await;
        ends.background(&leaf, 0, 64 << 10);
        while ends.all() == 0 {
            reads.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
            script.release(4);
            sleep(Nanos::from_millis(1)).await;
            assert!(reactor::now() < Nanos::from_secs(30), "it starves: {:?}", leaf.wbt().report());
        }
        assert!(urgent.get() > 0 && leaf.wbt().report().overdue > 0);
        leaf.wbt().set_target(LatencyTarget::Off);
        while leaf.stats().in_flight() > 0 {
            script.release(usize::MAX);
            sleep(Nanos::from_millis(1)).await;
        }
        check_idle(&leaf);
    });
}

#[test]
fn a_leaf_may_go_while_somebody_waits_for_it() {
    keeping(|script| async move {
        let (leaf, ends) = (leaf(Mode::Kernel, 1), Endings::default());
        for nth in 0..5 {
            ends.background(&leaf, nth * BLOCK, BLOCK);
        }
        settle().await;
        drop(leaf);
        for _ in 0..5 {
            script.release(1);
            settle().await;
        }
        assert_eq!(ends.ok.get(), 5);
    });
}

#[test]
fn a_power_cut_takes_who_waits_along_whoever_holds_the_leaf() {
    for mode in Mode::ALL {
        let script = Script::default();
        script.keep();
        let core = reactor::Reactor::enter(block::CoreId(0), script.driver());
        let leaf = core.block_on(async move {
            let (leaf, ends) = (leaf(mode, 1), Endings::default());
            ends.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
            for nth in 0..5 {
                ends.background(&leaf, nth << 20, 1 << 20);
            }
            settle().await;
            assert!(waiting(&leaf) > 0);
            leaf
        });
        drop(core);
        drop(leaf);
    }
}

#[test]
fn attributes_say_what_is_and_what_is_allowed() {
    let script = Script::default();
    with_core(script.driver(), async {
        let leaf = leaf(Mode::Tail, 0);
        let wbt = leaf.wbt();
        let get = |name: &str| wbt.get(name).unwrap();
        assert_eq!(get("queue/nr_requests"), "128");
        assert_eq!(get("queue/wbt_lat_usec"), "2000");
        assert_eq!(get("queue/wbt_mode"), "[tail] kernel");
        for (name, value, then) in [
            ("queue/wbt_lat_usec", "75000", "75000"),
            ("queue/wbt_lat_usec", "0", "0"),
            ("queue/wbt_lat_usec", "-1\n", "2000"),
            ("queue/wbt_lat_usec", "1.5ms", "1500"),
            ("queue/wbt_lat_usec", "+75000", "75000"),
            ("queue/wbt_mode", "TAIL", "[tail] kernel"),
            ("queue/nr_requests", "+64", "64"),
            ("queue/wbt_mode", "kernel", "tail [kernel]"),
            ("queue/nr_requests", "65536", "65536"),
        ] {
            wbt.set(name, value).unwrap();
            assert_eq!(get(name), then);
        }
        for (name, value, why) in [
            (
                "queue/wbt_lat_usec",
                "-2",
                "disk0: queue/wbt_lat_usec: `-2`: -1, or 0 to 10000000 us",
            ),
            ("queue/wbt_lat_usec", "10000001", "or 0 to 10000000 us"),
            ("queue/wbt_lat_usec", "off", "-1, or 0 to 10000000 us"),
            ("queue/wbt_mode", "fast", "queue/wbt_mode: `fast`: tail or kernel is allowed"),
            ("queue/nr_requests", "0", "`0`: a number from 1 to 65536 is allowed"),
            ("queue/wbt_stats", "0", "is read-only"),
            ("queue/depth", "0", "there are queue/nr_requests, queue/wbt_lat"),
        ] {
            let e = wbt.set(name, value).unwrap_err().to_string();
            assert!(e.contains(why), "{name}: {e}");
        }
        assert!(wbt.get("queue/depth").is_err());
        let stats = get("queue/wbt_stats").to_string();
        assert!(stats.contains("mode kernel\n") && stats.contains("depth_max 16\n"), "{stats}");
        for spec in super::Wbt::attributes() {
            assert!(spec.access.reads());
        }
    });
}

#[test]
fn off_it_is_as_if_it_were_not_there() {
    keeping(|script| async move {
        let (leaf, ends) = (leaf(Mode::Tail, 1), Endings::default());
        leaf.wbt().set_target(LatencyTarget::Off);
        for nth in 0..100 {
            ends.background(&leaf, nth << 20, 1 << 20);
            let range = (Sector(nth * 8), Sector(8));
            let class = Class::Idle;
            let sent = io(&*leaf, Op::Discard, Flags::empty(), class, range, Bufs::new());
            ends.count(sent);
        }
        settle().await;
        assert_eq!((script.kept(), leaf.wbt().report().in_flight), (200, [0, 0]));
        leaf.writer_throttled();
        script.release(200);
        settle().await;
        assert_eq!(ends.ok.get(), 200);
        check_idle(&leaf);
    });
}

/// Leaves of one core on one file share tokens, too: an end at one lets those at the other go.
fn two_leaves(fault: Option<Fault>) {
    for mode in Mode::ALL {
        keeping(|script| async move {
            let (one, ends) = (leaf(mode, 1), Endings::default());
            let two = FileLeaf::with_wbt("twin", FileId(7), one.limits(), &one.shared_wbt());
            let two = Rc::new(two);
            one.wbt().throttle().planted.set(fault.into());
            ends.count(read(&*two, Class::Foreground, Sector(0), data(BLOCK)));
            settle().await;
            script.release(1);
            settle().await;
            for nth in 0..4 {
                ends.background(&one, nth << 20, 1 << 20);
                ends.background(&two, nth << 20, 1 << 20);
            }
            settle().await;
            assert_eq!(waiting(&one) + waiting(&two), if mode == Mode::Kernel { 7 } else { 8 });
            while script.kept() > 0 {
                script.release(1);
                settle().await;
            }
            assert_eq!(ends.ok.get(), 9, "{mode:?}: somebody waits for ever");
            assert_eq!(two.wbt().mode(), mode);
            check_idle(&one);
            check_idle(&two);
        });
    }
}

#[test]
fn leaves_on_one_file_let_each_other_go() {
    two_leaves(None);
}

#[test]
#[should_panic(expected = "somebody waits for ever")]
fn a_leaf_that_keeps_an_end_to_itself_would_be_found() {
    two_leaves(Some(Fault::WakeNoPeer));
}
