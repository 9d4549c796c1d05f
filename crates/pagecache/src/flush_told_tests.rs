// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which FLUSH tells of a write that a failed flush below has taken along.
use super::*;

async fn started(lab: &Lab, mutation: Mutation) -> (Rc<Probe>, Rc<PageCache>) {
    let cache = faulty(lab, mutation);
    cache.clone().resume().await.expect("it resumes");
    (lab.disks[0].clone(), cache)
}

/// A page is written, and written below, while a FLUSH of the same opener waits for a flush below,
/// which then fails. What the next FLUSH ends with.
async fn flush_after_a_write_beside_a_failing_one(
    lab: Lab,
    mutation: Mutation,
) -> Result<(), Status> {
    let (disk, cache) = started(&lab, mutation).await;
    write(&cache, 0..1, 1).await;
    disk.hold_ops.borrow_mut().push(Op::Flush);
    let first = flushing(&cache, 1);
    sleep_ms(10).await;
    write(&cache, 8..10, 1).await;
    cache.kick_writeback();
    sleep_ms(10).await;
    assert_eq!((disk.held(), lab.page(0, 9)), (1, pattern(9, 1)), "it is below");
    disk.fail_held_flush();
    disk.release();
    sleep_ms(10).await;
    assert_eq!(first.get(), Some(Status::Timeout));
    disk.take();
    let next = flush_by(&cache, 1).await;
    assert_eq!(disk.take_writes(), [], "nobody has it any more");
    assert_eq!(flush_by(&cache, 1).await, Ok(()), "it was told");
    next
}

/// The first FLUSH tells of what was acknowledged before it had been submitted. What came after it
/// is no less lost.
#[test]
fn what_was_written_beside_a_failing_flush_is_told_by_the_next_one() {
    for (mutation, told) in
        [(Mutation::None, Err(Status::Timeout)), (Mutation::TellsOfLater, Ok(()))]
    {
        let lab = Lab::new(1, 8192);
        let next =
            lab.run(async move |lab| flush_after_a_write_beside_a_failing_one(lab, mutation).await);
        assert_eq!(next, told, "{mutation:?}");
    }
}

/// A write has been copied in up to a page that has to be read first; what is copied in goes below,
/// the flush there fails, and then the write is acknowledged. What the next FLUSH ends with.
async fn flush_after_a_write_that_has_lasted(lab: Lab, mutation: Mutation) -> Result<(), Status> {
    let (disk, cache) = started(&lab, mutation).await;
    disk.hold_ops.borrow_mut().push(Op::Read);
    let inner = cache.clone();
    let lasting = begin(async move {
        let data = [pattern(0, 1), vec![7; PAGE / 2]].concat();
        let (at, bufs) = ((Sector(0), Sector(12)), block::Buf::copy_of(&data).into());
        let (op, flags, class) = (Op::Write, Flags::empty(), Class::Normal);
        reactor::io_by(Opener(1), &*inner, op, flags, class, at, bufs).await
    });
    sleep_ms(10).await;
    disk.flushes_fail.set(true);
    assert_eq!(flush_by(&cache, 1).await, Err(Status::Timeout));
    disk.flushes_fail.set(false);
    assert_eq!((lasting.get(), lab.page(0, 0)), (None, pattern(0, 1)), "the first page is below");
    disk.release();
    sleep_ms(10).await;
    assert_eq!(lasting.get(), Some(Status::Ok));
    let next = flush_by(&cache, 1).await;
    assert_eq!(flush_by(&cache, 1).await, Ok(()), "it was told");
    next
}

#[test]
fn a_write_that_is_acknowledged_after_a_failed_flush_is_told_by_the_next_one() {
    for (mutation, told) in
        [(Mutation::None, Err(Status::Timeout)), (Mutation::NeverInDoubt, Ok(()))]
    {
        let lab = Lab::new(1, 8192);
        let next =
            lab.run(async move |lab| flush_after_a_write_that_has_lasted(lab, mutation).await);
        assert_eq!(next, told, "{mutation:?}");
    }
}

/// Both pages of a write whose writer is slowed have gone below when a FLUSH is submitted that the
/// write has not ended before.
#[test]
fn a_write_that_ends_beside_a_failing_flush_is_told_by_the_next_one() {
    Lab::new(1, 8192).run(async |lab| {
        let (disk, cache) = started(&lab, Mutation::None).await;
        disk.hold_ops.borrow_mut().push(Op::Read);
        let inner = cache.clone();
        let lasting = begin(async move {
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
        assert_eq!((lasting.get(), first.get()), (Some(Status::Ok), None));
        disk.fail_held_flush();
        disk.release();
        sleep_ms(10).await;
        assert_eq!(first.get(), Some(Status::Timeout));
        assert_eq!(flush_by(&cache, 1).await, Err(Status::Timeout));
        assert_eq!(flush_by(&cache, 1).await, Ok(()));
    });
}
