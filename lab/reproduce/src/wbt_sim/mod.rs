// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback throttling in virtual time: a lone writer, and a reader at a fixed rate with a heavy
//! writer, on models of four disks.
//!
//! ```text
//!   client ── 1 MiB, in order, as fast as possible ───▶ buffered ──┐ writeback, 1 MiB each
//!             or a task that writes as a flusher does ─────────────▼
//!                                                               Leaf ── wbt ──▶ model of a disk
//!   reader ── 4 KiB at a random place, at a fixed rate ─────────────▲
//! ```
//!
//! `buffered`, the leaf and its throttle are the ones that serve clients. What is calibrated and
//! what is a prediction: `docs/wbt-model.md`.
//!
//! Invariants
//! - RP-S1 A run is a function of its case: it reads no clock, and all random numbers come from the
//!   seed.
//! - RP-S2 The latency of a read counts from the time when it was due. Reads are sent at their
//!   times, no matter how many are in flight.
//! - RP-S3 Reads are measured from `settle_ns` of the load on; earlier ones are reported apart. The
//!   writer continues until the last read has ended.
//! - RP-S4 The time of a lone writer ends when all its data are on the disk: `buffered` is flushed.
mod run;

use policy::wbt::{Control, DeviceTraits, KernelControl, KernelParams, Mode, Qd1Rule};
use sim::DiskSpec;
use sim::model::{Flash, FlashParams, HddParams, Turnaround};

pub use run::run;

use crate::mixed_load::Sample;

/// The size of each write of the published lone writer: its kernel's limit for such a disk.
pub const LONE_REQUEST_BYTES: u64 = 512 << 10;
/// The size of every other write.
pub const REQUEST_BYTES: u64 = 1 << 20;
/// Bytes that a writer without a cache keeps in flight.
pub const FLUSHER_BYTES: u64 = 32 << 20;
/// Bytes that a lone writer writes.
pub const LONE_BYTES: u64 = 10_000_000_000;
/// Reads a second.
pub const RATES: [u64; 3] = [20, 500, 2000];
/// The writer's file is at the begin of the disk, the reader's file of the same length follows it.
/// A writer that reaches the end of its file begins again; a lone writer's file is longer.
pub const FILE_BYTES: u64 = 4 << 30;
pub const LONE_FILE_BYTES: u64 = 10 << 30;
/// How long both run before reads are measured, at full size. In this time the throttle adapts to
/// the disk.
pub const SETTLE_NS: u64 = 4_000_000_000;

/// A model of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// The disk of the published lone writer, or the same with a deeper queue.
    Lone {
        queue_depth: u32,
    },
    /// A 7200 rpm disk with 64 MiB of write cache.
    Hdd,
    /// The same with its write cache off.
    HddNoCache,
    Sata,
    Nvme,
}

impl Disk {
    /// The disks that a reader and a writer share.
    pub const SHARED: [Disk; 4] = [Disk::Hdd, Disk::HddNoCache, Disk::Sata, Disk::Nvme];

    /// The prefix of its keys in the JSON line.
    pub fn key(self) -> String {
        match self {
            Disk::Lone { queue_depth } => format!("qd{queue_depth}"),
            Disk::Hdd => "hdd".to_owned(),
            Disk::HddNoCache => "hdd_nocache".to_owned(),
            Disk::Sata => "sata".to_owned(),
            Disk::Nvme => "nvme".to_owned(),
        }
    }

    pub fn is_rotating(self) -> bool {
        matches!(self, Disk::Hdd | Disk::HddNoCache)
    }

    pub fn request_bytes(self) -> u64 {
        if matches!(self, Disk::Lone { .. }) { LONE_REQUEST_BYTES } else { REQUEST_BYTES }
    }

