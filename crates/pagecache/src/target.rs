// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a table line: takes bios, is suspended and resumed.
use std::any::Any;
use std::rc::Rc;

use block::{
    Access, Below, Bio, BlockDevice, Error, Limits, LocalFuture, Op, Role, Sector, Status, Target,
};

use crate::{Mutation, PageCache};

impl BlockDevice for PageCache {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            return bio.complete(status);
        }
        self.errors.note(bio.opener);
        match bio.op {
            Op::Read => self.read(bio),
            Op::Write => self.write(bio),
            Op::Discard | Op::WriteZeroes => self.discard(bio),
            Op::Flush => {
                let (me, round) = (self.rc(), self.writeback.rounds.next());
                let sample = self.errors.sample(bio.opener); // PC-E1
                reactor::spawn(async move {
                    let done = me.flush(bio.opener, round, sample).await;
                    let again = me.has(Mutation::TellAgain) && me.errors.count() > 0;
                    bio.complete(if again { Status::Io } else { done.into() });
                });
            }
        }
    }
}

impl Target for PageCache {
    fn kind(&self) -> &'static str {
        "buffered"
    }

    fn table(&self) -> String {
        self.config.table(self.below.name())
    }

    fn status(&self) -> String {
        self.status_line()
    }

    fn below(&self) -> Vec<Below> {
        let (device, len) = (self.below.clone(), self.limits.capacity);
        vec![Below { device, start: Sector::ZERO, len, role: Role::Origin }]
    }

    fn deps(&self) -> Vec<String> {
        vec![self.below.name().to_owned()]
    }

    /// Writes everything back: what the device below holds then is all there is. An error leaves
    /// what could not be written in memory, dirty.
    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            self.stop_flusher().await;
            let flushed = self.write_back_all().await;
            // Read-ahead that nobody waits for.
            self.busy.passed().await;
            flushed.map_err(|status| {
                let said = self.errors.describe().unwrap_or_default();
                let dirty = self.dirty_bytes();
                Error::io(format!("{status}: {dirty} bytes are not written back: {said}"))
            })
        })
    }

    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.start_flusher();
        Box::pin(async { Ok(()) })
    }

    /// Everything that the cache before had is durable, as it is suspended. What a failed flush has
    /// lost is lost all the same, and this one tells of it.
    fn take_over(self: Rc<Self>, before: Rc<dyn Target>) -> LocalFuture<()> {
        let before: Rc<dyn Any> = before;
        if let Ok(before) = before.downcast::<PageCache>() {
            self.errors.take_over(&before.errors);
        }
        Box::pin(async {})
    }

    fn attributes(&self) -> Vec<&'static str> {
        crate::attributes::NAMES.to_vec()
    }

    fn access(&self, name: &str) -> Access {
        crate::attributes::access(name)
    }

    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<String, Error>> {
        Box::pin(async move { self.get(&name) })
    }

    fn set_attribute(
        self: Rc<Self>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.set(&name, value.trim()) })
    }
}

impl PageCache {
    /// What is in memory only.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let cache = self.cache.borrow();
        (cache.dirty_pages() + cache.writing_pages()) * block::PAGE as u64
    }
}
