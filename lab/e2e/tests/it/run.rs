// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond run`: a device for the life of one command.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::process::{Ended, run};
use e2e::test_bed::clients;

fn millpond_run(dir: &Path, table: &str, command: &[&str]) -> Ended {
    let program = millpond(Build::Workspace).unwrap();
    let mut run_command = Command::new(program);
    run_command.current_dir(dir).args(["run", "--table", table, "--"]).args(command);
    run(&mut run_command, Duration::from_secs(60)).unwrap()
}

fn shell(table: &str, script: &str) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    millpond_run(dir.path(), table, &["sh", "-c", script])
}

const MEMORY: &str = "0 8192 linear mem:4M 0";

#[test]
fn the_exit_code_is_the_commands() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        assert_eq!(shell(MEMORY, script).code, code, "{script}");
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(millpond_run(dir.path(), MEMORY, &["./nobody"]).code, 127);
    let bad = shell("0 8192 linear ./nothing.img 0", "exit 0");
    assert_ne!(bad.code, 0);
    assert!(bad.stderr.contains("nothing.img"), "{}", bad.stderr);
}

/// It has no option for the memory of its device, so none is named.
#[test]
fn a_device_beyond_the_memory_limit_is_refused() {
    let refused = shell("0 8192 linear mem:1P 0", "exit 0");
    assert_eq!(refused.code, 1);
    let why = "are free (half of what the machine or the control group has) (ENOMEM)";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
}

#[test]
fn run_gives_a_command_its_device_and_leaves_nothing() {
    if !clients(&["nbdinfo"]) {
        return;
    }
    let ended = shell(MEMORY, r#"nbdinfo --size "$MILLPOND_URI"; echo "$MILLPOND_RUN_DIR""#);
    let out = ended.ok().unwrap();
    let (size, run_dir) = out.split_once('\n').unwrap();
    assert_eq!(size, "4194304");
    assert!(!Path::new(run_dir.trim()).exists(), "{run_dir} is gone with the command");
}

#[test]
fn what_one_command_wrote_the_next_one_reads() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in [("origin.img", 16 << 20), ("cache.img", 8 << 20)] {
        std::fs::File::create(dir.path().join(name)).unwrap().set_len(bytes).unwrap();
    }
    let table = "0 32768 writecache s ./origin.img ./cache.img 4096 0";
    let qemu_io = |what: &str| {
        let script = format!(r#"qemu-io -f raw "$MILLPOND_URI" -c '{what}'"#);
        millpond_run(dir.path(), table, &["sh", "-c", &script])
    };
    qemu_io("write -P 0x77 64k 1M").ok().unwrap();
    qemu_io("read -P 0x77 64k 1M").ok().unwrap();
    assert_ne!(qemu_io("read -P 0x78 64k 1M").code, 0);
}
