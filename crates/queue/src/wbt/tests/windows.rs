// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Windows: when there are any, what they let go, and what they see.
use std::rc::Rc;

use block::{BlockDevice, Bufs, Class, Flags, Nanos, Op, Sector};
use policy::wbt::Mode;
use reactor::{FileId, flush, io, read, sleep, write, write_zeroes};

use super::{BLOCK, Endings, check_idle, data, keeping, leaf, settle};
use crate::FileLeaf;
use crate::planted::Fault;
use crate::testing::{Script, with_core};

/// The window's task ends by itself, whatever the step was: `with_core` returns only when nothing
/// can happen any more, but a core with a task that sleeps goes on.
#[test]
fn an_idle_device_has_no_timer() {
    for mode in Mode::ALL {
        for queue_depth in [1, 2, 16, 128] {
            let script = Script::default();
            let core = reactor::Reactor::enter(block::CoreId(0), script.driver());
            let leaf = core.block_on(async move {
                let (leaf, ends) = (leaf(mode, queue_depth), Endings::default());
                for nth in 0..10 {
                    ends.background(&leaf, nth * BLOCK, BLOCK);
                    sleep(Nanos::from_millis(90)).await;
                }
                leaf
            });
            core.run(|| false);
            assert_eq!(core.core().next_timer(), None);
            let windows: u64 = leaf.wbt().report().windows.iter().sum();
            assert!((5..400).contains(&windows), "{mode:?} {queue_depth}: {windows} windows");
            drop(core);
        }
    }
}

/// Writes alone are boosted window by window, and each lets more of them go; nothing has ended.
fn windows_raise_the_limits(fault: Option<Fault>) {
    keeping(move |script| async move {
        let (leaf, ends) = (leaf(Mode::Kernel, 128), Endings::default());
        leaf.wbt().throttle().planted.set(fault.into());
        (0..40).for_each(|nth| ends.background(&leaf, nth * BLOCK, BLOCK));
        settle().await;
        for (in_flight, step) in [(4, 0), (8, -1), (16, -2), (24, -3), (24, -3)] {
            let report = leaf.wbt().report();
            let now = (script.kept(), report.step);
            assert_eq!(now, (in_flight, step), "more may go");
            sleep(Nanos::from_millis(100)).await;
            settle().await;
        }
        while ends.all() < 40 {
            script.release(1);
            settle().await;
        }
        check_idle(&leaf);
    });
}

#[test]
fn a_window_that_raises_the_limits_lets_more_go() {
    windows_raise_the_limits(None);
}

#[test]
#[should_panic(expected = "more may go")]
fn a_leaf_that_keeps_to_what_was_in_force_would_be_found() {
    windows_raise_the_limits(Some(Fault::StaleLimits));
}

/// Whether the law has seen reads beside which nothing else was in flight.
async fn clean_reads(beside: Option<Op>) -> bool {
    let (leaf, ends) = (leaf(Mode::Tail, 16), Endings::default());
    let send = |op| {
        let len = if op == Op::Flush { Sector(0) } else { Sector(8) };
        let bufs = if op == Op::Write { data(BLOCK) } else { Bufs::new() };
        io(&*leaf, op, Flags::empty(), Class::Normal, (Sector(0), len), bufs)
    };
    for _ in 0..20 {
        if let Some(op) = beside {
            ends.count(send(op));
        }
        read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)).await.unwrap();
        settle().await;
    }
    send(Op::Write).await.unwrap();
    sleep(Nanos::from_millis(300)).await;
    leaf.wbt().report().control.clean_read_ns.is_some()
}

#[test]
fn reads_are_clean_if_nothing_else_is_in_flight() {
    for beside in [None, Some(Op::Write), Some(Op::Flush), Some(Op::WriteZeroes), Some(Op::Discard)]
    {
        let script = Script::default();
        with_core(script.driver(), async move {
            assert_eq!(clean_reads(beside).await, beside.is_none(), "{beside:?}");
        });
    }
}

