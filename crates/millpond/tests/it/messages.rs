// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wrong input as users give it: each message names the thing, the argument, and what is allowed or
//! what to do. A row is a command line, the exit code, and parts of the message that must be there.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, Daemon, MILLPOND, sh};

/// Command line, exit code, and parts of the message; `|` separates parts.
type Row = (&'static str, i32, &'static str);

/// Tables and their arguments. `WC` is a write cache of o.img and c.img.
const TABLES: &[Row] = &[
    ("create x --table ''", 1, "create x: |has no line: START_SECTOR LENGTH_SECTORS TARGET_TYPE"),
    ("create x --table foo", 1, "line 1: |`foo` must be START_SECTOR LENGTH_SECTORS TARGET_TYPE"),
    ("create x --table '0 8'", 1, "line 1: |`0 8` must be START_SECTOR LENGTH_SECTORS"),
    ("create x --table '0 8 nosuch'", 1, "nosuch: unknown target type|linear, objvol, striped"),
    ("create x --table '0 0 zero'", 1, "line 1: zero: |must be at least 1 sector"),
    ("create x --table '8 8 zero'", 1, "line 1: zero: |starts at sector 8, must start at 0"),
    ("create x --table '-1 8 zero'", 1, "start sector `-1`|must be a number of sectors"),
    ("create x --table '0 8 zero\n16 8 zero'", 1, "line 2: |sector 16, must start at 8"),
    ("create x --table '0 99999999999999999999 zero'", 1, "too large: at most 18014398509481983"),
    ("create x --table '0 8 linear'", 1, "0 given, must be 2: <dev> <offset>"),
    ("create x --table '0 8 linear ./nope.img 0'", 3, "nope.img: no such file|ENOENT"),
    ("create x --table '0 8 linear nope.img 0'", 3, "`nope.img`: no mapped device|./disk.img"),
    ("create x --table '0 8 linear ./adir 0'", 1, "adir: is neither a regular file nor a block"),
    ("create x --table '0 8 linear ./fifo 0'", 1, "fifo: is neither a regular file nor a block"),
    ("create x --table '0 8 linear ./dangling 0'", 3, "link points to |nowhere|does not exist"),
    (
        "create x --table '0 8 linear ./empty.img 0'",
        1,
        "empty.img|it is empty, or has less than a sector",
    ),
    (
        "create x --table '0 8 linear ./odd.img 0'",
        1,
        "odd.img|less than a sector of 512 bytes: give it its size",
    ),
    ("create x --table '0 262144 linear ./o.img 0'", 1, "o.img|sectors: at most 131072"),
    ("create x --table '0 8 linear ./o.img 131072'", 1, "start=131072|at most 0 sectors"),
    ("create x --table '0 131072 striped 2 3 ./o.img 0 ./p.img 0'", 1, "65536 sectors|chunk 3"),
    ("create x --table '0 131072 striped 0 128'", 1, "argument 1 is 0|from 1 to 4294967295"),
    ("create x --table '0 131072 writecache'", 1, "<p|s> is missing|<origin> <cache>"),
    ("create x --table '0 131072 writecache z ./o.img ./c.img 4096 0'", 1, "`z`|`p` or `s`"),
    ("create x --table 'WC 4095 0'", 1, "`4095`|a power of two from 512 to 4096"),
    ("create x --table 'WC 8192 0'", 1, "`8192`|a power of two from 512 to 4096"),
    ("create x --table 'WC 4096'", 1, "<#opt_args> is missing"),
    ("create x --table 'WC 4096 2 hgih_watermark 50'", 1, "did you mean `high_watermark`?"),
    ("create x --table 'WC 4096 2 high_watermark 101'", 1, "high_watermark: `101`|0 to 100"),
    (
        "create x --table 'WC 4096 4 high_watermark 30 low_watermark 60'",
        1,
        "greater than or equal to low watermark: 30 < 60",
    ),
    ("create x --table 'WC 4096 1 high_watermark'", 1, "high_watermark has no value"),
    ("create x --table 'WC 4096 3 high_watermark 50'", 1, "`3`: 2 follow, at most"),
    ("create x --table 'WC 4096 2 high_watermark 50%'", 1, "high_watermark: `50%`|0 to 100"),
    (
        "create x --table '0 131072 writecache s ./o.img ./tiny.img 4096 0'",
        1,
        "create x: line 1: |tiny.img|is 8 KiB, needs at least|ENOSPC",
    ),
    (
        "create x --table '0 131072 writecache s ./o.img ./junk.img 4096 0'",
        1,
        "create x: line 1: |junk.img|neither a cache nor blank|`millpond wipe ",
    ),
    ("create x --table '0 131072 writecache s ./o.img ./o.img 4096 0'", 1, "the same device"),
    ("create z --table '0 8192 zram'", 1, "zram takes <algorithm>"),
    ("create z --table '0 8192 zram lzo'", 1, "'lzo'|lz4, lz4hc, zstd, deflate"),
    ("create z --table '0 8193 zram lz4'", 1, "length 8193: a multiple of 8 sectors"),
    ("create z --table '0 8192 zram lz4 2 mem_limit -5'", 1, "mem_limit: `-5`|bytes"),
    (
        "create z --table '0 8192 zram zstd 1 persist'",
        1,
        "line 1: |persist: millpond 0.2 was the last version|open it with millpond 0.2",
    ),
    ("create b --table '0 8 buffered ./o.img 2 memory 1M'", 1, "memory: `1M`: 8M to 1T"),
    ("create b --table '0 8 buffered ./o.img 2 dirty_seconds 0'", 1, "0.001 to 3600 seconds"),
    ("create n --table '0 8 linear nbd://127.0.0.1:1/x 0'", 1, "127.0.0.1:1: cannot connect"),
    ("create n --table '0 8 linear nbd://127.0.0.1:1/x?timeout=1 0'", 1, "us, ms, s, m or h"),
    ("create n --table '0 8 linear nbd:// 0'", 1, "the host is missing; nbd://HOST"),
    ("create n --table '0 8 linear nbd://h/%zz 0'", 1, "no URI|nbd://HOST[:PORT]/EXPORT"),
    ("create n --table '0 8 linear nbd+unix:///x 0'", 1, "needs socket=PATH; nbd://HOST"),
    ("create n --table '0 8 linear nbds://h/x 0'", 1, "nbds needs tls-certificates=DIR"),
    (
        "create n --table '0 8 linear nbds://h/x?tls-certificates=certs 0'",
        1,
        "the path of tls-certificates must begin with a slash",
    ),
    (
        "create n --table '0 8 linear nbds://127.0.0.1:1/x?tls-certificates=/nope 0'",
        3,
        "/nope/ca-cert.pem: No such file|ENOENT",
    ),
    (
        "create n --table '0 8 linear nbd://h/x?tls-certificates=/nope 0'",
        1,
        "TLS belongs to nbds|with TLS they begin with nbds",
    ),
    (
        "create n --table '0 8 linear nbds://h/x?tls-verify-peer=0 0'",
        1,
        "`tls-verify-peer` is no parameter|tls-certificates=DIR and perhaps tls-hostname=NAME",
    ),
    ("create n --table '0 8 linear http://h/x 0'", 1, "no devices of the scheme http:|nbd://HOST"),
    (
        "create n --table '0 8 linear nbd+unix:///nope?socket=SOCK 0'",
        3,
        "export `nope`: no such export|nope: no such device",
    ),
    (
        "create p --table '0 131072 writecache s ./p.img ./c.img 4096 2 parts 2'",
        1,
        "parts: millpond 0.2 was the last version with this option|`millpond drain` it there",
    ),
];

