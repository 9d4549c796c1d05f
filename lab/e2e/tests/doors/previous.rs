// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The release before, and this tree: media that its program has left are read, what it was killed
//! with is recovered, and it hands over under clients, or goes on where that fails. What it had and
//! this tree has not is refused by name.
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::daemon::Daemon;
use e2e::previous::{After, DEVICE, FEATURES, Feature, archives, folder, program, sum, version};
use e2e::stamp::{Random, Stamps};
use e2e::{clock, pause};
use format::Gone;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Whether there is a program of the previous release for this machine.
fn has_program() -> bool {
    let has = cfg!(target_arch = "x86_64");
    if !has {
        println!("skipped: the program of the previous release is one for x86-64");
    }
    has
}

fn feature(name: &str) -> &'static Feature {
    FEATURES.iter().find(|f| f.name == name).unwrap()
}

/// The process that has the run directory: after an upgrade another one than was started.
fn pid(dir: &Path) -> Option<Pid> {
    let lock = std::fs::read_to_string(dir.join("run/lock")).unwrap();
    lock.trim().parse().ok().and_then(Pid::from_raw)
}

fn kill(dir: &Path) {
    let pid = pid(dir).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    // A child of ours that has ended is there until its owner is dropped.
    let stat = format!("/proc/{}/stat", pid.as_raw_pid());
    let give_up = clock() + 20.0;
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(clock() < give_up, "it is not killed");
        pause(Duration::from_millis(2));
    }
}

/// What the device has is what a kill may leave; then it is used, killed and read once more.
/// Returns how many blocks had to be there.
fn check_and_go_on(feature: &Feature, daemon: Daemon, dir: &Path, stamps: &mut Stamps) -> u64 {
    let case = feature.name;
    let mut client = daemon.connect(DEVICE).unwrap();
    let found = stamps.check(|at, data| client.read(at, data));
    let found = found.unwrap_or_else(|e| panic!("{case}: {e}\n{}", daemon.log()));
    stamps.flush_one_in(Some(8));
    let mut written = e2e::stamp::Written::default();
    stamps.write(&mut client, &mut written, |written| written.writes > 60).unwrap();
    client.flush().unwrap();
    stamps.all_durable();
    let program = daemon.command(&[]).get_program().to_owned();
    kill(dir);
    drop(daemon);
    let daemon = Daemon::restart(program.as_ref(), dir).unwrap();
    let mut client = daemon.connect(DEVICE).unwrap();
    stamps.check(|at, data| client.read(at, data)).unwrap_or_else(|e| panic!("{case}: {e}"));
    daemon.terminate().unwrap();
    found.owed
}

/// Media that the previous release has left on another machine: its journals in memory are gone.
fn reads_images_of(name: &str, number: usize) {
    let feature = feature(name);
    let program = millpond(Build::Workspace).unwrap();
    let all = archives(feature).unwrap();
    assert_eq!(all.len(), number, "{all:?}");
    let mut owed = 0;
    for archive in all {
        println!("{}", archive.display());
        let dir = tempfile::tempdir().unwrap();
        let mut stamps = feature.unpack(&archive, dir.path()).unwrap();
        let daemon = feature.start(&program, dir.path(), true).unwrap();
        owed += check_and_go_on(feature, daemon, dir.path(), &mut stamps);
    }
    assert!(owed > 0, "{name}: nothing had to be there: that proves nothing");
}

#[test]
fn the_previous_release_is_the_one_that_its_page_names() {
    let page = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path()).unwrap();
    let named = |what: &str, value: &str| page.contains(&format!("| {what} | {value} |\n"));
    assert!(named("SHA-256 of the program", &sum(&program).unwrap()), "{page}");
    if has_program() {
        assert!(named("version", &version(&program).unwrap()), "{page}");
    }
}

#[test]
fn caches_are_read() {
    for name in ["plain", "sectors", "mapped", "ordered", "guarded", "reads", "grown"] {
        reads_images_of(name, 1);
    }
}

