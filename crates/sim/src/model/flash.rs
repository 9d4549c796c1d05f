// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flash devices: a command waits for a queue slot, then takes a latency (in parallel with the
//! others in the queue), then its bytes pass a shared link one after the other.
//!
//! ```text
//! host fifo ──► queue slots ──► latency, side by side ──► link: cost per command + bytes ──► done
//! ```
//! Garbage collection, write cliffs and jitter are left out: the world adds stalls of its own.

use std::collections::{BTreeMap, VecDeque};

use super::{Cmd, Kind, Model};

/// What makes a flash device.
#[derive(Clone, Copy, Debug)]
pub struct FlashParams {
    /// Commands the device works on at once; the rest wait at the host.
    pub queue_depth: usize,
    /// Until the first byte of a read is there.
    pub read_latency_ns: u64,
    /// Until a write is in the device's buffer.
    pub write_latency_ns: u64,
    /// Added to a write that must be on the medium when it completes.
    pub fua_extra_ns: u64,
    /// A flush, whatever is dirty.
    pub flush_latency_ns: u64,
    /// Smallest distance of two commands on the link: the command rate's limit.
    pub command_ns: u64,
    /// Bytes a second of reads and of writes.
    pub read_bytes_per_s: u64,
    pub write_bytes_per_s: u64,
}

impl FlashParams {
    /// A 2.5 inch SATA III SSD. Depth 32 is NCQ's. 6 Gb/s after 8b/10b and framing leaves about
    /// 550 MB/s; 10 us a command is the 98k IOPS that such drives' data sheets give; 80 us is one
    /// TLC page read, 25 us a hit of the drive's buffer, 1 ms a flush without power-loss
    /// protection. Chosen from data sheets, not fitted.
    pub const fn sata() -> FlashParams {
        FlashParams {
            queue_depth: 32,
            read_latency_ns: 80_000,
            write_latency_ns: 25_000,
            fua_extra_ns: 500_000,
            flush_latency_ns: 1_000_000,
            command_ns: 10_000,
            read_bytes_per_s: 550_000_000,
            write_bytes_per_s: 500_000_000,
        }
    }

    /// A disk that works on one command at a time and takes 10 GB in requests of 512 KiB in
    /// 87.5 s, as that of the published lone writer did. The rate is fitted to this figure; 20 us
    /// a command is chosen, reads and flushes are as [`FlashParams::sata`]'s.
    pub const fn sata_depth_one() -> FlashParams {
        FlashParams {
            queue_depth: 1,
            write_latency_ns: 20_000,
            write_bytes_per_s: 114_800_000,
            read_bytes_per_s: 114_800_000,
            ..FlashParams::sata()
        }
    }

    /// A PCIe 3.0 x4 data-centre NVMe drive with power-loss protection: flush and FUA are cheap.
    /// Chosen from data sheets (about 600k IOPS, 3.2 and 2.0 GB/s), not fitted.
    pub const fn nvme() -> FlashParams {
        FlashParams {
            queue_depth: 1024,
            read_latency_ns: 75_000,
            write_latency_ns: 12_000,
            fua_extra_ns: 2_000,
            flush_latency_ns: 20_000,
            command_ns: 1_600,
            read_bytes_per_s: 3_200_000_000,
            write_bytes_per_s: 2_000_000_000,
        }
    }
}

/// A flash device, see the module.
#[derive(Debug)]
pub struct Flash {
    params: FlashParams,
    waiting: VecDeque<(u64, Cmd)>,
    in_queue: usize,
    /// Commands whose latency is over by then, and their cost on the link.
    ready: BTreeMap<(u64, u64), (u64, u64)>,
    done_at: BTreeMap<(u64, u64), u64>,
    link_free_ns: u64,
    seq: u64,
}

impl Flash {
    /// An idle device.
    pub fn new(params: FlashParams) -> Flash {
        Flash {
            params,
            waiting: VecDeque::new(),
            in_queue: 0,
            ready: BTreeMap::new(),
            done_at: BTreeMap::new(),
            link_free_ns: 0,
            seq: 0,
        }
    }

    fn admit(&mut self, now_ns: u64) {
        while self.in_queue < self.params.queue_depth
            && let Some((id, cmd)) = self.waiting.pop_front()
        {
            let p = &self.params;
            let (latency, rate) = match cmd.kind {
                Kind::Read => (p.read_latency_ns, p.read_bytes_per_s),
                Kind::Write if cmd.fua => {
                    (p.write_latency_ns + p.fua_extra_ns, p.write_bytes_per_s)
                }
                Kind::Write => (p.write_latency_ns, p.write_bytes_per_s),
                Kind::Flush => (p.flush_latency_ns, 0),
                Kind::Discard => (p.write_latency_ns, 0),
            };
            let bytes_ns = if rate == 0 { 0 } else { super::transfer_ns(cmd.len_bytes, rate) };
            let link_ns = bytes_ns.max(p.command_ns);
            self.in_queue += 1;
            self.seq += 1;
            self.ready.insert((now_ns + latency, self.seq), (id, link_ns));
        }
    }
}

impl Model for Flash {
    fn submit(&mut self, now_ns: u64, id: u64, cmd: Cmd) {
        self.waiting.push_back((id, cmd));
        self.admit(now_ns);
    }

    fn next_event(&self) -> Option<u64> {
        let ready = self.ready.keys().next().map(|k| k.0);
        let done = self.done_at.keys().next().map(|k| k.0);
        ready.into_iter().chain(done).min()
    }

    fn pop_done(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        while let Some(t) = self.next_event().filter(|&t| t <= now_ns) {
            while let Some(entry) = self.ready.first_entry().filter(|e| e.key().0 <= t) {
                let ((at, seq), (id, link_ns)) = entry.remove_entry();
                self.link_free_ns = self.link_free_ns.max(at) + link_ns;
                self.done_at.insert((self.link_free_ns, seq), id);
            }
            while let Some(entry) = self.done_at.first_entry().filter(|e| e.key().0 <= t) {
                done.push(entry.remove());
                self.in_queue -= 1;
            }
            self.admit(t);
        }
    }

    fn power_cut(&mut self) {
        *self = Flash::new(self.params);
    }
}

#[cfg(test)]
mod tests {
    use super::super::drive;
    use super::*;

    #[test]
    fn sata_reads_are_latency_bound_at_1_command_bound_at_32() {
        let cmds: Vec<Cmd> =
            (0..10_000).map(|i| Cmd::read((i * 7919) % 100_000 * 4096, 4096)).collect();
        let iops = |depth| {
            let ns = drive(&mut Flash::new(FlashParams::sata()), &cmds, depth);
            cmds.len() as u64 * 1_000_000_000 / ns
        };
        assert!((10_000..13_000).contains(&iops(1)), "{}", iops(1));
        assert!((90_000..101_000).contains(&iops(32)), "{}", iops(32));
    }

    #[test]
    fn large_writes_run_at_the_stated_bandwidth() {
        let cmds: Vec<Cmd> = (0..500).map(|i| Cmd::write(i << 20, 1 << 20)).collect();
        let ns = drive(&mut Flash::new(FlashParams::sata()), &cmds, 8);
        let mb_per_s = (500u64 << 20) * 1000 / ns;
        assert!((480..501).contains(&mb_per_s), "{mb_per_s}");
    }
}
