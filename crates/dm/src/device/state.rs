// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a mapped device: one value, and the only functions that change it.
//!
//! | state | bios | shown as suspended | its targets | can be opened |
//! |---|---|---|---|---|
//! | `New` | wait | no | there are none | yes |
//! | `Active` | pass | no | run | yes |
//! | `Suspending` | wait | no | run until nothing is in flight | yes |
//! | `Suspended` | wait | yes | are suspended, or there are none | yes |
//! | `Unclean` | wait | yes | one of them could not be suspended | yes |
//! | `Removing` | wait | no | as `Suspending` | no |
//! | `RemovingSuspended` | wait | yes | as `Suspended` | no |
//! | `RemovingUnclean` | wait | yes | as `Unclean` | no |
//! | `Removed` | fail | yes | are dropped | no |
//!
//! ```text
//!                 begin_suspend            end_suspend
//!   Active ──────────────────▶ Suspending ────────────▶ Suspended or Unclean
//!     ▲                                                     │
//!     └──────────────────────── activate ───────────────────┘
//!
//!   New ── begin_suspend ──▶ Suspended: it has no table yet, and nothing is in flight
//!   renew           Suspended ──▶ New: its tables were dropped, or its first one did not go live
//!   begin_removal   each state ──▶ the `Removing...` in its line: Active, Suspending ──▶ Removing,
//!                   New ──▶ RemovingSuspended
//!   end_suspend     Removing, RemovingUnclean ──▶ RemovingSuspended or RemovingUnclean
//!   cancel_removal  RemovingUnclean ──▶ Unclean: a target could not be suspended
//!   finish_removal  each state ──▶ Removed
//!   force           as cancel_removal; activate follows if there is a table of errors to activate
//! ```
//!
//! An unclean device stays `Unclean` while a further suspend is under way.
//!
//! Kept apart from it, each for its reason:
//! - Whether bios may have to wait *below* (`FlatSlot::bios_may_wait`) depends on other devices
//!   too. It is worked out with the flat mapping, and no bio reads it.
//! - Whether other cores have a copy of the flat mapping (`FlatSlot::published`), and how many
//!   tasks wait until they have none (`withdrawing`): each device above and below has its own,
//!   whatever this state is, and a removal by force publishes a new mapping while the old one is
//!   withdrawn.
//! - Whether the device is removed when its last opener closes it (`OpenCount`): a wish that can be
//!   taken back, in any state.
use std::cell::Cell;

/// See the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    New,
    Active,
    Suspending,
    Suspended,
    Unclean,
    Removing,
    RemovingSuspended,
    RemovingUnclean,
    Removed,
}

impl State {
    /// Whether the device shows itself as suspended, as the kernel's does: not before its first
    /// table.
    fn is_suspended(self) -> bool {
        match self {
            State::New | State::Active | State::Suspending | State::Removing => false,
            State::Suspended
            | State::Unclean
            | State::RemovingSuspended
            | State::RemovingUnclean
            | State::Removed => true,
        }
    }

    fn is_removing(self) -> bool {
        match self {
            State::New | State::Active | State::Suspending | State::Suspended | State::Unclean => {
                false
            }
            State::Removing
            | State::RemovingSuspended
            | State::RemovingUnclean
            | State::Removed => true,
        }
    }

    /// The state of a removal that begins in this one.
    fn removing(self) -> State {
        match self {
            State::Active | State::Suspending | State::Removing => State::Removing,
            State::New | State::Suspended | State::RemovingSuspended => State::RemovingSuspended,
            State::Unclean | State::RemovingUnclean => State::RemovingUnclean,
            State::Removed => State::Removed,
        }
    }

    /// The state without the removal.
    fn staying(self) -> State {
        match self {
            State::Removing => State::Suspending,
            State::RemovingSuspended => State::Suspended,
            State::RemovingUnclean => State::Unclean,
            State::New
            | State::Active
            | State::Suspending
            | State::Suspended
            | State::Unclean
            | State::Removed => self,
        }
    }
}

/// The state of one device.
pub(crate) struct Lifecycle(Cell<State>);

impl Lifecycle {
    /// A new device has no table.
    pub(crate) fn new() -> Lifecycle {
        Lifecycle(Cell::new(State::New))
    }

    /// Whether bios that come have to wait. One load and one compare, for each bio.
    #[inline]
    pub(crate) fn holds_bios(&self) -> bool {
        self.0.get() != State::Active
    }

    /// Whether the device shows itself as suspended. While a suspend is under way it does not.
    pub(crate) fn is_suspended(&self) -> bool {
        self.0.get().is_suspended()
    }

    /// Whether the device has had no table yet.
    pub(crate) fn is_new(&self) -> bool {
        self.0.get() == State::New
    }

    /// Whether the device is being removed or is removed: it can't be opened any more.
    pub(crate) fn is_removing(&self) -> bool {
        self.0.get().is_removing()
    }

