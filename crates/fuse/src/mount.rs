// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mounts and unmounts: by the system call if the user may, else through `fusermount3`.
//!
//! We mount and pass the open device to fuser. So fuser never unmounts by itself, which could hit a
//! later mount of someone else at the same place.
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind as IoKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use block::{Error, ErrorKind};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// The FUSE device of the kernel.
const DEVICE: &str = "/dev/fuse";
/// The type of our mounts in `/proc/mounts`.
const TYPE: &str = "fuse.millpond";
/// Their source there.
const SOURCE: &str = "millpond";
/// The kernel's list of mounts.
const MOUNTS: &str = "/proc/self/mountinfo";
/// Most stacked mounts of dead daemons that are removed.
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
    // Links can be followed to a dead mount, though nothing in it can be asked for.
    let absolute = absolute.canonicalize().unwrap_or(absolute);
    let mut metadata = std::fs::metadata(&absolute);
    let mut cleared = 0;
    for _ in 0..STALE_MAX {
        match &metadata {
            Err(e) if is_dead(e) => {
                let Some(dead) = Mounted::at(&absolute) else {
                    return Err(Error::busy(format!(
                        "--fuse {shown}: a dead FUSE mount of another program is there: unmount \
                         it, or choose another directory"
                    )));
                };
                dead.unmount(UnmountMode::Lazily).map_err(|e| {
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
    if Mounted::at(&dir).is_some() {
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

/// Whether the server of the mount is gone.
fn is_dead(e: &io::Error) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|d| Some(d.raw_os_error()) == e.raw_os_error())
}

/// A mount of this program, served by any process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    dir: PathBuf,
    /// Of its file system, and unique as long as that exists.
    number: Vec<u8>,
}

impl Mounted {
    /// The topmost mount at `dir`, an absolute path without links, if it is of this program.
    fn at(dir: &Path) -> Option<Mounted> {
        let table = std::fs::read(MOUNTS).ok()?;
        let top = mounts(&table).rfind(|m| m.dir == dir)?;
        (top.kind == TYPE.as_bytes())
            .then(|| Mounted { dir: top.dir.clone(), number: top.number.to_vec() })
    }

    /// Unmounts it. Fails when it is not there any more, or something else was mounted on it.
    pub(crate) fn unmount(&self, how: UnmountMode) -> io::Result<()> {
        if Mounted::at(&self.dir).as_ref() != Some(self) {
            return Err(io::Error::other("it is not the topmost mount there any more"));
        }
        unmount(&self.dir, how)
    }
}

/// Where the file system can be reached that this program has mounted at `dir`: there, and where
/// it or a part of it was mounted once more (`mount --bind`). Looks at nothing in it.
pub fn places(dir: &Path) -> Vec<PathBuf> {
    let mut places = vec![dir.to_owned()];
    if let Ok(table) = std::fs::read(MOUNTS) {
        places.extend(others(&table, dir));
    }
    places
}

fn others(table: &[u8], dir: &Path) -> Vec<PathBuf> {
    let own = mounts(table).rfind(|m| m.dir == dir && m.kind == TYPE.as_bytes());
    let Some(own) = own else { return Vec::new() };
    let same = mounts(table).filter(|m| m.number == own.number && m.dir != dir);
    same.map(|m| m.dir).collect()
}

/// A line of `/proc/self/mountinfo`.
struct Line<'a> {
    number: &'a [u8],
    dir: PathBuf,
    kind: &'a [u8],
}

/// The mounts that this process sees; later ones are on top.
fn mounts(table: &[u8]) -> impl DoubleEndedIterator<Item = Line<'_>> {
    // id parent major:minor root MOUNTPOINT options [optional...] - TYPE source options
    table.split(|b| *b == b'\n').filter_map(|line| {
        let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let dash = words.iter().position(|w| *w == b"-")?;
        let (number, dir) = (*words.get(2)?, words.get(4)?);
        let dir = PathBuf::from(OsString::from_vec(unquoted(dir)));
        Some(Line { number, dir, kind: words.get(dash + 1)? })
    })
}

/// Blanks, ends of lines and backslashes in a path are written as `\040`.
fn unquoted(mut quoted: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(quoted.len());
    while let Some((first, rest)) = quoted.split_first() {
        let octal = rest.get(..3).filter(|_| *first == b'\\');
        let code = octal.and_then(|o| u8::from_str_radix(std::str::from_utf8(o).ok()?, 8).ok());
        out.push(code.unwrap_or(*first));
        quoted = if code.is_some() { &rest[3..] } else { rest };
    }
    out
}

/// Mounts at `dir`, as [`prepare`] returned it, and returns the open device to serve it by.
pub(crate) fn mount(dir: &Path) -> Result<(OwnedFd, Mounted), Error> {
    let shown = dir.display();
    // fusermount3 opens it with its caller's rights, so a user that can't open it can't mount.
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|e| {
        let why = "is needed, readable and writable (the kernel's module is fuse)";
        refused(&e, format!("--fuse {shown}: {DEVICE} {why}"))
    })?;
    let device = match by_call(dir, &device) {
        Ok(()) => Ok(device.into()),
        Err(e) if e.kind() == IoKind::PermissionDenied => by_program(dir),
        Err(e) => Err(e),
    };
    let mounted = device.and_then(|device| {
        if let Some(mounted) = Mounted::at(dir) {
            return Ok((device, mounted));
        }
        let _ = unmount(dir, UnmountMode::Lazily); // without it nothing is left of it, either
        Err(io::Error::other(format!("{MOUNTS} does not show what was mounted")))
    });
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

/// The way to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnmountMode {
    /// Only if it is not in use.
    IfUnused,
    /// At once; open files stay usable for their processes.
    Lazily,
}