/// Verbs about a live write cache `wc`, about devices that are not there, and about its files.
const VERBS: &[Row] = &[
    ("create wc --table '0 8 zero'", 1, "wc: |name exists already|EEXIST"),
    (
        "create x --table '0 131072 writecache s ./p.img ./c.img 4096 0'",
        4,
        "sectors 0 to |c.img|of wc (writecache)",
    ),
    ("create x --table '0 131072 linear ./o.img 0'", 4, "o.img|origin of wc (writecache)|--force"),
    ("wipe c.img", 4, "c.img: is in use, by process |for its device wc"),
    ("recover --cache c.img --origin o.img", 4, "c.img: is in use, by process |its device wc"),
    ("recover --cache o.img --origin c.img", 4, "o.img: is in use, by process |its device wc"),
    ("set wc high_watermark 101", 1, "high_watermark: `101`|0 to 100 percent"),
    ("set wc high_watermark x", 1, "high_watermark: `x`|0 to 100 percent"),
    ("set wc nosuch 1", 3, "no attribute `nosuch`|and |more"),
    ("set wc dirty_block 1", 3, "did you mean `dirty_blocks`?"),
    ("set wc dirty_blocks 1", 1, "`dirty_blocks` is read-only|EACCES"),
    ("set wc ordered 1", 1, "ordered|load a new table|EACCES"),
    ("get wc nosuch", 3, "no attribute `nosuch`|and |more"),
    ("get nope", 3, "get nope: no such device: `millpond ls` lists"),
    ("drain nope", 3, "drain nope: no such device: `millpond ls` lists"),
    ("show nope", 3, "show nope: no such device: `millpond ls` lists"),
    ("clients nope", 3, "clients nope: no such device: `millpond ls` lists"),
    ("disconnect nbd99", 3, "nbd99: no such client: `millpond clients` lists"),
    ("set wc max_age 10d", 1, "max_age: `10d`|a time with us, ms, s, m or h"),
    ("set wc writeback_rate_max 50X", 1, "writeback_rate_max: `50X`|bytes"),
    ("message wc 0 flsh", 1, "unknown message `flsh`|flush, flush_on_suspend"),
    ("message wc flush", 2, "'flush'|<SECTOR>|a sector number is needed"),
    ("message wc 999999999 flush", 1, "sector 999999999, must be below 131072"),
    ("drain wc --within soon", 2, "'soon'|us, ms, s, m or h"),
    ("drain wc --p99 0", 2, "'0'|us, ms, s, m or h"),
    ("drain wc --p99 20", 2, "'20'|us, ms, s, m or h"),
    ("drain wc --within 600", 2, "'600'|us, ms, s, m or h"),
    ("upgrade --timeout 20", 1, "--timeout 20: a positive number with us, ms, s, m or h"),
    ("top --once --interval 1", 2, "'1'|100ms to 60s is allowed"),
    ("recover --cache nope --origin p.img", 3, "nope: no such file|ENOENT"),
    ("inspect adir", 1, "adir: is neither a regular file nor a block device"),
    ("inspect empty.img", 1, "empty.img: is empty"),
    ("wipe empty.img", 1, "empty.img: is empty"),
    ("wipe junk.img", 1, "junk.img holds something that is no cache|`--force "),
    ("help nosuch", 3, "no verb, target type or attribute `nosuch`|millpond help TARGET"),
    ("help high_watermrk", 3, "did you mean `high_watermark`?"),
    ("frobnicate", 2, "'frobnicate'|--help"),
];

