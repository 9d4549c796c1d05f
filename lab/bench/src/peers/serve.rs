// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers: who serves what, and how each is started.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use reproduce::cpu::{cpus, pin_to};

use super::client::Job;
use super::kernel_zram::KernelZram;
use super::{TestBed, make_file};
use crate::files::{self, Files};
use crate::process::{self, Server};

/// Name under which each server exports its device.
pub const EXPORT: &str = "bench";

const fn job(rw: &'static str, kib: u32, depth: u32, connections: u32) -> Job {
    Job { rw, kib, depth, connections }
}

const ALL_JOBS: [Job; 20] = [
    job("randread", 4, 1, 1),
    job("randread", 4, 16, 1),
    job("randread", 4, 64, 1),
    job("randread", 4, 1, 4),
    job("randread", 4, 16, 4),
    job("randread", 4, 64, 4),
    job("randwrite", 4, 1, 1),
    job("randwrite", 4, 16, 1),
    job("randwrite", 4, 64, 1),
    job("randwrite", 4, 1, 4),
    job("randwrite", 4, 16, 4),
    job("randwrite", 4, 64, 4),
    job("read", 128, 16, 1),
    job("read", 128, 16, 4),
    job("write", 128, 16, 1),
    job("write", 128, 16, 4),
    job("read", 1024, 4, 1),
    job("read", 1024, 4, 4),
    job("write", 1024, 4, 1),
    job("write", 1024, 4, 4),
];
const SHORT_JOBS: [Job; 2] = [job("randread", 4, 16, 1), job("randwrite", 4, 16, 1)];
const FUSE_JOBS: [Job; 2] = [job("randread", 4, 32, 1), job("randwrite", 4, 32, 1)];
/// Writes everything once.
pub const FILL: Job = job("write", 1024, 4, 1);

/// How a client gets in.
#[derive(Clone, Debug)]
pub enum Endpoint {
    Nbd {
        socket: PathBuf,
        export: String,
    },
    /// A file on a FUSE mount, or a block device.
    File(PathBuf),
}

impl Endpoint {
    /// Its address; empty for a file.
    pub fn uri(&self) -> String {
        match self {
            Endpoint::Nbd { socket, export } => {
                format!("nbd+unix:///{export}?socket={}", socket.display())
            }
            Endpoint::File(_) => String::new(),
        }
    }
}

/// What does the work.
#[derive(Debug)]
pub enum Host {
    Process(Server),
    Files(Files),
    Kernel(KernelZram),
}

impl Host {
    /// CPU seconds so far; NaN of the kernel, whose work is the client's system time.
    pub fn cpu_seconds(&self) -> f64 {
        match self {
            Host::Process(server) => server.cpu_seconds(),
            Host::Files(files) => process::cpu_seconds_of_tree(files.id()),
            Host::Kernel(_) => f64::NAN,
        }
    }

    fn memory_bytes(&self) -> u64 {
        match self {
            Host::Process(server) => server.resident_bytes(),
            Host::Files(files) => process::resident_bytes_of_tree(files.id()),
            Host::Kernel(zram) => zram.used_bytes(),
        }
    }
}

/// A server that can be connected to.
#[derive(Debug)]
pub struct Served {
    /// Who serves: a key.
    pub who: &'static str,
    /// What exactly.
    pub what: String,
    pub host: Host,
    pub endpoint: Endpoint,
    /// Of the device.
    pub bytes: u64,
    /// Of a file in memory that stands for the server's own.
    memory_file_bytes: u64,
}

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A device that keeps nothing.
    Null,
    /// Memory; those who have none serve a file on a file system in memory.
    Memory,
    /// A file on the disk.
    File,
    /// The second half of a file: a mapping.
    Offset,
    /// Compressed memory.
    Compressed,
    /// A file through FUSE, over a device that keeps nothing; ours over memory.
    Fuse,
}

/// Our page cache over the file.
pub(super) const OURS_BUFFERED: &str = "ours_buffered";

pub const GROUPS: [Group; 6] =
    [Group::Null, Group::Memory, Group::File, Group::Offset, Group::Compressed, Group::Fuse];

