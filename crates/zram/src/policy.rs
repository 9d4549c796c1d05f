// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The automatic writeback at work: a task that asks the policy what to do, and does it.
//!
//! ```text
//!   sleep ─▶ look ─▶ ages of all shards ─▶ steps ─▶ write_back (in turn with commands) ─▶ wrote
//!     ▲                                                                                    │
//!     └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariants
//! - ZR-PO1 There is a task only while there are rules, and one at a time: a device without rules
//!   has no timer, and a suspended one does nothing.
//! - ZR-PO2 The task keeps no device alive while it sleeps.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::Nanos;
use policy::{Ages, IdlePolicy, IdleState, IdleTotals, Look, Step};
use reactor::{now, sleep, spawn};

use crate::command::{Kind, Writeback};
use crate::slot::PAGE;
use crate::target::Zram;
use crate::writeback::Outcome;

/// The policy of a device, through all its live periods.
pub(crate) struct Policy {
    decisions: RefCell<IdlePolicy>,
    /// The period whose task runs; 0 for none (ZR-PO1).
    running: Cell<u64>,
}

impl Policy {
    /// For a device that is made now.
    pub(crate) fn new() -> Policy {
        Policy { decisions: RefCell::new(IdlePolicy::new(now().0)), running: Cell::new(0) }
    }

    /// What there is to tell.
    pub(crate) fn totals(&self) -> IdleTotals {
        self.decisions.borrow().totals()
    }
}

/// Takes the rules of the device as they are now. To be called when it is resumed, and when they
/// have changed.
pub(crate) fn start(zram: &Rc<Zram>) {
    let policy = &zram.policy;
    let rules = zram.config.borrow().auto;
    policy.decisions.borrow_mut().set_rules(rules);
    let period = zram.period.get();
    if rules.any() && zram.has_backing() && policy.running.get() != period {
        policy.running.set(period);
        spawn(run(Rc::downgrade(zram), period));
    }
}

async fn run(zram: Weak<Zram>, period: u64) {
    loop {
        let Some(device) = zram.upgrade() else { return };
        if device.period.get() != period {
            return;
        }
        if !device.config.borrow().auto.any() {
            device.policy.running.set(0);
            return;
        }
        let rest = match look(&device) {
            Look::Rest(ns) => Nanos(ns),
            Look::Scan => {
                round(&device).await;
                Nanos(0)
            }
        };
        drop(device); // ZR-PO2
        sleep(rest).await;
    }
}

fn look(zram: &Zram) -> Look {
    let packed = zram.config.borrow().packs();
    zram.policy.decisions.borrow_mut().look(now().0, memory_bytes(zram), packed)
}

fn memory_bytes(zram: &Zram) -> u64 {
    zram.totals().mem_pages * PAGE as u64
}

/// Looks at all pages, and writes back what is to be.
async fn round(zram: &Rc<Zram>) {
    let Some(parts) = zram.parts() else { return };
    let seen = parts.ask(|shard| shard.ages()).await;
    let mut ages = Ages::default();
    let mut clock = u32::MAX;
    for (at, of_shard) in &seen {
        clock = clock.min(*at);
        ages.merge(of_shard);
    }
    let packed = zram.config.borrow().packs();
    let memory = memory_bytes(zram);
    let steps = zram.policy.decisions.borrow_mut().steps(now().0, memory, packed, &ages);
    for step in steps {
        // The device is younger than the age that is asked for.
        let Some(which) = command(step, clock) else { continue };
        // Suspended meanwhile: the task ends when it looks again.
        let Ok(outcome) = zram.write_back(which).await else { return };
        let in_vain = in_vain(&outcome);
        let written = (outcome.blocks * PAGE as u64, outcome.pages);
        zram.policy.decisions.borrow_mut().wrote(now().0, step, written, in_vain);
        if in_vain.is_some() {
            return;
        }
    }
}

/// The step as a writeback of a device whose clock shows so many seconds.
fn command(step: Step, clock: u32) -> Option<Writeback> {
    let second = clock.checked_sub(step.min_age_secs)?;
    let kind = if step.huge { Kind::HugeAged(second) } else { Kind::Aged(second) };
    Some(Writeback::of_kind(kind, step.max_pages))
}

fn in_vain(outcome: &Outcome) -> Option<IdleState> {
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
    fn a_step_is_a_writeback_of_what_was_not_accessed_since() {
        let step = Step { huge: true, min_age_secs: 60, max_pages: 9 };
        assert_eq!(command(step, 100), Some(Writeback::of_kind(Kind::HugeAged(40), 9)));
        let step = Step { huge: false, ..step };
        assert_eq!(command(step, 60), Some(Writeback::of_kind(Kind::Aged(0), 9)));
        assert_eq!(command(step, 59), None);
    }
}
