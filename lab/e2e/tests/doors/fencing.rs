// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a killed daemon still has under way never lands on what the next one writes: the lock of a
//! leaf falls with its last request, and the next daemon begins with all locks in hand (HO-LF1,
//! HO-LF2, UR-U10).
#![expect(clippy::disallowed_methods, reason = "a daemon that waits needs a thread of its own")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::loops::Loop;
use e2e::mounted::{file, fuse};
use e2e::test_bed::TestBed;
use e2e::virtual_machine::VirtualMachine;
use e2e::{clock, pause};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FlockOperation, flock};

const MIB: u64 = 1 << 20;
/// The flag O_CLOEXEC in `fdinfo`.
const CLOSE_ON_EXEC: i32 = 0o2_000_000;
/// What the log says of a start that waits.
const WAITS: &str = "the start waits for it, ";

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = clock() + 30.0;
    while !holds() {
        assert!(clock() < give_up, "{what}");
        pause(Duration::from_millis(10));
    }
}

/// How often something stands in a daemon's log.
fn logged(bed: &Path, what: &str) -> usize {
    let log = std::fs::read_to_string(bed.join("daemon.log")).unwrap();
    log.matches(what).count()
}

/// The lock of a file, as soon as the kernel has taken it from the process that was killed.
fn locked(path: &Path) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let lock = || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    wait_until("the lock of a killed daemon falls", lock);
    file
}

/// Hears of each read and write of files.
struct Watch(OwnedFd);

impl Watch {
    fn on(paths: &[PathBuf]) -> Watch {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        for path in paths {
            inotify::add_watch(&watch, path, WatchFlags::ACCESS | WatchFlags::MODIFY).unwrap();
        }
        Watch(watch)
    }

    /// Whether there was one since the last call.
    fn has_event(&self) -> bool {
        let mut events = [0; 4096];
        std::iter::from_fn(|| rustix::io::read(&self.0, &mut events).ok()).count() > 0
    }
}

#[test]
fn recovery_begins_with_the_lock_of_each_leaf() {
    let mut bed = TestBed::with_cache(16 * MIB, 8 * MIB, "");
    let leaves = ["origin.img", "cache.img"].map(|name| bed.path(name));
    for (version, nth) in [(1_u8, 0), (2, 1)] {
        let leaf = &leaves[nth];
        bed.connect("wc").write(0, &[version; 4096]).unwrap();
        bed.kill();
        let held = locked(leaf);
        let dir = bed.dir().to_owned();
        // A leaf that it could open was examined: by a read that is thrown away, and a hole beyond
        // its end.
        let (examined, untouched) = leaves.split_at(nth);
        let content = |path: &PathBuf| std::fs::read(path).unwrap();
        let contents: Vec<_> = examined.iter().map(content).collect();
        let (waits, watch) = (logged(&dir, WAITS), Watch::on(untouched));
        std::thread::scope(|scope| {
            let start = scope.spawn(|| bed.start_again());
            wait_until("the daemon waits", || logged(&dir, WAITS) > waits || start.is_finished());
            assert!(!start.is_finished(), "it began while another had {}", leaf.display());
            assert!(!watch.has_event(), "it read or wrote without the lock of {}", leaf.display());
            let is_same = examined.iter().map(content).eq(contents);
            assert!(is_same, "it wrote without the lock of {}", leaf.display());
            drop(held);
            start.join().unwrap();
        });
        assert!(watch.has_event(), "and recovers once it has all of them");
        let log = bed.daemon().log();
        let owner = format!("{}: is in use, by process {}", leaf.display(), std::process::id());
        assert!(log.contains(&owner), "{log}");
        let mut found = [0; 4096];
        bed.connect("wc").read(0, &mut found).unwrap();
        assert_eq!(found, [version; 4096]);
    }
}

/// Requests that are at the disk.
fn is_busy(disk: &Loop) -> bool {
    let name = disk.device().file_name().unwrap().to_str().unwrap();
    let counts = std::fs::read_to_string(format!("/sys/block/{name}/inflight")).unwrap();
    counts.split_whitespace().any(|count| count != "0")
}

