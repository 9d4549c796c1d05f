// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond top`: a frame as text, and on a terminal of 80 columns and 24 rows.
#![expect(clippy::disallowed_methods, reason = "other processes take real time")]

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::common::{Daemon, Load, MILLPOND, sh};

/// A shell in a terminal of 80 columns and 24 rows.
struct Terminal<'a> {
    socket: &'a Path,
}

impl<'a> Terminal<'a> {
    fn open(socket: &'a Path, run_dir: &Path) -> Terminal<'a> {
        let terminal = Terminal { socket };
        let run_dir = format!("MILLPOND_RUN_DIR={}", run_dir.display());
        let args = ["new-session", "-d", "-x", "80", "-y", "24", "-e", &run_dir, "sh"];
        terminal.tmux(&args);
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let socket = self.socket.to_str().unwrap();
        sh("tmux", &[&["-f", "/dev/null", "-S", socket], args].concat()).ok()
    }

    fn type_line(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// The screen, once `is_it` holds for it.
    fn wait(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        for _ in 0..500 {
            let screen = self.screen();
            if is_it(&screen) {
                return screen;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("{what} does not come:\n{}", self.screen());
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(self.socket).arg("kill-server").output();
    }
}

/// The rate of writes in the row of a device, as it is printed.
fn write_rate(text: &str, device: &str) -> Option<String> {
    let row = text.lines().find(|line| line.split_whitespace().next() == Some(device))?;
    // Name, size with its unit, state, two rates with theirs.
    row.split_whitespace().nth(6).map(str::to_owned)
}

#[test]
fn a_frame_as_text_has_devices_clients_and_their_rates() {
    let daemon = Daemon::start();
    daemon.create("busy", "0 8192 linear mem:4M 0");
    let _load = Load::on(&daemon, "busy", 64 << 10);
    let mut text = String::new();
    for _ in 0..50 {
        text = daemon.cli(&["top", "--once", "--interval", "200ms"]).ok();
        if write_rate(&text, "busy").is_some_and(|rate| rate != "0") {
            break;
        }
    }
    assert!(text.contains("1 device, 1 client; every 200ms, by name"), "{text}");
    assert!(write_rate(&text, "busy").is_some_and(|rate| rate != "0"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("nbd1") && line.contains("pid ")), "{text}");
    let err = daemon.cli(&["top"]).failed(1);
    assert!(err.contains("must be a terminal; `--once` prints one frame"), "{err}");
    let err = daemon.cli(&["top", "--interval", "1h"]).failed(2);
    assert!(err.contains("100ms to 60s is allowed"), "{err}");
}

#[test]
fn on_a_terminal_figures_change_and_q_restores_it() {
    let daemon = Daemon::start();
    daemon.create("busy", "0 8192 linear mem:4M 0");
    let load = Load::on(&daemon, "busy", 64 << 10);
    let socket = daemon.dir.path().join("tmux");
    let terminal = Terminal::open(&socket, &daemon.run_dir());
    terminal.type_line(&format!("{MILLPOND} top --interval 100ms; echo \"ended $?\""));
    let is_shown = |screen: &str| write_rate(screen, "busy").is_some_and(|rate| rate != "0");
    let first = terminal.wait("a rate", is_shown);
    assert!(first.lines().next().unwrap().contains("1 device, 1 client; every 100ms"), "{first}");
    assert!(first.lines().nth(23).unwrap().starts_with("q quit  s sort"), "{first}");
    let rate = write_rate(&first, "busy");
    terminal.wait("another rate", |screen| is_shown(screen) && write_rate(screen, "busy") != rate);
    terminal.tmux(&["send-keys", "p"]);
    terminal.wait("the pause", |screen| screen.contains("PAUSED"));
    terminal.tmux(&["send-keys", "s"]);
    terminal.wait("the order", |screen| screen.contains("by read"));
    assert_eq!(terminal.tmux(&["display-message", "-p", "#{alternate_on}"]), "1\n");
    terminal.tmux(&["send-keys", "q"]);
    terminal.wait("the end", |screen| screen.contains("ended 0"));
    assert_eq!(terminal.tmux(&["display-message", "-p", "#{alternate_on}"]), "0\n");
    terminal.type_line("stty -a");
    terminal.wait("the terminal's state", |screen| {
        screen.contains(" icanon ") && screen.contains(" echo ")
    });
    drop(load);
}

#[test]
fn a_signal_restores_the_terminal() {
    let daemon = Daemon::start();
    daemon.create("d", "0 8 zero");
    let socket = daemon.dir.path().join("tmux");
    let terminal = Terminal::open(&socket, &daemon.run_dir());
    let pid = daemon.dir.path().join("pid");
    // The shell becomes the program in a second shell, so that its number is known.
    let file = pid.display();
    terminal
        .type_line(&format!("sh -c 'echo $$ > {file}; exec {MILLPOND} top'; echo \"ended $?\""));
    terminal.wait("the screen", |screen| screen.contains("q quit"));
    let pid = std::fs::read_to_string(&pid).unwrap();
    assert_eq!(sh("kill", &["-TERM", pid.trim()]).code, Some(0));
    terminal.wait("the end", |screen| screen.contains("ended 0"));
    assert_eq!(terminal.tmux(&["display-message", "-p", "#{alternate_on}"]), "0\n");
}