/// Programs and addresses: without the daemon of the test.
const PROGRAM: &[Row] = &[
    (
        "--run-dir /nonexistent/dir ls",
        1,
        "/nonexistent/dir/control.sock|millpond daemon --run-dir|ENOENT",
    ),
    ("daemon --run-dir /proc/nope", 3, "run dir /proc/nope: |choose another with --run-dir|ENOENT"),
    ("daemon --run-dir ./LONG", 1, "a socket in it may have at most 94|choose a shorter"),
    ("--run-dir ./LONG ls", 1, "a socket in it may have at most 94|choose a shorter"),
    ("daemon --run-dir r2 --nbd nonsense", 1, "--nbd nonsense|unix:PATH and HOST:PORT"),
    ("daemon --run-dir r2 --nbd 127.0.0.1:80x", 1, "127.0.0.1:80x|unix:PATH and HOST:PORT"),
    ("daemon --run-dir r2 --nbd TAKEN", 4, "TAKEN|cannot listen there|EBUSY"),
    ("daemon --run-dir run", 4, "run: a daemon runs there already (pid |with --run-dir"),
    (
        "daemon --run-dir r2 --socket-group nosuch",
        3,
        "--socket-group nosuch: there is no such group",
    ),
    ("daemon --run-dir r2 --fuse /nonexist", 3, "--fuse /nonexist: an empty directory is needed"),
    ("daemon --run-dir r2 --fuse /etc", 1, "--fuse /etc: |choose an empty one"),
    ("daemon --run-dir r2 --cores 0", 1, "--cores 0: 1 to 16 are allowed"),
    ("run --table '0 8 zero' -- nosuchcmd", 127, "run: nosuchcmd: No such file"),
    ("run --table '0 - zero' -- true", 1, "length `-`: zero has no device that has a length"),
    ("run -- true", 2, "--table <TABLE>|--table-file <FILE>"),
    ("recover --cache c.img --origin other.img", 1, "other.img|nothing was changed|`--force "),
];

