// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The promise of `ordered` to a file system: an ext4 is under load on a write cache, the daemon is
//! killed, and the origin alone, its cache thrown away, mounts, passes e2fsck, and holds what was
//! fsynced up to some moment and nothing later without everything earlier.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use e2e::loops::{Loop, Mounted};
use e2e::mounted::{file, fuse};
use e2e::process::{Job, run};
use e2e::stamp::{Random, fill_words};
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);
/// Writeback is always under way, and always behind, by its rate: so a kill finds much pending.
const BEHIND: &str = "high_watermark 0 low_watermark 0 writeback_rate_max";
/// Files of each series that are fsynced before the next thing happens, at least.
const FILES_MIN: u64 = 10;
/// Files that a writer fsyncs in a round at most: what fits.
const FILES_MAX: u64 = 3000;
/// Between two of them, so that none is done before the daemon is killed, however fast the disk.
const BETWEEN_FILES: Duration = Duration::from_millis(3);

/// A write cache as a file, with an ext4 on it.
struct Ext4 {
    bed: TestBed,
    place: PathBuf,
}

/// The file system, mounted. What is later is dropped later.
struct Up {
    mounted: Mounted,
    _disk: Loop,
}

/// A writer's files of a round: number `n` is fsynced, with its folder, before `n + 1` is begun.
struct Series {
    folder: String,
    files_max: u64,
    fsynced: AtomicU64,
}

/// What a file holds: as long as its number says, and like no other.
fn contents(folder: &str, number: u64) -> Vec<u8> {
    let seed = folder.bytes().fold(number + 1, |x, b| x.wrapping_mul(257) + u64::from(b));
    let mut random = Random::new(seed);
    let len = 1 + random.below(24_000);
    let mut data = vec![0; len.next_multiple_of(8) as usize];
    fill_words(&mut data, || random.below(u64::MAX));
    data
}

impl Series {
    fn new(folder: String, files_max: u64) -> Series {
        Series { folder, files_max, fsynced: AtomicU64::new(0) }
    }

    fn fsynced(&self) -> u64 {
        self.fsynced.load(Ordering::SeqCst)
    }

    fn path(&self, root: &Path, number: u64) -> PathBuf {
        root.join(&self.folder).join(format!("{number:05}"))
    }

    /// Writes all files.
    fn write(&self, root: &Path) -> io::Result<()> {
        let folder = root.join(&self.folder);
        fs::create_dir(&folder)?;
        File::open(root)?.sync_all()?;
        for number in 0..self.files_max {
            let mut f = File::create(self.path(root, number))?;
            f.write_all(&contents(&self.folder, number))?;
            f.sync_all()?;
            File::open(&folder)?.sync_all()?;
            self.fsynced.store(number + 1, Ordering::SeqCst);
            pause(BETWEEN_FILES);
        }
        Ok(())
    }

    /// How many files are there, from the first on. Errors: fewer than `least`; or a file is there,
    /// be it by its name alone, and one before it is not whole, which had been fsynced by then.
    fn check(&self, root: &Path, least: u64) -> Result<u64, String> {
        let is_whole = |number: &u64| {
            let found = fs::read(self.path(root, *number));
            found.is_ok_and(|found| found == contents(&self.folder, *number))
        };
        let whole = (0..self.files_max).take_while(is_whole).count() as u64;
        if whole < least {
            return Err(format!("{}: only {whole} of the {least} files", self.folder));
        }
        // The next one may have been on its way.
        match (whole + 1..self.files_max).find(|n| self.path(root, *n).exists()) {
            Some(later) => Err(format!("{}: file {later} without {whole}", self.folder)),
            None => Ok(whole),
        }
    }
}

