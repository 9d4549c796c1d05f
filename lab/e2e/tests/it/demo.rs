// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make demo` where nothing but Rust is installed, small.
use std::process::Command;
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::process::run;

const PATIENCE: Duration = Duration::from_secs(300);

fn demo(args: &[&str]) -> (Result<String, String>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.args(["--size", "64M", "--dir"]).arg(dir.path()).args(args);
    command.env("MILLPOND_BIN", millpond(Build::Workspace).unwrap());
    let ended = run(&mut command, PATIENCE).unwrap();
    (ended.ok(), std::fs::read_dir(dir.path()).unwrap().count())
}

#[test]
fn the_demo_passes_with_its_own_client() {
    let (printed, left) = demo(&["--own-client"]);
    let printed = printed.unwrap();
    assert!(printed.contains("demo: PASSED"), "{printed}");
    assert!(printed.contains("own client"), "{printed}");
    assert_eq!(left, 0, "it leaves something in its folder");
}
