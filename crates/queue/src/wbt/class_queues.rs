// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bios that wait at one leaf, by class, and which of them starts next.
//!
//! Kernel mode has one queue for writes and one for discards, first come, first served. Tail mode
//! starts the most urgent class first; but a bio that has waited for [`OVERDUE_NS`] starts before
//! them if none of its class has started for [`SHARE_NS`], or for [`SHARE_PASSED`] others.
use std::collections::VecDeque;

use block::{Bufs, Completion, Flags, Op, Sector};
use policy::wbt::{Mode, ThrottleClass};

use crate::flush_errors::Entry;
use crate::stats::Ticket;

/// A class whose head has waited this long gets a share, however busy the others are. Chosen: a
/// second is long compared with any window.
pub(crate) const OVERDUE_NS: u64 = 1_000_000_000;
/// How often one of such a class starts. Chosen: longer than tail mode pauses writes.
pub(crate) const SHARE_NS: u64 = 200_000_000;
/// And after how many bios or pieces of others: a FLUSH may wait for a bio of many pieces. Chosen:
/// a small share.
pub(crate) const SHARE_PASSED: u32 = 8;

/// A bio on its way to the driver, or what is left of it.
pub(crate) struct Work {
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) sector: Sector,
    pub(crate) len: Sector,
    pub(crate) bufs: Bufs,
    pub(crate) owner: RequestOwner,
}

/// What a request belongs to.
pub(crate) enum RequestOwner {
    /// A whole bio.
    Bio(Entry, Completion),
    /// A part of the bio in this slot of the wait queue.
    Split(usize),
}

pub(crate) struct Waiter {
    pub(crate) work: Work,
    pub(crate) since_ns: u64,
    pub(crate) seq: u64,
}

/// Which heads have been refused in one look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    /// Writes of this class, and of less urgent ones, have to wait.
    writes_from: Option<ThrottleClass>,
    discards: bool,
    overdue: bool,
}

impl Refusals {
    /// `who` was refused; `overdue`: it was next because it had waited too long.
    pub(crate) fn add(&mut self, who: ThrottleClass, overdue: bool) {
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
pub(crate) struct ClassQueues {
    /// By [`ThrottleClass`].
    queues: [VecDeque<Waiter>; 4],
    seq: u64,
    /// When a bio of the class, or a piece of one, started last.
    dispatched_ns: [u64; 4],
    /// How many of other classes have started since then.
    passed: [u32; 4],
}

/// The writes, most urgent first.
const WRITES: [ThrottleClass; 3] =
    [ThrottleClass::Sync, ThrottleClass::Normal, ThrottleClass::Background];

impl ClassQueues {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    pub(crate) fn count(&self, who: ThrottleClass) -> usize {
        self.queues[who as usize].len()
    }

    /// Of the bios of which no piece has been sent.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = &Ticket> {
        self.queues.iter().flatten().filter_map(|waiter| match &waiter.work.owner {
            RequestOwner::Bio(entry, _) => Some(&entry.ticket),
            RequestOwner::Split(_) => None,
        })
    }

    /// Whether a new bio has to queue behind another one.
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

    /// RequestOwner turn it is, and whether because it is overdue. Nobody's when the queue is empty
    /// or all have been refused.
    pub(crate) fn next(
        &self,
        mode: Mode,
        now_ns: u64,
        refused: Refusals,
    ) -> Option<(ThrottleClass, bool)> {
        let write = match mode {
            Mode::Kernel if refused.writes_from.is_some() => None,
            Mode::Kernel => self.oldest().map(|who| (who, false)),
            Mode::Tail => self.most_urgent(now_ns, refused),
        };
        let discard = self.count(ThrottleClass::Discard) > 0 && !refused.discards;
        write.or(discard.then_some((ThrottleClass::Discard, false)))
    }

    fn oldest(&self) -> Option<ThrottleClass> {
        let queued = WRITES.iter().filter_map(|who| Some((self.head(*who)?.seq, *who)));
        queued.min().map(|(_, who)| who)
    }

    fn most_urgent(&self, now_ns: u64, refused: Refusals) -> Option<(ThrottleClass, bool)> {
        let overdue = if refused.overdue { None } else { self.overdue(now_ns) };
        let open = |who: &&ThrottleClass| refused.writes_from.is_none_or(|from| **who < from);
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
        let is_due = is_long(self.dispatched_ns[nth], SHARE_NS) || self.passed[nth] >= SHARE_PASSED;
        is_due && self.head(who).is_some_and(|head| is_long(head.since_ns, OVERDUE_NS))
    }

    /// A bio of `who`, or a piece of one, starts.
    pub(crate) fn dispatched(&mut self, who: ThrottleClass, now_ns: u64) {
        self.dispatched_ns[who as usize] = now_ns;
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
            owner: RequestOwner::Split(split),
        }
    }

