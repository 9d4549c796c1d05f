// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `doors` at a small scale: our NBD and vhost-user are measured, and the last line has the keys.
use e2e::binary::{Build, millpond};
use serde_json::Value;

#[test]
fn doors_are_measured_and_the_last_line_is_json() {
    let program = millpond(Build::Workspace).unwrap();
    let args =
        ["--rounds", "1", "--seconds", "0.05", "--size-mib", "4", "--only", "nbd,vhost,vhost-poll"];
    let mut command = super::bench("doors");
    command.args(args).arg("--ours").arg(program);
    let output = command.output().expect("cargo built it");
    let out = String::from_utf8(output.stdout).expect("it prints text");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{complaint}");
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    for backing in ["null", "file"] {
        for (server, door, job) in [
            ("ours", "nbd", "randread_qd1"),
            ("polling", "nbd", "randread_qd1"),
            ("ours", "vhost", "randread_qd1"),
            ("polling", "vhost", "randread_qd1"),
            ("ours", "vhost", "randread_qd32"),
            ("ours", "vhost", "randwrite_qd32"),
            ("ours", "vhost-poll", "randread_qd32"),
        ] {
            for figure in ["iops", "cpu_us_per_io", "wake_ups_per_io"] {
                let key = format!("{server}_{backing}_{door}_{job}_{figure}");
                assert!(last[&key].as_f64().is_some_and(|v| v >= 0.0), "{key}: {out}");
            }
        }
    }
}
