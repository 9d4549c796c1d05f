// SPDX-License-Identifier: Apache-2.0 OR MIT
//! File leaf: a file or block device of the driver, as a device.
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{
    Backing, Base, Bio, BlockDevice, Limits, LocalFuture, LostWrites, OnIoError, Op, Sector,
    Status, ZeroRuns,
};
use reactor::FileId;

use crate::flush_errors::{FlushErrors, SharedFlushErrors};
use crate::leaf::{Leaf, OpenFile, SharedLeaf};
use crate::merge::BlockLeaf;
use crate::stats::Stats;
use crate::wbt::{SharedWbt, Throttle, Wbt};

/// A device on a file that the driver has open. Costs one op slot a bio and no allocation, but for
/// writes that its throttle ([`crate::wbt`]) makes wait or cuts.
///
/// `limits.max_io_bytes` is advice to clients: a larger bio is served too.
pub struct FileLeaf {
    /// Its capacity is that of when it was opened.
    limits: Limits,
    /// How many sectors it has now, on all cores.
    capacity: Arc<AtomicU64>,
    identity: Option<String>,
    backing: Option<Backing>,
    /// Its file or disk takes no writes.
    is_read_only: bool,
    wbt: Wbt,
    /// Finds runs for which the file has no data.
    find_holes: Option<FindHoles>,
    /// Closes the file.
    close: Option<Box<dyn FnOnce(FileId)>>,
}

/// Finds runs for which a file has no data, as [`BlockDevice::zero_runs`] asks for them.
pub type FindHoles = Box<dyn Fn(Sector, Sector) -> ZeroRuns>;

impl FileLeaf {
    /// A device called `name` on `file`, throttled by our law with the default target.
    pub fn new(name: impl Into<String>, file: FileId, limits: Limits) -> FileLeaf {
        let wbt = SharedWbt::new(&limits);
        FileLeaf::with_wbt(name, file, limits, &wbt)
    }

    /// A device on a disk of which another leaf has a file: `wbt` is that leaf's, and what it
    /// allows is for all of them together.
    pub fn with_wbt(
        name: impl Into<String>,
        file: FileId,
        limits: Limits,
        wbt: &SharedWbt,
    ) -> FileLeaf {
        FileLeaf::on_same_file(name, file, limits, wbt, &SharedFlushErrors::default())
    }

    /// A device on a file on which another core has a leaf, too: `wbt` and `errors` are that
    /// leaf's.
    pub fn on_same_file(
        name: impl Into<String>,
        file: FileId,
        limits: Limits,
        wbt: &SharedWbt,
        errors: &SharedFlushErrors,
    ) -> FileLeaf {
        let (stats, errors) = (Stats::new(name.into()), Rc::new(FlushErrors::new(errors)));
        let block_bytes = limits.logical_block_bytes;
        let throttle = Throttle::new(stats, errors, file, block_bytes, wbt.0.clone());
        let capacity = Arc::new(AtomicU64::new(limits.capacity.0));
        let wbt = Wbt::new(throttle);
        let (identity, backing) = (None, None);
        let (is_read_only, find_holes, close) = (false, None, None);
        FileLeaf { limits, capacity, identity, backing, is_read_only, wbt, find_holes, close }
    }

    /// The same with what tells its file from all others, as far as that is known.
    #[must_use]
    pub fn with_identity(mut self, identity: Option<String>) -> FileLeaf {
        self.identity = identity;
        self
    }

    /// The same with the file or disk on which it lies in the end.
    #[must_use]
    pub fn with_backing(mut self, backing: Backing) -> FileLeaf {
        self.backing = Some(backing);
        self
    }

    /// The same on a file or disk that takes no writes, if `is_read_only`.
    #[must_use]
    pub fn with_read_only(mut self, is_read_only: bool) -> FileLeaf {
        self.is_read_only = is_read_only;
        self
    }

    /// The same on a file whose data go through the page cache: its FUA writes wait for each other
    /// before they are reported (QU-FE5).
    #[must_use]
    pub fn in_page_cache(self) -> FileLeaf {
        self.shared_flush_errors().set_cached();
        self
    }

    /// The same on a file that may have holes.
    #[must_use]
    pub fn finding_holes(mut self, find: FindHoles) -> FileLeaf {
        self.find_holes = Some(find);
        self
    }

    /// The same; `close` is called with the file when the leaf is dropped.
    #[must_use]
    pub fn closed_by(mut self, close: impl FnOnce(FileId) + 'static) -> FileLeaf {
        self.close = Some(Box::new(close));
        self
    }

    /// The throttle, for a leaf of another core on the same file, or one on the same disk.
    pub fn shared_wbt(&self) -> SharedWbt {
        self.wbt.shared()
    }

    /// The flush errors of its file, for a leaf of another core on the same file.
    pub fn shared_flush_errors(&self) -> SharedFlushErrors {
        self.wbt.throttle().flush_errors.shared()
    }

