// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The leaves that are open, by canonical word: a word that two tables name is opened once.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error};
use reactor::WaitList;

use crate::context::Resolver;

/// Fewer leaves than this are kept in the list after they are closed.
const CLOSED_LEAVES_MAX: usize = 64;

pub(crate) struct Leaves {
    resolver: Rc<dyn Resolver>,
    open: RefCell<BTreeMap<String, Weak<dyn BlockDevice>>>,
    /// So many entries of `open` cause a search for those that are closed.
    tidy_at: Cell<usize>,
    opening: RefCell<BTreeSet<String>>,
    opened: WaitList,
}

impl Leaves {
    pub(crate) fn new(resolver: Rc<dyn Resolver>) -> Leaves {
        Leaves {
            resolver,
            open: RefCell::default(),
            tidy_at: Cell::new(CLOSED_LEAVES_MAX),
            opening: RefCell::default(),
            opened: WaitList::new(),
        }
    }

    /// Whether this machine has a block device at a path under `/dev`.
    pub(crate) async fn has_block_device(&self, path: &str) -> bool {
        self.resolver.has_block_device(path).await
    }

    /// Reads the size of an open leaf again; other devices have theirs from below.
    pub(crate) async fn read_size(&self, leaf: &Rc<dyn BlockDevice>) -> Result<(), Error> {
        self.resolver.read_size(leaf).await
    }

    /// Opens a leaf, or shares it while it is in use, with the size that it has now.
    pub(crate) async fn open(&self, word: &str) -> Result<Rc<dyn BlockDevice>, Error> {
        let key = self.resolver.canonical(word).await?;
        self.opened.wait_for(|| !self.opening.borrow().contains(&key)).await;
        let shared = self.open.borrow().get(&key).and_then(Weak::upgrade);
        if let Some(leaf) = shared {
            self.resolver.read_size(&leaf).await?;
            return Ok(leaf);
        }
        self.opening.borrow_mut().insert(key.clone());
        let leaf = self.resolver.open(word).await;
        self.opening.borrow_mut().remove(&key);
        if let Ok(leaf) = &leaf {
            let mut open = self.open.borrow_mut();
            open.insert(key, Rc::downgrade(leaf));
            // Not at each one: a table may open as many as it has lines.
            if open.len() >= self.tidy_at.get() {
                open.retain(|_, leaf| leaf.strong_count() > 0);
                self.tidy_at.set(2 * open.len() + CLOSED_LEAVES_MAX);
            }
        }
        self.opened.wake_all();
        leaf
    }
}
