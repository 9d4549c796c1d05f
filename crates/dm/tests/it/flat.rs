// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stacks of pure mappings as one: the same sectors as layer by layer, and nothing of it is left
//! behind when a layer changes.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Bench, Shared, disk, filled, is_flat, lay_out, read, take_log, write};
use block::{BlockDevice, Class, Flags, Nanos, Op, Sector, Status};
use dm::{Dm, Remove};
use proptest::prelude::*;

const A: &str = "/ram/a/4096";
const B: &str = "/ram/b/4096";
const C: &str = "/ram/c/4096";

/// Names of the three devices of a layer; disks at the bottom.
fn names(layer: usize) -> [String; 3] {
    match layer {
        0 => [A, B, C].map(str::to_owned),
        _ => ["x", "y", "z"].map(|d| format!("{d}{layer}")),
    }
}

/// One device: its lines over the three devices `below`, whose sizes bound it.
fn device() -> impl Strategy<Value = Vec<(u64, u64, String)>> {
    let striped = (1..4_u64, 1..20_u64, 1..6_u64).prop_map(|(n, chunk, rows)| {
        let areas: String =
            ["%0", "%1", "%2"].iter().take(n as usize).map(|d| format!(" {d} @")).collect();
        (n * chunk * rows, chunk * rows, format!("striped {n} {chunk}{areas}"))
    });
    let linear = (1..100_u64, 0..3).prop_map(|(len, d)| (len, len, format!("linear %{d} @")));
    prop::collection::vec(prop_oneof![striped, linear], 1..5)
}

/// Layers of three devices each, as tables by name, bottom first; lines that find no room below
/// are left out.
fn stack() -> impl Strategy<Value = Vec<(String, String)>> {
    let layer = (device(), device(), device());
    prop::collection::vec(layer, 1..4).prop_map(|layers| {
        let mut tables = Vec::new();
        let mut room = 4096 / 3;
        for (i, (x, y, z)) in layers.into_iter().enumerate() {
            let below = names(i);
            let mut smallest = u64::MAX;
            // The three devices of a layer share what is below: each has a third of it.
            for (nth, (name, lines)) in names(i + 1).into_iter().zip([x, y, z]).enumerate() {
                let mut used = room * nth as u64;
                let mut fitting = vec![];
                for (len, width, line) in lines {
                    if used + width <= room * (nth as u64 + 1) {
                        let line = (0..3).fold(line, |l, d| l.replace(&format!("%{d}"), &below[d]));
                        fitting.push((len, width, line.replace('@', &used.to_string())));
                        used += width;
                    }
                }
                let (size, table) = lay_out(fitting);
                smallest = smallest.min(size);
                tables.push((name, table));
            }
            room = smallest / 3;
            if room == 0 {
                break;
            }
        }
        tables.retain(|(_, table)| !table.is_empty());
        tables
    })
}

async fn build(dm: &Dm, tables: &[(String, String)]) -> Vec<String> {
    let mut made = Vec::new();
    for (name, table) in tables {
        // One that stands on a device which was left out is left out too.
        if dm.create(name, None, Some(table)).await.is_ok() {
            made.push(name.clone());
        }
    }
    made
}

