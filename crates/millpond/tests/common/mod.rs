// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon of the real binary in a folder of its own, and the command line to it.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};

use tempfile::TempDir;

pub(crate) const MILLPOND: &str = env!("CARGO_BIN_EXE_millpond");

/// The warning that most caches of tests deserve.
const IN_MEMORY: &str = ": the cache is in memory (";

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for CommandOutput {
    fn from(o: Output) -> CommandOutput {
        CommandOutput {
            code: o.status.code(),
            out: String::from_utf8(o.stdout).unwrap(),
            err: String::from_utf8(o.stderr).unwrap(),
        }
    }
}

impl CommandOutput {
    /// What it printed; it must have exited with 0 and said nothing else, but that a cache is in
    /// memory.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        let err: Vec<&str> = self.err.lines().filter(|l| !l.contains(IN_MEMORY)).collect();
        assert_eq!((self.code, err), (Some(0), Vec::new()), "{self:?}");
        self.out
    }

    /// What it said on standard error; it must have exited with `code` and printed nothing.
    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (Some(code), ""), "{self:?}");
        self.err
    }
}

/// Runs any program.
pub(crate) fn sh(program: &str, args: &[&str]) -> CommandOutput {
    let output = Command::new(program).args(args).output();
    output.unwrap_or_else(|e| panic!("{program}: {e}; scripts/setup.sh installs it")).into()
}

/// A daemon; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    /// Kept open, so that the daemon can go on writing its log.
    stderr: BufReader<ChildStderr>,
    /// The line that reports that it is ready, and where it serves.
    pub(crate) ready: String,
    pub(crate) dir: TempDir,
    /// The folder of `--fuse`.
    mount: Option<PathBuf>,
}