/// What a folder has, but for a daemon's own files.
fn files_of(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let images = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let images = images.filter(|path| path.extension().is_some_and(|of| of == "img"));
    let mut files: Vec<_> =
        images.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    files.sort();
    files
}

/// A verb that is refused. Returns why.
fn refusal(daemon: &Daemon, args: &[&str]) -> String {
    let ended = daemon.try_verb(args).unwrap();
    assert!(ended.code != 0, "{args:?}: {}", ended.stdout);
    format!("{}{}", ended.stdout, ended.stderr)
}

/// Whatever is tried with it, the cache in parts that the previous release has left is refused by
/// name, with the way out, and stays as it is; until it is given up.
#[test]
fn a_cache_in_parts_is_refused_by_name() {
    let (feature, gone) = (feature("parts"), Gone::DividedCache);
    let dir = tempfile::tempdir().unwrap();
    feature.unpack(&archives(feature).unwrap()[0], dir.path()).unwrap();
    let before = files_of(dir.path());
    let program = millpond(Build::Workspace).unwrap();
    let free = dir.path().join("free.raw");
    std::fs::File::create(&free).unwrap().set_len(2 << 20).unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (origin, cache, free) = (path("origin.img"), path("cache.img"), free.display());
    let other = format!("0 8192 writecache s mem:4M {free} 4096 0");
    let daemon = Daemon::start(&program, dir.path(), &[("other", &other)]).unwrap();

    let with = |options: &str| format!("0 81920 writecache s {origin} {cache} 4096 {options}");
    let [create, replaces] = [["create", DEVICE, "--table"], ["replace-cache", "other", &cache]];
    let why = refusal(&daemon, &[&create[..], &[&with("2 parts 2")]].concat());
    assert!(why.contains("parts: millpond 0.2 was the last version with this option"), "{why}");
    assert!(why.contains(gone.way_out()) && why.contains("leave the option out"), "{why}");
    let tables = ["0", "1 adopt_origin", "1 guard_origin", "2 format dm", "2 format native"];
    let mut refusals: Vec<String> = tables
        .iter()
        .map(|options| refusal(&daemon, &[&create[..], &[&with(options)]].concat()))
        .collect();
    refusals.push(refusal(&daemon, &replaces));
    let as_swap = format!("0 8192 zram lz4 2 backing_dev {cache}");
    refusals.push(refusal(&daemon, &[&create[..], &[&as_swap]].concat()));
    refusals.push(refusal(&daemon, &["inspect", &cache]));
    refusals.push(refusal(&daemon, &["recover", "--cache", &cache, "--origin", &origin]));
    let wipe = refusal(&daemon, &["wipe", &cache]);
    refusals.push(wipe.clone());
    for why in &refusals {
        assert!(why.contains(&gone.to_string()) && why.contains(gone.way_out()), "{why}");
        let is_wrong = ["neither", "unknown", "damaged", "is blank", "no cache; "];
        assert!(!is_wrong.iter().any(|word| why.contains(word)), "{why}");
    }
    assert!(files_of(dir.path()) == before, "something was changed");

    let token = wipe.split("--force ").nth(1).unwrap().split('`').next().unwrap();
    daemon.verb(&["wipe", &cache, "--force", token]).unwrap();
    daemon.verb(&["inspect", &cache]).unwrap();
    // Its guard is on the origin still, which is given back by itself.
    let why = refusal(&daemon, &[&create[..], &[&with("0")]].concat());
    assert!(why.contains("--without-cache"), "{why}");
    daemon.verb(&["recover", "--without-cache", &origin]).unwrap();
    daemon.verb(&[&create[..], &[&with("0")]].concat()).unwrap();
    daemon.terminate().unwrap();
}

#[test]
fn a_cache_of_the_kernels_format_is_read() {
    reads_images_of("kernel", 1);
}

