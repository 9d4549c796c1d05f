// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `TokenFile`: a file with what a provider of keys wants to see.
//!
//! Somebody else writes it, and again while the daemon runs. Most programs end it with a line
//! break, which is no part of the token.
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use block::{Error, without_errno};

use crate::outside_text::{TEXT_BYTES_MAX, check_word};

/// Where the file is, and the variable that says so.
#[derive(Clone, Debug)]
pub(crate) struct TokenFile {
    variable: String,
    path: PathBuf,
}

/// At most one byte more than a token has.
fn read_start(path: &Path) -> std::io::Result<String> {
    // An open of a FIFO would wait.
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    File::open(path)?.take(TEXT_BYTES_MAX as u64 + 3).read_to_string(&mut text)?;
    Ok(text)
}

impl TokenFile {
    /// The file that a variable names, after a look at what is in it now.
    ///
    /// # Errors
    /// `Invalid` names the variable.
    pub(crate) fn of(variable: &str, path: &str) -> Result<TokenFile, Error> {
        let file = TokenFile { variable: variable.to_owned(), path: path.into() };
        file.read().map(|_| file).map_err(Error::invalid)
    }

    /// The token that it holds now; or why that can't be sent.
    pub(crate) fn read(&self) -> Result<String, String> {
        let refused = |why: &str| {
            format!("the file {} of the variable {} {why}", self.path.display(), self.variable)
        };
        let text = read_start(&self.path)
            .map_err(|e| refused(&format!("can't be read: {}", without_errno(e))))?;
        let token = text.strip_suffix('\n').unwrap_or(&text);
        let token = token.strip_suffix('\r').unwrap_or(token);
        check_word(token).map_err(refused)?;
        Ok(token.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ends_where_its_line_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let name = path.to_str().unwrap();
        for (text, token) in [("a b", "a b"), ("a\n", "a"), ("a\r\n", "a")] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(TokenFile::of("NAME", name).unwrap().read(), Ok(token.to_owned()));
        }
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for text in ["", "\n", "a\nb", "a\n\n", "\u{e4}", &long] {
            std::fs::write(&path, text).unwrap();
            let e = TokenFile::of("NAME", name).unwrap_err().to_string();
            assert!(e.starts_with("the file ") && e.contains("of the variable NAME "), "{e}");
        }
        for none in [dir.path(), &dir.path().join("none")] {
            let e = TokenFile::of("NAME", none.to_str().unwrap()).unwrap_err().to_string();
            assert!(e.contains("can't be read: "), "{e}");
        }
    }
}
