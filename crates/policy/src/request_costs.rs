// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The costs of requests of one kind to a disk, learnt from what batches of them took: a command,
//! its bytes, and whether the disk works on both at once.
//!
//! ```text
//!   commands c ─▶ a * c ─┐
//!   bytes    n ─▶ b * n ─┴▶ time of a batch: their sum, or the larger of the two
//!
//!   wanted  ██   ██ ████      ██      a gap of less than a / b bytes is cheaper to transfer, too,
//!   request ██▒▒▒██▒████      ██      than to begin another request behind it
//! ```
//!
//! A single disk arm transfers nothing while it begins a command: both costs add up. A volume with
//! a limit of requests and one of bytes a second, or a drive with a queue, takes the larger of the
//! two: there requests cost nothing as long as bytes are what limits it, and the other way round.
//!
//! If both add up, `a` and `b` are those of least squares over the latest batches. If the larger
//! counts, no batch can take less than `a * c` or `b * n`: each lowers what it shows to be too
//! high; if both are too low small requests raise `a`, and large ones `b`. What explains the
//! batches better counts. The costs can be told apart only if batches differ in their bytes a
//! command, so the caller varies that (`RequestCosts::gap_to_try`).
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
const COST_FIRST: RequestCost =
    RequestCost { command_ns: 10_000, ns_per_mib: 700_000, side_by_side: false };
/// As if two batches of so many requests had shown them, one of 4 and one of 256 KiB.
const REQUESTS_FIRST: u64 = 40;
/// The first batches may differ from that by any factor.
const BATCHES_FIRST: u64 = 4;
/// Errors are compared in so many parts of the time of a batch, and averaged over four batches.
const ERROR_ONE: u64 = 1000;
const ERROR_SMALL: u64 = ERROR_ONE / 20;
const ERROR_MAX: u64 = 1000 * ERROR_ONE;
const ERROR_WEIGHT: u64 = 4;
/// Requests of at most so many bytes, on average, are small, and from so many on large: below, or
/// above, what disks transfer in the time of a command (3 KiB of a fast drive, 43 KiB of a volume
/// of a cloud, 20 KiB of a virtual disk). Chosen.
const SMALL_BYTES: u64 = 32 << 10;
const LARGE_BYTES: u64 = 128 << 10;
/// A longer batch counts as so long.
const ELAPSED_NS_MAX: u64 = 10_000_000_000;
/// Now and then gaps of so many bytes are tried, even if none are best.
const GAP_TRIED_MIN: u64 = 8 << 10;

/// The costs of requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCost {
    /// One more request.
    pub command_ns: u64,
    /// The bytes of a MiB.
    pub ns_per_mib: u64,
    /// Whether the disk works on commands and on bytes side by side, so that only the larger of the
    /// two counts; else both add up.
    pub side_by_side: bool,
}

impl RequestCost {
    /// Of so many requests with so many bytes in all: what the commands take, and what the bytes.
    fn parts_ns(&self, commands: u64, bytes: u64) -> (u64, u64) {
        let bytes_ns = (u128::from(bytes) * u128::from(self.ns_per_mib)) >> 20;
        let commands_ns = commands.saturating_mul(self.command_ns);
        (commands_ns, u64::try_from(bytes_ns).unwrap_or(u64::MAX))
    }

    /// The time of so many requests with so many bytes in all.
    #[must_use]
    pub fn time_ns(&self, commands: u64, bytes: u64) -> u64 {
        let (commands_ns, bytes_ns) = self.parts_ns(commands, bytes);
        match self.side_by_side {
            true => commands_ns.max(bytes_ns),
            false => commands_ns.saturating_add(bytes_ns),
        }
    }

