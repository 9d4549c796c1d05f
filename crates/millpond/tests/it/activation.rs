// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listeners that a service manager has opened before the daemon starts: here the test is that
//! manager, and keeps each listener while daemons come and go.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tempfile::TempDir;

use crate::common::{Daemon, MILLPOND, folder, sh};

/// How long a client waits for its greeting.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with a run directory.
fn with_run_dir() -> TempDir {
    let dir = folder();
    std::fs::DirBuilder::new().mode(0o700).create(dir.path().join("run")).unwrap();
    dir
}

/// Starts a daemon with at most two listeners and their names. `dir/notify` is where it reports to,
/// if it is there.
fn spawn(dir: &Path, options: &[&str], listeners: &[(&str, &dyn Passed)]) -> Child {
    // The descriptors are 3 and 4, as systemd passes them; standard input and output bring them.
    let script = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, MILLPOND, "daemon", "--run-dir"]).arg(dir.join("run"));
    command.args(options).current_dir(dir).stderr(Stdio::piped());
    let names: Vec<&str> = listeners.iter().map(|(name, _)| *name).collect();
    let notify = dir.join("notify");
    if notify.exists() {
        command.env("NOTIFY_SOCKET", notify);
    }
    if !names.is_empty() {
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    }
    let mut listeners = listeners.iter().map(|(_, listener)| Stdio::from(listener.copy()));
    command.stdin(listeners.next().unwrap_or_else(Stdio::null));
    command.stdout(listeners.next().unwrap_or_else(Stdio::null));
    command.spawn().unwrap()
}

fn start(dir: TempDir, options: &[&str], listeners: &[(&str, &dyn Passed)]) -> Daemon {
    let child = spawn(dir.path(), options, listeners);
    Daemon::ready(dir, child).unwrap_or_else(|(_, log)| panic!("no daemon: {log}"))
}

/// What can be passed.
trait Passed {
    fn copy(&self) -> OwnedFd;
}

impl Passed for UnixListener {
    fn copy(&self) -> OwnedFd {
        self.try_clone().unwrap().into()
    }
}

impl Passed for OwnedFd {
    fn copy(&self) -> OwnedFd {
        self.try_clone().unwrap()
    }
}

impl Passed for TcpListener {
    fn copy(&self) -> OwnedFd {
        self.try_clone().unwrap().into()
    }
}

/// Sends the list option over a fresh connection; returns the type of the first reply.
fn first_reply(mut client: impl Read + Write) -> u32 {
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\0").unwrap();
    let mut reply = [0; 20];
    client.read_exact(&mut reply).expect("a reply");
    u32::from_be_bytes(reply[12..16].try_into().unwrap())
}

/// An export, or the end of the list of exports.
const REPLIES: [u32; 2] = [2, 1];
const NEEDS_TLS: u32 = 0x8000_0005;

