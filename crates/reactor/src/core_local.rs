// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `CoreLocal`: a name for an object of one core, which other cores can send back to it.
//!
//! An `Rc` can't leave its core. Its name can: the closure of a [`crate::call`] takes the name to
//! the core that has the object, and finds the object there.
use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::core::with_core;

/// The name of an object that its core keeps, from [`CoreLocal::keep`] to [`CoreLocal::release`].
/// A name is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoreLocal(u64);

/// The objects that one core keeps, by name.
#[derive(Default)]
pub(crate) struct CoreLocals {
    kept: BTreeMap<u64, Rc<dyn Any>>,
    next: u64,
}

impl CoreLocal {
    /// Keeps `object` on this core.
    pub fn keep(object: Rc<dyn Any>) -> CoreLocal {
        with_core(|c| {
            let mut locals = c.locals.borrow_mut();
            let name = locals.next;
            locals.next += 1;
            locals.kept.insert(name, object);
            CoreLocal(name)
        })
    }

    /// The object, on the core that keeps it; `None` after `release`, or when it is not a `T`.
    pub fn get<T: 'static>(self) -> Option<Rc<T>> {
        let object = with_core(|c| c.locals.borrow().kept.get(&self.0).cloned());
        object?.downcast().ok()
    }

    /// Stops keeping the object. No effect when that has been done.
    pub fn release(self) {
        // Dropping the object may do anything; nothing is borrowed here.
        drop(with_core(|c| c.locals.borrow_mut().kept.remove(&self.0)));
    }
}

block::debug_as!(CoreLocal, s => "CoreLocal({})", s.0);
