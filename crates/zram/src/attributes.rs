// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes: their names, rights, and the syntax of their values.
//!
//! Names and the order of numbers are those of Linux; numbers are separated by one blank, where
//! the kernel pads them to columns.
use block::attr::{self, Attr, GoneOption, Kind, Manual, Spec};
use block::attr::{choice, command, option, setting, text};
use block::value::{TimeUnit, Value};
use block::{Access, Error};
use policy::IdleOrder;

use crate::config::{BATCH_PAGES_MAX, Config, GONE, INFLIGHT_MAX, PARTS_MAX};

/// Bytes of a page and of a block of the backing device.
const PAGE: u64 = block::PAGE as u64;

const SIZE: Kind = Kind::size(0..=u64::MAX - (PAGE - 1));

block::attrs! {
    /// All attributes: first those of the kernel, then the others. What the device does, or says
    /// of itself, is not read or set here.
    pub(crate) static ATTRIBUTES: [Attr<Config>];

    disksize: setting(SIZE, ""), "its size, which makes it a device", get |c| c.len.bytes();
    initstate: text("0 or 1"), "1: it has a size";
    reset: command(Kind::number(1..=u64::MAX, "")), "makes it a device without a size again";
    compact: command(Kind::Text("anything")), "moves objects together and frees memory";
    mem_limit: option(SIZE, "0").access(Access::Write),
        "bytes of memory for pages; 0 for no limit",
        set |c, v: u64| c.mem_limit = v.next_multiple_of(PAGE);
    mem_used_max: command(Kind::number(0..=0, "")), "begins the largest use of mm_stat anew";
    idle: command(Kind::Text("all, or an age,")), "marks pages that were not accessed as idle";
    comp_algorithm: setting(Kind::Text("the name of an algorithm"), "the table's first argument"),
        "the algorithm that compresses", get |c| c.choice.show_primary();
    recomp_algorithm: option(Kind::Text("algo=NAME, and priority=1 to 3,"), ""),
        "algorithms that recompress", get |c| c.choice.show_secondaries();
    algorithm_params:
        option(Kind::Text("priority= or algo=, level=, dict= and deflate.winbits="), "")
        .access(Access::Write), "parameters of an algorithm";
    recompress: command(Kind::Text("type=, threshold=, max_pages=, algo= and priority="))
        .progress("writeback_progress"), "compresses pages again, harder";
    backing_dev: option(Kind::Text("a block device, a regular file, a leaf, or none"), "none"),
        "where pages are written back to",
        get |c| c.backing_dev.as_deref().unwrap_or("none"),
        set |c, v: String| c.backing_dev = Some(v).filter(|d| !d.is_empty() && d != "none");
    writeback: command(Kind::Text("idle, huge, huge_idle, incompressible, and page_index(es)="))
        .progress("writeback_progress"), "writes pages to the backing device";
    writeback_limit: option(Kind::number(0..=u64::MAX, ""), "0"),
        "4 KiB blocks that may be written back", field writeback_limit;
    writeback_limit_enable: option(Kind::Flag, "0"), "whether writeback_limit is kept",
        field writeback_limit_enable;
    writeback_batch_size: option(Kind::number(1..=BATCH_PAGES_MAX as u64, ""), "32"),
        "pages that are written back at once", field writeback_batch_size;
    compressed_writeback: option(Kind::Flag, "0"),
        "whether objects share the blocks of the backing device", field compressed_writeback;
    io_stat: text("4 numbers"), "failed_reads failed_writes invalid_io notify_free";
    mm_stat: text("9 numbers"), "pages and bytes in memory, as in the kernel";
    bd_stat: text("3 numbers"), "bd_count bd_reads bd_writes, in units of 4 KiB";
    debug_stat: text("2 lines"), "for the kernel's sake";
    block_state: text("a line a page").access(Access::ReadMany), "the state of every page";
    writeback_inflight: option(Kind::number(1..=INFLIGHT_MAX as u64, ""), "16"),
        "batches in flight at once", field writeback_inflight;
    writeback_progress: text("DONE TOTAL"), "pages of the command that runs";
    shards: option(Kind::number(0..=PARTS_MAX as u64, ""), "0"),
        "parts, each on a core of its own; 0: as many as there are cores for it",
        get |c| c.parts.unwrap_or(0), set |c, v| c.parts = Some(v).filter(|parts| *parts > 0);
    auto_writeback_idle: option(Kind::time(TimeUnit::Second, 0..=u32::MAX as u64), "0"),
        "pages not accessed for so long are written back; 0 for never",
        get |c| c.auto.idle_secs.unwrap_or(0),
        set |c, v| c.auto.idle_secs = Some(v).filter(|secs| *secs > 0);
    auto_writeback_watermark: option(Kind::size(0..=u64::MAX), "0"),
        "bytes in memory from which on pages are written back; 0 for never",
        get |c| c.auto.watermark_bytes.unwrap_or(0),
        set |c, v| c.auto.watermark_bytes = Some(v).filter(|bytes| *bytes > 0);
    auto_writeback_budget: option(Kind::size(0..=u64::MAX), "0"),
        "bytes a day that it may write; 0 for no limit",
        get |c| c.auto.budget_bytes.unwrap_or(0),
        set |c, v| c.auto.budget_bytes = Some(v).filter(|bytes| *bytes > 0);
    auto_writeback_order: choice("huge"), "which pages are written back first",
        words auto.order { "huge" => IdleOrder::HugeFirst, "coldest" => IdleOrder::ColdestFirst };
    auto_writeback_stat: text("a word and 4 numbers"),
        "state, and bytes today, budget, bytes and pages in all";
    backed_stat: text("2 numbers"), "pages and bytes of objects on the backing device";
    last_error: text("a text"), "what went wrong last";
}

