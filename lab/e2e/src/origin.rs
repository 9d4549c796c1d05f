// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other people's NBD servers as origins of our devices: each serves `origin.img` of a folder as
//! the export `disk`, and can be killed, stopped and started again at the same address.
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::process::Process;
use crate::{clock, pause};

/// The file that is served.
pub const IMAGE: &str = "origin.img";
/// Where `NbdkitLogged` says what it was asked.
pub const LOG: &str = "origin.log";
/// Longest wait for a server to come or go.
const WAIT: Duration = Duration::from_secs(60);

/// Whose server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nbdkit,
    /// With a log of all requests.
    NbdkitLogged,
    /// That takes whole blocks of 4096 bytes only.
    NbdkitBlocks,
    /// That does one request at a time, 2 ms for each, as a disk with one head.
    NbdkitDisk,
    /// By TLS alone, with the certificates of its folder; clients need one, too.
    NbdkitTls,
    QemuNbd,
    /// That serves one connection at a time: others wait.
    QemuNbdOne,
    QemuStorageDaemon,
}

/// How clients reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Unix,
    /// On 127.0.0.1.
    Tcp,
}

#[derive(Clone, Debug)]
enum Address {
    Unix(PathBuf),
    Tcp(u16),
}

impl Kind {
    /// Its program.
    pub fn program(self) -> &'static str {
        match self {
            Kind::Nbdkit
            | Kind::NbdkitLogged
            | Kind::NbdkitBlocks
            | Kind::NbdkitDisk
            | Kind::NbdkitTls => "nbdkit",
            Kind::QemuNbd | Kind::QemuNbdOne => "qemu-nbd",
            Kind::QemuStorageDaemon => "qemu-storage-daemon",
        }
    }

    fn command(self, dir: &Path, address: &Address) -> Command {
        let image = dir.join(IMAGE);
        let mut command = Command::new(self.program());
        match self {
            Kind::Nbdkit
            | Kind::NbdkitLogged
            | Kind::NbdkitBlocks
            | Kind::NbdkitDisk
            | Kind::NbdkitTls => {
                match address {
                    Address::Unix(socket) => command.args(["-f", "-U"]).arg(socket),
                    Address::Tcp(port) => {
                        command.args(["-f", "-i", "127.0.0.1", "-p", &port.to_string()])
                    }
                };
                if self == Kind::NbdkitTls {
                    command.args(["--tls=require", "--tls-verify-peer"]);
                    command.arg(format!("--tls-certificates={}", dir.display()));
                    command.arg("file").arg(&image);
                } else if self == Kind::NbdkitLogged {
                    command.args(["--filter=log", "file"]).arg(&image);
                    command.arg(format!("logfile={}", dir.join(LOG).display()));
                } else if self == Kind::NbdkitBlocks {
                    command.args(["--filter=blocksize-policy", "file"]).arg(&image);
                    command.args(["blocksize-minimum=4096", "blocksize-preferred=4096"]);
                    command.args(["blocksize-maximum=32M", "blocksize-error-policy=error"]);
                } else if self == Kind::NbdkitDisk {
                    command.args(["--filter=noparallel", "--filter=delay", "file"]).arg(&image);
                    command.args(["serialize=all-requests", "rdelay=2ms", "wdelay=2ms"]);
                } else {
                    command.arg("file").arg(&image);
                }
            }
            Kind::QemuNbd | Kind::QemuNbdOne => {
                match address {
                    Address::Unix(socket) => command.arg("--socket").arg(socket),
                    Address::Tcp(port) => {
                        command.args(["--bind=127.0.0.1", &format!("--port={port}")])
                    }
                };
                let shared = if self == Kind::QemuNbdOne { "--shared=1" } else { "--shared=8" };
                command.args(["--persistent", shared, "--format=raw", "--discard=unmap"]);
                command.arg("--export-name=disk").arg(&image);
            }
            Kind::QemuStorageDaemon => {
                let file = image.display();
                command.args(["--blockdev", &format!("file,filename={file},node-name=f")]);
                let address = match address {
                    Address::Unix(path) => format!("type=unix,addr.path={}", path.display()),
                    Address::Tcp(port) => {
                        format!("type=inet,addr.host=127.0.0.1,addr.port={port}")
                    }
                };
                command.args(["--nbd-server", &format!("addr.{address}")]);
                command.args(["--export", "nbd,id=e,node-name=f,name=disk,writable=on"]);
            }
        }
        command
    }
}

