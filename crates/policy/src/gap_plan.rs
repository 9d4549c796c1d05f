// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which gaps between the dirty runs of a stretch are filled, so that runs merge into one command.
//!
//! ```text
//!   runs   ██  ██████ ██          ██      filled with copies, or with what was read of the origin,
//!   write  ██▒▒██████▒██          ██      in one read with the runs beside it
//! ```
//! A read pays only if it is long: a gap left open between filled ones costs one more command for
//! the reads and one for the writes. So the gaps of a stretch are decided together.
//!
//! Where commands and bytes add up, a command is worth what it costs, and one pass finds the best
//! of all ways. Where a disk works on both side by side, a command is worth nothing while bytes
//! are what limits it. So ways are planned with commands at several prices, and the one counts
//! that takes the least time by the costs of the whole stretch.
//!
//! Invariants
//! - PO-GP1 No gap is filled that the caller has closed, and no more bytes in all than it allows.
//! - PO-GP2 No way is taken that takes longer, by the costs, than to fill no gap.
use crate::destage::{Costs, clamp, time_ns};

/// A dirty run of a stretch and the gap before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the run.
    pub run: u64,
    /// Bytes between the run before and this one.
    pub gap: u64,
    /// What the gap may be filled with.
    pub contents: Contents,
}

/// Where the contents of a gap would come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The cache has them.
    Known,
    /// The origin has to be read.
    Unknown,
    /// It must not be filled.
    Closed,
}

/// How a gap is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Left as it is.
    Skip,
    /// Filled from the cache.
    Copy,
    /// Filled with what was read from the origin.
    Read,
}

const FILLS: [Fill; 3] = [Fill::Skip, Fill::Copy, Fill::Read];
/// The prices of a command of each kind.
#[derive(Clone, Copy)]
struct Price {
    write: u64,
    read: u64,
}

/// The price of a command that is its cost.
const PRICE_ONE: u64 = 64;
/// The other prices that are tried first: of random blocks of which 10 to 90 % are dirty, on a
/// volume with both limits, the best ones are half of the cost to twice the cost. Chosen.
const PRICES: [u64; 5] = [16, 32, 48, 96, 144];
/// Then prices beside the best one are tried: this part of it below and above, then half of that.
const PRICE_PART: u64 = 4;
const PRICE_PART_LAST: u64 = 16;

/// Decides all gaps of a stretch, of which `steps` are in ascending order: the gap of the first is
/// that before the stretch, and never filled. At most `filled_max` bytes are filled.
///
/// | from, to | saves | costs |
/// |---|---|---|
/// | gap skipped | | passing it |
/// | gap known, filled | a command | writing and copying the gap |
/// | gap unknown, filled | a command | writing the gap, reading gap and run |
/// | the same, after one that was not read | | a command, and reading the run before |
///
/// Reads of a stretch must save `Costs::reads_worth_ns` in all.
#[must_use]
pub fn fill(costs: &Costs, steps: &[Step], filled_max: u64) -> Vec<Fill> {
    let mut chosen = vec![Fill::Skip; steps.len()];
    if filled_max == 0 || is_limited_by_bytes(costs, steps) {
        return chosen;
    }
    let (mut least_ns, mut best_price) = (time_of(costs, steps, &chosen), PRICE_ONE);
    let mut consider = |with_reads: bool, price: Price| {
        let (mut fills, _) = best(costs, steps, with_reads, price);
        limit(steps, &mut fills, filled_max);
        let takes_ns = time_of(costs, steps, &fills);
        if takes_ns < least_ns {
            (chosen, least_ns, best_price) = (fills, takes_ns, price.write);
        }
        best_price
    };
    // Of equals the one with fewer reads counts.
    let cost = Price { write: PRICE_ONE, read: PRICE_ONE };
    consider(false, cost);
    let mut price = consider(true, cost);
    if costs.write.side_by_side && costs.read.side_by_side {
        // Reads are so long that their bytes are what limits them.
        let mut consider = |write| consider(true, Price { write, read: 0 });
        for other in [PRICE_ONE].into_iter().chain(PRICES) {
            price = consider(other);
        }
        let mut part = PRICE_PART;
        while part <= PRICE_PART_LAST {
            let step = price / part;
            consider(price - step);
            price = consider(price + step);
            part *= 2;
        }
    }
    chosen
}

/// Fills that show what small and large requests cost: short gaps in the first half of a stretch,
/// all of them in the second half; at most `filled_max` bytes. Known gaps are read, too: otherwise
/// a cache that has many would never learn what reads cost.
#[must_use]
pub fn explore(steps: &[Step], short_max: u64, filled_max: u64) -> Vec<Fill> {
    let half = steps.len() / 2;
    let one = |(nth, step): (usize, &Step)| match step.contents {
        _ if nth == 0 || (nth < half && step.gap > short_max) => Fill::Skip,
        Contents::Known | Contents::Unknown => Fill::Read,
        Contents::Closed => Fill::Skip,
    };
    let mut fills = steps.iter().enumerate().map(one).collect();
    limit(steps, &mut fills, filled_max);
    fills
}