/// The same of what a zram with `persist` has left.
#[test]
fn a_zram_whose_data_survive_is_refused_by_name() {
    let (feature, gone) = (feature("zram"), Gone::PersistentZram);
    let dir = tempfile::tempdir().unwrap();
    feature.unpack(&archives(feature).unwrap()[0], dir.path()).unwrap();
    let before = files_of(dir.path());
    let program = millpond(Build::Workspace).unwrap();
    let back = dir.path().join("back.img").display().to_string();
    let daemon = Daemon::start(&program, dir.path(), &[]).unwrap();

    let create = |table: &str| refusal(&daemon, &["create", DEVICE, "--table", table]);
    let why = create(&format!("0 81920 zram zstd 3 backing_dev {back} persist"));
    assert!(why.contains("persist: millpond 0.2 was the last version with this option"), "{why}");
    assert!(why.contains(gone.way_out()) && why.contains("leave the option out"), "{why}");
    let wipe = refusal(&daemon, &["wipe", &back]);
    let refusals = [
        create(&format!("0 81920 zram zstd 2 backing_dev {back}")),
        create(&format!("0 8192 writecache s mem:4M {back} 4096 0")),
        create(&format!("0 8192 writecache s mem:4M {back} 4096 2 format dm")),
        refusal(&daemon, &["inspect", &back]),
        wipe.clone(),
    ];
    for why in &refusals {
        assert!(why.contains(&gone.to_string()) && why.contains(gone.way_out()), "{why}");
        let is_wrong = ["neither", "unknown", "damaged", "is blank", "no cache; "];
        assert!(!is_wrong.iter().any(|word| why.contains(word)), "{why}");
    }
    assert!(files_of(dir.path()) == before, "something was changed");

    let token = wipe.split("--force ").nth(1).unwrap().split('`').next().unwrap();
    daemon.verb(&["wipe", &back, "--force", token]).unwrap();
    let table = format!("0 81920 zram zstd 2 backing_dev {back}");
    daemon.verb(&["create", DEVICE, "--table", &table]).unwrap();
    daemon.terminate().unwrap();
}

#[test]
fn a_volume_is_read() {
    reads_images_of("volume", 1);
}

#[test]
fn all_features_together_killed_at_twenty_points_are_read() {
    reads_images_of("together", 20);
}

/// The previous release at work on new media, with its program where this tree's can replace it.
struct Previous {
    feature: &'static Feature,
    program: PathBuf,
    unpacked: PathBuf,
    daemon: Daemon,
    stamps: Stamps,
    dir: TempDir,
}

impl Previous {
    fn start(feature: &'static Feature, unpacked: &Path, seed: u64) -> Previous {
        let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
        let program = dir.path().join("millpond");
        std::fs::hard_link(unpacked, &program).unwrap();
        feature.make_files(dir.path()).unwrap();
        Previous::lay(feature, program, unpacked, (dir, seed))
    }

    /// This tree's program at work in its place: what it leaves is for the previous one.
    fn start_this(feature: &'static Feature, unpacked: &Path, seed: u64) -> Previous {
        let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
        let program = millpond(Build::Workspace).unwrap();
        feature.make_files(dir.path()).unwrap();
        Previous::lay(feature, program, unpacked, (dir, seed))
    }

    fn lay(
        feature: &'static Feature,
        program: PathBuf,
        unpacked: &Path,
        (dir, seed): (TempDir, u64),
    ) -> Previous {
        let daemon = feature.start(&program, dir.path(), false).unwrap();
        let stamps = Feature::stamps(seed);
        stamps.lay(&mut daemon.connect(DEVICE).unwrap()).unwrap();
        Previous { feature, program, unpacked: unpacked.into(), daemon, stamps, dir }
    }

    /// Puts another program where the daemon was started from. Nothing that a test has open for
    /// writing can be run: so it is no copy.
    fn replace(program: &Path, put: impl FnOnce(&Path) -> std::io::Result<()>) {
        let new = program.with_extension("new");
        put(&new).unwrap();
        std::fs::rename(&new, program).unwrap();
    }

