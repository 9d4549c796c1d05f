// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that outlives the process, in crash tests: whether the lives of a machine have some, and
//! what a kill undoes then.
use std::cell::RefCell;
use std::rc::Rc;

use sim::{Oracle, Rng, Workload, WorldRef};
use writecache::Config;

/// Which directory of memory the lives of a machine have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalPlan {
    None,
    /// Always the same: a kill undoes no completed change.
    Kept,
    /// Each life draws one of two, or none: a kill undoes no completed change if the next life has
    /// the same.
    Moved,
}

/// The memory of the lives of one seed.
pub(crate) struct Memory {
    plan: JournalPlan,
    directory: Option<u32>,
}

impl JournalPlan {
    /// Gives the journal of a cache little room, more often than not.
    pub(crate) fn draw_capacity(self, rng: &mut Rng, config: &mut Config) {
        if self != JournalPlan::None {
            config.set_journal_capacity(rng.pick(&[70, 200, 4096]));
        }
    }
}

impl Memory {
    pub(crate) fn of(world: &WorldRef, plan: JournalPlan) -> Memory {
        let directory = (plan != JournalPlan::None).then_some(0);
        world.borrow_mut().use_memory(directory);
        Memory { plan, directory }
    }

    /// The next life begins.
    pub(crate) fn begin_life(&mut self, world: &WorldRef, oracle: &Rc<RefCell<Oracle>>) {
        if self.plan == JournalPlan::Moved {
            let directory = world.borrow_mut().rng.pick(&[Some(0), Some(0), Some(1), None]);
            if directory != self.directory {
                oracle.borrow_mut().forget_kept();
            }
            world.borrow_mut().use_memory(directory);
            self.directory = directory;
        }
    }

    /// Whether this life has memory that outlives it.
    pub(crate) fn is_there(&self) -> bool {
        self.directory.is_some()
    }

    /// The workload of this life; what fails may not be kept.
    pub(crate) fn workload(&self, load: Workload, with_faults: bool) -> Workload {
        match self.directory {
            Some(_) if !with_faults => load.keeping(Rc::new(|_| true)),
            _ => load,
        }
    }
}
