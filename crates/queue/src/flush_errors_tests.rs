// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which requests fail after a failed flush. The driver ends requests when the test releases them.
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use block::{Base, Buf, Bufs, Class, Flags, Limits, Nanos, Op, Opener, Sector, Status};
use policy::wbt::Mode;
use reactor::{BioFuture, FileId, io_by, sleep, spawn, yield_now};

use crate::FileLeaf;
use crate::testing::{Script, with_core};

const OK: Result<(), Status> = Ok(());
const LOST: Result<(), Status> = Err(Status::Io);
const PLAIN: Flags = Flags::empty();

fn leaf() -> Rc<FileLeaf> {
    let limits = Limits { write_zeroes: true, ..Limits::new(Sector(1 << 20)) };
    Rc::new(FileLeaf::new("disk0", FileId(7), limits))
}

/// The same file at another core.
fn twin(leaf: &FileLeaf) -> Rc<FileLeaf> {
    let limits = Limits { write_zeroes: true, ..Limits::new(Sector(1 << 20)) };
    let (wbt, errors) = (leaf.shared_wbt(), leaf.shared_flush_errors());
    Rc::new(FileLeaf::on_same_file("disk0", FileId(7), limits, &wbt, &errors))
}

/// Runs `test` with a driver that keeps what it is given.
fn keeping<F: Future<Output = ()> + 'static>(test: impl FnOnce(Script) -> F) {
    let script = Script::default();
    script.keep();
    with_core(script.driver(), test(script));
}

fn put(leaf: &Rc<FileLeaf>, opener: u32, flags: Flags) -> BioFuture {
    let (at, data) = ((Sector(8), Sector(1)), Buf::zeroed(512).into());
    io_by(Opener(opener), &**leaf, Op::Write, flags, Class::Normal, at, data)
}

fn flush(leaf: &Rc<FileLeaf>, opener: u32) -> BioFuture {
    let none = (Sector(0), Sector(0));
    io_by(Opener(opener), &**leaf, Op::Flush, PLAIN, Class::Normal, none, Bufs::new())
}

/// Until what was sent is with the driver.
async fn settle() {
    for _ in 0..8 {
        yield_now().await;
    }
}

/// Lets the driver end all that it has, and then waits for `sent`.
async fn end(script: &Script, sent: BioFuture) -> Result<(), Status> {
    settle().await;
    script.release(usize::MAX);
    sent.await
}

/// Sends what `send` sends, which the driver will fail.
async fn failing(script: &Script, send: impl FnOnce() -> BioFuture) -> BioFuture {
    settle().await;
    script.fail_next(Status::Io);
    let sent = send();
    settle().await;
    sent
}

#[test]
fn each_opener_that_wrote_gets_one_error() {
    keeping(|script| async move {
        let leaf = leaf();
        for opener in [1, 2] {
            assert_eq!(end(&script, put(&leaf, opener, PLAIN)).await, OK);
        }
        let failed = failing(&script, || flush(&leaf, 1)).await;
        assert_eq!(end(&script, failed).await, LOST);
        assert_eq!(end(&script, flush(&leaf, 2)).await, LOST, "QU-FE1");
        for opener in [1, 2, 3] {
            assert_eq!(
                end(&script, flush(&leaf, opener)).await,
                OK,
                "{opener}: it has had its error"
            );
        }
        assert_eq!(leaf.stats().of(Op::Flush).errors, 2);
        assert_eq!(leaf.stats().in_flight(), 0);
    });
}

#[test]
fn a_flush_in_flight_beside_a_failed_one_fails() {
    keeping(|script| async move {
        let leaf = leaf();
        assert_eq!(end(&script, put(&leaf, 1, PLAIN)).await, OK);
        let mine = flush(&leaf, 1);
        let other = failing(&script, || flush(&leaf, 2)).await;
        script.release_newest();
        assert_eq!(other.await, LOST);
        assert_eq!(end(&script, mine).await, LOST, "QU-FE1");
        assert_eq!(end(&script, flush(&leaf, 1)).await, OK);
    });
}

