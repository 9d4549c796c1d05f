// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of persistence of one part of a device. The other files of this folder work on it.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use block::{Planted, Status};
use format::zram::{Geometry, Superblock};
use reactor::WaitList;

use super::bits::Bits;
use super::chain::Chain;
use super::image::{Image, Images};
use crate::planted::Fault;

/// See the module.
pub(crate) struct Persist {
    pub(super) geometry: Geometry,
    pub(super) superblock: RefCell<Superblock>,
    pub(super) images: RefCell<Images>,
    /// Slots that differ from their image.
    pub(super) dirty: RefCell<Bits>,
    pub(super) chain: RefCell<Chain>,
    pub(super) commits: Commits,
    pub(super) checkpointing: Cell<bool>,
    /// Some slots have images that only the running checkpoint makes durable.
    pub(super) absorbing: Cell<bool>,
    pub(super) tidy: TidyState,
    /// The first error after which no promise holds any more (ZR-PS5).
    failed: Cell<Option<Status>>,
    /// Woken when a unit is written, the chain may go on, a checkpoint or commit has ended, or
    /// persistence has failed.
    pub(super) changed: WaitList,
    planted: Planted<Fault>,
}

/// FLUSHes and FUA writes.
#[derive(Default)]
pub(super) struct Commits {
    /// Those that the next commit serves.
    pub(super) requests: RefCell<Vec<Rc<CommitRequest>>>,
    pub(super) running: Cell<bool>,
}

/// A FLUSH or FUA write that waits for slots to be durable.
pub(super) struct CommitRequest {
    pub(super) slots: Range<u32>,
    pub(super) outcome: Cell<Option<Result<(), Status>>>,
}

/// What tidying has going on.
pub(super) struct TidyState {
    pub(super) running: Cell<bool>,
    /// The number of the unit from which on it may run again.
    pub(super) not_before: Cell<u64>,
    /// Objects by slot that are being moved from one place to another.
    pub(super) moving: RefCell<BTreeMap<u32, Vec<u8>>>,
    /// Slots that equal their image, and are dirty only to be moved.
    pub(super) dirty: RefCell<Bits>,
}

impl Persist {
    pub(super) fn new(superblock: Superblock, images: Images, planted: Planted<Fault>) -> Persist {
        let slots = images.len();
        Persist {
            geometry: superblock.geometry(),
            chain: RefCell::new(Chain::new(&superblock.chain)),
            superblock: RefCell::new(superblock),
            images: RefCell::new(images),
            dirty: RefCell::new(Bits::new(slots)),
            commits: Commits::default(),
            checkpointing: Cell::new(false),
            absorbing: Cell::new(false),
            tidy: TidyState {
                running: Cell::new(false),
                not_before: Cell::new(0),
                moving: RefCell::default(),
                dirty: RefCell::new(Bits::new(slots)),
            },
            failed: Cell::new(None),
            changed: WaitList::new(),
            planted,
        }
    }

    /// A slot differs from its image now.
    pub(crate) fn changed(&self, slot: u32) {
        self.dirty.borrow_mut().insert(slot);
        self.tidy.dirty.borrow_mut().remove(slot);
    }

    /// Slots that differ from the last unit that names them.
    pub(crate) fn dirty(&self) -> u32 {
        self.dirty.borrow().len()
    }

    /// The error after which no promise holds any more.
    pub(crate) fn failure(&self) -> Option<Status> {
        self.failed.get()
    }

    /// Notes a failure; returns whether it is the first.
    pub(super) fn fail(&self, status: Status) -> bool {
        let first = self.failed.get().is_none();
        if first {
            self.failed.set(Some(status));
        }
        first
    }

    pub(super) fn health(&self) -> Result<(), Status> {
        self.failed.get().map_or(Ok(()), Err)
    }

    pub(super) fn is_planted(&self, fault: Fault) -> bool {
        self.planted.is(fault)
    }

    pub(super) fn image(&self, slot: u32) -> Image {
        self.images.borrow().get(slot)
    }
}