    /// The bytes that take as long as a command.
    #[must_use]
    pub fn gap_bytes(&self) -> u64 {
        let bytes = (u128::from(self.command_ns) << 20) / u128::from(self.ns_per_mib.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The average error of expected times, with one more.
fn averaged_error(error: u64, known: &RequestCost, commands: u64, bytes: u64, took_ns: u64) -> u64 {
    let off_ns = known.time_ns(commands, bytes).abs_diff(took_ns);
    let one = u128::from(off_ns) * u128::from(ERROR_ONE) / u128::from(took_ns.max(1));
    let one = u64::try_from(one).unwrap_or(u64::MAX).min(ERROR_MAX);
    (error * (ERROR_WEIGHT - 1) + one) / ERROR_WEIGHT
}

/// The costs of a disk on which the larger of the two counts.
#[derive(Clone, Debug, Default)]
struct Envelope {
    /// `None` before the first batch.
    known: Option<RequestCost>,
    error: u64,
}

impl Envelope {
    fn observe(&mut self, commands: u64, bytes: u64, elapsed_ns: u64) {
        let per_mib = (u128::from(elapsed_ns) << 20) / u128::from(bytes.max(1));
        let command_ns = elapsed_ns / commands;
        let ns_per_mib = u64::try_from(per_mib).unwrap_or(u64::MAX);
        let Some(known) = &mut self.known else {
            self.known = Some(RequestCost { command_ns, ns_per_mib, side_by_side: true });
            return;
        };
        self.error = averaged_error(self.error, known, commands, bytes, elapsed_ns);
        if known.time_ns(commands, bytes) >= elapsed_ns {
            known.command_ns = known.command_ns.min(command_ns);
            known.ns_per_mib = known.ns_per_mib.min(ns_per_mib);
        } else if bytes / commands <= SMALL_BYTES {
            known.command_ns = known.command_ns.midpoint(command_ns);
        } else if bytes / commands >= LARGE_BYTES {
            known.ns_per_mib = known.ns_per_mib.midpoint(ns_per_mib);
        }
    }
}

/// Least squares: sums of products of commands (c), KiB (b) and microseconds (t).
#[derive(Clone, Debug)]
struct Fit {
    cc: i128,
    cb: i128,
    bb: i128,
    ct: i128,
    bt: i128,
    /// What the latest batches that differed have shown.
    known: RequestCost,
    /// The average error of what it expected.
    error: u64,
}

impl Fit {
    fn new(known: RequestCost) -> Fit {
        let (cc, cb, bb, ct, bt) = (0, 0, 0, 0, 0);
        Fit { cc, cb, bb, ct, bt, known, error: 0 }
    }

    fn observe(&mut self, commands: u64, bytes: u64, elapsed_ns: u64) {
        self.error = averaged_error(self.error, &self.known, commands, bytes, elapsed_ns);
        let (c, b) = (i128::from(commands), i128::from(bytes >> 10));
        let t = i128::from(elapsed_ns / 1000);
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
        let (command_ns, ns_per_mib) = (number(command_ns), number(ns_per_mib));
        Some(RequestCost { command_ns, ns_per_mib, ..self.known })
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct RequestCosts {
    batches: u64,
    /// Of a disk on which both costs add up.
    sum: Fit,
    /// Of one that works on both side by side, where it may be one.
    larger: Option<Envelope>,
}

impl Default for RequestCosts {
    fn default() -> RequestCosts {
        let mut sum = Fit::new(COST_FIRST);
        for bytes in [4 << 10, 256 << 10] {
            let bytes = REQUESTS_FIRST * bytes;
            sum.observe(REQUESTS_FIRST, bytes, COST_FIRST.time_ns(REQUESTS_FIRST, bytes));
        }
        let sum = Fit { known: COST_FIRST, error: 0, ..sum };
        RequestCosts { batches: 0, sum, larger: None }
    }
}

impl RequestCosts {
    /// Nothing is measured yet; both costs add up.
    #[must_use]
    pub fn new() -> RequestCosts {
        RequestCosts::default()
    }

    /// Nothing is measured yet, not even whether both costs add up.
    #[must_use]
    pub fn of_any_disk() -> RequestCosts {
        RequestCosts { larger: Some(Envelope::default()), ..RequestCosts::default() }
    }

    /// A batch has taken so long.
    pub fn observe(&mut self, commands: u64, bytes: u64, elapsed_ns: u64) {
        if commands == 0 || elapsed_ns == 0 {
            return;
        }
        // PO-RC2
        let expected_ns = self.costs().time_ns(commands, bytes).max(1);
        let most = if self.is_measured() { expected_ns.saturating_mul(2) } else { u64::MAX };
        let elapsed_ns = elapsed_ns.min(most).min(ELAPSED_NS_MAX);
        self.batches += 1;
        self.sum.observe(commands, bytes, elapsed_ns);
        if let Some(larger) = &mut self.larger {
            larger.observe(commands, bytes, elapsed_ns);
        }
    }

    /// Whether there were enough batches to rely on.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.batches >= BATCHES_FIRST
    }

    /// The costs. Unless sums explain the batches much better, they are those of a disk that works
    /// side by side: requests that are planned for such a disk show whether it is one, others do
    /// not.
    #[must_use]
    pub fn costs(&self) -> RequestCost {
        let most = 2 * self.sum.error + ERROR_SMALL;
        let larger = self.larger.as_ref().filter(|larger| larger.error <= most);
        larger.and_then(|larger| larger.known).unwrap_or(self.sum.known)
    }

    /// The longest gap that batch `nth` of the caller should transfer, at most `most`: what is
    /// best, in some batches another one.
    #[must_use]
    pub fn gap_to_try(&self, nth: u64, most: u64) -> u64 {
        if !self.is_measured() {
            return if nth.is_multiple_of(2) { 0 } else { most };
        }
        let best = self.costs().gap_bytes().min(most);
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

    /// A disk with these costs, which add up, takes batches of small and of large requests by
    /// turns.
    fn learnt(command_ns: u64, ns_per_mib: u64, batches: u64) -> RequestCosts {
        let disk = RequestCost { command_ns, ns_per_mib, side_by_side: false };
        let mut costs = RequestCosts::new();
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
    fn three_kinds_of_batches_show_how_both_costs_add_up() {
        for (command_ns, ns_per_mib, side_by_side) in [
            (333_000, 8_000_000, true),
            (333_000, 8_000_000, false),
            (13_000, 600_000, true),
            (13_000, 600_000, false),
            (5_000, 300_000, true),
        ] {
            let disk = RequestCost { command_ns, ns_per_mib, side_by_side };
            let mut costs = RequestCosts::of_any_disk();
            let gap = disk.gap_bytes();
            let kinds = [(300, gap / 4), (200, gap), (40, gap * 20), (300, gap / 2)];
            for (commands, bytes) in kinds.into_iter().cycle().take(80) {
                costs.observe(commands, commands * bytes, disk.time_ns(commands, commands * bytes));
            }
            assert_eq!(costs.costs().side_by_side, side_by_side, "{disk:?}: {costs:?}");
            for (commands, bytes) in kinds {
                let time_ns = |cost: RequestCost| cost.time_ns(commands, commands * bytes);
                let (found, real) = (time_ns(costs.costs()), time_ns(disk));
                let part = found as f64 / real as f64;
                assert!((0.9..1.1).contains(&part), "{disk:?}, {bytes}: {part}, {costs:?}");
            }
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
