// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Windows of writes: how many of them, and how many bytes, an origin takes in a time in which it
//! has always some in flight.
//!
//! Invariant
//! - WC-WW1 A window contains no time in which no write was in flight, and no failed write.

/// A window has at least so many writes, or so many bytes, and takes at least so long. Chosen: the
/// costs of a volume of a cloud are known after a tenth of a second, those of a fast drive after a
/// few thousand writes.
const COMMANDS_MIN: u64 = 64;
const BYTES_MIN: u64 = 2 << 20;
const NS_MIN: u64 = 10_000_000;
/// The same where it ends because nothing is in flight any more.
const LAST_NS_MIN: u64 = 2_000_000;

/// See the module.
#[derive(Default)]
pub(super) struct WriteWindow {
    since_ns: u64,
    in_flight: u64,
    commands: u64,
    bytes: u64,
    /// The time of all windows.
    busy_ns: u64,
}

impl WriteWindow {
    /// A write is sent.
    pub(super) fn sent(&mut self, now_ns: u64) {
        if self.in_flight == 0 {
            self.begin(now_ns); // WC-WW1
        }
        self.in_flight += 1;
    }

    /// A write has ended. Returns writes, bytes and time of the window, if it ends with it.
    pub(super) fn ended(
        &mut self,
        bytes: u64,
        is_written: bool,
        now_ns: u64,
    ) -> Option<(u64, u64, u64)> {
        self.in_flight -= 1;
        if !is_written {
            self.begin(now_ns);
            return None;
        }
        (self.commands, self.bytes) = (self.commands + 1, self.bytes + bytes);
        let is_enough = self.commands >= COMMANDS_MIN || self.bytes >= BYTES_MIN;
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        let least_ns = if self.in_flight == 0 { LAST_NS_MIN } else { NS_MIN };
        if !is_enough || elapsed_ns < least_ns {
            return None;
        }
        let window = (self.commands, self.bytes, elapsed_ns);
        self.busy_ns += elapsed_ns;
        self.begin(now_ns);
        Some(window)
    }

    fn begin(&mut self, now_ns: u64) {
        (self.since_ns, self.commands, self.bytes) = (now_ns, 0, 0);
    }

    /// The time of all windows so far.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_window_has_enough_writes_and_time() {
        let mut window = WriteWindow::default();
        (0..3).for_each(|_| window.sent(5 * MS));
        for nth in 0..100 {
            window.sent(5 * MS);
            assert_eq!(window.ended(4096, true, 5 * MS + nth), None, "too short");
        }
        assert_eq!(window.ended(4096, true, 16 * MS), Some((101, 101 * 4096, 11 * MS)));
        assert_eq!(window.ended(BYTES_MIN, true, 20 * MS), None, "4 ms");
        assert_eq!(window.busy_ns(), 11 * MS);
    }

    #[test]
    fn the_last_window_before_a_pause_may_be_shorter() {
        let mut window = WriteWindow::default();
        window.sent(0);
        window.sent(0);
        assert_eq!(window.ended(BYTES_MIN, true, 2 * MS), None);
        assert_eq!(window.ended(4096, true, 3 * MS), Some((2, BYTES_MIN + 4096, 3 * MS)));
    }

    #[test]
    fn pauses_and_failed_writes_do_not_count() {
        let mut window = WriteWindow::default();
        window.sent(0);
        assert_eq!(window.ended(BYTES_MIN, true, MS), None);
        window.sent(1_000 * MS);
        window.sent(1_000 * MS);
        window.sent(1_000 * MS);
        assert_eq!(window.ended(BYTES_MIN, true, 1_005 * MS), None);
        assert_eq!(window.ended(4096, false, 1_006 * MS), None);
        assert_eq!(window.ended(BYTES_MIN, true, 1_020 * MS), Some((1, BYTES_MIN, 14 * MS)));
    }
}
