// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live upgrade with virtual machines: front ends keep their connections, and guests notice a
//! pause.
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::daemon::Daemon;
use e2e::test_bed::TestBed;
use e2e::virtual_machine::{SLOTS, VirtualMachine, kind, message, receive, send_bytes};
use e2e::{clock, pause};
use serde_json::Value;

use crate::upgrade::{answers, is_root, pid, script, upgrade};
use crate::vhost_user::{machine, pattern, read, socket, wait_until};

const MIB: u64 = 1 << 20;
const OPTIONS: &str = "vhost_user = './vm'\ncores = 2";
const CACHE: &str = "0 65536 writecache s ./origin.img ./cache.img 4096 0";
/// Blocks that a guest writes.
const BLOCKS: usize = 240;

fn bed() -> TestBed {
    let files = [("origin.img", 32 * MIB), ("cache.img", 16 * MIB), ("disk.img", 16 * MIB)];
    let devices = [("wc", CACHE), ("disk", "0 32768 linear ./disk.img 0")];
    TestBed::start_with(OPTIONS, &files, &devices)
}

/// The number of a device's front end in its door.
fn front_end(bed: &TestBed, device: &str) -> Value {
    let all: Value = serde_json::from_str(&bed.verb(&["clients", "-o", "json"])).unwrap();
    let mut all = all.as_array().unwrap().iter();
    all.find(|client| client["device"] == device).cloned().unwrap_or_default()
}

/// A guest that writes blocks with versions, reads them and flushes, until it is told to stop.
struct Load {
    machine: VirtualMachine,
    version: Vec<u8>,
    /// Requests in flight: queue, slot, when it was begun, and the block that is written.
    begun: Vec<(u16, u16, f64, Option<usize>)>,
    /// The longest request since it was asked last, seconds.
    slowest: f64,
    requests: u64,
}

impl Load {
    fn new(machine: VirtualMachine) -> Load {
        let version = vec![0; BLOCKS];
        Load { machine, version, begun: Vec::new(), slowest: 0.0, requests: 0 }
    }

    fn finish_one(&mut self) {
        let (queue, slot, since, _) = self.begun.remove(0);
        assert_eq!(self.machine.finish(queue, slot).unwrap(), 0, "queue {queue}");
        self.slowest = self.slowest.max(clock() - since);
        self.requests += 1;
    }

    fn step(&mut self, nth: usize) {
        let queue = u16::try_from(nth % 3).unwrap();
        let block = nth * 7 % BLOCKS;
        if nth % 50 == 49 {
            let slot = self.machine.begin(queue, (kind::FLUSH, 0), &[], true).unwrap();
            self.begun.push((queue, slot, clock(), None));
        }
        while self.begun.len() >= usize::from(SLOTS) - 1
            || self.begun.iter().any(|(_, _, _, other)| *other == Some(block))
        {
            self.finish_one();
        }
        if nth.is_multiple_of(11) {
            self.check(block);
        }
        self.version[block] = self.version[block].wrapping_add(1);
        let data = pattern(self.version[block], 4096);
        let what = (kind::WRITE, block as u64 * 8);
        let slot = self.machine.begin(queue, what, &data, true).unwrap();
        self.begun.push((queue, slot, clock(), Some(block)));
    }

    fn check(&mut self, block: usize) {
        let version = self.version[block];
        if version > 0 {
            let found = read(&mut self.machine, 0, block as u64 * 8, 4096);
            assert!(found == pattern(version, 4096), "block {block} is not of version {version}");
        }
    }

    fn check_all(&mut self) {
        while !self.begun.is_empty() {
            self.finish_one();
        }
        (0..BLOCKS).for_each(|block| self.check(block));
    }
}

/// Works while `operator` runs; then all that was written has to be there.
fn work_during<T: Send>(load: &mut Load, operator: impl FnOnce() -> T + Send) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let operator = scope.spawn(|| {
            let done = operator();
            is_over.store(true, Ordering::Relaxed);
            done
        });
        let mut nth = usize::try_from(load.requests).unwrap();
        while !is_over.load(Ordering::Relaxed) && !operator.is_finished() {
            load.step(nth);
            nth += 1;
        }
        load.check_all();
        operator.join().unwrap()
    })
}

