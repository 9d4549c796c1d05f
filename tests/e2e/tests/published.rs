// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published procedures at a size for every day; `make published` runs them in full. Nothing
//! is timed here.
#![expect(clippy::unwrap_used, reason = "tests")]

use e2e::binary::{Build, millpond};
use e2e::published::cache::{self, Order};
use e2e::published::filesystem::{self, Kind};
use e2e::published::{Site, linear, obstacle};

const MIB: u64 = 1 << 20;

/// A place for a procedure; none, said aloud, where it can't run.
fn site(obstacle: Option<String>) -> Option<Site> {
    if let Some(why) = obstacle {
        eprintln!("SKIPPED, a published procedure was NOT run: {why}");
        return None;
    }
    let program = millpond(Build::Workspace).unwrap();
    Some(Site::start(&program, &std::env::temp_dir()).unwrap())
}

fn a_write_cache(order: Order) {
    let Some(site) = site(obstacle()) else { return };
    let sizes = cache::Sizes { origin_bytes: 64 * MIB, cache_bytes: 32 * MIB };
    let filled = cache::run(&site, sizes, order, 1).unwrap();
    assert!(filled.origin_writes > 0 && filled.origin_writes <= filled.dirty_blocks, "{filled:?}");
    site.end().unwrap();
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
    let Some(site) = site(obstacle()) else { return };
    let reads = linear::run(&site, linear::Sizes { mib: 64, rounds: 2, run_ms: 300 }).unwrap();
    let all = [&reads.raw_iops[..], &reads.linear_iops].concat();
    assert!(all.len() == 4 && all.iter().all(|iops| *iops > 0.0), "{reads:?}");
    site.end().unwrap();
}

fn a_file_system(kind: Kind) {
    let Some(site) = site(kind.obstacle(&std::env::temp_dir())) else { return };
    let sizes = filesystem::Sizes {
        device_bytes: 384 * MIB,
        cache_bytes: 16 * MIB,
        files: 400,
        file_bytes_max: 64 << 10,
    };
    let kept = filesystem::run(&site, kind, sizes).unwrap();
    assert!(kept.tarball_bytes > 8 * MIB, "{kept:?}");
    site.end().unwrap();
}

#[test]
fn a_tarball_survives_on_ext4_over_linear_striped_and_writecache() {
    a_file_system(Kind::Ext4);
}

#[test]
fn a_tarball_survives_on_xfs_over_linear_striped_and_writecache() {
    a_file_system(Kind::Xfs);
}
