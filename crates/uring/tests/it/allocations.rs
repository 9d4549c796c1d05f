// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The budget of the leaf path: no allocation a request once it is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Folder, on_core};
use block::{Buf, Bufs, Class, Flags, Sector};
use queue::FileLeaf;
use reactor::{read, write};
use uring::OpenOptions;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes everything on to the system's allocator and counts on the side.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Writes and reads one block, plain, in two pieces and misaligned.
async fn one_round(dev: &FileLeaf, gathered: &Bufs, n: u64) {
    let at = Sector(n % 128 * 8);
    let data = Bufs::from(Buf::alloc(4096));
    write(dev, Flags::empty(), Class::Normal, at, data.clone()).await.unwrap();
    read(dev, Class::Normal, at, data).await.unwrap();
    write(dev, Flags::FUA, Class::Normal, at, gathered.clone()).await.unwrap();
    let odd = Bufs::from(Buf::alloc(8192).slice(7..7 + 4096));
    read(dev, Class::Normal, at, odd).await.unwrap();
}

#[test]
fn requests_allocate_nothing_once_the_path_is_warm() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let options = OpenOptions { create_size: Some(1 << 20), ..OpenOptions::default() };
        let opened = files.open_path(&folder.path("disk"), options).unwrap();
        let dev = Rc::new(FileLeaf::new("disk", opened.file, opened.limits));
        let mut gathered = Bufs::from(Buf::zeroed(2048));
        gathered.push(Buf::zeroed(2048));
        for n in 0..100 {
            one_round(&dev, &gathered, n).await;
        }
        let rounds = async || {
            let before = ALLOCATIONS.get();
            for n in 0..500 {
                one_round(&dev, &gathered, n).await;
            }
            // One a round is the client's own: its list of more than one piece.
            ALLOCATIONS.get() - before - 500
        };
        let windows = rounds().await;
        assert!(windows < 100, "{windows} allocations of the throttle's timer in 2000 requests");
        dev.wbt().set("queue/wbt_lat_usec", "0").unwrap();
        assert_eq!(rounds().await, 0, "allocations in 2000 requests");
    });
}
