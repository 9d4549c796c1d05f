// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queues of virtual machines on several cores: which core serves which, and that they keep what
//! queues on core 0 keep.
use std::time::Duration;

use e2e::test_bed::TestBed;
use e2e::virtual_machine::{SLOTS, VirtualMachine, kind, range};
use e2e::{clock, pause};
use serde_json::{Value, json};

use crate::vhost_user::{lose_nothing_over_kills, machine, pattern, read, socket, wait_until};

const MIB: u64 = 1 << 20;
const OPTIONS: &str = "vhost_user = './vm'\ncores = 2";
const MAPPED: &str = "0 65536 linear ./disk.img 0";
/// On core 0.
const WHOLE: &str = "0 65536 writecache s ./org.img ./cache1.img 4096 0";
/// One half on each of two cores.
const DIVIDED: &str = "0 131072 zram lz4";

fn two_cores() -> TestBed {
    let files = [("disk.img", 64 * MIB), ("org.img", 32 * MIB), ("cache1.img", 16 * MIB)];
    let devices = [("mapped", MAPPED), ("whole", WHOLE), ("divided", DIVIDED)];
    TestBed::start_with(OPTIONS, &files, &devices)
}

/// The front end of a device, as `clients` lists it.
fn front_end(bed: &TestBed, device: &str) -> Value {
    let all: Value = serde_json::from_str(&bed.verb(&["clients", "-o", "json"])).unwrap();
    let mut all = all.as_array().unwrap().iter();
    all.find(|client| client["device"] == device).cloned().unwrap_or_default()
}

fn is_gone(bed: &TestBed, device: &str) -> bool {
    front_end(bed, device) == Value::Null
}

/// Finishes requests, each of which must succeed.
fn finish_all(machine: &mut VirtualMachine, begun: Vec<(u16, u16)>) {
    for (queue, slot) in begun {
        assert_eq!(machine.finish(queue, slot).unwrap(), 0, "queue {queue}");
    }
}

#[test]
fn queues_are_spread_where_each_core_has_the_device() {
    let bed = two_cores();
    for device in ["mapped", "divided"] {
        let machine = machine(&bed, device, 4);
        let client = front_end(&bed, device);
        assert_eq!(client["queues_by_core"], json!({"0": 2, "1": 2}), "{device}");
        assert_eq!(client["core"], Value::Null, "{device}");
        // The cores take turns.
        machine.stop(1).unwrap();
        machine.stop(3).unwrap();
        let client = front_end(&bed, device);
        assert_eq!(client["queues_by_core"].as_object().unwrap().len(), 1, "{client}");
        assert!(client["core"].is_u64(), "{client}");
        drop(machine);
        wait_until("the front end has gone", || is_gone(&bed, device));
    }
    let _on_core_0 = machine(&bed, "whole", 4);
    let client = front_end(&bed, "whole");
    assert_eq!((&client["queues_by_core"], &client["core"]), (&json!({"0": 4}), &json!(0)));
    // Where core 0 has something to do the only queue of another guest is not on it.
    let _single = machine(&bed, "mapped", 1);
    assert_eq!(front_end(&bed, "mapped")["queues_by_core"], json!({"1": 1}));
}

/// What one queue has written the others read, by whichever core; figures are those of all.
#[test]
fn queues_on_two_cores_see_the_same_device() {
    for device in ["mapped", "divided"] {
        let bed = two_cores();
        let mut machine = machine(&bed, device, 2);
        for round in 0..40_u8 {
            let (writer, reader) = (u16::from(round % 2), u16::from((round + 1) % 2));
            let at = match round % 4 {
                // Across the middle, and odd sectors.
                0 if device == "divided" => 65536 - 64,
                1 => u64::from(round) * 129,
                _ => u64::from(round) * 1024 + 8,
            };
            let data = pattern(round, 65536);
            machine.write(writer, at, &data).unwrap();
            if round % 5 == 0 {
                assert_eq!(machine.request(writer, kind::FLUSH, 0, &[]).unwrap(), 0);
            }
            assert!(read(&mut machine, reader, at, 65536) == data, "{device}: round {round}");
            let zeroes = range(at, 64, 0);
            assert_eq!(machine.request(writer, kind::WRITE_ZEROES, 0, &zeroes).unwrap(), 0);
            let found = read(&mut machine, reader, at, 65536);
            assert!(found[..32768].iter().all(|b| *b == 0), "{device}: round {round}");
            assert!(found[32768..] == data[32768..], "{device}: round {round}");
        }
        let client = front_end(&bed, device);
        assert_eq!(client["queues_by_core"], json!({"0": 1, "1": 1}));
        assert_eq!(client["requests"], json!(40 * 4 + 8));
        assert_eq!(client["written_bytes"], json!(40 * 65536));
        assert_eq!(client["read_bytes"], json!(80 * 65536));
        assert_eq!((&client["requests_in_flight"], &client["errors"]), (&json!(0), &json!(0)));
    }
}

