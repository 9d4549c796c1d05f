// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A volume of a cloud: requests and bytes a second are limited by two token buckets, which reads
//! and writes share; what passes both takes a latency, however much else is in flight.
//!
//! ```text
//!                 ┌─ requests: IOPS, a request counts once for each 256 KiB ─┐
//! host ─ in order ┤                                                          ├─ latency ─▶ done
//!                 └─ bytes: bandwidth ───────────────────────────────────────┘
//! ```
//! Both buckets fill while the volume is idle, up to what they hold. Writes are durable when they
//! end, so a flush takes the latency alone, and no token.

use std::collections::BTreeMap;

use super::{Cmd, Kind, Model};

/// What a volume is allowed.
#[derive(Clone, Copy, Debug)]
pub struct CloudParams {
    /// Requests a second.
    pub iops: u64,
    /// Longest part of a request that counts as one.
    pub request_bytes: u64,
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// From the moment at which a request has its tokens to its end.
    pub latency_ns: u64,
    /// Time in which an idle volume fills its buckets.
    pub burst_ns: u64,
}

impl CloudParams {
    /// A general purpose volume as the clouds sell it by default: 3000 requests of up to 256 KiB
    /// and 125 MiB a second (AWS gp3 without additions, by its public documentation), 0.8 ms for a
    /// request. The burst is chosen: two of the intervals in which such limits are enforced.
    pub const fn general() -> CloudParams {
        CloudParams {
            iops: 3_000,
            request_bytes: 256 << 10,
            bytes_per_s: 125 << 20,
            latency_ns: 800_000,
            burst_ns: 100_000_000,
        }
    }
}

/// A volume, see the module.
#[derive(Debug)]
pub struct Cloud {
    params: CloudParams,
    /// When all tokens that were spent have come: of requests, of bytes. In the past while the
    /// bucket has some.
    requests_at_ns: u64,
    bytes_at_ns: u64,
    done_at: BTreeMap<(u64, u64), u64>,
    seq: u64,
}

impl Cloud {
    /// An idle volume.
    pub fn new(params: CloudParams) -> Cloud {
        let (requests_at_ns, bytes_at_ns, seq) = (0, 0, 0);
        Cloud { params, requests_at_ns, bytes_at_ns, done_at: BTreeMap::new(), seq }
    }

    /// Takes the tokens of a request; returns when it has them.
    fn take_tokens(&mut self, now_ns: u64, cmd: Cmd) -> u64 {
        let p = &self.params;
        if matches!(cmd.kind, Kind::Flush) {
            return now_ns;
        }
        let requests = cmd.len_bytes.div_ceil(p.request_bytes).max(1);
        let bytes = if cmd.kind == Kind::Discard { 0 } else { cmd.len_bytes };
        let full_ns = now_ns.saturating_sub(p.burst_ns);
        self.requests_at_ns =
            self.requests_at_ns.max(full_ns) + super::transfer_ns(requests, p.iops);
        self.bytes_at_ns = self.bytes_at_ns.max(full_ns) + super::transfer_ns(bytes, p.bytes_per_s);
        now_ns.max(self.requests_at_ns).max(self.bytes_at_ns)
    }
}

impl Model for Cloud {
    fn submit(&mut self, now_ns: u64, id: u64, cmd: Cmd) {
        let begins_ns = self.take_tokens(now_ns, cmd);
        self.seq += 1;
        self.done_at.insert((begins_ns + self.params.latency_ns, self.seq), id);
    }

    fn next_event(&self) -> Option<u64> {
        self.done_at.keys().next().map(|key| key.0)
    }

    fn pop_done(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        while let Some(entry) = self.done_at.first_entry().filter(|e| e.key().0 <= now_ns) {
            done.push(entry.remove());
        }
    }

    fn power_cut(&mut self) {
        *self = Cloud::new(self.params);
    }
}

#[cfg(test)]
mod tests {
    use super::super::drive;
    use super::*;

    /// Seconds that so many requests of one size take.
    fn seconds(count: u64, bytes: u64, depth: usize) -> f64 {
        let cmds: Vec<Cmd> = (0..count).map(|nth| Cmd::write(nth * bytes, bytes)).collect();
        drive(&mut Cloud::new(CloudParams::general()), &cmds, depth) as f64 / 1e9
    }

    #[test]
    fn small_requests_are_limited_by_their_number() {
        let s = seconds(30_000, 4096, 64);
        assert!((9.8..=10.1).contains(&s), "{s} s for 30,000 requests at 3000 a second");
    }

    #[test]
    fn large_requests_are_limited_by_their_bytes() {
        let s = seconds(1_250, 1 << 20, 64);
        assert!((9.8..=10.1).contains(&s), "{s} s for 1250 MiB at 125 MiB a second");
    }

    #[test]
    fn one_request_at_a_time_takes_its_latency() {
        let s = seconds(1_000, 4096, 1);
        assert!((0.79..=0.81).contains(&s), "{s} s for 1000 requests of 0.8 ms");
    }

    #[test]
    fn an_idle_volume_saves_tokens_up_to_its_burst() {
        let mut volume = Cloud::new(CloudParams::general());
        let burst = drive(&mut volume, &vec![Cmd::read(0, 4096); 300], 300);
        assert!(burst < 102_000_000, "300 requests within the first 100 ms: {burst} ns");
        let idle_ns = 10_000_000_000;
        let at = volume.take_tokens(idle_ns, Cmd::read(0, 4096));
        assert_eq!(at, idle_ns, "there are tokens");
        for _ in 0..300 {
            volume.take_tokens(idle_ns, Cmd::read(0, 4096));
        }
        let later = volume.take_tokens(idle_ns, Cmd::read(0, 4096));
        assert!(later > idle_ns, "and no more than those of 100 ms");
    }
}
