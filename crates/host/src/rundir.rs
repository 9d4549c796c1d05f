// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RUN_DIR: the directory of a daemon's sockets; checks its owner, and allows one daemon in each.
//!
//! ```text
//!   RUN_DIR/            0700, ours, no symlink
//!     lock              flock'd for the daemon's life; holds its pid, nothing after an orderly end
//!     control.sock      0600, HTTP
//!     nbd.sock          0600, NBD
//! ```
//!
//! Invariants
//! - HO-D1 A socket is unlinked only by the process that holds the lock, or when no process listens
//!   on it.
//! - HO-D2 Nothing is opened, made or truncated through a symlink, and only in a directory in which
//!   no other user may write: another user can't make us change a file.
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata};
use std::io::{Error as IoError, ErrorKind as IoKind, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::ErrorKind;
use control::Failure;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fchmod, flock, fstat, openat};
use rustix::io::Errno;
use tokio::time::Instant;

use crate::io_failure::io_failure;

/// Longest path that a unix socket's address takes, with its terminator (`sun_path`).
const SUN_PATH_BYTES: usize = 108;
/// How often the lock of a process that was killed is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Permission of group and others to write.
const WRITE_BY_OTHERS: u32 = 0o022;

/// The paths within a run directory.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

/// Held by the daemon for its life. Its file tells the next daemon how this one has ended.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    /// The pid of the daemon before, if that did not end in order.
    killed: Option<String>,
    /// Whether the end of this one is in order.
    is_in_order: bool,
}

impl Lock {
    /// The pid of the daemon before, if that did not end in order.
    pub(crate) fn killed(&self) -> Option<&str> {
        self.killed.as_deref()
    }

    /// The lock that the daemon before hands over. Its file tells of that one for now.
    pub(crate) fn of_predecessor(file: File) -> Lock {
        Lock { file, killed: None, is_in_order: false }
    }

    /// Another descriptor of the lock, for a successor.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Failure> {
        let copy = self.file.as_fd().try_clone_to_owned();
        copy.map_err(|e| io_failure(&e, "lock of the run directory"))
    }

    /// Notes that this process has the lock now, which another one had.
    pub(crate) fn take_over(&mut self) -> Result<(), Failure> {
        self.write_pid().map_err(|e| io_failure(&e, "lock of the run directory"))
    }

    fn write_pid(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        writeln!(self.file, "{}", std::process::id())
    }

    /// The daemon is at work: its end is in order only if it says so.
    pub(crate) fn begin_work(&mut self) {
        self.is_in_order = false;
    }

    /// The daemon has ended, and nothing of it is under way.
    pub(crate) fn end_in_order(mut self) {
        self.is_in_order = true;
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_in_order {
            // Else the next daemon is more patient than it has to be.
            let _ = self.file.set_len(0);
        }
    }
}

impl RunDir {
    /// The directory that options and environment name, absolute.
    pub fn choose(option: Option<&Path>) -> Result<RunDir, Failure> {
        let root = rustix::process::geteuid().is_root();
        let dir = chosen(option, root, |name| std::env::var_os(name))?;
        RunDir::at(&dir)
    }

