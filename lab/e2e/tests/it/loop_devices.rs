// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file, and loop devices over it, in one daemon's tables. A cache whose device was a loop device
//! over its own origin was accepted, and wrote over the origin's blocks and its own superblock.

use std::path::Path;

use e2e::loops::Loop;
use e2e::test_bed::TestBed;

const MIB: u64 = 1 << 20;

fn bed() -> TestBed {
    let files = [("o.img", 16 * MIB), ("p.img", 16 * MIB), ("c.img", 16 * MIB)];
    TestBed::start(&files, &[])
}

fn cache(origin: &Path, cache: &Path) -> String {
    format!("0 8192 writecache s {} {} 4096 0", origin.display(), cache.display())
}

fn refused(bed: &TestBed, name: &str, table: &str) -> String {
    bed.daemon().verb(&["create", name, "--table", table]).unwrap_err()
}

#[test]
fn a_loop_device_over_the_origin_is_no_cache_device() {
    let bed = bed();
    let (origin, clean) = (bed.path("o.img"), std::fs::read(bed.path("o.img")).unwrap());
    let Some(first) = Loop::on(&origin) else { return };
    let Some(second) = Loop::on(&origin) else { return };
    let (first, second) = (first.device(), second.device());
    for table in [cache(&origin, first), cache(first, &origin), cache(first, second)] {
        let refusal = refused(&bed, "wc", &table);
        for part in ["of the file or disk on which both", "one only", "loop"] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
    }
    assert!(std::fs::read(&origin).unwrap() == clean, "nothing was written");
    // The way out: a file of its own.
    bed.verb(&["create", "wc", "--table", &cache(first, &bed.path("c.img"))]);
}

#[test]
fn a_mapping_of_the_origin_by_a_loop_device_needs_a_token() {
    let bed = bed();
    let origin = bed.path("o.img");
    bed.verb(&["create", "wc", "--table", &cache(&origin, &bed.path("c.img"))]);
    let Some(device) = Loop::on(&origin) else { return };
    let table = |at: u64| format!("0 64 linear {} {at}", device.device().display());
    let refusal = refused(&bed, "past", &table(0));
    assert!(refusal.contains("past it") && refusal.contains("--force="), "{refusal}");
    // Behind the cache's end nothing is shared.
    bed.verb(&["create", "behind", "--table", &table(8192)]);
}

#[test]
fn parts_of_a_file_that_do_not_meet_may_be_loop_devices() {
    let bed = bed();
    let file = bed.path("p.img");
    let Some(front) = Loop::of_part(&file, 0, 8 * MIB) else { return };
    let Some(back) = Loop::of_part(&file, 8 * MIB, 8 * MIB) else { return };
    bed.verb(&["create", "wc", "--table", &cache(front.device(), back.device())]);
    let refusal = refused(&bed, "two", &cache(&bed.path("o.img"), &file));
    assert!(refusal.contains("of the file or disk on which both"), "{refusal}");
}
