// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes: their names, who may do what with them, and how their values are written.
//!
//! Names and the order of numbers are those of Linux; numbers are separated by one blank, where
//! the kernel pads them to columns.
use std::fmt::Write;

use block::{Access, Error, ErrorKind};

use crate::config::{Config, show_auto};
use crate::shared::Totals;

/// Bytes of a page and of a block of the backing device.
const PAGE: u64 = block::PAGE as u64;

/// What an attribute is: whether it can be set once the device has a size, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// A setting that is fixed with `disksize`.
    Fixed,
    /// A setting that can be changed at any time.
    Setting,
    /// A setting of Linux that can't be read there, so neither here.
    Secret,
    /// The same, fixed with `disksize`.
    FixedSecret,
    /// What the device tells of itself.
    Told,
    /// The same, in many lines.
    ToldMany,
    /// Something to do.
    Command,
}

/// All attributes: first what the kernel has, then what it has not.
const ATTRIBUTES: [(&str, Sort); 33] = [
    ("disksize", Sort::Fixed),
    ("initstate", Sort::Told),
    ("reset", Sort::Command),
    ("compact", Sort::Command),
    ("mem_limit", Sort::Secret),
    ("mem_used_max", Sort::Command),
    ("idle", Sort::Command),
    ("comp_algorithm", Sort::Fixed),
    ("recomp_algorithm", Sort::Fixed),
    ("algorithm_params", Sort::FixedSecret),
    ("recompress", Sort::Command),
    ("backing_dev", Sort::Fixed),
    ("writeback", Sort::Command),
    ("writeback_limit", Sort::Setting),
    ("writeback_limit_enable", Sort::Setting),
    ("writeback_batch_size", Sort::Setting),
    ("compressed_writeback", Sort::Fixed),
    ("io_stat", Sort::Told),
    ("mm_stat", Sort::Told),
    ("bd_stat", Sort::Told),
    ("debug_stat", Sort::Told),
    ("block_state", Sort::ToldMany),
    ("writeback_inflight", Sort::Setting),
    ("writeback_progress", Sort::Told),
    ("persist", Sort::Fixed),
    ("shards", Sort::Fixed),
    ("auto_writeback_idle", Sort::Setting),
    ("auto_writeback_watermark", Sort::Setting),
    ("auto_writeback_budget", Sort::Setting),
    ("auto_writeback_order", Sort::Setting),
    ("auto_writeback_stat", Sort::Told),
    ("backed_stat", Sort::Told),
    ("last_error", Sort::Told),
];

/// Names of all attributes, in the order in which they are listed.
pub(crate) const NAMES: [&str; ATTRIBUTES.len()] = {
    let mut names = [""; ATTRIBUTES.len()];
    let mut nth = 0;
    while nth < names.len() {
        names[nth] = ATTRIBUTES[nth].0;
        nth += 1;
    }
    names
};

fn sort(name: &str) -> Option<Sort> {
    ATTRIBUTES.iter().find(|(n, _)| *n == name).map(|(_, sort)| *sort)
}

/// What may be done with an attribute.
pub(crate) fn access(name: &str) -> Access {
    match sort(name) {
        Some(Sort::Fixed | Sort::Setting) => Access::ReadWrite,
        Some(Sort::Secret | Sort::FixedSecret | Sort::Command) => Access::Write,
        Some(Sort::ToldMany) => Access::ReadMany,
        Some(Sort::Told) | None => Access::Read,
    }
}

/// Whether it can't be set any more once the device has a size.
pub(crate) fn is_fixed(name: &str) -> bool {
    matches!(sort(name), Some(Sort::Fixed | Sort::FixedSecret))
}

/// An attribute that is not there.
pub(crate) fn unknown(name: &str) -> Error {
    Error::not_found(format!("zram: no attribute `{name}`"))
}

/// An attribute that only tells.
pub(crate) fn read_only(name: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("attribute `{name}` is read-only"))
}

/// An attribute that is only told.
fn write_only(name: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("attribute `{name}` is write-only"))
}

