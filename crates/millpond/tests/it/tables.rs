// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables as people write them: sizes with a suffix, and `-` for the whole device.

use crate::common::Daemon;

/// What `table` prints of a device that is made by `table`, sectors of each line only.
fn sectors(daemon: &Daemon, table: &str) -> String {
    daemon.create("d", table);
    let printed = daemon.cli(&["table", "d"]).ok();
    daemon.cli(&["remove", "d"]).ok();
    let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    printed.lines().map(words).collect::<Vec<_>>().join(", ")
}

#[test]
fn lengths_are_sizes_or_the_whole_device() {
    let daemon = Daemon::start();
    daemon.file("a.img", 16);
    daemon.file("b.img", 8);
    for (table, want) in [
        ("0 - linear ./a.img 0", "0 32768"),
        ("0 - linear ./a.img 8", "0 32760"),
        ("0 8M linear ./a.img 4M", "0 16384"),
        ("0 4M zero\n4M - linear ./b.img 1M", "0 8192, 8192 14336"),
        ("0 - striped 2 128 ./a.img 0 ./b.img 4M", "0 16384"),
        ("0 - delay ./a.img 0 0 ./b.img 0 0", "0 16384"),
        ("0 - flakey ./b.img 0 1 0", "0 16384"),
        ("0 - buffered ./b.img", "0 16384"),
        ("0 - writecache s ./b.img mem:4M 4096 0", "0 16384"),
        ("0 1000M zero", "0 2048000"),
    ] {
        assert_eq!(sectors(&daemon, table), want, "{table}");
    }
    daemon.cli(&["create", "d", "--notable"]).ok();
    daemon.cli(&["load", "d", "--table", "0 - linear ./b.img 0"]).ok();
    daemon.cli(&["resume", "d"]).ok();
    let path = daemon.dir.path().join("b.img");
    let shown = format!("0 16384 linear {} 0\n", path.display());
    assert_eq!(daemon.cli(&["table", "d"]).ok(), shown);
}

#[test]
fn a_length_that_no_device_gives_is_refused() {
    let daemon = Daemon::start();
    daemon.file("a.img", 1);
    for (table, code, part) in [
        ("0 - zero", 1, "zero has no device that has a length: give a number of sectors"),
        ("0 - zram lz4", 1, "zram has no device that has a length"),
        ("0 - linear ./a.img", 1, "arguments are missing or wrong: it takes <dev> <offset>"),
        ("0 - linear ./nope.img 0", 3, "nope.img: no such file"),
        ("0 - linear ./a.img 2048", 1, "has 2048 sectors: none is left from sector 2048 on"),
        ("0 - linear ./a.img 0\n2048 8 zero", 1, "line 2: zero: only the last line can have"),
        ("0 1000 linear ./a.img 1025b", 1, "`1025b`, must be a decimal number of sectors, or"),
        ("0 700b zero", 1, "invalid length `700b`: must be a number of sectors"),
    ] {
        let err = daemon.cli(&["create", "d", "--table", table]).failed(code);
        assert!(err.contains(part), "{table}: {err}");
    }
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
}
