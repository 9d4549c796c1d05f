// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health: whether the daemon does its work, and what an operator has to act on.
//!
//! A device is unhealthy while its engine reports a problem, a leaf while its server is lost and
//! for a minute after it has failed a request. Work that an operator has asked for (a suspended
//! device, a drain, a full cache) is no problem.
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::snapshot::Snapshot;

/// How long a leaf counts as failing after a failed request. Chosen: longer than the interval of
/// most checks, so that none misses it.
const FAILURE_TIME: Duration = Duration::from_secs(60);

/// When each leaf has failed a request last.
#[derive(Debug, Default)]
pub(super) struct LeafFailures(BTreeMap<String, LeafFailure>);

#[derive(Debug, Default)]
struct LeafFailure {
    count: u64,
    last: Option<Instant>,
}

impl LeafFailures {
    /// Looks at a new snapshot; returns all problems, each with its device.
    pub(super) fn problems(&mut self, snapshot: &Snapshot, now: Instant) -> Vec<String> {
        let devices = snapshot.devices.iter().flat_map(|device| {
            device.problems.iter().map(|problem| format!("{}: {problem}", device.name))
        });
        let mut all: Vec<String> = devices.collect();
        self.0.retain(|name, _| snapshot.leaves.iter().any(|leaf| leaf.name == *name));
        for leaf in &snapshot.leaves {
            all.extend(leaf.problem.iter().map(|problem| format!("{}: {problem}", leaf.name)));
            let known = self.0.entry(leaf.name.clone()).or_default();
            if leaf.failures > known.count {
                known.last = Some(now);
            }
            known.count = leaf.failures;
            if known.last.is_some_and(|last| now < last + FAILURE_TIME) {
                let count = known.count;
                all.push(format!(
                    "{}: it has failed requests within the last minute, {count} in all",
                    leaf.name
                ));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::{DeviceState, LeafState, OPS};
    use super::*;

    fn snapshot(problems: &[&str], failures: u64) -> Snapshot {
        let device = DeviceState {
            name: "wc".into(),
            size_sectors: 8,
            suspended: true,
            live_table: true,
            opens: 0,
            events: 0,
            targets: Vec::new(),
            unsaved: None,
            latencies: Default::default(),
            problems: problems.iter().map(|text| (*text).to_owned()).collect(),
        };
        let leaf = LeafState {
            name: "/dev/sda".into(),
            counts: OPS.map(|_| queue::Counts::default()),
            latencies: None,
            errors: failures,
            failures,
            in_flight: 0,
            problem: None,
            throttle: None,
        };
        let nbd = nbd::Stats::default();
        let (devices, engines, leaves) = (vec![device], Vec::new(), vec![leaf]);
        Snapshot { nbd, fuse: None, ublk: None, devices, engines, leaves }
    }

    #[test]
    fn a_suspended_device_is_healthy() {
        let mut failures = LeafFailures::default();
        assert_eq!(failures.problems(&snapshot(&[], 0), Instant::now()), Vec::<String>::new());
    }

    #[test]
    fn problems_of_engines_name_their_device() {
        let found = LeafFailures::default().problems(&snapshot(&["it fails"], 0), Instant::now());
        assert_eq!(found, ["wc: it fails"]);
    }

    #[test]
    fn a_leaf_is_failing_for_a_minute_after_a_failure() {
        let (mut failures, start) = (LeafFailures::default(), Instant::now());
        let mut at = |seconds, count| {
            let now = start + Duration::from_secs(seconds);
            failures.problems(&snapshot(&[], count), now).len()
        };
        assert_eq!([at(0, 0), at(10, 3), at(69, 3), at(71, 3), at(80, 4)], [0, 1, 1, 0, 1]);
    }
}
