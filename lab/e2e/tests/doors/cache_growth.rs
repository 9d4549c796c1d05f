// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache device that grows under fio, again and again, and kills in between: what was answered is
//! there, and the space is used.
use std::process::Stdio;
use std::time::Duration;

use e2e::fio::Fio;
use e2e::pause;
use e2e::test_bed::{TestBed, clients};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);
const OPTIONS: &str = "high_watermark 90 low_watermark 80";

fn grow(bed: &TestBed, mib: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(bed.path("cache.img")).unwrap();
    file.set_len(mib * MIB).unwrap();
    let text = bed.verb(&["resize", "wc", "--cache"]);
    assert!(text.contains("blocks), was"), "{text}");
}

/// Writes each block once; reads them all at the end, or later.
fn writes(bed: &TestBed, seed: u64) -> Fio {
    let fio = Fio::new(bed.dir(), &bed.uri("wc")).with(["--rw=randwrite", "--size=48m"]);
    let seed = format!("--randseed={seed}");
    fio.with(["--verify=crc32c", "--fsync=64", "--iodepth=4", &seed])
}

#[test]
fn a_cache_grows_under_fio_and_over_kills() {
    if !clients(&["fio"]) {
        return;
    }
    let mut bed = TestBed::with_cache(64 * MIB, 8 * MIB, OPTIONS);
    let mut blocks = bed.attribute("wc", "total_blocks");
    for (round, mib) in (1..).zip([16, 24, 64]) {
        let fio = writes(&bed, round);
        let running = fio.start().unwrap();
        let before = bed.attribute("wc", "writes");
        while bed.attribute("wc", "writes") < before + 2000 {
            assert!(running.is_running(), "fio is done before the growth");
            pause(Duration::from_millis(1));
        }
        grow(&bed, mib);
        let now = bed.attribute("wc", "total_blocks");
        assert!(now * 4096 > blocks * 4096 + 6 * MIB, "{blocks} blocks, now {now}");
        blocks = now;
        running.wait(LIMIT).unwrap();
        bed.kill();
        bed.start_again();
        assert_eq!(bed.attribute("wc", "total_blocks"), blocks);
        let read = fio.with(["--verify_only"]).run(LIMIT).unwrap();
        assert!(read.reads >= 48 * MIB / 4096, "{read:?}");
    }
    // Killed in the middle of a growth.
    for mib in [80, 96, 112] {
        let fio = writes(&bed, mib);
        fio.run(LIMIT).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(bed.path("cache.img")).unwrap();
        file.set_len(mib * MIB).unwrap();
        let mut verb = bed.daemon().command(&["resize", "wc", "--cache"]);
        let verb = verb.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        pause(Duration::from_millis(mib / 8));
        bed.kill();
        verb.unwrap().wait().unwrap();
        bed.start_again();
        let read = fio.with(["--verify_only"]).run(LIMIT).unwrap();
        assert!(read.reads >= 48 * MIB / 4096, "{read:?}");
    }
}
