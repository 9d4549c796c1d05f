// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers: who serves what, and how each is started.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Ground, make_file};
use crate::peer::EXPORT;
use crate::process::Server;

/// How a client gets in.
#[derive(Clone, Debug)]
pub enum Door {
    Nbd {
        socket: PathBuf,
        export: String,
    },
    /// A file on a FUSE mount.
    File(PathBuf),
}

/// A server that can be connected to.
#[derive(Debug)]
pub struct Served {
    /// Who serves: a key.
    pub who: &'static str,
    /// What exactly.
    pub what: String,
    pub server: Server,
    pub door: Door,
    /// Of the device.
    pub bytes: u64,
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
}

pub const GROUPS: [Group; 5] =
    [Group::Null, Group::Memory, Group::File, Group::Offset, Group::Compressed];

impl Group {
    pub fn key(self) -> &'static str {
        match self {
            Group::Null => "null",
            Group::Memory => "memory",
            Group::File => "file",
            Group::Offset => "offset",
            Group::Compressed => "compressed",
        }
    }

    /// Who takes part; ours first.
    pub fn peers(self) -> &'static [&'static str] {
        match self {
            Group::Null => &["ours", "nbdkit", "qsd"],
            Group::Memory | Group::File => &["ours", "nbdkit", "qsd", "nbd_server"],
            Group::Offset => &["ours", "nbdkit", "qsd"],
            Group::Compressed => &["ours", "ours_lz4", "nbdkit"],
        }
    }
}

impl Served {
    /// Starts `who` of a group.
    ///
    /// # Errors
    /// What the program said, or why it could not be started.
    pub fn start(group: Group, who: &'static str, ground: &Ground) -> Result<Served, String> {
        let dir = ground.folder(&format!("{}-{who}", group.key()))?;
        let bytes = ground.bytes;
        let file = match (group, who) {
            (Group::Memory, "qsd" | "nbd_server") => {
                ground.memory_dir.join(format!("{}-{who}", group.key()))
            }
            _ => dir.join("file"),
        };
        let size = if group == Group::Offset { 2 * bytes } else { bytes };
        let has_file = matches!(group, Group::File | Group::Offset)
            || group == Group::Memory && ["qsd", "nbd_server"].contains(&who);
        if has_file {
            make_file(&file, size)?;
        }
        match who {
            "nbdkit" => nbdkit(group, &dir, &file, ground),
            "qsd" => qsd(group, &dir, &file, ground),
            "nbd_server" => nbd_server(&dir, &file, ground),
            _ => ours(group, who, &dir, &file, ground),
        }
    }

    /// What a verb of ours prints.
    ///
    /// # Errors
    /// What it said when it failed.
    pub fn say(&self, program: &Path, words: &[&str]) -> Result<String, String> {
        match &self.door {
            Door::Nbd { socket, .. } => {
                said(program, words, socket.parent().unwrap_or(Path::new(".")))
            }
            Door::File(_) => Err("no run folder is known".to_owned()),
        }
    }
}

/// What a verb of ours prints; it has to succeed.
pub(super) fn said(program: &Path, words: &[&str], run_dir: &Path) -> Result<String, String> {
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
    ground: &Ground,
) -> Result<Served, String> {
    let socket = socket_in(dir);
    let mut command = Command::new(&ground.ours);
    command.arg("daemon").arg("--run-dir").arg(dir);
    let server = Server::start(&mut command, ground.cpu, &socket)?;
    said(&ground.ours, &["create", EXPORT, "--table", table], dir)?;
    let door = Door::Nbd { socket, export: EXPORT.to_owned() };
    Ok(Served { who, what: format!("millpond {table}"), server, door, bytes })
}

fn ours(
    group: Group,
    who: &'static str,
    dir: &Path,
    file: &Path,
    ground: &Ground,
) -> Result<Served, String> {
    let (bytes, file) = (ground.bytes, file.display());
    let sectors = bytes / 512;
    let table = match group {
        Group::Null => format!("0 {sectors} linear null:{bytes} 0"),
        Group::Memory => format!("0 {sectors} linear mem:{bytes} 0"),
        Group::File => format!("0 {sectors} linear {file} 0"),
        Group::Offset => format!("0 {sectors} linear {file} {sectors}"),
        Group::Compressed if who == "ours_lz4" => format!("0 {sectors} zram lz4"),
        Group::Compressed => format!("0 {sectors} zram zstd"),
    };
    ours_with(who, &table, bytes, dir, ground)
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
    ground: &Ground,
) -> Result<Served, String> {
    let socket = socket_in(dir);
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(words);
    let server = Server::start(&mut command, ground.cpu, &socket)?;
    let door = Door::Nbd { socket, export: EXPORT.to_owned() };
    Ok(Served { who: "nbdkit", what: format!("nbdkit {}", words.join(" ")), server, door, bytes })
}

fn nbdkit(group: Group, dir: &Path, file: &Path, ground: &Ground) -> Result<Served, String> {
    let (bytes, file) = (ground.bytes, file.display());
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
    };
    nbdkit_with(&words, bytes, dir, ground)
}

/// qemu-storage-daemon with the block device `disk` of these words.
pub(super) fn qsd_with(
    device: &str,
    bytes: u64,
    dir: &Path,
    ground: &Ground,
) -> Result<Served, String> {
    let socket = socket_in(dir);
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--blockdev").arg(format!("{device},node-name=disk"));
    let address = format!("addr.type=unix,addr.path={}", socket.display());
    command.arg("--nbd-server").arg(format!("{address},max-connections=16"));
    let export = format!("type=nbd,id=export,node-name=disk,name={EXPORT},writable=on");
    command.arg("--export").arg(export);
    let server = Server::start(&mut command, ground.cpu, &socket)?;
    let door = Door::Nbd { socket, export: EXPORT.to_owned() };
    Ok(Served { who: "qsd", what: format!("qemu-storage-daemon {device}"), server, door, bytes })
}

fn qsd(group: Group, dir: &Path, file: &Path, ground: &Ground) -> Result<Served, String> {
    let (bytes, file) = (ground.bytes, file.display());
    let device = match group {
        Group::Null => format!("driver=null-co,size={bytes},read-zeroes=on"),
        Group::Memory => format!("driver=file,filename={file}"),
        Group::File => format!("driver=file,filename={file},cache.direct=on,aio=io_uring"),
        Group::Offset => {
            let below = format!("file.driver=file,file.filename={file},file.cache.direct=on");
            format!("driver=raw,offset={bytes},size={bytes},{below},file.aio=io_uring")
        }
        Group::Compressed => return Err("has no compressed memory".to_owned()),
    };
    qsd_with(&device, bytes, dir, ground)
}

fn nbd_server(dir: &Path, file: &Path, ground: &Ground) -> Result<Served, String> {
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
    let server = Server::start_daemon(&mut command, ground.cpu, &socket, &pid_file)?;
    let door = Door::Nbd { socket, export: EXPORT.to_owned() };
    let what = format!("nbd-server {file}");
    Ok(Served { who: "nbd_server", what, server, door, bytes: ground.bytes })
}