/// One that has ended is none beside which reads are.
#[test]
fn reads_are_clean_again_when_the_others_have_ended() {
    let script = Script::default();
    with_core(script.driver(), async {
        let leaf = leaf(Mode::Tail, 16);
        flush(&*leaf, Class::Normal).await.unwrap();
        write_zeroes(&*leaf, Flags::empty(), Class::Normal, Sector(0), Sector(8)).await.unwrap();
        for _ in 0..20 {
            read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)).await.unwrap();
        }
        write(&*leaf, Flags::empty(), Class::Normal, Sector(0), data(BLOCK)).await.unwrap();
        sleep(Nanos::from_millis(300)).await;
        assert!(leaf.wbt().report().control.clean_read_ns.is_some());
    });
}

/// The leaf whose write began the windows has gone: they go on where somebody waits.
#[test]
fn windows_go_on_when_the_leaf_that_began_them_goes() {
    keeping(|script| async move {
        let (one, ends) = (leaf(Mode::Kernel, 128), Endings::default());
        let two = Rc::new(FileLeaf::with_wbt("twin", FileId(7), one.limits(), &one.shared_wbt()));
        ends.background(&two, 0, BLOCK);
        settle().await;
        (0..40).for_each(|nth| ends.background(&one, nth * BLOCK, BLOCK));
        settle().await;
        script.release(1);
        settle().await;
        drop(two);
        assert_eq!(script.kept(), 4);
        sleep(Nanos::from_millis(150)).await;
        settle().await;
        assert_eq!(script.kept(), 4, "a window that nobody closed");
        sleep(Nanos::from_millis(100)).await;
        settle().await;
        assert_eq!((script.kept(), one.wbt().report().step), (8, -1), "the next is");
        while ends.all() < 41 {
            script.release(1);
            settle().await;
        }
        check_idle(&one);
    });
}

/// A read that does not come back is too slow before it has ended, and none of the next windows'
/// when it has.
#[test]
fn a_read_is_watched_while_it_is_with_the_device() {
    keeping(|script| async move {
        let (leaf, ends) = (leaf(Mode::Kernel, 128), Endings::default());
        ends.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
        settle().await;
        ends.background(&leaf, 0, BLOCK);
        sleep(Nanos::from_millis(110)).await;
        assert_eq!(leaf.wbt().report().step, 1, "longer than the target");
        sleep(Nanos::from_millis(80)).await;
        assert_eq!(leaf.wbt().report().step, 2);
        script.release(1);
        settle().await;
        let too_slow = leaf.wbt().report().windows[1];
        sleep(Nanos::from_millis(250)).await;
        let report = leaf.wbt().report();
        assert_eq!((report.windows[1], ends.ok.get()), (too_slow, 1), "{report:?}");
        script.release(1);
        settle().await;
        check_idle(&leaf);
    });
}

/// A read counts if somebody waits for it.
#[test]
fn reads_of_writeback_and_reads_ahead_are_not_measured() {
    for (mode, class) in Mode::ALL.into_iter().flat_map(|mode| {
        [Class::Foreground, Class::Background, Class::Idle].map(|class| (mode, class))
    }) {
        keeping(move |script| async move {
            let (leaf, ends) = (leaf(mode, 16), Endings::default());
            ends.background(&leaf, 0, BLOCK);
            for _ in 0..10 {
                ends.count(read(&*leaf, class, Sector(8), data(BLOCK)));
                settle().await;
                script.release_newest();
                settle().await;
            }
            assert_eq!((ends.ok.get(), script.kept()), (10, 1));
            sleep(Nanos::from_millis(105)).await;
            let report = leaf.wbt().report();
            assert_eq!(report.windows.iter().sum::<u64>(), 1);
            let is_measured = report.read_p50_ns.is_some();
            assert_eq!(is_measured, class == Class::Foreground, "{mode:?} {class:?}");
            script.release(1);
            settle().await;
            check_idle(&leaf);
        });
    }
}

#[test]
fn a_read_is_not_clean_if_a_write_was_in_flight_beside_it() {
    keeping(|script| async move {
        let (leaf, ends) = (leaf(Mode::Tail, 16), Endings::default());
        for _ in 0..20 {
            ends.count(read(&*leaf, Class::Foreground, Sector(0), data(BLOCK)));
            settle().await;
            ends.background(&leaf, 0, BLOCK);
            settle().await;
            script.release_newest();
            settle().await;
            script.release(1);
            settle().await;
        }
        assert_eq!(ends.ok.get(), 40);
        sleep(Nanos::from_millis(300)).await;
        assert_eq!(leaf.wbt().report().control.clean_read_ns, None);
        check_idle(&leaf);
    });
}