    /// The throttle.
    pub fn wbt(&self) -> &Wbt {
        &self.wbt
    }

    /// The driver's file.
    pub fn file(&self) -> FileId {
        self.wbt.throttle().file()
    }

    /// What it has counted.
    pub fn stats(&self) -> &Stats {
        &self.wbt.throttle().stats
    }

    fn capacity(&self) -> Sector {
        // Nothing else is published by it: a bio that is refused by an old value came too early.
        Sector(self.capacity.load(Ordering::Relaxed))
    }

    /// Why it serves no such bio, if it does not.
    fn check_op(&self, op: Op) -> Result<(), Status> {
        let knows = match op {
            Op::Read | Op::Flush => return Ok(()),
            Op::Write => true,
            Op::Discard => self.limits.discard_granularity_bytes > 0,
            Op::WriteZeroes => self.limits.write_zeroes,
        };
        match (knows, self.is_read_only) {
            (_, true) => Err(Status::ReadOnly),
            (false, false) => Err(Status::NotSupported),
            (true, false) => Ok(()),
        }
    }

    fn refuse(&self, sector: Sector, bio: Bio, status: Status) {
        self.stats().count(bio.op, sector, bio.len, status);
        bio.complete(status);
    }
}

impl BlockDevice for FileLeaf {
    fn name(&self) -> &str {
        self.stats().device()
    }

    fn limits(&self) -> Limits {
        Limits { capacity: self.capacity(), ..self.limits.clone() }
    }

    fn submit(&self, bio: Bio) {
        match self.limits.check_range_within(&bio, self.capacity()) {
            Ok(()) => self.submit_at(bio.sector, bio),
            Err(status) => self.refuse(bio.sector, bio, status),
        }
    }

    /// The driver looks at each byte at most once: the kernel does, or the copy that an unaligned
    /// request is sent from.
    fn takes_client_memory(&self) -> bool {
        true
    }

    fn is_stale(&self) -> bool {
        self.is_read_only
    }

    fn identity(&self) -> Option<String> {
        self.identity.clone()
    }

    fn backing(&self) -> Option<Backing> {
        self.backing.clone()
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        match &self.find_holes {
            Some(find) => find(at, len),
            None => Box::pin(async { Vec::new() }),
        }
    }

    fn writer_throttled(&self) {
        self.wbt.writer_throttled();
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl Base for FileLeaf {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        if let Err(status) = bio.check_bufs() {
            return self.refuse(sector, bio, status);
        }
        if let Err(status) = self.check_op(bio.op) {
            return self.refuse(sector, bio, status);
        }
        self.wbt.throttle().submit(sector, bio);
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move { self.stats().requests().quiesced().await })
    }

    fn losses(&self) -> Option<Rc<dyn LostWrites>> {
        Some(self.wbt.throttle().flush_errors.clone())
    }

    fn watch(&self, watcher: Weak<dyn OnIoError>) {
        self.stats().watch(watcher);
    }
}

impl Leaf for FileLeaf {
    fn stats(&self) -> &Stats {
        self.stats()
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn wbt(&self) -> Option<&Wbt> {
        Some(self.wbt())
    }

    fn file(&self) -> Option<FileId> {
        Some(self.file())
    }

    fn set_capacity(&self, capacity: Sector) {
        self.capacity.store(capacity.0, Ordering::Relaxed);
    }

    fn share(&self) -> Option<SharedLeaf> {
        let (name, limits) = (self.name().to_owned(), self.limits());
        let (wbt, errors) = (self.shared_wbt(), self.shared_flush_errors());
        let (capacity, is_read_only) = (self.capacity.clone(), self.is_read_only);
        Some(SharedLeaf::new(self, move |file| {
            let OpenFile { id, close } = file.expect("its opener has the file on this core");
            let leaf = FileLeaf::on_same_file(&name, id, limits.clone(), &wbt, &errors);
            let mut leaf = leaf.closed_by(close).with_read_only(is_read_only);
            leaf.capacity = capacity.clone();
            Rc::new(leaf)
        }))
    }
}

impl BlockLeaf for FileLeaf {
    fn is_changing(&self, sectors: &Range<Sector>) -> bool {
        self.wbt.throttle().is_changing(sectors)
    }
}

impl Drop for FileLeaf {
    fn drop(&mut self) {
        if let Some(close) = self.close.take() {
            close(self.file());
        }
    }
}

block::debug_as!(FileLeaf, s => "FileLeaf({} = {:?})", s.name(), s.file());

#[cfg(test)]
mod tests {
    use block::{Buf, Class, Flags};
    use reactor::{discard, flush, read, write, write_zeroes};

    use super::*;
    use crate::testing::{Script, pattern, with_core};

    fn leaf(limits: Limits) -> Rc<FileLeaf> {
        Rc::new(FileLeaf::new("disk0", FileId(7), limits))
    }

    fn full_limits() -> Limits {
        Limits {
            discard_granularity_bytes: 4096,
            write_zeroes: true,
            ..Limits::new(Sector(1 << 20))
        }
    }

