// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holes: the runs of a leaf's file that have no data, asked of its file system on a helper thread.
//!
//! Invariant
//! - HO-HO1 Of each file one search runs at a time, and the others wait for it: a file system that
//!   does not answer takes one helper thread, however many clients ask.
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use block::Sector;
use queue::FindHoles;
use reactor::{FileId, WaitList};
use uring::Files;

/// The right to search; ends when dropped.
struct SearchPermit(Rc<SearchLock>);

#[derive(Default)]
struct SearchLock {
    taken: Cell<bool>,
    freed: WaitList,
}

impl SearchLock {
    async fn take(self: Rc<SearchLock>) -> SearchPermit {
        self.freed.wait_for(|| !self.taken.get()).await;
        self.taken.set(true);
        SearchPermit(self)
    }
}

impl Drop for SearchPermit {
    fn drop(&mut self) {
        self.0.taken.set(false);
        if !block::crashing() {
            self.0.freed.wake_all();
        }
    }
}

/// Searches `file`. A file system that does not answer, or does not tell, has no holes.
pub(crate) fn finder(files: &Files, file: FileId, path: &Path) -> FindHoles {
    let (files, lock) = (files.clone(), Rc::new(SearchLock::default()));
    let path: Rc<str> = path.to_string_lossy().into();
    Box::new(move |at, len| {
        let (files, lock, path) = (files.clone(), lock.clone(), path.clone());
        Box::pin(async move {
            let _permit = lock.take().await;
            let bytes = at.bytes()..(at + len).bytes();
            let found = files.holes(file, &path, bytes).await.unwrap_or_else(|e| {
                tracing::debug!(%path, error = e.chain(), "its holes are not known");
                Vec::new()
            });
            // Whole sectors within each.
            let sectors = found
                .into_iter()
                .map(|hole| (Sector(hole.start.div_ceil(512)), Sector(hole.end / 512)));
            let whole = sectors.filter(|(from, to)| from < to);
            whole.map(|(from, to)| (from, to - from)).collect()
        })
    })
}
