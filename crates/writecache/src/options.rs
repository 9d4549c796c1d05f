// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The optional arguments of a table line: their names, ranges and meanings; and those that can be
//! changed on a live device.
//!
//! ```text
//!   table line ──┐
//!                ├─▶ find ─▶ give ─▶ Config, and `Options`: what the table line shows
//!   `millpond set` ┘
//! ```
use std::str::FromStr;

use block::{Error, Nanos, Sector};

use crate::config::{Config, FailMode, MediaFormat, Mode, Order};

/// An optional argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opt {
    pub(crate) name: &'static str,
    /// Whether a value follows it in a table line.
    pub(crate) takes_value: bool,
    /// Whether it can be changed on a live device.
    pub(crate) live: bool,
}

const fn value(name: &'static str) -> Opt {
    Opt { name, takes_value: true, live: true }
}
const fn flag(name: &'static str) -> Opt {
    Opt { name, takes_value: false, live: true }
}
const fn fixed(opt: &Opt) -> Opt {
    Opt { live: false, ..*opt }
}

/// All of them: the kernel's in the kernel's order, then ours.
pub(crate) const OPTIONS: [Opt; 22] = [
    fixed(&value("start_sector")),
    value("high_watermark"),
    value("low_watermark"),
    value("writeback_jobs"),
    value("autocommit_blocks"),
    value("autocommit_time"),
    value("max_age"),
    flag("cleaner"),
    flag("fua"),
    flag("nofua"),
    flag("metadata_only"),
    value("pause_writeback"),
    fixed(&value("format")),
    fixed(&flag("ordered")),
    fixed(&value("parts")),
    fixed(&flag("adopt_origin")),
    value("writeback_order"),
    value("writeback_io_bytes"),
    value("gap_fill"),
    value("fail_mode"),
    value("writeback_rate_max"),
    value("foreground_p99_target"),
];

/// The option of this name, in any case.
pub(crate) fn find(word: &str) -> Result<&'static Opt, Error> {
    OPTIONS.iter().find(|o| o.name.eq_ignore_ascii_case(word)).ok_or_else(|| {
        let names: Vec<&str> = OPTIONS.iter().map(|o| o.name).collect();
        let hint = block::name_hint(word, &names);
        Error::invalid(format!("Invalid optional argument `{word}`: {hint}"))
    })
}

/// Those that are attributes of a device, too: all that mean something in its mode.
pub(crate) fn attributes(config: &Config) -> impl Iterator<Item = &'static Opt> {
    OPTIONS.iter().filter(|o| config.only_in(o.name).is_ok())
}

/// The options that were given, each once, in the order of a table line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options(Vec<(&'static str, Option<String>)>);

