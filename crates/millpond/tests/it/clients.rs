// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list of clients, and their disconnection.
#![expect(clippy::disallowed_methods, reason = "other processes take real time")]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::common::Daemon;

/// An interactive qemu-io, connected while it runs.
struct Connected(Child);

impl Connected {
    fn to(daemon: &Daemon, name: &str) -> Connected {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", &daemon.uri(name)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Connected(command.spawn().expect("scripts/setup.sh installs qemu-io"))
    }

    fn say(&mut self, line: &str) {
        let input = self.0.stdin.as_mut().unwrap();
        writeln!(input, "{line}").and_then(|()| input.flush()).unwrap();
    }

    /// What it has printed when its input ends.
    fn end(mut self) -> String {
        drop(self.0.stdin.take());
        let mut printed = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        self.0.wait().unwrap();
        printed
    }
}

fn clients(daemon: &Daemon) -> Vec<Value> {
    let json = daemon.cli(&["clients", "-o", "json"]).ok();
    serde_json::from_str(&json).unwrap()
}

/// The only client, once `is_it` holds for it.
fn client(daemon: &Daemon, is_it: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..200 {
        if let [only] = clients(daemon).as_slice()
            && is_it(only)
        {
            return only.clone();
        }
        sleep(Duration::from_millis(10));
    }
    panic!("no such client: {:?}", clients(daemon));
}

#[test]
fn a_client_is_listed_with_its_figures_and_disconnected() {
    let daemon = Daemon::start();
    daemon.create("d", "0 8192 linear mem:4M 0");
    assert_eq!(daemon.cli(&["clients"]).ok(), "No clients\n");
    let mut qemu = Connected::to(&daemon, "d");
    qemu.say("write -P 7 0 64k");
    // It is counted when it has been written, and in flight until it is answered.
    let is_done =
        |client: &Value| client["written_bytes"] == 65536 && client["requests_in_flight"] == 0;
    let listed = client(&daemon, is_done);
    assert_eq!(listed["device"], "d");
    assert_eq!(listed["pid"], qemu.0.id());
    let id = listed["id"].as_str().unwrap();
    let shown = daemon.cli(&["clients", "d"]).ok();
    assert!(shown.lines().nth(1).unwrap().starts_with(id), "{shown}");
    assert!(shown.contains("64.0 KiB"), "{shown}");
    let show = daemon.cli(&["show", "d"]).ok();
    assert!(show.contains("opened by             1 client\n"), "{show}");
    assert_eq!(daemon.cli(&["disconnect", id]).ok(), format!("{id}\n"));
    assert_eq!(clients(&daemon), [Value::Null; 0]);
    let err = daemon.cli(&["disconnect", id]).failed(3);
    assert!(err.contains("no such client: `millpond clients` lists"), "{err}");
    let err = daemon.cli(&["disconnect", "--device", "d"]).failed(3);
    assert!(err.contains("no client has it open"), "{err}");
    let err = daemon.cli(&["disconnect", "--device", "e"]).failed(3);
    assert!(err.contains("e: no such device"), "{err}");
    qemu.end();
    // It may be removed now.
    daemon.cli(&["remove", "d"]).ok();
}

#[test]
fn what_is_in_flight_is_answered_before_the_end() {
    let daemon = Daemon::start();
    daemon.create("slow", "0 8192 delay mem:4M 0 0 mem:4M 0 400");
    let mut qemu = Connected::to(&daemon, "slow");
    qemu.say("write -P 9 0 4k");
    client(&daemon, |client| client["requests_in_flight"] == 1);
    daemon.cli(&["disconnect", "--device", "slow"]).ok();
    let printed = qemu.end();
    assert!(printed.contains("wrote 4096/4096 bytes at offset 0"), "{printed}");
    let read = daemon.qemu_io("slow", &["read -P 9 0 4k"]);
    assert!(read.out.contains("read 4096/4096") && !read.out.contains("failed"), "{read:?}");
}
