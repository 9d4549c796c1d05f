// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Null: a device that does nothing, at once; what is left is the cost of the path above it.
use std::rc::{Rc, Weak};

use block::{Base, Bio, BlockDevice, Limits, LocalFuture, OnIoError, Op, Sector, Status, ZeroRuns};

use crate::leaf::{Leaf, SharedLeaf};
use crate::stats::Stats;

/// A device that takes everything and keeps nothing (`null:SIZE`).
#[derive(Debug)]
pub struct Null {
    limits: Limits,
    stats: Stats,
}

impl Null {
    /// A device that reads as zeroes.
    pub fn new(name: impl Into<String>, capacity: Sector) -> Null {
        Null { limits: Limits::of_memory(capacity), stats: Stats::new(name.into()) }
    }

    /// What it has counted.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
}

impl BlockDevice for Null {
    fn name(&self) -> &str {
        self.stats.device()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        match self.limits.check_range(&bio) {
            Ok(()) => self.submit_at(bio.sector, bio),
            Err(status) => {
                self.stats.count(bio.op, bio.sector, bio.len, status);
                bio.complete(status);
            }
        }
    }

    fn takes_client_memory(&self) -> bool {
        true
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        Box::pin(async move { vec![(at, len)] })
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl Base for Null {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        let status = Status::from(bio.check_bufs());
        if status == Status::Ok && bio.op == Op::Read {
            bio.bufs.zero();
        }
        // It is not moved: that would take a quarter of the time of a request.
        self.stats.count(bio.op, sector, bio.len, status);
        bio.complete(status);
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        // Nothing is ever in flight: a bio ends as it is submitted.
        Box::pin(std::future::ready(()))
    }

    fn watch(&self, watcher: Weak<dyn OnIoError>) {
        self.stats.watch(watcher);
    }
}

impl Leaf for Null {
    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn share(&self) -> Option<SharedLeaf> {
        let (name, capacity) = (self.name().to_owned(), self.limits.capacity);
        Some(SharedLeaf::new(self, move |_| Rc::new(Null::new(&*name, capacity))))
    }
}

#[cfg(test)]
mod tests {
    use block::{Class, Flags};
    use reactor::{read, write};

    use super::*;
    use crate::testing::{Script, pattern, with_core};

    #[test]
    fn null_reads_as_zeroes_whatever_was_written() {
        with_core(Script::default().driver(), async {
            let dev = Null::new("null:1M", Sector(2048));
            let data = pattern(4096, 3);
            write(&dev, Flags::empty(), Class::Normal, Sector(0), data.clone()).await.unwrap();
            read(&dev, Class::Normal, Sector(0), data.clone()).await.unwrap();
            data.for_each(|b| assert!(b.iter().all(|&x| x == 0)));
            let beyond = read(&dev, Class::Normal, Sector(2048), data).await;
            assert_eq!(beyond, Err(Status::Invalid));
        });
    }
}
