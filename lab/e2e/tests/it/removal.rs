// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write cache without its device: what the origin is used for meanwhile counts, whichever way
//! the device has gone. A restart of the daemon is no removal.

use e2e::stamp::{BLOCK_BYTES, fill, version_of};
use e2e::test_bed::TestBed;

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 256;

fn table(bed: &TestBed, options: &str) -> String {
    let count = options.split_whitespace().count();
    let (origin, cache) = (bed.path("origin.img"), bed.path("cache.img"));
    let (origin, cache) = (origin.display(), cache.display());
    format!("0 32768 writecache s {origin} {cache} 4096 {count} {options}")
}

fn write(bed: &TestBed, device: &str, version: u64) {
    let (mut client, mut data) = (bed.connect(device), vec![0; BLOCK_BYTES]);
    for block in 0..BLOCKS {
        fill(&mut data, block, version);
        client.write(block * BLOCK_BYTES as u64, &data).unwrap();
    }
    client.flush().unwrap();
}

/// The first block that does not have the version.
fn first_other(bed: &TestBed, device: &str, version: u64) -> Option<u64> {
    let (mut client, mut data) = (bed.connect(device), vec![0; BLOCK_BYTES]);
    (0..BLOCKS).find(|block| {
        client.read(block * BLOCK_BYTES as u64, &mut data).unwrap();
        version_of(&data, *block) != Some(version)
    })
}

/// The device is written, written back and taken away; the origin is changed; and the table comes
/// again. No old block may come with it.
fn used_without_its_cache(bed: &TestBed, options: &str, go: &dyn Fn(&TestBed)) {
    bed.verb(&["create", "w", "--table", &table(bed, options)]);
    write(bed, "w", 1);
    bed.verb(&["drain", "w"]);
    assert!(bed.attribute("w", "clean_blocks") > 0, "{options}: there are copies");
    go(bed);
    let origin = format!("0 32768 linear {} 0", bed.path("origin.img").display());
    bed.verb(&["create", "alone", "--table", &origin]);
    assert_eq!(first_other(bed, "alone", 1), None);
    write(bed, "alone", 2);
    bed.verb(&["remove", "alone"]);
    bed.verb(&["create", "w", "--table", &table(bed, options)]);
    assert_eq!(first_other(bed, "w", 2), None, "{options}");
    bed.verb(&["remove", "w"]);
}

/// Removes the device `w`.
type Removal<'a> = &'a dyn Fn(&TestBed);

/// `drain` leaves clean copies, and `remove` did, too, without a word: the next table over both
/// served them, though the origin had newer data.
#[test]
fn a_removed_cache_serves_nothing_that_its_origin_has_lost() {
    let bed = TestBed::start(&[("origin.img", 16 * MIB), ("cache.img", 8 * MIB)], &[]);
    let ways: [(&str, Removal<'_>); 7] = [
        ("remove", &|bed| assert_eq!(bed.verb(&["remove", "w"]), "")),
        ("drained", &|bed| drop(bed.verb(&["remove", "--drain", "w"]))),
        ("all", &|bed| drop(bed.verb(&["remove_all"]))),
        ("suspended", &|bed| {
            bed.verb(&["suspend", "w"]);
            bed.verb(&["remove", "w"]);
        }),
        ("deferred", &|bed| {
            let client = bed.connect("w");
            bed.verb(&["remove", "--deferred", "w"]);
            drop(client);
            while bed.verb(&["ls"]).contains('w') {
                e2e::pause(std::time::Duration::from_millis(10));
            }
        }),
        ("by force, with the way out that the warning names", &|bed| {
            bed.verb(&["remove", "--force", "w"]);
            let log = bed.daemon().log();
            assert!(log.contains("(a removal by force waits for nothing), which are old once"));
            bed.verb(&["create", "w", "--table", &table(bed, "")]);
            bed.verb(&["remove", "w"]);
        }),
        ("hidden by another table", &|bed| {
            bed.verb(&["load", "w", "--table", "0 32768 zero"]);
            bed.verb(&["resume", "w"]);
            bed.verb(&["remove", "w"]);
        }),
    ];
    for (way, go) in ways {
        println!("{way}");
        used_without_its_cache(&bed, "", go);
    }
    let remove = ways[0].1;
    for options in ["ordered", "format dm", "guard_origin", "read_cache 1"] {
        bed.make_file("cache.img", 0);
        bed.make_file("cache.img", 8 * MIB);
        used_without_its_cache(&bed, options, remove);
    }
}

/// What a drain has left in the cache is there again after a restart of the daemon.
#[test]
fn a_restart_keeps_the_copies() {
    let mut bed = TestBed::with_cache(16 * MIB, 8 * MIB, "no_guard");
    write(&bed, "wc", 1);
    bed.verb(&["drain", "wc"]);
    let copies = bed.attribute("wc", "clean_blocks");
    assert!(copies >= BLOCKS, "{copies}");
    bed.terminate();
    bed.start_again();
    assert_eq!(bed.attribute("wc", "clean_blocks"), copies);
    bed.terminate();
}
