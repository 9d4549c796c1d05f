// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words of tables that name leaves, and checks of the paths in them. The checks may wait for a
//! file system, so helper threads run them.
use std::io::{Error as IoError, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, Sector};
use rustix::fs::OFlags;
use zram::DICTIONARY_BYTES_MAX;

use crate::nbd_uri::{NbdUri, is_nbd};

/// Where our own devices are files, if anywhere. To examine a file there would deadlock.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnMount(pub(crate) Option<PathBuf>);

impl OwnMount {
    /// Whether `path` leads into it.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.0.as_ref().is_some_and(|dir| crate::mount_paths::leads_into(path, dir))
    }

    /// Refuses paths that lead into it.
    pub(crate) fn refuse(&self, path: &Path) -> Result<(), Error> {
        if self.has(path) {
            let hint = "this daemon serves this file: name the device instead of it";
            return Err(Error::invalid(format!("{}: {hint}", path.display())));
        }
        Ok(())
    }

    /// Refuses paths that must not be opened: into our own mount, and relative ones, which are
    /// relative to a directory of the client's.
    fn check_path(&self, path: &str) -> Result<(), Error> {
        let path = Path::new(path);
        if !path.is_absolute() {
            let e = format!("{}: a path must begin with a slash here", path.display());
            return Err(Error::invalid(e));
        }
        self.refuse(path)
    }

    /// Checks without opening it whether `word` can be opened. Errors: `ENOENT` when there is no
    /// such file, `EINVAL` when it is of another type or empty, `EACCES` when it can't be written.
    pub(crate) fn check_openable(&self, word: &str) -> Result<(), Error> {
        let parsed = parse(word)?;
        let (LeafWord::Path(path) | LeafWord::Pmem(path)) = &parsed else { return Ok(()) };
        self.check_path(word.strip_prefix(PMEM).unwrap_or(word))?;
        let shown = path.display();
        let meta = std::fs::metadata(path).map_err(|e| file_error(&e, word))?;
        if meta.is_file() && meta.len() == 0 {
            return Err(Error::invalid(format!("{shown}: it is empty: give it its size first")));
        }
        // Opening it shows whether it is a DAX device.
        let may_be_dax = matches!(parsed, LeafWord::Pmem(_)) && meta.file_type().is_char_device();
        if !meta.is_file() && !meta.file_type().is_block_device() && !may_be_dax {
            let wanted = "neither a regular file nor a block device";
            return Err(Error::invalid(format!("{shown}: is {wanted}")));
        }
        let access = rustix::fs::access(path, rustix::fs::Access::WRITE_OK);
        access.map_err(|e| file_error(&e.into(), word))
    }

    /// The content of a dictionary.
    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        self.check_path(path)?;
        let refused = |e: IoError| file_error(&e, path);
        // Without it, opening a pipe would block.
        let nonblock = OFlags::NONBLOCK.bits().cast_signed();
        let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblock).open(path);
        let file = file.map_err(refused)?;
        let meta = file.metadata().map_err(refused)?;
        if !meta.is_file() || meta.len() > DICTIONARY_BYTES_MAX as u64 {
            return Err(Error::invalid(format!(
                "{path}: a regular file of at most {DICTIONARY_BYTES_MAX} bytes is allowed"
            )));
        }
        let mut bytes = Vec::new();
        let most = DICTIONARY_BYTES_MAX as u64;
        file.take(most).read_to_end(&mut bytes).map_err(refused)?;
        Ok(bytes)
    }
}

