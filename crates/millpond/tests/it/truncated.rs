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
    // Clients go on, and nothing that is dirty is dropped: it is where it belongs after a
    // writeback. But its flush fails as long as the file is shorter than it was.
    daemon.qemu_io("wc", &["write -P 4 50M 4k", "flush"]).ok();
    let error = daemon.cli(&["flush", "wc"]).failed(1);
    assert!(error.contains("could not be written to the origin"), "{error}");
    let all = [read[0], read[1], "read -P 4 50M 4k"];
    daemon.qemu_io("wc", &all).ok();
    file.set_len(64 << 20).unwrap();
    daemon.cli(&["flush", "wc"]).ok();
    let output = daemon.qemu_io("wc", &all);
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
    let found = (50 << 20) + 4096;
    let text = "ERROR its file is shorter than it was when it was opened";
    let shorter = log.lines().find(|line| line.contains(text)).expect(&log);
    for part in [format!("device=\"{origin}\""), format!("found={found}"), "wanted=67108864".into()]
    {
        assert!(shorter.contains(&part), "{part}: {shorter}");
    }
}

/// Its content after a cut is nobody's: neither what was there, nor what a client has written.
#[test]
fn a_file_that_was_cut_fails_the_flush_of_its_client() {
    let daemon = Daemon::start();
    let path = daemon.file("disk.img", 4);
    daemon.create("d", &format!("0 8192 linear {path} 0"));
    daemon.qemu_io("d", &["write -P 1 0 4M", "flush"]).ok();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let output = daemon.qemu_io("d", &["write -P 2 2M 64k", "flush"]);
    assert!(output.code == Some(1) && output.out.starts_with("wrote 65536"), "{output:?}");
    // With the size that it has now it is a device again.
    daemon.cli(&["load", "d", "--table", &format!("0 4224 linear {path} 0")]).ok();
    daemon.cli(&["resume", "d"]).ok();
    daemon.qemu_io("d", &["write -P 3 0 64k", "flush", "read -P 2 2M 64k"]).ok();
    daemon.signal("-TERM");
    let (_, log, _dir) = daemon.wait();
    for part in [format!("device=\"{path}\" found=2162688 wanted=4194304"), "op=flush".into()] {
        assert!(log.contains(&part), "{part}: {log}");
    }
}
