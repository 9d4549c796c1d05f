// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mapping=clone`: each layer sends a copy of the bio down, for comparison with flat mappings.
//!
//! The kernel's device mapper does this without its optimisation: for each bio and layer it
//! allocates a request, copies the bio into it and sends the copy down; when the copy has ended, it
//! frees the request and completes the original. Here the request is one allocation, and the copy's
//! completion is chained to the original's; nothing else makes it slower.
use std::rc::Rc;

use block::{Bio, Bufs, Class, Flags, Op, Sector, Status};
use reactor::OnDone;

/// The original as it came, kept until its clone has ended.
#[expect(dead_code, reason = "held, as the kernel holds the original, and freed at the end")]
struct Original {
    op: Op,
    flags: Flags,
    class: Class,
    sector: Sector,
    len: Sector,
    bufs: Bufs,
}

impl OnDone for Original {
    fn on_done(&self, _status: Status, _tag: u64) {}
}

/// A clone of `bio`, whose end ends the original.
pub(crate) fn clone_of(bio: Bio) -> Bio {
    let Bio { op, flags, class, opener, sector, len, bufs, done } = bio;
    let original = Original { op, flags, class, sector, len, bufs: bufs.clone() };
    let done = reactor::chain(done, Rc::new(original), 0);
    Bio { op, flags, class, opener, sector, len, bufs, done }
}
