// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The release before this tree: its program, and media that it has left. `bin/previous` makes the
//! folder from a release, and the tests open with this tree's program what that one wrote.
//!
//! ```text
//!   tests/previous/
//!     README.md             which release it is, from which commit, and how the folder is made
//!     millpond.zst          its program, as it was released
//!     images/NAME.tar.gz    files of a feature after `kill -9`, and what a reader has to find
//! ```
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use format::Gone;

use crate::daemon::Daemon;
use crate::process::run;
use crate::stamp::{Stamps, Written};
use crate::{Result, clock};

const MIB: u64 = 1 << 20;
/// The device that clients use.
pub const DEVICE: &str = "d";
/// Its size, and the blocks that clients write: in two chunks of a divided cache.
const BYTES: u64 = 40 * MIB;
const BLOCKS: Range<u64> = 8160..8224;
/// How often they flush: one request in so many.
const FLUSH_ONE_IN: u64 = 24;
/// What a reader has to find, in each archive.
const RECORD: &str = "stamps.json";
/// The folder of a volume on an object store.
const STORE: &str = "store";
/// Longest time for an archive.
const ARCHIVE: Duration = Duration::from_secs(60);

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// A kind of device, with a way to use it.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// Its name, and that of its archives.
    pub name: &'static str,
    /// Only that release has it: this tree's program knows what it left, and refuses it by name.
    pub gone: Option<Gone>,
    /// Whether a write that was answered survives the death of the process.
    pub keeps_all: bool,
    kind: Kind,
    /// Whether a write that has no answer may be there in part, sector by sector.
    tears: bool,
    /// What an operator does while clients write.
    during: fn(&Daemon, &Path) -> Result<()>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A write cache over a file: mode, block size, options.
    Cache(&'static str, u32, &'static str),
    /// The same over a volume.
    CacheOverVolume(&'static str),
    Zram,
    Volume,
}

fn nothing(_: &Daemon, _: &Path) -> Result<()> {
    Ok(())
}

fn snapshot(daemon: &Daemon, device: &str) -> Result<()> {
    // There may be one of before.
    let name = format!("at-{:.0}", clock() * 1000.0);
    daemon.verb(&["snapshot", device, &name]).map(|_| ())
}

fn grow(daemon: &Daemon, dir: &Path) -> Result<()> {
    let path = dir.join("cache.img");
    let longer = || {
        let file = File::options().write(true).open(&path)?;
        file.set_len(file.metadata()?.len() + MIB)
    };
    longer().map_err(|e| format!("{}: {e}", path.display()))?;
    daemon.verb(&["resize", DEVICE, "--cache"]).map(|_| ())
}

/// Each feature alone, and as the last one all that go together.
pub const FEATURES: [Feature; 12] = [
    cache("plain", "s", 4096, ""),
    Feature { tears: true, ..cache("sectors", "s", 512, "") },
    cache("mapped", "p", 4096, ""),
    cache("ordered", "s", 4096, "ordered"),
    cache("guarded", "s", 4096, "guard_origin"),
    cache("reads", "s", 4096, "read_cache 1"),
    Feature {
        gone: Some(Gone::DividedCache),
        ..cache("parts", "s", 4096, "parts 2 guard_origin read_cache 1")
    },
    Feature { keeps_all: false, ..cache("kernel", "s", 4096, "format dm") },
    Feature { during: grow, ..cache("grown", "s", 4096, "") },
    Feature { gone: Some(Gone::PersistentZram), keeps_all: false, ..of_kind("zram", Kind::Zram) },
    Feature {
        keeps_all: false,
        during: |daemon, _| snapshot(daemon, DEVICE),
        ..of_kind("volume", Kind::Volume)
    },
    Feature {
        during: |daemon, dir| {
            grow(daemon, dir)?;
            snapshot(daemon, "vol")
        },
        ..of_kind("together", Kind::CacheOverVolume("ordered guard_origin read_cache 1"))
    },
];

const fn of_kind(name: &'static str, kind: Kind) -> Feature {
    Feature { name, gone: None, keeps_all: true, kind, tears: false, during: nothing }
}

