// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program as users run it, at the smallest sizes: its output, not its speed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod page;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const REPRODUCE: &str = env!("CARGO_BIN_EXE_reproduce");

/// Exit code and output of a command.
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

/// A folder under the build's target directory: unlike /tmp it has O_DIRECT nearly everywhere.
fn folder() -> TempDir {
    tempfile::Builder::new().prefix("pond").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn reproduce(dir: &Path, args: &[&str]) -> CommandOutput {
    let output = Command::new(REPRODUCE).args(args).current_dir(dir).output();
    output.expect("cargo built it").into()
}

/// What it printed; progress is on standard error.
#[track_caller]
fn done(message: CommandOutput) -> String {
    assert_eq!(message.code, Some(0), "{message:?}");
    message.out
}

fn names_in(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).expect("it is there");
    names.map(|entry| entry.expect("read").file_name().to_string_lossy().into_owned()).collect()
}

/// Keys that `docs/reproduce.md` promises of a run on models.
const SIMULATED_KEYS: [(&str, &str); 5] = [
    (
        "writecache",
        "lru_s sorted_s gap_fill_s gap_known_s bound_s sorted_ios sorted_mean_io_bytes \
         foreground_p99_idle_us foreground_p99_flush_us",
    ),
    ("wbt", "qd1_writer_alone_off_s qd1_writer_alone_on_s qd1_writer_alone_norule_s"),
    ("iomap", "single_map_calls_per_mib multi_map_calls_per_mib"),
    (
        "zram",
        "single_s batched_s disk_seq_s compressed_bytes packed_media_bytes compr_data_size \
         mem_used_total",
    ),
    ("noclone", "linear_clones_per_request clone_layers3_clones_per_request"),
];
/// The same of each disk with a reader beside a writer.
const WBT_KEYS: &str = "writer_alone_off_s writer_alone_on_s read_p99_alone_us read_p99_off_us \
                        read_p99_kernel_us read_p99_on_us writer_share_on";
/// And of a run on this machine; those of the others take too long for a test.
const LOCAL_KEYS: [(&str, &str); 3] = [
    (
        "iomap",
        "single_cpu_s_per_gib multi_cpu_s_per_gib copy_cpu_s_per_gib single_map_calls_per_mib \
         multi_map_calls_per_mib",
    ),
    (
        "zram",
        "single_s batched_s single_cpu_s batched_cpu_s disk_seq_s compressed_bytes \
         packed_media_bytes compr_data_size mem_used_total",
    ),
    (
        "noclone",
        "raw_iops linear_iops layers3_iops clone_linear_iops clone_layers3_iops ns_per_layer",
    ),
];

/// Each of the keys is there, with a number.
#[track_caller]
fn has(scenario: &Value, keys: impl Iterator<Item = String>) {
    for key in keys {
        assert!(scenario[&key].is_number(), "{key}: {scenario}");
    }
}

#[test]
fn virtual_time_gives_the_same_bytes_each_time() {
    let run = || {
        let dir = folder();
        let args = ["all", "--sim", "--size", "4M", "--json", "f.json", "--html", "f.html"];
        let printed = done(reproduce(dir.path(), &args));
        let read = |name| std::fs::read_to_string(dir.path().join(name)).expect("it was written");
        (printed, read("f.json"), read("f.html"))
    };
    let (first, second) = (run(), run());
    assert!(first == second, "{}\n{}", first.0, second.0);

    let json: Value = serde_json::from_str(&first.1).expect("JSON");
    assert_eq!(json["simulated"], true);
    for (scenario, keys) in SIMULATED_KEYS {
        has(&json[scenario], keys.split_whitespace().map(str::to_owned));
    }
    for disk in ["hdd", "hdd_nocache", "sata", "nvme"] {
        has(&json["wbt"], WBT_KEYS.split_whitespace().map(|key| format!("{disk}_{key}")));
    }
    // What is counted is known.
    assert_eq!(json["iomap"]["single_map_calls_per_mib"], 256);
    assert_eq!(json["iomap"]["multi_map_calls_per_mib"], 1);
    assert_eq!(json["noclone"]["linear_clones_per_request"], 0);
    assert_eq!(json["noclone"]["clone_layers3_clones_per_request"], 3);
    let rows = json["rows"].as_array().expect("rows");
    let published = rows.iter().filter(|row| row["published_ratio"].is_number()).count();
    assert_eq!((rows.len(), published), (30, 3), "{rows:?}");
}