impl Group {
    pub fn key(self) -> &'static str {
        match self {
            Group::Null => "null",
            Group::Memory => "memory",
            Group::File => "file",
            Group::Offset => "offset",
            Group::Compressed => "compressed",
            Group::Fuse => "fuse",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Group::Null => "A device that keeps nothing",
            Group::Memory => "Memory",
            Group::File => "A file on the disk",
            Group::Offset => "The second half of a file: a mapping",
            Group::Compressed => "Compressed memory, half compressible data",
            Group::Fuse => "A file through FUSE",
        }
    }

    /// What makes its servers unequal.
    pub fn notes(self) -> &'static [&'static str] {
        match self {
            Group::Null | Group::Offset => &[],
            Group::Memory => &["qsd and nbd_server have no memory: a file on tmpfs"],
            Group::File => {
                &["ours and qsd past the page cache, nbdkit and nbd_server through the kernel's, \
                 ours_buffered through ours; ours/ those two: ours_buffered"]
            }
            Group::Compressed => {
                &["ours and nbdkit: zstd; kernel_lz4 is the kernel's zram, no socket between; its \
                 CPU is the client's; ours/ it: ours_lz4"]
            }
            Group::Fuse => {
                &["ours over a GiB of memory, the others over devices that keep nothing"]
            }
        }
    }

    /// What clients do.
    pub fn jobs(self) -> &'static [Job] {
        match self {
            Group::Null | Group::Memory | Group::File => &ALL_JOBS,
            Group::Offset | Group::Compressed => &SHORT_JOBS,
            Group::Fuse => &FUSE_JOBS,
        }
    }

    /// Who takes part; ours first.
    pub fn peers(self) -> &'static [&'static str] {
        match self {
            Group::Null => &["ours", "nbdkit", "qsd"],
            Group::Memory => &["ours", "nbdkit", "qsd", "nbd_server"],
            Group::File => &["ours", OURS_BUFFERED, "nbdkit", "qsd", "nbd_server"],
            Group::Offset => &["ours", "nbdkit", "qsd"],
            Group::Compressed => &["ours", "ours_lz4", "nbdkit", "kernel_lz4"],
            Group::Fuse => &["ours", "qsd", "nbdfuse"],
        }
    }
}

impl Served {
    /// Starts `who` of a group.
    ///
    /// # Errors
    /// What the program said, or why it could not be started.
    pub fn start(group: Group, who: &'static str, test_bed: &TestBed) -> Result<Served, String> {
        let dir = test_bed.folder(&format!("{}-{who}", group.key()))?;
        let bytes = test_bed.bytes;
        let file = match (group, who) {
            (Group::Memory, "qsd" | "nbd_server") => {
                test_bed.memory_dir.join(format!("{}-{who}", group.key()))
            }
            _ => dir.join("file"),
        };
        let size = if group == Group::Offset { 2 * bytes } else { bytes };
        let has_file = matches!(group, Group::File | Group::Offset)
            || group == Group::Memory && ["qsd", "nbd_server"].contains(&who);
        if has_file {
            make_file(&file, size)?;
        }
        let in_memory = has_file && group == Group::Memory;
        let served = match who {
            _ if group == Group::Fuse => fuse(who, &dir, test_bed),
            "kernel_lz4" => kernel(who, bytes),
            "nbdkit" => nbdkit(group, &dir, &file, test_bed),
            "qsd" => qsd(group, &dir, &file, test_bed),
            "nbd_server" => nbd_server(&dir, &file, test_bed),
            _ => ours(group, who, &dir, &file, test_bed),
        };
        Ok(Served { memory_file_bytes: if in_memory { bytes } else { 0 }, ..served? })
    }

    fn process(
        who: &'static str,
        what: String,
        server: Server,
        endpoint: Endpoint,
        bytes: u64,
    ) -> Served {
        Served { who, what, host: Host::Process(server), endpoint, bytes, memory_file_bytes: 0 }
    }

    /// Memory that the server uses, with a file in memory that stands for it.
    pub fn memory_bytes(&self) -> u64 {
        self.host.memory_bytes() + self.memory_file_bytes
    }

