// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Automatic writeback: a task that asks the policy what to write back, and does it.
//!
//! ```text
//!   sleep ─▶ next_action ─▶ ages of all parts ─▶ steps ─▶ write_back (as a command) ─▶ wrote
//!     ▲                                                                           │
//!     └───────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariants
//! - ZR-PO1 There is one task while there are rules, else none: a device without rules has no
//!   timer, and a suspended one does nothing.
//! - ZR-PO2 The task does not keep the device alive while it sleeps.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::Nanos;
use policy::{Ages, IdleAction, IdlePolicy, IdleState, IdleTotals, Step};
use reactor::{now, sleep, spawn};

use crate::command::{Kind, Writeback};
use crate::device::Zram;
use crate::slot::PAGE;
use crate::writeback::Outcome;

/// The state of the automatic writeback of a device, through all suspends.
pub(crate) struct AutoWriteback {
    policy: RefCell<IdlePolicy>,
    /// The generation whose task runs; 0 for none (ZR-PO1).
    running: Cell<u64>,
}

impl AutoWriteback {
    /// For a new device.
    pub(crate) fn new() -> AutoWriteback {
        AutoWriteback { policy: RefCell::new(IdlePolicy::new(now().0)), running: Cell::new(0) }
    }

    /// Totals for the status.
    pub(crate) fn totals(&self) -> IdleTotals {
        self.policy.borrow().totals()
    }
}

/// Takes the rules of the device. To be called when it is resumed, and when the rules have changed.
pub(crate) fn start(zram: &Rc<Zram>) {
    let auto = &zram.auto;
    let rules = zram.config.borrow().auto;
    auto.policy.borrow_mut().set_rules(rules);
    let generation = zram.generation();
    let can_run = zram.has_backing() && zram.running().is_ok();
    if rules.any() && can_run && auto.running.get() != generation {
        auto.running.set(generation);
        spawn(run(Rc::downgrade(zram), generation));
    }
}

async fn run(zram: Weak<Zram>, generation: u64) {
    loop {
        let Some(device) = zram.upgrade() else { return };
        if device.generation() != generation {
            return;
        }
        if !device.config.borrow().auto.any() {
            device.auto.running.set(0);
            return;
        }
        let pause = match next_action(&device) {
            IdleAction::Rest(ns) => Nanos(ns),
            IdleAction::Scan => {
                round(&device, generation).await;
                Nanos(0)
            }
        };
        drop(device); // ZR-PO2
        sleep(pause).await;
    }
}

fn next_action(zram: &Zram) -> IdleAction {
    let packed = zram.config.borrow().compressed_writeback;
    zram.auto.policy.borrow_mut().next_action(now().0, memory_bytes(zram), packed)
}

fn memory_bytes(zram: &Zram) -> u64 {
    zram.totals().mem_pages * PAGE as u64
}

/// Visits all pages, and writes back those that the policy chooses. Ends when the device was
/// suspended meanwhile: after a resume another task counts.
async fn round(zram: &Rc<Zram>, generation: u64) {
    let Some(parts) = zram.parts() else { return };
    let seen = parts.ask(|part| part.ages()).await;
    if zram.generation() != generation {
        return;
    }
    let mut ages = Ages::default();
    let mut clock = u32::MAX;
    for (at, of_part) in &seen {
        clock = clock.min(*at);
        ages.merge(of_part);
    }
    let packed = zram.config.borrow().compressed_writeback;
    let memory = memory_bytes(zram);
    let steps = zram.auto.policy.borrow_mut().steps(now().0, memory, packed, &ages);
    let mut planned: u64 = steps.iter().map(|step| step.max_pages).sum();
    for step in steps {
        let left = zram.auto.policy.borrow_mut().pages_left(now().0, packed);
        let max_moved = left.saturating_sub(planned);
        planned -= step.max_pages;
        // The device is younger than the age of the step.
        let Some(which) = command(step, clock) else { continue };
        let which = Writeback { max_moved, ..which };
        // Suspended meanwhile: the task ends at its next turn.
        let Ok(outcome) = zram.write_back(which).await else { return };
        let failure = failure(&outcome);
        let written = (outcome.blocks * PAGE as u64, outcome.pages);
        zram.auto.policy.borrow_mut().wrote(now().0, step, written, failure);
        if failure.is_some() || zram.generation() != generation {
            return;
        }
    }
}

/// A step as a command of a device whose clock shows so many seconds.
fn command(step: Step, clock: u32) -> Option<Writeback> {
    let second = clock.checked_sub(step.min_age_secs)?;
    let kind = if step.huge { Kind::HugeAged(second) } else { Kind::Aged(second) };
    Some(Writeback::of_kind(kind, step.max_pages))
}

/// Why a writeback could not do all of its step.
fn failure(outcome: &Outcome) -> Option<IdleState> {
    if outcome.error.is_some() {
        Some(IdleState::Failed)
    } else if outcome.limit_reached {
        Some(IdleState::Limited)
    } else if outcome.no_space {
        Some(IdleState::Full)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_writes_back_pages_not_accessed_since() {
        let step = Step { huge: true, min_age_secs: 60, max_pages: 9 };
        assert_eq!(command(step, 100), Some(Writeback::of_kind(Kind::HugeAged(40), 9)));
        let step = Step { huge: false, ..step };
        assert_eq!(command(step, 60), Some(Writeback::of_kind(Kind::Aged(0), 9)));
        assert_eq!(command(step, 59), None);
    }
}