/// The driver has done the write before the FLUSH failed, and reports it only later.
#[test]
fn a_write_in_flight_beside_a_failed_flush_fails_the_next_flush() {
    keeping(|script| async move {
        let leaf = leaf();
        for op in [Op::Write, Op::WriteZeroes] {
            let (at, class) = ((Sector(8), Sector(1)), Class::Normal);
            let data = if op == Op::Write { Buf::zeroed(512).into() } else { Bufs::new() };
            let write = io_by(Opener(1), &*leaf, op, PLAIN, class, at, data);
            let failed = failing(&script, || flush(&leaf, 1)).await;
            script.release_newest();
            assert_eq!(failed.await, LOST);
            assert_eq!(end(&script, write).await, OK);
            assert_eq!(end(&script, flush(&leaf, 1)).await, LOST, "QU-FE2: {op:?}");
            assert_eq!(end(&script, put(&leaf, 1, PLAIN)).await, OK);
            assert_eq!(end(&script, flush(&leaf, 1)).await, OK);
        }
    });
}

#[test]
fn a_fua_write_beside_a_flush_that_fails_fails() {
    keeping(|script| async move {
        let leaf = leaf();
        let beside = put(&leaf, 1, Flags::FUA);
        let failed = failing(&script, || flush(&leaf, 2)).await;
        script.release_newest();
        assert_eq!(failed.await, LOST);
        assert_eq!(end(&script, beside).await, LOST, "QU-FE3");
        assert_eq!(end(&script, put(&leaf, 1, Flags::FUA)).await, OK);
    });
}

#[test]
fn a_failed_fua_write_fails_the_flush_of_each_opener() {
    keeping(|script| async move {
        let leaf = leaf();
        assert_eq!(end(&script, put(&leaf, 1, PLAIN)).await, OK);
        let failed = failing(&script, || put(&leaf, 2, Flags::FUA)).await;
        assert_eq!(end(&script, failed).await, LOST);
        assert_eq!(end(&script, flush(&leaf, 1)).await, LOST, "fdatasync reports errors of all");
        assert_eq!(end(&script, flush(&leaf, 1)).await, OK);
    });
}

#[test]
fn unsupported_requests_and_failed_plain_writes_are_no_loss() {
    keeping(|script| async move {
        let leaf = leaf();
        assert_eq!(end(&script, put(&leaf, 1, PLAIN)).await, OK);
        let failed = failing(&script, || put(&leaf, 2, PLAIN)).await;
        assert_eq!(end(&script, failed).await, LOST);
        settle().await;
        script.fail_next(Status::NotSupported);
        let refused = put(&leaf, 2, Flags::FUA);
        assert_eq!(end(&script, refused).await, Err(Status::NotSupported));
        assert_eq!(end(&script, flush(&leaf, 1)).await, OK);
    });
}

#[test]
fn a_loss_at_one_core_is_a_loss_at_all_cores() {
    keeping(|script| async move {
        let here = leaf();
        let there = twin(&here);
        assert_eq!(end(&script, put(&there, 2, PLAIN)).await, OK);
        let failed = failing(&script, || flush(&here, 1)).await;
        assert_eq!(end(&script, failed).await, LOST);
        assert_eq!(end(&script, flush(&there, 2)).await, LOST, "QU-FE4");
        assert_eq!(end(&script, flush(&there, 2)).await, OK);
        let (beside, under_way) = (put(&there, 2, Flags::FUA), flush(&there, 2));
        let failed = failing(&script, || flush(&here, 1)).await;
        script.release_newest();
        assert_eq!(failed.await, LOST);
        assert_eq!(end(&script, under_way).await, LOST);
        assert_eq!(end(&script, beside).await, LOST);
        let other_disk = leaf();
        assert_eq!(end(&script, flush(&other_disk, 2)).await, OK);
    });
}