const fn cache(
    name: &'static str,
    mode: &'static str,
    block: u32,
    options: &'static str,
) -> Feature {
    of_kind(name, Kind::Cache(mode, block, options))
}

impl Feature {
    fn files(&self) -> &'static [(&'static str, u64)] {
        match self.kind {
            Kind::Cache(..) => &[("origin.img", BYTES), ("cache.img", MIB)],
            Kind::CacheOverVolume(_) => &[("cache.img", MIB)],
            Kind::Zram => &[("back.img", 4 * MIB)],
            Kind::Volume => &[],
        }
    }

    fn has_store(&self) -> bool {
        matches!(self.kind, Kind::Volume | Kind::CacheOverVolume(_))
    }

    /// Its devices: name and table. A cache whose files were copied has to `adopt` its origin.
    fn devices(&self, dir: &Path, adopt: bool) -> Vec<(&'static str, String)> {
        let sectors = BYTES / 512;
        let volume =
            format!("0 {sectors} objvol file://{} 2 segment_size 256K", dir.join(STORE).display());
        let cache = |origin: &str, mode: &str, block: u32, options: &str| {
            let adopt = if adopt { " adopt_origin" } else { "" };
            let options = format!("{options}{adopt}");
            let words = options.split_whitespace().count();
            format!("0 - writecache {mode} {origin} ./cache.img {block} {words} {options}")
        };
        let zram = format!("0 {sectors} zram zstd 3 backing_dev ./back.img persist");
        match self.kind {
            Kind::Cache(mode, block, options) => {
                vec![(DEVICE, cache("./origin.img", mode, block, options))]
            }
            Kind::CacheOverVolume(options) => {
                vec![("vol", volume), (DEVICE, cache("vol", "s", 4096, options))]
            }
            Kind::Zram => vec![(DEVICE, zram)],
            Kind::Volume => vec![(DEVICE, volume)],
        }
    }

    /// Makes its files in `dir`.
    pub fn make_files(&self, dir: &Path) -> Result<()> {
        for (name, bytes) in self.files() {
            let made = File::create(dir.join(name)).and_then(|file| file.set_len(*bytes));
            made.map_err(|e| format!("{name}: {e}"))?;
        }
        if self.has_store() {
            std::fs::create_dir(dir.join(STORE)).map_err(|e| format!("{STORE}: {e}"))?;
        }
        Ok(())
    }

    /// Starts a daemon with its devices.
    pub fn start(&self, program: &Path, dir: &Path, adopt: bool) -> Result<Daemon> {
        let devices = self.devices(dir, adopt);
        let devices: Vec<_> = devices.iter().map(|(name, table)| (*name, &**table)).collect();
        Daemon::start_with(program, dir, "cores = 2", &devices)
    }

    /// Writes random blocks. The operator acts in the middle, and `act` is called once, after
    /// `writes` answers, with requests in flight where that can be judged; the writer ends when
    /// `act` says so, or fails with its error.
    pub fn write(
        &self,
        daemon: &Daemon,
        dir: &Path,
        stamps: &mut Stamps,
        writes: u64,
        mut act: impl FnMut() -> Result<After>,
    ) -> Result<()> {
        let mut client = daemon.connect(DEVICE)?;
        stamps.flush_one_in(Some(FLUSH_ONE_IN));
        let (mut has_operated, mut done) = (false, None);
        let written = stamps.write(&mut client, &mut Written::default(), |written| {
            if written.writes >= writes / 2 && !has_operated {
                has_operated = true;
                if let Err(e) = (self.during)(daemon, dir) {
                    done = Some(Err(e));
                }
            }
            if written.writes >= writes && done.is_none() {
                done = Some(if self.tears { Ok(After::Enough) } else { act() });
            }
            matches!(done, Some(Ok(After::Enough) | Err(_)))
        });
        match (done, written) {
            (Some(Err(e)), _) => return Err(format!("{}: {e}", self.name)),
            (Some(Ok(After::Killed)), Err(_)) | (Some(Ok(After::Enough)), Ok(())) => {}
            (_, Ok(())) => return Err(format!("{}: it was killed, and answers", self.name)),
            (_, Err(e)) => return Err(format!("{}: the writer: {e}", self.name)),
        }
        if self.tears {
            client.flush().map_err(text)?;
            stamps.all_durable();
            act()?;
        }
        Ok(())
    }

    /// What clients know of blocks that have nothing yet.
    pub fn stamps(seed: u64) -> Stamps {
        Stamps::new(BLOCKS, seed).compressible()
    }

    /// Packs what is in `dir` after a kill.
    pub fn pack(&self, dir: &Path, stamps: &Stamps, archive: &Path) -> Result<()> {
        let record = stamps.record().to_string();
        std::fs::write(dir.join(RECORD), record).map_err(|e| format!("{RECORD}: {e}"))?;
        let mut command = Command::new("tar");
        command.args(["--create", "--sparse", "--sort=name", "--owner=0", "--group=0"]);
        command.arg("--numeric-owner").arg("--use-compress-program=gzip -9").arg("--file");
        command.arg(archive).arg("--directory").arg(dir).arg(RECORD);
        command.args(self.files().iter().map(|(name, _)| name));
        if self.has_store() {
            command.arg(STORE);
        }
        run(&mut command, ARCHIVE)?.ok().map(|_| ())
    }

    /// Unpacks an archive of it into `dir`, and returns what has to be there.
    pub fn unpack(&self, archive: &Path, dir: &Path) -> Result<Stamps> {
        let mut command = Command::new("tar");
        command.args(["--extract", "--gzip", "--no-same-owner", "--file"]).arg(archive);
        run(command.arg("--directory").arg(dir), ARCHIVE)?.ok()?;
        let record = std::fs::read(dir.join(RECORD)).map_err(|e| format!("{RECORD}: {e}"))?;
        let record = serde_json::from_slice(&record).map_err(text)?;
        Stamps::of_record(&record).ok_or_else(|| format!("{}: no record", archive.display()))
    }
}