/// A queue stops when its requests in flight have ended, and the queue on the other core goes on.
#[test]
fn a_stopped_queue_of_each_core_loses_nothing() {
    let bed = two_cores();
    let mut machine = machine(&bed, "mapped", 2);
    let mut offered = [0_u32; 2];
    for round in 0..30_u8 {
        let queue = u16::from(round % 2);
        let data = pattern(round, 4096);
        let mut begun = Vec::new();
        for nth in 0..u64::from(SLOTS) {
            // Each second one is behind the kick: it may be taken, or left for later.
            let sector = (u64::from(queue) * 32 + nth) * 8;
            let slot = machine.begin(queue, (kind::WRITE, sector), &data, nth % 2 == 0).unwrap();
            begun.push((queue, slot));
        }
        let base = machine.stop(queue).unwrap();
        offered[usize::from(queue)] += u32::from(SLOTS);
        assert!(base <= offered[usize::from(queue)], "round {round}: base {base}");
        // All that was taken has ended.
        machine.take_used(queue).unwrap();
        let ended = begun.iter().filter(|(_, slot)| machine.is_complete(queue, *slot)).count();
        let left = offered[usize::from(queue)] - base;
        assert_eq!(ended, begun.len() - usize::try_from(left).unwrap(), "round {round}");
        let other = 1 - queue;
        machine.write(other, 4096, &pattern(round, 512)).unwrap();
        offered[usize::from(other)] += 1;
        machine.start(queue).unwrap();
        finish_all(&mut machine, begun);
        for nth in 0..u64::from(SLOTS) {
            let sector = (u64::from(queue) * 32 + nth) * 8;
            assert!(read(&mut machine, other, sector, 4096) == data, "round {round}: {nth}");
            offered[usize::from(other)] += 1;
        }
    }
}

/// Requests of all queues wait while the device is suspended, and go where the new table says: to
/// the disk, which takes data where they are in the guest's memory, or to a cache, which gets
/// copies, as it computes checksums.
#[test]
fn a_reload_is_not_seen_by_queues_on_any_core() {
    let bed = two_cores();
    let [disk, origin, cache] = ["disk.img", "origin.img", "cache.img"].map(|file| bed.path(file));
    bed.make_file("origin.img", 32 * MIB);
    bed.make_file("cache.img", 16 * MIB);
    let other = |round: u8| match round % 3 {
        0 => format!("0 65536 linear {} 65536", disk.display()),
        1 => format!("0 65536 writecache s {} {} 4096 0", origin.display(), cache.display()),
        _ => format!("0 65536 linear {} 0", disk.display()),
    };
    let mut machine = machine(&bed, "mapped", 2);
    for round in 0..20_u8 {
        let begin = |machine: &mut VirtualMachine, first: u16| -> Vec<(u16, u16)> {
            let data = pattern(round, 4096);
            let mut write = |nth: u16| {
                let what = (kind::WRITE, u64::from(nth) * 8);
                (nth % 2, machine.begin(nth % 2, what, &data, true).unwrap())
            };
            (first..first + 20).map(&mut write).collect()
        };
        // Some of these are in flight when it is suspended.
        let before = begin(&mut machine, 0);
        if round % 3 == 2 {
            bed.verb(&["message", "mapped", "0", "flush_on_suspend"]);
        }
        bed.verb(&["suspend", "mapped"]);
        bed.verb(&["load", "mapped", "--table", &other(round)]);
        let held = begin(&mut machine, 20);
        pause(Duration::from_millis(10));
        for queue in 0..2 {
            machine.take_used(queue).unwrap();
        }
        assert!(held.iter().all(|(queue, slot)| !machine.is_complete(*queue, *slot)));
        bed.verb(&["resume", "mapped"]);
        finish_all(&mut machine, before);
        finish_all(&mut machine, held);
        // By each other's queue.
        for nth in 20..40_u16 {
            let found = read(&mut machine, (nth + 1) % 2, u64::from(nth) * 8, 4096);
            assert!(found == pattern(round, 4096), "round {round}: block {nth}");
        }
    }
    assert_eq!(front_end(&bed, "mapped")["queues_by_core"], json!({"0": 1, "1": 1}));
}