    /// Stops bios. Returns whether there is anything to suspend: `false` when the last suspend was
    /// clean, and when the device has had no table yet.
    pub(crate) fn begin_suspend(&self) -> bool {
        let state = self.0.get();
        match state {
            State::New => {
                self.0.set(State::Suspended);
                return false;
            }
            State::Active => self.0.set(State::Suspending),
            State::Suspending | State::Unclean | State::Removing | State::RemovingUnclean => {}
            State::Suspended | State::RemovingSuspended | State::Removed => return false,
        }
        true
    }

    /// Nothing is in flight below, and the targets have been asked to suspend; `clean` when all of
    /// them could.
    pub(crate) fn end_suspend(&self, clean: bool) {
        let state = if clean { State::Suspended } else { State::Unclean };
        self.0.set(if self.is_removing() { state.removing() } else { state });
    }

    /// Lets bios pass.
    pub(crate) fn activate(&self) {
        self.0.set(State::Active);
    }

    /// It has no live table, and is as new. The device is suspended.
    pub(crate) fn renew(&self) {
        assert_eq!(self.0.get(), State::Suspended, "DM-D2: nothing is in flight below");
        self.0.set(State::New);
    }

    /// Nobody can open the device from now on.
    pub(crate) fn begin_removal(&self) {
        self.0.set(self.0.get().removing());
    }

    /// The device stays.
    pub(crate) fn cancel_removal(&self) {
        self.0.set(self.0.get().staying());
    }

    /// The tables are dropped.
    pub(crate) fn finish_removal(&self) {
        self.0.set(State::Removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The questions that a state answers, as flags of their own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Flags {
        blocked: bool,
        suspended: bool,
        unclean: bool,
        removing: bool,
        new: bool,
    }

    impl Flags {
        fn of(state: State) -> Flags {
            let lifecycle = Lifecycle(Cell::new(state));
            Flags {
                blocked: lifecycle.holds_bios(),
                suspended: lifecycle.is_suspended(),
                unclean: matches!(state, State::Unclean | State::RemovingUnclean),
                removing: lifecycle.is_removing(),
                new: matches!(state, State::New),
            }
        }
    }

    /// What a verb does to the state and to the flags.
    type Step = (&'static str, fn(&Lifecycle), fn(&mut Flags));

    /// The steps that one verb at a time, and a removal by force, can take in a state.
    fn steps(flags: Flags) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        if flags.new {
            steps.push((
                "begin_suspend",
                |l| assert!(!l.begin_suspend()),
                |f| {
                    (f.suspended, f.new) = (true, false);
                },
            ));
        } else if !flags.suspended || flags.unclean {
            steps.push(("begin_suspend", |l| assert!(l.begin_suspend()), |f| f.blocked = true));
        } else {
            steps.push(("begin_suspend", |l| assert!(!l.begin_suspend()), |_| ()));
        }
        if flags.blocked && !flags.new && (!flags.suspended || flags.unclean) {
            steps.push((
                "clean",
                |l| l.end_suspend(true),
                |f| {
                    (f.suspended, f.unclean) = (true, false);
                },
            ));
            steps.push((
                "unclean",
                |l| l.end_suspend(false),
                |f| {
                    (f.suspended, f.unclean) = (true, true);
                },
            ));
        }
        if flags.removing {
            steps.push(("cancel_removal", Lifecycle::cancel_removal, |f| f.removing = false));
        } else if !flags.new {
            steps.push(("activate", Lifecycle::activate, |f| {
                (f.blocked, f.suspended, f.unclean) = (false, false, false);
            }));
        }
        if flags.suspended && !flags.unclean && !flags.removing {
            steps.push(("renew", Lifecycle::renew, |f| {
                (f.suspended, f.new) = (false, true);
            }));
        }
        if !flags.removing {
            steps.push(("begin_removal", Lifecycle::begin_removal, |f| {
                (f.blocked, f.removing, f.suspended) = (true, true, f.suspended || f.new);
                f.new = false;
            }));
        }
        steps
    }

    #[test]
    fn every_reachable_state_answers_as_its_flags_would() {
        let mut left = vec![State::New];
        let mut reached = left.clone();
        while let Some(from) = left.pop() {
            for (step, change, model) in steps(Flags::of(from)) {
                let lifecycle = Lifecycle(Cell::new(from));
                let mut flags = Flags::of(from);
                change(&lifecycle);
                model(&mut flags);
                let to = lifecycle.0.get();
                assert_eq!(Flags::of(to), flags, "{step} in {from:?} leads to {to:?}");
                if !reached.contains(&to) {
                    reached.push(to);
                    left.push(to);
                }
            }
        }
        assert_eq!(reached.len(), 8, "all but `Removed`: {reached:?}");
    }

    #[test]
    fn a_removed_device_stays_removed() {
        let lifecycle = Lifecycle::new();
        lifecycle.begin_removal();
        lifecycle.finish_removal();
        assert!(!lifecycle.begin_suspend());
        lifecycle.begin_removal();
        lifecycle.cancel_removal();
        assert!(lifecycle.is_removing());
        assert!(lifecycle.holds_bios());
    }
}
