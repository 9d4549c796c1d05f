// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options as a seed draws them: for a table line, and as changes of a live device.
use std::rc::Rc;

use block::{Error, Target};
use sim::Rng;
use writecache::WriteCache;

/// Words for a table line of a mode; with `around` also those with which writes go around the
/// cache.
pub(crate) fn draw_options(rng: &mut Rng, mode: &str, around: bool) -> String {
    let mut words = String::new();
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

/// One change, like `millpond set`.
pub(crate) async fn change(
    cache: &Rc<WriteCache>,
    rng: &mut Rng,
    around: bool,
) -> Result<(), Error> {
    let percent = rng.range(0, 101);
    let (name, value) = match rng.below(if around { 13 } else { 9 }) {
        0 => ("high_watermark", percent.to_string()),
        1 => ("low_watermark", percent.to_string()),
        2 => ("writeback_jobs", rng.pick(&["0", "1", "7"]).to_owned()),
        3 => ("autocommit_blocks", rng.pick(&["0", "1", "9", "65536"]).to_owned()),
        4 => ("autocommit_time", rng.pick(&["0", "1", "1000"]).to_owned()),
        5 => ("max_age", rng.pick(&["none", "0", "1", "20"]).to_owned()),
        6 => ("writeback_order", rng.pick(&["sorted", "lru"]).to_owned()),
        7 => ("writeback_io_bytes", rng.pick(&["4096", "1048576"]).to_owned()),
        8 if cache.table().starts_with("p") => ("fua", rng.pick(&["0", "1"]).to_owned()),
        8 => ("pause_writeback", rng.pick(&["0", "2", "3000"]).to_owned()),
        9 | 10 => ("metadata_only", rng.pick(&["0", "1"]).to_owned()),
        11 => ("cleaner", "1".to_owned()),
        _ => ("cleaner", "0".to_owned()),
    };
    let set = cache.clone().set_attribute(name.to_owned(), value).await;
    match name {
        // The low one must stay below the high one.
        "high_watermark" | "low_watermark" => Ok(()),
        _ => set,
    }
}