#[test]
fn queues_on_every_core_hear_of_a_new_size() {
    let bed = two_cores();
    let mut machine = machine(&bed, "mapped", 2);
    assert_eq!(machine.capacity().unwrap(), 65536);
    for queue in 0..2 {
        assert_eq!(machine.request(queue, kind::READ, 65536, &[0; 512]).unwrap(), 1);
    }
    bed.verb(&["resize", "mapped", "64M"]);
    machine.wait_for_config_change().unwrap();
    assert_eq!(machine.capacity().unwrap(), 131_072);
    for queue in 0..2 {
        machine.write(queue, 131_064, &pattern(9, 4096)).unwrap();
    }
}

/// By an operator, or for what its guest does on one of the cores: the session ends on both, and
/// leaves the device free.
#[test]
fn a_session_on_two_cores_ends_on_both() {
    let mut bed = two_cores();
    for hostile_queue in [None, Some(0), Some(1)] {
        let mut machine = machine(&bed, "mapped", 2);
        for queue in 0..2 {
            machine.write(queue, 0, &pattern(1, 4096)).unwrap();
        }
        let log = bed.daemon().log().len();
        match hostile_queue {
            None => {
                let id = front_end(&bed, "mapped")["id"].as_str().unwrap().to_owned();
                bed.verb(&["disconnect", &id]);
            }
            Some(queue) => {
                machine.set_offered(queue, 1000).unwrap();
                machine.kick(queue).unwrap();
            }
        }
        assert!(machine.is_cut_off(), "{hostile_queue:?}");
        wait_until("the session ends", || is_gone(&bed, "mapped"));
        if let Some(queue) = hostile_queue {
            let cause = format!("queue {queue}: the available index 1000 is too far ahead");
            assert!(bed.daemon().log()[log..].contains(&cause), "{cause}");
        }
        for queue in 0..2 {
            let slot = machine.begin(queue, (kind::READ, 0), &[0; 512], true).unwrap();
            pause(Duration::from_millis(20));
            machine.take_used(queue).unwrap();
            assert!(!machine.is_complete(queue, slot), "{hostile_queue:?}: queue {queue}");
        }
    }
    bed.verb(&["remove", "mapped"]);
    // With queues on both cores.
    let _left = machine(&bed, "divided", 4);
    let begin = clock();
    bed.terminate();
    assert!(clock() - begin < 10.0, "it waits for a guest");
}

#[test]
fn kills_lose_no_request_of_queues_on_two_cores() {
    let files = [("origin.img", 16 * MIB)];
    let table = "0 32768 linear ./origin.img 0";
    let mut bed = TestBed::start_with(OPTIONS, &files, &[("disk", table)]);
    lose_nothing_over_kills(&mut bed, "disk", &|bed| {
        let queues = front_end(bed, "disk")["queues_by_core"].clone();
        assert_eq!(queues.as_object().unwrap().len(), 2, "{queues}");
    });
}

/// The queue on core 1 is of an earlier process, the one on core 0 was never used: the guest is
/// refused, and when it connects again, too.
#[test]
fn a_guest_of_an_earlier_process_is_found_on_any_core() {
    for options in [OPTIONS, "vhost_user = './vm'"] {
        let mut bed = TestBed::start_with(options, &[], &[("ram", "0 8192 linear mem:4M 0")]);
        let mut guest = machine(&bed, "ram", 2);
        guest.write(1, 0, &pattern(7, 4096)).unwrap();
        // A queue that was stopped goes on, and so does a guest that connects again.
        guest.stop(1).unwrap();
        guest.start(1).unwrap();
        assert!(read(&mut guest, 1, 0, 4096) == pattern(7, 4096));
        guest.disconnect();
        guest.connect(&socket(&bed, "ram")).unwrap();
        assert!(read(&mut guest, 1, 0, 4096) == pattern(7, 4096));
        bed.kill();
        bed.start_again();
        for _ in 0..2 {
            assert!(guest.connect(&socket(&bed, "ram")).is_err());
            assert!(guest.is_cut_off());
        }
        let mut fresh = machine(&bed, "ram", 2);
        assert!(read(&mut fresh, 1, 0, 512).iter().all(|b| *b == 0));
    }
}
