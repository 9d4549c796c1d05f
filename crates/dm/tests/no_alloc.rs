// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bio through stacked linear and striped devices allocates nothing in steady state.
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use block::{Class, Flags, Sector};
use common::{Bench, filled};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise about the layout is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_remapped_bio_allocates_nothing() {
    let bench = Bench::new(1);
    {
        let mut s = bench.state.borrow_mut();
        (s.latency_ns_max, s.logging) = (0, false);
    }
    bench.run(|dm, _| async move {
        let table = "0 1024 striped 2 8 /ram/a/1024 0 /ram/b/1024 0";
        dm.create("low", None, Some(table)).await.unwrap();
        let table = "0 512 linear low 512\n512 512 linear low 0";
        let top = dm.create("top", None, Some(table)).await.unwrap();
        let bufs = filled(1, 8);
        let mut before = 0;
        for i in 0..2000_u64 {
            if i == 1000 {
                before = ALLOCATIONS.get();
                assert!(before > 0, "the counter counts");
            }
            let at = Sector(i * 8 % 1024);
            let (flags, class) = (Flags::empty(), Class::Normal);
            let one = reactor::write(&*top, flags, class, at, bufs.clone());
            let two = reactor::read(&*top, class, at, bufs.clone());
            one.await.unwrap();
            two.await.unwrap();
            reactor::flush(&*top, class).await.unwrap_or_else(|e| panic!("{e}"));
        }
        // A flush of `low` goes to two disks, which is a split; so count it apart.
        let with_flushes = ALLOCATIONS.get() - before;
        let before = ALLOCATIONS.get();
        for i in 0..1000_u64 {
            let at = Sector(i * 8 % 1024);
            reactor::read(&*top, Class::Normal, at, bufs.clone()).await.unwrap();
            let (flags, class) = (Flags::FUA, Class::Normal);
            reactor::write(&*top, flags, class, at, bufs.clone()).await.unwrap();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "2000 bios in place");
        assert!(with_flushes <= 1000 * 8, "a flush of two disks: {with_flushes} allocations");
    });
}
