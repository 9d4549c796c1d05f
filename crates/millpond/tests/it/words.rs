// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words from outside on their way to a shell or a terminal: they are words there, and nothing
//! else. Both were found by an attack.

use std::process::Command;

use crate::common::{CommandOutput, Daemon, MILLPOND};

/// A daemon, and a link to the program beside it.
struct Dm {
    daemon: Daemon,
}

impl Dm {
    fn start() -> Dm {
        let daemon = Daemon::start();
        std::os::unix::fs::symlink(MILLPOND, daemon.dir.path().join("dmsetup")).unwrap();
        Dm { daemon }
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        let mut command = Command::new(self.daemon.dir.path().join("dmsetup"));
        command.args(args).env("MILLPOND_RUN_DIR", self.daemon.run_dir());
        command.output().unwrap().into()
    }

    fn say(&self, line: &str) -> CommandOutput {
        self.run(&line.split(' ').collect::<Vec<_>>())
    }
}

/// Names and UUIDs with a quote were printed as they are, and whoever may make
/// a device ran commands in the scripts of the administrator.
#[test]
fn a_name_runs_nothing_in_a_shell_that_evaluates() {
    let dm = Dm::start();
    let file = dm.daemon.dir.path().join("it's;touch $PWNED;'");
    std::fs::write(&file, [0; 4096]).unwrap();
    let name = "a';touch $PWNED;'b";
    let table = format!("0 8 linear {} 0", file.to_str().unwrap().replace(' ', "\\ "));
    dm.run(&["create", name, "-u", name, "--table", &table]).ok();
    let quoted = name.replace('\'', r"'\''");
    let usual = dm.say("info -c --noheadings --nameprefixes -o name,uuid").ok();
    assert_eq!(usual, format!("DM_NAME='{quoted}':DM_UUID='{quoted}'\n"));
    let mangled = "a\\x27\\x3btouch\\x20\\x24PWNED\\x3b\\x27b";
    let bare = dm.say("info -c --noheadings --nameprefixes --unquoted -o name,uuid").ok();
    assert_eq!(bare, format!("DM_NAME={mangled}:DM_UUID={mangled}\n"));
    for uuid in [name, mangled] {
        let found = dm.run(&["info", "-c", "--noheadings", "-o", "name", "-u", uuid]).ok();
        assert_eq!(found, format!("{name}\n"));
    }
    let all = dm.say("info -c --noheadings --nameprefixes --separator=; -o all").ok();
    let pwned = dm.daemon.dir.path().join("pwned");
    let script = "eval \"$1\"; echo \"$DM_UNMANGLED_NAME\"; echo \"$DM_DEVNOS_USED\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", &all]).env("PWNED", &pwned);
    let text: CommandOutput = shell.output().unwrap().into();
    assert_eq!(text.ok(), format!("{name}\n{}\n", file.display()));
    assert!(!pwned.exists());
}

#[test]
fn what_is_printed_steers_no_terminal() {
    let dm = Dm::start();
    let is_plain =
        |text: &str| !text.chars().any(|c| !"\n\t".contains(c) && block::is_control_char(c));
    for bad in ["a\u{9b}31m", "a\x1b[31m", "a\u{202e}b", "\\x1b", "a\nb"] {
        let text = dm.run(&["create", bad, "--table", "0 8 zero"]).failed(1);
        assert!(text.contains("control characters") && is_plain(&text), "{text:?}");
        let text = dm.run(&["create", "d", "-u", bad, "--table", "0 8 zero"]).failed(1);
        assert!(text.contains("control characters") && is_plain(&text), "{text:?}");
    }
    let file = dm.daemon.dir.path().join("a\x1b[31m\u{202e}");
    std::fs::write(&file, [0; 4096]).unwrap();
    dm.run(&["create", "d", "--table", &format!("0 8 linear {} 0", file.display())]).ok();
    for line in ["table", "deps", "ls --tree", "table --concise", "info -c -o devnos_used"] {
        let text = dm.say(line).ok();
        assert!(is_plain(&text) && text.contains("a\\u001b[31m\\u202e"), "{line}: {text:?}");
    }
    for word in ["\x1b[2J", "\u{9b}2J"] {
        let millpond = dm.daemon.cli(&["message", "d", "0", word]);
        assert!(is_plain(&millpond.err), "{millpond:?}");
        assert!(is_plain(&dm.daemon.cli(&["table", word]).err));
        assert!(is_plain(&dm.run(&["message", "d", "0", word]).err));
        assert!(is_plain(&dm.run(&[word]).err));
    }
}
