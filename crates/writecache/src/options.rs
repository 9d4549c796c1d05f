// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The optional arguments of a table line: names, ranges, defaults and meanings, and which of them
//! a live device may change.
//!
//! ```text
//!   table line ──┐
//!                ├─▶ find ─▶ give ─▶ Config, and `Options`: what the table line shows
//!   `millpond set` ┘
//! ```
use block::attr::{self, Attr, GoneOption, Kind, Metric, OptionForm, Spec, choice, flag, option};
use block::value::TimeUnit::{Microsecond, Millisecond};
use block::value::Value;
use block::{Error, Nanos, Sector};
use format::Gone;

use crate::config::{CacheMode, Config, FailMode, MediaFormat, Mode, Order};

/// An optional argument.
pub(crate) type Opt = Attr<Config>;

/// The beginning of the kernel's messages about optional arguments.
const INVALID: &str = "Invalid optional argument";

const UP_TO_A_DAY: Kind =
    Kind::Time { unit: Millisecond, min: 0, max: 86_400_000, or: Some("none") };
const FORMATS: Kind = Kind::Choice(&["native", "dm"]);
/// Up to a hundred times what is dirty.
const GAP_WRITE_PERCENT: Kind = Kind::NumberOr { min: 0, max: 10_000, unit: "percent", or: "auto" };

/// A time as its option has it.
fn millis(time: Nanos) -> u64 {
    time.0 / Millisecond.one().0
}

