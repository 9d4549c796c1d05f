// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The costs of requests of one kind to a disk, learnt from what batches of them took: a command,
//! and its bytes.
//!
//! ```text
//!   time of a batch = a * commands + b * bytes        least squares over the latest batches
//!
//!   wanted  ██   ██ ████      ██      a gap of less than a / b bytes is cheaper to transfer, too,
//!   request ██▒▒▒██▒████      ██      than to begin another request behind it
//! ```
//!
//! Both costs can be told apart only if batches differ in their bytes a command, so the caller
//! varies that (`RequestCosts::gap_to_try`).
//!
//! Invariants
//! - PO-RC1 No cost is negative. At first costs are those of a usual SSD, which count less with
//!   each batch.
//! - PO-RC2 After the first batches none counts more than twice what was expected of it, however
//!   long the disk stalled.

/// Each batch takes 1/8 of the weight of all earlier ones. Chosen.
const WEIGHT: i128 = 8;
/// Batches that differ so little in their bytes a command tell nothing of either cost: the
/// determinant is less than this part of its first term. Chosen.
const ALIKE_PART: i128 = 50;
/// The costs before the first batch: what a usual SSD takes, of which a queue is kept full.
const COST_FIRST: RequestCost = RequestCost { command_ns: 10_000, ns_per_mib: 700_000 };
/// As if two batches of so many requests had shown them, one of 4 and one of 256 KiB.
const REQUESTS_FIRST: u64 = 40;
/// The first batches may differ from that by any factor.
const BATCHES_FIRST: u64 = 4;
/// Now and then gaps of so many bytes are tried, even if none are best.
const GAP_TRIED_MIN: u64 = 8 << 10;

/// The costs of requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCost {
    /// One more request.
    pub command_ns: u64,
    /// The bytes of a MiB.
    pub ns_per_mib: u64,
}

impl RequestCost {
    /// The time of so many requests with so many bytes in all.
    #[must_use]
    pub fn time_ns(&self, commands: u64, bytes: u64) -> u64 {
        let bytes_ns = (u128::from(bytes) * u128::from(self.ns_per_mib)) >> 20;
        commands
            .saturating_mul(self.command_ns)
            .saturating_add(u64::try_from(bytes_ns).unwrap_or(u64::MAX))
    }

