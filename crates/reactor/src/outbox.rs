// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Outbox: messages to other cores gather here for a round and go out together.
use block::CoreId;

use crate::driver::Msg;

/// What is to be sent, by core. Its vectors are kept, so gathering allocates nothing in the long
/// run.
#[derive(Default)]
pub(crate) struct Outbox {
    batches: Vec<Vec<Msg>>,
    /// Cores with a batch.
    waiting: Vec<CoreId>,
}

impl Outbox {
    pub(crate) fn push(&mut self, to: CoreId, msg: Msg) {
        let slot = usize::from(to.0);
        if slot >= self.batches.len() {
            self.batches.resize_with(slot + 1, Vec::new);
        }
        if self.batches[slot].is_empty() {
            self.waiting.push(to);
        }
        self.batches[slot].push(msg);
    }

    /// One core's batch.
    pub(crate) fn take_one(&mut self) -> Option<(CoreId, Vec<Msg>)> {
        let to = self.waiting.pop()?;
        Some((to, std::mem::take(&mut self.batches[usize::from(to.0)])))
    }

    /// Takes the empty vector of a batch back.
    pub(crate) fn give_back(&mut self, to: CoreId, empty: Vec<Msg>) {
        let slot = &mut self.batches[usize::from(to.0)];
        if slot.capacity() == 0 {
            *slot = empty;
        }
    }
}