/// A disk that takes seconds for a write, longer than an ordinary start waits: a loop device on a
/// file of a daemon whose device is suspended.
#[test]
fn a_daemon_begins_after_the_last_write_of_a_killed_one() {
    if !fuse() {
        return;
    }
    let table = "0 32768 linear ./slow.img 0";
    let below = TestBed::start_mounted(&[("slow.img", 16 * MIB)], &[("slow", table)]);
    let Some(disk) = Loop::on(&file(&below, "slow")) else { return };
    let table = format!("0 32768 linear {} 0", disk.device().display());
    let mut bed = TestBed::start(&[], &[("disk", &table)]);
    let mut client = bed.connect("disk");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    below.verb(&["suspend", "slow"]);
    let writer = std::thread::spawn(move || client.write(0, &[2; 4096]));
    wait_until("the write is at the disk", || is_busy(&disk));
    bed.kill();
    writer.join().unwrap().unwrap_err();
    assert!(is_busy(&disk), "the kill has ended the write: this proves nothing");
    let dir = bed.dir().to_owned();
    let ready = logged(&dir, "millpond: ready");
    let begin = clock();
    std::thread::scope(|scope| {
        let start = scope.spawn(|| bed.start_again());
        // An ordinary start gives up after five seconds.
        while clock() < begin + 6.0 {
            let is_there = logged(&dir, "millpond: ready") > ready || start.is_finished();
            assert!(!is_there, "it began before the last write of the daemon before had landed");
            pause(Duration::from_millis(50));
        }
        below.verb(&["resume", "slow"]);
        start.join().unwrap();
    });
    assert_eq!(logged(&dir, &format!("{WAITS}60 s")), 1, "{}", bed.daemon().log());
    let mut client = bed.connect("disk");
    let mut found = [0; 4096];
    client.read(0, &mut found).unwrap();
    assert_eq!(found, [2; 4096], "the write of the daemon before was under way, and has landed");
    client.write(0, &[3; 4096]).unwrap();
    client.flush().unwrap();
    File::open(below.path("slow.img")).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, [3; 4096], "nothing landed on what its successor wrote");
}

/// The number of each descriptor of a process, where it leads, and its flags.
fn descriptors(pid: u32) -> Vec<(u32, PathBuf, i32)> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let descriptor = |link: PathBuf| {
        let name = link.file_name()?.to_str()?.to_owned();
        // It may have been closed meanwhile.
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{name}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
        let flags = i32::from_str_radix(flags, 8).ok()?;
        Some((name.parse().ok()?, std::fs::read_link(link).ok()?, flags))
    };
    all.filter_map(|entry| descriptor(entry.ok()?.path())).collect()
}

#[test]
fn each_leaf_has_one_descriptor_and_no_child_gets_any() {
    let names = ["disk.img", "origin.img", "cache.img", "back.img", "pmem.img"];
    let bed = TestBed::start_with(
        "vhost_user = './vm'\ncores = 2",
        &names.map(|name| (name, 16 * MIB)),
        &[
            ("disk", "0 32768 linear ./disk.img 0"),
            ("wc", "0 32768 writecache s ./origin.img ./cache.img 4096 0"),
            ("ram", "0 32768 zram lz4 2 backing_dev ./back.img"),
            ("pm", "0 32768 linear pmem:./pmem.img 0"),
        ],
    );
    let mut client = bed.connect("wc");
    client.write(0, &vec![1; 65536]).unwrap();
    let mut machine = VirtualMachine::new(2).unwrap();
    machine.connect(&bed.path("vm/disk.sock")).unwrap();
    machine.write(1, 0, &[1; 4096]).unwrap();
    let all = descriptors(bed.daemon().id());
    // Standard input, output and error, and what this test has from whoever started it.
    let inherited = descriptors(std::process::id());
    let is_own = |one: &&(u32, PathBuf, i32)| one.0 > 2 && !inherited.contains(one);
    let to_children: Vec<_> =
        all.iter().filter(is_own).filter(|(_, _, flags)| flags & CLOSE_ON_EXEC == 0).collect();
    assert!(to_children.is_empty(), "{to_children:?}");
    for name in names {
        let path = bed.path(name).canonicalize().unwrap();
        let count = all.iter().filter(|(_, to, _)| *to == path).count();
        assert_eq!(count, 1, "{name}: {all:?}");
    }
}

/// Its server may still do what a killed daemon has sent: no door hides the kill.
#[test]
fn a_kill_is_hidden_from_no_guest_above_an_nbd_leaf() {
    let below = TestBed::start(
        &[("a.img", 16 * MIB), ("b.img", 16 * MIB)],
        &[("a", "0 32768 linear ./a.img 0"), ("b", "0 32768 linear ./b.img 0")],
    );
    let linear = format!("0 32768 linear {} 0", below.uri("a"));
    let cached = format!("0 32768 writecache s {} ./cache.img 4096 0", below.uri("b"));
    let files = [("cache.img", 8 * MIB), ("disk.img", 16 * MIB)];
    let tables = [("far", &*linear), ("wc", &*cached), ("near", "0 32768 linear ./disk.img 0")];
    let mut bed = TestBed::start_with("vhost_user = './vm'", &files, &tables);
    let socket = |bed: &TestBed, name: &str| bed.path(&format!("vm/{name}.sock"));
    let mut guests = Vec::new();
    for (name, _) in tables {
        let mut machine = VirtualMachine::new(1).unwrap();
        machine.connect(&socket(&bed, name)).unwrap();
        assert_eq!(machine.has_inflight(), name == "near", "{name}");
        machine.write(0, 0, &[7; 4096]).unwrap();
        guests.push((name, machine));
    }
    // What both doors ask about a device.
    let log = bed.daemon().log();
    assert_eq!(log.matches("survives_kill=false").count(), 2, "{log}");
    bed.kill();
    bed.start_again();
    for (name, mut guest) in guests {
        let connected = guest.connect(&socket(&bed, name));
        assert_eq!(connected.is_ok(), name == "near", "{name}: {connected:?}");
    }
    wait_until("the cause in the log", || logged(bed.dir(), "start the guest again") == 2);
}