    /// Writes; `act` is called after so many answers, with requests in flight.
    fn write(&mut self, writes: u64, mut act: impl FnMut(&Daemon, &Path) -> After) {
        let (daemon, dir) = (&self.daemon, self.dir.path());
        let written =
            self.feature.write(daemon, dir, &mut self.stamps, writes, || Ok(act(daemon, dir)));
        written.unwrap_or_else(|e| panic!("{e}\n{}", self.daemon.log()));
    }

    /// Kills whoever serves, and has this tree's program recover.
    fn kill_and_read(mut self) {
        self.write(40, |_, dir| {
            kill(dir);
            After::Killed
        });
        self.read();
    }

    fn read(self) {
        self.read_by(&millpond(Build::Workspace).unwrap());
    }

    fn read_by(mut self, program: &Path) {
        if self.feature.keeps_all {
            self.stamps.all_durable();
        }
        let (dir, feature) = (self.dir.path(), self.feature);
        drop(self.daemon);
        let daemon = Daemon::restart(program, dir).unwrap();
        let owed = check_and_go_on(feature, daemon, dir, &mut self.stamps);
        assert!(owed > 0 || !feature.keeps_all, "nothing had to be there: that proves nothing");
    }
}

/// Whether the process runs the file that has its program's name.
fn runs_what_is_installed(dir: &Path) -> bool {
    let exe = std::fs::read_link(format!("/proc/{}/exe", pid(dir).unwrap().as_raw_pid())).unwrap();
    !exe.to_string_lossy().ends_with("(deleted)")
}