/// PO-GP1. Skips the gaps beyond `filled_max` bytes.
fn limit(steps: &[Step], fills: &mut Vec<Fill>, filled_max: u64) {
    let mut filled = 0;
    let goes_beyond = |(step, fill): (&Step, &Fill)| {
        filled += if *fill == Fill::Skip { 0 } else { step.gap };
        filled > filled_max
    };
    if let Some(end) = steps.iter().zip(fills.iter()).position(goes_beyond) {
        fills.truncate(end);
        fills.resize(steps.len(), Fill::Skip);
    }
}

/// Whether no command that is saved would save time: the disk works on bytes side by side, and
/// these take longer.
fn is_limited_by_bytes(costs: &Costs, steps: &[Step]) -> bool {
    let bytes = steps.iter().map(|step| step.run).sum();
    let commands_ns = costs.write.command_ns.saturating_mul(steps.len() as u64);
    costs.write.side_by_side && time_ns(bytes, costs.write.ns_per_mib) >= commands_ns
}

/// What a stretch takes.
fn time_of(costs: &Costs, steps: &[Step], fills: &[Fill]) -> u64 {
    let (mut reads, mut read, mut writes, mut written) = (0, 0, 0, 0);
    let (mut skipped, mut copied) = (0, 0);
    for (nth, (step, fill)) in steps.iter().zip(fills).enumerate() {
        written += step.run;
        match fill {
            Fill::Skip => (writes, skipped) = (writes + 1, skipped + step.gap * u64::from(nth > 0)),
            Fill::Copy => (written, copied) = (written + step.gap, copied + step.gap),
            Fill::Read => {
                written += step.gap;
                read += step.gap + step.run;
                if fills[nth - 1] != Fill::Read {
                    (reads, read) = (reads + 1, read + steps[nth - 1].run);
                }
            }
        }
    }
    costs.write.time_ns(writes, written)
        + costs.read.time_ns(reads, read)
        + time_ns(skipped, costs.skip_ns_per_mib)
        + time_ns(copied, costs.copy_ns_per_mib)
        + if reads > 0 { costs.reads_worth_ns } else { 0 }
}

/// The best way with commands at these prices, and what it saves at them.
fn best(costs: &Costs, steps: &[Step], with_reads: bool, price: Price) -> (Vec<Fill>, i64) {
    const NEVER: i64 = i64::MIN / 4;
    let priced = |ns: u64, price: u64| clamp(ns.saturating_mul(price) / PRICE_ONE);
    let command = priced(costs.write.command_ns, price.write);
    let read_command = priced(costs.read.command_ns, price.read);
    let read = |bytes| clamp(time_ns(bytes, costs.read.ns_per_mib));
    let copy = |bytes| clamp(time_ns(bytes, costs.copy_ns_per_mib));
    // A gap that is skipped passes, too.
    let write = |bytes| {
        clamp(time_ns(bytes, costs.write.ns_per_mib)) - clamp(time_ns(bytes, costs.skip_ns_per_mib))
    };
    // What was saved up to here, by how the last gap was treated.
    let mut saved = [0, NEVER, NEVER];
    let mut ways: Vec<[u8; 3]> = vec![[0; 3]; steps.len()];
    for (n, step) in steps.iter().enumerate().skip(1) {
        let before = saved;
        let (from, most) = highest(before);
        (ways[n][0], saved) = (from, [most, NEVER, NEVER]);
        match step.contents {
            Contents::Known => {
                ways[n][1] = from;
                saved[1] = most.saturating_add(command - write(step.gap) - copy(step.gap));
            }
            Contents::Unknown if with_reads => {
                let entry = read_command + read(steps[n - 1].run);
                let begun = |saved: i64| saved.saturating_sub(entry);
                let (from, most) = highest([begun(before[0]), begun(before[1]), before[2]]);
                let gain = command - write(step.gap) - read(step.gap + step.run);
                (ways[n][2], saved[2]) = (from, most.saturating_add(gain));
            }
            Contents::Unknown | Contents::Closed => {}
        }
    }
    let (mut at, total) = highest(saved);
    let mut fills = vec![Fill::Skip; steps.len()];
    for n in (1..steps.len()).rev() {
        fills[n] = FILLS[usize::from(at)];
        at = ways[n][usize::from(at)];
    }
    (fills, total)
}

/// The highest of three, and which it is. Of equals the first: the least is filled.
fn highest(saved: [i64; 3]) -> (u8, i64) {
    let mut most = (0, saved[0]);
    for (nth, saved) in [(1, saved[1]), (2, saved[2])] {
        if saved > most.1 {
            most = (nth, saved);
        }
    }
    most
}

#[cfg(test)]
#[path = "gap_plan_tests.rs"]
mod tests;
