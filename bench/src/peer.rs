// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD servers that are compared, each serving the same kind of backing.
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Server;

/// Name under which each server exports its device.
pub const EXPORT: &str = "bench";

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// This project.
    Ours,
    /// nbdkit.
    Nbdkit,
    /// qemu-storage-daemon.
    Qsd,
}

/// All of them, ours first.
pub const NAMES: [Name; 3] = [Name::Ours, Name::Nbdkit, Name::Qsd];

impl Name {
    /// As in the JSON keys.
    pub fn key(self) -> &'static str {
        match self {
            Name::Ours => "ours",
            Name::Nbdkit => "nbdkit",
            Name::Qsd => "qsd",
        }
    }
}

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// RAM; qemu-storage-daemon has none, so it serves its null device, which does less.
    Memory,
    /// A file on disk, O_DIRECT where the server knows it.
    File,
}

impl Backing {
    /// For tables and keys.
    pub fn name(self) -> &'static str {
        match self {
            Backing::Memory => "memory",
            Backing::File => "file",
        }
    }
}

/// A server that can be connected to.
#[derive(Debug)]
pub struct Peer {
    /// Who it is.
    pub name: Name,
    /// Its process.
    pub server: Server,
    /// Where it listens.
    pub socket: PathBuf,
    /// What exactly it serves.
    pub what: String,
}

/// A file of `size` bytes, none of them zero, so that no server finds a hole.
fn make_file(path: &Path, size: u64) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    let piece = vec![0x5a; 1 << 20];
    for _ in 0..size.div_ceil(piece.len() as u64) {
        file.write_all(&piece)?;
    }
    file.sync_all()
}

impl Peer {
    /// Starts `name` with `size` bytes of `backing`, in `dir`, on `cpu`. `ours` is our program.
    pub fn start(
        name: Name,
        backing: Backing,
        size: u64,
        (dir, ours, cpu): (&Path, &Path, usize),
    ) -> Result<Peer, String> {
        let dir = dir.join(format!("{}-{}", name.key(), backing.name()));
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let (socket, file) = (dir.join("nbd.sock"), dir.join("file"));
        if backing == Backing::File {
            make_file(&file, size).map_err(|e| format!("{}: {e}", file.display()))?;
        }
        let (mut command, what) = match name {
            Name::Ours => return start_ours(ours, backing, size, (&dir, &file, cpu)),
            Name::Nbdkit => nbdkit(backing, size, &socket, &file),
            Name::Qsd => qsd(backing, size, &socket, &file),
        };
        let server = Server::start(&mut command, cpu, &socket)?;
        Ok(Peer { name, server, socket, what })
    }
}

/// Where a server runs, and which program is ours.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub dir: &'a Path,
    pub program: &'a Path,
    pub cpu: usize,
}

impl Place<'_> {
    fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(dir)
    }
}

impl Peer {
    /// Starts our daemon with one device of this table, in the folder `name`.
    ///
    /// # Errors
    /// What the program said.
    pub fn ours(name: &str, table: &str, place: Place<'_>) -> Result<Peer, String> {
        let dir = place.folder(&format!("ours-{name}"))?;
        serve_table(place.program, table, (&dir, place.cpu), &format!("millpond {table}"))
    }

    /// Starts nbdkit with these words, in the folder `name`.
    ///
    /// # Errors
    /// What the program said.
    pub fn nbdkit(name: &str, plugin: &[&str], place: Place<'_>) -> Result<Peer, String> {
        let socket = place.folder(&format!("nbdkit-{name}"))?.join("nbd.sock");
        let mut command = nbdkit_at(&socket);
        command.args(plugin);
        let server = Server::start(&mut command, place.cpu, &socket)?;
        let what = format!("nbdkit {}", plugin.join(" "));
        Ok(Peer { name: Name::Nbdkit, server, socket, what })
    }

    /// An attribute of our device.
    ///
    /// # Errors
    /// What the program said.
    pub fn attribute(&self, program: &Path, attribute: &str) -> Result<String, String> {
        let run_dir = self.socket.parent().unwrap_or(Path::new("."));
        ours_said(program, &["get", EXPORT, attribute], run_dir)
    }
}

fn nbdkit_at(socket: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--exit-with-parent").arg("--unix").arg(socket);
    command
}

fn nbdkit(backing: Backing, size: u64, socket: &Path, file: &Path) -> (Command, String) {
    let mut command = nbdkit_at(socket);
    let what = match backing {
        Backing::Memory => {
            command.arg("memory").arg(size.to_string());
            "nbdkit memory"
        }
        Backing::File => {
            command.arg("file").arg(file);
            "nbdkit file (page cache)"
        }
    };
    (command, what.into())
}

fn qsd(backing: Backing, size: u64, socket: &Path, file: &Path) -> (Command, String) {
    let (device, what) = match backing {
        Backing::Memory => {
            (format!("driver=null-co,size={size},read-zeroes=on"), "qemu-storage-daemon null-co")
        }
        Backing::File => {
            let direct = "cache.direct=on,aio=io_uring";
            let device = format!("driver=file,filename={},{direct}", file.display());
            (device, "qemu-storage-daemon file (O_DIRECT, io_uring)")
        }
    };
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--blockdev").arg(format!("{device},node-name=disk"));
    let address = format!("addr.type=unix,addr.path={}", socket.display());
    command.arg("--nbd-server").arg(address);
    let export = format!("type=nbd,id=export,node-name=disk,name={EXPORT},writable=on");
    command.arg("--export").arg(export);
    (command, what.into())
}

fn start_ours(
    program: &Path,
    backing: Backing,
    size: u64,
    (dir, file, cpu): (&Path, &Path, usize),
) -> Result<Peer, String> {
    let leaf = match backing {
        Backing::Memory => format!("mem:{size}"),
        Backing::File => file.display().to_string(),
    };
    let table = format!("0 {} linear {leaf} 0", size / 512);
    let what = match backing {
        Backing::Memory => "millpond linear over mem:",
        Backing::File => "millpond linear over a file (O_DIRECT, io_uring)",
    };
    serve_table(program, &table, (dir, cpu), what)
}

/// What a verb of ours prints; it has to succeed.
fn ours_said(program: &Path, words: &[&str], run_dir: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .args(words)
        .env("MILLPOND_RUN_DIR", run_dir)
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn serve_table(
    program: &Path,
    table: &str,
    (dir, cpu): (&Path, usize),
    what: &str,
) -> Result<Peer, String> {
    let socket = dir.join("nbd.sock");
    let mut command = Command::new(program);
    command.arg("daemon").arg("--run-dir").arg(dir);
    let server = Server::start(&mut command, cpu, &socket)?;
    ours_said(program, &["create", EXPORT, "--table", table], dir)?;
    Ok(Peer { name: Name::Ours, server, socket, what: what.into() })
}
