// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that checks that data in flight do not change before their write ends, and that no two
//! writes of one sector are in flight at the same time.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, BlockDevice, Bufs, Limits, Op, Status};
use reactor::OnDone;

pub(crate) struct StabilityCheck {
    below: Rc<dyn BlockDevice>,
    ledger: Rc<Ledger>,
}

struct PendingRequest {
    tag: u64,
    sectors: Range<u64>,
    op: Op,
    bufs: Bufs,
    sum: u32,
}

struct Ledger {
    pending: RefCell<Vec<PendingRequest>>,
    next: Cell<u64>,
    spoilt: Rc<RefCell<Option<String>>>,
}

/// The whole contents as one number (FNV-1a).
fn sum(bufs: &Bufs) -> u32 {
    let mut bytes = vec![0; bufs.len_bytes()];
    bufs.copy_to(&mut bytes);
    bytes.iter().fold(0x811c_9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

impl StabilityCheck {
    pub(crate) fn new(
        below: Rc<dyn BlockDevice>,
        spoilt: Rc<RefCell<Option<String>>>,
    ) -> StabilityCheck {
        let ledger = Ledger { pending: RefCell::default(), next: Cell::new(0), spoilt };
        StabilityCheck { below, ledger: Rc::new(ledger) }
    }
}

impl Ledger {
    fn complain(&self, why: String) {
        self.spoilt.borrow_mut().get_or_insert(why);
    }
}

impl OnDone for Ledger {
    fn on_done(&self, _: Status, tag: u64) {
        let mut pending = self.pending.borrow_mut();
        let at = pending.iter().position(|f| f.tag == tag).expect("it was noted");
        let request = pending.swap_remove(at);
        if sum(&request.bufs) != request.sum {
            self.complain(format!("sectors {:?} changed while they were written", request.sectors));
        }
    }
}

impl BlockDevice for StabilityCheck {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn submit(&self, mut bio: Bio) {
        let changes = match bio.op {
            Op::Write | Op::Discard | Op::WriteZeroes => true,
            Op::Read | Op::Flush => false,
        };
        if changes {
            let sectors = bio.sector.0..bio.end().0;
            let ledger = &self.ledger;
            let tag = ledger.next.replace(ledger.next.get() + 1);
            let mut pending = ledger.pending.borrow_mut();
            let overlaps = |f: &&PendingRequest| {
                f.sectors.start < sectors.end && sectors.start < f.sectors.end
            };
            if let Some(other) = pending.iter().find(overlaps) {
                let (op, with) = (bio.op, other.op);
                let there = &other.sectors;
                ledger.complain(format!("{op} of {sectors:?} while {with} of {there:?} is below"));
            }
            let bufs = bio.bufs.clone();
            let sum = sum(&bufs);
            pending.push(PendingRequest { tag, sectors, op: bio.op, bufs, sum });
            drop(pending);
            bio.done = reactor::chain(bio.done, ledger.clone(), tag);
        }
        self.below.submit(bio);
    }
}
