// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices as disks of virtual machines: what a guest can ask for, a daemon that is killed, and
//! front ends that are hostile.
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

use e2e::test_bed::TestBed;
use e2e::virtual_machine::{
    DATA, QUEUE_SIZE, SLOTS, VirtualMachine, feature, kind, message, range, send,
};
use e2e::{clock, pause};

const MIB: u64 = 1 << 20;
const OPTIONS: &str = "vhost_user = './vm'";

fn bed(devices: &[(&str, &str)]) -> TestBed {
    TestBed::start_with(OPTIONS, &[("disk.img", 16 * MIB)], devices)
}

fn file_bed() -> TestBed {
    bed(&[("disk", "0 32768 linear ./disk.img 0")])
}

pub(crate) fn socket(bed: &TestBed, device: &str) -> PathBuf {
    bed.path(&format!("vm/{device}.sock"))
}

pub(crate) fn machine(bed: &TestBed, device: &str, queues: u16) -> VirtualMachine {
    let mut machine = VirtualMachine::new(queues).unwrap();
    machine.connect(&socket(bed, device)).unwrap();
    machine
}

pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(u8::try_from(i % 251).unwrap())).collect()
}

pub(crate) fn read(machine: &mut VirtualMachine, queue: u16, sector: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    machine.read(queue, sector, &mut out).unwrap();
    out
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = clock() + 20.0;
    while !holds() {
        assert!(clock() < give_up, "{what}");
        pause(Duration::from_millis(10));
    }
}

#[test]
fn a_guest_reads_what_it_wrote_by_every_queue() {
    for fancy in [true, false] {
        let bed = file_bed();
        let mut machine = VirtualMachine::new(4).unwrap();
        machine.fancy = fancy;
        machine.connect(&socket(&bed, "disk")).unwrap();
        assert_eq!(machine.capacity().unwrap(), 32768);
        for queue in 0..4 {
            let data = pattern(u8::try_from(queue).unwrap(), 65536);
            machine.write(queue, u64::from(queue) * 128, &data).unwrap();
            machine.write(queue, 1000 + u64::from(queue), &data[..512]).unwrap();
        }
        assert_eq!(machine.request(0, kind::FLUSH, 0, &[]).unwrap(), 0);
        let mut client = bed.connect("disk");
        for queue in 0..4 {
            let data = pattern(u8::try_from(queue).unwrap(), 65536);
            let other = 3 - queue;
            assert!(read(&mut machine, other, u64::from(queue) * 128, 65536) == data);
            assert!(read(&mut machine, other, 1000 + u64::from(queue), 512) == data[..512]);
            let mut by_nbd = vec![0; 65536];
            client.read(u64::from(queue) * 65536, &mut by_nbd).unwrap();
            assert!(by_nbd == data, "NBD has the same device");
        }
    }
}

#[test]
fn many_requests_are_in_flight_at_once() {
    let bed = file_bed();
    let mut machine = machine(&bed, "disk", 2);
    let seed = |round: u8, nth: u16| round.wrapping_mul(42).wrapping_add(nth.try_into().unwrap());
    for round in 0..20 {
        let mut begun = Vec::new();
        for nth in 0..2 * SLOTS {
            let (queue, data) = (nth % 2, pattern(seed(round, nth), 4096));
            // One kick for all of a queue: the daemon takes what it finds.
            let last = nth + 2 >= 2 * SLOTS;
            let what = (kind::WRITE, u64::from(nth) * 8);
            begun.push((queue, machine.begin(queue, what, &data, last).unwrap()));
        }
        for (queue, slot) in begun {
            assert_eq!(machine.finish(queue, slot).unwrap(), 0);
        }
    }
    for nth in 0..2 * SLOTS {
        let want = pattern(seed(19, nth), 4096);
        assert!(read(&mut machine, 0, u64::from(nth) * 8, 4096) == want, "{nth}");
    }
}