    /// Rates of reads that leave time for a writer. The rotating disk does 174 random reads a
    /// second one by one, and 503 with a full queue: a reader of 500 a second leaves nothing.
    pub fn rates(self) -> &'static [u64] {
        if self.is_rotating() { &RATES[..1] } else { &RATES }
    }

    fn spec(self) -> DiskSpec {
        let capacity = block::Sector::from_bytes(LONE_FILE_BYTES.max(2 * FILE_BYTES));
        let name = self.key();
        let spec = match self {
            Disk::Lone { queue_depth } => {
                let slots = usize::try_from(queue_depth).expect("a depth fits in a word");
                let disk = FlashParams { queue_depth: slots, ..FlashParams::sata_depth_one() };
                let disk = Box::new(Flash::new(disk));
                let model = Turnaround::new(disk, Turnaround::LONE_WRITER_NS);
                let spec = DiskSpec::new(&name, capacity, Box::new(model));
                DiskSpec { queue_depth, ..spec }
            }
            Disk::Hdd => {
                let params = HddParams { cache_bytes: 64 << 20, ..HddParams::textbook() };
                DiskSpec::hdd(&name, capacity, params)
            }
            Disk::HddNoCache => DiskSpec::hdd(&name, capacity, HddParams::textbook()),
            Disk::Sata => DiskSpec::flash(&name, capacity, FlashParams::sata()),
            Disk::Nvme => DiskSpec::flash(&name, capacity, FlashParams::nvme()),
        };
        DiskSpec { keeps_history: false, keeps_data: false, ..spec }
    }
}

/// The mode of the throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttling {
    Off,
    /// The kernel's algorithm without its rule for a queue depth of 1.
    NoRule,
    Kernel,
    Tail,
}

impl Throttling {
    pub fn name(self) -> &'static str {
        match self {
            Throttling::Off => "off",
            Throttling::NoRule => "without the rule",
            Throttling::Kernel => "kernel",
            Throttling::Tail => "tail",
        }
    }

    /// Its algorithm; `None` for off.
    fn law(self, device: DeviceTraits) -> Option<Control> {
        match self {
            Throttling::Off => None,
            Throttling::NoRule => {
                let params = KernelParams { qd1: Qd1Rule::None, ..KernelParams::default() };
                Some(Control::Kernel(KernelControl::with_params(device, params)))
            }
            Throttling::Kernel => Some(Control::new(Mode::Kernel, device)),
            Throttling::Tail => Some(Control::new(Mode::Tail, device)),
        }
    }
}

/// The kind of writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writer {
    /// A client of a `buffered` device, one write at a time.
    #[default]
    Buffered,
    /// A task that keeps writes in flight at the leaf.
    Flusher,
}

/// The load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A writer that ends after so many bytes.
    Lone { bytes: u64 },
    /// A writer without end, a reader, or both, for `for_ns` after `settle_ns`.
    Timed { writer: bool, reads_per_s: Option<u64>, settle_ns: u64, for_ns: u64 },
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub disk: Disk,
    pub throttling: Throttling,
    pub writer: Writer,
    pub load: Load,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The time until the last write of a lone writer ended, or for which reads were measured.
    pub took_ns: u64,
    /// Bytes of the writes that ended in that time.
    pub write_bytes: u64,
    /// Latencies of the measured reads, sorted, and of the earlier ones.
    pub read_ns: Vec<u64>,
    pub early_read_ns: Vec<u64>,
    /// Writes that waited, bios that were split, probes.
    pub waits: u64,
    pub splits: u64,
    pub probes: u64,
    /// States of the throttle while reads were measured.
    pub samples: Vec<Sample>,
}

impl Outcome {
    pub fn seconds(&self) -> f64 {
        self.took_ns as f64 / 1e9
    }

    pub fn mb_per_s(&self) -> f64 {
        self.write_bytes as f64 / 1e6 / self.seconds()
    }

    /// The latency in microseconds that `per_mille` of a thousand reads do not exceed.
    pub fn read_us(&self, per_mille: usize) -> f64 {
        per_mille_of(&self.read_ns, per_mille)
    }

    /// The longest read before the measured time, in microseconds.
    pub fn early_max_us(&self) -> f64 {
        per_mille_of(&self.early_read_ns, 1000)
    }
}

/// By nearest rank; NaN if there is no value.
fn per_mille_of(sorted_ns: &[u64], per_mille: usize) -> f64 {
    let rank = (sorted_ns.len() * per_mille).div_ceil(1000).max(1);
    sorted_ns.get(rank - 1).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}
