// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes under measurement: where they run, what CPU time they take, and that they end.
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use reproduce::clock;
use reproduce::cpu::{cpus as allowed_cpus, pin_to};
use rustix::process::Pid;

/// Clock ticks a second in /proc, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A server that ends with this value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// What it writes to its standard error. Not a pipe: nobody would read it in time.
    errors: File,
    /// One that lives on in the background when its first process has ended, and that process's
    /// successor has this number.
    daemon: Option<Pid>,
}

impl Server {
    /// Starts `command` on `cpus` and waits until `socket` can be connected to.
    pub fn start(command: &mut Command, cpus: &[usize], socket: &Path) -> Result<Server, String> {
        Server::start_as(command, cpus, socket, None)
    }

    /// Starts one that goes into the background, and writes its number to `pid_file`.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_daemon(
        command: &mut Command,
        cpus: &[usize],
        socket: &Path,
        pid_file: &Path,
    ) -> Result<Server, String> {
        Server::start_as(command, cpus, socket, Some(pid_file))
    }

    fn start_as(
        command: &mut Command,
        cpus: &[usize],
        socket: &Path,
        pid_file: Option<&Path>,
    ) -> Result<Server, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let file = |e| format!("{program}: a file for its standard error: {e}");
        let errors = tempfile::tempfile().map_err(file)?;
        let to_errors = errors.try_clone().map_err(file)?;
        let home = allowed_cpus();
        pin_to(cpus).map_err(|e| format!("cannot pin to CPUs {cpus:?}: {e}"))?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(to_errors);
        let child = child.spawn();
        pin_to(&home).map_err(|e| format!("cannot unpin: {e}"))?;
        let child = child.map_err(|e| format!("{program}: {e}"))?;
        let mut server = Server { child, errors, daemon: None };
        let give_up = clock() + 10.0;
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            server.look_for_daemon(pid_file);
            let ended = server.child.try_wait();
            if let Ok(Some(status)) = ended.as_ref().map(|s| s.filter(|s| !s.success()))
                && server.daemon.is_none()
            {
                return Err(format!("{program}: {status}: {}", server.complaint()));
            }
            if clock() > give_up {
                return Err(format!("{program}: no socket {} after 10 s", socket.display()));
            }
            #[expect(clippy::disallowed_methods, reason = "waits for another process")]
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        server.look_for_daemon(pid_file);
        Ok(server)
    }

    fn look_for_daemon(&mut self, pid_file: Option<&Path>) {
        let text = pid_file.and_then(|path| std::fs::read_to_string(path).ok());
        let pid = text.and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw);
        self.daemon = pid.or(self.daemon);
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.daemon.map_or(self.child.id(), |pid| pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// The first line of what it wrote to its standard error.
    fn complaint(&mut self) -> String {
        let mut text = String::new();
        // What can't be read is no message.
        let _ = self.errors.rewind().and_then(|()| self.errors.read_to_string(&mut text));
        text.lines().next().unwrap_or("no message").to_owned()
    }

    /// CPU seconds of each of its threads whose name begins with `name`.
    pub fn thread_seconds(&self, name: &str) -> Vec<f64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id()));
        let of = |task: std::fs::DirEntry| {
            let read = |file| std::fs::read_to_string(task.path().join(file)).ok();
            let found = read("comm").filter(|comm| comm.starts_with(name));
            // The time on a CPU, in nanoseconds, comes first.
            let text = found.and_then(|_| read("schedstat"))?;
            Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
        };
        tasks.into_iter().flatten().flatten().filter_map(of).collect()
    }

    /// CPU seconds that the process has used with all its threads, and its own processes that have
    /// ended, as those of a server that forks for each connection.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds_of(self.id())
    }
}

/// Fields 3 and following of a process's `stat`: those behind the name, which may hold blanks.
fn stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    after.split_whitespace().map(str::to_owned).collect()
}

/// CPU seconds of a process with all its threads, and of its processes that have ended; 0 where
/// there is none.
fn cpu_seconds_of(pid: u32) -> f64 {
    // From field 16 on: user and system time of those that have ended, of which there is no clock.
    let fields = stat(pid);
    let ended = fields.iter().skip(13).take(2).filter_map(|f| f.parse::<f64>().ok());
    let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
    let clock = nix::time::clock_getcpuclockid(pid).and_then(|clock| clock.now());
    let own = clock.map_or(0.0, |time| std::time::Duration::from(time).as_secs_f64());
    own + ended.sum::<f64>() / TICKS_PER_SECOND
}

/// A process and those that it has started, theirs included.
fn tree(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent_of = |pid: u32| stat(pid).get(1).and_then(|parent| parent.parse().ok());
    let known: Vec<(u32, Option<u32>)> = numbers.map(|pid| (pid, parent_of(pid))).collect();
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        tree.extend(known.iter().filter(|(_, of)| *of == Some(parent)).map(|(pid, _)| *pid));
        next += 1;
    }
    tree
}

/// CPU seconds that a process and those that it has started have used.
pub fn cpu_seconds_of_tree(pid: u32) -> f64 {
    tree(pid).into_iter().map(cpu_seconds_of).sum()
}

/// Bytes of memory that they have resident.
pub fn resident_bytes_of_tree(pid: u32) -> u64 {
    tree(pid).into_iter().map(resident_bytes).sum()
}

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib = line.trim().trim_end_matches("kB").trim().parse::<u64>();
    kib.unwrap_or_default() << 10
}

impl Server {
    /// Bytes of memory that the process has resident.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It serves throw-away data, so nothing is lost by the hard way.
        if let Some(pid) = self.daemon {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_of_a_process_is_what_it_says_itself() {
        let begin = clock();
        while clock() - begin < 0.05 {} // some hundredths of a second to be seen
        let before = reproduce::cpu::cpu_seconds();
        let seen = cpu_seconds_of(std::process::id());
        let after = reproduce::cpu::cpu_seconds();
        assert!(before > 0.0 && (before..=after).contains(&seen), "{before} {seen} {after}");
    }
}
