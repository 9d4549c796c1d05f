// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FLUSH and FUA beside a discard that fails: the dirty pages that it had taken are dirty again.
use super::*;

fn discarding(cache: &Rc<PageCache>, pages: Range<u64>) -> Rc<Cell<Option<Status>>> {
    let cache = cache.clone();
    let (at, len) = (Sector(pages.start * 8), Sector((pages.end - pages.start) * 8));
    begin(async move { reactor::discard(&*cache, Class::Normal, at, len).await })
}

fn durable(lab: &Fixture, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    lab.world.borrow().peek_durable(lab.files[0], Sector(page * 8), &mut bytes);
    bytes
}

/// A page is on its way below with its first version, so a FLUSH leaves its second one for a second
/// pass; before that a discard takes it. The discard fails, and the FLUSH succeeded without the
/// page.
#[test]
fn a_flush_writes_what_a_failed_discard_gives_back() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = (lab.disks[0].clone(), running(&lab, QUIET).await);
        write(&cache, 0..1, 1).await;
        write(&cache, 100..101, 1).await;
        disk.hold.set(true);
        cache.writeback.flusher.request();
        sleep_ms(1).await;
        assert_eq!(disk.held(), 2);
        write(&cache, 0..1, 2).await;
        let discard = discarding(&cache, 0..1);
        sleep_ms(1).await;
        let flush = flushing(&cache, 1);
        sleep_ms(1).await;
        disk.hold.set(false);
        disk.hold_ops.borrow_mut().push(Op::Discard);
        disk.discards_fail.set(true);
        disk.release_first();
        sleep_ms(1).await;
        assert_eq!(
            disk.held(),
            2,
            "the discard has come, and the FLUSH waits for a page beside it"
        );
        disk.release_first();
        sleep_ms(1).await;
        assert_eq!(flush.get(), None);
        disk.release();
        sleep_ms(100).await;
        assert_eq!((discard.get(), flush.get()), (Some(Status::Io), Some(Status::Ok)));
        assert_eq!(durable(&lab, 0), pattern(0, 2));
    });
}

/// A FUA write waits until it may be sent, and a discard takes its page meanwhile.
#[test]
fn fua_writes_what_a_failed_discard_gives_back() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = (lab.disks[0].clone(), running(&lab, FEW).await);
        disk.hold.set(true);
        let fua = |page: u64| {
            let cache = cache.clone();
            let pages = page..page + 1;
            begin(async move { try_write(&cache, Opener(1), Flags::FUA, pages, 1).await })
        };
        let before: Vec<_> = (0..32).map(|nth| fua(100 + 2 * nth)).collect();
        sleep_ms(1).await;
        let late = fua(0);
        sleep_ms(1).await;
        assert_eq!(disk.held(), 32, "no more may be in flight");
        disk.hold_ops.borrow_mut().push(Op::Discard);
        disk.discards_fail.set(true);
        let discard = discarding(&cache, 0..1);
        sleep_ms(1).await;
        assert_eq!(disk.held(), 33);
        disk.release_first();
        sleep_ms(1).await;
        assert_eq!((disk.held(), late.get()), (32, None), "it waits for the discard");
        disk.release();
        sleep_ms(100).await;
        assert!(before.iter().all(|write| write.get() == Some(Status::Ok)));
        assert_eq!((discard.get(), late.get()), (Some(Status::Io), Some(Status::Ok)));
        assert_eq!(durable(&lab, 0), pattern(0, 1));
    });
}

/// Ioends of one page, so that 32 of them are all that FLUSH and FUA may have in flight.
const FEW: &str = "memory 64M dirty_bytes 30M dirty_background_bytes 20M ioend_bytes 4096";
