// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a guest that has used a queue in an earlier process may go on with it in this one.
use std::sync::atomic::Ordering;

use block::Error;

use crate::queue::Queue;
use crate::session::{Common, Shared};

impl Shared {
    /// A queue that is about to run; `lacks_notes`: the front end keeps notes of requests in
    /// flight, and has no room for those of this queue. Then the guest is served until this process
    /// dies, and the log says so.
    ///
    /// # Errors
    /// VH-V5.
    pub(crate) fn check_may_go_on(&self, queue: &Queue, lacks_notes: bool) -> Result<(), Error> {
        let number = queue.number;
        let has_run = queue.ring().is_some_and(|ring| ring.used_idx() != 0 || ring.next() != 0);
        let Common { was_used, was_used_before, .. } = &self.common;
        let may_go_on = *was_used_before || queue.was_started.get();
        if has_run && !may_go_on && (lacks_notes || !self.export.outlives_process()) {
            // Nor may it when it connects again, whatever its other queues have done.
            was_used.store(false, Ordering::Relaxed);
            let lost = match lacks_notes {
                true => "what that one had in flight is not noted",
                false => "this device has lost what that one acknowledged",
            };
            return Err(Error::invalid(format!(
                "queue {number}: the guest has used an earlier process, and {lost}: start the \
                 guest again"
            )));
        }
        if lacks_notes {
            let size = queue.size.get();
            self.export.warn(&format!(
                "queue {number}: the front end's memory for notes of requests in flight \
                 has no room for a ring of {size} entries: after the death of this process the \
                 guest can't go on until it is started again"
            ));
        }
        Ok(())
    }
}
