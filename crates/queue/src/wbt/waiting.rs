// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who waits at one leaf, and whose turn it is.
//!
//! The kernel's law has one queue for writes and one for discards, first come, first served. Ours
//! lets the urgent go first; but who has waited for [`OVERDUE_NS`] goes before them once in
//! [`SHARE_NS`], and once in [`SHARE_PASSED`] that pass, if none like it has gone meanwhile.
use std::collections::VecDeque;

use block::{Bufs, Completion, Flags, Op, Sector};
use policy::wbt::{Mode, ThrottleClass};

use crate::flush_errors::Entry;
use crate::stats::Ticket;

/// Nobody is passed by others for longer than this without any of its kind going. Chosen: a second
/// is long beside any window.
pub(crate) const OVERDUE_NS: u64 = 1_000_000_000;
/// How often one of a kind goes that would not otherwise. Chosen: longer than our law holds writes
/// back for a moment.
pub(crate) const SHARE_NS: u64 = 200_000_000;
/// After so many of others, too, pieces and bios: a FLUSH may wait for what goes in many pieces.
/// Chosen: little beside what passes.
pub(crate) const SHARE_PASSED: u32 = 8;

/// A bio on its way to the driver, or what is left of it.
pub(crate) struct Work {
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) sector: Sector,
    pub(crate) len: Sector,
    pub(crate) bufs: Bufs,
    pub(crate) whose: Whose,
}

/// What a request is.
pub(crate) enum Whose {
    /// A whole bio.
    Bio(Entry, Completion),
    /// Part of the bio with this slot of the line.
    Split(usize),
}

pub(crate) struct Waiter {
    pub(crate) work: Work,
    pub(crate) since_ns: u64,
    pub(crate) seq: u64,
}

/// Which heads have been tried in vain in one look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    /// Writes as urgent as this, and less, have to wait.
    writes_from: Option<ThrottleClass>,
    discards: bool,
    overdue: bool,
}

impl Tried {
    /// `who` has to wait; `overdue`: it was its turn because it had waited long.
    pub(crate) fn in_vain(&mut self, who: ThrottleClass, overdue: bool) {
        if who == ThrottleClass::Discard {
            self.discards = true;
        } else {
            self.overdue |= overdue;
            self.writes_from = Some(self.writes_from.map_or(who, |other| other.min(who)));
        }
    }
}

/// The queue of one leaf.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By [`ThrottleClass`].
    queues: [VecDeque<Waiter>; 4],
    seq: u64,
    /// When one of them went last, or a piece of it.
    went_ns: [u64; 4],
    /// How many others went since then.
    passed: [u32; 4],
}

