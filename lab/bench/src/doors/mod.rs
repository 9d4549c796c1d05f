// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device through several doors of one server, ours and qemu-storage-daemon (bench-doors).
//!
//! ```text
//!   NBD    loadgen --uri ────────┐
//!   FUSE   fio on a file ────────┼▶ a server on a CPU of its own ──▶ null, a file
//!   vhost  front_end, no guest ──┘   vhost-poll: the same, polling
//! ```
pub mod cores;
pub mod counts;
pub mod front_end;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use reproduce::clock;

use crate::peers::client::{Client, Done, Job, RunLength, ask};
use crate::peers::serve::{EXPORT, Endpoint, said};
use crate::peers::{TestBed, make_file};
use crate::process::Server;
use front_end::{FrontEnd, Waits};

/// How long a server may take until its doors are there.
const START_SECONDS: f64 = 10.0;

/// How a client reaches a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorKind {
    Nbd,
    Fuse,
    Vhost,
    /// With a front end that polls.
    PolledVhost,
}

impl DoorKind {
    /// For tables and keys.
    pub fn name(self) -> &'static str {
        match self {
            DoorKind::Nbd => "nbd",
            DoorKind::Fuse => "fuse",
            DoorKind::Vhost => "vhost",
            DoorKind::PolledVhost => "vhost-poll",
        }
    }
}

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A device that keeps nothing.
    Null,
    /// A file on the disk, past the page cache.
    File,
}

impl Backing {
    /// For tables and keys.
    pub fn name(self) -> &'static str {
        match self {
            Backing::Null => "null",
            Backing::File => "file",
        }
    }
}

/// A server with all doors.
#[derive(Debug)]
pub struct DoorServer {
    pub who: &'static str,
    pub backing: Backing,
    /// Its command line.
    pub what: String,
    pub server: Server,
    nbd: Endpoint,
    file: Endpoint,
    vhost: PathBuf,
    /// What is mounted.
    mount: PathBuf,
    bytes: u64,
}