/// Reads an attribute that shows a setting.
///
/// # Errors
/// `EACCES` for one that can't be read, `ENXIO` for one that is not there.
pub(crate) fn of_config(name: &str, config: &Config) -> Result<String, Error> {
    let text = match name {
        "disksize" => config.len.bytes().to_string(),
        "comp_algorithm" => config.choice.show_primary(),
        "recomp_algorithm" => config.choice.show_secondaries(),
        "backing_dev" => config.backing_dev.clone().unwrap_or_else(|| "none".to_owned()),
        "writeback_limit" => config.writeback_limit.to_string(),
        "writeback_limit_enable" => flag(config.writeback_limit_enable),
        "writeback_batch_size" => config.writeback_batch_size.to_string(),
        "writeback_inflight" => config.writeback_inflight.to_string(),
        "compressed_writeback" => flag(config.packs()),
        "persist" => flag(config.persist),
        "shards" => config.shards.unwrap_or(0).to_string(),
        "auto_writeback_idle"
        | "auto_writeback_watermark"
        | "auto_writeback_budget"
        | "auto_writeback_order" => show_auto(&config.auto, name),
        _ => {
            let known = sort(name).is_some();
            return Err(if known { write_only(name) } else { unknown(name) });
        }
    };
    Ok(text)
}

fn flag(on: bool) -> String {
    u8::from(on).to_string()
}

/// Numbers in a row.
pub(crate) fn row(numbers: &[u64]) -> String {
    let mut text = String::with_capacity(numbers.len() * 12);
    for (nth, number) in numbers.iter().enumerate() {
        let gap = if nth == 0 { "" } else { " " };
        write!(text, "{gap}{number}").expect("a string takes everything");
    }
    text
}

/// A number of pages, none of which may be no limit, in bytes.
fn limit_bytes(pages: u64) -> u64 {
    if pages == u64::MAX { 0 } else { pages * PAGE }
}

/// `orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages
/// pages_compacted huge_pages huge_pages_since`: sizes in bytes.
pub(crate) fn mm_stat(t: &Totals) -> String {
    row(&mm_row(t))
}

/// The numbers of [`mm_stat`].
pub(crate) fn mm_row(t: &Totals) -> [u64; 9] {
    [
        t.orig_pages * PAGE,
        t.compr_bytes,
        t.mem_pages * PAGE,
        limit_bytes(t.mem_limit_pages),
        t.mem_max_pages * PAGE,
        t.same_pages,
        t.pages_compacted,
        t.huge_pages,
        t.huge_pages_since,
    ]
}

/// `bd_count bd_reads bd_writes`, in units of 4 KiB.
pub(crate) fn bd_stat(t: &Totals) -> String {
    row(&[t.bd_count, t.bd_reads, t.bd_writes])
}

/// `failed_reads failed_writes invalid_io notify_free`.
pub(crate) fn io_stat(t: &Totals) -> String {
    row(&[t.failed_reads, t.failed_writes, t.invalid_io, t.notify_free])
}

/// The version of this attribute, and `writestall miss_free`. Nobody waits for a compressor here,
/// and no slot is ever found locked, so both stay 0.
pub(crate) fn debug_stat() -> String {
    format!("version: 1\n{}", row(&[0, 0]))
}

/// `pages object_bytes`: what is on the backing device, of which a block may hold several.
pub(crate) fn backed_stat(t: &Totals) -> String {
    row(&[t.backed_pages, t.bd_object_bytes])
}

/// `done to_do`: pages of the command that runs.
pub(crate) fn progress(t: &Totals) -> String {
    row(&[t.done, t.to_do])
}

#[cfg(test)]
mod tests {
    use block::Sector;

    use super::*;
    use crate::algorithms::NoFiles;

    #[test]
    fn names_are_those_of_the_kernel_and_none_is_there_twice() {
        let kernel = "disksize initstate reset compact mem_limit mem_used_max idle comp_algorithm \
                      recomp_algorithm algorithm_params recompress backing_dev writeback \
                      writeback_limit writeback_limit_enable writeback_batch_size \
                      compressed_writeback io_stat mm_stat bd_stat debug_stat";
        assert!(kernel.split_whitespace().eq(NAMES.into_iter().take(21)));
        for (nth, name) in NAMES.iter().enumerate() {
            assert!(!NAMES[..nth].contains(name), "{name}");
        }
    }

