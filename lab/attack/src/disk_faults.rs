// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults that disks inject while the program runs: delays, failed requests, lost connections and
//! silence; and one trouble at a time, beside an act of the operator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::disk::{Disk, DiskFaults};
use crate::rng::Rng;
use crate::scenario::{Faults, Outage};
use crate::{Result, clock, pause_ms, spawn};

/// Milliseconds for which a disk that has lost its connections takes no others: the longest one is
/// longer than its client waits.
const AWAY_MS: &[u64] = &[0, 0, 0, 30, 300, 1500];
/// Milliseconds of silence, longer than its client waits.
const SILENT_MS: u64 = 1500;

/// Draws what goes wrong on each disk in a round.
pub fn draw(disks: &[Arc<Disk>], faults: &[Faults], rng: &mut Rng) {
    for (disk, faults) in disks.iter().zip(faults) {
        disk.set_faults(draw_one(disk, *faults, rng));
    }
}

/// No disk fails or is slow any more.
pub fn clear(disks: &[Arc<Disk>]) {
    disks.iter().for_each(|d| d.set_faults(DiskFaults::default()));
}

fn draw_one(disk: &Disk, may: Faults, rng: &mut Rng) -> DiskFaults {
    let mut faults = DiskFaults {
        slow: *rng.pick(&[0.0, 0.02, 0.2]),
        slow_ms: *rng.pick(&[2, 10, 60]),
        flush_ms: *rng.pick(&[0, 3, 20, 100]),
        ..DiskFaults::default()
    };
    if may.flushes {
        faults.flush_fails = *rng.pick(&[0.0, 0.1, 0.4]);
    }
    if may.writes {
        faults.write_fails = *rng.pick(&[0.0, 0.01, 0.1]);
    }
    if may.reads {
        faults.read_fails = *rng.pick(&[0.0, 0.01, 0.1]);
        if rng.chance(0.5) {
            let sectors = disk.media().len() / 512;
            let first = rng.below(sectors.min(4096));
            faults.unreadable = (first, first + 1 + rng.below(512));
        }
    }
    faults
}

/// Ends connections of disks, or silences a disk, now and then until `stop` is set.
pub fn disconnect(
    disks: &[Arc<Disk>],
    faults: &[Faults],
    rng: &mut Rng,
    stop: &Arc<AtomicBool>,
) -> Vec<JoinHandle<Result<()>>> {
    let losing = disks.iter().zip(faults).filter(|(_, faults)| faults.connections);
    let threads = losing.map(|(disk, _)| {
        let (disk, mut rng, stop) = (Arc::clone(disk), rng.fork(), Arc::clone(stop));
        spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                pause_ms(rng.below(400));
                if rng.chance(0.1) {
                    disk.hang(true);
                    pause_ms(SILENT_MS);
                    disk.hang(false);
                } else {
                    let away = Duration::from_millis(*rng.pick(AWAY_MS));
                    disk.disconnect(away, rng.chance(0.5))?;
                }
            }
            Ok(())
        })
    });
    threads.collect()
}

/// A trouble that has begun and will end.
pub struct Ongoing {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Ongoing {
    /// It begins, and ends after so many milliseconds or, without a limit, when it is told to.
    pub fn begin(disk: &Arc<Disk>, trouble: Outage, lasts_ms: Option<u64>) -> Ongoing {
        let over = Arc::new(AtomicBool::new(false));
        let (disk, ours) = (Arc::clone(disk), Arc::clone(&over));
        let thread = spawn(move || {
            let well = DiskFaults::default();
            match trouble {
                Outage::None => {}
                Outage::Refuses => disk.set_faults(DiskFaults { write_fails: 1.0, ..well }),
                Outage::Unreadable => disk.set_faults(DiskFaults { read_fails: 1.0, ..well }),
                Outage::Hangs => disk.hang(true),
                Outage::Away => disk.leave()?,
            }
            let until = lasts_ms.map_or(f64::INFINITY, |ms| clock() + ms as f64 / 1000.0);
            while clock() < until && !ours.load(Ordering::SeqCst) {
                pause_ms(5);
            }
            match trouble {
                Outage::None => {}
                Outage::Refuses | Outage::Unreadable => disk.set_faults(well),
                Outage::Hangs => disk.hang(false),
                Outage::Away => disk.come_back(),
            }
            Ok(())
        });
        Ongoing { over, thread }
    }

    /// It ends now, if it has not.
    pub fn end(self) -> Result<()> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| "a disk has panicked")?
    }
}