/// An error of the system about a file that a user has named.
pub(crate) fn file_error(e: &IoError, path: &str) -> Error {
    let kind = ErrorKind::of_io(e.kind());
    Error::new(kind, format!("{path}: {}", block::without_errno(e)))
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeafWord {
    Path(PathBuf),
    Pmem(PathBuf),
    Nbd(NbdUri),
    Mem(Sector),
    Null(Sector),
}

/// Before the path of a file that is to be mapped as persistent memory.
pub const PMEM: &str = "pmem:";

/// The word that opens a table's cache as persistent memory; none when it names something that
/// can't be mapped.
pub(crate) fn as_pmem(word: &str) -> Option<String> {
    match parse(word) {
        Ok(LeafWord::Pmem(_)) => Some(word.to_owned()),
        Ok(LeafWord::Path(_)) => Some(format!("{PMEM}{word}")),
        Ok(LeafWord::Nbd(_) | LeafWord::Mem(_) | LeafWord::Null(_)) | Err(_) => None,
    }
}

/// Whether only a leaf can have this name: mapped devices have no such names.
pub(crate) fn is_leaf_word(word: &str) -> bool {
    word.contains('/') || ["mem:", "null:"].iter().any(|s| word.starts_with(s)) || is_nbd(word)
}

/// Parses a word. The same word means the same device as long as it is open; a tag, `mem:SIZE,TAG`,
/// makes two devices of one size differ.
pub(crate) fn parse(word: &str) -> Result<LeafWord, Error> {
    if let Some(rest) = word.strip_prefix("mem:") {
        let size = rest.split_once(',').map_or(rest, |(size, _tag)| size);
        return Ok(LeafWord::Mem(capacity(size)?));
    }
    if let Some(size) = word.strip_prefix("null:") {
        return Ok(LeafWord::Null(capacity(size)?));
    }
    if is_nbd(word) {
        return NbdUri::parse(word).map(LeafWord::Nbd);
    }
    let (path, word_of): (_, fn(PathBuf) -> LeafWord) = match word.strip_prefix(PMEM) {
        Some(path) => (path, LeafWord::Pmem),
        None => (word, LeafWord::Path),
    };
    crate::nbd_uri::check_scheme(path)?;
    if path.contains('/') {
        let path = std::path::absolute(path)
            .map_err(|e| Error::invalid("the path can't be made absolute").because(e))?;
        return Ok(word_of(path));
    }
    Err(Error::not_found(
        "no mapped device has this name; else a path with a slash (./disk.img), pmem:PATH, \
         nbd://HOST/EXPORT, mem:SIZE or null:SIZE is allowed",
    ))
}

fn capacity(size: &str) -> Result<Sector, Error> {
    let bytes = control::parse_size(size).map_err(|e| Error::invalid(e.to_string()))?;
    let sectors = Sector::from_bytes(bytes);
    if sectors == Sector::ZERO || sectors.bytes() != bytes {
        return Err(Error::invalid(format!("size {size} is not a positive multiple of 512 bytes")));
    }
    Ok(sectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_word_is_parsed() {
        assert_eq!(parse("mem:64MiB").unwrap(), LeafWord::Mem(Sector(131_072)));
        assert_eq!(parse("mem:4K,a").unwrap(), LeafWord::Mem(Sector(8)));
        assert_eq!(parse("null:8s").unwrap(), LeafWord::Null(Sector(8)));
        assert_eq!(parse("/a/b").unwrap(), LeafWord::Path("/a/b".into()));
        assert_eq!(parse("pmem:/a/b").unwrap(), LeafWord::Pmem("/a/b".into()));
        assert_eq!(as_pmem("/a/b").as_deref(), Some("pmem:/a/b"));
        assert_eq!(as_pmem("pmem:/a/b").as_deref(), Some("pmem:/a/b"));
        assert_eq!(as_pmem("mem:4K"), None);
    }

    #[test]
    fn a_wrong_word_is_refused_with_what_is_allowed() {
        for (word, part) in [
            ("origin", "mem:SIZE"),
            ("mem:", "powers of 1024"),
            ("pmem:a", "mem:SIZE"),
            ("mem:0", "positive multiple of 512"),
            ("null:1000", "positive multiple of 512"),
        ] {
            let e = parse(word).unwrap_err().to_string();
            assert!(e.contains(part), "{word}: {e}");
        }
    }
}
