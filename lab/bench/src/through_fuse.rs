// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of `make bench-noclone`: a mapping and the memory below it as files through FUSE, under
//! fio, beside qemu-storage-daemon's.
use std::path::{Path, PathBuf};

use reproduce::median::{median, median_ratio, spread_percent};
use reproduce::report::Section;
use reproduce::rounds::turns;
use reproduce::table::{Table, fixed};
use serde_json::json;

use crate::files::{Files, PUBLISHED, RANDREAD, RANDWRITE, fio};

/// One file under fio, and what came of it.
struct Through {
    key: &'static str,
    what: &'static str,
    file: PathBuf,
    job: &'static [&'static str],
    /// I/Os a second of each round.
    runs: Vec<f64>,
}

/// What was published of the same.
const PUBLISHED_LINES: &str = "beside it, published:
Linux, dm-linear on a RAM disk, 512 B psync reads, 12 jobs, 12 cores (MiB/s): raw 2449,
  with clone 1970 (0.804), without 2238 (0.914)
SPDK, bdevperf, null device, 4 KiB, depth 64, one core: 64 ns; passthru +70, raid0 +82,
  split +60 ns a layer";

/// Runs each file for so many rounds of so many seconds; what can't be measured is named.
pub fn section(
    program: &Path,
    dir: &Path,
    (rounds, seconds): (usize, f64),
    errors: &mut Vec<String>,
) -> Section {
    let dir = match tempfile::Builder::new().prefix("millpond-bench-").tempdir_in(dir) {
        Ok(dir) => dir,
        Err(e) => {
            errors.push(format!("{}: {e}", dir.display()));
            return Section::default();
        }
    };
    let mut told = |e: String| errors.push(e);
    let ours = Files::ours(program, &dir.path().join("ours")).map_err(&mut told).ok();
    let qsd = Files::qsd(&dir.path().join("qsd")).map_err(&mut told).ok();
    let mut all = Vec::new();
    let mut under = |key, what, file: &PathBuf, job| {
        all.push(Through { key, what, file: file.clone(), job, runs: Vec::new() });
    };
    if let Some((_, raw, linear)) = &ours {
        under("fuse_raw", "mem:1G, published job", raw, PUBLISHED);
        under("fuse_linear", "linear on it, published job", linear, PUBLISHED);
        under("fuse_randread", "linear, 4 KiB randread", linear, RANDREAD);
        under("fuse_randwrite", "linear, 4 KiB randwrite", linear, RANDWRITE);
    }
    if let Some((_, file)) = &qsd {
        under("qsd_fuse_randread", "qsd null-co, 4 KiB randread", file, RANDREAD);
        under("qsd_fuse_randwrite", "qsd null-co, 4 KiB randwrite", file, RANDWRITE);
    }
    for (_, at) in turns(rounds, all.len()) {
        let through = &mut all[at];
        match fio(&through.file, through.job, seconds) {
            Ok(iops) => through.runs.push(iops),
            Err(e) => errors.push(e),
        }
    }
    errors.dedup();
    shown(&all)
}

fn shown(all: &[Through]) -> Section {
    let mut section = Section::default();
    let mut table = Table::new("through FUSE, fio", &[""], &["IOPS", "+-%"]);
    for through in all {
        let iops = median(&through.runs);
        table.row(&[through.what], [fixed(iops, 0), fixed(spread_percent(&through.runs), 0)]);
        section.put(format!("{}_iops", through.key), iops);
    }
    let ratio = |of: &str, to: &str| {
        let runs = |key| all.iter().find(|through| through.key == key).map(|t| &t.runs[..]);
        Some(median_ratio(runs(of)?, runs(to)?))
    };
    for (key, what, of, to) in [
        ("fuse_linear_ratio", "linear to raw", "fuse_linear", "fuse_raw"),
        (
            "fuse_randread_over_qsd",
            "4 KiB randread, ours to qsd",
            "fuse_randread",
            "qsd_fuse_randread",
        ),
        (
            "fuse_randwrite_over_qsd",
            "4 KiB randwrite, ours to qsd",
            "fuse_randwrite",
            "qsd_fuse_randwrite",
        ),
    ] {
        let ratio = ratio(of, to);
        if let Some(ratio) = ratio {
            table.note(format!("{what}: {}", fixed(ratio, 3)));
        }
        section.keys.insert(key.into(), json!(ratio.filter(|r| r.is_finite())));
    }
    table.note(PUBLISHED_LINES);
    section.tables.push(table);
    section
}
