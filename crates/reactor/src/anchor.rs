// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Anchors: what of a core's own a [`crate::call`] from another core finds there again.
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::core::with_core;

/// Names something of a core, from [`anchor`] to [`unanchor`]. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anchor(u64);

impl fmt::Debug for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Anchor({})", self.0)
    }
}

/// All anchors of one core.
#[derive(Default)]
pub(crate) struct Anchors {
    kept: BTreeMap<u64, Rc<dyn Any>>,
    next: u64,
}

/// Keeps `what` on this core, where [`anchored`] finds it.
pub fn anchor(what: Rc<dyn Any>) -> Anchor {
    with_core(|c| {
        let mut anchors = c.anchors.borrow_mut();
        let name = anchors.next;
        anchors.next += 1;
        anchors.kept.insert(name, what);
        Anchor(name)
    })
}

/// What this core keeps by that name; nothing after [`unanchor`], or when it is no `T`.
pub fn anchored<T: 'static>(name: Anchor) -> Option<Rc<T>> {
    let what = with_core(|c| c.anchors.borrow().kept.get(&name.0).cloned());
    what?.downcast().ok()
}

/// Keeps it no longer. No effect when it has gone.
pub fn unanchor(name: Anchor) {
    // Dropping it may do anything; nothing is borrowed here.
    drop(with_core(|c| c.anchors.borrow_mut().kept.remove(&name.0)));
}
