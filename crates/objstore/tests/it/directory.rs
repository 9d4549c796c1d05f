// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A directory as a store.
use std::mem::MaybeUninit;

use block::Buf;
use objstore::{StoreUrl, UnboundClient};
use objvol::{ObjectStore, StoreError};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::client;

fn bytes(buf: &Buf) -> Vec<u8> {
    buf.read(<[u8]>::to_vec)
}

#[test]
fn objects_are_created_once_read_listed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (reactor, store) = client(&format!("file://{}", dir.path().display()), &Vec::new());
    reactor.block_on(async move {
        let put =
            |name: &'static str, data: &'static [u8]| store.put_absent(name, Buf::copy_of(data));
        assert_eq!(put("segment/0a/02", b"two").await, Ok(()));
        assert_eq!(put("segment/0a/01", b"first").await, Ok(()));
        assert_eq!(put("segment/0b/01", b"b").await, Ok(()));
        assert_eq!(put("manifest/01", b"m").await, Ok(()));
        assert_eq!(put("segment/0a/01", b"other").await, Err(StoreError::Exists));

        let get = async |name: &str, range| store.get(name, range).await.map(|b| bytes(&b));
        assert_eq!(get("segment/0a/01", 0..u64::MAX).await, Ok(b"first".to_vec()));
        assert_eq!(get("segment/0a/01", 2..4).await, Ok(b"rs".to_vec()));
        assert_eq!(get("segment/0a/01", 2..4000).await, Ok(b"rst".to_vec()));
        assert_eq!(get("segment/0a/01", 2..u64::MAX).await, Ok(b"rst".to_vec()));
        assert_eq!(get("segment/0a/01", 5..9).await, Err(StoreError::NotFound));
        assert_eq!(get("segment/0a/03", 0..9).await, Err(StoreError::NotFound));

        let list = async |prefix: &str, after: &str| {
            let page = store.list(prefix, after).await.unwrap();
            assert!(!page.has_more);
            page.objects
        };
        let all = [("segment/0a/01", 5), ("segment/0a/02", 3), ("segment/0b/01", 1)];
        let all = all.map(|(name, bytes)| (name.to_owned(), bytes));
        assert_eq!(list("segment/", "").await, all);
        assert_eq!(list("segment/0a/", "").await, all[..2]);
        assert_eq!(list("segment/", "segment/0a/01").await, all[1..]);
        assert_eq!(list("", "manifest/01").await, all);
        assert_eq!(list("owner/", "").await, []);

        assert_eq!(store.delete("segment/0a/01").await, Ok(()));
        assert_eq!(store.delete("segment/0a/01").await, Ok(()));
        assert_eq!(list("segment/", "").await, all[1..]);
        assert_eq!(store.last_failure(), None);
    });
}

/// A process was killed behind its `mkdir`, or another request is between that and its syncs: an
/// object below was reported as created while a power cut could take its directories away. A sync
/// of a directory begins with an open of it.
#[test]
fn directories_above_an_object_that_others_made_are_synced() {
    let dir = tempfile::tempdir().unwrap();
    let middle = dir.path().join("segment");
    std::fs::create_dir_all(middle.join("0a")).unwrap();
    let (reactor, store) = client(&format!("file://{}", dir.path().display()), &Vec::new());
    let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
    let watched = [dir.path(), &middle].map(|dir| {
        let flags = WatchFlags::OPEN | WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, dir, flags).unwrap()
    });
    let opened = move || {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&watch, &mut space);
        let mut all = Vec::new();
        while let Ok(event) = events.next() {
            // Of the directory itself, not of what is in it.
            all.extend(event.file_name().is_none().then(|| event.wd()));
        }
        watched.map(|of| all.contains(&of))
    };
    reactor.block_on(async move {
        assert_eq!(store.put_absent("segment/0a/01", Buf::copy_of(b"x")).await, Ok(()));
        assert_eq!(opened(), [true, true]);
        // From then on they are there.
        assert_eq!(store.put_absent("segment/0a/02", Buf::copy_of(b"x")).await, Ok(()));
        assert_eq!(opened(), [false, false]);
    });
}

#[test]
fn a_directory_that_refuses_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (reactor, store) = client(&format!("file://{}", dir.path().display()), &Vec::new());
    // A file where a directory would be made.
    std::fs::write(dir.path().join("segment"), b"x").unwrap();
    reactor.block_on(async move {
        let put = store.put_absent("segment/0a/01", Buf::copy_of(b"x")).await;
        assert!(
            matches!(&put, Err(StoreError::Denied(why)) if why.contains("directory")),
            "{put:?}"
        );
    });
}

#[test]
fn only_a_directory_that_is_there_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"x").unwrap();
    for (name, why) in [("none", "No such file"), ("file", "it is no directory")] {
        let url = StoreUrl::parse(&format!("file://{}/{name}", dir.path().display())).unwrap();
        let e = UnboundClient::open(&url, &Vec::new()).unwrap_err().to_string();
        assert!(e.starts_with(&format!("{url}: ")) && e.contains(why), "{e}");
    }
}

/// A walk that follows links had no end where one leads back.
#[test]
fn a_listing_does_not_follow_links() {
    let dir = tempfile::tempdir().unwrap();
    let (reactor, store) = client(&format!("file://{}", dir.path().display()), &Vec::new());
    reactor.block_on(async move {
        assert_eq!(store.put_absent("segment/0a/01", Buf::copy_of(b"one")).await, Ok(()));
        for (target, name) in [(".", "loop"), ("0a", "twice"), ("none", "dangling")] {
            std::os::unix::fs::symlink(target, dir.path().join("segment").join(name)).unwrap();
        }
        let names = async |prefix: &str| -> Vec<String> {
            let page = store.list(prefix, "").await.unwrap();
            page.objects.into_iter().map(|(name, _)| name).collect()
        };
        let strays = ["segment/dangling", "segment/loop", "segment/twice"];
        assert_eq!(names("segment/").await, [&["segment/0a/01"][..], &strays].concat());
        assert_eq!(names("segment/0a/").await, ["segment/0a/01"]);
        // The folder of the prefix itself may be a link: to a larger disk, say.
        assert_eq!(names("segment/twice/").await, ["segment/twice/01"]);
    });
}
