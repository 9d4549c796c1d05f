// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write bandwidth of a device, measured while writeback is in flight.
//!
//! Bytes are counted for 200 ms of busy time, or until they are many on a device that is rarely
//! busy. The samples are averaged over 3 s. As in `wb_update_write_bandwidth`, the reported value
//! follows that average by 1/8 of the difference, and only while the average keeps moving away. In
//! the first 3 s the average covers the measured time, and is reported directly.
//!
//! Invariants
//! - PO-BW1 Time without writeback in flight does not count.
//! - PO-BW2 The reported value is at least 1, and falls while writeback is in flight and nothing
//!   completes.

/// The value before the first measurement: the kernel's `INIT_BW`, 100 MiB/s.
pub const BANDWIDTH_START: u64 = 100 << 20;
/// Nothing is faster: 16 TiB/s.
const BANDWIDTH_MAX: u64 = 16 << 40;
/// Busy time of a sample: the kernel's `BANDWIDTH_INTERVAL`.
const SAMPLE_NS: u64 = 200_000_000;
/// Busy time of the first one: some I/Os of any device that is not stalled. Chosen.
const FIRST_SAMPLE_NS: u64 = 20_000_000;
/// Bytes with which a sample is complete however short it was, and the first one. Chosen: one takes
/// a device of 300 MB/s the time of a sample, the other is what a slow start lets through in 80 ms.
const SAMPLE_BYTES: u64 = 64 << 20;
const FIRST_SAMPLE_BYTES: u64 = 8 << 20;
/// Samples are blended over this time.
const PERIOD_NS: u64 = 3_000_000_000;
const SECOND_NS: u128 = 1_000_000_000;

/// The estimator.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    /// The blend, in bytes per second.
    blend: u64,
    /// What follows it.
    average: u64,
    /// Busy time measured so far, at most [`PERIOD_NS`].
    measured_ns: u64,
    /// Busy time and bytes of this sample, up to `since_ns`.
    busy_ns: u64,
    bytes: u64,
    /// Up to when busy time is counted; `None` while nothing is in flight.
    since_ns: Option<u64>,
    /// When something completed last, or started.
    alive_ns: u64,
}

impl Default for Bandwidth {
    fn default() -> Bandwidth {
        Bandwidth::new()
    }
}

impl Bandwidth {
    /// Nothing is measured yet.
    #[must_use]
    pub fn new() -> Bandwidth {
        Bandwidth {
            blend: BANDWIDTH_START,
            average: BANDWIDTH_START,
            measured_ns: 0,
            busy_ns: 0,
            bytes: 0,
            since_ns: None,
            alive_ns: 0,
        }
    }

    /// Bytes per second, as of `now_ns` (PO-BW2).
    #[must_use]
    pub fn bytes_per_s(&self, now_ns: u64) -> u64 {
        let silent_ns = match self.since_ns {
            Some(_) => now_ns.saturating_sub(self.alive_ns).max(PERIOD_NS),
            None => PERIOD_NS,
        };
        let sunk = u128::from(self.average) * u128::from(PERIOD_NS) / u128::from(silent_ns);
        u64::try_from(sunk).expect("no more than the average").max(1)
    }

    /// The same, if anything was measured.
    #[must_use]
    pub fn known(&self, now_ns: u64) -> Option<u64> {
        (self.measured_ns > 0).then(|| self.bytes_per_s(now_ns))
    }

    /// Writeback is in flight from now on.
    pub fn started(&mut self, now_ns: u64) {
        if self.since_ns.is_none() {
            self.since_ns = Some(now_ns);
            self.alive_ns = now_ns;
        }
    }

    /// `bytes` are written; `more` are in flight, or none.
    pub fn done(&mut self, bytes: u64, more: bool, now_ns: u64) {
        let since_ns = self.since_ns.unwrap_or(now_ns);
        self.busy_ns = self.busy_ns.saturating_add(now_ns.saturating_sub(since_ns));
        self.bytes = self.bytes.saturating_add(bytes);
        self.since_ns = more.then_some(now_ns); // PO-BW1
        self.alive_ns = now_ns;
        let (enough_ns, enough) = match self.measured_ns {
            0 => (FIRST_SAMPLE_NS, FIRST_SAMPLE_BYTES),
            _ => (SAMPLE_NS, SAMPLE_BYTES),
        };
        if self.busy_ns >= enough_ns || self.bytes >= enough {
            self.busy_ns = self.busy_ns.max(1); // Done as it began, as memory is.
            self.sample();
        }
    }

    fn sample(&mut self) {
        let elapsed = u128::from(self.busy_ns);
        let sample = u128::from(self.bytes) * SECOND_NS / elapsed;
        let kept_ns = self.measured_ns.min(PERIOD_NS.saturating_sub(self.busy_ns));
        let kept = u128::from(kept_ns);
        let old = self.blend;
        let blend = (sample * elapsed + u128::from(old) * kept) / (elapsed + kept);
        self.blend = u64::try_from(blend).unwrap_or(u64::MAX).clamp(1, BANDWIDTH_MAX);
        if self.measured_ns < PERIOD_NS {
            self.average = self.blend;
        } else if self.average > old && old >= self.blend {
            self.average -= (self.average - old).div_ceil(8);
        } else if self.average < old && old <= self.blend {
            self.average += (old - self.average).div_ceil(8);
        }
        self.measured_ns = self.measured_ns.saturating_add(self.busy_ns).min(PERIOD_NS);
        self.busy_ns = 0;
        self.bytes = 0;
    }
}