/// A command line as a shell reads it: words, with single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (nth, part) in line.split('\'').enumerate() {
        if nth % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn run(dir: &Path, line: &str) -> CommandOutput {
    let mut command = Command::new(MILLPOND);
    command.args(words(line)).current_dir(dir).stdin(Stdio::null());
    command.env("MILLPOND_RUN_DIR", dir.join("run"));
    command.output().expect("cargo built it").into()
}

/// Each row's command fails with its code, and its message has all parts. No message has a raw
/// error number, nor the words of the standard library for it.
fn check(dir: &Path, rows: &[Row], filled: impl Fn(&str) -> String) {
    let mut wrong = Vec::new();
    for (line, code, parts) in rows {
        let (line, parts) = (filled(line), filled(parts));
        let output = run(dir, &line);
        // `<p|s>` is one part.
        let parts = parts.replace("<p|s>", "<p\0s>");
        let missing: Vec<String> = parts
            .split('|')
            .map(|part| part.replace('\0', "|"))
            .filter(|part| !output.err.contains(part.as_str()))
            .collect();
        if output.code != Some(*code) || !missing.is_empty() || output.err.contains("os error") {
            wrong.push(format!("millpond {line}\n  lacks {missing:?}, {code}: {output:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// A daemon, and the files that the rows name.
fn prepared() -> Daemon {
    let daemon = Daemon::start();
    let dir = daemon.dir.path();
    for name in ["o.img", "p.img", "c.img", "junk.img"] {
        daemon.file(name, 64);
    }
    let mut junk = vec![0x5a_u8; 4096];
    junk.resize(64 << 20, 0);
    std::fs::write(dir.join("junk.img"), junk).unwrap();
    std::fs::write(dir.join("tiny.img"), [0; 8192]).unwrap();
    std::fs::write(dir.join("odd.img"), [0; 100]).unwrap();
    std::fs::write(dir.join("empty.img"), []).unwrap();
    std::fs::create_dir(dir.join("adir")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("dangling")).unwrap();
    let fifo = Command::new("mkfifo").arg(dir.join("fifo")).status().unwrap();
    assert!(fifo.success());
    daemon
}

#[test]
fn a_wrong_table_is_refused_with_what_is_allowed() {
    let daemon = prepared();
    check(daemon.dir.path(), TABLES, |text| {
        let text = text.replace("WC ", "0 131072 writecache s ./o.img ./c.img ");
        text.replace("SOCK", &daemon.run_dir().join("nbd.sock").to_string_lossy())
    });
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
}

#[test]
fn a_wrong_verb_is_refused_with_what_to_do() {
    let daemon = prepared();
    daemon.create("wc", "0 131072 writecache s ./o.img ./c.img 4096 0");
    check(daemon.dir.path(), VERBS, str::to_owned);
    assert_eq!(daemon.cli(&["ls", "--target", "writecache"]).ok().lines().count(), 1);
}

#[test]
fn a_wrong_start_is_refused_with_what_is_allowed() {
    let daemon = prepared();
    // A cache of o.img, which other.img is not.
    daemon.create("wc", "0 131072 writecache s ./o.img ./c.img 4096 2 high_watermark 100");
    assert_eq!(daemon.qemu_io("wc", &["write -P 1 0 64k", "flush"]).code, Some(0));
    daemon.cli(&["suspend", "wc"]).ok();
    assert_eq!(daemon.cli(&["remove", "wc"]).code, Some(0));
    daemon.file("other.img", 64);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let long = "y".repeat(130);
    check(daemon.dir.path(), PROGRAM, |text| {
        text.replace("TAKEN", &address).replace("LONG", &long)
    });
}

#[test]
fn a_file_that_is_no_cache_is_not_called_sound() {
    let daemon = prepared();
    let shown = run(daemon.dir.path(), "inspect junk.img");
    assert_eq!(shown.code, Some(1));
    assert!(shown.out.contains("damage      not judged: it is no cache that we know"), "{shown:?}");
}

#[test]
fn a_wrong_level_of_the_log_is_named() {
    let args = ["MILLPOND_LOG=loud", MILLPOND, "run", "--table", "0 8 zero", "--", "true"];
    let shown = sh("env", &args);
    assert_eq!(shown.code, Some(0));
    assert!(shown.err.contains("MILLPOND_LOG `loud`: error, warn, info,"), "{shown:?}");
}