/// The writes, most urgent first.
const WRITES: [ThrottleClass; 3] =
    [ThrottleClass::Sync, ThrottleClass::Normal, ThrottleClass::Background];

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    pub(crate) fn count(&self, who: ThrottleClass) -> usize {
        self.queues[who as usize].len()
    }

    /// Of the bios of which no piece has gone.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = &Ticket> {
        self.queues.iter().flatten().filter_map(|waiter| match &waiter.work.whose {
            Whose::Bio(entry, _) => Some(&entry.ticket),
            Whose::Split(_) => None,
        })
    }

    /// Whether a newcomer has to queue behind somebody.
    pub(crate) fn is_behind(&self, mode: Mode, who: ThrottleClass) -> bool {
        let someone = |who: &ThrottleClass| self.count(*who) > 0;
        match (who, mode) {
            (ThrottleClass::Discard, Mode::Kernel | Mode::Tail) => someone(&who),
            (
                ThrottleClass::Sync | ThrottleClass::Normal | ThrottleClass::Background,
                Mode::Kernel,
            ) => WRITES.iter().any(someone),
            (
                ThrottleClass::Sync | ThrottleClass::Normal | ThrottleClass::Background,
                Mode::Tail,
            ) => WRITES.iter().filter(|other| **other <= who).any(someone),
        }
    }

    /// At the end of its queue.
    pub(crate) fn push(&mut self, who: ThrottleClass, work: Work, now_ns: u64) {
        self.seq += 1;
        let waiter = Waiter { work, since_ns: now_ns, seq: self.seq };
        self.queues[who as usize].push_back(waiter);
    }

    /// Where it was taken from.
    pub(crate) fn put_back(&mut self, who: ThrottleClass, waiter: Waiter) {
        self.queues[who as usize].push_front(waiter);
    }

    pub(crate) fn take(&mut self, who: ThrottleClass) -> Option<Waiter> {
        self.queues[who as usize].pop_front()
    }

    fn head(&self, who: ThrottleClass) -> Option<&Waiter> {
        self.queues[who as usize].front()
    }

    /// Whose turn it is, and whether because it is overdue. Nobody's when the queue is empty or
    /// all have been tried.
    pub(crate) fn next(
        &self,
        mode: Mode,
        now_ns: u64,
        tried: Tried,
    ) -> Option<(ThrottleClass, bool)> {
        let write = match mode {
            Mode::Kernel if tried.writes_from.is_some() => None,
            Mode::Kernel => self.oldest().map(|who| (who, false)),
            Mode::Tail => self.most_urgent(now_ns, tried),
        };
        let discard = self.count(ThrottleClass::Discard) > 0 && !tried.discards;
        write.or(discard.then_some((ThrottleClass::Discard, false)))
    }

    fn oldest(&self) -> Option<ThrottleClass> {
        let queued = WRITES.iter().filter_map(|who| Some((self.head(*who)?.seq, *who)));
        queued.min().map(|(_, who)| who)
    }

    fn most_urgent(&self, now_ns: u64, tried: Tried) -> Option<(ThrottleClass, bool)> {
        let overdue = if tried.overdue { None } else { self.overdue(now_ns) };
        let open = |who: &&ThrottleClass| tried.writes_from.is_none_or(|from| **who < from);
        let urgent = || WRITES.iter().filter(open).find(|who| self.count(**who) > 0);
        overdue.map(|who| (who, true)).or_else(|| urgent().map(|who| (*who, false)))
    }

    /// Of the kinds that have waited too long the one that has waited longest.
    fn overdue(&self, now_ns: u64) -> Option<ThrottleClass> {
        let late = WRITES.iter().filter(|who| self.is_late(**who, now_ns));
        late.filter_map(|who| Some((self.head(*who)?.seq, *who))).min().map(|(_, who)| who)
    }

    /// Whether the first of `who` has waited too long.
    pub(crate) fn is_late(&self, who: ThrottleClass, now_ns: u64) -> bool {
        let is_long = |then_ns: u64, ns: u64| now_ns.saturating_sub(then_ns) >= ns;
        let nth = who as usize;
        let is_due = is_long(self.went_ns[nth], SHARE_NS) || self.passed[nth] >= SHARE_PASSED;
        is_due && self.head(who).is_some_and(|head| is_long(head.since_ns, OVERDUE_NS))
    }

    /// One of `who` goes, or a piece of it.
    pub(crate) fn went(&mut self, who: ThrottleClass, now_ns: u64) {
        self.went_ns[who as usize] = now_ns;
        self.passed.iter_mut().for_each(|passed| *passed = passed.saturating_add(1));
        self.passed[who as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(split: usize) -> Work {
        Work {
            op: Op::Write,
            flags: Flags::empty(),
            sector: Sector(0),
            len: Sector(8),
            bufs: Bufs::new(),
            whose: Whose::Split(split),
        }
    }

    /// The order in which a queue that was filled with `who` at the times empties.
    fn order(mode: Mode, filled: &[(ThrottleClass, u64)], now_ns: u64) -> Vec<usize> {
        let mut waiting = Waiting::default();
        for (nth, (who, at_ns)) in filled.iter().enumerate() {
            waiting.push(*who, work(nth), *at_ns);
        }
        let mut order = Vec::new();
        while let Some((who, _)) = waiting.next(mode, now_ns, Tried::default()) {
            waiting.went(who, now_ns);
            match waiting.take(who).unwrap().work.whose {
                Whose::Split(nth) => order.push(nth),
                Whose::Bio(..) => unreachable!(),
            }
        }
        assert!(waiting.is_empty());
        order
    }

    const MIXED: [(ThrottleClass, u64); 5] = [
        (ThrottleClass::Background, 0),
        (ThrottleClass::Discard, 1),
        (ThrottleClass::Normal, 2),
        (ThrottleClass::Sync, 3),
        (ThrottleClass::Sync, 4),
    ];

    #[test]
    fn the_kernels_queue_is_first_come_first_served() {
        assert_eq!(order(Mode::Kernel, &MIXED, 5), [0, 2, 3, 4, 1]);
        assert_eq!(order(Mode::Kernel, &MIXED, OVERDUE_NS * 2), [0, 2, 3, 4, 1]);
    }

    #[test]
    fn ours_is_by_urgency_until_somebody_is_overdue() {
        assert_eq!(order(Mode::Tail, &MIXED, 5), [3, 4, 2, 0, 1]);
        assert_eq!(order(Mode::Tail, &MIXED, OVERDUE_NS), [0, 3, 4, 2, 1]);
        let two = [
            (ThrottleClass::Background, 0),
            (ThrottleClass::Background, 1),
            (ThrottleClass::Normal, 2),
        ];
        assert_eq!(order(Mode::Tail, &two, OVERDUE_NS * 2), [0, 2, 1], "one at a time");
    }

    /// Of two kinds of which one is urgent the other gets a share, however fast they go.
    #[test]
    fn who_is_overdue_goes_after_so_many_others() {
        let mut waiting = Waiting::default();
        for nth in 0..3 {
            waiting.push(ThrottleClass::Background, work(nth), 0);
        }
        let now_ns = OVERDUE_NS;
        waiting.push(ThrottleClass::Sync, work(9), now_ns);
        waiting.went(ThrottleClass::Background, now_ns);
        for passed in 1..=3 * SHARE_PASSED {
            let next = waiting.next(Mode::Tail, now_ns, Tried::default());
            assert_eq!(next, Some((ThrottleClass::Sync, false)), "{passed}");
            waiting.went(ThrottleClass::Sync, now_ns);
            if passed % SHARE_PASSED == 0 {
                let next = waiting.next(Mode::Tail, now_ns, Tried::default());
                assert_eq!(next, Some((ThrottleClass::Background, true)));
                waiting.went(ThrottleClass::Background, now_ns);
            }
        }
    }

    #[test]
    fn who_is_refused_holds_the_less_urgent_only() {
        let mut waiting = Waiting::default();
        for (who, at_ns) in MIXED {
            waiting.push(who, work(0), at_ns);
        }
        let mut tried = Tried::default();
        assert_eq!(
            waiting.next(Mode::Tail, OVERDUE_NS, tried),
            Some((ThrottleClass::Background, true))
        );
        tried.in_vain(ThrottleClass::Background, true);
        assert_eq!(waiting.next(Mode::Tail, OVERDUE_NS, tried), Some((ThrottleClass::Sync, false)));
        tried.in_vain(ThrottleClass::Sync, false);
        assert_eq!(
            waiting.next(Mode::Tail, OVERDUE_NS, tried),
            Some((ThrottleClass::Discard, false))
        );
        tried.in_vain(ThrottleClass::Discard, false);
        assert_eq!(waiting.next(Mode::Tail, OVERDUE_NS, tried), None);
        assert_eq!(waiting.next(Mode::Kernel, OVERDUE_NS, tried), None);
    }

    #[test]
    fn newcomers_queue_behind_those_as_urgent() {
        let mut waiting = Waiting::default();
        waiting.push(ThrottleClass::Normal, work(0), 0);
        let behind = |mode| ThrottleClass::ALL.map(|who| waiting.is_behind(mode, who));
        assert_eq!(behind(Mode::Tail), [false, true, true, false]);
        assert_eq!(behind(Mode::Kernel), [true, true, true, false]);
    }
}
