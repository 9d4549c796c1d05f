// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD sessions on several cores: which core serves which, and that they keep what a session on
//! core 0 keeps.
#![expect(clippy::disallowed_methods, reason = "clients that wait need threads of their own")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use e2e::client::Client;
use e2e::process::output;
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const MAPPED: &str = "0 131072 linear ./disk.img 0";
/// On core 0.
const WHOLE: &str = "0 65536 writecache s ./org1.img ./cache1.img 4096 0";
/// One half on each of two cores.
const DIVIDED: &str = "0 131072 zram lz4";

fn two_cores() -> TestBed {
    let files = [("disk.img", 64 * MIB), ("org1.img", 32 * MIB), ("cache1.img", 16 * MIB)];
    let devices = [("mapped", MAPPED), ("whole", WHOLE), ("divided", DIVIDED)];
    TestBed::start_with("cores = 2", &files, &devices)
}

/// The clients of a device.
fn clients_of(bed: &TestBed, device: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(&bed.verb(&["clients", "-o", "json"])).unwrap();
    let all = all.as_array().unwrap();
    all.iter().filter(|client| client["device"] == device).cloned().collect()
}

fn cores(clients: &[Value]) -> Vec<u64> {
    let mut cores: Vec<u64> = clients.iter().map(|c| c["core"].as_u64().unwrap()).collect();
    cores.sort_unstable();
    cores
}

#[test]
fn sessions_are_spread_where_the_device_is_on_every_core() {
    let bed = two_cores();
    let begin = |device: &str| -> Vec<Client> { (0..4).map(|_| bed.connect(device)).collect() };
    for (device, expected) in [("mapped", [0, 0, 1, 1]), ("divided", [0, 0, 1, 1])] {
        let sessions = begin(device);
        assert_eq!(cores(&clients_of(&bed, device)), expected, "{device}");
        drop(sessions);
        // A session counts no more when it has ended.
        let begun = clock();
        while !clients_of(&bed, device).is_empty() {
            assert!(clock() - begun < 20.0, "sessions do not end");
            pause(Duration::from_millis(10));
        }
    }
    let _sessions = begin("whole");
    assert_eq!(cores(&clients_of(&bed, "whole")), [0, 0, 0, 0]);
    let _sessions = begin("mapped");
    assert_eq!(cores(&clients_of(&bed, "mapped")), [1, 1, 1, 1], "core 0 serves four of `whole`");
}

/// What one session has written the other one reads, by whichever core.
#[test]
fn sessions_on_two_cores_see_the_same_device() {
    for device in ["mapped", "divided"] {
        let bed = two_cores();
        let mut both = [bed.connect(device), bed.connect(device)];
        assert_eq!(cores(&clients_of(&bed, device)), [0, 1], "{device}");
        let mut data = vec![0; 128 << 10];
        for round in 0..40_u64 {
            let [writer, reader] = &mut both;
            // Across the middle, and odd sectors.
            let at = match round % 4 {
                0 => (32 << 20) - (64 << 10),
                1 => round << 20,
                2 => (round << 20) + 512,
                _ => (round << 19) + 4096,
            };
            let byte = u8::try_from(round + 1).unwrap();
            data.fill(byte);
            writer.write(at, &data).unwrap();
            if round % 5 == 0 {
                writer.flush().unwrap();
            }
            reader.read(at, &mut data).unwrap();
            assert!(data.iter().all(|b| *b == byte), "{device}: round {round}");
            writer.write_zeroes(at, 64 << 10).unwrap();
            reader.read(at, &mut data).unwrap();
            let (zeroes, rest) = data.split_at(64 << 10);
            assert!(zeroes.iter().all(|b| *b == 0) && rest.iter().all(|b| *b == byte), "{device}");
            both.swap(0, 1);
        }
    }
}

/// The client of a session on core 1 waits while the device is suspended, and sees no error.
#[test]
fn a_suspended_device_delays_sessions_on_every_core() {
    for device in ["mapped", "divided"] {
        let bed = two_cores();
        let stop = Arc::new(AtomicBool::new(false));
        let written = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> = [bed.connect(device), bed.connect(device)]
            .into_iter()
            .map(|mut client| {
                let (stop, written) = (stop.clone(), written.clone());
                std::thread::spawn(move || {
                    for nth in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        client.write(nth % 1024 * 65536, &[7; 4096]).unwrap();
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for _ in 0..10 {
            pause(Duration::from_millis(20));
            bed.verb(&["suspend", device]);
            let suspended = written.load(Ordering::Relaxed);
            pause(Duration::from_millis(40));
            // One reply of before to each writer may have been on its way, however long.
            let before = written.load(Ordering::Relaxed);
            assert!(before - suspended <= 2, "{device}: {suspended} to {before} while suspended");
            bed.verb(&["resume", device]);
            let begun = clock();
            while written.load(Ordering::Relaxed) <= suspended + 2 {
                assert!(clock() - begun < 20.0, "{device}: resumed, and nobody writes");
                pause(Duration::from_millis(2));
            }
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    }
}

#[test]
fn a_session_on_another_core_is_disconnected_and_ends() {
    let mut bed = two_cores();
    let mut both = [bed.connect("mapped"), bed.connect("mapped")];
    both.iter_mut().for_each(|client| client.write(0, &[1; 4096]).unwrap());
    let away = clients_of(&bed, "mapped").into_iter().find(|client| client["core"] == 1).unwrap();
    assert_eq!((&away["requests"], &away["written_bytes"]), (&1.into(), &4096.into()));
    bed.verb(&["disconnect", away["id"].as_str().unwrap()]);
    assert_eq!(cores(&clients_of(&bed, "mapped")), [0]);
    let failed = both.iter_mut().map(|client| client.write(0, &[2; 4096]).is_err());
    assert_eq!(failed.filter(|failed| *failed).count(), 1, "one was disconnected");
    // The device is closed, and gone when the other one is.
    drop(both);
    let begun = clock();
    while bed.daemon().try_verb(&["remove", "mapped"]).unwrap().code != 0 {
        assert!(clock() - begun < 20.0, "it stays open");
        pause(Duration::from_millis(20));
    }
    let _left = [bed.connect("divided"), bed.connect("divided")];
    bed.terminate();
}

#[test]
fn block_status_of_a_session_on_core_1_is_that_of_core_0() {
    if !clients(&["nbdinfo"]) {
        return;
    }
    let context = "base:allocation";
    for device in ["mapped", "divided"] {
        let bed = two_cores();
        let mut here = bed.connect(device);
        here.write(1 << 20, &[1; 8192]).unwrap();
        here.flush().unwrap();
        let map = format!("--map={context}");
        let ask = || output("nbdinfo", &[&map, &bed.uri(device)]).unwrap();
        // By core 1: `here` is on core 0. Then, with one more there, by core 0.
        let by_core_1 = ask();
        let _second = bed.connect(device);
        assert_eq!(cores(&clients_of(&bed, device)), [0, 1]);
        assert_eq!(by_core_1, ask(), "{context}");
        assert!(by_core_1.lines().count() > 1, "{context}: {by_core_1}");
    }
}
