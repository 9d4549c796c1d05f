// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of names: of a bucket, which has an order, and of a directory, which has none.
use std::fs::{DirEntry, ReadDir};
use std::io;
use std::path::Path as FilePath;

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use objvol::{Listing, StoreError};

use crate::client::Remote;
use crate::connection::Client;
use crate::outcome;
use crate::outside_text::URL_BYTES_MAX;

/// Longest word by which a store finds its next page. Chosen: those of AWS have some hundred bytes.
const PAGE_TOKEN_BYTES_MAX: usize = 4096;
/// Directories within each other. Chosen: names of a volume have three parts.
const DEPTH_MAX: usize = 16;

/// The folder of a prefix: stores differ about prefixes that end within a part.
fn folder_of(prefix: &str) -> &str {
    prefix.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Remote {
    /// See `objvol::ObjectStore::list`.
    pub(crate) async fn list(self, prefix: String, after: String) -> Result<Listing, StoreError> {
        match (self.connection.client(), &self.directory) {
            (Client::Bucket(bucket), _) => self.page(bucket.as_ref(), &prefix, &after).await,
            (Client::Directory(_), Some(directory)) => {
                let root = directory.path().to_owned();
                let walk = move || files(&root, &prefix, &after);
                let walked = tokio::task::spawn_blocking(walk).await;
                walked.map_err(|_| StoreError::Unknown)?.map_err(|e| {
                    let why =
                        format!("the directory can't be listed: {}", block::without_errno(&e));
                    if outcome::is_refusal(&e) {
                        StoreError::Denied(why)
                    } else {
                        StoreError::Unknown
                    }
                })
            }
            (Client::Directory(_), None) => unreachable!("a directory has its place"),
        }
    }

    /// One page, by the name that it begins behind. What a store says about its next page goes
    /// back to it only where a page has no name.
    async fn page(
        &self,
        bucket: &dyn PaginatedListStore,
        prefix: &str,
        after: &str,
    ) -> Result<Listing, StoreError> {
        let folder = format!("{}/", self.path(folder_of(prefix)));
        let offset = (!after.is_empty()).then(|| self.path(after).to_string());
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions {
                offset: offset.clone(),
                page_token: page_token.take(),
                ..PaginatedListOptions::default()
            };
            let page = bucket.list_paginated(Some(&folder), options).await;
            let page = page.map_err(|e| self.reported("LIST", prefix, &e))?;
            let mut objects: Vec<(String, u64)> = Vec::new();
            for meta in page.result.objects {
                let Some(name) = self.name_of(meta.location.as_ref()) else { continue };
                if name.len() > URL_BYTES_MAX {
                    let text =
                        format!("its listing of {prefix} has a name of {} bytes", name.len());
                    return Err(StoreError::Denied(text)); // OC-C5
                }
                if !name.starts_with(prefix) || *name <= *after {
                    continue;
                }
                if objects.last().is_some_and(|(last, _)| *last >= name) {
                    let text = format!("its listing of {prefix} is not in order"); // OC-C4
                    return Err(StoreError::Denied(text));
                }
                objects.push((name, meta.size));
            }
            match page.page_token.filter(|token| !token.is_empty()) {
                Some(token) if objects.is_empty() => {
                    if token.len() > PAGE_TOKEN_BYTES_MAX {
                        let text =
                            format!("its listing of {prefix} goes on by {} bytes", token.len());
                        return Err(StoreError::Denied(text)); // OC-C5
                    }
                    page_token = Some(token);
                }
                more => return Ok(Listing { objects, has_more: more.is_some() }),
            }
        }
    }

    /// The name of an object under the prefix.
    fn name_of(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(self.root.as_ref())?;
        let rest = if self.root.as_ref().is_empty() { rest } else { rest.strip_prefix('/')? };
        Some(rest.to_owned())
    }
}

/// The entries of a directory; none where it is not there, or was deleted meanwhile.
fn entries(path: &FilePath) -> io::Result<Option<ReadDir>> {
    match std::fs::read_dir(path) {
        Ok(entries) => Ok(Some(entries)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether it is a file of the library that has not got its name yet.
fn is_staged(name: &str) -> bool {
    let digits = name.rsplit_once('#').map(|(_, digits)| digits);
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// All files below the folder of a prefix. A link below it is a file, whatever it leads to: it may
/// lead back.
fn files(root: &FilePath, prefix: &str, after: &str) -> io::Result<Listing> {
    let folder = folder_of(prefix);
    let mut objects = Vec::new();
    let mut open: Vec<(String, ReadDir)> = Vec::new();
    open.extend(entries(&root.join(folder))?.map(|entries| (folder.to_owned(), entries)));
    while let Some((folder, entries_left)) = open.last_mut() {
        let Some(entry) = entries_left.next() else {
            open.pop();
            continue;
        };
        let entry: DirEntry = entry?;
        let part = entry.file_name().to_string_lossy().into_owned();
        let name = if folder.is_empty() { part } else { format!("{folder}/{part}") };
        if entry.file_type()?.is_dir() {
            if open.len() == DEPTH_MAX {
                return Err(io::Error::other(format!("{name} is too deep")));
            }
            open.extend(entries(&entry.path())?.map(|entries| (name, entries)));
            continue;
        }
        if !name.starts_with(prefix) || *name <= *after || is_staged(&name) {
            continue;
        }
        match entry.metadata() {
            Ok(meta) => objects.push((name, meta.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {} // deleted meanwhile
            Err(e) => return Err(e),
        }
    }
    objects.sort_unstable();
    Ok(Listing { objects, has_more: false })
}