    #[test]
    fn each_operation_reaches_the_driver_as_what_it_is() {
        let script = Script::default();
        with_core(script.driver(), async {
            let dev = leaf(full_limits());
            let class = Class::Normal;
            read(&*dev, class, Sector(8), pattern(4096, 0)).await.unwrap();
            write(&*dev, Flags::empty(), class, Sector(16), pattern(512, 1)).await.unwrap();
            write(&*dev, Flags::FUA, class, Sector(16), pattern(512, 1)).await.unwrap();
            flush(&*dev, class).await.unwrap();
            discard(&*dev, class, Sector(8), Sector(8)).await.unwrap();
            write_zeroes(&*dev, Flags::empty(), class, Sector(0), Sector(8)).await.unwrap();
            write_zeroes(&*dev, Flags::NOUNMAP, class, Sector(0), Sector(8)).await.unwrap();
            assert_eq!(dev.stats().of(Op::Write).bytes, 1024);
            assert_eq!(dev.stats().of(Op::Flush).ios, 1);
            assert_eq!(dev.stats().in_flight(), 0);
        });
        assert_eq!(
            script.seen(),
            [
                "read 4096+4096",
                "write 8192+512",
                "write 8192+512 fua",
                "flush",
                "discard 4096+4096",
                "write_zeroes 0+4096 unmap",
                "write_zeroes 0+4096",
            ]
        );
    }

    #[test]
    fn a_file_that_has_grown_is_longer_on_all_cores() {
        let script = Script::default();
        with_core(script.driver(), async {
            let here = leaf(Limits { logical_block_bytes: 4096, ..Limits::new(Sector(80)) });
            let open = || OpenFile { id: FileId(8), close: Box::new(|_| {}) };
            let shared = here.share().unwrap();
            let there = shared.open(Some(open()));
            let merging = crate::MergingLeaf::new(FileLeaf::new(
                "disk1",
                FileId(9),
                Limits { logical_block_bytes: 4096, ..Limits::new(Sector(80)) },
            ));
            let class = Class::Normal;
            for (old, new) in [(80, 160), (160, 80)] {
                let (at, end) = (Sector(old.min(new)), Sector(new));
                here.set_capacity(end);
                merging.set_capacity(end);
                let late = shared.open(Some(open()));
                let devices: [&dyn BlockDevice; 4] = [&*here, &*there, &*late, &merging];
                for device in devices {
                    assert_eq!(device.limits().capacity, end);
                    let read = read(device, class, at, pattern(4096, 0)).await;
                    assert_eq!(read.is_ok(), new > old, "{new}");
                }
            }
        });
    }

    #[test]
    fn fua_on_zeroes_and_discard_is_a_flush_after_it() {
        let script = Script::default();
        with_core(script.driver(), async {
            let dev = leaf(full_limits());
            let class = Class::Normal;
            write_zeroes(&*dev, Flags::FUA, class, Sector(0), Sector(8)).await.unwrap();
        });
        assert_eq!(script.seen(), ["write_zeroes 0+4096 unmap", "flush"]);
    }

    #[test]
    fn what_the_limits_refuse_never_reaches_the_driver() {
        let script = Script::default();
        with_core(script.driver(), async {
            let dev = leaf(Limits { logical_block_bytes: 4096, ..Limits::new(Sector(80)) });
            let class = Class::Normal;
            let beyond = read(&*dev, class, Sector(80), pattern(4096, 0)).await;
            assert_eq!(beyond, Err(Status::Invalid));
            let askew = read(&*dev, class, Sector(1), pattern(4096, 0)).await;
            assert_eq!(askew, Err(Status::Invalid));
            let no = discard(&*dev, class, Sector(0), Sector(8)).await;
            assert_eq!(no, Err(Status::NotSupported));
            let no = write_zeroes(&*dev, Flags::empty(), class, Sector(0), Sector(8)).await;
            assert_eq!(no, Err(Status::NotSupported));
            assert_eq!(dev.stats().errors(), 4);
            assert_eq!(dev.stats().in_flight(), 0);
        });
        assert!(script.seen().is_empty());
    }

    #[test]
    fn an_error_of_the_driver_is_passed_on_and_remembered_in_full() {
        let script = Script::default();
        script.fail_next(Status::NoSpace);
        with_core(script.driver(), async {
            let dev = leaf(full_limits());
            let mut bufs = block::Bufs::from(Buf::zeroed(512));
            bufs.push(Buf::zeroed(512));
            let result = write(&*dev, Flags::empty(), Class::Normal, Sector(2048), bufs).await;
            assert_eq!(result, Err(Status::NoSpace));
            let said = dev.stats().last_error().unwrap().to_string();
            assert_eq!(said, "disk0: write at sector 2048: no space left on device");
            assert_eq!(
                dev.stats().of(Op::Write),
                crate::Counts { errors: 1, ..Default::default() }
            );
        });
    }
}
