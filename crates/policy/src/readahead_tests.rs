// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Windows of one reader step by step, and properties of any mix of readers.
use proptest::prelude::*;

use super::*;

/// 512 KiB.
const MAX: u32 = 128;

/// What is read ahead for reads of `len` pages one after the other.
fn windows(len: u64, reads: u64) -> Vec<(u64, Range<u64>)> {
    let mut streams = Streams::new();
    let read = |nth: u64| {
        let ahead = streams.on_read(1, nth * len..(nth + 1) * len, MAX);
        ahead.map(|range| (nth, range))
    };
    (0..reads).filter_map(read).collect()
}

#[test]
fn the_length_of_a_stream_counts_each_page_once() {
    let mut streams = Streams::new();
    for nth in 0..10 {
        let pages = 100 + 4 * nth..104 + 4 * nth;
        assert_eq!(streams.run_of(1, &pages), 4 * (nth + 1));
        assert_eq!(streams.run_of(1, &pages), 4 * (nth + 1), "the same again");
    }
    assert_eq!(streams.run_of(2, &(140..144)), 4, "of another opener");
    assert_eq!(streams.run_of(1, &(900..904)), 4, "elsewhere");
    assert_eq!(streams.run_of(1, &(140..144)), 44);
    assert_eq!(streams.run_of(1, &(136..140)), 40, "one that was seen before");
    // A page that was asked for alone, before the stream came over it, is no stream of its own.
    streams.run_of(1, &(151..152));
    for (nth, page) in (144..160).enumerate() {
        assert_eq!(streams.run_of(1, &(page..page + 1)), 45 + nth as u64);
    }
}

#[test]
fn windows_grow_to_the_limit_and_are_read_ahead_of_need() {
    // 4 KiB reads: the second one finds the stream; its first window is 4 pages, of the kernel's
    // sizes, and each first read in a window asks for the next one.
    let got = windows(1, 400);
    let table = [(1, 2..6), (2, 6..22), (6, 22..54), (22, 54..118), (54, 118..246)];
    assert_eq!(got[..5], table);
    assert_eq!(got[5..], [(118, 246..374), (246, 374..502), (374, 502..630)]);
    // 128 KiB reads.
    let got = windows(32, 12);
    assert_eq!(got, [(1, 64..128), (2, 128..256), (4, 256..384), (8, 384..512)]);
    // Reads of the limit and beyond: one window is always under way.
    let got = windows(256, 4);
    assert_eq!(got, [(1, 512..640), (2, 768..896), (3, 1024..1152)]);
}

#[test]
fn nothing_is_read_ahead_for_random_readers_or_without_a_limit() {
    let mut streams = Streams::new();
    let mut page = 1u64;
    for _ in 0..10_000 {
        // A full-period generator: neighbours do not follow one another.
        page = page.wrapping_mul(0x5_DEEC_E66D).wrapping_add(11) % (1 << 48);
        assert_eq!(streams.on_read(1, page..page + 1, MAX), None);
        assert!(streams.rows.len() <= STREAMS_OF_OPENER);
    }
    for page in 0..100 {
        assert_eq!(Streams::new().on_read(1, page..page + 1, MAX), None);
        assert_eq!(streams.on_read(2, page..page + 1, 0), None);
        // The same page over and over, in pieces.
        assert_eq!(streams.on_read(3, 7..8, MAX), None);
    }
}

#[test]
fn streams_of_one_opener_and_of_others_are_independent() {
    let mut streams = Streams::new();
    let mut ahead = [0u64; 12];
    for page in 0..1000 {
        for (nth, sum) in ahead.iter_mut().enumerate() {
            let opener = u32::try_from(nth / 6).unwrap();
            let start = (1 + nth as u64) * 1_000_000;
            let got = streams.on_read(opener, start + page..start + page + 1, MAX);
            if let Some(range) = got {
                assert!(range.start > start + page && range.end <= start + page + 258);
                *sum += range.end - range.start;
            }
        }
    }
    assert!(ahead.iter().all(|sum| *sum >= 1000), "{ahead:?}");
}