/// A server. Dropped, it is killed. For tests: its methods panic on failure.
#[derive(Debug)]
pub struct Origin {
    kind: Kind,
    dir: PathBuf,
    address: Address,
    process: Process,
}

impl Origin {
    /// Starts a server of `dir`, to be used by the thread that has started it: nbdkit ends with
    /// that.
    pub fn start(kind: Kind, transport: Transport, dir: &Path) -> Origin {
        let address = match transport {
            Transport::Unix => Address::Unix(dir.join("origin.sock")),
            Transport::Tcp => Address::Tcp(free_port()),
        };
        let process = listening(kind, dir, &address);
        Origin { kind, dir: dir.into(), address, process }
    }

    /// The export as a table names it; `query` holds further parameters: `timeout=4s&fence=1s`.
    pub fn uri(&self, query: &str) -> String {
        let scheme = if self.kind == Kind::NbdkitTls { "nbds" } else { "nbd" };
        match &self.address {
            Address::Unix(socket) => {
                format!("{scheme}+unix:///disk?socket={}&{query}", socket.display())
            }
            Address::Tcp(_) => format!("{scheme}://{}/disk?{query}", self.peer()),
        }
    }

    /// Where it listens, as messages name it.
    pub fn peer(&self) -> String {
        match &self.address {
            Address::Unix(socket) => socket.display().to_string(),
            Address::Tcp(port) => format!("127.0.0.1:{port}"),
        }
    }

    /// The file that it serves.
    pub fn image(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    /// Stops it, so that it does nothing and its host goes on answering for it.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        // Threads stop one after the other: one may still answer a request.
        let give_up = clock() + WAIT.as_secs_f64();
        while !all_stopped(self.process.id()) {
            assert!(clock() < give_up, "{} does not stop", self.kind.program());
            pause(Duration::from_millis(5));
        }
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.signal(signal).unwrap_or_else(|e| panic!("{e}"));
    }

    /// `kill -9`, and the end of it.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.process.wait(WAIT).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Starts one that was killed again, at its old address.
    pub fn start_again(&mut self) {
        if let Address::Unix(socket) = &self.address {
            let _ = std::fs::remove_file(socket); // left by one that was killed
        }
        self.process = listening(self.kind, &self.dir, &self.address);
    }
}

/// Starts a server and waits until it takes connections.
fn listening(kind: Kind, dir: &Path, address: &Address) -> Process {
    let mut command = kind.command(dir, address);
    let process = Process::start(&mut command).unwrap_or_else(|e| panic!("{e}"));
    let give_up = clock() + WAIT.as_secs_f64();
    let connects = || match address {
        Address::Unix(socket) => UnixStream::connect(socket).is_ok(),
        Address::Tcp(port) => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
    };
    while !connects() {
        let there = clock() < give_up && process.ended().is_none();
        assert!(there, "{} does not listen", kind.program());
        pause(Duration::from_millis(5));
    }
    process
}

/// Whether no thread of a process runs.
fn all_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states = tasks.map(|task| std::fs::read_to_string(task.path().join("status")));
    states.all(|status| status.is_ok_and(|text| text.contains("State:\tT")))
}

/// A port of 127.0.0.1 that nobody has, below those that the kernel gives to clients: one of these
/// might connect to itself while the server is away.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 16_384 + (std::process::id() % 1000) as u16 * 16;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 384;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
