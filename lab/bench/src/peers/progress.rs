// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far a long bench is, and how long it will take yet.
use std::io::{Write, stderr};

use reproduce::clock;

/// Seconds between two lines.
const EVERY_S: f64 = 10.0;

/// Counts steps, each with the seconds that it is expected to take.
#[derive(Debug)]
pub struct Progress {
    began: f64,
    told: f64,
    expected_s: f64,
    done_s: f64,
}

impl Progress {
    /// Begins now, and says what it will take.
    pub fn begin(expected_s: f64) -> Progress {
        let progress = Progress { began: clock(), told: clock(), expected_s, done_s: 0.0 };
        say(&format!("about {} in all", minutes(expected_s)));
        progress
    }

    /// A step has ended that was expected to take so long.
    pub fn step(&mut self, part: &str, expected_s: f64) {
        self.done_s += expected_s;
        let now = clock();
        if now - self.told >= EVERY_S {
            self.told = now;
            say(&line(part, now - self.began, self.done_s, self.expected_s));
        }
    }
}

fn say(text: &str) {
    let _ = writeln!(stderr(), "bench-peers: {text}"); // nobody to tell when it has gone
}

fn minutes(s: f64) -> String {
    format!("{} min {:02} s", (s as u64) / 60, (s as u64) % 60)
}

/// What is left takes as long for each expected second as what is done has taken.
fn line(part: &str, elapsed_s: f64, done_s: f64, expected_s: f64) -> String {
    let left = (expected_s - done_s).max(0.0) * elapsed_s / done_s;
    format!("{part}: {:.0} % done, about {} left", 100.0 * done_s / expected_s, minutes(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_needs_longer_for_the_rest_too() {
        assert_eq!(line("null", 90.0, 60.0, 240.0), "null: 25 % done, about 4 min 30 s left");
        assert_eq!(line("fuse", 10.0, 11.0, 10.0), "fuse: 110 % done, about 0 min 00 s left");
    }
}