block::attrs! {
    /// All options: the kernel's in the kernel's order, then ours.
    pub(crate) static OPTIONS: [Opt];

    start_sector: option(Kind::number(0..=u64::MAX >> block::SECTOR_SHIFT, "sectors"), "0").fixed(),
        "where the cache begins on the cache device",
        get |c| c.start_sector.0, set |c, v| c.start_sector = Sector(v);
    high_watermark: option(Kind::number(0..=100, "percent"), "50"),
        "blocks in use at which writeback starts", field tuning.high_watermark;
    low_watermark: option(Kind::number(0..=100, "percent"), "45"),
        "blocks in use at which it stops", field tuning.low_watermark;
    writeback_jobs: option(Kind::number(0..=u32::MAX as u64, "blocks"), "32 MiB of blocks"),
        "blocks under writeback at once; 0 for no limit", field tuning.writeback_jobs;
    autocommit_blocks: option(Kind::number(0..=u32::MAX as u64, "blocks"), "65536; 64 in mode p"),
        "commit after so many uncommitted blocks", field tuning.autocommit_blocks;
    autocommit_time: option(Kind::time(Millisecond, 0..=3_600_000), "1000"),
        "commit so long after the first uncommitted write",
        get |c| millis(c.tuning.autocommit_time),
        set |c, v| c.tuning.autocommit_time = Nanos::from_millis(v);
    max_age: option(UP_TO_A_DAY, "none")
        .metric(Metric::GAUGE.named("max_age_seconds").of_time(Millisecond)),
        "nothing stays dirty for longer",
        get |c| c.tuning.max_age.map_or_else(|| "none".into(), |age| Value::from(millis(age))),
        set |c, v: Option<u64>| c.tuning.max_age = v.map(Nanos::from_millis);
    cleaner: flag(), "empties the cache: what it does not hold goes to the origin",
        field tuning.cleaner;
    fua: flag(), "mode p: each write of writeback carries FUA", field tuning.fua;
    nofua: flag().default("1"), "mode p: one flush of the origin for many writes of writeback",
        get |c| !c.tuning.fua, set |c, v: bool| c.tuning.fua = !v;
    metadata_only: flag(), "only metadata (the flag META of a bio) takes new blocks",
        field tuning.metadata_only;
    pause_writeback: option(Kind::time(Millisecond, 0..=60_000), "3000"),
        "mode s: no writeback for so long after a write that went to the origin",
        get |c| millis(c.tuning.pause_writeback),
        set |c, v| c.tuning.pause_writeback = Nanos::from_millis(v);
    // It has no getter: the media say which format they have.
    format: option(FORMATS, "that of the cache that is there; native for a new one").fixed(),
        "the format of the cache device: ours, or the kernel's",
        set |c, v: String| {
            c.format = Some(if v == "native" { MediaFormat::Native } else { MediaFormat::Dm });
        };
    ordered: flag().fixed(), "the origin alone is always what a disk may hold after a power cut",
        field ordered;
    adopt_origin: flag().fixed(), "takes the origin for the cache's own, whatever it was before",
        field adopt_origin;
    guard_origin: flag().fixed(),
        "the origin shows a signature instead of its superblocks, so that nobody uses it alone",
        get |c| c.guard.asked == Some(true), set |c, v: bool| c.guard.asked = v.then_some(true);
    no_guard: flag().fixed(), "the origin has no guard: one that it has is taken away",
        get |c| c.guard.asked == Some(false), set |c, v: bool| c.guard.asked = v.then_some(false);
    write_buffer: option(Kind::size(0..=1 << 30), "32M").fixed(),
        "mode s: memory from which writes are acknowledged; 0 for none", field write_buffer;
    cache_mode: choice("writeback"),
        "a write is complete when the cache has it, or when the origin has accepted it",
        words tuning.cache_mode {
            "writeback" => CacheMode::Writeback, "writethrough" => CacheMode::Writethrough
        };
    writeback_order: choice("sorted"),
        "dirty blocks by their place on the origin, or the oldest first",
        words tuning.writeback_order { "sorted" => Order::Sorted, "lru" => Order::Lru };
    writeback_io_bytes: option(Kind::size(0..=16 << 20), "1M"),
        "largest write to the origin: a multiple of the block size",
        field tuning.writeback_io_bytes;
    writeback_buffer: option(Kind::size(0..=1 << 30), "256M"),
        "memory in which dirty blocks are read in the order of their slots; 0 for none",
        field tuning.writeback_buffer;
    gap_fill: option(Kind::Flag, "1"), "fills gaps between dirty blocks where that is faster",
        field tuning.gaps.fill;
    gap_write_percent: option(GAP_WRITE_PERCENT, "auto"),
        "most bytes of gaps that writeback writes, beside dirty ones; auto: on an origin that \
         does not rotate none but for a flush, else no limit",
        get |c| c.tuning.gaps.write_percent.map_or_else(|| "auto".into(), Value::from),
        set |c, v| c.tuning.gaps.write_percent = v;
    fail_mode: choice("retry"),
        "after an error of writeback: the blocks are tried again, or the cache fails",
        words tuning.fail_mode { "retry" => FailMode::Retry, "kernel" => FailMode::Kernel };
    writeback_rate_max: option(Kind::size(0..=u64::MAX), "0"),
        "bytes a second that writeback may write to the origin; 0 for no limit",
        field tuning.limits.rate_max;
    foreground_p99_target: option(Kind::time(Microsecond, 0..=60_000_000), "0"),
        "writeback slows down so that the clients' 99th percentile stays below this time \
         (20ms; a bare number is microseconds); 0 for never",
        get |c| c.tuning.limits.p99_target.map_or(0, |p99| p99.0 / 1_000),
        set |c, v: u64| c.tuning.limits.p99_target = (v > 0).then_some(Nanos::from_micros(v));
    sequential_write_cutoff: option(Kind::size(0..=u64::MAX), "0"),
        "writes in order go around the cache from so many bytes on; 0 for never",
        field tuning.sequential_write_cutoff;
    scrub_rate: option(Kind::size(0..=u64::MAX), "0"),
        "bytes a second of cached blocks that are checked in idle time; 0 for none",
        field tuning.scrub_rate;
    read_cache: option(Kind::Flag, "0"), "blocks that are read again enter the cache, too",
        field tuning.reads.enter;
    sequential_read_cutoff: option(Kind::size(0..=u64::MAX), "1M"),
        "blocks of reads in order that are longer never enter the cache; 0: all may",
        field tuning.reads.sequential_cutoff;
    read_admit_bytes_per_day: option(Kind::size(0..=u64::MAX), "0"),
        "bytes that enter the cache by reads in 24 hours, at most; 0 for no limit",
        field tuning.reads.bytes_per_day;
}

/// Options of earlier versions that only made something faster. A table with one is as good as one
/// without, so it is taken, with its value.
const WITHOUT_EFFECT: [&str; 1] = ["read_ahead"];

/// Whether an option of this name is taken and does nothing.
pub(crate) fn is_without_effect(word: &str) -> bool {
    WITHOUT_EFFECT.iter().any(|name| name.eq_ignore_ascii_case(word))
}