    /// The directory `dir`, absolute.
    pub(crate) fn at(dir: &Path) -> Result<RunDir, Failure> {
        let dir = std::path::absolute(dir)
            .map_err(|e| Failure::new(ErrorKind::Invalid, format!("run dir: {e}")))?;
        // Without a slash at its end, which would make `open` follow a symlink.
        let run_dir = RunDir(dir.components().collect());
        let longest = run_dir.control();
        if longest.as_os_str().len() >= SUN_PATH_BYTES {
            let message = format!(
                "run dir {}: {} bytes, a socket in it may have at most {}: choose a shorter one \
                 with --run-dir",
                run_dir.0.display(),
                run_dir.0.as_os_str().len(),
                SUN_PATH_BYTES - "/control.sock".len() - 1,
            );
            return Err(Failure::new(ErrorKind::Invalid, message));
        }
        Ok(run_dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
    pub fn control(&self) -> PathBuf {
        self.0.join("control.sock")
    }
    pub(crate) fn nbd(&self) -> PathBuf {
        self.0.join("nbd.sock")
    }

    /// Lets every user reach the sockets in it, whose own permissions decide. They can't list it.
    pub(crate) fn let_others_pass(&self) -> Result<(), Failure> {
        let failed = |e: Errno| io_failure(&e.into(), format!("run dir {}", self.0.display()));
        // HO-D2
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, &self.0, flags, Mode::empty()).map_err(failed)?;
        let mode = Mode::from_raw_mode(fstat(&opened).map_err(failed)?.st_mode);
        fchmod(&opened, mode | Mode::XGRP | Mode::XOTH).map_err(failed)
    }

    /// The same as [`RunDir::take`]; while the process that has the lock was killed and has not
    /// quite ended, it waits for that, so long at most.
    pub(crate) async fn take_from_dead(&self, time: Duration) -> Result<Lock, Failure> {
        let give_up = Instant::now() + time;
        loop {
            match self.take() {
                Err(e) if e.kind() == Some(ErrorKind::Busy) && Instant::now() < give_up => {
                    if !self.owner_is_dead() {
                        return Err(e);
                    }
                }
                taken => return taken,
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether the first thread of the process that is noted in the lock has ended: other threads,
    /// and requests of theirs, may have the lock for a while. Where none is noted, a process is
    /// about to release the lock in order, or has just taken it.
    fn owner_is_dead(&self) -> bool {
        let pid = std::fs::read_to_string(self.0.join("lock")).unwrap_or_default();
        if pid.is_empty() {
            return true;
        }
        let Ok(pid) = pid.trim().parse::<u32>() else { return false };
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
        // The state stands behind the name, which may hold anything.
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, Some('Z' | 'X'))
    }

    /// Makes the directory if it is not there, checks that it is ours, and takes the lock.
    pub(crate) fn take(&self) -> Result<Lock, Failure> {
        let dir = self.0.display();
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Ok(()) => {}
            Err(e) if e.kind() == IoKind::AlreadyExists => {}
            Err(e) => {
                let cause = block::without_errno(&e);
                let text = format!("run dir {dir}: {cause}: choose another with --run-dir");
                return Err(Failure::new(ErrorKind::of_io(e.kind()), text));
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, &self.0, flags, Mode::empty()).map(File::from);
        let opened = opened.map_err(|e| match is_symlink(&self.0) {
            true => symlink(&format!("run dir {dir}")),
            false if e == Errno::NOTDIR => {
                Failure::new(ErrorKind::Invalid, format!("run dir {dir}: no directory"))
            }
            false => io_failure(&e.into(), format!("run dir {dir}")),
        })?;
        let meta = opened.metadata().map_err(|e| io_failure(&e, format!("run dir {dir}")))?;
        check_owner(&meta, &format!("run dir {dir}"))?;
        let path = self.0.join("lock");
        // HO-D2: relative to the directory that was checked.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = flags | OFlags::NONBLOCK; // a pipe of that name does not block
        let file = openat(&opened, "lock", flags, Mode::RUSR | Mode::WUSR).map(File::from);
        let mut file = file.map_err(|e| match e {
            Errno::LOOP => symlink(&path.display().to_string()),
            e => io_failure(&IoError::from(e), path.display()),
        })?;
        let meta = file.metadata().map_err(|e| io_failure(&e, path.display()))?;
        if !meta.is_file() || meta.nlink() != 1 {
            let message = format!("{}: no file of our own: remove it", path.display());
            return Err(Failure::new(ErrorKind::Denied, message));
        }
        check_owner(&meta, &path.display().to_string())?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let message = format!(
                "run dir {dir}: a daemon runs there already (pid {}): stop it, or choose another \
                 with --run-dir",
                pid.trim()
            );
            return Err(Failure::new(ErrorKind::Busy, message));
        }
        let mut before = String::new();
        file.read_to_string(&mut before).map_err(|e| io_failure(&e, path.display()))?;
        let killed = Some(before.trim().to_owned()).filter(|pid| !pid.is_empty());
        // One that fails to start leaves what it has found.
        let is_in_order = killed.is_none();
        let mut lock = Lock { file, killed, is_in_order };
        lock.write_pid().map_err(|e| io_failure(&e, path.display()))?;
        Ok(lock)
    }
}

fn is_symlink(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink())
}

fn symlink(what: &str) -> Failure {
    let message = format!("{what}: it is a symlink, which is not followed: name what it points to");
    Failure::new(ErrorKind::Denied, message)
}

/// HO-D2.
pub(crate) fn check_owner(meta: &Metadata, what: &str) -> Result<(), Failure> {
    if meta.uid() != rustix::process::geteuid().as_raw() {
        let message = format!("{what}: it belongs to uid {}, not to us", meta.uid());
        return Err(Failure::new(ErrorKind::Denied, message));
    }
    if meta.mode() & WRITE_BY_OTHERS != 0 {
        let mode = meta.mode() & 0o7777;
        let message = format!(
            "{what}: others may write there (mode {mode:04o}): chmod go-w, if nobody has, or \
             choose another with --run-dir"
        );
        return Err(Failure::new(ErrorKind::Denied, message));
    }
    Ok(())
}

/// Unlinks a socket that a dead process left at `path`. Fails when a process listens there or when
/// it is no socket. The lock on the run dir does not protect sockets elsewhere, hence the probe.
pub(crate) fn remove_stale_socket(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == IoKind::NotFound => return Ok(()),
        Err(e) => return Err(io_failure(&e, shown)),
        Ok(meta) if !meta.file_type().is_socket() => {
            let message =
                format!("{shown}: it exists and is no socket: remove it or choose another");
            return Err(Failure::new(ErrorKind::Exists, message));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == IoKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| io_failure(&e, shown))
        }
        Err(e) => Err(io_failure(&e, shown)),
        Ok(_) => {
            let message = format!("{shown}: another process listens there");
            Err(Failure::new(ErrorKind::Busy, message))
        }
    }
}

