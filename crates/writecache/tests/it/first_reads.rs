// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is read once enters a read cache that has ample room, and only then.
use crate::common::faulty_cache::millis;
use crate::common::{Fixture, expect, fill, flush, number};
use crate::read_cache::{READS, admitted, figures, fill_origin, read, set};

/// An origin of 16 MiB and a cache of 4 MiB, which takes first reads although it is small.
fn fixture(options: &str) -> Fixture {
    let mut fixture = Fixture::new(4096, 4 << 10, &format!("{READS} {options}"));
    fixture.config.admit_first_reads();
    fixture
}

#[test]
fn a_cache_with_ample_room_takes_what_is_read_once() {
    fixture("")
        .life(async |cache| {
            fill_origin(&cache, 0..500).await;
            read(&cache, 0..500, 1).await;
            assert_eq!(figures(&cache, ["read_admitted", "read_refused_once"]), [500, 0]);
            let hits = number(&cache, "read_hits");
            read(&cache, 0..500, 1).await;
            assert_eq!(number(&cache, "read_hits") - hits, 500);
            assert_eq!(admitted(&cache), 500);
        })
        .unwrap();
}

#[test]
fn a_small_cache_waits_for_the_second_read() {
    Fixture::new(4096, 4 << 10, READS)
        .life(async |cache| {
            fill_origin(&cache, 0..500).await;
            read(&cache, 0..500, 1).await;
            assert_eq!(figures(&cache, ["read_admitted", "read_refused_once"]), [0, 500]);
        })
        .unwrap();
}

#[test]
fn what_is_read_once_leaves_an_eighth_for_what_is_read_again() {
    fixture("")
        .life(async |cache| {
            fill_origin(&cache, 0..3000).await;
            read(&cache, 0..3000, 1).await;
            let [slots, free] = figures(&cache, ["total_blocks", "free_blocks"]);
            let [entered, once] = figures(&cache, ["read_admitted", "read_refused_once"]);
            let kept = slots - entered;
            assert!((slots / 8..=slots / 8 + slots / 16 + 2).contains(&kept), "{kept} of {slots}");
            assert_eq!(entered + once, 3000);
            assert!(free > 0);
            // Those that were refused enter when they are read again.
            read(&cache, 2000..3000, 1).await;
            assert!(admitted(&cache) > entered + slots / 16, "{}", admitted(&cache));
        })
        .unwrap();
}

#[test]
fn dirty_blocks_count_as_taken_room() {
    fixture("")
        .life(async |cache| {
            fill_origin(&cache, 0..500).await;
            let slots = number(&cache, "total_blocks");
            fill(&*cache, 1000..1000 + slots * 7 / 8, 1).await;
            flush(&*cache).await;
            read(&cache, 0..500, 1).await;
            assert_eq!(admitted(&cache), 0);
        })
        .unwrap();
}

#[test]
fn a_stream_that_is_read_once_does_not_enter() {
    fixture("sequential_read_cutoff 65536")
        .life(async |cache| {
            fill_origin(&cache, 0..600).await;
            expect(&*cache, 0..600, 1).await;
            millis(2).await;
            // The beginning of a stream is no stream yet.
            assert!(admitted(&cache) <= 20, "{}", admitted(&cache));
        })
        .unwrap();
}

#[test]
fn what_is_read_once_leaves_half_of_the_budget_of_a_day() {
    fixture("read_admit_bytes_per_day 81920")
        .life(async |cache| {
            fill_origin(&cache, 0..200).await;
            read(&cache, 0..100, 1).await;
            assert_eq!(admitted(&cache), 10);
            read(&cache, 0..100, 1).await;
            assert_eq!(admitted(&cache), 20);
            set(&cache, "read_admit_bytes_per_day", "0").await;
            read(&cache, 100..200, 1).await;
            assert_eq!(admitted(&cache), 120);
        })
        .unwrap();
}
