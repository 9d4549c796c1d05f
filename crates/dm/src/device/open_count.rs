// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many handles of a device there are, and whether it is removed with the last one.
use std::cell::Cell;

#[derive(Default)]
pub(super) struct OpenCount {
    pub(super) count: Cell<u32>,
    /// Removed when the last handle is dropped (`remove --deferred`).
    pub(super) remove_at_close: Cell<bool>,
}