    #[test]
    fn modes_are_those_of_the_kernel() {
        let table = [
            (Access::ReadWrite, "disksize comp_algorithm recomp_algorithm backing_dev"),
            (Access::ReadWrite, "writeback_limit writeback_limit_enable writeback_batch_size"),
            (Access::ReadWrite, "compressed_writeback"),
            (Access::Write, "reset compact mem_limit mem_used_max idle algorithm_params"),
            (Access::Write, "recompress writeback"),
            (Access::Read, "initstate io_stat mm_stat bd_stat debug_stat"),
            (Access::ReadMany, "block_state"),
        ];
        for (mode, names) in table {
            for name in names.split(' ') {
                assert_eq!(access(name), mode, "{name}");
            }
        }
    }

    #[test]
    fn every_setting_can_be_read_and_set_by_its_name() {
        for (name, sort) in ATTRIBUTES {
            let shown = of_config(name, &Config::default());
            match sort {
                Sort::Fixed | Sort::Setting => assert!(shown.is_ok(), "{name}"),
                Sort::Secret | Sort::FixedSecret | Sort::Command | Sort::Told | Sort::ToldMany => {
                    assert!(shown.is_err(), "{name}");
                }
            }
            if sort == Sort::Setting {
                let value = shown.unwrap();
                assert!(Config::default().set(name, &value).is_ok(), "{name} {value}");
            }
        }
        let e = of_config("mem_limit", &Config::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Denied);
        let e = of_config("max_comp_streams", &Config::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn algorithms_are_listed_with_the_current_one_in_brackets() {
        let words = ["zstd", "4", "recomp_algorithm", "algo=lz4hc", "recomp_algorithm"];
        let words = [&words[..], &["algo=deflate,priority=3"]].concat();
        let config = Config::parse(&words, Sector(8), &NoFiles).unwrap();
        let shown = |name| of_config(name, &config).unwrap();
        assert_eq!(shown("comp_algorithm"), "lz4 lz4hc [zstd] deflate");
        assert_eq!(
            shown("recomp_algorithm"),
            "#1: lz4 [lz4hc] zstd deflate\n#3: lz4 lz4hc zstd [deflate]"
        );
        assert_eq!(of_config("recomp_algorithm", &Config::default()).unwrap(), "");
    }

    #[test]
    fn rows_have_the_kernels_numbers_in_its_order() {
        let mut t = Totals { mem_limit_pages: u64::MAX, ..Totals::default() };
        assert_eq!(mm_stat(&t), "0 0 0 0 0 0 0 0 0");
        assert_eq!((bd_stat(&t), io_stat(&t)), ("0 0 0".into(), "0 0 0 0".into()));
        t.orig_pages = 600;
        t.compr_bytes = 829_589;
        t.mem_pages = 204;
        t.mem_limit_pages = 16384;
        t.mem_max_pages = 205;
        t.same_pages = 201;
        t.pages_compacted = 3;
        t.huge_pages = 200;
        t.huge_pages_since = 202;
        assert_eq!(mm_stat(&t), "2457600 829589 835584 67108864 839680 201 3 200 202");
        let t = Totals { bd_count: 1, bd_reads: 2, bd_writes: 3, ..t };
        assert_eq!(bd_stat(&t), "1 2 3");
        let t = Totals { failed_reads: 4, failed_writes: 5, notify_free: 7, ..t };
        assert_eq!(io_stat(&t), "4 5 0 7");
        assert_eq!(debug_stat(), "version: 1\n0 0");
        assert_eq!(progress(&Totals { done: 5, to_do: 9, ..t }), "5 9");
        assert_eq!(backed_stat(&Totals { backed_pages: 8, bd_object_bytes: 99, ..t }), "8 99");
    }
}
