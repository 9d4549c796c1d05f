// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The optional arguments of a table line: names, ranges, defaults and meanings, and which of them
//! a live device may change.
//!
//! ```text
//!   table line ──┐
//!                ├─▶ find ─▶ give ─▶ Config, and `Options`: what the table line shows
//!   `millpond set` ┘
//! ```
use block::attr::{self, Attr, GoneOption, Kind, Metric, OptionForm, Spec};
use block::value::{TimeUnit, Value};
use block::{Access, Error, Nanos, Sector};
use format::Gone;

use crate::config::{CacheMode, Config, FailMode, MediaFormat, Mode, Order};

/// An optional argument.
pub(crate) type Opt = Attr<Config>;

/// The beginning of the kernel's messages about optional arguments.
const INVALID: &str = "Invalid optional argument";

const MILLISECOND: Nanos = TimeUnit::Millisecond.one();
const MICROSECOND: Nanos = TimeUnit::Microsecond.one();

/// An option with a value, which can be changed on a live device.
const fn value(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Spec {
    let spec = Spec::new(name, kind, help).access(Access::ReadWrite);
    spec.option(OptionForm::Value).default(default)
}

/// An option without a value, off by default, which can be changed on a live device.
const fn flag(name: &'static str, help: &'static str) -> Spec {
    Spec::new(name, Kind::Flag, help)
        .access(Access::ReadWrite)
        .option(OptionForm::Name)
        .default("0")
}

/// The same option, for a table line only.
const fn fixed(spec: Spec) -> Spec {
    spec.access(Access::Read)
}

/// A hundred times what is dirty.
const GAP_WRITE_PERCENT_MAX: u64 = 10_000;

const fn number(max: u64, unit: &'static str) -> Kind {
    Kind::Number { min: 0, max, unit }
}

const fn millis(max: u64) -> Kind {
    Kind::Time { unit: TimeUnit::Millisecond, min: 0, max, or: None }
}

/// The number in a value, which the option's [`Kind`] has checked.
fn given<T: TryFrom<u64>>(value: &Value) -> T {
    let number = value.number().and_then(|n| T::try_from(n).ok());
    number.expect("checked by the option's kind")
}

fn is_on(value: &Value) -> bool {
    *value == Value::Flag(true)
}

fn time(value: &Value, unit: Nanos) -> Nanos {
    Nanos(given::<u64>(value) * unit.0)
}

/// All options: the kernel's in the kernel's order, then ours.
pub(crate) static OPTIONS: [Opt; 32] = [
    Attr::new(
        fixed(value(
            "start_sector",
            number(u64::MAX >> block::SECTOR_SHIFT, "sectors"),
            "0",
            "where the cache begins on the cache device",
        )),
        |c| c.start_sector.0.into(),
        |c, v| c.start_sector = Sector(given(v)),
    ),
    Attr::new(
        value(
            "high_watermark",
            number(100, "percent"),
            "50",
            "blocks in use at which writeback starts",
        ),
        |c| u64::from(c.tuning.high_watermark).into(),
        |c, v| c.tuning.high_watermark = given(v),
    ),
    Attr::new(
        value("low_watermark", number(100, "percent"), "45", "blocks in use at which it stops"),
        |c| u64::from(c.tuning.low_watermark).into(),
        |c, v| c.tuning.low_watermark = given(v),
    ),
    Attr::new(
        value(
            "writeback_jobs",
            number(u32::MAX as u64, "blocks"),
            "32 MiB of blocks",
            "blocks under writeback at once; 0 for no limit",
        ),
        |c| c.tuning.writeback_jobs.into(),
        |c, v| c.tuning.writeback_jobs = given(v),
    ),
    Attr::new(
        value(
            "autocommit_blocks",
            number(u32::MAX as u64, "blocks"),
            "65536; 64 in mode p",
            "commit after so many uncommitted blocks",
        ),
        |c| c.tuning.autocommit_blocks.into(),
        |c, v| c.tuning.autocommit_blocks = given(v),
    ),
    Attr::new(
        value(
            "autocommit_time",
            millis(3_600_000),
            "1000",
            "commit so long after the first uncommitted write",
        ),
        |c| (c.tuning.autocommit_time.0 / MILLISECOND.0).into(),
        |c, v| c.tuning.autocommit_time = time(v, MILLISECOND),
    ),
    Attr::new(
        value(
            "max_age",
            Kind::Time { unit: TimeUnit::Millisecond, min: 0, max: 86_400_000, or: Some("none") },
            "none",
            "nothing stays dirty for longer",
        )
        .metric(Metric::GAUGE.named("max_age_seconds").of_time(TimeUnit::Millisecond)),
        |c| {
            let ms = c.tuning.max_age.map(|age| age.0 / MILLISECOND.0);
            ms.map_or_else(|| Value::from("none"), Value::Number)
        },
        |c, v| c.tuning.max_age = v.number().map(|ms| Nanos(ms * MILLISECOND.0)),
    ),
    Attr::new(
        flag("cleaner", "empties the cache: what it does not hold goes to the origin"),
        |c| c.tuning.cleaner.into(),
        |c, v| c.tuning.cleaner = is_on(v),
    ),
    Attr::new(
        flag("fua", "mode p: each write of writeback carries FUA"),
        |c| c.tuning.fua.into(),
        |c, v| c.tuning.fua = is_on(v),
    ),
    Attr::new(
        flag("nofua", "mode p: one flush of the origin for many writes of writeback").default("1"),
        |c| (!c.tuning.fua).into(),
        |c, v| c.tuning.fua = !is_on(v),
    ),
    Attr::new(
        flag("metadata_only", "only metadata (the flag META of a bio) takes new blocks"),
        |c| c.tuning.metadata_only.into(),
        |c, v| c.tuning.metadata_only = is_on(v),
    ),
    Attr::new(
        value(
            "pause_writeback",
            millis(60_000),
            "3000",
            "mode s: no writeback for so long after a write that went to the origin",
        ),
        |c| (c.tuning.pause_writeback.0 / MILLISECOND.0).into(),
        |c, v| c.tuning.pause_writeback = time(v, MILLISECOND),
    ),
    // It has no getter: the media say which format they have.
    Attr {
        spec: fixed(value(
            "format",
            Kind::Choice(&["native", "dm"]),
            "that of the cache that is there; native for a new one",
            "the format of the cache device: ours, or the kernel's",
        )),
        get: None,
        set: Some(|c, v| {
            let native = *v == "native";
            c.format = Some(if native { MediaFormat::Native } else { MediaFormat::Dm });
        }),
    },
    Attr::new(
        fixed(flag("ordered", "the origin alone is always what a disk may hold after a power cut")),
        |c| c.ordered.into(),
        |c, v| c.ordered = is_on(v),
    ),
    Attr::new(
        fixed(flag("adopt_origin", "takes the origin for the cache's own, whatever it was before")),
        |c| c.adopt_origin.into(),
        |c, v| c.adopt_origin = is_on(v),
    ),
    Attr::new(
        fixed(flag(
            "guard_origin",
            "the origin shows a signature instead of its superblocks, so that nobody uses it alone",
        )),
        |c| (c.guard.asked == Some(true)).into(),
        |c, v| c.guard.asked = is_on(v).then_some(true),
    ),
    Attr::new(
        fixed(flag("no_guard", "the origin has no guard: one that it has is taken away")),
        |c| (c.guard.asked == Some(false)).into(),
        |c, v| c.guard.asked = is_on(v).then_some(false),
    ),
    Attr::new(
        fixed(value(
            "write_buffer",
            Kind::Size { min: 0, max: 1 << 30, unit: 1, or: None },
            "32M",
            "mode s: memory from which writes are acknowledged; 0 for none",
        )),
        |c| c.write_buffer.into(),
        |c, v| c.write_buffer = given(v),
    ),
    Attr::new(
        value(
            "cache_mode",
            Kind::Choice(&["writeback", "writethrough"]),
            "writeback",
            "a write is complete when the cache has it, or when the origin has accepted it",
        ),
        |c| match c.tuning.cache_mode {
            CacheMode::Writeback => "writeback".into(),
            CacheMode::Writethrough => "writethrough".into(),
        },
        |c, v| {
            let through = *v == "writethrough";
            c.tuning.cache_mode =
                if through { CacheMode::Writethrough } else { CacheMode::Writeback };
        },
    ),
    Attr::new(
        value(
            "writeback_order",
            Kind::Choice(&["sorted", "lru"]),
            "sorted",
            "dirty blocks by their place on the origin, or the oldest first",
        ),
        |c| match c.tuning.writeback_order {
            Order::Sorted => "sorted".into(),
            Order::Lru => "lru".into(),
        },
        |c, v| {
            let sorted = *v == "sorted";
            c.tuning.writeback_order = if sorted { Order::Sorted } else { Order::Lru };
        },
    ),
    Attr::new(
        value(
            "writeback_io_bytes",
            Kind::Size { min: 0, max: 16 << 20, unit: 1, or: None },
            "1M",
            "largest write to the origin: a multiple of the block size",
        ),
        |c| c.tuning.writeback_io_bytes.into(),
        |c, v| c.tuning.writeback_io_bytes = given(v),
    ),
    Attr::new(
        value(
            "writeback_buffer",
            Kind::Size { min: 0, max: 1 << 30, unit: 1, or: None },
            "256M",
            "memory in which dirty blocks are read in the order of their slots; 0 for none",
        ),
        |c| c.tuning.writeback_buffer.into(),
        |c, v| c.tuning.writeback_buffer = given(v),
    ),
    Attr::new(
        value("gap_fill", Kind::Flag, "1", "fills gaps between dirty blocks where that is faster"),
        |c| c.tuning.gaps.fill.into(),
        |c, v| c.tuning.gaps.fill = is_on(v),
    ),
    Attr::new(
        value(
            "gap_write_percent",
            Kind::NumberOr { min: 0, max: GAP_WRITE_PERCENT_MAX, unit: "percent", or: "auto" },
            "auto",
            "most bytes of gaps that writeback writes, beside dirty ones; auto: on an origin that \
             does not rotate none but for a flush, else no limit",
        ),
        |c| c.tuning.gaps.write_percent.map_or_else(|| "auto".into(), Value::from),
        |c, v| c.tuning.gaps.write_percent = v.number().and_then(|n| u32::try_from(n).ok()),
    ),
    Attr::new(
        value(
            "fail_mode",
            Kind::Choice(&["retry", "kernel"]),
            "retry",
            "after an error of writeback: the blocks are tried again, or the cache fails",
        ),
        |c| match c.tuning.fail_mode {
            FailMode::Retry => "retry".into(),
            FailMode::Kernel => "kernel".into(),
        },
        |c, v| {
            let retry = *v == "retry";
            c.tuning.fail_mode = if retry { FailMode::Retry } else { FailMode::Kernel };
        },
    ),
    Attr::new(
        value(
            "writeback_rate_max",
            Kind::Size { min: 0, max: u64::MAX, unit: 1, or: None },
            "0",
            "bytes a second that writeback may write to the origin; 0 for no limit",
        ),
        |c| c.tuning.limits.rate_max.into(),
        |c, v| c.tuning.limits.rate_max = given(v),
    ),
    Attr::new(
        value(
            "foreground_p99_target",
            Kind::Time { unit: TimeUnit::Microsecond, min: 0, max: 60_000_000, or: None },
            "0",
            "writeback slows down so that the clients' 99th percentile stays below this time \
             (20ms; a bare number is microseconds); 0 for never",
        ),
        |c| c.tuning.limits.p99_target.map_or(0, |p99| p99.0 / MICROSECOND.0).into(),
        |c, v| {
            c.tuning.limits.p99_target = Some(time(v, MICROSECOND)).filter(|p99| p99.0 > 0);
        },
    ),
    Attr::new(
        value(
            "sequential_write_cutoff",
            Kind::Size { min: 0, max: u64::MAX, unit: 1, or: None },
            "0",
            "writes in order go around the cache from so many bytes on; 0 for never",
        ),
        |c| c.tuning.sequential_write_cutoff.into(),
        |c, v| c.tuning.sequential_write_cutoff = given(v),
    ),
    Attr::new(
        value(
            "scrub_rate",
            Kind::Size { min: 0, max: u64::MAX, unit: 1, or: None },
            "0",
            "bytes a second of cached blocks that are checked in idle time; 0 for none",
        ),
        |c| c.tuning.scrub_rate.into(),
        |c, v| c.tuning.scrub_rate = given(v),
    ),
    Attr::new(
        value("read_cache", Kind::Flag, "0", "blocks that are read again enter the cache, too"),
        |c| c.tuning.reads.enter.into(),
        |c, v| c.tuning.reads.enter = is_on(v),
    ),
    Attr::new(
        value(
            "sequential_read_cutoff",
            Kind::Size { min: 0, max: u64::MAX, unit: 1, or: None },
            "1M",
            "blocks of reads in order that are longer never enter the cache; 0: all may",
        ),
        |c| c.tuning.reads.sequential_cutoff.into(),
        |c, v| c.tuning.reads.sequential_cutoff = given(v),
    ),
    Attr::new(
        value(
            "read_admit_bytes_per_day",
            Kind::Size { min: 0, max: u64::MAX, unit: 1, or: None },
            "0",
            "bytes that enter the cache by reads in 24 hours, at most; 0 for no limit",
        ),
        |c| c.tuning.reads.bytes_per_day.into(),
        |c, v| c.tuning.reads.bytes_per_day = given(v),
    ),
];

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

/// The option of this name, in any case.
pub(crate) fn find(word: &str) -> Result<&'static Opt, Error> {
    OPTIONS.iter().find(|o| o.spec.name.eq_ignore_ascii_case(word)).ok_or_else(|| {
        if let Some(refusal) = GoneOption::refusal(&GONE_OPTIONS, word) {
            return refusal.within(INVALID);
        }
        let names: Vec<&str> = OPTIONS.iter().map(|o| o.spec.name).collect();
        let hint = block::name_hint(word, &names);
        Error::invalid(format!("{INVALID} `{word}`: {hint}"))
    })
}

/// The option of an attribute, in any case.
pub(crate) fn find_live(name: &str) -> Result<&'static Opt, Error> {
    let option = OPTIONS.iter().find(|o| o.spec.name.eq_ignore_ascii_case(name));
    let known = || attr::names(&attr::specs(&OPTIONS));
    option.ok_or_else(|| attr::unknown("writecache", name, &known()))
}

/// The options that are also attributes of a device: all that apply to its mode.
pub(crate) fn attributes(config: &Config) -> impl Iterator<Item = &'static Spec> {
    OPTIONS.iter().map(|o| &o.spec).filter(|spec| config.check_mode(spec.name).is_ok())
}

/// The options that are exported as metrics while they have a number.
pub(crate) fn metric_specs() -> impl Iterator<Item = &'static Spec> {
    OPTIONS.iter().map(|o| &o.spec).filter(|spec| spec.metric.is_some())
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
        let option = OPTIONS.iter().find(|o| o.spec.name == name)?;
        Some(option.get?(self))
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
        if is_on(&on) {
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
