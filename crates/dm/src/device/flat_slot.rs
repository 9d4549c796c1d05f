// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flat mapping of one device, and what is known of it: its generation, the bases of earlier
//! ones, and whether other cores have copies.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::{Base, OnIoError, same_device};

use crate::flat::Flat;
use crate::mapping::{Mapping, Replicas};

pub(crate) struct FlatSlot {
    /// [`Flat::empty`] where there is no mapping: one branch less for each bio.
    pub(super) current: RefCell<Rc<Flat>>,
    /// Changes with each mapping.
    pub(super) generation: Cell<u64>,
    /// Bases of earlier mappings, as long as somebody else holds them: bios that were sent there
    /// since the last suspend may still be in flight.
    previous_bases: RefCell<Vec<Weak<dyn Base>>>,
    /// Bios may have to wait for a resume, of this device or of one below.
    bios_may_wait: Cell<bool>,
    /// Other cores may use a copy of the mapping.
    published: Cell<bool>,
    /// Tasks that wait until no other core does.
    withdrawing: Cell<usize>,
    pub(super) mapping: Cell<Mapping>,
    /// Bios that went on as clones.
    pub(super) clones: Cell<u64>,
}

impl FlatSlot {
    /// No mapping: the device is new, and suspended.
    pub(super) fn new() -> FlatSlot {
        FlatSlot {
            current: RefCell::new(Rc::new(Flat::empty())),
            generation: Cell::new(0),
            previous_bases: RefCell::default(),
            bios_may_wait: Cell::new(true),
            published: Cell::new(false),
            withdrawing: Cell::new(0),
            mapping: Cell::default(),
            clones: Cell::new(0),
        }
    }

    /// The mapping that bios take now, if there is one.
    pub(super) fn get(&self) -> Option<Rc<Flat>> {
        Some(self.current.borrow().clone()).filter(|flat| !flat.is_empty())
    }

    pub(super) fn bios_may_wait(&self) -> bool {
        self.bios_may_wait.get()
    }

    pub(super) fn set_bios_may_wait(&self, wait: bool) {
        self.bios_may_wait.set(wait);
    }

    /// Replaces the mapping. `watcher` learns of errors on the bases of the old one.
    pub(super) fn replace(&self, new: Option<Flat>, watcher: &Weak<dyn OnIoError>) {
        let old = self.current.replace(Rc::new(new.unwrap_or_else(Flat::empty)));
        self.generation.set(self.generation.get() + 1);
        let mut previous = self.previous_bases.borrow_mut();
        previous.retain(|base| base.strong_count() > 0);
        for base in old.bases() {
            if !previous.iter().any(|b| b.upgrade().is_some_and(|b| same_device(&b, base))) {
                previous.push(Rc::downgrade(base));
                base.watch(watcher.clone());
            }
        }
    }

    /// Waits until everything that earlier mappings have sent has ended. There is none now.
    pub(super) async fn bases_quiesced(&self) {
        let previous = self.previous_bases.borrow().clone();
        for base in previous.iter().filter_map(Weak::upgrade) {
            base.quiesced().await;
        }
    }

    /// The bases of earlier mappings, which are forgotten here.
    pub(super) fn take_previous_bases(&self) -> Vec<Rc<dyn Base>> {
        self.previous_bases.take().iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes that other cores may have a mapping; returns whether they might before.
    pub(super) fn set_published(&self) -> bool {
        self.published.replace(true)
    }

    /// Waits until no other core uses a mapping of before.
    pub(crate) async fn withdraw(&self, minor: u32, replicas: &Rc<dyn Replicas>) {
        // A second task has to wait too: until the first one has returned, copies are in use.
        let waiting = &self.withdrawing;
        if self.published.replace(false) || waiting.get() > 0 {
            waiting.set(waiting.get() + 1);
            replicas.withdraw(minor).await;
            waiting.set(waiting.get() - 1);
        }
    }
}