/// While a core polls it looks by itself at the rings of guests, and asks for a kick before it
/// sleeps. A guest that kicks only then loses no request, whenever it begins one.
#[test]
fn a_guest_that_kicks_when_asked_is_always_heard() {
    for fancy in [true, false] {
        let options = format!("{OPTIONS}\nbusy_poll = '300us'");
        let bed = TestBed::start_with(&options, &[], &[("disk", "0 2048 linear mem:1M 0")]);
        let mut machine = VirtualMachine::new(2).unwrap();
        machine.fancy = fancy;
        machine.connect(&socket(&bed, "disk")).unwrap();
        let mut kicks = 0;
        for nth in 0..3000_u64 {
            let (queue, sector) = (u16::try_from(nth % 2).unwrap(), nth % 1024);
            let slot = machine.begin(queue, (kind::READ, sector), &[0; 512], false).unwrap();
            kicks += u64::from(machine.kick_if_wanted(queue).unwrap());
            // It polls, and at times it sleeps.
            let give_up = clock() + 20.0;
            while nth % 100 < 90 && !machine.is_complete(queue, slot) {
                machine.take_used(queue).unwrap();
                assert!(clock() < give_up, "request {nth} is lost, after {kicks} kicks");
            }
            assert_eq!(machine.finish(queue, slot).unwrap(), 0);
            if nth % 7 == 0 {
                // About as long as a poll takes: shorter, then longer.
                pause(Duration::from_micros(100 + nth % 400));
            }
        }
        println!("{kicks} kicks for 3000 requests");
        assert!(kicks > 0, "at first the daemon sleeps");
    }
}

#[test]
fn a_guest_discards_zeroes_flushes_and_asks_for_the_id() {
    let bed = file_bed();
    let mut machine = machine(&bed, "disk", 1);
    let offered = machine.features();
    for wanted in [feature::FLUSH, feature::DISCARD, feature::WRITE_ZEROES] {
        assert_ne!(offered & wanted, 0, "{offered:#x}");
    }
    machine.write(0, 0, &pattern(1, 65536)).unwrap();
    assert_eq!(machine.request(0, kind::WRITE_ZEROES, 0, &range(8, 8, 1)).unwrap(), 0);
    assert_eq!(machine.request(0, kind::DISCARD, 0, &range(64, 64, 0)).unwrap(), 0);
    let found = read(&mut machine, 0, 0, 65536);
    assert!(found[4096..8192].iter().all(|b| *b == 0));
    assert!(found[..4096] == pattern(1, 65536)[..4096]);
    assert_eq!(machine.request(0, kind::FLUSH, 0, &[]).unwrap(), 0);
    let slot = machine.begin(0, (kind::GET_ID, 0), &[0xee; 20], true).unwrap();
    assert_eq!(machine.finish(0, slot).unwrap(), 0);
    let mut id = [0; 20];
    machine.data(0, slot, &mut id).unwrap();
    assert_eq!(&id[..5], b"disk\0");
    // Beyond the end, a flag that there is not, a type that there is not.
    assert_eq!(machine.request(0, kind::READ, 32768, &[0; 512]).unwrap(), 1);
    assert_eq!(machine.request(0, kind::WRITE, u64::MAX - 1, &[0; 4096]).unwrap(), 1);
    assert_eq!(machine.request(0, kind::DISCARD, 0, &range(32760, 9, 0)).unwrap(), 1);
    assert_eq!(machine.request(0, kind::DISCARD, 0, &range(0, 8, 1)).unwrap(), 2);
    assert_eq!(machine.request(0, 77, 0, &[]).unwrap(), 2);
    assert_eq!(read(&mut machine, 0, 0, 4096), pattern(1, 4096), "and it goes on");
}

#[test]
fn sockets_come_and_go_with_devices() {
    let bed = bed(&[("a", "0 8 zero"), ("b c", "0 8 zero")]);
    let is_there = |name: &str| {
        let meta = std::fs::symlink_metadata(socket(&bed, name));
        meta.is_ok_and(|meta| meta.file_type().is_socket())
    };
    assert!(is_there("a") && is_there(r"b\x20c"));
    bed.verb(&["create", "late", "--table", "0 8 zero"]);
    wait_until("a socket for the new device", || is_there("late"));
    bed.verb(&["rename", "late", "later"]);
    wait_until("a socket of the new name", || is_there("later") && !is_there("late"));
    bed.verb(&["set", "later", "doors", "nbd"]);
    wait_until("no socket for a device that has no such door", || !is_there("later"));
    bed.verb(&["set", "later", "doors", "nbd,vhost-user"]);
    wait_until("and one again", || is_there("later"));
    let machine = machine(&bed, "later", 1);
    let in_use = bed.daemon().try_verb(&["remove", "later"]).unwrap();
    assert_eq!(in_use.code, 4, "{in_use:?}");
    assert!(bed.verb(&["clients"]).contains("vhost1 "));
    drop(machine);
    wait_until("the front end has gone", || !bed.verb(&["clients"]).contains("vhost1 "));
    bed.verb(&["remove", "later"]);
    wait_until("no socket for a removed device", || !is_there("later"));
}