/// Everything else that keeps a file system busy: without a sync, large, moved, cut, removed.
fn churn(root: &Path, old: &[String], mut random: Random, end: &AtomicBool) -> io::Result<()> {
    for folder in old {
        fs::remove_dir_all(root.join(folder))?;
    }
    let folder = root.join("churn");
    fs::create_dir_all(&folder)?;
    while !end.load(Ordering::SeqCst) {
        let name = |n: u64| folder.join(format!("{n}"));
        let (one, other) = (name(random.below(16)), name(random.below(16)));
        match random.below(4) {
            0 => fs::write(&one, vec![7; random.below(300_000) as usize])?,
            1 if one.exists() => fs::rename(&one, &other)?,
            2 if one.exists() => File::options().write(true).open(&one)?.set_len(1000)?,
            _ if one.exists() => fs::remove_file(&one)?,
            _ => {}
        }
        pause(Duration::from_millis(10));
    }
    Ok(())
}

impl Ext4 {
    /// None, said aloud, where something is lacking.
    fn new(options: &str) -> Option<Ext4> {
        if !fuse() || !clients(&["mkfs.ext4", "e2fsck", "losetup", "mount", "umount"]) {
            return None;
        }
        let words = options.split_whitespace().count();
        let table =
            format!("0 524288 writecache s ./origin.img ./cache.img 4096 {words} {options}");
        let files = [("origin.img", 256 * MIB), ("cache.img", 32 * MIB)];
        let bed = TestBed::start_mounted(&files, &[("wc", &table)]);
        let place = bed.path("place");
        fs::create_dir(&place).unwrap();
        let ext4 = Ext4 { bed, place };
        let disk = Loop::on(&file(&ext4.bed, "wc"))?;
        run(Command::new("mkfs.ext4").arg("-q").arg(disk.device()), LIMIT).unwrap().ok().unwrap();
        ext4.bed.verb(&["message", "wc", "0", "flush"]);
        Some(ext4)
    }

    fn up(&self) -> Up {
        let disk = Loop::on(&file(&self.bed, "wc")).unwrap();
        let mounted = Mounted::new(&["-t", "ext4"], disk.device(), &self.place).unwrap();
        Up { mounted, _disk: disk }
    }

    /// Writers work; after a while everything is written back while they go on; then the daemon is
    /// killed. Returns how many files of each series are on the origin for certain.
    fn work_until_killed(
        &mut self,
        series: &[Series],
        old: &[String],
        random: &mut Random,
    ) -> Vec<u64> {
        let up = self.up();
        let (place, end) = (self.place.clone(), &AtomicBool::new(false));
        let mut moment = || {
            let files: Vec<u64> = series.iter().map(|s| s.fsynced() + FILES_MIN).collect();
            let give_up = clock() + LIMIT.as_secs_f64();
            while series.iter().zip(&files).any(|(s, files)| s.fsynced() < *files) {
                assert!(clock() < give_up, "the writers write nothing");
                pause(Duration::from_millis(5));
            }
            pause(Duration::from_millis(random.below(900)));
        };
        let retired = std::thread::scope(|scope| {
            let place = &place;
            let writers: Vec<_> =
                series.iter().map(|s| scope.spawn(move || s.write(place))).collect();
            let other = scope.spawn(move || churn(place, old, Random::new(11), end));
            moment();
            let retired = series.iter().map(Series::fsynced).collect();
            self.bed.verb(&["message", "wc", "0", "flush"]);
            moment();
            self.bed.kill();
            end.store(true, Ordering::SeqCst);
            for writer in writers {
                let _ = writer.join().unwrap(); // it has met the end of its disk
            }
            let _ = other.join().unwrap();
            retired
        });
        // Nothing can be written any more.
        drop(up.mounted);
        retired
    }

    /// The origin as if its cache were lost: replayed by a mount, looked at, and checked. Returns
    /// how many files of each series are there.
    fn check_origin_alone(&self, series: &[Series], least: &[u64]) -> Result<Vec<u64>, String> {
        let alone = self.bed.path("alone.img");
        // Only what was written: its holes are most of it.
        let copy = [Path::new("--sparse=always"), &self.bed.path("origin.img"), &alone];
        run(Command::new("cp").args(copy), LIMIT)?.ok()?;
        let mounted = Mounted::new(&["-t", "ext4", "-o", "loop"], &alone, &self.place)?;
        let found = series.iter().zip(least).map(|(s, least)| s.check(&self.place, *least));
        let found: Result<Vec<u64>, String> = found.collect();
        mounted.unmount()?;
        run(Command::new("e2fsck").arg("-fn").arg(&alone), LIMIT)?.ok()?;
        found
    }