#[test]
fn a_run_on_files_reports_the_machine_and_leaves_no_file() {
    let dir = folder();
    // The figures lie elsewhere: the directory is looked at.
    let figures = folder();
    let file = figures.path().join("f.json");
    let mut args = vec!["iomap", "zram", "noclone", "--size", "8M", "--dir", ".", "--markdown"];
    args.extend(["--json", file.to_str().expect("text")]);
    let printed = done(reproduce(dir.path(), &args));
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("it was written"))
            .expect("JSON");
    for (scenario, keys) in LOCAL_KEYS {
        has(&json[scenario], keys.split_whitespace().map(str::to_owned));
    }
    for message in ["- CPU: ", "- disk: ", "### zram", "| idle writeback | ", "### noclone"] {
        assert!(printed.contains(message), "{message}: {printed}");
    }
    assert_eq!(names_in(dir.path()), [""; 0]);
}

#[test]
fn what_can_not_be_done_is_said_before_anything_runs() {
    let dir = folder();
    for (args, code, message) in [
        (&["cache"][..], 2, "there are writecache, wbt, iomap, zram, noclone and all"),
        (&["--size", "1M"], 2, "4 MiB to 64 GiB are allowed"),
        (&["--dir", "nowhere"], 3, "nowhere: "),
        (&["--dir", "/proc"], 1, "/proc: no file can be made there"),
        (&["--dir", "/proc/version"], 1, "/proc/version: is no directory"),
        (&["zram", "--sim", "--json", "no/where.json"], 3, "no/where.json: "),
        (&["writecache", "--size", "64G", "--dir", "."], 1, "a smaller --size needs less"),
    ] {
        let ended = reproduce(dir.path(), args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{ended:?}");
        let err = ended.err;
        assert!(err.contains(message), "{args:?}: {err}");
        assert!(!err.contains(" %, "), "{args:?} has begun: {err}");
    }
    assert_eq!(names_in(dir.path()), [""; 0]);
}

#[test]
fn a_scenario_that_fails_is_named_and_the_others_go_on() {
    let dir = folder();
    // No file may become larger than 512 bytes times this: the backing file does not fit.
    let line =
        format!("ulimit -f 1024; trap '' XFSZ; exec {REPRODUCE} zram noclone --size 4M --dir .");
    let output = Command::new("sh").args(["-c", &line]).current_dir(dir.path()).output();
    let message: CommandOutput = output.expect("sh").into();
    assert_eq!(message.code, Some(1), "{message:?}");
    let reason = "zram\n  could not be run: .: ";
    assert!(message.out.contains(reason) && message.out.contains("three layers"), "{message:?}");
}

#[test]
fn whatever_ends_it_no_file_is_left() {
    for (signal, code) in [(Signal::INT, Some(1)), (Signal::TERM, Some(1)), (Signal::KILL, None)] {
        let dir = folder();
        let mut command = Command::new(REPRODUCE);
        command.args(["writecache", "--size", "64M", "--dir", "."]);
        command.args(["--json", "f.json", "--html", "f.html"]);
        command.current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("cargo built it");
        let mut err = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("flush") {
            line.clear();
            assert!(err.read_line(&mut line).expect("a line") > 0, "it ended before a flush");
        }
        assert_eq!(names_in(dir.path()), [""; 0], "files without names");
        kill_process(Pid::from_child(&child), signal).expect("it is there");
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut err, &mut rest).expect("text");
        assert_eq!(child.wait().expect("its child").code(), code, "{rest}");
        assert_eq!(
            rest.contains("interrupted; no files are left behind"),
            code.is_some(),
            "{rest}"
        );
        assert_eq!(names_in(dir.path()), [""; 0]);
    }
}