/// What becomes of a writer when something was done to its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Its connection breaks.
    Killed,
    /// It ends when all is answered.
    Enough,
}

/// The folder with what the previous release left.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/previous")
}

/// Archives of a feature, by name.
pub fn archives(feature: &Feature) -> Result<Vec<PathBuf>> {
    let images = folder().join("images");
    let all = std::fs::read_dir(&images).map_err(|e| format!("{}: {e}", images.display()))?;
    let is_of = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.split(['-', '.']).next() == Some(feature.name)
    };
    let mut found: Vec<_> = all.flatten().map(|entry| entry.path()).filter(is_of).collect();
    found.sort();
    Ok(found)
}

/// The version that a program says it has.
pub fn version(program: &Path) -> Result<String> {
    let said = run(Command::new(program).arg("--version"), ARCHIVE)?.ok()?;
    let version = said.split_whitespace().nth(1);
    version.map(str::to_owned).ok_or_else(|| format!("{}: no version", program.display()))
}

/// Its SHA-256.
pub fn sum(program: &Path) -> Result<String> {
    let said = run(Command::new("sha256sum").arg("--").arg(program), ARCHIVE)?.ok()?;
    Ok(said.chars().take_while(char::is_ascii_hexdigit).collect())
}

/// Unpacks the program of the previous release into `dir`.
pub fn program(dir: &Path) -> Result<PathBuf> {
    let (packed, path) = (folder().join("millpond.zst"), dir.join("millpond"));
    let bytes = File::open(&packed).and_then(zstd::decode_all);
    let bytes = bytes.map_err(|e| format!("{}: {e}", packed.display()))?;
    let part = dir.join("millpond.part");
    std::fs::write(&part, bytes).map_err(|e| format!("{}: {e}", part.display()))?;
    // A file that this process has open for writing can't be run while a child that it starts at
    // that moment has it, too: another process makes the program.
    run(Command::new("install").args(["-m", "755"]).args([&part, &path]), ARCHIVE)?.ok()?;
    std::fs::remove_file(&part).map_err(|e| format!("{}: {e}", part.display()))?;
    Ok(path)
}
