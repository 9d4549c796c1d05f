// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published procedures at a size for every day; `make published` runs them in full. Nothing
//! is timed here.

use std::fmt::Debug;
use std::io::{Write, stderr};

use e2e::Result;
use e2e::binary::{Build, millpond};
use e2e::published::cache::{self, Order};
use e2e::published::filesystem::{self, Kind};
use e2e::published::{Site, linear, obstacle, zram};

const MIB: u64 = 1 << 20;

/// Runs a procedure at a place of its own; says aloud that it did not, where it can't.
fn at_a_site<T: Debug>(
    obstacle: Option<String>,
    procedure: impl FnOnce(&Site) -> Result<T>,
) -> Option<T> {
    if let Some(why) = obstacle {
        // Past the test harness, which shows what a test prints only when it fails.
        let _ = writeln!(stderr(), "SKIPPED: a published procedure was NOT run: {why}");
        return None;
    }
    let program = millpond(Build::Workspace).unwrap();
    let site = Site::start(&program, &std::env::temp_dir()).unwrap();
    let done =
        procedure(&site).unwrap_or_else(|e| panic!("{e}\nthe daemon's log:\n{}", site.log()));
    site.end().unwrap();
    Some(done)
}

fn a_write_cache(order: Order) {
    let sizes = cache::Sizes { origin_bytes: 32 * MIB, cache_bytes: 16 * MIB };
    let filled = at_a_site(obstacle(), |site| cache::run(site, sizes, order, 1));
    let Some(filled) = filled else { return };
    assert!(filled.origin_writes > 0 && filled.origin_writes <= filled.dirty_blocks, "{filled:?}");
}

#[test]
fn a_write_cache_is_filled_and_flushed_in_sorted_order() {
    a_write_cache(Order::Sorted);
}

#[test]
fn a_write_cache_is_filled_and_flushed_oldest_first() {
    a_write_cache(Order::Lru);
}

#[test]
fn twelve_jobs_read_memory_and_a_linear_mapping_of_it() {
    let sizes = linear::Sizes { mib: 64, rounds: 2, run_ms: 100 };
    let Some(reads) = at_a_site(obstacle(), |site| linear::run(site, sizes)) else { return };
    let all = [&reads.raw_iops[..], &reads.linear_iops].concat();
    assert!(all.len() == 4 && all.iter().all(|iops| *iops > 0.0), "{reads:?}");
}

fn a_file_system(kind: Kind) {
    let sizes = filesystem::Sizes {
        device_bytes: 384 * MIB,
        cache_bytes: 16 * MIB,
        files: 400,
        file_bytes_max: 64 << 10,
    };
    let obstacle = kind.obstacle(&std::env::temp_dir());
    let kept = at_a_site(obstacle, |site| filesystem::run(site, kind, sizes));
    let Some(kept) = kept else { return };
    assert!(kept.tarball_bytes > 8 * MIB, "{kept:?}");
}

#[test]
fn a_tarball_on_ext4_survives_on_a_stack_of_three_targets() {
    a_file_system(Kind::Ext4);
}

#[test]
fn a_tarball_on_xfs_survives_on_a_stack_of_three_targets() {
    a_file_system(Kind::Xfs);
}

#[test]
fn idle_pages_are_written_back_and_read_back() {
    let sizes = zram::Sizes { disksize: "96M", written_mib: 64 };
    let Some(idle) = at_a_site(obstacle(), |site| zram::idle(site, sizes)) else { return };
    assert!(idle.fill_iops > 0.0 && idle.read_back_iops > 0.0, "{idle:?}");
}

#[test]
fn a_writeback_limit_is_kept_to_the_page() {
    at_a_site(obstacle(), zram::limit);
}

#[test]
fn a_tarball_on_ext4_survives_writeback_and_read_back() {
    let obstacle = zram::obstacle(&std::env::temp_dir());
    let Some(kept) = at_a_site(obstacle, |site| zram::tarball(site, (400, 64 << 10))) else {
        return;
    };
    assert!(kept.tarball_bytes > 8 * MIB && kept.pages > 0, "{kept:?}");
}