async fn set_all(dm: &Dm, devices: &[String], mapping: &str) {
    for name in devices {
        dm.set_attribute(name, "mapping", mapping).await.expect("both words are known");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..Default::default()
    })]

    #[test]
    fn a_stack_leads_where_its_layers_lead(
        tables in stack(),
        requests in prop::collection::vec((0..4_u8, 0..5000_u64, 1..200_u64), 1..12),
    ) {
        Bench::new(1).run(|dm, _| async move {
            let made = build(&dm, &tables).await;
            let Some(top) = made.last() else { return };
            let dev = dm.get(top).unwrap();
            assert!(is_flat(&dev), "pure all the way down");
            let capacity = dev.limits().capacity.0;
            let mut model = vec![0_u8; capacity as usize * 512];
            for (i, (what, at, len)) in requests.into_iter().enumerate() {
                // In place and cloned by turns: what one wrote the other must find.
                set_all(&dm, &made, if i % 2 == 0 { "in-place" } else { "clone" }).await;
                let at = at % capacity;
                let len = len.min(capacity - at);
                let range = at as usize * 512..(at + len) as usize * 512;
                if what > 0 {
                    let bufs = filled(0, len);
                    let byte = |b: usize| (b / 512 * 7 + i) as u8 | 1;
                    let data: Vec<u8> = range.clone().map(byte).collect();
                    bufs.copy_from(&data);
                    let (flags, class) = (Flags::empty(), Class::Normal);
                    reactor::write(&*dev, flags, class, Sector(at), bufs).await.unwrap();
                    model[range].copy_from_slice(&data);
                } else {
                    reactor::discard(&*dev, Class::Normal, Sector(at), Sector(len)).await.unwrap();
                    model[range].fill(0);
                }
            }
            for mapping in ["clone", "in-place"] {
                set_all(&dm, &made, mapping).await;
                assert_eq!(is_flat(&dev), mapping == "in-place");
                for (at, len) in [(0, capacity), (capacity / 2, 1), (capacity - 1, 1)] {
                    let want = &model[at as usize * 512..(at + len) as usize * 512];
                    assert!(read(&*dev, at, len).await.unwrap() == want, "{mapping}: {tables:?}");
                }
            }
        });
    }

    #[test]
    fn a_bio_arrives_as_its_sender_made_it(
        tables in stack(),
        sectors in prop::collection::vec((0..5000_u64, any::<bool>()), 1..8),
    ) {
        Bench::new(1).run(|dm, state| async move {
            let made = build(&dm, &tables).await;
            let Some(top) = made.last() else { return };
            let dev = dm.get(top).unwrap();
            for (at, fua) in sectors {
                let at = Sector(at % dev.limits().capacity.0);
                let (flags, class) = match fua {
                    true => (Flags::FUA | Flags::META, Class::Foreground),
                    false => (Flags::IDLE, Class::Background),
                };
                let bufs = filled(7, 1);
                reactor::write(&*dev, flags, class, at, bufs.clone()).await.unwrap();
                let place = dev.map_blocks(at, Sector(1)).unwrap();
                let disk = disk(&state, place.base.name());
                let last = state.borrow_mut().disks[disk].last.take().unwrap();
                let (op, f, c, said, len, data, sector) = last;
                assert_eq!((op, f, c, said, len), (Op::Write, flags, class, at, Sector(1)));
                assert_eq!(sector, place.sector, "where it is meant to go");
                let address = |b: &block::Bufs| b.iter().next().unwrap().as_ptr();
                assert_eq!(address(&data), address(&bufs), "not copied");
            }
        });
    }
}

/// Copies what `from` holds to `to` and breaks `from`.
fn carry_over(state: &Shared, from: &str, to: &str) {
    let (old, new) = (disk(state, from), disk(state, to));
    let mut s = state.borrow_mut();
    let bytes = s.disks[old].bytes.clone();
    s.disks[new].bytes = bytes;
    s.disks[old].bytes.fill(0xDD);
    (s.disks[old].broken, s.disks[new].broken) = (true, false);
}

/// Three layers under load; the device at the bottom moves from one disk to another, and the one
/// in the middle between spellings of its mapping. What arrives at a disk that was left is lost.
#[test]
fn nothing_goes_to_a_disk_that_a_layer_has_left() {
    for seed in 0..8 {
        Bench::new(seed).run(|dm, state| async move {
            dm.create("other", None, Some(&format!("0 8 linear {B} 0"))).await.unwrap();
            dm.create("low", None, Some(&format!("0 96 linear {A} 0"))).await.unwrap();
            dm.create("mid", None, Some("0 96 striped 2 8 low 0 low 48")).await.unwrap();
            let top = dm.create("top", None, Some("0 90 linear mid 6")).await.unwrap();
            let running = Rc::new(Cell::new(6));
            for client in 0..6_u64 {
                let (top, running) = (top.clone(), running.clone());
                reactor::spawn(async move {
                    for round in 0..120_u64 {
                        let (byte, at) = ((client * 31 + round) as u8, client * 15);
                        // Some lie in one extent, some cross.
                        let len = 1 + round % 15;
                        write(&*top, byte, at, len).await.unwrap();
                        let got = read(&*top, at, len).await.unwrap();
                        assert!(got.iter().all(|&b| b == byte), "client {client} round {round}");
                    }
                    running.set(running.get() - 1);
                });
            }
            let mut moves = 0;
            while running.get() > 0 {
                let (from, to) = if moves % 2 == 0 { (A, B) } else { (B, A) };
                // Opens the disk: its line in the table is of a device that is not live yet.
                dm.load("low", &format!("0 96 linear {to} 0")).await.unwrap();
                dm.suspend("low").await.unwrap();
                assert_eq!(state.borrow().in_flight(), 0, "suspend has drained everything below");
                carry_over(&state, from, to);
                dm.resume("low").await.unwrap();
                assert!(is_flat(&top), "flat again");
                if moves % 3 == 0 {
                    dm.load(
                        "mid",
                        "0 48 striped 2 8 low 0 low 48\n48 48 striped 2 8 low 24 low 72",
                    )
                    .await
                    .unwrap();
                    dm.resume("mid").await.unwrap();
                } else if moves % 3 == 1 {
                    dm.suspend("top").await.unwrap();
                    assert_eq!(state.borrow().in_flight(), 0);
                    dm.resume("top").await.unwrap();
                } else {
                    dm.set_attribute(
                        "mid",
                        "mapping",
                        if moves % 2 == 0 { "clone" } else { "in-place" },
                    )
                    .await
                    .unwrap();
                }
                reactor::sleep(Nanos::from_micros(reactor::random() % 700)).await;
                moves += 1;
            }
            assert!(moves > 10, "{moves} moves are no load test");
            dm.remove_all(Remove::IfUnused).await.unwrap();
        });
    }
}

