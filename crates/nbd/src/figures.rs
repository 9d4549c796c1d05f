// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a connection.
use std::cell::Cell;

use block::Nanos;
use reactor::now;

/// What a connection counts.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) id: u64,
    pub(crate) accepted_at: Nanos,
    pub(crate) requests: Cell<u64>,
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) write_bytes: Cell<u64>,
    pub(crate) errors: Cell<u64>,
}

impl Figures {
    pub(crate) fn new(id: u64) -> Figures {
        Figures {
            id,
            accepted_at: now(),
            requests: Cell::new(0),
            read_bytes: Cell::new(0),
            write_bytes: Cell::new(0),
            errors: Cell::new(0),
        }
    }
}
