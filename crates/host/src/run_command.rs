// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond run`: a daemon in this process for the life of one command.
use std::fs::DirBuilder;
use std::io::{ErrorKind as IoKind, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use clap::{ArgGroup, Args};
use control::{Failure, paths};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::blocking::start_blocking_thread;
use crate::config::{Config, DeviceConfig, ServeArgs};
use crate::daemon::{Beginning, Daemon};
use crate::io_failure::io_failure;
use crate::log_queue::print_error;
use crate::memory;
use crate::rundir::RunDir;
use crate::table_args::{TableArgs, read_table};

/// Run a command with a device of its own
///
/// Makes the device in a daemon of its own, sets MILLPOND_URI, MILLPOND_SOCKET and
/// MILLPOND_RUN_DIR (with --fuse MILLPOND_DEVICE, too), runs the command, shuts down cleanly
/// (everything written is on the disks) and exits with the command's status.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("source").required(true).args(["table", "table_file"]),
    after_help = "\
Examples:
  millpond run --table '0 131072 linear mem:64M 0' -- sh -c 'nbdinfo \"$MILLPOND_URI\"'
  millpond run --table-file wc.table -- sh -c 'qemu-img convert disk.qcow2 \"$MILLPOND_URI\"'
  millpond run --table '0 131072 linear mem:64M 0' --fuse /mnt -- \\
      sh -c 'mkfs.ext4 \"$MILLPOND_DEVICE\"'

Exit codes: the command's; 128+N if signal N ended it; 1 if the device could not be made."
)]
pub struct RunArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Name of the device
    #[arg(long, default_value = "pond")]
    pub(crate) name: String,
    /// Show the device as a file, too, below DIR, an empty directory; MILLPOND_DEVICE is its path
    #[arg(long, value_name = "DIR")]
    pub(crate) fuse: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// Exit codes of shells for a command that does not exist, or can't be run.
const EXIT_NO_COMMAND: u8 = 127;
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// A directory that is removed when this is dropped, unless a cache needs a journal in it.
struct PrivateDir(PathBuf);

impl PrivateDir {
    fn new() -> Result<PrivateDir, Failure> {
        let base = std::env::temp_dir();
        for nth in 0_u32.. {
            let path = base.join(format!("millpond-run-{}-{nth}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(PrivateDir(path)),
                Err(e) if e.kind() == IoKind::AlreadyExists => {}
                Err(e) => return Err(io_failure(&e, path.display())),
            }
        }
        unreachable!("2^32 directories of one process")
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        memory::remove_used_journals(&self.0);
        if memory::has_journal(&self.0) {
            let dir = self.0.display();
            print_error(&format!(
                "millpond: run: {dir} is kept until this machine boots: it has what the cache \
                 device lacks. `millpond --run-dir {dir} run` with the same table finds it"
            ));
            return;
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command and returns what to exit with. Without `run_dir` it is a private one.
pub async fn run(args: &RunArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let table = read_table(&args.table)?;
    let private = if run_dir.is_some() { None } else { Some(PrivateDir::new()?) };
    let dir = private.as_ref().map(|d| d.0.as_path()).or(run_dir);
    let run_dir = RunDir::at(dir.expect("one of the two is there"))?;
    let file = args.table.table_file.as_ref();
    let place = file.map_or_else(|| "--table".into(), |f| format!("--table-file {}", f.display()));
    let device = DeviceConfig {
        place,
        name: args.name.clone(),
        table: Some(table),
        ..DeviceConfig::default()
    };
    let serve = ServeArgs { fuse: args.fuse.clone(), ..ServeArgs::default() };
    let config = Config { file: None, devices: vec![device], serve };
    memory::set_by_default();
    // Before the command starts, so that none gets lost.
    let signals = Signals::new()?;
    start_blocking_thread().await?;
    let daemon = Daemon::start(&run_dir, config, Beginning::ForCommand).await?;
    let file = daemon.fuse_dir().map(|dir| dir.join("dev").join(dm::mangle(&args.name)));
    let exit = match spawn(args, &run_dir, file.as_deref()) {
        Ok(child) => exit_code(wait(child, signals).await?),
        Err((code, failure)) => {
            print_error(&format!("millpond: run: {failure}"));
            code
        }
    };
    daemon.stop().await?;
    Ok(exit)
}

fn spawn(args: &RunArgs, run_dir: &RunDir, device: Option<&Path>) -> Result<Child, (u8, Failure)> {
    let (program, rest) = args.command.split_first().expect("clap requires one");
    Command::new(program)
        .args(rest)
        .envs(device.map(|path| ("MILLPOND_DEVICE", path)))
        .env("MILLPOND_RUN_DIR", run_dir.path())
        .env("MILLPOND_SOCKET", run_dir.nbd())
        .env("MILLPOND_URI", uri(&args.name, &run_dir.nbd()))
        .spawn()
        .map_err(|e| {
            let code =
                if e.kind() == IoKind::NotFound { EXIT_NO_COMMAND } else { EXIT_NOT_EXECUTABLE };
            (code, io_failure(&e, program.to_string_lossy()))
        })
}

/// Waits for the command, passing signals on to it.
async fn wait(mut child: Child, mut signals: Signals) -> Result<ExitStatus, Failure> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    loop {
        tokio::select! {
            ended = child.wait() => {
                return ended.map_err(|e| io_failure(&e, "waiting for the command"));
            }
            Some(s) = signals.0.recv() => {
                if let Some(pid) = pid {
                    let _ = kill_process(pid, s); // it may have ended just now
                }
            }
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|s| 128 + s));
    code.and_then(|c| u8::try_from(c).ok()).unwrap_or(u8::MAX)
}

/// The signals to pass on, as they come.
struct Signals(mpsc::Receiver<Signal>);

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let (sender, receiver) = mpsc::channel(16);
        for (kind, number) in [
            (SignalKind::terminate(), Signal::TERM),
            (SignalKind::hangup(), Signal::HUP),
            (SignalKind::user_defined1(), Signal::USR1),
            (SignalKind::user_defined2(), Signal::USR2),
            (SignalKind::interrupt(), Signal::INT),
            (SignalKind::quit(), Signal::QUIT),
        ] {
            let mut stream = signal(kind).map_err(|e| io_failure(&e, "signal handler"))?;
            // A terminal sends these to the command, too.
            let keys = [Signal::INT, Signal::QUIT].contains(&number);
            let both = keys && std::io::stdin().is_terminal();
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if !both && sender.send(number).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Signals(receiver))
    }
}

fn uri(name: &str, socket: &Path) -> String {
    let socket: Vec<String> = socket.to_string_lossy().split('/').map(paths::encode).collect();
    format!("nbd+unix:///{}?socket={}", paths::encode(name), socket.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_is_what_nbd_clients_take() {
        assert_eq!(
            uri("wc", Path::new("/tmp/p/nbd.sock")),
            "nbd+unix:///wc?socket=/tmp/p/nbd.sock"
        );
        assert_eq!(uri("a b", Path::new("/t m/s")), "nbd+unix:///a%20b?socket=/t%20m/s");
    }

    #[test]
    fn a_private_dir_is_new_and_is_removed() {
        let dir = PrivateDir::new().unwrap();
        let other = PrivateDir::new().unwrap();
        assert_ne!(dir.0, other.0);
        let path = dir.0.clone();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_signal_that_ended_the_command_is_in_the_exit_code() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
