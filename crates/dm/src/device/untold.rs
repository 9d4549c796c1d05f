// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What devices below have lost that a table of before has left, and who must hear of it.
//!
//! ```text
//!   table of before ── last FLUSH ──▶ leaf ──▶ its record (LostWrites)
//!                                                 │ outlives the leaf
//!   FLUSH ──▶ mapped device ──▶ Untold ───────────┘
//!                  └──▶ live table      fails at its end for an opener that must hear
//! ```
//!
//! The next table may name another device, or none, and the same one again later: in all cases the
//! opener's FLUSH is about changes that this device has acknowledged.
//!
//! Invariants
//! - DM-UT1 A leaf is flushed before a table that leaves it is dropped, and its record is kept here
//!   until all have heard. So what later happens to the leaf concerns nobody here.
//! - DM-UT2 While there is somebody to tell, the device has no flat mapping, and other cores have
//!   no way past it: each FLUSH comes to the device itself.
//! - DM-UT3 A FLUSH that must fail goes on to the live table all the same. So it reports what has
//!   been lost there, too, and the next one succeeds.
//! - DM-UT4 Who must hear is asked when a FLUSH is submitted, and has heard when it ends: FLUSHes
//!   that are in flight together all fail. Those that waited for a resume are asked together.
//! - DM-UT5 Each loss is in one record, that of its leaf, whoever tells of it: if the leaf comes
//!   back, or another device uses it, nobody hears of it twice. One exception: a FLUSH that began
//!   to wait before everything in flight had ended reports, and so does the next one, because a
//!   change may have been acknowledged between them (PO-ES4 of `policy::ErrSeq`).
//!
//! Downside: nobody knows when an opener has gone, so one that flushes no more keeps the device off
//! the short way until it is made anew.
//!
//! Not covered: targets that are engines. They are suspended before, and what they have lost the
//! same target of the next table takes over ([`block::Target::take_over`]). Nor changes that went
//! to a leaf past this core: a leaf of another core has a record of its own, which ends with it.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, Completion, LostWrites, Opener, Status, same_device};
use reactor::OnDone;

/// Leaves that were lost one after another while somebody has not flushed once; beyond that the
/// oldest one is forgotten. Chosen: each is a disaster that an operator knows of.
const LEAVES_MAX: usize = 64;

/// See the module.
pub(super) struct Untold {
    records: RefCell<Vec<Rc<dyn LostWrites>>>,
    on_all_told: Box<dyn Fn()>,
}

/// What a FLUSH reports, once it has failed.
pub(super) struct Report(Vec<Box<dyn FnOnce()>>);

impl Report {
    /// The FLUSH has failed.
    pub(super) fn made(self) {
        self.0.into_iter().for_each(|told| told());
    }
}

impl Untold {
    /// `on_all_told` is called in the middle of a FLUSH when there is nobody to tell any more.
    pub(super) fn new(on_all_told: impl Fn() + 'static) -> Rc<Untold> {
        Rc::new(Untold { records: RefCell::default(), on_all_told: Box::new(on_all_told) })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.borrow().is_empty()
    }

    pub(super) fn records(&self) -> Vec<Rc<dyn LostWrites>> {
        self.records.borrow().clone()
    }

    /// A table that leaves these is dropped. The flat mappings are made again before the next bio.
    pub(super) fn add(&self, left: Vec<Rc<dyn LostWrites>>) {
        let mut all = self.records.borrow_mut();
        for record in left {
            if !all.iter().any(|known| same_device(known, &record)) {
                all.push(record);
            }
        }
        let surplus = all.len().saturating_sub(LEAVES_MAX);
        all.drain(..surplus);
    }

    /// A FLUSH of `opener` is submitted: what it must report, if it must fail (DM-UT4).
    pub(super) fn must_hear(&self, opener: Opener) -> Option<Report> {
        if self.is_empty() {
            return None;
        }
        let reports: Vec<_> =
            self.records().into_iter().filter_map(|record| record.must_hear(opener)).collect();
        self.forget_told();
        (!reports.is_empty()).then_some(Report(reports))
    }

    /// `flush` fails when it ends, and reports that, unless there is no `report`.
    pub(super) fn fail_at_end(self: &Rc<Self>, mut flush: Bio, report: Option<Report>) -> Bio {
        let hook = Rc::new(FailAtEnd { untold: self.clone(), client: Cell::default() });
        let client = std::mem::replace(&mut flush.done, reactor::watched(hook.clone(), 0));
        hook.client.set(Some((client, report)));
        flush
    }

    fn forget_told(&self) {
        let mut all = self.records.borrow_mut();
        let before = all.len();
        all.retain(|record| !record.are_told());
        let are_all_told = before > 0 && all.is_empty();
        drop(all);
        if are_all_told {
            (self.on_all_told)();
        }
    }
}

/// Fails a FLUSH on its way back.
struct FailAtEnd {
    untold: Rc<Untold>,
    client: Cell<Option<(Completion, Option<Report>)>>,
}

impl OnDone for FailAtEnd {
    fn on_done(&self, status: Status, _: u64) {
        let (client, report) = self.client.take().expect("it ends once");
        if let Some(report) = report {
            report.made();
            self.untold.forget_told();
        }
        client.complete(if status == Status::Ok { Status::Io } else { status });
    }
}