#[test]
fn reads_in_flight_that_change_places_are_still_one_stream() {
    let mut streams = Streams::new();
    let mut covered = 0;
    for pair in 0..200u64 {
        for page in [pair * 2 + 1, pair * 2] {
            // The very first pair in order, so that there is a stream.
            let page = if pair == 0 { 1 - page } else { page };
            if let Some(range) = streams.on_read(1, page..page + 1, MAX) {
                assert!(range.start >= covered);
                covered = range.end;
            }
        }
    }
    assert!(covered >= 400, "{covered}");
    assert_eq!(streams.rows.len(), 1);
}

#[test]
fn small_writes_in_order_make_one_run() {
    let mut streams = Streams::new();
    // 1 KiB each: four in a page.
    let run = |streams: &mut Streams, opener, pages: Range<u64>| {
        streams.writer(opener, &pages).map_or(0, |s| s.run_before(pages.start))
    };
    let runs: Vec<u64> = (0..12u64).map(|k| run(&mut streams, 1, k / 4..k / 4 + 1)).collect();
    assert_eq!(runs, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(run(&mut streams, 1, 3..67), 3);
    assert_eq!(run(&mut streams, 1, 67..68), 67);
    assert_eq!(run(&mut streams, 2, 68..69), 0);
    assert_eq!(run(&mut streams, 1, 500..501), 0);
    streams.rows.retain(|stream| stream.opener != 1);
    assert_eq!((run(&mut streams, 1, 68..69), streams.rows.len()), (0, 2));
}

/// A write into a cached folio is not reported, so the stream of a writer of single pages seemed
/// to end at each folio of more than one, and no folio was ever larger than two pages.
#[test]
fn a_writer_of_single_pages_gets_large_folios() {
    for opener in [1, 2] {
        let mut streams = Streams::new();
        let (mut page, mut orders) = (0, Vec::new());
        while page < 4096 {
            let order = streams.on_write(opener, &(page..page + 1));
            orders.push(order);
            page += 1 << order;
        }
        assert_eq!(orders, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9, 9]);
        assert_eq!(streams.rows.len(), 1);
        // A jump begins a new stream.
        assert_eq!(streams.on_write(opener, &(8192..8193)), 0);
    }
}

#[test]
fn folios_grow_while_a_writer_goes_on_and_fit_large_writes() {
    let mut page = 0;
    let mut orders = Vec::new();
    while page < 4096 {
        let order = folio_order(page, 1, page);
        orders.push(order);
        page += 1 << order;
    }
    assert_eq!(orders, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9, 9]);
    // A random 4 KiB write, a random 64 KiB one, a large one that is not aligned.
    assert_eq!(folio_order(512, 1, 0), 0);
    assert_eq!(folio_order(512, 16, 0), 4);
    let mut page = 3;
    let mut orders = Vec::new();
    while page < 40 {
        orders.push(folio_order(page, 40 - page, 0));
        page += 1 << orders.last().unwrap();
    }
    assert_eq!(orders, [0, 2, 3, 4, 3]);
    assert_eq!(folio_order(0, 1 << 20, 0), ORDER_MAX);
    assert_eq!(folio_order(0, 0, 0), 0);
}

proptest! {
    #[test]
    fn windows_follow_one_another_and_are_bounded(
        reads in prop::collection::vec((0u32..5, 0u64..600, 1u64..40), 1..400), max in 0u32..300,
    ) {
        let mut streams = Streams::new();
        for (opener, start, len) in reads {
            let got = streams.on_read(opener, start..start + len, max);
            if let Some(range) = got {
                prop_assert!(range.end - range.start <= u64::from(max)); // PO-RA3
                prop_assert!(range.start >= start + len && range.end > range.start); // PO-RA2
            }
            prop_assert!(streams.rows.len() <= STREAMS_MAX);
        }
    }

    #[test]
    fn a_folio_is_aligned_and_fills_no_more_than_it_may(
        page in 0u64..1 << 40, left in 1u64..5000, run in 0u64..5000,
    ) {
        let order = folio_order(page, left, run);
        prop_assert!(order <= ORDER_MAX && page.is_multiple_of(1 << order));
        prop_assert!(1 << order <= left.max(run).max(1));
    }
}