#[test]
fn a_guest_hears_of_a_new_size() {
    let bed = bed(&[("disk", "0 16384 linear ./disk.img 0")]);
    let mut machine = machine(&bed, "disk", 1);
    assert_eq!(machine.capacity().unwrap(), 16384);
    assert_eq!(machine.request(0, kind::READ, 16384, &[0; 512]).unwrap(), 1);
    bed.verb(&["resize", "disk", "16M"]);
    machine.wait_for_config_change().unwrap();
    assert_eq!(machine.capacity().unwrap(), 32768);
    machine.write(0, 32760, &pattern(9, 4096)).unwrap();
}

#[test]
fn a_read_only_device_takes_no_writes_of_a_guest() {
    let bed = file_bed();
    bed.verb(&["set", "disk", "ro", "1"]);
    let mut machine = machine(&bed, "disk", 1);
    let writes = feature::DISCARD | feature::WRITE_ZEROES;
    assert_eq!(machine.features() & (feature::READ_ONLY | writes), feature::READ_ONLY);
    assert_eq!(machine.request(0, kind::WRITE, 0, &[1; 512]).unwrap(), 1);
    assert_eq!(machine.request(0, kind::DISCARD, 0, &range(0, 8, 0)).unwrap(), 1);
    assert!(read(&mut machine, 0, 0, 512).iter().all(|b| *b == 0));
}

#[test]
fn a_queue_that_was_stopped_goes_on_where_it_was() {
    let bed = file_bed();
    let mut machine = machine(&bed, "disk", 2);
    for sector in 0..10 {
        machine.write(0, sector, &pattern(3, 512)).unwrap();
    }
    assert_eq!(machine.stop(0).unwrap(), 10);
    machine.write(1, 100, &pattern(4, 512)).unwrap();
    let slot = machine.begin(0, (kind::READ, 9), &[0; 512], true).unwrap();
    machine.start(0).unwrap();
    assert_eq!(machine.finish(0, slot).unwrap(), 0, "the kick in between was not needed");
    assert_eq!(machine.stop(0).unwrap(), 11);
}

/// A write cache whose completed writes survive a kill, and a guest with several queues that never
/// flushes.
#[test]
fn kills_lose_no_request_of_a_guest_and_repeat_none() {
    let files = [("origin.img", 16 * MIB), ("cache.img", 8 * MIB)];
    let table = "0 32768 writecache s ./origin.img ./cache.img 4096 0";
    let mut bed = TestBed::start_with(OPTIONS, &files, &[("wc", table)]);
    // Its journal is in memory that outlives the process.
    lose_nothing_over_kills(&mut bed, "wc", &|_| ());
}

/// A guest with three queues at a device whose completed writes survive a kill. `check` sees each
/// process while it serves the guest.
pub(crate) fn lose_nothing_over_kills(bed: &mut TestBed, device: &str, check: &dyn Fn(&TestBed)) {
    const WRITES: u64 = 400;
    let mut machine = machine(bed, device, 3);
    assert!(machine.has_inflight(), "its completed writes survive");
    check(bed);
    let mut version = vec![0_u8; 256];
    for round in 0..4_u8 {
        let mut begun = Vec::new();
        let mut kill_at = u64::from(round) * 37 + 23;
        let mut written = 0;
        while written < WRITES {
            // A queue each has blocks of its own: their requests may run in any order.
            for queue in 0..3_u16 {
                let block = (written / 3 * 3 + u64::from(queue)) % 255;
                let own = usize::try_from(block).unwrap();
                let busy = begun.iter().any(|(_, _, other)| *other == own);
                if busy || begun.len() >= usize::from(SLOTS) {
                    let (queue, slot, _) = begun.remove(0);
                    assert_eq!(machine.finish(queue, slot).unwrap(), 0);
                    continue;
                }
                version[own] = version[own].wrapping_add(1);
                let data = pattern(version[own], 4096);
                let slot = machine.begin(queue, (kind::WRITE, block * 8), &data, true).unwrap();
                begun.push((queue, slot, own));
                written += 1;
            }
            if written > kill_at {
                kill_at = u64::MAX;
                bed.kill();
                bed.start_again();
                machine.connect(&socket(bed, device)).unwrap();
                check(bed);
            }
        }
        // Those in flight at the kill are among them: `finish` fails for one completed twice.
        for (queue, slot, _) in begun {
            assert_eq!(machine.finish(queue, slot).unwrap(), 0);
        }
        for (block, version) in version.iter().enumerate().filter(|(_, v)| **v > 0) {
            let found = read(&mut machine, 0, block as u64 * 8, 4096);
            assert!(found == pattern(*version, 4096), "round {round}: block {block}");
        }
    }
}