/// A folder under the build's target directory: unlike /tmp it has O_DIRECT nearly everywhere.
pub(crate) fn folder() -> TempDir {
    tempfile::Builder::new().prefix("pond").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

impl Daemon {
    pub(crate) fn start() -> Daemon {
        Daemon::start_in(folder(), &[])
    }

    pub(crate) fn start_with(options: &[&str]) -> Daemon {
        Daemon::start_in(folder(), options)
    }

    /// Starts a daemon and waits until it reports that it is ready.
    pub(crate) fn start_in(dir: TempDir, options: &[&str]) -> Daemon {
        Daemon::start_with_env(dir, options, &[])
    }

    /// The same with variables of the environment.
    pub(crate) fn start_with_env(
        dir: TempDir,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Daemon {
        let started = Daemon::try_start(dir, options, variables);
        started.unwrap_or_else(|(_, log)| panic!("no daemon: {log}"))
    }

    /// The same; if it does not come up, its folder and its log.
    pub(crate) fn try_start_in(
        dir: TempDir,
        options: &[&str],
    ) -> Result<Daemon, (TempDir, String)> {
        Daemon::try_start(dir, options, &[])
    }

    fn try_start(
        dir: TempDir,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Daemon, (TempDir, String)> {
        let child = spawn_with_env(dir.path(), options, variables);
        let after = options.iter().skip_while(|option| **option != "--fuse").nth(1);
        let mount = after.map(|name| dir.path().join(name));
        let mut daemon = Daemon::ready(dir, child)?;
        daemon.mount = mount;
        Ok(daemon)
    }

    /// Waits until a daemon in `dir`, whose standard error is a pipe, reports that it is ready.
    pub(crate) fn ready(dir: TempDir, mut child: Child) -> Result<Daemon, (TempDir, String)> {
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut log = String::new();
        while !log.contains("millpond: ready ") {
            if stderr.read_line(&mut log).unwrap() == 0 {
                child.wait().unwrap();
                return Err((dir, log));
            }
        }
        let ready = log.lines().last().unwrap_or_default().to_owned();
        Ok(Daemon { child, stderr, ready, dir, mount: None })
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// A file of `mib` MiB in the daemon's folder.
    pub(crate) fn file(&self, name: &str, mib: u64) -> String {
        file_in(self.dir.path(), name, mib)
    }

    /// Runs a verb.
    pub(crate) fn cli(&self, args: &[&str]) -> CommandOutput {
        self.cli_with(args, "")
    }

    /// Runs a verb with something on standard input, in the daemon's folder.
    pub(crate) fn cli_with(&self, args: &[&str], stdin: &str) -> CommandOutput {
        let mut child = Command::new(MILLPOND)
            .args(args)
            .env("MILLPOND_RUN_DIR", self.run_dir())
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        // The verb may not want it.
        let _ = input.write_all(stdin.as_bytes());
        drop(input);
        child.wait_with_output().unwrap().into()
    }

    pub(crate) fn create(&self, name: &str, table: &str) {
        self.cli(&["create", name, "--table", table]).ok();
    }

    pub(crate) fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.run_dir().join("nbd.sock").display())
    }

    /// Runs qemu-io's commands on an export.
    pub(crate) fn qemu_io(&self, name: &str, commands: &[&str]) -> CommandOutput {
        qemu_io(&self.uri(name), commands)
    }

    /// A request to the API; returns status and body.
    pub(crate) fn curl(&self, method: &str, path: &str, options: &[&str]) -> (String, String) {
        let socket = self.run_dir().join("control.sock");
        let url = format!("http://millpond{path}");
        let mut args = vec!["-s", "-w", "\n%{http_code}", "-X", method, "--unix-socket"];
        args.push(socket.to_str().unwrap());
        args.extend(options);
        args.push(&url);
        let out = sh("curl", &args).out;
        let (body, status) = out.rsplit_once('\n').unwrap();
        (status.into(), body.into())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        assert_eq!(sh("kill", &[name, &self.pid().to_string()]).code, Some(0));
    }

    /// Waits for the daemon's end; returns how it ended, the rest of its log, and its folder.
    pub(crate) fn wait(mut self) -> (ExitStatus, String, TempDir) {
        let mut log = String::new();
        while self.stderr.read_line(&mut log).unwrap() > 0 {}
        let status = self.child.wait().unwrap();
        let dir = std::mem::replace(&mut self.dir, folder());
        (status, log, dir)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mount) = &self.mount {
            // What a killed daemon leaves would keep the folder from being removed. Nothing may be
            // there; for root it is the first one that works, for others the second.
            let _ = Command::new("umount").arg("-lq").arg(mount).output();
            let _ = Command::new("fusermount3").args(["-uzq", "--"]).arg(mount).output();
        }
    }
}

/// A client that writes to an export, one request after the other; it ends when dropped.
pub(crate) struct Load(Child);

impl Load {
    pub(crate) fn on(daemon: &Daemon, name: &str, request_bytes: u32) -> Load {
        let size = request_bytes.to_string();
        let mut command = Command::new("qemu-img");
        // So many requests that they take longer than any test.
        command.args(["bench", "-f", "raw", "-w", "-d", "1", "-c", "2000000000", "-s", &size]);
        command.arg(daemon.uri(name)).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn();
        let started = started.unwrap_or_else(|e| panic!("qemu-img: {e}; scripts/setup.sh has it"));
        let load = Load(started);
        // A frame of `top` that lists clients before and devices after it connects has no client.
        while daemon.cli(&["clients", name]).ok().starts_with("No clients") {}
        load
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn spawn(dir: &Path, options: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let mut child = spawn_with_env(dir, options, &[]);
    let stderr = BufReader::new(child.stderr.take().unwrap());
    (child, stderr)
}

fn spawn_with_env(dir: &Path, options: &[&str], variables: &[(&str, &str)]) -> Child {
    // As systemd: WATCHDOG_PID is the number of the process that gets it.
    Command::new("sh")
        .args(["-c", "WATCHDOG_PID=$$ exec \"$0\" \"$@\"", MILLPOND, "daemon", "--run-dir"])
        .arg(dir.join("run"))
        .args(options)
        .envs(variables.iter().copied())
        .current_dir(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A daemon that does not come up: exit code and log.
pub(crate) fn start_fails(dir: &Path, options: &[&str]) -> (Option<i32>, String) {
    let (mut child, mut stderr) = spawn(dir, options);
    let mut log = String::new();
    while stderr.read_line(&mut log).unwrap() > 0 {
        assert!(!log.contains("millpond: ready "), "it came up: {log}");
    }
    (child.wait().unwrap().code(), log)
}

pub(crate) fn file_in(dir: &Path, name: &str, mib: u64) -> String {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path.to_str().unwrap().into()
}

pub(crate) fn qemu_io(uri: &str, commands: &[&str]) -> CommandOutput {
    let mut args = vec!["-f", "raw"];
    for c in commands {
        args.extend(["-c", c]);
    }
    args.push(uri);
    sh("qemu-io", &args)
}