/// All of them, in the order in which they are listed.
pub(crate) fn specs() -> Vec<&'static Spec> {
    attr::specs(&ATTRIBUTES)
}

/// What `millpond help zram` prints.
pub static MANUAL: Manual = Manual {
    name: "zram",
    version: (1, 0, 0),
    about: "a compressed RAM disk",
    arguments: "<algorithm> [<#opt_args> [<option> [<value>]]...]",
    specs,
    metrics: crate::figures::metric_specs,
};

/// Whether it can't be set any more once the device has a size.
pub(crate) fn is_fixed(name: &str) -> bool {
    matches!(
        name,
        "disksize"
            | "comp_algorithm"
            | "recomp_algorithm"
            | "algorithm_params"
            | "backing_dev"
            | "compressed_writeback"
            | "shards"
    )
}

/// The error for setting `name`, which is no attribute, or one that can only be read.
pub(crate) fn not_settable(name: &str) -> Error {
    match attr::find(&ATTRIBUTES, name) {
        Some(_) => attr::read_only(name),
        None => unknown(name),
    }
}

/// The error for an attribute that is not there.
pub(crate) fn unknown(name: &str) -> Error {
    if let Some(refusal) = GoneOption::refusal(&GONE, name) {
        return refusal;
    }
    attr::unknown("zram", name, &attr::names(&specs()))
}

/// Reads an attribute that shows a setting.
///
/// # Errors
/// `EACCES` for one that can't be read, `ENXIO` for one that is not there.
pub(crate) fn of_config(name: &str, config: &Config) -> Result<Value, Error> {
    let known = attr::find(&ATTRIBUTES, name).ok_or_else(|| unknown(name))?;
    Ok(known.get.ok_or_else(|| attr::write_only(name))?(config))
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
        let names = attr::names(&specs());
        assert!(kernel.split_whitespace().eq(names.iter().copied().take(21)));
        for (nth, name) in names.iter().enumerate() {
            assert!(!names[..nth].contains(name), "{name}");
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
                assert_eq!(attr::find(&ATTRIBUTES, name).unwrap().spec.access, mode, "{name}");
            }
        }
    }

    #[test]
    fn every_setting_can_be_read_and_set_by_its_name() {
        for Attr { spec, get, set } in &ATTRIBUTES {
            let shown = of_config(spec.name, &Config::default());
            assert_eq!(shown.is_ok(), get.is_some(), "{}", spec.name);
            assert!(get.is_none() || spec.access == Access::ReadWrite, "{}", spec.name);
            if set.is_some() && get.is_some() {
                let value = shown.unwrap().to_string();
                let default = spec.default.split(';').next();
                assert_eq!(default, Some(&*value), "{}", spec.name);
                assert!(Config::default().set(spec.name, &value).is_ok(), "{} {value}", spec.name);
            }
        }
        let e = of_config("mem_limit", &Config::default()).unwrap_err();
        assert_eq!(e.kind(), block::ErrorKind::Denied);
        let e = of_config("max_comp_streams", &Config::default()).unwrap_err();
        assert_eq!(e.kind(), block::ErrorKind::NotFound);
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
}
