// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaf: a file or block device of the driver, as a device.
use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};

use block::{Base, Bio, BlockDevice, Flags, Limits, LocalFuture, OnFault, Op, Sector, Status};
use reactor::{FileId, OnDone, SqeOp, chain, driver_io, push_bio, spawn};
use slab::Slab;

use crate::stats::{Stats, Ticket};

/// Counts the end of each request that is with the driver.
struct Watch {
    stats: Stats,
    tickets: RefCell<Slab<Ticket>>,
}

impl OnDone for Watch {
    fn on_done(&self, status: Status, tag: u64) {
        let slot = usize::try_from(tag).expect("made from a slab index");
        let ticket = self.tickets.borrow_mut().remove(slot);
        self.stats.end(ticket, status);
    }
}

/// A device on a file that the driver has open. Costs one op slot a bio and no allocation.
///
/// `limits.max_io_bytes` is advice to clients: a larger bio is served too.
pub struct Leaf {
    file: FileId,
    limits: Limits,
    watch: Rc<Watch>,
}

impl Leaf {
    /// A device called `name` on `file`.
    pub fn new(name: impl Into<String>, file: FileId, limits: Limits) -> Leaf {
        let watch = Watch { stats: Stats::new(name.into()), tickets: RefCell::default() };
        Leaf { file, limits, watch: Rc::new(watch) }
    }

    /// The driver's file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// What it has counted.
    pub fn stats(&self) -> &Stats {
        &self.watch.stats
    }

    fn knows(&self, op: Op) -> bool {
        match op {
            Op::Read | Op::Write | Op::Flush => true,
            Op::Discard => self.limits.discard_granularity_bytes > 0,
            Op::WriteZeroes => self.limits.write_zeroes,
        }
    }

    fn refuse(&self, sector: Sector, bio: Bio, status: Status) {
        self.watch.stats.count(bio.op, sector, bio.len, status);
        bio.complete(status);
    }
}

impl BlockDevice for Leaf {
    fn name(&self) -> &str {
        self.watch.stats.device()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        match self.limits.check_range(&bio) {
            Ok(()) => self.submit_at(bio.sector, bio),
            Err(status) => self.refuse(bio.sector, bio, status),
        }
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl Base for Leaf {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        if let Err(status) = bio.check_bufs() {
            return self.refuse(sector, bio, status);
        }
        if !self.knows(bio.op) {
            return self.refuse(sector, bio, Status::NotSupported);
        }
        let ticket = self.watch.stats.begin(bio.op, sector, bio.len);
        let tag = self.watch.tickets.borrow_mut().insert(ticket) as u64;
        let Bio { op, flags, class: _, opener: _, sector: _, len, bufs, done } = bio;
        let done = chain(done, self.watch.clone(), tag);
        let fua = flags.contains(Flags::FUA);
        let (offset, len) = (sector.bytes(), len.bytes());
        let what = match op {
            Op::Read => SqeOp::Read { offset, bufs },
            Op::Write => SqeOp::Write { offset, bufs, fua },
            Op::Flush => SqeOp::Flush,
            Op::Discard => SqeOp::Discard { offset, len },
            Op::WriteZeroes => {
                SqeOp::WriteZeroes { offset, len, unmap: !flags.contains(Flags::NOUNMAP) }
            }
        };
        if fua && matches!(op, Op::Discard | Op::WriteZeroes) {
            // Q3: rare enough for a task.
            let file = self.file;
            spawn(async move {
                let mut result = driver_io(file, what).await;
                if result.status == Status::Ok {
                    result = driver_io(file, SqeOp::Flush).await;
                }
                done.complete(result.status);
            });
        } else {
            push_bio(done, self.file, what);
        }
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move { self.watch.stats.grace().passed().await })
    }

    fn watch(&self, watcher: Weak<dyn OnFault>) {
        self.watch.stats.watch(watcher);
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leaf({} = {:?})", self.name(), self.file)
    }
}

#[cfg(test)]
mod tests {
    use block::{Buf, Class};
    use reactor::{discard, flush, read, write, write_zeroes};

    use super::*;
    use crate::testing::{Script, pattern, with_core};

    fn leaf(limits: Limits) -> Rc<Leaf> {
        Rc::new(Leaf::new("disk0", FileId(7), limits))
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
