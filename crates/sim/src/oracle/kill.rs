// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a device promises to keep when its process is killed.
use super::{INITIAL, Oracle, WriteToken, span};

impl Oracle {
    /// Records, before [`Oracle::end_write`], that a kill of the process does not undo a change
    /// that has succeeded: the device has promised that without a flush. A power cut may.
    pub fn keep_over_kill(&mut self, token: &WriteToken) {
        for block in &mut self.blocks[span(&token.blocks)] {
            block.kept = block.kept.max(token.began);
        }
    }

    /// To be called after [`Oracle::kill`], before the device is used again: the next process does
    /// not have the memory of the one before. What was kept there alone may be lost, or may come
    /// with a later process that has it.
    pub fn forget_kept(&mut self) {
        for block in &mut self.blocks {
            block.kept = INITIAL;
            block.current = block.durable;
        }
    }
}
