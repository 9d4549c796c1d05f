// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon as a service of systemd: what it reports, and the sandbox of the unit.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{CommandOutput, Daemon, MILLPOND, folder, sh};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// The exposure that systemd computes for the unit with a drop-in, in tenths.
fn exposure(drop_in: Option<&str>) -> u32 {
    let dir = folder();
    let unit = dir.path().join("millpond.service");
    std::fs::copy(packaging().join("systemd/millpond.service"), &unit).unwrap();
    if let Some(name) = drop_in {
        let drop_ins = dir.path().join("millpond.service.d");
        std::fs::create_dir(&drop_ins).unwrap();
        let from = packaging().join("systemd/millpond.service.d").join(name);
        std::fs::copy(from, drop_ins.join(name)).unwrap();
    }
    let unit = unit.to_str().unwrap();
    let out = sh("systemd-analyze", &["security", "--offline=true", "--no-pager", unit]).out;
    let (_, number) = out.rsplit_once("exposure level for millpond.service: ").expect("a level");
    let number = number.split_whitespace().next().unwrap().replace('.', "");
    number.parse().unwrap()
}

#[test]
fn the_unit_confines_the_daemon() {
    assert!(exposure(None) <= 20);
    assert!(exposure(Some("disks.conf")) <= 20);
    // fusermount3 is set-uid root: the drop-in has to let it be.
    assert!(exposure(Some("fuse.conf")) <= 35);
}

/// The journals of write caches outlive an end of the service, and with them what a cache device
/// has refused.
#[test]
fn the_unit_keeps_the_run_directory() {
    let unit = std::fs::read_to_string(packaging().join("systemd/millpond.service")).unwrap();
    let lines: Vec<&str> = unit.lines().collect();
    for line in ["RuntimeDirectory=millpond", "RuntimeDirectoryPreserve=yes"] {
        assert!(lines.contains(&line), "{line}");
    }
}

#[test]
fn the_example_configuration_is_right() {
    let file = packaging().join("millpond.toml");
    let check = |file: &Path| {
        let mut command = Command::new(MILLPOND);
        command.args(["daemon", "--check-config", "--config"]).arg(file);
        CommandOutput::from(command.output().unwrap())
    };
    check(&file).ok();
    // What it has commented out, too; its files do not exist here.
    let text = std::fs::read_to_string(&file).unwrap();
    let devices = text.split_once("# [[device]]").unwrap().1.replace("\n# ", "\n");
    let dir = folder();
    let devices = format!("[[device]]{devices}").replace("\n#\n", "\n");
    let devices = devices.replace("/var/lib/millpond", dir.path().to_str().unwrap());
    for (name, mib) in [("origin.img", 2048), ("cache.img", 64)] {
        crate::common::file_in(dir.path(), name, mib);
    }
    let all = dir.path().join("all.toml");
    std::fs::write(&all, devices).unwrap();
    assert!(check(&all).ok().ends_with("2 devices, no error found\n"));
}

#[test]
fn systemd_hears_of_start_life_and_end() {
    let dir = folder();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let receive = || {
        let mut text = [0; 256];
        let length = socket.recv(&mut text).expect("a message");
        String::from_utf8_lossy(&text[..length]).trim().to_owned()
    };
    // Its listeners, which are another test's subject, come first.
    let receive_ready = || loop {
        let text = receive();
        if !text.starts_with("FDSTORE=1\n") {
            return text;
        }
    };
    let settings = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        // A third of it is the time between two signs of life.
        ("WATCHDOG_USEC", "300000"),
    ];
    let daemon = Daemon::start_with_env(dir, &[], &settings);
    assert_eq!(receive_ready(), "READY=1");
    assert_eq!([receive(), receive()], ["WATCHDOG=1", "WATCHDOG=1"]);
    // One that does not answer shows no sign of life: core 0 is stopped with the process.
    daemon.signal("-STOP");
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    while socket.recv_from(&mut [0; 256]).is_ok() {}
    daemon.signal("-CONT");
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(receive(), "WATCHDOG=1");
    daemon.signal("-TERM");
    while receive() != "STOPPING=1" {}
    assert_eq!(daemon.wait().0.code(), Some(0));
}

#[test]
fn completions_name_every_verb() {
    for shell in ["bash", "zsh", "fish"] {
        let script = CommandOutput::from(
            Command::new(MILLPOND).args(["completions", shell]).output().unwrap(),
        );
        let script = script.ok();
        for verb in ["daemon", "create", "show", "remove_all", "completions"] {
            assert!(script.contains(verb), "{shell}: {verb}");
        }
    }
}

/// The permission bits and the group of a file.
fn mode_and_group(path: &Path) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path).unwrap();
    (meta.mode() & 0o777, meta.gid())
}

#[test]
fn only_the_nbd_socket_is_shared_with_a_group() {
    // A group that this process is in: another one takes root.
    let group = rustix::process::getgid().as_raw();
    let daemon = Daemon::start_with(&["--socket-group", &group.to_string()]);
    let run_dir = daemon.run_dir();
    assert_eq!(mode_and_group(&run_dir.join("nbd.sock")), (0o660, group));
    assert_eq!(mode_and_group(&run_dir.join("control.sock")).0, 0o600);
    assert_eq!(mode_and_group(&run_dir).0, 0o711);
    drop(daemon);
    let daemon = Daemon::start();
    assert_eq!(mode_and_group(&daemon.run_dir().join("nbd.sock")).0, 0o600);
    assert_eq!(mode_and_group(&daemon.run_dir()).0, 0o700);
}

#[test]
fn a_socket_mode_in_the_configuration_is_taken() {
    let dir = folder();
    std::fs::write(dir.path().join("c.toml"), "socket_mode = '0666'\n").unwrap();
    let daemon = Daemon::start_in(dir, &["--config", "c.toml"]);
    assert_eq!(mode_and_group(&daemon.run_dir().join("nbd.sock")).0, 0o666);
    let dir = folder();
    let (code, log) = crate::common::start_fails(dir.path(), &["--socket-mode", "0777"]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("--socket-mode 0777: octal, 0600 to 0666"), "{log}");
}
