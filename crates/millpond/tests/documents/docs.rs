// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manuals' examples are run: each `sh` block, in order; a block that follows one at once is
//! what it prints. Each `toml` block is a config that a daemon starts with. Pages for operators run
//! each block with a daemon of its own. Messages that a page explains are the program's, and links
//! lead to files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{self, Daemon, file_in, folder, sh};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The fenced blocks of a manual: language, text, and whether it follows the one before at once.
fn blocks(manual: &str) -> Vec<(String, String, bool)> {
    let text = std::fs::read_to_string(repository().join("docs").join(manual))
        .expect("the manual is there");
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

/// A folder whose `bin` has the program, and a shell in it, with this run directory.
fn shell(script: &str, dir: &Path, run_dir: &Path) -> common::CommandOutput {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).expect("a writable folder");
    std::os::unix::fs::symlink(common::MILLPOND, bin.join("millpond")).expect("a writable folder");
    let search = std::env::var("PATH").expect("tests have a PATH");
    // No one removes a device in the moment after its client has gone; a script does.
    let client = format!(
        "#!/bin/sh\nPATH={search} qemu-io \"$@\"; code=$?\nfor n in $(seq 100); do\n  \
         millpond clients | grep -q nbd || break; sleep 0.05\ndone\nexit $code\n"
    );
    std::fs::write(bin.join("qemu-io"), client).expect("a writable folder");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bin.join("qemu-io"), mode).expect("a file of ours");
    // A daemon that the commands start must not outlive them when one fails: it has their output.
    let end = "trap 'test -z \"$!\" || kill $! 2>&- || true' EXIT";
    // No one starts a server again before the killed one has closed its files; a script does.
    let kill = "kill() {
        command kill \"$@\" || return
        for id; do :; done
        while test -h \"/proc/$id/fd/0\"; do sleep 0.05; done
    }";
    let script = format!("set -e\ncd {}\n{kill}\n{end}\n{script}", dir.display());
    let variables = [
        format!("MILLPOND_RUN_DIR={}", run_dir.display()),
        format!("PATH={}:{search}", bin.display()),
    ];
    sh("env", &[&variables[0], &variables[1], "LC_ALL=C.UTF-8", "sh", "-c", &script])
}

/// Runs each block of commands of a page with a daemon of its own, after the block of the page's
/// section on its devices, if it has one. A block that follows one at once is what it prints.
fn run_page(page: &str) {
    let mut all = blocks(page);
    let text = std::fs::read_to_string(repository().join("docs").join(page)).expect("a page");
    let devices = if text.contains("\n## The devices of these examples\n") {
        all.remove(0).1
    } else {
        String::new()
    };
    std::thread::scope(|threads| {
        for (at, (language, commands, _)) in all.iter().enumerate() {
            let output =
                all.get(at + 1).filter(|(language, _, follows)| *follows && language != "sh");
            let devices = &devices;
            if language != "sh" {
                continue;
            }
            threads.spawn(move || {
                let daemon = Daemon::start();
                let script = format!("{devices}\n{commands}");
                let result = shell(&script, daemon.dir.path(), &daemon.run_dir());
                let done = (result.code, result.err.as_str());
                assert_eq!(done, (Some(0), ""), "{page}:\n{commands}\n{result:?}");
                if let Some((_, output, _)) = output {
                    assert_eq!(result.out.trim_end(), output.trim_end(), "{page}:\n{commands}");
                }
            });
        }
    });
}

#[test]
fn every_sequence_of_the_runbook_works() {
    run_page("runbook.md");
}

#[test]
fn every_command_of_the_tuning_page_works() {
    run_page("tuning.md");
}

#[test]
fn every_command_of_the_page_on_origins_works() {
    run_page("origins.md");
}

/// The commands of the program that a page has in its text, and in blocks without a language.
fn commands_of(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository().join("docs").join(page)).expect("a page");
    let (mut commands, mut block) = (Vec::new(), None);
    for line in text.lines() {
        match (line.strip_prefix("```"), &block) {
            (Some(language), None) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, Some("")) => commands.push(line),
            (None, Some(_)) => {}
            (None, None) => commands.extend(line.split('`').skip(1).step_by(2)),
        }
    }
    commands.retain(|command| command.starts_with("millpond "));
    commands.into_iter().map(str::to_owned).collect()
}

#[test]
fn the_commands_of_the_pages_on_services_work() {
    let dir = folder();
    let config = "[[device]]\nname = 'wc'\ntable = '0 - writecache s ./o.img ./c.img 4096 0'\n\
                  [[device]]\nname = 'zram0'\nzram = true\n";
    std::fs::write(dir.path().join("pond.toml"), config).expect("a writable folder");
    file_in(dir.path(), "o.img", 64);
    file_in(dir.path(), "c.img", 16);
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    let mut script = String::new();
    for (page, least) in [("config.md", 5), ("service.md", 3)] {
        let mut commands = commands_of(page);
        // That is the daemon of this test.
        commands.retain(|command| command != "millpond daemon --config FILE");
        assert!(commands.len() >= least, "{page}: {commands:?}");
        for command in commands {
            let command = command.replace("/etc/millpond.toml", "pond.toml");
            let command =
                command.replace("save FILE", "save new.toml").replace("FILE", "pond.toml");
            script.push_str(&format!("{command}\n"));
        }
    }
    let result = shell(&script, daemon.dir.path(), &daemon.run_dir());
    // An upgrade is one of the commands: the daemon is no child of this test any more.
    daemon.cli(&["stop"]).ok();
    let errors = result.err.lines().filter(|line| !line.contains("warning: not saved: "));
    assert_eq!((result.code, errors.count()), (Some(0), 0), "{script}\n{result:?}");
    assert!(result.out.contains("pond.toml: 2 devices, no error found"), "{result:?}");
    // `save` has written what the commands have changed.
    let saved = std::fs::read_to_string(daemon.dir.path().join("pond.toml")).expect("saved");
    assert!(saved.contains("\nro = \"1\"") && saved.contains("8388608 zram"), "{saved}");
}