/// qemu 10.0 asks for notes for 128 entries; firmware uses rings of 256 then, and Linux of 1024.
#[test]
fn kills_lose_no_request_of_rings_larger_than_the_notes() {
    for queue_size in [256, 1024] {
        let mut bed = file_bed();
        let mut machine = VirtualMachine::new(2).unwrap();
        (machine.inflight_size, machine.queue_size) = (128, queue_size);
        machine.connect(&socket(&bed, "disk")).unwrap();
        assert!(machine.has_inflight(), "its completed writes survive");
        for round in 0..3_u8 {
            let mut begun = Vec::new();
            for nth in 0..2 * SLOTS {
                let what = (kind::WRITE, u64::from(nth) * 8);
                let data = pattern(round ^ nth.to_le_bytes()[0], 4096);
                begun.push((nth % 2, machine.begin(nth % 2, what, &data, true).unwrap()));
            }
            bed.kill();
            bed.start_again();
            machine.connect(&socket(&bed, "disk")).unwrap();
            // It fails for one completed twice.
            for (queue, slot) in begun {
                assert_eq!(machine.finish(queue, slot).unwrap(), 0, "{queue_size}, {round}");
            }
            for nth in 0..2 * SLOTS {
                let found = read(&mut machine, 0, u64::from(nth) * 8, 4096);
                assert!(
                    found == pattern(round ^ nth.to_le_bytes()[0], 4096),
                    "{queue_size}: {nth}"
                );
            }
        }
    }
}

/// A front end keeps its notes over an update of the program: those of before have no room for
/// rings that are larger than it asked for.
#[test]
fn a_ring_without_room_for_its_notes_is_served_and_logged() {
    let mut bed = file_bed();
    let connect =
        |bed: &TestBed, machine: &mut VirtualMachine| machine.connect(&socket(bed, "disk"));
    let mut fits = VirtualMachine::new(1).unwrap();
    fits.queue_size = 128;
    fits.keep_small_notes(128).unwrap();
    connect(&bed, &mut fits).unwrap();
    let slot = fits.begin(0, (kind::WRITE, 0), &pattern(1, 4096), true).unwrap();
    bed.kill();
    bed.start_again();
    connect(&bed, &mut fits).unwrap();
    assert_eq!(fits.finish(0, slot).unwrap(), 0);
    assert!(!bed.daemon().log().contains("has no room"));
    drop(fits);
    let mut larger = VirtualMachine::new(1).unwrap();
    larger.queue_size = 256;
    larger.keep_small_notes(128).unwrap();
    connect(&bed, &mut larger).unwrap();
    larger.write(0, 8, &pattern(2, 4096)).unwrap();
    let warning = "notes of requests in flight has no room for a ring of 256 entries";
    wait_until("the warning", || bed.daemon().log().contains(warning));
    // It may go on with this process, and not with the next one, until it is started again.
    larger.disconnect();
    connect(&bed, &mut larger).unwrap();
    assert!(read(&mut larger, 0, 8, 4096) == pattern(2, 4096));
    bed.kill();
    bed.start_again();
    for _ in 0..2 {
        assert!(connect(&bed, &mut larger).is_err());
        assert!(larger.is_cut_off());
    }
    wait_until("the cause", || {
        bed.daemon().log().contains("in flight is not noted: start the guest")
    });
    let mut fresh = VirtualMachine::new(1).unwrap();
    fresh.queue_size = 256;
    connect(&bed, &mut fresh).unwrap();
    assert!(read(&mut fresh, 0, 8, 4096) == pattern(2, 4096));
}

/// What was acknowledged is gone with the process: the guest must not go on as if it were there.
#[test]
fn a_device_that_forgets_takes_no_guest_of_an_earlier_process() {
    let mut bed = bed(&[("ram", "0 8192 linear mem:4M 0")]);
    let mut guest = machine(&bed, "ram", 1);
    assert!(!guest.has_inflight());
    guest.write(0, 0, &pattern(7, 4096)).unwrap();
    // Of this process it may go on.
    guest.disconnect();
    guest.connect(&socket(&bed, "ram")).unwrap();
    assert_eq!(read(&mut guest, 0, 0, 4096), pattern(7, 4096));
    bed.kill();
    bed.start_again();
    assert!(guest.connect(&socket(&bed, "ram")).is_err());
    assert!(guest.is_cut_off());
    wait_until("the cause in the log", || bed.daemon().log().contains("start the guest again"));
    let mut fresh = machine(&bed, "ram", 1);
    assert!(read(&mut fresh, 0, 0, 512).iter().all(|b| *b == 0));
}