/// Sends a request and returns a cell that will have its outcome.
fn watch(sent: BioFuture) -> Rc<Cell<Option<Result<(), Status>>>> {
    let outcome = Rc::new(Cell::new(None));
    let ended = outcome.clone();
    spawn(async move { ended.set(Some(sent.await)) });
    outcome
}

/// The disk fails FLUSH 2 and drops its cache, then it succeeds with FLUSH 1, and the system
/// delivers the success first. An earlier version reported it.
#[test]
fn a_flush_waits_for_a_flush_in_flight_that_may_have_failed() {
    keeping(|script| async move {
        let here = leaf();
        for beside in [here.clone(), twin(&here)] {
            assert_eq!(end(&script, put(&here, 1, PLAIN)).await, OK);
            let mine = watch(flush(&here, 1));
            let other = failing(&script, || flush(&beside, 2)).await;
            script.release(1);
            settle().await;
            assert_eq!(mine.get(), None, "QU-FE5: it is held");
            assert_eq!(end(&script, other).await, LOST);
            settle().await;
            assert_eq!(mine.get(), Some(LOST), "QU-FE5");
            assert_eq!(end(&script, flush(&here, 1)).await, OK, "it has had its error");
        }
        assert_eq!(here.stats().in_flight(), 0);
    });
}

#[test]
fn a_flush_waits_for_fua_requests_in_flight() {
    keeping(|script| async move {
        let leaf = leaf();
        for fails in [true, false] {
            for op in [Op::Write, Op::WriteZeroes] {
                let mine = watch(flush(&leaf, 1));
                settle().await;
                let (at, class) = ((Sector(8), Sector(1)), Class::Normal);
                let data = if op == Op::Write { Buf::zeroed(512).into() } else { Bufs::new() };
                if fails {
                    script.fail_next(Status::Io);
                }
                let fua = io_by(Opener(2), &*leaf, op, Flags::FUA, class, at, data);
                settle().await;
                script.release(1);
                settle().await;
                assert_eq!(mine.get(), None, "QU-FE5: it is held, {op:?}");
                script.release(usize::MAX);
                settle().await;
                let expected = if fails { LOST } else { OK };
                assert_eq!(end(&script, fua).await, expected);
                settle().await;
                assert_eq!(mine.get(), Some(expected), "{op:?}");
            }
        }
    });
}

#[test]
fn a_held_flush_does_not_wait_for_later_flushes() {
    keeping(|script| async move {
        let leaf = leaf();
        let (first, beside) = (watch(flush(&leaf, 1)), watch(flush(&leaf, 2)));
        settle().await;
        script.release(1);
        settle().await;
        assert_eq!(first.get(), None, "it is held");
        let later = watch(flush(&leaf, 3));
        settle().await;
        script.release(1);
        settle().await;
        assert_eq!((first.get(), beside.get(), later.get()), (Some(OK), None, None), "QU-SO2");
        script.release(1);
        settle().await;
        assert_eq!((beside.get(), later.get()), (Some(OK), Some(OK)));
    });
}

/// With O_DIRECT a FUA write does not depend on others. In the page cache another FUA write may
/// consume the error of its data.
#[test]
fn fua_writes_wait_for_each_other_in_the_page_cache_only() {
    for in_page_cache in [false, true] {
        keeping(move |script| async move {
            let leaf = leaf();
            if in_page_cache {
                leaf.shared_flush_errors().set_cached();
            }
            let mine = watch(put(&leaf, 1, Flags::FUA));
            let other = failing(&script, || put(&leaf, 2, Flags::FUA)).await;
            script.release(1);
            settle().await;
            assert_eq!(mine.get(), (!in_page_cache).then_some(OK));
            assert_eq!(end(&script, other).await, LOST);
            settle().await;
            assert_eq!(mine.get(), Some(if in_page_cache { LOST } else { OK }), "QU-FE5");
        });
    }
}

