// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which FLUSH reports a write that a failed flush below has destroyed.
use super::*;

async fn started(lab: &Fixture, fault: Option<Fault>) -> (Rc<Probe>, Rc<PageCache>) {
    let cache = faulty(lab, fault);
    cache.clone().resume().await.expect("it resumes");
    (lab.disks[0].clone(), cache)
}

/// Writes a page, which is written below, while a FLUSH of the same opener waits for a flush below,
/// which then fails. Returns the outcome of the next FLUSH.
async fn flush_after_a_write_during_a_failing_one(
    lab: Fixture,
    fault: Option<Fault>,
) -> Result<(), Status> {
    let (disk, cache) = started(&lab, fault).await;
    write(&cache, 0..1, 1).await;
    disk.hold_ops.borrow_mut().push(Op::Flush);
    let first = flushing(&cache, 1);
    sleep_ms(10).await;
    write(&cache, 8..10, 1).await;
    cache.writeback.flusher.request();
    sleep_ms(10).await;
    assert_eq!((disk.held(), lab.page(0, 9)), (1, pattern(9, 1)), "it is below");
    disk.fail_held_flush();
    disk.release();
    sleep_ms(10).await;
    assert_eq!(first.get(), Some(Status::Timeout));
    disk.take();
    let next = flush_by(&cache, 1).await;
    assert_eq!(disk.take_writes(), [], "the cache does not have it any more");
    assert_eq!(flush_by(&cache, 1).await, Ok(()), "it was reported");
    next
}

/// The first FLUSH reports the loss of writes that were acknowledged before it was submitted. A
/// later write is lost as well, and only the next FLUSH can report it.
#[test]
fn the_next_flush_reports_writes_during_a_failing_one() {
    for (fault, outcome) in [(None, Err(Status::Timeout)), (Some(Fault::ReportLaterErrors), Ok(()))]
    {
        let lab = Fixture::new(1, 8192);
        let next =
            lab.run(async move |lab| flush_after_a_write_during_a_failing_one(lab, fault).await);
        assert_eq!(next, outcome, "{fault:?}");
    }
}

/// Copies a write up to a page that must be read first. The copied part is written below, a flush
/// fails there, and then the write is acknowledged. Returns the outcome of the next FLUSH.
async fn flush_after_a_slow_write(lab: Fixture, fault: Option<Fault>) -> Result<(), Status> {
    let (disk, cache) = started(&lab, fault).await;
    disk.hold_ops.borrow_mut().push(Op::Read);
    let inner = cache.clone();
    let slow_write = begin(async move {
        let data = [pattern(0, 1), vec![7; PAGE / 2]].concat();
        let (at, bufs) = ((Sector(0), Sector(12)), block::Buf::copy_of(&data).into());
        let (op, flags, class) = (Op::Write, Flags::empty(), Class::Normal);
        reactor::io_by(Opener(1), &*inner, op, flags, class, at, bufs).await
    });
    sleep_ms(10).await;
    disk.flushes_fail.set(true);
    assert_eq!(flush_by(&cache, 1).await, Err(Status::Timeout));
    disk.flushes_fail.set(false);
    assert_eq!(
        (slow_write.get(), lab.page(0, 0)),
        (None, pattern(0, 1)),
        "the first page is below"
    );
    disk.release();
    sleep_ms(10).await;
    assert_eq!(slow_write.get(), Some(Status::Ok));
    let next = flush_by(&cache, 1).await;
    assert_eq!(flush_by(&cache, 1).await, Ok(()), "it was reported");
    next
}

#[test]
fn the_next_flush_reports_a_write_acknowledged_after_a_failure() {
    for (fault, outcome) in [(None, Err(Status::Timeout)), (Some(Fault::IgnoreDoubt), Ok(()))] {
        let lab = Fixture::new(1, 8192);
        let next = lab.run(async move |lab| flush_after_a_slow_write(lab, fault).await);
        assert_eq!(next, outcome, "{fault:?}");
    }
}

/// Both pages of a slow write are below when a FLUSH is submitted, but the write has not ended.
#[test]
fn the_next_flush_reports_a_write_that_ends_during_a_failure() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = started(&lab, None).await;
        disk.hold_ops.borrow_mut().push(Op::Read);
        let inner = cache.clone();
        let slow_write = begin(async move {
            let data = [pattern(0, 1), vec![7; PAGE / 2]].concat();
            let (at, bufs) = ((Sector(0), Sector(12)), block::Buf::copy_of(&data).into());
            let (op, flags, class) = (Op::Write, Flags::empty(), Class::Normal);
            reactor::io_by(Opener(1), &*inner, op, flags, class, at, bufs).await
        });
        sleep_ms(10).await;
        disk.hold_ops.borrow_mut().push(Op::Flush);
        let first = flushing(&cache, 1);
        sleep_ms(10).await;
        disk.release_first();
        sleep_ms(10).await;
        assert_eq!((slow_write.get(), first.get()), (Some(Status::Ok), None));
        disk.fail_held_flush();
        disk.release();
        sleep_ms(10).await;
        assert_eq!(first.get(), Some(Status::Timeout));
        assert_eq!(flush_by(&cache, 1).await, Err(Status::Timeout));
        assert_eq!(flush_by(&cache, 1).await, Ok(()));
    });
}

/// PC-FL3: a page can't be written, and the device below has lost something.
#[test]
fn one_flush_reports_a_failed_write_and_a_loss_below() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = started(&lab, None).await;
        disk.bad.borrow_mut().push(0..1);
        disk.hold_ops.borrow_mut().push(Op::Flush);
        write(&cache, 0..1, 1).await;
        let first = flushing(&cache, 1);
        sleep_ms(10).await;
        assert_eq!(disk.held(), 1, "below it is asked all the same");
        disk.fail_held_flush();
        disk.release();
        sleep_ms(10).await;
        assert!(matches!(first.get(), Some(Status::Io | Status::Timeout)));
        disk.bad.borrow_mut().clear();
        assert_eq!(flush_by(&cache, 1).await, Ok(()), "it was told of both");
    });
}