    /// What a verb of ours prints.
    ///
    /// # Errors
    /// What it said when it failed.
    pub fn say(&self, program: &Path, words: &[&str]) -> Result<String, String> {
        match &self.endpoint {
            Endpoint::Nbd { socket, .. } => {
                said(program, words, socket.parent().unwrap_or(Path::new(".")))
            }
            Endpoint::File(_) => Err("no run folder is known".to_owned()),
        }
    }
}

/// What a verb of ours prints; it has to succeed.
pub(crate) fn said(program: &Path, words: &[&str], run_dir: &Path) -> Result<String, String> {
    let mut command = Command::new(program);
    let output = command.args(words).env("MILLPOND_RUN_DIR", run_dir).output();
    let output = output.map_err(|e| format!("{}: {e}", program.display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Our daemon, in this folder, with one device of this table.
pub(super) fn ours_with(
    who: &'static str,
    table: &str,
    bytes: u64,
    dir: &Path,
    test_bed: &TestBed,
) -> Result<Served, String> {
    let socket = socket_in(dir);
    let mut command = Command::new(&test_bed.ours);
    command.arg("daemon").arg("--run-dir").arg(dir);
    let server = Server::start(&mut command, &test_bed.cpus, &socket)?;
    said(&test_bed.ours, &["create", EXPORT, "--table", table], dir)?;
    let endpoint = Endpoint::Nbd { socket, export: EXPORT.to_owned() };
    Ok(Served::process(who, format!("millpond {table}"), server, endpoint, bytes))
}

/// A file of the folder, on a mount of a server on its CPU.
fn fuse(who: &'static str, dir: &Path, test_bed: &TestBed) -> Result<Served, String> {
    let home = cpus();
    pin_to(&test_bed.cpus).map_err(|e| format!("cannot pin to {:?}: {e}", test_bed.cpus))?;
    let started = match who {
        "qsd" => Files::qsd(dir),
        "nbdfuse" => Files::nbdfuse(dir),
        _ => Files::ours(&test_bed.ours, dir).map(|(files, _, linear)| (files, linear)),
    };
    pin_to(&home).map_err(|e| format!("cannot unpin: {e}"))?;
    let (files, file) = started?;
    let (what, endpoint) = (format!("{who} {}", file.display()), Endpoint::File(file));
    let host = Host::Files(files);
    Ok(Served { who, what, host, endpoint, bytes: files::BYTES, memory_file_bytes: 0 })
}

fn kernel(who: &'static str, bytes: u64) -> Result<Served, String> {
    let zram = KernelZram::new("lz4", bytes)?;
    let (what, endpoint) =
        (format!("{} lz4", zram.device().display()), Endpoint::File(zram.device()));
    Ok(Served { who, what, host: Host::Kernel(zram), endpoint, bytes, memory_file_bytes: 0 })
}

fn ours(
    group: Group,
    who: &'static str,
    dir: &Path,
    file: &Path,
    test_bed: &TestBed,
) -> Result<Served, String> {
    let (bytes, file) = (test_bed.bytes, file.display());
    let sectors = bytes / 512;
    let table = match group {
        Group::Null => format!("0 {sectors} linear null:{bytes} 0"),
        Group::Memory => format!("0 {sectors} linear mem:{bytes} 0"),
        Group::File if who == OURS_BUFFERED => {
            format!("0 {sectors} buffered {file} 2 memory {}", 2 * bytes)
        }
        Group::File => format!("0 {sectors} linear {file} 0"),
        Group::Offset => format!("0 {sectors} linear {file} {sectors}"),
        Group::Compressed if who == "ours_lz4" => format!("0 {sectors} zram lz4"),
        Group::Compressed => format!("0 {sectors} zram zstd"),
        Group::Fuse => return Err("is served as a file".to_owned()),
    };
    ours_with(who, &table, bytes, dir, test_bed)
}

/// The place of a socket; what a killed server has left there is gone.
fn socket_in(dir: &Path) -> PathBuf {
    let socket = dir.join("nbd.sock");
    let _ = fs::remove_file(&socket); // mostly there is none
    socket
}

/// nbdkit with these words behind those of every run.
pub(super) fn nbdkit_with(
    words: &[String],
    bytes: u64,
    dir: &Path,
    test_bed: &TestBed,
) -> Result<Served, String> {
    let socket = socket_in(dir);
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(words);
    let server = Server::start(&mut command, &test_bed.cpus, &socket)?;
    let endpoint = Endpoint::Nbd { socket, export: EXPORT.to_owned() };
    let what = format!("nbdkit {}", words.join(" "));
    Ok(Served::process("nbdkit", what, server, endpoint, bytes))
}

fn nbdkit(group: Group, dir: &Path, file: &Path, test_bed: &TestBed) -> Result<Served, String> {
    let (bytes, file) = (test_bed.bytes, file.display());
    let words = match group {
        Group::Null => vec!["null".to_owned(), bytes.to_string()],
        Group::Memory => vec!["memory".to_owned(), bytes.to_string()],
        Group::File => vec!["file".to_owned(), file.to_string()],
        Group::Offset => ["--filter=offset", "file", &file.to_string()]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("offset={bytes}"), format!("range={bytes}")])
            .collect(),
        Group::Compressed => {
            vec!["memory".to_owned(), bytes.to_string(), "allocator=zstd".to_owned()]
        }
        Group::Fuse => return Err("is served as a file".to_owned()),
    };
    nbdkit_with(&words, bytes, dir, test_bed)
}

/// qemu-storage-daemon with the block device `disk` of these words.
pub(super) fn qsd_with(
    device: &str,
    bytes: u64,
    dir: &Path,
    test_bed: &TestBed,
) -> Result<Served, String> {
    let socket = socket_in(dir);
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--blockdev").arg(format!("{device},node-name=disk"));
    let address = format!("addr.type=unix,addr.path={}", socket.display());
    command.arg("--nbd-server").arg(format!("{address},max-connections=16"));
    let export = format!("type=nbd,id=export,node-name=disk,name={EXPORT},writable=on");
    command.arg("--export").arg(export);
    let server = Server::start(&mut command, &test_bed.cpus, &socket)?;
    let endpoint = Endpoint::Nbd { socket, export: EXPORT.to_owned() };
    let what = format!("qemu-storage-daemon {device}");
    Ok(Served::process("qsd", what, server, endpoint, bytes))
}

fn qsd(group: Group, dir: &Path, file: &Path, test_bed: &TestBed) -> Result<Served, String> {
    let (bytes, file) = (test_bed.bytes, file.display());
    let device = match group {
        Group::Null => format!("driver=null-co,size={bytes},read-zeroes=on"),
        Group::Memory => format!("driver=file,filename={file}"),
        Group::File => format!("driver=file,filename={file},cache.direct=on,aio=io_uring"),
        Group::Offset => {
            let below = format!("file.driver=file,file.filename={file},file.cache.direct=on");
            format!("driver=raw,offset={bytes},size={bytes},{below},file.aio=io_uring")
        }
        Group::Compressed | Group::Fuse => return Err("is no such server".to_owned()),
    };
    qsd_with(&device, bytes, dir, test_bed)
}

fn nbd_server(dir: &Path, file: &Path, test_bed: &TestBed) -> Result<Served, String> {
    let (socket, config) = (dir.join("nbd.sock"), dir.join("config"));
    let (file, at) = (file.display(), socket.display());
    // It listens to TCP, too, whatever it is told; the usual port may be taken.
    let port = 20_000 + std::process::id() % 20_000;
    let text = format!(
        "[generic]\nunixsock = {at}\nlistenaddr = 127.0.0.1\nport = {port}\n\
         [{EXPORT}]\nexportname = {file}\nflush = true\nfua = true\n"
    );
    fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
    let mut command = Command::new("nbd-server");
    let pid_file = dir.join("pid");
    command.arg("-C").arg(&config).arg("-p").arg(&pid_file);
    let server = Server::start_daemon(&mut command, &test_bed.cpus, &socket, &pid_file)?;
    let endpoint = Endpoint::Nbd { socket, export: EXPORT.to_owned() };
    let what = format!("nbd-server {file}");
    Ok(Served::process("nbd_server", what, server, endpoint, test_bed.bytes))
}