    /// The bytes that take as long as a command.
    #[must_use]
    pub fn gap_bytes(&self) -> u64 {
        let bytes = (u128::from(self.command_ns) << 20) / u128::from(self.ns_per_mib.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// See the module. The sums are of products of commands (c), KiB (b) and microseconds (t).
#[derive(Clone, Debug)]
pub struct RequestCosts {
    cc: i128,
    cb: i128,
    bb: i128,
    ct: i128,
    bt: i128,
    batches: u64,
    /// What the latest batches that differed have shown.
    known: RequestCost,
}

impl Default for RequestCosts {
    fn default() -> RequestCosts {
        let (cc, cb, bb, ct, bt) = (0, 0, 0, 0, 0);
        let mut costs = RequestCosts { cc, cb, bb, ct, bt, batches: 0, known: COST_FIRST };
        for bytes in [4 << 10, 256 << 10] {
            let bytes = REQUESTS_FIRST * bytes;
            costs.observe(REQUESTS_FIRST, bytes, COST_FIRST.time_ns(REQUESTS_FIRST, bytes));
        }
        (costs.batches, costs.known) = (0, COST_FIRST);
        costs
    }
}

impl RequestCosts {
    /// Nothing is measured yet.
    #[must_use]
    pub fn new() -> RequestCosts {
        RequestCosts::default()
    }

    /// A batch has taken so long.
    pub fn observe(&mut self, commands: u64, bytes: u64, elapsed_ns: u64) {
        if commands == 0 || elapsed_ns == 0 {
            return;
        }
        // PO-RC2
        let expected_ns = self.known.time_ns(commands, bytes).max(1);
        let most = if self.is_measured() { expected_ns.saturating_mul(2) } else { u64::MAX };
        self.batches += 1;
        let (c, b) = (i128::from(commands), i128::from(bytes >> 10));
        let t = i128::from(elapsed_ns.min(most) / 1000);
        for (sum, product) in [
            (&mut self.cc, c * c),
            (&mut self.cb, c * b),
            (&mut self.bb, b * b),
            (&mut self.ct, c * t),
            (&mut self.bt, b * t),
        ] {
            *sum += product - *sum / WEIGHT;
        }
        self.known = self.solve().unwrap_or(self.known);
    }

    /// Whether there were enough batches to rely on.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.batches >= BATCHES_FIRST
    }

    /// The costs.
    #[must_use]
    pub fn costs(&self) -> RequestCost {
        self.known
    }

    /// The solution of the normal equations.
    fn solve(&self) -> Option<RequestCost> {
        let terms = self.cc * self.bb;
        let determinant = terms - self.cb * self.cb;
        if determinant < terms / ALIKE_PART || determinant <= 0 {
            return None;
        }
        let command = self.bb * self.ct - self.cb * self.bt;
        let byte = self.cc * self.bt - self.cb * self.ct;
        // PO-RC1. One of them explains all where the other would be negative.
        let (command_ns, ns_per_mib) = match (command > 0, byte > 0) {
            (true, true) => (command * 1000 / determinant, byte * 1000 * 1024 / determinant),
            (true, false) => (self.ct * 1000 / self.cc, 0),
            (false, _) => (0, self.bt * 1000 * 1024 / self.bb.max(1)),
        };
        let number = |ns: i128| u64::try_from(ns).unwrap_or(u64::MAX);
        Some(RequestCost { command_ns: number(command_ns), ns_per_mib: number(ns_per_mib) })
    }

    /// The longest gap that batch `nth` of the caller should transfer, at most `most`: what is
    /// best, in some batches another one.
    #[must_use]
    pub fn gap_to_try(&self, nth: u64, most: u64) -> u64 {
        if !self.is_measured() {
            return if nth.is_multiple_of(2) { 0 } else { most };
        }
        let best = self.known.gap_bytes().min(most);
        match nth % 8 {
            3 => 0,
            7 => (2 * best).max(GAP_TRIED_MIN).min(most),
            _ => best,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with these costs takes batches of small and of large requests by turns.
    fn learnt(command_ns: u64, ns_per_mib: u64, batches: u64) -> RequestCosts {
        let (mut costs, disk) = (RequestCosts::new(), RequestCost { command_ns, ns_per_mib });
        for nth in 0..batches {
            let commands = if nth % 2 == 0 { 1000 } else { 200 };
            let bytes = commands * if nth % 2 == 0 { 4096 } else { 16 * 4096 };
            costs.observe(commands, bytes, disk.time_ns(commands, bytes));
        }
        costs
    }

    #[test]
    fn batches_that_differ_show_both_costs() {
        for (command_ns, ns_per_mib) in [(25_000, 800_000), (4_000, 900_000), (333_000, 8_000_000)]
        {
            let cost = learnt(command_ns, ns_per_mib, 24).costs();
            let is_near = |is: u64, was: u64| is.abs_diff(was) <= was / 20;
            assert!(is_near(cost.command_ns, command_ns), "{cost:?} of {command_ns}");
            assert!(is_near(cost.ns_per_mib, ns_per_mib), "{cost:?} of {ns_per_mib}");
        }
    }

    #[test]
    fn before_the_first_batch_costs_are_those_of_an_ssd() {
        let costs = RequestCosts::new();
        assert_eq!(costs.costs(), COST_FIRST);
        assert!(!costs.is_measured());
        assert_eq!([0, 1].map(|nth| costs.gap_to_try(nth, 1 << 20)), [0, 1 << 20]);
    }

    #[test]
    fn batches_that_are_alike_move_one_cost_at_most() {
        let mut costs = learnt(12_000, 800_000, 8);
        for _ in 0..100 {
            costs.observe(1000, 4096 * 1000, 15_000_000);
        }
        let cost = costs.costs();
        assert!(cost.command_ns > 0 && cost.ns_per_mib > 0, "{cost:?}");
    }

    #[test]
    fn a_disk_that_counts_only_commands_gets_the_longest_gaps() {
        let costs = learnt(300_000, 0, 24);
        assert_eq!(costs.gap_to_try(0, 1 << 17), 1 << 17, "{costs:?}");
    }

    #[test]
    fn a_disk_that_counts_only_bytes_gets_no_gaps() {
        let costs = learnt(0, 800_000, 24);
        assert!(costs.costs().gap_bytes() < 512, "{costs:?}");
        assert_eq!(costs.gap_to_try(7, 1 << 20), GAP_TRIED_MIN, "that may change");
    }

    #[test]
    fn one_stall_at_most_doubles_what_was_expected() {
        let mut costs = learnt(12_000, 800_000, 16);
        let before = costs.costs();
        costs.observe(200, 16 * 4096 * 200, 60_000_000_000);
        let expected = before.time_ns(200, 16 * 4096 * 200);
        assert!(costs.costs().time_ns(200, 16 * 4096 * 200) <= 2 * expected, "PO-RC2: {costs:?}");
    }

    #[test]
    fn gaps_vary_so_that_both_costs_stay_known() {
        let costs = learnt(12_000, 800_000, 16);
        let tried: std::collections::BTreeSet<u64> =
            (0..8).map(|nth| costs.gap_to_try(nth, 1 << 20)).collect();
        assert_eq!(tried.len(), 3, "{tried:?}");
        assert!(tried.contains(&0), "{tried:?}");
    }
}
