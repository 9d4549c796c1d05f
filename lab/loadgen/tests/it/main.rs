// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program as people run it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exports;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const LOADGEN: &str = env!("CARGO_BIN_EXE_loadgen");

/// Exit code and output of a run.
#[derive(Debug)]
struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for CommandOutput {
    fn from(o: Output) -> CommandOutput {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        CommandOutput { code: o.status.code(), out: text(o.stdout), err: text(o.stderr) }
    }
}

impl CommandOutput {
    /// What it printed; it must have exited with 0 and said nothing else.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{self:?}");
        self.out
    }

    /// What it said on standard error; it must have exited with `code` and printed nothing.
    #[track_caller]
    fn failed(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (Some(code), ""), "{self:?}");
        self.err
    }
}

/// A folder under the build's target directory: unlike /tmp it has O_DIRECT nearly everywhere.
fn folder() -> TempDir {
    tempfile::Builder::new().prefix("pond").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file of `mib` MiB.
fn file_in(dir: &Path, name: &str, mib: u64) -> PathBuf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path
}

fn loadgen_in(dir: &Path, args: &[&str]) -> CommandOutput {
    let output = Command::new(LOADGEN).args(args).current_dir(dir).output();
    output.expect("cargo built it").into()
}

fn loadgen(args: &[&str]) -> CommandOutput {
    loadgen_in(folder().path(), args)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&loadgen(&[args, &["-o", "json"]].concat()).ok()).expect("JSON")
}

#[test]
fn every_job_does_exactly_the_number_of_requests() {
    let args = ["--raw", "mem:1M", "--rw", "randrw", "--jobs", "2", "--number_ios", "1000"];
    let report = json(&[&args[..], &["--iodepth", "7", "--rwmixread", "30"]].concat());
    let ios = |job: &Value, side: &str| job[side]["total_ios"].as_u64().unwrap();
    let jobs = report["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        assert_eq!(ios(job, "read") + ios(job, "write"), 1000);
        // 30 % of 1000 drawn at random: five deviations of 14.5 to either side.
        assert!((228..=372).contains(&ios(job, "read")), "{job}");
    }
    assert_eq!(ios(&report["devices"][0], "read") + ios(&report["devices"][0], "write"), 2000);
    assert_eq!(report["devices"][0]["read"]["io_bytes"], ios(&report["devices"][0], "read") * 4096);
}

#[test]
fn a_run_ends_when_its_time_is_over_also_without_io_uring() {
    for more in [&[][..], &["--no-uring"]] {
        let args = ["--raw", "null:1G", "--runtime", "100ms", "--iodepth", "4", "--latency", "on"];
        let report = json(&[&args, more].concat());
        let read = &report["jobs"][0]["read"];
        let ns = read["runtime_ns"].as_u64().unwrap();
        assert!((100_000_000..1_000_000_000).contains(&ns), "{ns}");
        assert_eq!(read["clat_ns"]["N"], read["total_ios"]);
    }
}

#[test]
fn devices_and_their_leaf_take_turns_on_the_same_data() {
    let report = json(&[
        "--device",
        "a=0 2048 linear mem:1M 0",
        "--device",
        "b=0 2048 linear mem:1M 0",
        "--set",
        "b:mapping=clone",
        "--drive",
        "mem:1M",
        "--drive",
        "a",
        "--drive",
        "b",
        "--turns",
        "3",
        "--number-ios",
        "256",
        "--verify",
        "--rw",
        "write",
    ]);
    let devices = report["devices"].as_array().unwrap();
    let names: Vec<_> = devices.iter().map(|d| d["jobname"].as_str().unwrap()).collect();
    assert_eq!(names, ["mem:1M", "a", "b"]);
    for device in devices {
        assert_eq!(device["turns_iops"].as_array().unwrap().len(), 3);
        assert_eq!(device["write"]["total_ios"], 3 * 256);
    }
    // A file is open once for both: its lock would refuse a second time.
    let dir = folder();
    file_in(dir.path(), "disk.img", 1);
    let args = ["--device", "a=0 2048 linear ./disk.img 0", "--drive", "a", "--drive"];
    loadgen_in(dir.path(), &[&args[..], &["./disk.img", "--number-ios", "8"]].concat()).ok();
    let report = loadgen(&["--device", "a=0 8 zero", "--drive", "a", "--set", "a:nosuch=1"]);
    assert!(report.failed(3).contains("--set a: "));
}

#[test]
fn a_stack_of_devices_verifies_what_it_wrote() {
    for mapping in ["in-place", "clone"] {
        let report = loadgen(&[
            "--device",
            "low=0 2048 linear mem:1M 0",
            "--device",
            "mid=0 2048 striped 2 8 low 0 low 1024",
            "--table",
            "0 1024 linear mid 1024\n1024 1024 linear mid 0",
            "--rw",
            "randrw",
            "--bs",
            "2K",
            "--iodepth",
            "16",
            "--jobs",
            "2",
            "--number-ios",
            "4000",
            "--verify",
            "--mapping",
            mapping,
        ]);
        let text = report.ok();
        assert!(text.contains(&format!("mapping={mapping}")), "{text}");
        assert!(text.contains(" blocks as written"), "{text}");
    }
}

