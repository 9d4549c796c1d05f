// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes: their names, rights, and the syntax of their values.
//!
//! Names and the order of numbers are those of Linux; numbers are separated by one blank, where
//! the kernel pads them to columns.
use block::attr::{self, Attr, GoneOption, Kind, Manual, OptionForm, Spec};
use block::value::{TimeUnit, Value};
use block::{Access, Error};
use policy::IdleOrder;

use crate::config::{BATCH_PAGES_MAX, Config, GONE, INFLIGHT_MAX, PARTS_MAX};

/// Bytes of a page and of a block of the backing device.
const PAGE: u64 = block::PAGE as u64;

type Setting = Attr<Config>;

const ANY: Kind = Kind::Number { min: 0, max: u64::MAX, unit: "" };
const SIZE: Kind = Kind::Size { min: 0, max: u64::MAX - (PAGE - 1), unit: 1, or: None };

const fn number(min: u64, max: u64) -> Kind {
    Kind::Number { min, max, unit: "" }
}

/// A setting with one value, which can be changed at any time unless [`is_fixed`].
const fn setting(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Spec {
    let spec = Spec::new(name, kind, help).access(Access::ReadWrite);
    spec.option(OptionForm::Value).default(default)
}

/// What the device reports of itself.
const fn report(name: &'static str, form: &'static str, help: &'static str) -> Setting {
    Attr { spec: Spec::new(name, Kind::Text(form), help), get: None, set: None }
}

/// Something to do.
const fn command(name: &'static str, kind: Kind, help: &'static str) -> Setting {
    Attr { spec: Spec::new(name, kind, help).access(Access::Write), get: None, set: None }
}

/// The same, which may take minutes.
const fn long(name: &'static str, kind: Kind, help: &'static str) -> Setting {
    let spec = Spec::new(name, kind, help).access(Access::Write);
    Attr { spec: spec.progress("writeback_progress"), get: None, set: None }
}

fn parsed<T: TryFrom<u64>>(value: &Value) -> T {
    let number = value.number().and_then(|n| T::try_from(n).ok());
    number.expect("checked by the setting's kind")
}

/// All attributes: first those of the kernel, then the others.
pub(crate) static ATTRIBUTES: [Setting; 32] = [
    Attr {
        spec: Spec::new("disksize", SIZE, "its size, which makes it a device")
            .access(Access::ReadWrite),
        get: Some(|c| c.len.bytes().into()),
        set: None,
    },
    report("initstate", "0 or 1", "1: it has a size"),
    command("reset", number(1, u64::MAX), "makes it a device without a size again"),
    command("compact", Kind::Text("anything"), "moves objects together and frees memory"),
    Attr {
        spec: setting("mem_limit", SIZE, "0", "bytes of memory for pages; 0 for no limit")
            .access(Access::Write),
        get: None,
        set: Some(|c, v| c.mem_limit = parsed::<u64>(v).next_multiple_of(PAGE)),
    },
    command("mem_used_max", number(0, 0), "begins the largest use of mm_stat anew"),
    command("idle", Kind::Text("all, or an age,"), "marks pages that were not accessed as idle"),
    Attr {
        spec: setting(
            "comp_algorithm",
            Kind::Text("the name of an algorithm"),
            "the table's first argument",
            "the algorithm that compresses",
        )
        .option(OptionForm::Never),
        get: Some(|c| c.choice.show_primary().into()),
        set: None,
    },
    Attr {
        spec: setting(
            "recomp_algorithm",
            Kind::Text("algo=NAME, and priority=1 to 3,"),
            "",
            "algorithms that recompress",
        ),
        get: Some(|c| c.choice.show_secondaries().into()),
        set: None,
    },
    Attr {
        spec: setting(
            "algorithm_params",
            Kind::Text("priority= or algo=, level=, dict= and deflate.winbits="),
            "",
            "parameters of an algorithm",
        )
        .access(Access::Write),
        get: None,
        set: None,
    },
    long(
        "recompress",
        Kind::Text("type=, threshold=, max_pages=, algo= and priority="),
        "compresses pages again, harder",
    ),
    Attr::new(
        setting(
            "backing_dev",
            Kind::Text("a block device, a regular file, a leaf, or none"),
            "none",
            "where pages are written back to",
        ),
        |c| c.backing_dev.clone().unwrap_or_else(|| "none".to_owned()).into(),
        |c, v| {
            let device = v.to_string();
            c.backing_dev = Some(device).filter(|d| !d.is_empty() && d != "none");
        },
    ),
    long(
        "writeback",
        Kind::Text("idle, huge, huge_idle, incompressible, and page_index(es)="),
        "writes pages to the backing device",
    ),
    Attr::new(
        setting("writeback_limit", ANY, "0", "4 KiB blocks that may be written back"),
        |c| c.writeback_limit.into(),
        |c, v| c.writeback_limit = parsed(v),
    ),
    Attr::new(
        setting("writeback_limit_enable", Kind::Flag, "0", "whether writeback_limit is kept"),
        |c| c.writeback_limit_enable.into(),
        |c, v| c.writeback_limit_enable = *v == Value::Flag(true),
    ),
    Attr::new(
        setting(
            "writeback_batch_size",
            number(1, BATCH_PAGES_MAX as u64),
            "32",
            "pages that are written back at once",
        ),
        |c| c.writeback_batch_size.into(),
        |c, v| c.writeback_batch_size = parsed(v),
    ),
    Attr::new(
        setting(
            "compressed_writeback",
            Kind::Flag,
            "0",
            "whether objects share the blocks of the backing device",
        ),
        |c| c.compressed_writeback.into(),
        |c, v| c.compressed_writeback = *v == Value::Flag(true),
    ),
    report("io_stat", "4 numbers", "failed_reads failed_writes invalid_io notify_free"),
    report("mm_stat", "9 numbers", "pages and bytes in memory, as in the kernel"),
    report("bd_stat", "3 numbers", "bd_count bd_reads bd_writes, in units of 4 KiB"),
    report("debug_stat", "2 lines", "for the kernel's sake"),
    Attr {
        spec: Spec::new("block_state", Kind::Text("a line a page"), "the state of every page")
            .access(Access::ReadMany),
        get: None,
        set: None,
    },
    Attr::new(
        setting(
            "writeback_inflight",
            number(1, INFLIGHT_MAX as u64),
            "16",
            "batches in flight at once",
        ),
        |c| c.writeback_inflight.into(),
        |c, v| c.writeback_inflight = parsed(v),
    ),
    report("writeback_progress", "DONE TOTAL", "pages of the command that runs"),
    Attr::new(
        setting(
            "shards",
            number(0, PARTS_MAX as u64),
            "0",
            "parts, each on a core of its own; 0: as many as there are cores for it",
        ),
        |c| c.parts.unwrap_or(0).into(),
        |c, v| c.parts = Some(parsed(v)).filter(|parts| *parts > 0),
    ),
    Attr::new(
        setting(
            "auto_writeback_idle",
            Kind::Time { unit: TimeUnit::Second, min: 0, max: u32::MAX as u64, or: None },
            "0",
            "pages not accessed for so long are written back; 0 for never",
        ),
        |c| c.auto.idle_secs.unwrap_or(0).into(),
        |c, v| c.auto.idle_secs = Some(parsed(v)).filter(|secs| *secs > 0),
    ),
    Attr::new(
        setting(
            "auto_writeback_watermark",
            Kind::Size { min: 0, max: u64::MAX, unit: 1, or: None },
            "0",
            "bytes in memory from which on pages are written back; 0 for never",
        ),
        |c| c.auto.watermark_bytes.unwrap_or(0).into(),
        |c, v| c.auto.watermark_bytes = Some(parsed(v)).filter(|bytes| *bytes > 0),
    ),
    Attr::new(
        setting(
            "auto_writeback_budget",
            Kind::Size { min: 0, max: u64::MAX, unit: 1, or: None },
            "0",
            "bytes a day that it may write; 0 for no limit",
        ),
        |c| c.auto.budget_bytes.unwrap_or(0).into(),
        |c, v| c.auto.budget_bytes = Some(parsed(v)).filter(|bytes| *bytes > 0),
    ),
    Attr::new(
        setting(
            "auto_writeback_order",
            Kind::Choice(&["huge", "coldest"]),
            "huge",
            "which pages are written back first",
        ),
        |c| match c.auto.order {
            IdleOrder::HugeFirst => "huge".into(),
            IdleOrder::ColdestFirst => "coldest".into(),
        },
        |c, v| {
            let huge = *v == "huge";
            c.auto.order = if huge { IdleOrder::HugeFirst } else { IdleOrder::ColdestFirst };
        },
    ),
    report(
        "auto_writeback_stat",
        "a word and 4 numbers",
        "state, and bytes today, budget, bytes and pages in all",
    ),
    report("backed_stat", "2 numbers", "pages and bytes of objects on the backing device"),
    report("last_error", "a text", "what went wrong last"),
];

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