impl Options {
    /// Notes an option; an earlier one of the same name is forgotten: the last one wins.
    fn note(&mut self, name: &'static str, value: Option<&str>) {
        self.forget(name);
        self.0.push((name, value.map(str::to_ascii_lowercase)));
        self.0.sort_by_key(|(name, _)| OPTIONS.iter().position(|o| o.name == *name));
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

fn invalid(option: &str, word: &str, allowed: &str) -> Error {
    Error::invalid(format!("Invalid optional argument: {option} `{word}`: {allowed} is allowed"))
}

fn ranged<T: FromStr + PartialOrd + Copy + std::fmt::Display>(
    option: &str,
    word: &str,
    max: T,
    unit: &str,
) -> Result<T, Error> {
    let allowed = format!("0 to {max}{unit}");
    let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    if !digits {
        return Err(invalid(option, word, &format!("{allowed}, as a number without a suffix,")));
    }
    let value: T = word.parse().map_err(|_| invalid(option, word, &allowed))?;
    if value > max { Err(invalid(option, word, &allowed)) } else { Ok(value) }
}

fn switch(option: &str, word: &str) -> Result<bool, Error> {
    match word {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(invalid(option, word, "0 or 1")),
    }
}

impl Config {
    /// An option as it is now; none for the format, which the media tell.
    pub(crate) fn option_value(&self, name: &str) -> Option<String> {
        let t = &self.tuning;
        let millis = |n: Nanos| (n.0 / 1_000_000).to_string();
        let flag = |on: bool| u8::from(on).to_string();
        Some(match name {
            "start_sector" => self.start_sector.0.to_string(),
            "ordered" => flag(self.ordered),
            "adopt_origin" => flag(self.adopt_origin),
            "parts" => self.parts.unwrap_or(1).to_string(),
            "high_watermark" => t.high_watermark.to_string(),
            "low_watermark" => t.low_watermark.to_string(),
            "writeback_jobs" => t.writeback_jobs.to_string(),
            "autocommit_blocks" => t.autocommit_blocks.to_string(),
            "autocommit_time" => millis(t.autocommit_time),
            "max_age" => t.max_age.map_or_else(|| "none".to_owned(), millis),
            "cleaner" => flag(t.cleaner),
            "fua" => flag(t.fua),
            "nofua" => flag(!t.fua),
            "metadata_only" => flag(t.metadata_only),
            "pause_writeback" => millis(t.pause_writeback),
            "writeback_order" => match t.writeback_order {
                Order::Sorted => "sorted".to_owned(),
                Order::Lru => "lru".to_owned(),
            },
            "writeback_io_bytes" => t.writeback_io_bytes.to_string(),
            "gap_fill" => flag(t.gap_fill),
            "fail_mode" => match t.fail_mode {
                FailMode::Retry => "retry".to_owned(),
                FailMode::Kernel => "kernel".to_owned(),
            },
            "writeback_rate_max" => t.writeback_rate_max.to_string(),
            "foreground_p99_target" => {
                t.foreground_p99_target.map_or(0, |n| n.0 / 1000).to_string()
            }
            _ => return None,
        })
    }

    /// Takes an option of a table line.
    pub(crate) fn give(&mut self, option: &Opt, value: Option<&str>) -> Result<(), Error> {
        let name = option.name;
        match value {
            Some(value) => self.set_value(name, value)?,
            None => self.set_flag(name)?,
        }
        let known = OPTIONS.iter().find(|o| o.name == name).expect("found by name");
        match name {
            "fua" => self.given.forget("nofua"),
            "nofua" => self.given.forget("fua"),
            _ => {}
        }
        // The default has no word that the kernel would take.
        match value {
            Some(none) if none.eq_ignore_ascii_case("none") => self.given.forget(name),
            _ => self.given.note(known.name, value),
        }
        Ok(())
    }

    /// Changes an option of a live device; a flag is set by 1 and taken back by 0.
    pub(crate) fn set_live(&mut self, option: &Opt, word: &str) -> Result<(), Error> {
        let name = option.name;
        if !option.live {
            return Err(Error::invalid(format!(
                "writecache: {name} can't be changed on a live device: load a new table"
            )));
        }
        if option.takes_value {
            return self.give(option, Some(word));
        }
        if switch(name, word)? {
            return self.give(option, None);
        }
        self.only_in(name)?;
        match name {
            "cleaner" => self.tuning.cleaner = false,
            "fua" => self.tuning.fua = false,
            "nofua" => self.tuning.fua = true,
            "metadata_only" => self.tuning.metadata_only = false,
            _ => unreachable!("every live flag is here"),
        }
        self.given.forget(name);
        Ok(())
    }

    /// Some options are for one mode only.
    fn only_in(&self, name: &str) -> Result<(), Error> {
        let mode = match name {
            "fua" | "nofua" => Mode::Pmem,
            "pause_writeback" => Mode::Ssd,
            _ => return Ok(()),
        };
        if self.mode == mode {
            return Ok(());
        }
        let word = if mode == Mode::Pmem { "p" } else { "s" };
        Err(Error::invalid(format!(
            "Invalid optional argument `{name}`: it is for mode `{word}` only"
        )))
    }

    fn set_flag(&mut self, name: &str) -> Result<(), Error> {
        self.only_in(name)?;
        match name {
            "cleaner" => self.tuning.cleaner = true,
            "fua" => self.tuning.fua = true,
            "nofua" => self.tuning.fua = false,
            "metadata_only" => self.tuning.metadata_only = true,
            "ordered" => self.ordered = true,
            "adopt_origin" => self.adopt_origin = true,
            _ => unreachable!("every flag is here"),
        }
        Ok(())
    }

    fn set_value(&mut self, name: &str, word: &str) -> Result<(), Error> {
        self.only_in(name)?;
        let lower = word.to_ascii_lowercase();
        let t = &mut self.tuning;
        match name {
            "start_sector" => {
                let max = u64::MAX >> block::SECTOR_SHIFT;
                self.start_sector = Sector(ranged(name, word, max, " sectors")?);
            }
            "high_watermark" => t.high_watermark = ranged(name, word, 100, " percent")?,
            "low_watermark" => t.low_watermark = ranged(name, word, 100, " percent")?,
            "writeback_jobs" => t.writeback_jobs = ranged(name, word, u32::MAX, " blocks")?,
            "autocommit_blocks" => t.autocommit_blocks = ranged(name, word, u32::MAX, " blocks")?,
            "autocommit_time" => {
                t.autocommit_time = Nanos::from_millis(ranged(name, word, 3_600_000, " ms")?);
            }
            "max_age" if lower == "none" => t.max_age = None,
            "max_age" => {
                t.max_age = Some(Nanos::from_millis(ranged(name, word, 86_400_000, " ms")?));
            }
            "pause_writeback" => {
                t.pause_writeback = Nanos::from_millis(ranged(name, word, 60_000, " ms")?);
            }
            "format" => {
                self.format = Some(match lower.as_str() {
                    "native" => MediaFormat::Native,
                    "dm" => MediaFormat::Dm,
                    _ => return Err(invalid(name, word, "native or dm")),
                });
            }
            "parts" => {
                let max = format::PARTS_MAX;
                let parts = word.parse().ok().filter(|parts| (1..=max).contains(parts));
                self.parts =
                    Some(parts.ok_or_else(|| invalid(name, word, &format!("1 to {max}")))?);
            }
            "writeback_order" => {
                t.writeback_order = match lower.as_str() {
                    "sorted" => Order::Sorted,
                    "lru" => Order::Lru,
                    _ => return Err(invalid(name, word, "sorted or lru")),
                };
            }
            "writeback_io_bytes" => {
                let bytes: u32 = ranged(name, word, 16 << 20, " bytes")?;
                if bytes < self.block_size || !bytes.is_multiple_of(self.block_size) {
                    let size = self.block_size;
                    let allowed = format!("a multiple of the block size {size} up to 16777216");
                    return Err(invalid(name, word, &allowed));
                }
                t.writeback_io_bytes = bytes;
            }
            "gap_fill" => t.gap_fill = switch(name, word)?,
            "fail_mode" => {
                t.fail_mode = match lower.as_str() {
                    "retry" => FailMode::Retry,
                    "kernel" => FailMode::Kernel,
                    _ => return Err(invalid(name, word, "retry or kernel")),
                };
            }
            "writeback_rate_max" => {
                t.writeback_rate_max = ranged(name, word, u64::MAX, " bytes a second")?;
            }
            "foreground_p99_target" => {
                let us: u64 = ranged(name, word, 60_000_000, " us")?;
                t.foreground_p99_target = (us > 0).then(|| Nanos(us * 1000));
            }
            _ => unreachable!("every option with a value is here"),
        }
        Ok(())
    }
}
