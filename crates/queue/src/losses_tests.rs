// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is told of a failed flush, at a leaf whose driver ends requests when it is told to.
use std::future::Future;
use std::rc::Rc;

use block::{Buf, Bufs, Class, Flags, Limits, Op, Opener, Sector, Status};
use reactor::{BioFuture, FileId, io_by, yield_now};

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
    let (wbt, losses) = (leaf.shared_wbt(), leaf.shared_losses());
    Rc::new(FileLeaf::on_same_file("disk0", FileId(7), limits, &wbt, &losses))
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
fn each_opener_that_wrote_is_told_once() {
    keeping(|script| async move {
        let leaf = leaf();
        for opener in [1, 2] {
            assert_eq!(end(&script, put(&leaf, opener, PLAIN)).await, OK);
        }
        let failed = failing(&script, || flush(&leaf, 1)).await;
        assert_eq!(end(&script, failed).await, LOST);
        assert_eq!(end(&script, flush(&leaf, 2)).await, LOST, "O1");
        for opener in [1, 2, 3] {
            assert_eq!(end(&script, flush(&leaf, opener)).await, OK, "{opener}: it was told");
        }
        assert_eq!(leaf.stats().of(Op::Flush).errors, 2);
        assert_eq!(leaf.stats().in_flight(), 0);
    });
}

#[test]
fn a_flush_that_was_under_way_when_another_failed_fails() {
    keeping(|script| async move {
        let leaf = leaf();
        assert_eq!(end(&script, put(&leaf, 1, PLAIN)).await, OK);
        let mine = flush(&leaf, 1);
        let other = failing(&script, || flush(&leaf, 2)).await;
        script.release_newest();
        assert_eq!(other.await, LOST);
        assert_eq!(end(&script, mine).await, LOST, "O1");
        assert_eq!(end(&script, flush(&leaf, 1)).await, OK);
    });
}

/// The driver has done the write before the FLUSH failed, and tells of it only later.
#[test]
fn a_write_that_was_under_way_when_a_flush_failed_is_told_of_once_more() {
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
            assert_eq!(end(&script, flush(&leaf, 1)).await, LOST, "O2: {op:?}");
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
        assert_eq!(end(&script, beside).await, LOST, "O3");
        assert_eq!(end(&script, put(&leaf, 1, Flags::FUA)).await, OK);
    });
}

#[test]
fn a_fua_write_that_fails_is_told_to_all() {
    keeping(|script| async move {
        let leaf = leaf();
        assert_eq!(end(&script, put(&leaf, 1, PLAIN)).await, OK);
        let failed = failing(&script, || put(&leaf, 2, Flags::FUA)).await;
        assert_eq!(end(&script, failed).await, LOST);
        assert_eq!(end(&script, flush(&leaf, 1)).await, LOST, "fdatasync tells of all");
        assert_eq!(end(&script, flush(&leaf, 1)).await, OK);
    });
}

#[test]
fn what_the_driver_does_not_know_and_a_plain_write_that_fails_lose_nothing() {
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
fn the_leaf_of_another_core_hears_of_a_loss() {
    keeping(|script| async move {
        let here = leaf();
        let there = twin(&here);
        assert_eq!(end(&script, put(&there, 2, PLAIN)).await, OK);
        let failed = failing(&script, || flush(&here, 1)).await;
        assert_eq!(end(&script, failed).await, LOST);
        assert_eq!(end(&script, flush(&there, 2)).await, LOST, "O4");
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