fn part(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

#[test]
fn a_guest_sees_a_pause_of_an_upgrade_and_no_error() {
    let upgrades = std::env::var("MILLPOND_UPGRADES").ok().and_then(|n| n.parse().ok());
    let upgrades: usize = upgrades.unwrap_or(3);
    let bed = bed();
    // Queues of the file are served by two cores, those of the cache by core 0.
    for device in ["disk", "wc"] {
        let mut load = Load::new(machine(&bed, device, 3));
        let before = front_end(&bed, device);
        let (mut pauses, mut waits) = (Vec::new(), Vec::new());
        for nth in 0..upgrades {
            let old = pid(&bed);
            load.slowest = 0.0;
            let done = work_during(&mut load, || {
                pause(Duration::from_millis((nth as u64 * 37) % 60));
                let done = upgrade(&bed, &[]);
                pause(Duration::from_millis(20));
                done
            });
            assert_ne!(pid(&bed), old, "another process answers");
            assert_eq!(done["sessions"], 1, "{done}");
            pauses.push(done["successor"]["pause_ms"].as_f64().unwrap());
            waits.push(load.slowest * 1000.0);
        }
        let after = front_end(&bed, device);
        for same in ["id", "pid", "queues_by_core"] {
            assert_eq!(after[same], before[same], "{device}: {same}");
        }
        assert!(after["requests"].as_u64().unwrap() >= load.requests, "{after}");
        assert_eq!((&after["errors"], &after["requests_in_flight"]), (&0.into(), &0.into()));
        for (what, all) in [("pauses", &mut pauses), ("slowest requests", &mut waits)] {
            all.sort_unstable_by(f64::total_cmp);
            let (median, p99, most) = (part(all, 50), part(all, 99), part(all, 100));
            println!(
                "{device}: {upgrades} upgrades: {what} of {median:.1} ms (p50), {p99:.1} ms \
                 (p99), {most:.1} ms (max)"
            );
        }
        // It is a session like any other: it ends, and another one begins.
        let mut machine = load.machine;
        machine.disconnect();
        machine.connect(&socket(&bed, device)).unwrap();
        assert!(read(&mut machine, 1, 0, 4096) == pattern(load.version[0], 4096));
        drop(machine);
        wait_until("the front end has gone", || front_end(&bed, device) == Value::Null);
    }
}

/// HO-UP1, HO-UP2.
#[test]
fn a_guest_goes_on_after_an_upgrade_that_fails() {
    if !is_root() {
        return;
    }
    let bed = bed();
    let program = bed.daemon().command(&[]);
    let program = program.get_program().to_str().unwrap().to_owned();
    let mut load = Load::new(machine(&bed, "wc", 3));
    let before = pid(&bed);
    for text in [
        "exit 7".to_owned(),
        "sleep 60".to_owned(),
        // Its devices are refused: the clients are paused then.
        format!("exec {program} \"$@\" --memory 1M"),
        // It is killed at some moment: it takes twice as long to start and to open the devices.
        format!("(sleep 0.012; kill -9 $$) & exec {program} \"$@\""),
        format!("(sleep 0.05; kill -9 $$) & exec {program} \"$@\" --memory 1M"),
    ] {
        let binary = script(&bed, &text);
        let refused = work_during(&mut load, || {
            let words = ["upgrade", "--timeout", "2s", "--binary", &binary];
            let refused = bed.daemon().try_verb(&words).unwrap();
            pause(Duration::from_millis(20));
            refused
        });
        assert_ne!(refused.code, 0, "{text}");
        assert_eq!(pid(&bed), before, "{text}: the same process answers");
    }
    assert_eq!(front_end(&bed, "wc")["id"], "vhost1");
    upgrade(&bed, &[]);
    work_during(&mut load, || pause(Duration::from_millis(50)));
    assert_eq!(front_end(&bed, "wc")["id"], "vhost1");
}

/// A message of the front end that has come in part, with its descriptor, goes on in the successor.
#[test]
fn half_a_message_of_a_front_end_crosses() {
    let bed = bed();
    let mut guest = machine(&bed, "disk", 1);
    guest.write(0, 8, &pattern(3, 4096)).unwrap();
    let ask = [message::GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
    // The number of the queue, whose new eventfd is the one that it has.
    let call = [message::SET_VRING_CALL, 1, 8, 0, 0].map(u32::to_le_bytes).concat();
    for (bytes, at) in [(&ask, 5), (&call, 4), (&call, 12), (&call, 17)] {
        let mut front_end = guest.socket().unwrap();
        let event = guest.events(0).1.as_fd();
        let with: &[_] = if *bytes == call { &[event] } else { &[] };
        send_bytes(front_end, &bytes[..at], with).unwrap();
        upgrade(&bed, &[]);
        front_end.write_all(&bytes[at..]).unwrap();
        if *bytes == ask {
            receive(front_end, message::GET_FEATURES).unwrap();
        }
        assert!(read(&mut guest, 0, 8, 4096) == pattern(3, 4096), "and calls arrive");
    }
    assert_eq!(front_end(&bed, "disk")["id"], "vhost1");
}

/// What the successor notes of requests in flight is right: it is killed, and the next daemon goes
/// on with them.
#[test]
fn a_kill_after_an_upgrade_loses_no_request_of_a_guest() {
    let bed = bed();
    let program = bed.daemon().command(&[]);
    let program = program.get_program().to_str().unwrap().to_owned();
    let mut guest = machine(&bed, "wc", 2);
    let mut again: Option<Daemon> = None;
    for round in 0..4_u8 {
        upgrade(&bed, &[]);
        let mut begun = Vec::new();
        for nth in 0..SLOTS {
            let what = (kind::WRITE, u64::from(nth) * 8);
            begun.push(guest.begin(nth % 2, what, &pattern(round, 4096), true).unwrap());
        }
        let pid = i32::try_from(pid(&bed)).ok().and_then(rustix::process::Pid::from_raw).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        wait_until("the daemon is gone", || !answers(&bed));
        drop(again.take());
        again = Some(Daemon::restart(program.as_ref(), bed.dir()).unwrap());
        guest.connect(&socket(&bed, "wc")).unwrap();
        for (nth, slot) in (0..SLOTS).zip(begun) {
            assert_eq!(guest.finish(nth % 2, slot).unwrap(), 0, "round {round}");
        }
        for nth in 0..SLOTS {
            let found = read(&mut guest, 0, u64::from(nth) * 8, 4096);
            assert!(found == pattern(round, 4096), "round {round}: {nth}");
        }
    }
    drop(again);
}

/// A device that would forget in a kill keeps what it has in an upgrade; one whose data end with
/// the process takes no guest that believes to have written there.
#[test]
fn guests_go_on_where_their_data_cross() {
    let paged = ("paged", "0 8192 buffered ./disk.img 0");
    let bed = TestBed::start_with(OPTIONS, &[("disk.img", 16 * MIB)], &[paged]);
    let mut guest = machine(&bed, "paged", 2);
    guest.write(1, 16, &pattern(1, 4096)).unwrap();
    upgrade(&bed, &[]);
    assert!(read(&mut guest, 0, 16, 4096) == pattern(1, 4096));
    // It connects again: to the next process, too.
    for _ in 0..2 {
        guest.disconnect();
        upgrade(&bed, &[]);
        guest.connect(&socket(&bed, "paged")).unwrap();
        assert!(read(&mut guest, 0, 16, 4096) == pattern(1, 4096));
    }
    bed.verb(&["create", "scratch", "--table", "0 2048 linear mem:1M 0"]);
    let mut lost = machine(&bed, "scratch", 1);
    lost.write(0, 0, &pattern(2, 512)).unwrap();
    upgrade(&bed, &["--force", "scratch"]);
    assert!(lost.is_cut_off(), "what it has written is gone");
    wait_until("the cause in the log", || bed.daemon().log().contains("start the guest again"));
}
