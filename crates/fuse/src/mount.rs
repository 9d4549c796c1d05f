// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mounting and unmounting: by the system call for who may, through `fusermount3` for others.
//!
//! We mount ourselves and give fuser the open device: it then never unmounts on its own, so what
//! somebody else has mounted at the same place meanwhile is safe.
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind as IoKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use block::{Error, ErrorKind};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// The kernel's door to FUSE.
const DEVICE: &str = "/dev/fuse";
/// What `/proc/mounts` shows as the type of our mounts.
const TYPE: &str = "fuse.millpond";
/// What it shows as their source.
const SOURCE: &str = "millpond";
/// Mounts of dead daemons on top of each other that are cleared away.
const STALE_MAX: usize = 16;

/// Checks that a file system can be mounted at `dir`, after clearing away what a daemon that was
/// killed has left there. Returns its absolute path without links, and how many dead mounts went.
pub(crate) fn prepare(dir: &Path) -> Result<(PathBuf, usize), Error> {
    let shown = dir.display();
    let refused = |e: &io::Error| {
        let hint = if e.kind() == IoKind::NotFound { ": an empty directory is needed" } else { "" };
        refused(e, format!("--fuse {shown}{hint}"))
    };
    let absolute = std::path::absolute(dir).map_err(|e| refused(&e))?;
    let mut metadata = std::fs::metadata(&absolute);
    let mut cleared = 0;
    for _ in 0..STALE_MAX {
        match &metadata {
            Err(e) if is_dead(e) => {
                if !is_ours(&absolute) {
                    return Err(Error::busy(format!(
                        "--fuse {shown}: a dead FUSE mount of another program is there: unmount \
                         it, or choose another directory"
                    )));
                }
                unmount(&absolute, How::Lazily).map_err(|e| {
                    refused(&e).within("the mount that a killed daemon left can't be unmounted")
                })?;
                cleared += 1;
                metadata = std::fs::metadata(&absolute);
            }
            _ => break,
        }
    }
    let metadata = metadata.map_err(|e| refused(&e))?;
    if !metadata.is_dir() {
        return Err(Error::invalid(format!("--fuse {shown}: it is no directory")));
    }
    let dir = absolute.canonicalize().map_err(|e| refused(&e))?;
    if is_ours(&dir) {
        return Err(Error::busy(format!(
            "--fuse {shown}: another daemon has its devices there: choose another directory"
        )));
    }
    if std::fs::read_dir(&dir).map_err(|e| refused(&e))?.next().is_some() {
        return Err(Error::new(
            ErrorKind::Exists,
            format!("--fuse {shown}: the directory is not empty: choose an empty one"),
        ));
    }
    Ok((dir, cleared))
}

/// Whether the server of the mount has gone.
fn is_dead(e: &io::Error) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|d| Some(d.raw_os_error()) == e.raw_os_error())
}

/// Whether the topmost mount at `dir`, an absolute path, is one of this program.
fn is_ours(dir: &Path) -> bool {
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    top_type(&mounts, dir).is_some_and(|kind| kind == TYPE)
}

/// The type of the topmost mount at exactly `dir`. Blanks in paths are written as `\040`.
fn top_type<'a>(mountinfo: &'a str, dir: &Path) -> Option<&'a str> {
    let quoted = dir.to_str()?.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    let quoted = quoted.replace('\n', "\\012");
    // id parent major:minor root MOUNTPOINT options [optional...] - TYPE source options
    let at = |line: &&str| line.split(' ').nth(4) == Some(&*quoted);
    mountinfo.lines().rfind(at)?.split_once(" - ")?.1.split(' ').next()
}

/// Mounts at `dir`, as [`prepare`] returned it, and returns the open device to serve it by.
pub(crate) fn mount(dir: &Path) -> Result<OwnedFd, Error> {
    let shown = dir.display();
    // fusermount3 opens it with its caller's rights, so who can't open it can't mount.
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|e| {
        let why = "is needed, readable and writable (the kernel's module is fuse)";
        refused(&e, format!("--fuse {shown}: {DEVICE} {why}"))
    })?;
    let mounted = match by_call(dir, &device) {
        Ok(()) => Ok(device.into()),
        Err(e) if e.kind() == IoKind::PermissionDenied => by_program(dir),
        Err(e) => Err(e),
    };
    mounted.map_err(|e| refused(&e, format!("--fuse {shown}")))
}

fn by_call(dir: &Path, device: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    let options = CString::new(options).expect("numbers and commas");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount(SOURCE, dir, TYPE, flags, &*options)?)
}

/// Lets `fusermount3`, which may, do it. It sends the open device through a socket that it finds
/// as its standard input, so that no descriptor has to be inherited otherwise.
fn by_program(dir: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = Command::new("fusermount3")
        .args(["-o", "fsname=millpond,subtype=millpond,nosuid,nodev", "--"])
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("fusermount3: {e}")))?;
    // A command keeps its end of the socket open until it has gone itself; it has, above.
    let received = receive(&ours);
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        io::Read::read_to_string(stderr, &mut said)?;
    }
    let status = child.wait()?;
    received?.ok_or_else(|| io::Error::other(format!("fusermount3: {status}: {}", said.trim())))
}

fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            return Ok(fds.next());
        }
    }
    Ok(None)
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Only when nobody uses it.
    IfUnused,
    /// At once; who has something open there keeps it.
    Lazily,
}

/// Unmounts what is on top at `dir`.
pub(crate) fn unmount(dir: &Path, how: How) -> io::Result<()> {
    let lazily = how == How::Lazily;
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(dir);
            let ended = command.stdin(Stdio::null()).output()?;
            if ended.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&ended.stderr);
            Err(io::Error::other(said.trim().to_owned()))
        }
        Err(e) => Err(e.into()),
    }
}

/// An I/O error of the control path, its kind kept where we have one.
pub(crate) fn refused(e: &io::Error, what: impl std::fmt::Display) -> Error {
    let known =
        [(IoKind::NotFound, ErrorKind::NotFound), (IoKind::PermissionDenied, ErrorKind::Denied)];
    let kind = known.iter().find(|(io, _)| *io == e.kind()).map_or(ErrorKind::Io, |(_, k)| *k);
    Error::new(kind, format!("{what}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 0:40 / /mnt/a\\040b rw,nosuid shared:7 master:1 - fuse.millpond millpond rw,user_id=0
31 21 0:41 / /mnt/c rw - fuse.millpond millpond rw
32 31 0:42 / /mnt/c rw - tmpfs tmpfs rw
";

    #[test]
    fn the_topmost_mount_at_a_place_is_what_counts() {
        assert_eq!(top_type(MOUNTS, Path::new("/mnt/a b")), Some(TYPE));
        assert_eq!(top_type(MOUNTS, Path::new("/mnt/c")), Some("tmpfs"));
        assert_eq!(top_type(MOUNTS, Path::new("/mnt")), None);
    }

    #[test]
    fn a_directory_that_is_none_or_is_in_use_is_refused_by_name() {
        let tmp = tempfile::tempdir().unwrap();
        let missing = tmp.path().join("missing");
        let e = prepare(&missing).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.to_string().contains("/missing"), "{e}");
        let file = tmp.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        assert!(prepare(&file).unwrap_err().to_string().contains("no directory"));
        assert!(prepare(tmp.path()).unwrap_err().to_string().contains("not empty"));
        let empty = tmp.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        assert_eq!(prepare(&empty).unwrap(), (empty.canonicalize().unwrap(), 0));
    }
}