#[test]
fn a_restart_of_the_daemon_is_not_seen_by_the_guest() {
    let mut bed = file_bed();
    let mut machine = machine(&bed, "disk", 2);
    machine.write(1, 5, &pattern(5, 512)).unwrap();
    bed.terminate();
    assert!(!socket(&bed, "disk").exists());
    let slot = machine.begin(0, (kind::READ, 5), &[0; 512], true).unwrap();
    bed.start_again();
    machine.connect(&socket(&bed, "disk")).unwrap();
    assert_eq!(machine.finish(0, slot).unwrap(), 0);
    let mut found = [0; 512];
    machine.data(0, slot, &mut found).unwrap();
    assert!(found[..] == pattern(5, 512));
}

/// Each does something that can't be; the daemon must end the session, and serve others.
type Hostile = (&'static str, fn(&mut VirtualMachine));

fn bad_descriptor(machine: &VirtualMachine, buf: (u64, u32), flags: u16, next: u16) {
    machine.descriptor(machine.place(0), 0, buf, flags, next).unwrap();
}

fn offer_first(machine: &mut VirtualMachine) {
    machine.offer(0, 0).unwrap();
    machine.kick(0).unwrap();
}

const HOSTILE: [Hostile; 14] = [
    ("too far ahead", |machine| {
        machine.set_offered(0, QUEUE_SIZE + 1).unwrap();
        machine.kick(0).unwrap();
    }),
    ("there is no descriptor 64", |machine| {
        machine.offer(0, QUEUE_SIZE).unwrap();
        machine.kick(0).unwrap();
    }),
    ("too long", |machine| {
        bad_descriptor(machine, (0, 16), 1, 0);
        offer_first(machine);
    }),
    ("has no bytes", |machine| {
        bad_descriptor(machine, (0, 0), 0, 0);
        offer_first(machine);
    }),
    ("not in the guest's memory", |machine| {
        bad_descriptor(machine, (1 << 40, 16), 0, 0);
        offer_first(machine);
    }),
    ("not in the guest's memory", |machine| {
        bad_descriptor(machine, (u64::MAX - (1 << 20) - 4, 16), 0, 0);
        offer_first(machine);
    }),
    ("an indirect table is wrong", |machine| {
        bad_descriptor(machine, (0, 24), 4, 0);
        offer_first(machine);
    }),
    ("no header, or no status", |machine| {
        bad_descriptor(machine, (0, 16), 0, 0);
        offer_first(machine);
    }),
    ("comes after a writable one", |machine| {
        let table = machine.place(0);
        machine.descriptor(table, 0, (0, 16), 3, 1).unwrap();
        machine.descriptor(table, 1, (0, 16), 0, 0).unwrap();
        offer_first(machine);
    }),
    ("its file was cut", |machine| {
        machine.memory().set_len(4096).unwrap();
        machine.kick(0).unwrap();
    }),
    ("is not known", |machine| {
        send(machine.socket().unwrap(), 4711, 1, &[], &[]).unwrap();
    }),
    ("at most 512 are allowed", |machine| {
        send(machine.socket().unwrap(), message::SET_FEATURES, 1, &[0; 513], &[]).unwrap();
    }),
    ("is no eventfd", |machine| {
        let null = std::fs::File::open("/dev/null").unwrap();
        let number = 1_u64.to_le_bytes();
        let fds = [null.as_fd()];
        send(machine.socket().unwrap(), message::SET_VRING_KICK, 1, &number, &fds).unwrap();
    }),
    ("neither on tmpfs nor on hugetlbfs", |machine| {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let table: Vec<u8> =
            [1, 0, 4096, 0, 0].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let fds = [file.as_fd()];
        send(machine.socket().unwrap(), message::SET_MEM_TABLE, 1, &table, &fds).unwrap();
    }),
];

#[test]
fn a_hostile_guest_ends_its_own_session_only() {
    let bed =
        bed(&[("bad", "0 16384 linear ./disk.img 0"), ("good", "0 16384 linear ./disk.img 16384")]);
    let mut good = machine(&bed, "good", 1);
    for (nth, (cause, attack)) in HOSTILE.iter().enumerate() {
        let before = bed.daemon().log().len();
        let mut machine = VirtualMachine::new(2).unwrap();
        machine.fancy = false;
        machine.connect(&socket(&bed, "bad")).unwrap();
        machine.write(1, 0, &pattern(1, 4096)).unwrap();
        attack(&mut machine);
        assert!(machine.is_cut_off(), "{nth}: {cause}");
        wait_until(&format!("{nth}: `{cause}` in the log"), || {
            let log = bed.daemon().log();
            let lines: Vec<&str> =
                log[before..].lines().filter(|line| line.contains("session ended")).collect();
            assert!(lines.len() <= 1, "one line, not {lines:?}");
            lines.first().is_some_and(|line| line.contains(cause))
        });
        good.write(0, nth as u64, &pattern(2, 512)).unwrap();
    }
    let mut machine = machine(&bed, "bad", 1);
    assert!(read(&mut machine, 0, 0, 4096) == pattern(1, 4096));
    assert!(bed.daemon().is_running());
}

/// Pages of data that are cut off, whether the daemon or the kernel gets to them: the session ends,
/// and nothing else.
#[test]
fn data_that_were_cut_off_end_the_session_only() {
    let bed = bed(&[
        ("disk", "0 16384 linear ./disk.img 0"),
        ("ram", "0 16384 linear mem:8M 0"),
        ("null", "0 16384 linear null:8M 0"),
        ("compressed", "0 16384 zram lz4"),
        ("good", "0 16384 linear ./disk.img 16384"),
    ]);
    let mut good = machine(&bed, "good", 1);
    for device in ["disk", "ram", "null", "compressed"] {
        for (kind, queue) in [(kind::READ, 0), (kind::WRITE, 1)] {
            // Nothing of a null device is read to write it.
            if (device, kind) == ("null", kind::WRITE) {
                continue;
            }
            let before = bed.daemon().log().len();
            let mut machine = machine(&bed, device, 2);
            machine.write(queue, 0, &pattern(3, 4096)).unwrap();
            // The rings stay.
            let slot = machine.begin(queue, (kind, 0), &[0; 8192], false).unwrap();
            machine.memory().set_len(DATA).unwrap();
            machine.kick(queue).unwrap();
            assert!(machine.is_cut_off(), "{device} {kind}");
            assert!(!machine.is_complete(queue, slot), "{device} {kind}");
            wait_until(&format!("{device} {kind}: the cause is in the log"), || {
                let log = bed.daemon().log();
                log[before..].contains("memory of the guest is gone: its file was cut")
            });
            good.write(0, 0, &pattern(4, 512)).unwrap();
        }
        let mut next = machine(&bed, device, 1);
        next.write(0, 0, &pattern(5, 4096)).unwrap();
        let expected = if device == "null" { vec![0; 4096] } else { pattern(5, 4096) };
        assert!(read(&mut next, 0, 0, 4096) == expected, "{device}");
    }
}

/// Rings and tables of random bytes: whatever they mean, the daemon goes on.
#[test]
fn random_rings_do_not_disturb_the_daemon() {
    let bed = file_bed();
    let mut random = e2e::stamp::Random::new(11);
    for _ in 0..60 {
        let mut machine = VirtualMachine::new(1).unwrap();
        machine.fancy = false;
        machine.connect(&socket(&bed, "disk")).unwrap();
        let likely = |random: &mut e2e::stamp::Random, below: u64| match random.below(10) {
            0 => random.below(u64::from(u32::MAX)),
            _ => random.below(below),
        };
        for n in 0..QUEUE_SIZE {
            let address = likely(&mut random, 4 * MIB);
            let len = u32::try_from(likely(&mut random, 4096)).unwrap();
            let flags = u16::try_from(random.below(8)).unwrap();
            let next = u16::try_from(random.below(u64::from(QUEUE_SIZE) + 2)).unwrap();
            machine.descriptor(machine.place(0), n, (address, len), flags, next).unwrap();
        }
        for _ in 0..8 {
            let head = u16::try_from(random.below(QUEUE_SIZE.into())).unwrap();
            machine.offer(0, head).unwrap();
        }
        machine.kick(0).unwrap();
        pause(Duration::from_millis(1));
    }
    let mut machine = machine(&bed, "disk", 1);
    machine.write(0, 0, &pattern(1, 512)).unwrap();
    assert!(bed.daemon().is_running());
}
