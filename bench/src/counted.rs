// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a request takes in a stack of pure mappings, counted under valgrind.
use std::path::Path;
use std::process::Command;

use reproduce::mapped::{RANDREAD_512, Shape, output, stack};

/// What valgrind counts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Instructions,
    Allocations,
}

/// Requests of the shorter and the longer run: what both do once cancels out.
const REQUESTS: [u64; 2] = [20_000, 120_000];

impl Count {
    /// What one request of `shape` takes: the difference of two runs over the difference of their
    /// requests.
    ///
    /// # Errors
    /// When valgrind is not there or does not say.
    pub fn per_request(self, ours: &Path, shape: Shape) -> Result<f64, String> {
        let [short, long] = REQUESTS;
        let (before, after) = (self.total(ours, shape, short)?, self.total(ours, shape, long)?);
        Ok((after - before) / (long - short) as f64)
    }

    fn total(self, ours: &Path, shape: Shape, requests: u64) -> Result<f64, String> {
        // Small, so that filling it does not take long: a count does not depend on it.
        let (leaf, sectors) = ("mem:16M", 32_768);
        let (tool, before, after): (&[&str], _, _) = match self {
            Count::Instructions => {
                (&["--tool=callgrind", "--callgrind-out-file=/dev/null"], "Collected :", "\n")
            }
            Count::Allocations => (&["--leak-check=no"], "total heap usage:", "allocs"),
        };
        let mut command = Command::new("valgrind");
        command.args(tool).arg(ours).arg("bench").args(stack(leaf, sectors));
        command.args(["--drive", &shape.word(leaf), "--number-ios", &requests.to_string()]);
        // Valgrind does not know io_uring.
        command.args(["--no-uring", "--prefill", "--latency", "off"]).args(RANDREAD_512);
        let (_, err) = output(&mut command)?;
        let found = err.split_once(before).and_then(|(_, rest)| rest.split_once(after));
        let number = found.map(|(n, _)| n.trim().replace(',', "")).and_then(|n| n.parse().ok());
        number.ok_or_else(|| format!("valgrind: no `{before}` in what it said"))
    }
}