    /// The order in which a queue that was filled with `who` at the times empties.
    fn order(mode: Mode, filled: &[(ThrottleClass, u64)], now_ns: u64) -> Vec<usize> {
        let mut waiting = ClassQueues::default();
        for (nth, (who, at_ns)) in filled.iter().enumerate() {
            waiting.push(*who, work(nth), *at_ns);
        }
        let mut order = Vec::new();
        while let Some((who, _)) = waiting.next(mode, now_ns, Refusals::default()) {
            waiting.dispatched(who, now_ns);
            match waiting.take(who).unwrap().work.owner {
                RequestOwner::Split(nth) => order.push(nth),
                RequestOwner::Bio(..) => unreachable!(),
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
    fn tail_mode_goes_by_urgency_until_a_class_is_overdue() {
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
    fn an_overdue_class_gets_its_share() {
        let mut waiting = ClassQueues::default();
        for nth in 0..3 {
            waiting.push(ThrottleClass::Background, work(nth), 0);
        }
        let now_ns = OVERDUE_NS;
        waiting.push(ThrottleClass::Sync, work(9), now_ns);
        waiting.dispatched(ThrottleClass::Background, now_ns);
        for passed in 1..=3 * SHARE_PASSED {
            let next = waiting.next(Mode::Tail, now_ns, Refusals::default());
            assert_eq!(next, Some((ThrottleClass::Sync, false)), "{passed}");
            waiting.dispatched(ThrottleClass::Sync, now_ns);
            if passed % SHARE_PASSED == 0 {
                let next = waiting.next(Mode::Tail, now_ns, Refusals::default());
                assert_eq!(next, Some((ThrottleClass::Background, true)));
                waiting.dispatched(ThrottleClass::Background, now_ns);
            }
        }
    }

    #[test]
    fn a_refused_class_holds_up_only_less_urgent_ones() {
        let mut waiting = ClassQueues::default();
        for (who, at_ns) in MIXED {
            waiting.push(who, work(0), at_ns);
        }
        let mut refused = Refusals::default();
        assert_eq!(
            waiting.next(Mode::Tail, OVERDUE_NS, refused),
            Some((ThrottleClass::Background, true))
        );
        refused.add(ThrottleClass::Background, true);
        assert_eq!(
            waiting.next(Mode::Tail, OVERDUE_NS, refused),
            Some((ThrottleClass::Sync, false))
        );
        refused.add(ThrottleClass::Sync, false);
        assert_eq!(
            waiting.next(Mode::Tail, OVERDUE_NS, refused),
            Some((ThrottleClass::Discard, false))
        );
        refused.add(ThrottleClass::Discard, false);
        assert_eq!(waiting.next(Mode::Tail, OVERDUE_NS, refused), None);
        assert_eq!(waiting.next(Mode::Kernel, OVERDUE_NS, refused), None);
    }

    #[test]
    fn newcomers_queue_behind_those_as_urgent() {
        let mut waiting = ClassQueues::default();
        waiting.push(ThrottleClass::Normal, work(0), 0);
        let behind = |mode| ThrottleClass::ALL.map(|who| waiting.is_behind(mode, who));
        assert_eq!(behind(Mode::Tail), [false, true, true, false]);
        assert_eq!(behind(Mode::Kernel), [true, true, true, false]);
    }
}
