// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Automatic writeback of a compressed RAM disk: pages that have been idle for long, and as many as
//! needed to stay below a memory watermark, within a daily budget.
//!
//! ```text
//!   memory ── look ──▶ Rest(how long)
//!                └──▶ Scan ── ages of all pages ── steps ──▶ Step { huge, min age, max pages }
//!                                                             └─ written back ─▶ wrote: budget
//! ```
//!
//! Ages are counted in classes, each 1/8 of its age wide, so that the coldest pages are found
//! without sorting. A step walks the slots in order, so neighbours are written together.
//!
//! Invariants
//! - PO-ID1 The writes of a day never exceed the budget: a step requests only as many pages as fit
//!   if each has the largest size.
//! - PO-ID2 A page accessed within `idle_secs` is written only if memory is above the watermark.
//! - PO-ID3 Each round is bounded, so that the owner's commands run in between.

use std::fmt;

/// Classes of ages: 8 of a second each, then 8 for each power of two.
const CLASSES: usize = 240;
const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 24 * 3600 * SECOND_NS;
/// How often memory is compared with the watermark: 32 MiB of new pages at 128 MiB/s.
const WATERMARK_EVERY_NS: u64 = SECOND_NS / 4;
/// Pages of one round: 64 MiB (PO-ID3).
const ROUND_PAGES_MAX: u64 = 16384;
/// How long nothing is tried after a failure.
const PAUSE_NS: u64 = 60 * SECOND_NS;
/// Bytes of a page on the backing device.
const PAGE_BYTES: u64 = 4096;
/// Most that a page can take when objects are packed: the page as it came, its header, and the
/// rest of the block with which a write ends, which each shard may leave once in a round.
const PACKED_PAGE_BYTES_MAX: u64 = 3 * PAGE_BYTES;

/// Which pages go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleOrder {
    /// Pages that do not compress, as each gives the most memory; then the others. Of each sort
    /// the coldest first.
    #[default]
    HugeFirst,
    /// Those that have not been accessed for the longest time.
    ColdestFirst,
}

/// What the owner of the device asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleRules {
    /// Write back what has not been accessed for so many seconds.
    pub idle_secs: Option<u32>,
    /// Write back when more memory than this is used.
    pub watermark_bytes: Option<u64>,
    /// Write no more than this a day.
    pub budget_bytes: Option<u64>,
    /// Which pages go first.
    pub order: IdleOrder,
}

impl IdleRules {
    /// Whether anything is to be written back at all.
    pub fn any(&self) -> bool {
        self.idle_secs.is_some() || self.watermark_bytes.is_some()
    }
}

#[derive(Clone, Copy, Default)]
struct Class {
    pages: u64,
    bytes: u64,
}

/// Pages in memory by the time since their last access.
#[derive(Clone)]
pub struct Ages {
    huge: Vec<Class>,
    rest: Vec<Class>,
}

impl Default for Ages {
    fn default() -> Ages {
        let none = || vec![Class::default(); CLASSES];
        Ages { huge: none(), rest: none() }
    }
}

/// The class of an age.
fn class(age_secs: u32) -> usize {
    if age_secs < 8 {
        return age_secs as usize;
    }
    let octave = age_secs.ilog2();
    let eighth = (age_secs >> (octave - 3)) & 7;
    ((octave - 2) * 8 + eighth) as usize
}

/// The youngest age of a class.
fn youngest(class: usize) -> u32 {
    let class = u32::try_from(class).expect("few classes");
    if class < 8 {
        return class;
    }
    let (octave, eighth) = (class / 8 + 2, class % 8);
    (8 + eighth) << (octave - 3)
}

impl Ages {
    /// One more page that takes `bytes` of memory.
    pub fn add(&mut self, age_secs: u32, huge: bool, bytes: u64) {
        let of = if huge { &mut self.huge } else { &mut self.rest };
        let class = &mut of[class(age_secs)];
        class.pages += 1;
        class.bytes += bytes;
    }

    /// The pages of another shard, too.
    pub fn merge(&mut self, other: &Ages) {
        let ours = self.huge.iter_mut().chain(&mut self.rest);
        for (class, more) in ours.zip(other.huge.iter().chain(&other.rest)) {
            class.pages += more.pages;
            class.bytes += more.bytes;
        }
    }

    fn of(&self, step: PageChoice, nth: usize) -> Class {
        let (huge, rest) = (self.huge[nth], self.rest[nth]);
        let both = || Class { pages: huge.pages + rest.pages, bytes: huge.bytes + rest.bytes };
        match step {
            PageChoice::Huge => huge,
            PageChoice::Rest => rest,
            PageChoice::All => both(),
        }
    }
}

