// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers of compressed memory that `bench-zram` compares.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Server;

/// Name under which each server exports its device.
pub const EXPORT: &str = "bench";

/// A server that can be connected to.
#[derive(Debug)]
pub struct Peer {
    /// Its process.
    pub server: Server,
    /// Where it listens.
    pub socket: PathBuf,
    /// What exactly it serves.
    pub what: String,
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
        Ok(Peer { server, socket, what })
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
    Ok(Peer { server, socket, what: what.into() })
}
