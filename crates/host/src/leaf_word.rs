// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words of tables that name leaves, and what can be said of a path by looking at it. What looks
//! may wait for a file system: helpers run it.
use std::io::{Error as IoError, ErrorKind as IoKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, Sector};
use rustix::fs::OFlags;
use zram::DICTIONARY_BYTES_MAX;

use crate::nbd_uri::{NbdUri, is_nbd};

/// Where our own devices are files, if anywhere: to look there would be to wait for oneself.
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

    /// Refuses paths that can't be looked at: into our own mount, and relative ones, which mean
    /// something else to whoever has written them.
    fn check_path(&self, path: &str) -> Result<(), Error> {
        let path = Path::new(path);
        if !path.is_absolute() {
            let e = format!("{}: a path must begin with a slash here", path.display());
            return Err(Error::invalid(e));
        }
        self.refuse(path)
    }

    /// Whether `word` can be opened, as far as a look at it tells. Errors: `ENOENT` when there is
    /// no such file, `EINVAL` when it is of another sort or empty, `EACCES` when it can't be
    /// written.
    pub(crate) fn look(&self, word: &str) -> Result<(), Error> {
        let parsed = parse(word)?;
        let (Word::Path(path) | Word::Pmem(path)) = &parsed else { return Ok(()) };
        self.check_path(word.strip_prefix(PMEM).unwrap_or(word))?;
        let shown = path.display();
        let meta = std::fs::metadata(path).map_err(|e| file_error(&e, word))?;
        if meta.is_file() && meta.len() == 0 {
            return Err(Error::invalid(format!("{shown}: it is empty: give it its size first")));
        }
        // What a DAX device is shows when it is opened.
        let may_be_dax = matches!(parsed, Word::Pmem(_)) && meta.file_type().is_char_device();
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
        // A pipe would be waited for.
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
    let known = [
        (IoKind::NotFound, ErrorKind::NoFile),
        (IoKind::NotADirectory, ErrorKind::NoFile),
        (IoKind::PermissionDenied, ErrorKind::Denied),
        (IoKind::ReadOnlyFilesystem, ErrorKind::Denied),
    ];
    let kind = known.iter().find(|(io, _)| *io == e.kind()).map_or(ErrorKind::Io, |(_, k)| *k);
    Error::new(kind, format!("{path}: {}", block::without_errno(e)))
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Path(PathBuf),
    Pmem(PathBuf),
    Nbd(NbdUri),
    Mem(Sector),
    Null(Sector),
}

/// Before the path of a file that is to be mapped as persistent memory.
pub const PMEM: &str = "pmem:";

/// The word by which a table's word for persistent memory is opened; nothing when it names what
/// can't be mapped.
pub(crate) fn as_pmem(word: &str) -> Option<String> {
    match parse(word) {
        Ok(Word::Pmem(_)) => Some(word.to_owned()),
        Ok(Word::Path(_)) => Some(format!("{PMEM}{word}")),
        Ok(Word::Nbd(_) | Word::Mem(_) | Word::Null(_)) | Err(_) => None,
    }
}

/// Whether a word can be nothing but a leaf's: mapped devices have no such names.
pub(crate) fn names_a_leaf(word: &str) -> bool {
    word.contains('/') || ["mem:", "null:"].iter().any(|s| word.starts_with(s)) || is_nbd(word)
}

/// What a word of a table names. The same word is the same device as long as anybody has it open;
/// `mem:SIZE,TAG` lets there be two of one size.
pub(crate) fn parse(word: &str) -> Result<Word, Error> {
    if let Some(rest) = word.strip_prefix("mem:") {
        let size = rest.split_once(',').map_or(rest, |(size, _tag)| size);
        return Ok(Word::Mem(capacity(size)?));
    }
    if let Some(size) = word.strip_prefix("null:") {
        return Ok(Word::Null(capacity(size)?));
    }
    if is_nbd(word) {
        return NbdUri::parse(word).map(Word::Nbd);
    }
    let (path, word_of): (_, fn(PathBuf) -> Word) = match word.strip_prefix(PMEM) {
        Some(path) => (path, Word::Pmem),
        None => (word, Word::Path),
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
    fn words_are_told_apart() {
        assert_eq!(parse("mem:64MiB").unwrap(), Word::Mem(Sector(131_072)));
        assert_eq!(parse("mem:4K,a").unwrap(), Word::Mem(Sector(8)));
        assert_eq!(parse("null:8s").unwrap(), Word::Null(Sector(8)));
        assert_eq!(parse("/a/b").unwrap(), Word::Path("/a/b".into()));
        assert_eq!(parse("pmem:/a/b").unwrap(), Word::Pmem("/a/b".into()));
        assert_eq!(as_pmem("/a/b").as_deref(), Some("pmem:/a/b"));
        assert_eq!(as_pmem("pmem:/a/b").as_deref(), Some("pmem:/a/b"));
        assert_eq!(as_pmem("mem:4K"), None);
    }

    #[test]
    fn what_names_nothing_is_refused_with_what_is_allowed() {
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
