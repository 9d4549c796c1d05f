// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random options of a seed: for a table line, and as changes of a live device; and arguments of
//! drains.
use std::rc::Rc;

use block::{Error, Target};
use sim::Rng;
use writecache::WriteCache;

/// Words for a table line of a mode; with `around` also those with which writes go around the
/// cache.
pub(crate) fn draw_options(rng: &mut Rng, mode: &str, around: bool) -> String {
    let mut words = draw_limits(rng);
    if rng.below(3) == 0 {
        words += &format!(" max_age {}", rng.pick(&[0, 1, 5, 50]));
    }
    if mode == "p" {
        words += rng.pick(&["", " fua", " nofua"]);
    } else if rng.below(3) == 0 {
        words += &format!(" pause_writeback {}", rng.pick(&[0, 1, 3000]));
    }
    if around && rng.below(6) == 0 {
        words += " cleaner";
    }
    if around && rng.below(3) == 0 {
        words += " metadata_only";
    }
    words
}

/// Limits of writeback, in a quarter of the lines each.
pub(crate) fn draw_limits(rng: &mut Rng) -> String {
    let mut words = String::new();
    if rng.below(4) == 0 {
        words += &format!(" writeback_rate_max {}", rng.pick(&RATES));
    }
    if rng.below(4) == 0 {
        words += &format!(" foreground_p99_target {}", rng.pick(&P99S));
    }
    words
}

const RATES: [&str; 2] = ["300000", "10000000"];
const P99S: [&str; 2] = ["50", "3000"];

/// A value for the attribute `drain`.
pub(crate) fn draw_drain(rng: &mut Rng) -> String {
    let mut words = vec![format!("within={}", rng.pick(&[1, 2]))];
    if rng.below(2) == 0 {
        words.push(format!("rate={}", rng.pick(&RATES)));
    }
    if rng.below(2) == 0 {
        words.push(format!("p99={}", rng.pick(&P99S)));
    }
    rng.pick(&["stop", "", &words.join(" ")]).to_owned()
}

/// One change, like `millpond set`.
pub(crate) async fn change(
    cache: &Rc<WriteCache>,
    rng: &mut Rng,
    around: bool,
) -> Result<(), Error> {
    let percent = rng.range(0, 101);
    let (name, value) = match rng.below(if around { 18 } else { 14 }) {
        0 => ("high_watermark", percent.to_string()),
        1 => ("low_watermark", percent.to_string()),
        2 => ("writeback_jobs", rng.pick(&["0", "1", "7"]).to_owned()),
        3 => ("autocommit_blocks", rng.pick(&["0", "1", "9", "65536"]).to_owned()),
        4 => ("autocommit_time", rng.pick(&["0", "1", "1000"]).to_owned()),
        5 => ("max_age", rng.pick(&["none", "0", "1", "20"]).to_owned()),
        6 => ("writeback_order", rng.pick(&["sorted", "lru"]).to_owned()),
        7 => ("writeback_io_bytes", rng.pick(&["4096", "1048576"]).to_owned()),
        8 if cache.table().starts_with('p') => ("fua", rng.pick(&["0", "1"]).to_owned()),
        8 => ("pause_writeback", rng.pick(&["0", "2", "3000"]).to_owned()),
        9 => ("writeback_rate_max", rng.pick(&["0", RATES[0], RATES[1]]).to_owned()),
        10 => ("foreground_p99_target", rng.pick(&["0", P99S[0], P99S[1]]).to_owned()),
        11 if percent > 50 => {
            ("gap_write_percent", rng.pick(&["auto", "auto", "0", "30", "10000"]).to_owned())
        }
        11 => ("gap_fill", rng.pick(&["0", "1"]).to_owned()),
        12 => ("fail_mode", rng.pick(&["retry", "retry", "kernel"]).to_owned()),
        13 => return refused(cache, rng).await,
        14 | 15 => ("metadata_only", rng.pick(&["0", "1"]).to_owned()),
        16 => ("cleaner", "1".to_owned()),
        _ => ("cleaner", "0".to_owned()),
    };
    let in_order = cache.clone().get_attribute("ordered".to_owned()).await.is_ok_and(|v| v == "1");
    let set = cache.clone().set_attribute(name.to_owned(), value.clone()).await;
    match name {
        // The low one must stay below the high one.
        "high_watermark" | "low_watermark" => Ok(()),
        "writeback_order" if in_order && value == "lru" => {
            assert!(set.is_err(), "lru and ordered exclude each other");
            Ok(())
        }
        _ => set,
    }
}

/// A change for which a table must be loaded.
async fn refused(cache: &Rc<WriteCache>, rng: &mut Rng) -> Result<(), Error> {
    let (name, value) = rng.pick(&[
        ("ordered", "1"),
        ("ordered", "0"),
        ("format", "dm"),
        ("start_sector", "8"),
        ("adopt_origin", "1"),
    ]);
    let before = cache.table();
    let set = cache.clone().set_attribute(name.to_owned(), value.to_owned()).await;
    assert!(set.is_err(), "{name} was changed in use");
    assert_eq!(cache.table(), before);
    Ok(())
}