fn chosen(
    option: Option<&Path>,
    root: bool,
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, Failure> {
    let set = |name| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = option {
        return Ok(dir.into());
    }
    if let Some(dir) = set("MILLPOND_RUN_DIR") {
        return Ok(dir);
    }
    if root {
        return Ok("/run/millpond".into());
    }
    set("XDG_RUNTIME_DIR").map(|d| d.join("millpond")).ok_or_else(|| {
        let message = "no run dir: give --run-dir DIR, or set MILLPOND_RUN_DIR or XDG_RUNTIME_DIR";
        Failure::new(ErrorKind::Invalid, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn choose(option: Option<&str>, root: bool, vars: &[(&str, &str)]) -> Result<PathBuf, Failure> {
        chosen(option.map(Path::new), root, |name| {
            vars.iter().find(|v| v.0 == name).map(|v| v.1.into())
        })
    }

    #[test]
    fn option_beats_environment_beats_default() {
        let both = [("MILLPOND_RUN_DIR", "/e"), ("XDG_RUNTIME_DIR", "/x")];
        assert_eq!(choose(Some("/o"), true, &both).unwrap(), Path::new("/o"));
        assert_eq!(choose(None, true, &both).unwrap(), Path::new("/e"));
        assert_eq!(choose(None, true, &both[1..]).unwrap(), Path::new("/run/millpond"));
        assert_eq!(choose(None, false, &both[1..]).unwrap(), Path::new("/x/millpond"));
        assert!(choose(None, false, &[("MILLPOND_RUN_DIR", "")]).is_err());
    }

    /// Takes a lock that its holder has given up. A process that another test has just started
    /// holds copies of all descriptors, this lock's among them, until it executes its program.
    #[track_caller]
    fn take_released(dir: &RunDir) -> Lock {
        let give_up = Instant::now() + Duration::from_secs(10);
        loop {
            match dir.take() {
                Err(e) if e.kind() == Some(ErrorKind::Busy) && Instant::now() < give_up => {}
                taken => return taken.unwrap(),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_lock_of_a_dead_process_is_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = RunDir::at(&tmp.path().join("pond")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let lock = dir.take().unwrap();
        let long = Duration::from_secs(600);
        // Its process lives.
        let refused = runtime.block_on(dir.take_from_dead(long)).unwrap_err();
        assert_eq!(refused.kind(), Some(ErrorKind::Busy));
        // It has ended, and something has the lock still.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        std::fs::write(dir.path().join("lock"), format!("{pid}\n")).unwrap();
        let short = Duration::from_millis(20);
        let refused = runtime.block_on(dir.take_from_dead(short)).unwrap_err();
        assert!(refused.message.contains(&format!("pid {pid}")), "{refused}");
        runtime.block_on(async {
            let taken = dir.take_from_dead(long);
            let ends = async {
                tokio::time::sleep(short).await;
                drop(lock);
            };
            let (taken, ()) = tokio::join!(taken, ends);
            assert_eq!(taken.unwrap().killed(), None, "an end in order empties the file");
        });
    }

    #[test]
    fn a_second_daemon_is_refused_with_the_pid_of_the_first() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = RunDir::at(&tmp.path().join("pond")).unwrap();
        let lock = dir.take().unwrap();
        assert_eq!(std::fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
        let e = dir.take().unwrap_err();
        assert_eq!(e.kind(), Some(ErrorKind::Busy));
        assert!(e.message.contains(&format!("pid {}", std::process::id())), "{e}");
        drop(lock);
        take_released(&dir);
    }

    #[test]
    fn the_next_daemon_finds_whether_the_last_ended_in_order() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = RunDir::at(&tmp.path().join("pond")).unwrap();
        let pid = std::process::id().to_string();
        let mut lock = dir.take().unwrap();
        assert_eq!(lock.killed(), None);
        lock.begin_work();
        drop(lock);
        // Two that do not get to work change nothing.
        for _ in 0..2 {
            assert_eq!(take_released(&dir).killed(), Some(&*pid));
        }
        let mut lock = take_released(&dir);
        lock.begin_work();
        lock.end_in_order();
        for _ in 0..2 {
            assert_eq!(take_released(&dir).killed(), None);
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// Found by an attack: a link `lock` in a directory of mode 0777 had the file that it pointed
    /// to overwritten with our pid.
    #[test]
    fn a_run_dir_that_others_may_write_to_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("pond");
        let dir = RunDir::at(&path).unwrap();
        drop(dir.take().unwrap());
        for mode in [0o777, 0o1777, 0o770, 0o702] {
            set_mode(&path, mode);
            let e = dir.take().unwrap_err();
            assert_eq!(e.kind(), Some(ErrorKind::Denied));
            assert!(e.message.contains(&format!("(mode {mode:04o})")), "{e}");
        }
        set_mode(&path, 0o755);
        set_mode(&path.join("lock"), 0o666);
        assert_eq!(dir.take().unwrap_err().kind(), Some(ErrorKind::Denied));
        set_mode(&path.join("lock"), 0o600);
        take_released(&dir);
    }

    #[test]
    fn no_symlink_is_followed_for_dir_or_lock() {
        let tmp = tempfile::tempdir().unwrap();
        let (real, link) = (tmp.path().join("real"), tmp.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        set_mode(&real, 0o700);
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for path in [link.clone(), link.join("")] {
            let e = RunDir::at(&path).unwrap().take().unwrap_err();
            assert!(e.message.contains("it is a symlink"), "{e}");
        }
        let dir = RunDir::at(&real).unwrap();
        let victim = tmp.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, real.join("lock")).unwrap();
        assert!(dir.take().unwrap_err().message.contains("it is a symlink"));
        std::fs::remove_file(real.join("lock")).unwrap();
        std::fs::hard_link(&victim, real.join("lock")).unwrap();
        assert!(dir.take().unwrap_err().message.contains("no file of our own"));
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        let file = RunDir::at(&victim).unwrap().take().unwrap_err();
        assert!(file.message.contains("no directory"), "{file}");
    }

    #[test]
    fn only_a_dead_socket_is_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("s");
        remove_stale_socket(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(remove_stale_socket(&path).unwrap_err().kind(), Some(ErrorKind::Busy));
        // A process that another test has just started may hold a copy of the listener for a while:
        // the shutdown ends the socket for all copies.
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        drop(listener);
        remove_stale_socket(&path).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(remove_stale_socket(&path).unwrap_err().kind(), Some(ErrorKind::Exists));
        assert!(path.exists());
    }

    #[test]
    fn a_run_dir_too_long_for_a_socket_is_refused_with_the_limit() {
        let e = RunDir::at(Path::new(&format!("/{}", "x".repeat(120)))).unwrap_err();
        assert!(e.message.contains("at most 94"), "{e}");
    }
}