/// As above, but one operator moves the device at the bottom while two others suspend, load and
/// resume those above it and change their mappings, at whatever moment.
#[test]
fn operators_at_once_on_one_stack_lose_nothing_and_all_end() {
    for seed in 0..8 {
        Bench::new(seed).run(|dm, state| async move {
            dm.create("other", None, Some(&format!("0 8 linear {B} 0"))).await.unwrap();
            dm.create("low", None, Some(&format!("0 96 linear {A} 0"))).await.unwrap();
            dm.create("mid", None, Some("0 96 striped 2 8 low 0 low 48")).await.unwrap();
            let top = dm.create("top", None, Some("0 90 linear mid 6")).await.unwrap();
            let running = Rc::new(Cell::new(6));
            for client in 0..6_u64 {
                let (top, running) = (top.clone(), running.clone());
                reactor::spawn(async move {
                    for round in 0..120_u64 {
                        let (byte, at) = ((client * 31 + round) as u8, client * 15);
                        let len = 1 + round % 15;
                        write(&*top, byte, at, len).await.unwrap();
                        let got = read(&*top, at, len).await.unwrap();
                        assert!(got.iter().all(|&b| b == byte), "client {client} round {round}");
                    }
                    running.set(running.get() - 1);
                });
            }
            let operators = Rc::new(Cell::new(2));
            for (name, table) in
                [("mid", "0 96 striped 2 8 low 0 low 48"), ("top", "0 90 linear mid 6")]
            {
                let (dm, running, operators) = (dm.clone(), running.clone(), operators.clone());
                reactor::spawn(async move {
                    while running.get() > 0 {
                        match reactor::random() % 4 {
                            0 => dm.load(name, table).await.unwrap(),
                            1 => dm.suspend(name).await.unwrap(),
                            2 => dm.set_attribute(name, "mapping", "clone").await.unwrap(),
                            _ => dm.set_attribute(name, "mapping", "in-place").await.unwrap(),
                        }
                        reactor::sleep(Nanos(reactor::random() % 200_000)).await;
                        dm.resume(name).await.unwrap();
                    }
                    operators.set(operators.get() - 1);
                });
            }
            let mut moves = 0;
            while running.get() > 0 {
                let (from, to) = if moves % 2 == 0 { (A, B) } else { (B, A) };
                dm.load("low", &format!("0 96 linear {to} 0")).await.unwrap();
                dm.suspend("low").await.unwrap();
                assert_eq!(state.borrow().in_flight(), 0, "suspend has drained everything below");
                reactor::sleep(Nanos(reactor::random() % 200_000)).await;
                carry_over(&state, from, to);
                dm.resume("low").await.unwrap();
                reactor::sleep(Nanos(reactor::random() % 500_000)).await;
                moves += 1;
            }
            assert!(moves > 10, "{moves} moves are no load test");
            while operators.get() > 0 {
                reactor::sleep(Nanos::from_micros(1)).await;
            }
            dm.remove_all(Remove::IfUnused).await.unwrap();
        });
    }
}

