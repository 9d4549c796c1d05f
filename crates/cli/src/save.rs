// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond save`: writes the devices as they are now into a configuration file.
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use block::ErrorKind;
use clap::Args;
use control::{Failure, api, paths};
use host::{Format, Listing, io_failure, print, print_as_is};
use rustix::fs::{Gid, Uid, fchown};
use serde_json::json;

use crate::client::Client;
use crate::requests::warn;

/// Permissions of a new file: a configuration has no secrets.
const MODE: u32 = 0o644;

/// Write the devices as they are now into a configuration file
///
/// The file has the daemon's options and all devices with live tables, in an order in which they
/// can be created, with attributes that no table has. `daemon --config FILE` brings up the same
/// devices. Without FILE it is printed. A file is replaced in one step: a crash leaves the old one
/// or the new one. What can't be saved is a warning; attributes of files and disks below are not
/// saved, nor device numbers.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond save
  millpond save /etc/millpond.toml --force
  millpond daemon --config /etc/millpond.toml --check-config
  millpond save -o json")]
pub struct SaveArgs {
    /// The file; standard output when left out
    file: Option<PathBuf>,
    /// Replace a file that exists
    #[arg(long, requires = "file")]
    force: bool,
    #[command(flatten)]
    listing: Listing,
}

/// Runs the verb.
pub(crate) async fn save(client: &Client, a: &SaveArgs) -> Result<(), Failure> {
    let saved: api::SavedConfig = client.get(paths::CONFIG).await?;
    warn(&saved.warnings);
    if let Some(file) = &a.file {
        write(file, saved.toml.as_bytes(), a.force)?;
    }
    match (a.listing.format, &a.file) {
        (Format::Json, file) => {
            let file = file.as_ref().map(|file| file.to_string_lossy());
            let value = json!({ "file": file, "toml": saved.toml, "warnings": saved.warnings });
            print(&format!("{value:#}\n"))
        }
        (Format::Text, None) => print_as_is(&saved.toml),
        (Format::Text, Some(_)) => Ok(()),
    }
}

/// Writes a file in one step, durably.
fn write(file: &Path, bytes: &[u8], force: bool) -> Result<(), Failure> {
    let failed = |e: &io::Error| io_failure(e, file.display().to_string());
    // A link stays one: what it points at is replaced.
    let place = match std::fs::canonicalize(file) {
        Ok(place) => place,
        Err(e) if file.is_symlink() => return Err(failed(&e).within("a link that leads nowhere")),
        Err(_) => file.to_owned(),
    };
    let before = std::fs::metadata(&place).ok();
    let dir = match place.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        Some(_) | None => PathBuf::from("."),
    };
    let exists = || {
        let text = format!("{}: the file exists: --force replaces it", file.display());
        Failure::new(ErrorKind::Exists, text)
    };
    if before.as_ref().is_some_and(|meta| !meta.is_file()) {
        let text = format!("{}: it is no regular file, and stays", file.display());
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    if before.is_some() && !force {
        return Err(exists());
    }
    let mut temp = tempfile::Builder::new()
        .prefix(".millpond-save")
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(&dir)
        .map_err(|e| failed(&e))?;
    if let Some(before) = &before {
        keep_access(temp.as_file(), before).map_err(|e| failed(&e))?;
    }
    temp.write_all(bytes).and_then(|()| temp.as_file().sync_all()).map_err(|e| failed(&e))?;
    let persisted = if force { temp.persist(&place) } else { temp.persist_noclobber(&place) };
    persisted.map_err(|e| match e.error.kind() == io::ErrorKind::AlreadyExists {
        true => exists(),
        false => failed(&e.error),
    })?;
    File::open(&dir).and_then(|dir| dir.sync_all()).map_err(|e| failed(&e))
}

/// Gives a file the owner and the mode of the one that it replaces: the daemon must be able to read
/// it at its next start, whoever saves it, and with whatever umask.
fn keep_access(file: &File, before: &Metadata) -> io::Result<()> {
    let now = file.metadata()?;
    if (now.uid(), now.gid()) != (before.uid(), before.gid()) {
        let (user, group) = (Uid::from_raw(before.uid()), Gid::from_raw(before.gid()));
        fchown(file, Some(user), Some(group))?;
    }
    file.set_permissions(Permissions::from_mode(before.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_by_force_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a.toml"), dir.path().join("link"));
        std::os::unix::fs::symlink("a.toml", &link).unwrap();
        write(&file, b"one", false).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o600, 0o600);
        let refused = write(&link, b"two", false).unwrap_err();
        assert!(refused.message.contains("--force"), "{refused}");
        write(&link, b"two", true).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert!(link.is_symlink());
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 2, "no temporary file is left");
        assert!(write(&dir.path().join("no/such"), b"x", false).is_err());
    }

    /// `save --force` by root, with a umask of 077 or over a file of the daemon's group, left one
    /// that the service could not read: it did not start again.
    #[test]
    fn a_file_that_is_replaced_keeps_owner_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.toml");
        std::fs::write(&file, b"one").unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(1234), Some(5678)).unwrap();
        }
        // No usual umask lets all of it pass.
        std::fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        let access = || {
            let meta = std::fs::metadata(&file).unwrap();
            (meta.uid(), meta.gid(), meta.mode())
        };
        let before = access();
        write(&file, b"two", true).unwrap();
        assert_eq!((access(), std::fs::read(&file).unwrap()), (before, b"two".to_vec()));
    }

    /// `save /dev/null --force` made a file of the device, and one of a link that leads nowhere.
    #[test]
    fn only_regular_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, link) = (dir.path().join("socket"), dir.path().join("link"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for place in [&socket, &link] {
            let kind = std::fs::symlink_metadata(place).unwrap().file_type();
            for force in [false, true] {
                write(place, b"x", force).unwrap_err();
            }
            assert_eq!(std::fs::symlink_metadata(place).unwrap().file_type(), kind);
        }
    }
}