#[test]
fn what_an_engine_keeps_is_verified_and_settled() {
    let dir = folder();
    file_in(dir.path(), "origin.img", 16);
    file_in(dir.path(), "cache.img", 16);
    let table = "0 16384 writecache s ./origin.img ./cache.img 4096 0";
    let args = ["--table", table, "--iodepth", "8"];
    // On cores of their own, from where they send bios to the engine's.
    let write = ["--rw", "write", "--jobs", "2", "--number-ios", "1024", "--verify"];
    let text = loadgen_in(dir.path(), &[&args[..], &write].concat()).ok();
    assert!(text.contains("verify: 2048 blocks as written"), "{text}");
    let read = ["--rw", "read", "--number-ios", "2048", "--verify"];
    let text = loadgen_in(dir.path(), &[&args[..], &read].concat()).ok();
    assert!(text.contains("verify: 2048 blocks as written"), "{text}");
}

#[test]
fn verify_reports_device_sector_and_content_of_a_wrong_block() {
    let dir = folder();
    let disk = file_in(dir.path(), "disk.img", 1);
    let file = std::fs::File::options().read(true).write(true).open(disk).unwrap();
    let args = ["--table", "0 2048 linear ./disk.img 0", "--name", "d", "--iodepth", "4"];
    let run = |rw| {
        let all = [&args[..], &["--rw", rw, "--number-ios", "256", "--verify"]].concat();
        loadgen_in(dir.path(), &all)
    };
    let mut sector = [0; 512];
    run("write").ok();
    run("read").ok();

    file.read_exact_at(&mut sector, 700 * 512).unwrap();
    let (good, bad) = (sector[300], sector[300] ^ 0x40);
    file.write_all_at(&[bad], 700 * 512 + 300).unwrap();
    let wanted = format!("1 wrong bytes, at byte 300 {bad:#04x} for {good:#04x}");
    let report = run("read").failed(1);
    assert!(
        report.contains("d: verify: sector 700 does not hold a round of seed 1, but"),
        "{report}"
    );
    assert!(report.contains(&wanted), "{report}");

    // A block that lies elsewhere, and one that was never written.
    file.write_all_at(&[good], 700 * 512 + 300).unwrap();
    file.write_all_at(&sector, 16 * 512).unwrap();
    let report = run("read").failed(1);
    assert!(
        report.contains("sector 16 does not hold a round of seed 1, but round 1 of sector 700")
    );
    file.write_all_at(&[0; 512], 16 * 512).unwrap();
    let report = run("read").failed(1);
    assert!(report.contains("sector 16 does not hold a round of seed 1, but zeroes"), "{report}");
}

#[test]
fn verify_notices_a_device_that_drops_writes() {
    let table = "0 2048 flakey mem:1M 0 0 1 1 drop_writes";
    let report = loadgen(&["--table", table, "--rw", "write", "--number-ios", "10", "--verify"]);
    let report = report.failed(1);
    assert!(report.contains("pond: verify: sector 0 does not hold round 1 of seed 1, but zeroes"));
}

#[test]
fn a_failed_request_is_told_by_device_operation_and_sector() {
    let table = "0 1000 linear mem:1M 0\n1000 1048 error";
    for (rw, op, jobs) in [("read", "read", "1"), ("write", "write", "2")] {
        let args = ["--table", table, "--name", "half", "--rw", rw, "--iodepth", "8"];
        let args = [&args[..], &["--jobs", jobs]].concat();
        let report = loadgen(&args).failed(1);
        assert_eq!(report, format!("loadgen: half: {op} at sector 1000: I/O error (EIO)\n"));
    }
}

#[test]
fn exit_codes_are_those_of_millpond() {
    loadgen(&["--raw", "mem:1M", "--bs", "1000"]).failed(2);
    loadgen(&["--raw", "nosuch"]).failed(3);
    let report = loadgen(&["--raw", "mem:1M", "--size", "2M"]).failed(1);
    assert!(report.contains("mem:1M: --size 2097152 is more than the device has"), "{report}");
    let dir = folder();
    file_in(dir.path(), "disk.img", 1);
    let report = loadgen_in(dir.path(), &["--raw", "./disk.img", "--no-uring"]).failed(1);
    assert!(report.contains("files need io_uring"), "{report}");
}

#[test]
fn a_wrong_word_is_refused_with_what_is_allowed() {
    for (args, code, parts) in [
        (&["--raw", "null:1M", "--runtime", "1"][..], 2, "'1'|us, ms, s, m or h"),
        (&["--raw", "mem:1G", "--rw", "foo"], 2, "'foo'|read, write, randread, randwrite, rw, "),
        (&["--uri", "nbd://127.0.0.1:1/x?timeout=1"], 1, "us, ms, s, m or h"),
        (&["--uri", "nbd://127.0.0.1:1/x"], 1, "127.0.0.1:1: cannot connect"),
    ] {
        let err = loadgen(args).failed(code);
        for part in parts.split('|') {
            assert!(err.contains(part), "{args:?} lacks {part}: {err}");
        }
        // Neither the raw number of an error nor the words of the standard library for it.
        assert!(!err.contains("os error"), "{err}");
    }
}