/// A successor that is killed so many ms after its start.
fn script(dir: &Path, ms: u64, program: &Path) -> PathBuf {
    let text = format!("(sleep 0.{ms:03}; kill -9 $$) & exec {} \"$@\"", program.display());
    let path = dir.join("successor.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

/// Each feature with two seeds, at a moment that the seed draws.
fn each_feature(mut work: impl FnMut(Previous, u64)) {
    if !has_program() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unpacked = program(folder.path()).unwrap();
    let mut random = Random::new(17);
    for feature in FEATURES.iter().filter(|feature| feature.gone.is_none()) {
        for seed in [1, 2] {
            let writes = 20 + random.below(200);
            println!("{}, seed {seed}, {writes} writes", feature.name);
            work(Previous::start(feature, &unpacked, seed), writes);
        }
    }
}

#[test]
fn what_the_previous_release_was_killed_with_is_recovered() {
    each_feature(|mut old, writes| {
        old.write(writes, |_, dir| {
            kill(dir);
            After::Killed
        });
        old.read();
    });
}

/// The way back: on media where nothing new is used, the previous release finds nothing new. It is
/// not promised before 1.0, and `docs/compatibility.md` says for which versions it holds.
#[test]
fn the_previous_release_reads_what_this_tree_was_killed_with() {
    if !has_program() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unpacked = program(folder.path()).unwrap();
    for feature in FEATURES.iter().filter(|feature| feature.gone.is_none()) {
        println!("{}", feature.name);
        let mut this = Previous::start_this(feature, &unpacked, 4);
        this.write(90, |_, dir| {
            kill(dir);
            After::Killed
        });
        this.read_by(&unpacked);
    }
}

/// A cache that it has made smaller: this tree never does, and opens it.
#[test]
fn a_cache_that_the_previous_release_made_smaller_is_read() {
    if !has_program() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unpacked = program(folder.path()).unwrap();
    let mut old = Previous::start(feature("plain"), &unpacked, 5);
    old.write(80, |_, dir| {
        kill(dir);
        After::Killed
    });
    let (dir, size) = (old.dir.path(), 800 << 10);
    let mut verb = std::process::Command::new(&unpacked);
    verb.arg("--run-dir").arg(dir.join("run")).args(["shrink-cache", "--size", &size.to_string()]);
    verb.arg("--cache").arg(dir.join("cache.img")).arg("--origin").arg(dir.join("origin.img"));
    e2e::process::run(&mut verb, Duration::from_secs(60)).unwrap().ok().unwrap();
    let cache = std::fs::File::options().write(true).open(dir.join("cache.img")).unwrap();
    cache.set_len(size).unwrap();
    old.read();
}

#[test]
fn the_previous_release_hands_over_under_a_client() {
    each_feature(|mut old, writes| {
        let (program, before) = (old.program.clone(), pid(old.dir.path()));
        old.write(writes, |daemon, dir| {
            Previous::replace(&program, |new| symlink(millpond(Build::Workspace).unwrap(), new));
            daemon.verb(&["upgrade"]).unwrap();
            assert!(pid(dir) != before && runs_what_is_installed(dir));
            After::Enough
        });
        old.kill_and_read();
    });
}

/// This tree's program asks for the tables before the previous release stops anything, so that one
/// serves without a pause, and with what it has.
#[test]
fn the_previous_release_keeps_what_this_tree_can_not_open() {
    if !has_program() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unpacked = program(folder.path()).unwrap();
    for (feature, gone) in FEATURES.iter().filter_map(|f| f.gone.map(|gone| (f, gone))) {
        let mut old = Previous::start(feature, &unpacked, 3);
        let (program, before) = (old.program.clone(), pid(old.dir.path()));
        old.write(60, |daemon, dir| {
            Previous::replace(&program, |new| symlink(millpond(Build::Workspace).unwrap(), new));
            let why = refusal(daemon, &["upgrade"]);
            let named = format!("{DEVICE}: ");
            let option = format!("{}: millpond 0.2 was the last version", gone.option());
            assert!(why.contains(&named) && why.contains(&option), "{why}");
            assert!(why.contains(gone.way_out()), "{why}");
            assert!(pid(dir) == before, "it is another process");
            Previous::replace(&program, |new| std::fs::hard_link(&unpacked, new));
            After::Enough
        });
        let log = old.daemon.log();
        assert!(log.contains("before anything is taken over"), "{log}");
        // It goes on, and its own program opens what it leaves.
        old.write(40, |_, dir| {
            kill(dir);
            After::Killed
        });
        if feature.keeps_all {
            old.stamps.all_durable();
        }
        drop(old.daemon);
        let daemon = Daemon::restart(&unpacked, old.dir.path()).unwrap();
        let owed = check_and_go_on(feature, daemon, old.dir.path(), &mut old.stamps);
        assert!(owed > 0, "nothing had to be there: that proves nothing");
    }
}

#[test]
fn the_previous_release_goes_on_when_its_successor_fails() {
    let mut random = Random::new(23);
    let mut number_going_on = 0;
    each_feature(|mut old, writes| {
        let (program, before) = (old.program.clone(), pid(old.dir.path()));
        let (this, unpacked) = (millpond(Build::Workspace).unwrap(), old.unpacked.clone());
        // From the start of the program to the opening of devices.
        let ms = random.below(40);
        let mut went_on = true;
        old.write(writes, |daemon, dir| {
            let successor = script(dir, ms, &this);
            Previous::replace(&program, |new| symlink(successor, new));
            let mut verb = std::process::Command::new(&this);
            verb.args(["--run-dir", dir.join("run").to_str().unwrap(), "upgrade"]);
            let ended = e2e::process::run(&mut verb, Duration::from_secs(60)).unwrap();
            Previous::replace(&program, |new| std::fs::hard_link(&unpacked, new));
            // A successor that is killed at once after it has taken over leaves nobody, and the
            // number of the process before it in the lock.
            went_on = ended.code != 0 && pid(dir) == before && daemon.verb(&["ls"]).is_ok();
            if went_on { After::Enough } else { After::Killed }
        });
        if went_on {
            number_going_on += 1;
            old.kill_and_read();
        } else {
            old.read();
        }
    });
    println!("{number_going_on} went on");
    assert!(number_going_on > 0 || !has_program(), "no successor failed before it had all");
}