    /// The cache recovers: everything that was fsynced is there.
    fn check_with_cache(&mut self, series: &[Series]) {
        self.bed.start_again();
        let Up { mounted, _disk: disk } = self.up();
        for s in series {
            s.check(&self.place, s.fsynced()).unwrap();
        }
        mounted.unmount().unwrap();
        let e2fsck = run(Command::new("e2fsck").arg("-fn").arg(disk.device()), LIMIT);
        e2fsck.unwrap().ok().unwrap();
    }
}

/// The folders of a round.
fn two_series(round: u64) -> Vec<Series> {
    (0..2).map(|writer| Series::new(format!("r{round}w{writer}"), FILES_MAX)).collect()
}

#[test]
fn ext4_survives_the_loss_of_an_ordered_cache() {
    let Some(mut ext4) = Ext4::new(&format!("ordered {BEHIND} 6000000")) else { return };
    let mut random = Random::new(4);
    let (mut beyond, mut lost, mut old) = (0, 0, Vec::new());
    for round in 0..4 {
        let series = two_series(round);
        let retired = ext4.work_until_killed(&series, &old, &mut random);
        let found = ext4.check_origin_alone(&series, &retired);
        let found = found.unwrap_or_else(|e| panic!("round {round}: {e}"));
        for (n, s) in series.iter().enumerate() {
            let (found, fsynced) = (found[n], s.fsynced());
            println!("round {round}: {} retired, {found} found, {fsynced} fsynced", retired[n]);
        }
        for (n, s) in series.iter().enumerate() {
            beyond += found[n] - retired[n];
            // One more may be there than the writer has been told of.
            lost += s.fsynced().saturating_sub(found[n]);
        }
        ext4.check_with_cache(&series);
        old = series.into_iter().map(|s| s.folder).collect();
    }
    // Epochs were written back without being asked for, and others were in the cache alone.
    assert!(beyond > 0 && lost > 10, "too little to prove: {beyond} beyond, {lost} lost");
    ext4.bed.terminate();
}

/// The check is worth something only if it notices: of what six writers have fsynced a fifth goes
/// to the origin, then the cache is killed, and so on. By address the journal is there before the
/// files that lie behind it.
#[test]
fn a_lost_cache_damages_the_origin_only_without_ordered() {
    for order in ["", "ordered "] {
        let options = format!("{order}high_watermark 100 low_watermark 100");
        let Some(mut ext4) = Ext4::new(&format!("{options} writeback_io_bytes 65536")) else {
            return;
        };
        let up = ext4.up();
        // Each folder of the root begins in another part of the disk.
        let series: Vec<Series> = (0..6).map(|n| Series::new(format!("w{n}"), 12)).collect();
        series.iter().for_each(|s| s.write(&ext4.place).unwrap());
        let part_bytes = ext4.bed.attribute("wc", "dirty_blocks") * 4096 / 5;
        drop(up);
        let (mut noticed, mut partly) = (Vec::new(), 0);
        for _ in 0..4 {
            let drain = ["drain", "wc", "--rate", "500K"];
            let drain = Job::start(&mut ext4.bed.daemon().command(&drain)).unwrap();
            let written = || ext4.bed.attribute("wc", "origin_write_bytes");
            while drain.is_running() && written() < part_bytes {
                pause(Duration::from_millis(2));
            }
            ext4.bed.kill();
            match ext4.check_origin_alone(&series, &[0; 6]) {
                Ok(found) => partly += u64::from((1..72).contains(&found.iter().sum::<u64>())),
                Err(e) => noticed.push(e),
            }
            ext4.bed.start_again();
        }
        println!("`{options}`: noticed: {noticed:?}");
        if order.is_empty() {
            assert!(!noticed.is_empty(), "four caches lost, and nothing noticed");
        } else {
            assert!(noticed.is_empty() && partly > 0, "{partly} states between, {noticed:?}");
        }
        ext4.bed.kill();
        ext4.check_with_cache(&series);
    }
}
