// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits the writeback in flight so that clients' requests stay fast: a controller of their 99th
//! percentile.
//!
//! ```text
//!   requests of clients ──▶ windows of 100 ms: how many, and how many above the target
//!                                  │  too many ──▶ depth * 0.7, at once if they are many
//!                                  │  else     ──▶ depth * (1 + 0.15 % a request, at most 5 %)
//!                                  ▼
//!   depth   8: eight writes in flight       1: one    1/4: one, then a pause three times as long
//! ```
//!
//! It limits the depth and not the rate, because the meaning of a rate depends on the disk and the
//! pattern, while one write in flight keeps any disk busy. If even that is too much, it pauses.
//!
//! 1 % of the requests may be above the target; the controller aims at half of that. With few
//! requests in a window, one above the target lowers the depth by 30 %, and about 240 below it
//! restore that: 0.4 % in balance. With many requests, it acts on more than 0.5 % of a window.
//! Steps up are so small that the load, and not the controller, determines the pattern.
//!
//! Invariants
//! - PO-TL1 The depth stays between `DEPTH_MIN` and `DEPTH_MAX`: writeback never stops.
//! - PO-TL2 Without client requests for `QUIET_NS` there is no limit.

/// A window. Chosen: short against what a person notices, long enough for some requests of a disk.
const WINDOW_NS: u64 = 100_000_000;
/// Without a request for so long there is no foreground load. Chosen: a client that asks less often
/// meets a disk that is busy.
const QUIET_NS: u64 = 3_000_000_000;

/// Depth 1 in fixed point.
const ONE: u64 = 1 << 16;
/// One write, then 63 times as long none.
const DEPTH_MIN: u64 = ONE / 64;
/// More than any drive's queue.
const DEPTH_MAX: u64 = ONE * 256;
/// What it begins with: one write at a time.
const DEPTH_START: u64 = ONE;

/// A request above the target may be one of so many: half of a hundredth.
const ABOVE_ONE_OF: u64 = 200;
/// So many above the target need no full window: the depth is lowered at once. Chosen: more than
/// chance brings in a window whose requests are all right.
const ABOVE_AT_ONCE: u64 = 8;
/// Down by 30 %.
const DOWN_NUM: u64 = 7;
const DOWN_DEN: u64 = 10;
/// Up, in thousandths: 1.5 for each request, at most 50.
const UP_TWO_REQUESTS: u64 = 3;
const UP_MAX: u64 = 50;
/// The longest pause between two writes.
const PAUSE_MAX_NS: u64 = 1_000_000_000;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct TailLimit {
    depth: u64,
    window_ns: u64,
    requests: u64,
    above: u64,
    /// The depth has been lowered in this window.
    lowered: bool,
    /// When a client's request last ended.
    last_ns: Option<u64>,
}

impl Default for TailLimit {
    fn default() -> TailLimit {
        TailLimit {
            depth: DEPTH_START,
            window_ns: 0,
            requests: 0,
            above: 0,
            lowered: false,
            last_ns: None,
        }
    }
}

impl TailLimit {
    /// A client's request has ended after `took_ns`.
    pub fn request(&mut self, took_ns: u64, target_ns: u64, now_ns: u64) {
        self.close(now_ns);
        self.last_ns = Some(now_ns);
        self.requests += 1;
        self.above += u64::from(took_ns > target_ns);
        if self.above >= ABOVE_AT_ONCE && Self::is_too_much(self.requests, self.above) {
            self.lower();
        }
    }

    fn is_too_much(requests: u64, above: u64) -> bool {
        above * ABOVE_ONE_OF > requests
    }

    /// Lowers the depth, once a window: what is on its way then is seen in its rest.
    fn lower(&mut self) {
        if !std::mem::replace(&mut self.lowered, true) {
            self.depth = (self.depth * DOWN_NUM / DOWN_DEN).max(DEPTH_MIN);
        }
    }