#[test]
fn a_bio_goes_to_its_disk_in_one_step_and_a_flush_once_to_each() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some(&format!("0 1024 linear {A} 100"))).await.unwrap();
        let table = format!("0 1024 striped 2 8 low 0 {B} 0");
        dm.create("mid", None, Some(&table)).await.unwrap();
        let top = dm.create("top", None, Some("0 512 linear mid 256")).await.unwrap();
        write(&*top, 1, 8, 8).await.unwrap();
        write(&*top, 1, 16, 8).await.unwrap();
        assert_eq!(take_log(&state, B), [(Op::Write, 128, 8)]);
        assert_eq!(take_log(&state, A), [(Op::Write, 100 + 136, 8)]);
        reactor::flush(&*top, Class::Normal).await.unwrap();
        assert_eq!(take_log(&state, A), [(Op::Flush, 0, 0)]);
        assert_eq!(take_log(&state, B), [(Op::Flush, 0, 0)]);
        // Beyond the end, of no length, and around the corner.
        for (at, len) in [(512, 1), (511, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
            assert_eq!(read(&*top, at, len).await, Err(Status::Invalid), "{at}+{len}");
        }
        assert_eq!((take_log(&state, A), take_log(&state, B)), (vec![], vec![]));
    });
}

#[test]
fn a_chunk_of_a_broken_block_takes_no_fast_path() {
    Bench::new(1).run(|dm, _| async move {
        // 12 sectors a chunk on disks of 8-sector blocks: an aligned bio may lie askew below.
        let table = "0 96 striped 2 12 /ram4k/a/48 0 /ram4k/b/48 0";
        let dev = dm.create("d", None, Some(table)).await.unwrap();
        assert!(!is_flat(&dev));
    });
}

#[test]
fn faults_count_for_the_stripe_whichever_way_they_came() {
    Bench::new(1).run(|dm, state| async move {
        let table = format!("0 1024 striped 2 8 {A} 0 {B} 512");
        dm.create("mid", None, Some(&table)).await.unwrap();
        let top = dm.create("top", None, Some("0 1024 linear mid 0")).await.unwrap();
        write(&*top, 1, 0, 8).await.unwrap();
        let broken = disk(&state, B);
        state.borrow_mut().disks[broken].broken = true;
        let status = |dm: &Dm| dm.status("mid").unwrap()[0].params.clone();
        assert_eq!(status(&dm), format!("2 {A} {B} 1 AA"));
        assert_eq!(write(&*top, 1, 8, 8).await, Err(Status::Io));
        assert_eq!(status(&dm), format!("2 {A} {B} 1 AD"));
        assert_eq!(dm.info("mid").unwrap().event_nr, 1);
        // Cloned, each layer tells its own; across both stripes, split.
        dm.set_attribute("top", "mapping", "clone").await.unwrap();
        assert_eq!(write(&*top, 1, 8, 8).await, Err(Status::Io));
        assert_eq!(dm.info("mid").unwrap().event_nr, 2);
        assert_eq!(write(&*top, 1, 4, 8).await, Err(Status::Io));
        assert_eq!(dm.info("mid").unwrap().event_nr, 3);
    });
}

#[test]
fn a_fault_counts_once_a_stripe_in_however_many_pieces_it_lies() {
    Bench::new(1).run(|dm, state| async move {
        let low = format!("0 8 linear {A} 0\n8 8 linear {A} 100\n16 8 linear {A} 200");
        dm.create("low", None, Some(&low)).await.unwrap();
        let top = dm.create("top", None, Some("0 24 striped 1 8 low 0")).await.unwrap();
        let broken = disk(&state, A);
        state.borrow_mut().disks[broken].broken = true;
        reactor::flush(&*top, Class::Normal).await.unwrap_err();
        assert_eq!(dm.info("top").unwrap().event_nr, 1);
        write(&*top, 1, 8, 8).await.unwrap_err();
        assert_eq!(dm.info("top").unwrap().event_nr, 2);
    });
}

#[test]
fn alignment_is_checked_again_when_blocks_below_grow() {
    Bench::new(1).run(|dm, state| async move {
        dm.create("low", None, Some("0 64 linear /ram/y/64 0")).await.unwrap();
        // Its second line begins within what will be a block.
        let table = format!("0 4 linear {A} 0\n4 60 linear low 0");
        let top = dm.create("top", None, Some(&table)).await.unwrap();
        dm.load("low", "0 64 linear /ram4k/y/64 0").await.unwrap();
        dm.resume("low").await.unwrap();
        dm.suspend("top").await.unwrap();
        dm.resume("top").await.unwrap();
        assert_eq!(top.limits().logical_block_bytes, 4096);
        assert_eq!(write(&*top, 1, 8, 8).await, Err(Status::Invalid));
        assert_eq!(take_log(&state, "/ram4k/y/64"), []);
    });
}

