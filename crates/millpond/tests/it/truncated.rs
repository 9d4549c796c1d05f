// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An origin file that somebody makes shorter, by hand, while its cache has dirty blocks beyond the
//! new end.
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::common::Daemon;

#[test]
fn a_truncated_origin_costs_no_dirty_block() {
    let daemon = Daemon::start();
    let origin = daemon.file("origin.img", 64);
    let cache = daemon.file("cache.img", 16);
    let table = format!("0 131072 writecache s {origin} {cache} 4096 2 high_watermark 100");
    daemon.create("wc", &table);
    daemon.qemu_io("wc", &["write -P 1 32M 1M", "flush"]).ok();
    daemon.cli(&["flush", "wc"]).ok();
    daemon.qemu_io("wc", &["write -P 2 32M 512k", "write -P 3 48M 512k", "flush"]).ok();
    let file = OpenOptions::new().write(true).open(&origin).unwrap();
    file.set_len(16 << 20).unwrap();
    // What was only there is an error, and not zeroes; what the cache holds is read.
    let lost = daemon.qemu_io("wc", &["read 33280k 4k"]);
    assert!(format!("{lost:?}").contains("Input/output error"), "{lost:?}");
    let read = ["read -P 2 32M 512k", "read -P 3 48M 512k"];
    daemon.qemu_io("wc", &read).ok();
    // Clients go on; nothing that is dirty is dropped: it is where it belongs after a writeback.
    daemon.qemu_io("wc", &["write -P 4 50M 4k", "flush"]).ok();
    daemon.cli(&["flush", "wc"]).ok();
    let output = daemon.qemu_io("wc", &[read[0], read[1], "read -P 4 50M 4k"]);
    assert!(output.code == Some(0) && !output.out.contains("failed"), "{output:?}");
    let file = OpenOptions::new().read(true).open(&origin).unwrap();
    for (at, pattern) in [(32 << 20, 2), ((48 << 20) + (508 << 10), 3), (50 << 20, 4)] {
        let mut data = [0; 4096];
        file.read_exact_at(&mut data, at).unwrap();
        assert!(data.iter().all(|byte| *byte == pattern), "at {at}: {}", data[0]);
    }
    daemon.signal("-TERM");
    let (status, log, _dir) = daemon.wait();
    assert!(status.success(), "{log}");
    // The log names the file.
    let named = format!("ERROR failed device=\"{origin}\" op=read sector=66560");
    assert!(log.contains(&named), "{log}");
}
