// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manuals' examples are run: each `sh` block, in order; a block that follows one at once is
//! what it prints. Each `toml` block is a config that a daemon starts with.

use std::path::Path;

use crate::common::{self, Daemon, file_in, folder, sh};

/// The fenced blocks of a manual: language, text, and whether it follows the one before at once.
fn blocks(manual: &str) -> Vec<(String, String, bool)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(manual);
    let text = std::fs::read_to_string(path).expect("the manual is there");
    let mut all = Vec::new();
    let mut lines = text.lines().peekable();
    let mut after_block = false;
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            after_block = false;
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
        all.push((language.to_owned(), body.join("\n"), after_block));
        after_block = true;
    }
    all
}

/// Runs the examples of a manual with a daemon; returns how many outputs were compared.
fn run_examples(manual: &str, daemon: &Daemon, path: &Path) -> usize {
    let mut before = String::new(); // functions that the examples define
    let mut printed = None;
    let mut compared = 0;
    for (language, text, follows) in blocks(manual) {
        if language == "sh" {
            let script = format!("set -e\ncd {}\n{before}\n{text}", daemon.dir.path().display());
            let run_dir = format!("MILLPOND_RUN_DIR={}", daemon.run_dir().display());
            let search = std::env::var("PATH").expect("tests have a PATH");
            let search = format!("PATH={}:{search}", path.display());
            let message = sh("env", &[&run_dir, &search, "LC_ALL=C.UTF-8", "sh", "-c", &script]);
            assert_eq!((message.code, message.err.as_str()), (Some(0), ""), "{text}\n{message:?}");
            if text.contains("() {") {
                before.push_str(&text);
                before.push('\n');
            }
            printed = Some(message.out);
        } else {
            assert!(follows, "no command before this output:\n{text}");
            assert_eq!(printed.as_deref().map(str::trim_end), Some(text.trim_end()));
            compared += 1;
        }
    }
    compared
}

#[test]
fn the_examples_of_the_api_manual_print_what_it_says() {
    let daemon = Daemon::start();
    let compared = run_examples("api.md", &daemon, Path::new("/nowhere"));
    assert!(compared >= 8, "{compared} outputs compared");
}

#[test]
fn the_examples_of_the_dmsetup_manual_print_what_it_says() {
    let daemon = Daemon::start();
    let bin = daemon.dir.path().join("bin");
    std::fs::create_dir(&bin).expect("a writable folder");
    for name in ["millpond", "dmsetup"] {
        std::os::unix::fs::symlink(common::MILLPOND, bin.join(name)).expect("a writable folder");
    }
    let compared = run_examples("dmsetup.md", &daemon, &bin);
    assert!(compared >= 4, "{compared} outputs compared");
}

#[test]
fn the_example_of_the_config_manual_is_a_config() {
    let dir = folder();
    let (_, text, _) = blocks("config.md").swap_remove(0);
    // Ports and paths of the machine are not the test's.
    let text = text
        .replace("127.0.0.1:10809", "127.0.0.1:0")
        .replace("127.0.0.1:9750", "127.0.0.1:0")
        .replace("/run/pond.sock", "api.sock");
    let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let mount = dir.path().join("files");
    let text = match fuse {
        true => text.replace("/srv/pond", &mount.to_string_lossy()),
        false => text.lines().filter(|l| !l.starts_with("fuse")).collect::<Vec<_>>().join("\n"),
    };
    std::fs::create_dir(&mount).expect("a writable folder");
    std::fs::write(dir.path().join("pond.toml"), text).expect("a writable folder");
    file_in(dir.path(), "origin.img", 2048);
    file_in(dir.path(), "cache.img", 64);
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    assert_eq!(daemon.cli(&["ls"]).ok(), "slow\t(999:0)\nwc\t(999:1)\nzram0\t(999:2)\n");
    assert!(daemon.cli(&["info", "wc"]).ok().contains("UUID: 5c1e\n"));
    let message = daemon.qemu_io("", &["write -P 1 0 64k", "read -P 1 0 64k"]);
    assert_eq!(message.code, Some(0), "{message:?}");
    assert_eq!(mount.join("dev/mapper/wc").exists(), fuse);
    // An orderly end: a killed one would leave its mount.
    daemon.signal("-TERM");
    assert!(daemon.wait().0.success());
}
