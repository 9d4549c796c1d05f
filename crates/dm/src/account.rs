// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The I/O statistics of a device, counted only while its attribute `queue/iostats` is 1.
//!
//! Off, they cost a bio nothing. On, the device has no flat mapping, and one more completion is
//! chained to each bio.
use std::cell::Cell;
use std::rc::Rc;

use block::{Bio, Op, Status};
use reactor::OnDone;

/// Requests and sectors by operation since the device was made, and what is in flight.
#[derive(Default)]
pub(crate) struct Account {
    on: Cell<bool>,
    done: [Cell<(u64, u64)>; 5],
    in_flight: Cell<u64>,
}

impl Account {
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }

    pub(crate) fn set_on(&self, on: bool) {
        self.on.set(on);
    }

    /// Counts the bio in flight now, and as done when it ends.
    pub(crate) fn track(self: &Rc<Self>, mut bio: Bio) -> Bio {
        self.in_flight.set(self.in_flight.get() + 1);
        // Bits 0 to 2: op, the others: length; no device has 2^61 sectors.
        let tag = bio.len.0 << 3 | bio.op as u64;
        bio.done = reactor::chain(bio.done, self.clone(), tag);
        bio
    }

    fn of(&self, op: Op) -> (u64, u64) {
        self.done[op as usize].get()
    }

    /// The 17 columns of `/sys/block/NAME/stat`. The columns of merged requests and of times are 0:
    /// dm merges nothing and measures no time. Failed requests are not counted.
    pub(crate) fn stat(&self) -> String {
        let of = |op| {
            let (ios, sectors) = self.of(op);
            [ios, 0, sectors, 0]
        };
        let zeroes = of(Op::WriteZeroes);
        let mut write = of(Op::Write);
        write[0] += zeroes[0];
        write[2] += zeroes[2];
        let middle = [self.in_flight.get(), 0, 0];
        let flush = [self.of(Op::Flush).0, 0];
        let columns = of(Op::Read).into_iter().chain(write).chain(middle);
        let columns = columns.chain(of(Op::Discard)).chain(flush);
        columns.map(|n| format!("{n:8}")).collect::<Vec<_>>().join(" ")
    }
}

impl OnDone for Account {
    fn on_done(&self, status: Status, tag: u64) {
        self.in_flight.set(self.in_flight.get() - 1);
        if status == Status::Ok {
            let done = &self.done[usize::try_from(tag & 7).expect("three bits")];
            let (ios, sectors) = done.get();
            done.set((ios + 1, sectors.wrapping_add(tag >> 3)));
        }
    }
}