    fn close(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.window_ns) < WINDOW_NS {
            return;
        }
        self.window_ns = now_ns;
        let (requests, above) =
            (std::mem::take(&mut self.requests), std::mem::take(&mut self.above));
        if Self::is_too_much(requests, above) {
            self.lower();
        } else if !self.lowered {
            let up = (requests.min(UP_MAX) * UP_TWO_REQUESTS / 2).min(UP_MAX);
            self.depth = (self.depth + self.depth * up / 1000).min(DEPTH_MAX); // PO-TL1
        }
        self.lowered = false;
    }

    /// Whether clients have asked for anything of late (PO-TL2).
    #[must_use]
    pub fn is_loaded(&self, now_ns: u64) -> bool {
        self.last_ns.is_some_and(|last_ns| now_ns.saturating_sub(last_ns) < QUIET_NS)
    }

    /// How many writes may be on their way; `None`: no limit.
    pub fn writes(&mut self, now_ns: u64) -> Option<usize> {
        self.close(now_ns);
        let whole = usize::try_from(self.depth / ONE).expect("at most DEPTH_MAX");
        self.is_loaded(now_ns).then_some(whole.max(1))
    }

    /// How long nothing may be written after a write that took `took_ns`.
    #[must_use]
    pub fn pause_ns(&self, took_ns: u64, now_ns: u64) -> u64 {
        if self.depth >= ONE || !self.is_loaded(now_ns) {
            return 0;
        }
        let pause = u128::from(took_ns) * u128::from(ONE - self.depth) / u128::from(self.depth);
        u64::try_from(pause).unwrap_or(u64::MAX).min(PAUSE_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const TARGET: u64 = 10 * MS;

    /// Requests a second of which every `above_one_of`th is too slow, for some seconds; the depth
    /// in the end, in 65536ths.
    fn after(mut limit: TailLimit, per_s: u64, above_one_of: u64, seconds: u64) -> TailLimit {
        let begin_ns = limit.last_ns.unwrap_or(0);
        for n in 1..=per_s * seconds {
            let slow = above_one_of > 0 && n % above_one_of == 0;
            let took = if slow { 11 * MS } else { MS };
            limit.request(took, TARGET, begin_ns + n * 1_000_000_000 / per_s);
        }
        limit
    }

    #[test]
    fn depth_grows_below_half_a_percent_of_slow_reads_else_falls() {
        // Requests a second, one above the target of so many; whether the depth grows.
        let table = [
            (50, 0, true),
            (50, 1000, true),
            (50, 50, false),
            (1000, 0, true),
            (1000, 1000, true),
            (1000, 50, false),
            (100_000, 1000, true),
            (100_000, 50, false),
        ];
        for (per_s, one_of, grows) in table {
            let before = after(TailLimit::default(), per_s, 0, 1);
            let depth = after(before, per_s, one_of, 60).depth;
            assert_eq!(depth > before.depth, grows, "{per_s}/s, 1 of {one_of}: {depth}");
        }
    }

    #[test]
    fn in_balance_fewer_than_a_hundredth_is_above_the_target() {
        // A disk on which requests are above the target as long as more than `fits` writes are on
        // their way, and every 2000th in any case.
        for (per_s, fits) in [(30, 4), (80, 1), (80, 20), (1000, 3), (20_000, 8)] {
            let mut limit = TailLimit::default();
            let mut above = 0;
            let total = per_s * 120;
            for n in 0..total {
                let now_ns = (n + 1) * 1_000_000_000 / per_s;
                let writes = limit.writes(now_ns).unwrap_or(1);
                // Past the edge one request in eight meets it.
                let slow = (writes > fits && n % 8 == 0) || n % 2000 == 1999;
                above += u64::from(slow && n > total / 4);
                limit.request(if slow { 20 * MS } else { MS }, TARGET, now_ns);
            }
            let share = above as f64 / (total * 3 / 4) as f64;
            assert!(share < 0.01, "{per_s}/s: {share} above the target");
        }
    }

    #[test]
    fn depth_has_a_least_and_a_most() {
        assert_eq!(after(TailLimit::default(), 100, 1, 100).depth, DEPTH_MIN);
        assert_eq!(after(TailLimit::default(), 1000, 0, 1000).depth, DEPTH_MAX);
    }

    #[test]
    fn below_one_write_there_are_pauses_in_proportion() {
        let mut limit = TailLimit { last_ns: Some(0), ..TailLimit::default() };
        // Depth, how long a write took, the pause after it.
        let table = [
            (2 * ONE, 8 * MS, 0),
            (ONE, 8 * MS, 0),
            (ONE / 2, 8 * MS, 8 * MS),
            (ONE / 4, 8 * MS, 24 * MS),
            (DEPTH_MIN, 8 * MS, 504 * MS),
            (DEPTH_MIN, 80 * MS, 1000 * MS),
        ];
        for (depth, took, pause) in table {
            limit.depth = depth;
            assert_eq!(limit.pause_ns(took, 0), pause, "{depth}");
            assert_eq!(limit.writes(0), Some(usize::try_from((depth / ONE).max(1)).unwrap()));
        }
    }

    #[test]
    fn without_requests_of_clients_there_is_no_limit() {
        let mut limit = TailLimit::default();
        assert_eq!(limit.writes(5), None);
        limit.request(MS, TARGET, 1_000 * MS);
        assert_eq!(limit.writes(1_001 * MS), Some(1));
        assert_eq!(limit.writes(3_999 * MS), Some(1));
        assert_eq!((limit.writes(4_000 * MS), limit.pause_ns(MS, 4_000 * MS)), (None, 0));
    }
}