#[test]
fn the_commands_of_the_readme_work_in_order() {
    let dir = folder();
    let blocks = blocks("../README.md").into_iter().filter(|(language, ..)| language == "sh");
    let commands: Vec<String> = blocks.map(|(_, commands, _)| commands).collect();
    assert!(commands.len() >= 4, "{commands:?}");
    let result = shell(&commands.join("\n"), dir.path(), &dir.path().join("run"));
    assert_eq!(result.code, Some(0), "{result:?}");
    assert!(
        result.out.contains("\n  dirty   ") && result.out.contains("\nsuperblock "),
        "{result:?}"
    );
}

/// The text of all sources of the program, with the strings that lines continue joined.
fn sources() -> String {
    let mut text = String::new();
    let mut folders = vec![repository().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("tests") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let file = std::fs::read_to_string(path).expect("a source");
                let mut joined = false;
                for line in file.lines() {
                    let line = if joined { line.trim_start() } else { line };
                    joined = line.ends_with('\\');
                    text.push_str(line.strip_suffix('\\').unwrap_or(line));
                    text.push_str(if joined { "" } else { "\n" });
                }
            }
        }
    }
    text
}

#[test]
fn the_program_prints_each_message_that_is_explained() {
    let (sources, mut explained) = (sources(), 0);
    let page = repository().join("docs/troubleshooting.md");
    for line in std::fs::read_to_string(page).expect("a page").lines() {
        let Some((message, _)) = line.strip_prefix("| `").and_then(|l| l.split_once('`')) else {
            continue;
        };
        assert!(sources.contains(message), "nothing prints `{message}`");
        explained += 1;
    }
    assert!(explained >= 30, "{explained} messages");
}

/// The pages for people: Markdown in the root, in `docs`, and beside the targets.
fn pages() -> Vec<PathBuf> {
    let root = repository();
    let folders = ["", "docs", "docs/format", "docs/decisions"].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|f| std::fs::read_dir(f).expect("a folder"));
    let mut pages: Vec<PathBuf> = files.map(|e| e.unwrap().path()).collect();
    pages.retain(|p| p.extension().is_some_and(|e| e == "md"));
    let targets =
        ["writecache/writecache.md", "zram/zram.md", "pagecache/buffered.md", "objvol/objvol.md"];
    for page in targets {
        pages.push(root.join("crates").join(page));
    }
    pages
}

/// The kernel does not ask how large a block of a cache is: without these words a file system gets
/// sectors of 512 bytes.
#[test]
fn examples_of_block_devices_state_the_block_size() {
    let (mut lines, mut page_names) = (0, Vec::new());
    for page in pages() {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        // What was run, and when.
        if ["published.md", "CHANGELOG.md", "performance.md"].contains(&&*name) {
            continue;
        }
        for line in std::fs::read_to_string(&page).expect("a page").lines() {
            let is_nbdtab = line.starts_with("nbd") && line.contains(" /run/millpond/nbd.sock ")
                || line.contains(" _millpond");
            let wanted = match (is_nbdtab, line.starts_with("losetup ")) {
                (true, _) => "bs=4096",
                (_, true) => "--sector-size 4096",
                _ => continue,
            };
            // A sentence about the option is no line of the table.
            if !line.contains('`') {
                assert!(line.contains(wanted), "{name}: `{line}` lacks {wanted}");
                lines += 1;
            }
        }
        page_names.push(name);
    }
    assert!(lines >= 3, "{lines} lines on {} pages", page_names.len());
}

/// `--help` and the man pages send readers to pages by their place in the repository, which they
/// keep where they are installed.
#[test]
fn pages_that_the_help_names_exist() {
    let help = repository().join("crates/millpond/tests/help");
    let mut checked = 0;
    for file in std::fs::read_dir(help).expect("a folder") {
        let text = std::fs::read_to_string(file.unwrap().path()).expect("a help text");
        for word in text.split(|c: char| c.is_whitespace() || "(),;".contains(c)) {
            let word = word.trim_end_matches('.');
            if word.contains('/') && word.ends_with(".md") {
                assert!(repository().join(word).exists(), "the help names {word}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 2, "{checked} names");
}

#[test]
fn links_between_pages_lead_to_files() {
    let mut checked = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let target = link.0.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains(':') || target.contains(char::is_whitespace) {
                continue;
            }
            let file = page.parent().expect("a folder").join(target);
            assert!(file.exists(), "{}: {target}", page.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked} links");
}