impl fmt::Debug for Ages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = |of: &[Class]| of.iter().map(|c| c.pages).sum::<u64>();
        write!(f, "Ages({} huge, {} others)", pages(&self.huge), pages(&self.rest))
    }
}

/// Pages among which a step chooses.
#[derive(Clone, Copy)]
enum PageChoice {
    Huge,
    /// All but huge ones, which have gone before.
    Rest,
    All,
}

/// A writeback to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Only pages stored as they came.
    pub huge: bool,
    /// Only pages not accessed for so long.
    pub min_age_secs: u32,
    /// So many at most.
    pub max_pages: u64,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleAction {
    /// Nothing, for so long.
    Rest(u64),
    /// Find out the ages of all pages, then ask for [`IdlePolicy::steps`].
    Scan,
}

/// What the policy is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleState {
    /// There are no rules.
    #[default]
    Off,
    /// Nothing is to be done.
    Waiting,
    /// Pages are being written back.
    Writing,
    /// Today's budget is used up.
    Spent,
    /// The backing device is full.
    Full,
    /// The device's own writeback limit is reached.
    Limited,
    /// The backing device has failed.
    Failed,
}

impl IdleState {
    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            IdleState::Off => "off",
            IdleState::Waiting => "waiting",
            IdleState::Writing => "writing",
            IdleState::Spent => "spent",
            IdleState::Full => "full",
            IdleState::Limited => "limited",
            IdleState::Failed => "failed",
        }
    }
}

/// The counters and the state of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleTotals {
    /// What it is at.
    pub state: IdleState,
    /// Bytes written today.
    pub today_bytes: u64,
    /// Bytes that may be written in a day; 0 for no limit.
    pub budget_bytes: u64,
    /// Bytes written since the device was made.
    pub total_bytes: u64,
    /// Pages written since then.
    pub total_pages: u64,
}

/// The automatic writeback of one device.
#[derive(Debug, Default)]
pub struct IdlePolicy {
    rules: IdleRules,
    /// When the day began; days are of 24 hours since the device was made.
    day_ns: u64,
    scanned_ns: Option<u64>,
    paused_until_ns: u64,
    /// The last round was cut short: there is more to do.
    more: bool,
    /// Pages that the last round has written.
    round_pages: u64,
    totals: IdleTotals,
}

impl IdlePolicy {
    /// A policy without rules, of a device made at `now_ns`.
    pub fn new(now_ns: u64) -> IdlePolicy {
        IdlePolicy { day_ns: now_ns, ..IdlePolicy::default() }
    }

    /// Takes other rules. What was written today stays written.
    pub fn set_rules(&mut self, rules: IdleRules) {
        if rules == self.rules {
            return;
        }
        self.rules = rules;
        self.scanned_ns = None;
        self.paused_until_ns = 0;
        self.totals.budget_bytes = rules.budget_bytes.unwrap_or(0);
        self.totals.state = if rules.any() { IdleState::Waiting } else { IdleState::Off };
    }

    /// The counters and the state now.
    pub fn totals(&self) -> IdleTotals {
        self.totals
    }

    /// Today's budget that is left.
    fn left_bytes(&mut self, now_ns: u64) -> u64 {
        let days = now_ns.saturating_sub(self.day_ns) / DAY_NS;
        if days > 0 {
            self.day_ns += days * DAY_NS;
            self.totals.today_bytes = 0;
        }
        let budget = self.rules.budget_bytes.unwrap_or(u64::MAX);
        budget.saturating_sub(self.totals.today_bytes)
    }

    /// Pages that may still be written today, if each has the largest size (PO-ID1).
    pub fn pages_left(&mut self, now_ns: u64, packed: bool) -> u64 {
        self.left_bytes(now_ns) / page_bytes_max(packed)
    }

    fn is_above(&self, memory_bytes: u64) -> bool {
        self.rules.watermark_bytes.is_some_and(|mark| memory_bytes > mark)
    }

