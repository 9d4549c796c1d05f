// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RUN_DIR: where a daemon's sockets are, whose they are, and that there is one daemon in each.
//!
//! ```text
//!   RUN_DIR/            0700, ours
//!     lock              flock'd for the daemon's life; holds its pid
//!     control.sock      0600, HTTP
//!     nbd.sock          0600, NBD
//! ```
//!
//! Invariants
//! - D1 A socket is unlinked only by who holds the lock, or when nobody listens on it.
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use block::ErrorKind;
use control::Failure;
use rustix::fs::{FlockOperation, flock};

/// Longest path that a unix socket's address takes, with its terminator (`sun_path`).
const SUN_PATH_BYTES: usize = 108;

/// The paths within a run directory.
#[derive(Clone, Debug)]
pub(crate) struct RunDir(PathBuf);

/// Held by the daemon for its life.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl RunDir {
    /// The directory that options and environment name, absolute.
    pub(crate) fn choose(option: Option<&Path>) -> Result<RunDir, Failure> {
        let root = rustix::process::geteuid().is_root();
        let dir = chosen(option, root, |name| std::env::var_os(name))?;
        RunDir::at(&dir)
    }

    /// The directory `dir`, absolute.
    pub(crate) fn at(dir: &Path) -> Result<RunDir, Failure> {
        let dir = std::path::absolute(dir)
            .map_err(|e| Failure::new(ErrorKind::Invalid, format!("run dir: {e}")))?;
        let run_dir = RunDir(dir);
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

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
    pub(crate) fn control(&self) -> PathBuf {
        self.0.join("control.sock")
    }
    pub(crate) fn nbd(&self) -> PathBuf {
        self.0.join("nbd.sock")
    }

    /// Makes the directory if it is not there, checks that it is ours, and takes the lock.
    pub(crate) fn take(&self) -> Result<Lock, Failure> {
        let dir = self.0.display();
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Ok(()) => {}
            Err(e) if e.kind() == IoKind::AlreadyExists => {}
            Err(e) => return Err(refused(&e, format!("run dir {dir}"))),
        }
        let meta = std::fs::metadata(&self.0).map_err(|e| refused(&e, format!("run dir {dir}")))?;
        if !meta.is_dir() {
            return Err(Failure::new(ErrorKind::Invalid, format!("run dir {dir}: no directory")));
        }
        if meta.uid() != rustix::process::geteuid().as_raw() {
            let message = format!("run dir {dir}: it belongs to uid {}, not to us", meta.uid());
            return Err(Failure::new(ErrorKind::Denied, message));
        }
        let path = self.0.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| refused(&e, path.display()))?;
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
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|e| refused(&e, path.display()))?;
        Ok(Lock { _file: file })
    }
}

/// Unlinks a socket that a dead process left at `path`. Refuses when somebody listens there or when
/// it is no socket. The lock on the run dir does not protect sockets elsewhere, hence the probe.
pub(crate) fn remove_stale_socket(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == IoKind::NotFound => return Ok(()),
        Err(e) => return Err(refused(&e, shown)),
        Ok(meta) if !meta.file_type().is_socket() => {
            let message =
                format!("{shown}: it exists and is no socket: remove it or choose another");
            return Err(Failure::new(ErrorKind::Exists, message));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == IoKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| refused(&e, shown))
        }
        Err(e) => Err(refused(&e, shown)),
        Ok(_) => {
            let message = format!("{shown}: another process listens there");
            Err(Failure::new(ErrorKind::Busy, message))
        }
    }
}

/// An I/O error of the control path, its kind kept where we have one.
pub(crate) fn refused(e: &std::io::Error, what: impl std::fmt::Display) -> Failure {
    let known = [
        (IoKind::NotFound, ErrorKind::NoFile),
        (IoKind::PermissionDenied, ErrorKind::Denied),
        (IoKind::AlreadyExists, ErrorKind::Exists),
        (IoKind::AddrInUse, ErrorKind::Busy),
        (IoKind::InvalidInput, ErrorKind::Invalid),
    ];
    let kind = known.iter().find(|(io, _)| *io == e.kind()).map_or(ErrorKind::Io, |(_, k)| *k);
    Failure::new(kind, format!("{what}: {}", block::without_errno(e)))
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

    #[test]
    fn a_second_daemon_is_refused_and_told_the_pid_of_the_first() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = RunDir::at(&tmp.path().join("pond")).unwrap();
        let lock = dir.take().unwrap();
        assert_eq!(std::fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
        let e = dir.take().unwrap_err();
        assert_eq!(e.kind(), Some(ErrorKind::Busy));
        assert!(e.message.contains(&format!("pid {}", std::process::id())), "{e}");
        drop(lock);
        dir.take().unwrap();
    }

    #[test]
    fn only_a_dead_socket_is_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("s");
        remove_stale_socket(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(remove_stale_socket(&path).unwrap_err().kind(), Some(ErrorKind::Busy));
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