fn wait_for(what: &Path) -> Result<(), String> {
    let give_up = clock() + START_SECONDS;
    while !what.exists() {
        if clock() > give_up {
            return Err(format!("{}: not there after {START_SECONDS} s", what.display()));
        }
        #[expect(clippy::disallowed_methods, reason = "waits for another process")]
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn words(command: &Command) -> String {
    let all = command.get_args().map(|word| word.to_string_lossy());
    all.fold(command.get_program().to_string_lossy().into_owned(), |all, word| {
        format!("{all} {word}")
    })
}

impl DoorServer {
    /// Our daemon, with further options, as `who`.
    ///
    /// # Errors
    /// What the program said, or why it could not be started.
    pub fn ours(
        who: &'static str,
        options: &[&str],
        backing: Backing,
        test_bed: &TestBed,
    ) -> Result<DoorServer, String> {
        let dir = test_bed.folder(&format!("{}-{who}", backing.name()))?;
        let (run, mount, vm) = (dir.join("run"), dir.join("mount"), dir.join("vm"));
        fs::create_dir_all(&mount).map_err(|e| format!("{}: {e}", mount.display()))?;
        let (bytes, sectors) = (test_bed.bytes, test_bed.bytes / 512);
        let table = match backing {
            Backing::Null => format!("0 {sectors} linear null:{bytes} 0"),
            Backing::File => {
                let file = dir.join("disk.img");
                make_file(&file, bytes)?;
                format!("0 {sectors} linear {} 0", file.display())
            }
        };
        let mut command = Command::new(&test_bed.ours);
        command.arg("daemon").arg("--run-dir").arg(&run).args(options);
        command.arg("--fuse").arg(&mount).arg("--vhost-user").arg(&vm);
        let socket = run.join("nbd.sock");
        // It takes orders only after it listens for NBD.
        let control = run.join("control.sock");
        let server = Server::start(&mut command, &test_bed.cpus, &control)?;
        let file = mount.join("dev/mapper").join(EXPORT);
        let vhost = vm.join(format!("{EXPORT}.sock"));
        let served = DoorServer {
            who,
            backing,
            what: words(&command),
            server,
            nbd: Endpoint::Nbd { socket, export: EXPORT.to_owned() },
            file: Endpoint::File(file.clone()),
            vhost: vhost.clone(),
            mount,
            bytes,
        };
        said(&test_bed.ours, &["create", EXPORT, "--table", &table], &run)?;
        wait_for(&file)?;
        wait_for(&vhost)?;
        Ok(served)
    }

    /// qemu-storage-daemon.
    ///
    /// # Errors
    /// As [`DoorServer::ours`].
    pub fn qsd(backing: Backing, test_bed: &TestBed) -> Result<DoorServer, String> {
        let dir = test_bed.folder(&format!("{}-qsd", backing.name()))?;
        let (socket, vhost, mount) = (dir.join("nbd.sock"), dir.join("vm.sock"), dir.join("fuse"));
        fs::File::create(&mount).map_err(|e| format!("{}: {e}", mount.display()))?;
        let bytes = test_bed.bytes;
        let device = match backing {
            Backing::Null => format!("driver=null-co,size={bytes},read-zeroes=on"),
            Backing::File => {
                let file = dir.join("disk.img");
                make_file(&file, bytes)?;
                let direct = "cache.direct=on,aio=io_uring,locking=off";
                format!("driver=file,filename={},{direct}", file.display())
            }
        };
        let mut command = Command::new("qemu-storage-daemon");
        // One for each door: that of FUSE shares its device with no other.
        for node in ["nbd", "fuse", "vm"] {
            command.arg("--blockdev").arg(format!("{device},node-name=disk-{node}"));
        }
        let address = format!("addr.type=unix,addr.path={}", socket.display());
        command.arg("--nbd-server").arg(format!("{address},max-connections=16"));
        for export in [
            format!("type=nbd,id=nbd,node-name=disk-nbd,name={EXPORT}"),
            format!("type=fuse,id=fuse,node-name=disk-fuse,mountpoint={}", mount.display()),
            format!(
                "type=vhost-user-blk,id=vm,node-name=disk-vm,addr.type=unix,addr.path={}",
                vhost.display()
            ),
        ] {
            command.arg("--export").arg(format!("{export},writable=on"));
        }
        let server = Server::start(&mut command, &test_bed.cpus, &socket)?;
        wait_for(&vhost)?;
        Ok(DoorServer {
            who: "qsd",
            backing,
            what: words(&command),
            server,
            nbd: Endpoint::Nbd { socket, export: EXPORT.to_owned() },
            file: Endpoint::File(mount.clone()),
            vhost,
            mount,
            bytes,
        })
    }

    /// Runs a job through a door, for so many seconds.
    ///
    /// # Errors
    /// What the client said.
    pub fn run(&self, door: DoorKind, job: &Job, seconds: f64) -> Result<Done, String> {
        let until = RunLength::Time(seconds);
        match door {
            DoorKind::Nbd => ask(Client::Lean, (&self.nbd, self.bytes), job, until),
            DoorKind::Fuse => ask(Client::Fio, (&self.file, self.bytes), job, until),
            DoorKind::Vhost => self.front_end(Waits::Asleep)?.run(job, self.bytes, seconds),
            DoorKind::PolledVhost => self.front_end(Waits::Polling)?.run(job, self.bytes, seconds),
        }
    }
}

impl DoorServer {
    fn front_end(&self, waits: Waits) -> Result<FrontEnd, String> {
        FrontEnd::connect(&self.vhost, waits)
    }
}

impl Drop for DoorServer {
    fn drop(&mut self) {
        // The server is killed after this: what it has mounted is taken away first.
        let _ = Command::new("fusermount3").arg("-uzq").arg(&self.mount).status();
    }
}
