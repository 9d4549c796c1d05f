// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes of a table that was removed by force land late: nobody else gets their sectors before.

use std::time::Duration;

use e2e::process::Ended;
use e2e::test_bed::TestBed;
use e2e::{clock, pause};

const MIB: u64 = 1 << 20;
const FILES: [(&str, u64); 3] = [("o.img", 64 * MIB), ("c.img", 16 * MIB), ("c2.img", 16 * MIB)];
/// Writes take three seconds.
const DISK: &str = "0 131072 delay ./o.img 0 0 ./o.img 0 3000";
const CACHE: &str = "0 131072 writecache s disk ./c.img 4096 1 no_guard";

/// Attack 3, break 6: the writeback of the removed cache landed on what the new one had made
/// durable.
#[test]
fn a_new_cache_waits_for_the_writeback_of_one_removed_by_force() {
    let bed = TestBed::start(&FILES, &[("disk", DISK), ("w", CACHE)]);
    let path = |name: &str| bed.path(name).display().to_string();
    let mut client = bed.connect("w");
    for block in 0..50 {
        client.write(block * 4096, &[1; 4096]).unwrap();
    }
    client.flush().unwrap();
    let mut flush = bed.daemon().command(&["flush", "w"]).spawn().unwrap();
    pause(Duration::from_millis(500));
    for name in ["w", "disk"] {
        bed.daemon().try_verb(&["remove", "--force", name]).unwrap();
    }
    drop(client);
    let origin = path("o.img");
    let cached = format!("0 131072 writecache s {origin} {} 4096 1 no_guard", path("c2.img"));
    let plain = format!("0 131072 linear {origin} 0");
    let create = |name: &str, table: &str| -> Ended {
        bed.daemon().try_verb(&["create", name, "--table", table]).unwrap()
    };
    for table in [&cached, &plain] {
        let refused = create("w2", table);
        assert_eq!(refused.code, 4, "{}", refused.complaint());
        for part in ["o.img", "was removed by force", "Wait until"] {
            assert!(refused.stderr.contains(part), "{}", refused.stderr);
        }
    }
    let begun = clock();
    while create("w2", &cached).code != 0 {
        assert!(clock() - begun < 30.0, "the writes have ended");
        pause(Duration::from_millis(200));
    }
    flush.wait().unwrap();
    let mut client = bed.connect("w2");
    for block in 0..50 {
        client.write(block * 4096, &[2; 4096]).unwrap();
    }
    client.flush().unwrap();
    bed.verb(&["flush", "w2"]);
    pause(Duration::from_secs(4));
    let origin = std::fs::read(origin).unwrap();
    assert!(origin[..50 * 4096].iter().all(|byte| *byte == 2), "an older write came later");
}
