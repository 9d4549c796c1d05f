// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `StoreUrl`: the word by which tables and verbs name a store.
use std::fmt;
use std::path::PathBuf;

use block::Error;

/// What is allowed, for errors.
const ALLOWED: &str = "s3://BUCKET/PREFIX and file:///DIR are allowed";

/// Bytes of a part of a prefix: those of a file's name.
const PART_BYTES_MAX: usize = 255;
/// Bytes of a prefix. Chosen: a key has 1024, of which the volume needs less than 100.
const PREFIX_BYTES_MAX: usize = 900;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Names in a bucket that begin with a prefix, which has no slash at its ends.
    Bucket { bucket: String, prefix: String },
    /// Files in a directory.
    Directory(PathBuf),
}

/// A prefix of a bucket, or a directory. Displayed in one spelling, which parses to the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl(Location);

impl StoreUrl {
    /// Reads `s3://BUCKET/PREFIX` or `file:///DIR`.
    ///
    /// # Errors
    /// `Invalid` names the word, what is wrong with it, and what is allowed.
    pub fn parse(word: &str) -> Result<StoreUrl, Error> {
        let refused = |why: &str| Error::invalid(format!("`{word}`: {why}: {ALLOWED}"));
        let Some((scheme, rest)) = word.split_once("://") else {
            return Err(refused("it is no URL"));
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        // Others mean something else in a URL, or are encoded differently by different stores; and
        // the library encodes `~` twice in names of a bucket, and finds them under no name.
        let plain = if scheme == "file" { "-_.~+=," } else { "-_.+=," };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '/' || plain.contains(c);
        if let Some(other) = rest.chars().find(|c| !is_plain(*c)) {
            return Err(refused(&format!(
                "`{other}` is not allowed, only letters, digits and {plain}"
            )));
        }
        let has_odd_part =
            |path: &str| path.split('/').any(|part| part.is_empty() || part == "." || part == "..");
        match scheme {
            "s3" => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if bucket.is_empty() {
                    return Err(refused("it names no bucket"));
                }
                if prefix.is_empty() {
                    // Nobody else may write under the prefix: a whole bucket is seldom meant.
                    return Err(refused("it names no prefix"));
                }
                if has_odd_part(prefix) {
                    return Err(refused("its prefix has an empty part, `.` or `..`"));
                }
                // Gateways keep names as files, and S3 allows 1024 bytes, with the volume's own.
                if prefix.split('/').any(|part| part.len() > PART_BYTES_MAX) {
                    return Err(refused("a part of its prefix is longer than 255 bytes"));
                }
                if prefix.len() > PREFIX_BYTES_MAX {
                    return Err(refused("its prefix is longer than 900 bytes"));
                }
                Ok(StoreUrl(Location::Bucket { bucket: bucket.into(), prefix: prefix.into() }))
            }
            "file" => match rest.strip_prefix('/') {
                Some(path) if !has_odd_part(path) => {
                    Ok(StoreUrl(Location::Directory(PathBuf::from(rest))))
                }
                Some(_) => Err(refused("its path is empty, or has an empty part, `.` or `..`")),
                None => Err(refused("its path is not absolute")),
            },
            _ => Err(refused("its scheme is not known")),
        }
    }

    pub(crate) fn location(&self) -> &Location {
        &self.0
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Location::Bucket { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Location::Directory(path) => write!(f, "file://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_spelling() {
        for (word, shown) in [
            ("s3://bucket/a/b-1", "s3://bucket/a/b-1"),
            ("s3://bucket/a/", "s3://bucket/a"),
            ("file:///srv/pond", "file:///srv/pond"),
            ("file:///srv/pond/", "file:///srv/pond"),
            ("file:///srv/~pond", "file:///srv/~pond"),
        ] {
            let url = StoreUrl::parse(word).unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(StoreUrl::parse(shown).unwrap(), url);
        }
    }

    #[test]
    fn what_is_no_url_of_a_store_is_refused_with_the_reason() {
        let long_part = format!("s3://bucket/{}", "x".repeat(256));
        let long = format!("s3://bucket/a{}", "/aaa".repeat(225));
        for (word, why) in [
            (long_part.as_str(), "a part of its prefix is longer than 255 bytes"),
            (&long, "its prefix is longer than 900 bytes"),
            ("s3://bucket/~disk", "`~` is not allowed, only letters, digits and -_.+=,"),
            ("bucket/a", "it is no URL"),
            ("http://h/a", "its scheme is not known"),
            ("s3://", "it names no bucket"),
            ("s3://bucket", "it names no prefix"),
            ("s3://bucket/", "it names no prefix"),
            ("s3://bucket//a", "its prefix has an empty part"),
            ("s3://bucket/a/../b", "its prefix has an empty part, `.` or `..`"),
            ("s3://bucket/a%20b", "`%` is not allowed"),
            ("s3://bucket/a@b", "`@` is not allowed"),
            ("file://srv/pond", "its path is not absolute"),
            ("file:///", "its path is not absolute"),
            ("file:////a", "its path is empty, or has an empty part"),
        ] {
            let e = StoreUrl::parse(word).unwrap_err().to_string();
            assert!(e.contains(why) && e.contains(ALLOWED), "{word}: {e}");
        }
    }
}