/// Options that earlier versions had.
const GONE_OPTIONS: [GoneOption; 1] =
    [GoneOption { name: Gone::DividedCache.option(), way_out: Gone::DividedCache.way_out() }];

fn named(name: &str) -> Option<&'static Opt> {
    OPTIONS.iter().find(|option| option.spec.name.eq_ignore_ascii_case(name))
}

/// The option of this name, in any case.
pub(crate) fn find(word: &str) -> Result<&'static Opt, Error> {
    named(word).ok_or_else(|| {
        if let Some(refusal) = GoneOption::refusal(&GONE_OPTIONS, word) {
            return refusal.within(INVALID);
        }
        let hint = block::name_hint(word, &attr::names(&attr::specs(&OPTIONS)));
        Error::invalid(format!("{INVALID} `{word}`: {hint}"))
    })
}

/// The option of an attribute, in any case.
pub(crate) fn find_live(name: &str) -> Result<&'static Opt, Error> {
    let known = || attr::names(&attr::specs(&OPTIONS));
    named(name).ok_or_else(|| attr::unknown("writecache", name, &known()))
}

/// The options that are also attributes of a device: all that apply to its mode.
pub(crate) fn attributes(config: &Config) -> impl Iterator<Item = &'static Spec> {
    OPTIONS.iter().map(|o| &o.spec).filter(|spec| config.check_mode(spec.name).is_ok())
}

/// The options that the user set, each once, in the order of a table line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options(Vec<(&'static str, Option<String>)>);

impl Options {
    /// Records an option; it replaces an earlier one of the same name.
    fn note(&mut self, name: &'static str, value: Option<String>) {
        self.forget(name);
        self.0.push((name, value));
        self.0.sort_by_key(|(name, _)| OPTIONS.iter().position(|o| o.spec.name == *name));
    }

    fn forget(&mut self, name: &str) {
        self.0.retain(|(n, _)| *n != name);
    }

    /// The words of a table line.
    pub(crate) fn words(&self) -> Vec<String> {
        let words =
            self.0.iter().flat_map(|(name, value)| [Some((*name).to_owned()), value.clone()]);
        words.flatten().collect()
    }
}

impl Config {
    /// The value of an option; `None` for the format, which the media have.
    pub(crate) fn option_value(&self, name: &str) -> Option<Value> {
        attr::get(&OPTIONS, name, self)
    }

    /// Applies an option of a table line.
    pub(crate) fn set_from_table(&mut self, option: &Opt, word: Option<&str>) -> Result<(), Error> {
        let name = option.spec.name;
        self.check_mode(name)?;
        let value = word.map_or(Ok(Value::Flag(true)), |word| option.spec.parse(word));
        let value = value.map_err(|e| e.within(INVALID))?;
        option.set.expect("every option can be set")(self, &value);
        match name {
            "fua" => self.given.forget("nofua"),
            "nofua" => self.given.forget("fua"),
            _ => {}
        }
        if value == "none" {
            self.given.forget(name); // the kernel has no word for the default
        } else {
            self.given.note(name, word.map(|_| value.to_string()));
        }
        Ok(())
    }

    /// Changes an option of a live device; 1 sets a flag and 0 clears it.
    pub(crate) fn set_live(&mut self, option: &Opt, word: &str) -> Result<(), Error> {
        let spec = &option.spec;
        if !spec.access.writes() {
            return Err(block::attr::fixed(spec.name).within("writecache"));
        }
        if spec.form == OptionForm::Value {
            return self.set_from_table(option, Some(word));
        }
        self.check_mode(spec.name)?;
        let on = spec.parse(word).map_err(|e| e.within(INVALID))?;
        if on == Value::Flag(true) {
            return self.set_from_table(option, None);
        }
        option.set.expect("every option can be set")(self, &on);
        self.given.forget(spec.name);
        Ok(())
    }

    /// Refuses an option that the mode does not support.
    fn check_mode(&self, name: &str) -> Result<(), Error> {
        let mode = match name {
            "fua" | "nofua" => Mode::Pmem,
            "pause_writeback" | "write_buffer" => Mode::Ssd,
            _ => return Ok(()),
        };
        if self.mode == mode {
            return Ok(());
        }
        let word = if mode == Mode::Pmem { "p" } else { "s" };
        Err(Error::invalid(format!("{INVALID} `{name}`: it is for mode `{word}` only")))
    }
}