/// A FUA write that the throttle has cut is one sync: from its first piece until its last.
#[test]
fn a_flush_waits_for_all_pieces_of_a_fua_write() {
    keeping(|script| async move {
        let limits = Limits { queue_depth: 1, ..Limits::new(Sector(1 << 20)) };
        let leaf = Rc::new(FileLeaf::new("disk0", FileId(7), limits));
        leaf.wbt().set_mode(Mode::Tail);
        let read = watch(io_by(
            Opener(3),
            &*leaf,
            Op::Read,
            PLAIN,
            Class::Foreground,
            (Sector(0), Sector(8)),
            Buf::zeroed(4096).into(),
        ));
        settle().await;
        let (at, data) = ((Sector(8), Sector(1 << 14)), Buf::zeroed(8 << 20).into());
        let fua =
            watch(io_by(Opener(2), &*leaf, Op::Write, Flags::FUA, Class::Background, at, data));
        settle().await;
        let mine = watch(flush(&leaf, 1));
        settle().await;
        script.release_newest();
        settle().await;
        assert_eq!(mine.get(), None, "QU-FE5: it is held");
        for _ in 0..10_000 {
            if fua.get().is_some() {
                break;
            }
            assert_eq!(mine.get(), None, "a piece is on its way");
            script.release(usize::MAX);
            sleep(Nanos::from_millis(5)).await;
        }
        settle().await;
        assert_eq!((read.get(), fua.get(), mine.get()), (Some(OK), Some(OK), Some(OK)));
        assert!(script.seen().len() > 3, "the write went in pieces: {:?}", script.seen());
        assert_eq!(leaf.stats().in_flight(), 0);
    });
}

/// The leaf is closed after a last FLUSH that is no opener's.
#[test]
fn what_a_closed_leaf_has_lost_is_told_once_to_each_opener() {
    for fails in [false, true] {
        keeping(|script| async move {
            let leaf = leaf();
            for opener in [1, 2] {
                assert_eq!(end(&script, put(&leaf, opener, PLAIN)).await, OK);
            }
            assert_eq!(end(&script, flush(&leaf, 2)).await, OK);
            let losses = leaf.losses().expect("a file may lose something");
            assert!(!losses.has_unflushed());
            assert_eq!(end(&script, put(&leaf, 1, PLAIN)).await, OK);
            assert!(losses.has_unflushed());
            let last = || flush(&leaf, Opener::NOBODY.0);
            let last = if fails { failing(&script, last).await } else { last() };
            assert_eq!(end(&script, last).await.is_err(), fails);
            assert!(!losses.has_unflushed());
            drop(leaf);
            for opener in [2, 1] {
                assert_eq!(losses.are_told(), !fails);
                let told = losses.clone().must_hear(Opener(opener));
                assert_eq!(told.is_some(), fails);
                if let Some(told) = told {
                    let beside = losses.clone().must_hear(Opener(opener));
                    assert!(beside.is_some(), "a FLUSH before the first one has ended");
                    told();
                }
                assert!(losses.clone().must_hear(Opener(opener)).is_none());
            }
            assert!(losses.are_told());
        });
    }
}

/// Who sends it tells no client. An opener that wrote and is gone is still to be replaced by the
/// next one.
#[test]
fn a_flush_of_nobody_takes_no_report() {
    keeping(|script| async move {
        let leaf = leaf();
        assert_eq!(end(&script, put(&leaf, 1, PLAIN)).await, OK);
        let failed = failing(&script, || flush(&leaf, Opener::NOBODY.0)).await;
        assert_eq!(end(&script, failed).await, Err(Status::Io));
        assert_eq!(end(&script, flush(&leaf, Opener::NOBODY.0)).await, OK);
        assert_eq!(end(&script, flush(&leaf, 2)).await, Err(Status::Io), "in the place of 1");
        assert_eq!(end(&script, flush(&leaf, 2)).await, OK);
        assert_eq!(end(&script, flush(&leaf, 1)).await, Err(Status::Io));
        assert_eq!(end(&script, flush(&leaf, 1)).await, OK);
    });
}