/// Unmounts what is on top at `dir`.
fn unmount(dir: &Path, how: UnmountMode) -> io::Result<()> {
    let lazily = how == UnmountMode::Lazily;
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

/// An I/O error of the control path, with our kind if there is one.
pub(crate) fn refused(e: &io::Error, what: impl std::fmt::Display) -> Error {
    let kind = ErrorKind::of_io(e.kind());
    Error::new(kind, format!("{what}: {}", block::without_errno(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 0:40 / /mnt/a\\040b\\134 rw,nosuid shared:7 master:1 - fuse.millpond millpond rw,user_id=0
31 21 0:41 / /mnt/c rw - fuse.millpond millpond rw
32 31 0:42 / /mnt/c rw - tmpfs tmpfs rw
33 21 0:43 / /mnt/\xff rw - tmpfs tmpfs rw
34 21 0:40 /dev /mnt/again rw - fuse.millpond millpond rw
";

    #[test]
    fn mounts_are_identified_by_place_and_number() {
        let top = |dir: &str| {
            let top = mounts(TABLE).rfind(|m| m.dir == Path::new(dir))?;
            Some((top.number.to_vec(), top.kind.to_vec()))
        };
        assert_eq!(top("/mnt/a b\\"), Some((b"0:40".to_vec(), TYPE.into())));
        assert_eq!(top("/mnt/c"), Some((b"0:42".to_vec(), b"tmpfs".to_vec())), "the topmost");
        assert_eq!(top("/mnt"), None);
        assert_eq!(others(TABLE, Path::new("/mnt/a b\\")), [PathBuf::from("/mnt/again")]);
        assert!(others(TABLE, Path::new("/mnt/c")).is_empty());
        assert!(others(TABLE, Path::new("/")).is_empty());
    }

    #[test]
    fn a_mount_that_is_not_ours_is_not_unmounted() {
        let root = Mounted { dir: "/".into(), number: b"0:0".to_vec() };
        assert!(root.unmount(UnmountMode::IfUnused).unwrap_err().to_string().contains("topmost"));
    }

    #[test]
    fn a_directory_that_is_none_or_is_in_use_is_refused_by_name() {
        let tmp = tempfile::tempdir().unwrap();
        let missing = tmp.path().join("missing");
        let e = prepare(&missing).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoFile);
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