fn connect_unix(path: &Path) -> UnixStream {
    let client = UnixStream::connect(path).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn connect_tcp(listener: &TcpListener) -> std::net::TcpStream {
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

#[test]
fn clients_that_connect_before_the_daemon_runs_are_served() {
    let mut dir = with_run_dir();
    let path = dir.path().join("run/nbd.sock");
    let (unix, tcp) =
        (UnixListener::bind(&path).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    // A start, another after an orderly end, a third after a kill.
    for end in ["-TERM", "-KILL", "-TERM"] {
        let (first, second) = (connect_unix(&path), connect_tcp(&tcp));
        let daemon = start(dir, &[], &[("nbd", &unix), ("nbd", &tcp)]);
        let at = tcp.local_addr().unwrap();
        let expected = format!(" nbd=unix:{} nbd={at}", path.display());
        assert!(daemon.ready.contains(&expected), "{}", daemon.ready);
        assert!(REPLIES.contains(&first_reply(first)));
        assert!(REPLIES.contains(&first_reply(second)));
        assert!(REPLIES.contains(&first_reply(connect_unix(&path))));
        daemon.create("ram", "0 2048 linear mem:1M 0");
        assert_eq!(sh("nbdinfo", &["--size", &daemon.uri("ram")]).ok().trim(), "1048576");
        daemon.signal(end);
        dir = daemon.wait().2;
        assert!(path.exists(), "the path is not the daemon's");
    }
}

#[test]
fn a_name_says_what_a_listener_serves() {
    let dir = with_run_dir();
    let path = dir.path().join("run/control.sock");
    let (control, metrics) =
        (UnixListener::bind(&path).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let daemon = start(dir, &[], &[("control", &control), ("metrics", &metrics)]);
    let at = metrics.local_addr().unwrap();
    assert!(daemon.ready.contains(&format!(" metrics={at}")), "{}", daemon.ready);
    assert!(sh("curl", &["-s", &format!("http://{at}/healthz")]).ok().starts_with("ok"));
    daemon.cli(&["ls"]).ok();
    daemon.cli(&["stop"]).ok();
    let (status, _, dir) = daemon.wait();
    assert_eq!(status.code(), Some(0));
    assert!(path.exists() && !dir.path().join("run/nbd.sock").exists());
}

/// The log of a daemon that does not start. One that takes the listener fails the test, and does
/// not keep it waiting.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "a test of a process waits for it on a thread")]
fn refused(options: &[&str], name: &str, listener: &dyn Passed) -> String {
    let dir = with_run_dir();
    let mut child = spawn(dir.path(), options, &[(name, listener)]);
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let (sender, log) = mpsc::channel();
    std::thread::spawn(move || {
        let mut log = String::new();
        while !log.contains("millpond: ready ") && lines.read_line(&mut log).unwrap() > 0 {}
        sender.send(log)
    });
    let log = log.recv_timeout(PATIENCE);
    match &log {
        Ok(log) if !log.contains("millpond: ready ") => {
            assert!(!child.wait().unwrap().success(), "{log}");
            log.clone()
        }
        taken => {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("listener `{name}` is not refused: the daemon has not ended: {taken:?}");
        }
    }
}

#[test]
fn listeners_that_nobody_can_want_are_refused() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let log = refused(&[], "millpond.socket", &tcp);
    assert!(log.contains("socket `millpond.socket` of systemd: FileDescriptorName="), "{log}");
    assert!(log.contains("allowed are nbd, control and metrics"), "{log}");

    struct Connected(UnixStream);
    impl Passed for Connected {
        fn copy(&self) -> OwnedFd {
            self.0.try_clone().unwrap().into()
        }
    }
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let log = refused(&[], "nbd", &Connected(ours));
    assert!(log.contains("descriptor 3: no listening stream socket"), "{log}");

    let everybody = TcpListener::bind("0.0.0.0:0").unwrap();
    for name in ["nbd", "control", "metrics"] {
        let log = refused(&[], name, &everybody);
        let expected = format!("socket `{name}` of systemd: 0.0.0.0 is not loopback");
        assert!(log.contains(&expected), "{log}");
    }
}

#[test]
fn clients_by_a_passed_tcp_listener_need_tls_as_others_do() {
    let dir = with_run_dir();
    let certificates = dir.path().join("certificates");
    std::fs::create_dir(&certificates).unwrap();
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(certificates.join("server-cert.pem"), signed.cert.pem()).unwrap();
    let key = signed.signing_key.serialize_pem();
    std::fs::write(certificates.join("server-key.pem"), key).unwrap();
    let path = dir.path().join("run/nbd.sock");
    let (unix, tcp) =
        (UnixListener::bind(&path).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let options = ["--nbd-tls-certs", "certificates"];
    let _daemon = start(dir, &options, &[("nbd", &unix), ("nbd", &tcp)]);
    assert_eq!(first_reply(connect_tcp(&tcp)), NEEDS_TLS);
    assert!(REPLIES.contains(&first_reply(connect_unix(&path))));
    // Without a ca-cert.pem any client can be one: other machines are not let in.
    let everybody = TcpListener::bind("0.0.0.0:0").unwrap();
    let dir = certificates.display().to_string();
    let log = refused(&["--nbd-tls-certs", &dir], "nbd", &everybody);
    assert!(log.contains("0.0.0.0 is not loopback"), "{log}");
}

#[test]
fn a_mode_that_the_socket_unit_decides_is_named() {
    let dir = folder();
    let path = dir.path().join("nbd.sock");
    let unix = UnixListener::bind(&path).unwrap();
    // It ends by itself, with its log.
    let config = dir.path().join("c.toml");
    std::fs::write(&config, "[[device]]\nname = 'x'\ntable = '0 8 linear /nowhere 0'\n").unwrap();
    let options = ["--socket-mode", "0666", "--config", config.to_str().unwrap()];
    let log = refused(&options, "nbd", &unix);
    let expected = format!("unix:{}: the socket unit decides who may connect", path.display());
    assert!(log.contains(&expected), "{log}");
}

/// A service manager with a store of descriptors.
struct Manager {
    socket: UnixDatagram,
    store: BTreeMap<String, OwnedFd>,
}

impl Manager {
    fn new(dir: &Path) -> Manager {
        let socket = UnixDatagram::bind(dir.join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager { socket, store: BTreeMap::new() }
    }

    /// Takes messages until the daemon is ready; returns those about the store.
    fn until_ready(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let mut text = [0; 256];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let text_in = &mut [IoSliceMut::new(&mut text)];
            let received = recvmsg(&self.socket, text_in, &mut control, RecvFlags::CMSG_CLOEXEC);
            let bytes = received.expect("a message").bytes;
            let passed = control.drain().find_map(|message| {
                let RecvAncillaryMessage::ScmRights(mut all) = message else { return None };
                all.next()
            });
            let text = std::str::from_utf8(&text[..bytes]).unwrap().trim().to_owned();
            let name = text.split_once("\nFDNAME=").map(|(_, name)| name.to_owned());
            if text == "READY=1" {
                return all;
            } else if text.starts_with("FDSTORE=1\n") {
                let passed = passed.expect("a descriptor");
                // HO-FS2: a file there would be locked for as long as it is stored.
                assert_eq!(socket_acceptconn(&passed), Ok(true), "{name:?} is no listener");
                self.store.insert(name.unwrap(), passed);
            } else if text.starts_with("FDSTOREREMOVE=1\n") {
                self.store.remove(&name.unwrap()).expect("it is in the store");
            } else {
                // The end of the one before.
                assert_eq!(text, "STOPPING=1");
                continue;
            }
            all.push(text);
        }
    }
}

#[test]
fn a_daemon_leaves_its_listeners_to_the_next_one() {
    let mut dir = with_run_dir();
    let mut manager = Manager::new(dir.path());
    // The store keeps no lock of a leaf: each daemon gets it.
    let disk = crate::common::file_in(dir.path(), "disk.img", 1);
    let device = format!("[[device]]\nname = 'disk'\ntable = '0 2048 linear {disk} 0'\n");
    std::fs::write(dir.path().join("c.toml"), device).unwrap();
    let path = dir.path().join("run/nbd.sock");
    for end in ["-KILL", "-TERM", "-KILL"] {
        // The first has opened them, and the others get them.
        let is_first = manager.store.is_empty();
        let waiting = if is_first { None } else { Some(connect_unix(&path)) };
        let passed: Vec<(&str, &dyn Passed)> =
            manager.store.iter().map(|(name, fd)| (name.as_str(), fd as &dyn Passed)).collect();
        let daemon = start(dir, &["--config", "c.toml"], &passed);
        let stored = manager.until_ready();
        assert_eq!(stored.len(), if is_first { 2 } else { 0 }, "{stored:?}");
        let names: Vec<&String> = manager.store.keys().collect();
        assert_eq!(names, ["stored-control-0", "stored-nbd-0"]);
        for client in waiting.into_iter().chain([connect_unix(&path)]) {
            assert!(REPLIES.contains(&first_reply(client)));
        }
        daemon.cli(&["ls"]).ok();
        daemon.signal(end);
        dir = daemon.wait().2;
    }
}

#[test]
fn a_stored_listener_that_no_option_asks_for_ends() {
    let dir = with_run_dir();
    let mut manager = Manager::new(dir.path());
    let daemon = start(dir, &["--metrics", "127.0.0.1:0", "--nbd", "127.0.0.1:0"], &[]);
    assert_eq!(manager.until_ready().len(), 4);
    let (_, nbd) = daemon.ready.split_once(" nbd=127.0.0.1:").unwrap();
    let port = nbd.split_once(' ').unwrap().0.to_owned();
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    // Two that are not asked for any more: another address at the same port, another mode.
    for name in ["stored-metrics-0", "stored-nbd-0"] {
        manager.store.remove(name).unwrap();
    }
    let control = dir.path().join("run/control.sock");
    std::fs::set_permissions(&control, std::fs::Permissions::from_mode(0o644)).unwrap();
    let passed: Vec<(&str, &dyn Passed)> =
        manager.store.iter().map(|(name, fd)| (name.as_str(), fd as &dyn Passed)).collect();
    let everywhere = format!("0.0.0.0:{port}");
    let options = ["--nbd", &everywhere, "--allow-remote"];
    let daemon = start(dir, &options, &passed);
    let said = manager.until_ready();
    let removed = said.iter().filter(|text| text.starts_with("FDSTOREREMOVE")).count();
    assert_eq!((removed, said.len()), (2, 5), "{said:?}");
    assert!(daemon.ready.contains(&format!(" nbd={everywhere} ")), "{}", daemon.ready);
    assert_eq!(std::fs::metadata(&control).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.cli(&["ls"]).ok();
    assert!(REPLIES.contains(&first_reply(connect_unix(&daemon.run_dir().join("nbd.sock")))));
    let client = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    assert!(REPLIES.contains(&first_reply(client)));
}