/// As many lines as `n`, each two sectors of `dev`, from `offset` on around 4000 sectors.
fn lines(n: u64, dev: &str, offset: u64) -> String {
    (0..n).map(|i| format!("{} 2 linear {dev} {}\n", i * 2, (i * 2 + offset) % 4000)).collect()
}

#[test]
fn a_mapping_has_the_nodes_of_what_it_covers_and_no_others() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("low", None, Some(&lines(2000, A, 0))).await.unwrap();
        // Each line lies across two below: were it to have all 2000 there would be millions.
        let top = dm.create("top", None, Some(&lines(1990, "low", 1))).await.unwrap();
        assert!(is_flat(&top));
        let stripes: String = (0..400).map(|i| format!(" top {}", i * 9)).collect();
        let table = format!("0 3200 striped 400 1{stripes}");
        let wide = dm.create("wide", None, Some(&table)).await.unwrap();
        assert!(is_flat(&wide));
        let middle = dm.create("middle", None, Some("0 900 linear wide 450")).await.unwrap();
        assert!(is_flat(&middle));
        write(&*middle, 3, 100, 700).await.unwrap();
        set_all(&dm, &["low", "top", "wide", "middle"].map(str::to_owned), "clone").await;
        assert!(read(&*middle, 100, 700).await.unwrap().iter().all(|b| *b == 3));
    });
}

#[test]
fn too_many_nodes_make_no_flat_mapping() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("d0", None, Some(&lines(256, A, 0))).await.unwrap();
        // Each layer has all that is below twice: 2^15 times the lines at the end, so sector s is
        // sector s >> 15 of d0.
        for i in 1..16_u64 {
            let (len, below) = (512 << i, i - 1);
            let table = format!("0 {len} striped 2 1 d{below} 0 d{below} 0");
            dm.create(&format!("d{i}"), None, Some(&table)).await.unwrap();
        }
        assert!(dm.devices().iter().any(|d| !is_flat(d)), "the bound was reached");
        let (top, low) = (dm.get("d15").unwrap(), dm.get("d0").unwrap());
        for at in 0..512_u64 {
            write(&*top, at as u8, (at << 15) | ((at * 77) & 0x7fff), 1).await.unwrap();
            assert_eq!(read(&*low, at, 1).await.unwrap()[7], at as u8);
        }
    });
}

#[test]
fn accounting_is_optional_and_costs_the_flat_mapping() {
    Bench::new(1).run(|dm, _| async move {
        dm.create("low", None, Some(&format!("0 64 linear {A} 0"))).await.unwrap();
        let top = dm.create("top", None, Some("0 64 linear low 0")).await.unwrap();
        let stat = async |name: &str| -> Vec<u64> {
            let line = dm.get_attribute(name, "stat").await.unwrap();
            line.to_string().split_whitespace().map(|word| word.parse().unwrap()).collect()
        };
        write(&*top, 1, 0, 8).await.unwrap();
        assert_eq!(stat("top").await, [0; 17], "off");
        dm.set_attribute("top", "queue/iostats", "1").await.unwrap();
        assert!(!is_flat(&top));
        write(&*top, 1, 0, 8).await.unwrap();
        read(&*top, 0, 3).await.unwrap();
        reactor::flush(&*top, Class::Normal).await.unwrap();
        read(&*top, 64, 1).await.unwrap_err();
        let mut want = [0; 17];
        (want[0], want[2], want[4], want[6], want[15]) = (1, 3, 1, 8, 1);
        assert_eq!(stat("top").await, want);
        assert_eq!(stat("low").await, [0; 17], "each its own");
        dm.set_attribute("top", "queue/iostats", "0").await.unwrap();
        assert!(is_flat(&top));
        write(&*top, 1, 0, 8).await.unwrap();
        assert_eq!(stat("top").await, want, "off again");
        dm.set_attribute("top", "queue/iostats", "Yes").await.unwrap();
        assert_eq!(dm.get_attribute("top", "queue/iostats").await.unwrap(), "1");
        dm.set_attribute("top", "queue/iostats", "off").await.unwrap();
        let e = dm.set_attribute("top", "queue/iostats", "2").await.unwrap_err();
        let allowed = "0 or 1 (also no or yes, off or on) is allowed";
        assert_eq!(e.to_string(), format!("top: queue/iostats: `2`: {allowed}"));
        let e = dm.set_attribute("top", "stat", "0").await.unwrap_err();
        assert_eq!(e.to_string(), "top: attribute `stat` is read-only");
    });
}