    /// Whether the pages must be scanned now.
    pub fn next_action(&mut self, now_ns: u64, memory_bytes: u64, packed: bool) -> IdleAction {
        if !self.rules.any() {
            return IdleAction::Rest(SECOND_NS);
        }
        if now_ns < self.paused_until_ns {
            return IdleAction::Rest((self.paused_until_ns - now_ns).min(SECOND_NS));
        }
        if self.left_bytes(now_ns) < page_bytes_max(packed) {
            self.totals.state = IdleState::Spent;
            return IdleAction::Rest(SECOND_NS);
        }
        let idle_every =
            self.rules.idle_secs.map(|secs| u64::from((secs / 8).clamp(1, 60)) * SECOND_NS);
        let due = |every: u64| self.scanned_ns.map_or(0, |at| (at + every).saturating_sub(now_ns));
        let idle = idle_every.map(due);
        // A round in which nothing came of it is not repeated at once.
        let again = self.round_pages > 0 || due(SECOND_NS) == 0;
        if idle == Some(0) || again && (self.more || self.is_above(memory_bytes)) {
            return IdleAction::Scan;
        }
        self.totals.state = IdleState::Waiting;
        let watermark = self.rules.watermark_bytes.map(|_| WATERMARK_EVERY_NS);
        // Rules may change meanwhile.
        let soon = idle.into_iter().chain(watermark).min().unwrap_or(SECOND_NS);
        IdleAction::Rest(soon.min(SECOND_NS))
    }

    /// What to write back, in this order. With `packed` a page takes what its object does.
    pub fn steps(
        &mut self,
        now_ns: u64,
        memory_bytes: u64,
        packed: bool,
        ages: &Ages,
    ) -> Vec<Step> {
        self.scanned_ns = Some(now_ns);
        self.round_pages = 0;
        let mut plan = Plan {
            pages_left: self.pages_left(now_ns, packed).min(ROUND_PAGES_MAX), // PO-ID1
            // A sixteenth below the watermark, lest each new page start a round.
            goal_bytes: match self.rules.watermark_bytes {
                Some(mark) if memory_bytes > mark => memory_bytes - (mark - mark / 16),
                Some(_) | None => 0,
            },
            idle_secs: self.rules.idle_secs,
        };
        let steps = match self.rules.order {
            IdleOrder::HugeFirst => {
                [plan.step(PageChoice::Huge, ages), plan.step(PageChoice::Rest, ages)]
            }
            IdleOrder::ColdestFirst => [plan.step(PageChoice::All, ages), None],
        };
        self.more = plan.pages_left == 0;
        let steps: Vec<Step> = steps.into_iter().flatten().collect();
        if steps.is_empty() {
            self.more = false;
            self.totals.state = IdleState::Waiting;
        } else {
            self.totals.state = IdleState::Writing;
        }
        steps
    }

    /// What came of a step: bytes and pages written, and perhaps why it could not do all.
    pub fn wrote(
        &mut self,
        now_ns: u64,
        step: Step,
        (bytes, pages): (u64, u64),
        in_vain: Option<IdleState>,
    ) {
        self.left_bytes(now_ns);
        self.totals.today_bytes += bytes;
        self.totals.total_bytes += bytes;
        self.totals.total_pages += pages;
        self.round_pages += pages;
        // Shards have equal parts of a step, and not all have so many pages.
        self.more |= pages < step.max_pages;
        if let Some(state) = in_vain {
            self.totals.state = state;
            self.more = false;
            self.paused_until_ns = now_ns + PAUSE_NS;
        }
    }
}

fn page_bytes_max(packed: bool) -> u64 {
    if packed { PACKED_PAGE_BYTES_MAX } else { PAGE_BYTES }
}

/// What is still to be found in one round.
struct Plan {
    pages_left: u64,
    /// Memory to be gained from pages of any age.
    goal_bytes: u64,
    idle_secs: Option<u32>,
}

impl Plan {
    /// Goes from the oldest pages to younger ones.
    fn step(&mut self, who: PageChoice, ages: &Ages) -> Option<Step> {
        let mut step = None;
        for nth in (0..CLASSES).rev() {
            let class = ages.of(who, nth);
            if class.pages == 0 {
                continue;
            }
            // PO-ID2: a class that only partly is idle is taken from there on.
            let oldest = if nth + 1 < CLASSES { youngest(nth + 1) - 1 } else { u32::MAX };
            let idle = self.idle_secs.filter(|secs| *secs <= oldest);
            if self.pages_left == 0 || (idle.is_none() && self.goal_bytes == 0) {
                break;
            }
            let min_age_secs = match idle {
                Some(secs) if self.goal_bytes == 0 => secs.max(youngest(nth)),
                Some(_) | None => youngest(nth),
            };
            let pages = class.pages.min(self.pages_left);
            self.pages_left -= pages;
            let bytes = class.bytes / class.pages * pages;
            self.goal_bytes = self.goal_bytes.saturating_sub(bytes);
            let max_pages = step.map_or(0, |s: Step| s.max_pages) + pages;
            let huge = matches!(who, PageChoice::Huge);
            step = Some(Step { huge, min_age_secs, max_pages });
        }
        step
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
