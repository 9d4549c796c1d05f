// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table line: `DEVICE [<#opt_args> [<option> <value>]...]`; and what can be set while the
//! device runs, by the same names.
//!
//! Invariants
//! - PC-CF1 [`Config::table`] names what differs from the defaults, and parses to the same config.
//! - PC-CF2 Of the two options of one limit, bytes and seconds, the one that was not set last is 0.
//! - PC-CF3 A value that is refused changes nothing.
use std::cell::Cell;

use block::value::{TimeUnit, choice, number, refused, seconds_text, size, time, time_in};
use block::{Error, Nanos, PAGE, Planted};
use policy::{Bound, DIRTY_BYTES_MIN, DirtyLimits};

use crate::iomap::MapBlocks;
use crate::planted::Fault;

/// Memory of a cache unless the table says otherwise: 256 MiB. Chosen.
const MEMORY_DEFAULT: u64 = 256 << 20;
/// The least memory, with which a folio of 2 MiB and reads beside it still fit, and the most.
const MEMORY_MIN: u64 = 8 << 20;
const MEMORY_MAX: u64 = 1 << 40;
/// Two seconds and one of the device's own bandwidth.
const DIRTY_MS: u32 = 2000;
const BACKGROUND_MS: u32 = 1000;
const MS_MAX: u32 = 3_600_000;
/// As the kernel: more than `UINT_MAX` pages cannot be given.
const DIRTY_BYTES_MAX: u64 = u32::MAX as u64 * PAGE as u64;
/// The kernel's 30 s and 5 s.
const EXPIRE_CS: u32 = 3000;
const WRITEBACK_CS: u32 = 500;
/// 512 KiB. Chosen: four times the kernel's, whose 128 KiB are less than what a disk of today
/// reads in one of its latencies (3 GB/s in 100 µs are 300 KiB), so that a reader with one read in
/// flight is never waiting for the disk; a hard disk reads it in a third of a seek.
const READ_AHEAD_KB: u32 = 512;
const READ_AHEAD_KB_MAX: u32 = 65536;
const IOEND_BYTES: u32 = 1 << 20;
const IOEND_BYTES_MAX: u32 = 64 << 20;
const PAGE_KB: u32 = PAGE as u32 / 1024;

/// Options that a table line knows, in the order in which it shows them.
pub(crate) const OPTIONS: [&str; 10] = [
    "memory",
    "dirty_bytes",
    "dirty_background_bytes",
    "dirty_seconds",
    "dirty_background_seconds",
    "dirty_expire_centisecs",
    "dirty_writeback_centisecs",
    "read_ahead_kb",
    "map_blocks",
    "ioend_bytes",
];

/// One limit: bytes, or where that is 0, milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BytesOrTime {
    bytes: Cell<u64>,
    ms: Cell<u32>,
}

impl BytesOrTime {
    fn of_ms(ms: u32) -> BytesOrTime {
        BytesOrTime { bytes: Cell::new(0), ms: Cell::new(ms) }
    }

    fn bound(&self) -> Bound {
        match self.bytes.get() {
            0 => Bound::Millis(self.ms.get()),
            bytes => Bound::Bytes(bytes),
        }
    }

    /// Sets bytes; 0 goes back to so many milliseconds. PC-CF2.
    fn set_bytes(&self, bytes: u64, ms: u32) {
        self.bytes.set(bytes);
        let by_time = if self.ms.get() > 0 { self.ms.get() } else { ms };
        self.ms.set(if bytes > 0 { 0 } else { by_time });
    }

    fn set_ms(&self, ms: u32) {
        self.ms.set(ms);
        self.bytes.set(0);
    }
}

/// The options of a cache. Those in a cell can be set while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Memory for pages and for what is known about them.
    pub memory_bytes: u64,
    pub(crate) dirty: BytesOrTime,
    pub(crate) background: BytesOrTime,
    /// Older dirty pages are written back by the periodic flusher.
    pub(crate) dirty_expire_centisecs: Cell<u32>,
    /// How often it looks; 0 never.
    pub(crate) dirty_writeback_centisecs: Cell<u32>,
    /// Whole pages; 0 for no read-ahead.
    pub(crate) read_ahead_kb: Cell<u32>,
    pub(crate) map_blocks: Cell<MapBlocks>,
    /// Largest ioend; whole pages.
    pub(crate) ioend_bytes: Cell<u32>,
    pub(crate) planted: Planted<Fault>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory_bytes: MEMORY_DEFAULT,
            dirty: BytesOrTime::of_ms(DIRTY_MS),
            background: BytesOrTime::of_ms(BACKGROUND_MS),
            dirty_expire_centisecs: Cell::new(EXPIRE_CS),
            dirty_writeback_centisecs: Cell::new(WRITEBACK_CS),
            read_ahead_kb: Cell::new(READ_AHEAD_KB),
            map_blocks: Cell::new(MapBlocks::default()),
            ioend_bytes: Cell::new(IOEND_BYTES),
            planted: Planted::NONE,
        }
    }
}

impl Config {
    /// Parses the arguments behind the device, of a table line.
    ///
    /// # Errors
    /// `EINVAL` names the word and what is allowed.
    pub fn parse(args: &[&str]) -> Result<Config, Error> {
        let mut config = Config::default();
        let Some((count_word, words)) = args.split_first() else { return Ok(config) };
        let announced = number("#opt_args", count_word, 0..=2 * OPTIONS.len() as u32)?;
        if announced as usize != words.len() {
            return Err(Error::invalid(format!(
                "#opt_args: {announced} words were announced and {} follow",
                words.len()
            )));
        }
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let Some(&option) = OPTIONS.iter().find(|name| name.eq_ignore_ascii_case(word)) else {
                let hint = block::name_hint(word, &OPTIONS);
                return Err(Error::invalid(format!("unknown option `{word}`: {hint}")));
            };
            let missing = || Error::invalid(format!("{option} has no value"));
            let value = words.next().ok_or_else(missing)?;
            match option {
                "memory" => {
                    let what = "8M to 1T, in whole pages of 4096 bytes,";
                    let range = MEMORY_MIN..=MEMORY_MAX;
                    config.memory_bytes = size(value)
                        .filter(|b| range.contains(b) && b.is_multiple_of(PAGE as u64))
                        .ok_or_else(|| refused(option, value, what))?;
                }
                _ => config.set(option, value)?,
            }
        }
        Ok(config)
    }

    /// Plants a fault, or none.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, fault: Option<Fault>) {
        self.planted = fault.into();
    }

    /// Sets what can be set while the device runs (PC-CF3).
    pub(crate) fn set(&self, option: &str, value: &str) -> Result<(), Error> {
        match option {
            "dirty_bytes" => {
                let bytes = limit_bytes(option, value, DIRTY_BYTES_MIN)?;
                self.dirty.set_bytes(bytes, DIRTY_MS);
            }
            "dirty_background_bytes" => {
                let bytes = limit_bytes(option, value, 1)?;
                self.background.set_bytes(bytes, BACKGROUND_MS);
            }
            "dirty_seconds" => self.dirty.set_ms(limit_ms(option, value)?),
            "dirty_background_seconds" => self.background.set_ms(limit_ms(option, value)?),
            "dirty_expire_centisecs" => {
                self.dirty_expire_centisecs.set(centisecs(option, value)?);
            }
            "dirty_writeback_centisecs" => {
                self.dirty_writeback_centisecs.set(centisecs(option, value)?);
            }
            "read_ahead_kb" => {
                let kb = number(option, value, 0..=READ_AHEAD_KB_MAX)?;
                self.read_ahead_kb.set(kb - kb % PAGE_KB); // As the kernel.
            }
            "map_blocks" => {
                let word = choice(option, value, &["multi", "single"])?;
                self.map_blocks.set(word.parse().expect("one of the two"));
            }
            "ioend_bytes" => {
                let page = PAGE as u64;
                let range = page..=u64::from(IOEND_BYTES_MAX);
                let what = "4096 to 67108864 (64M), in whole pages of 4096 bytes,";
                let bytes = size(value)
                    .filter(|b| range.contains(b) && b.is_multiple_of(page))
                    .ok_or_else(|| refused(option, value, what))?;
                self.ioend_bytes.set(u32::try_from(bytes).expect("at most 64 MiB"));
            }
            _ => return Err(Error::not_found(format!("buffered: no attribute `{option}`"))),
        }
        Ok(())
    }

    /// The value of an option, as it may be set.
    pub(crate) fn get(&self, option: &str) -> Option<String> {
        let text = match option {
            "memory" => self.memory_bytes.to_string(),
            "dirty_bytes" => self.dirty.bytes.get().to_string(),
            "dirty_background_bytes" => self.background.bytes.get().to_string(),
            "dirty_seconds" => seconds(&self.dirty),
            "dirty_background_seconds" => seconds(&self.background),
            "dirty_expire_centisecs" => self.dirty_expire_centisecs.get().to_string(),
            "dirty_writeback_centisecs" => self.dirty_writeback_centisecs.get().to_string(),
            "read_ahead_kb" => self.read_ahead_kb.get().to_string(),
            "map_blocks" => self.map_blocks.get().to_string(),
            "ioend_bytes" => self.ioend_bytes.get().to_string(),
            _ => return None,
        };
        Some(text)
    }

    /// The arguments of a table line (PC-CF1). `device` is spelt as it is to be read.
    pub fn table(&self, device: &str) -> String {
        let defaults = Config::default();
        let mut words = Vec::new();
        for option in OPTIONS {
            let value = self.get(option).expect("each option has a value");
            // The other option of the pair is shown.
            let is_omitted = value == "0" && option.starts_with("dirty_") && is_pair(option);
            if !is_omitted && defaults.get(option).as_ref() != Some(&value) {
                words.extend([option.to_owned(), value]);
            }
        }
        match words.len() {
            0 => device.to_owned(),
            n => format!("{device} {n} {}", words.join(" ")),
        }
    }

    /// The limits of dirty bytes: never more than half of the memory, so that there is always
    /// something clean to let go.
    pub(crate) fn dirty_limits(&self) -> DirtyLimits {
        DirtyLimits {
            dirty: self.dirty.bound(),
            background: self.background.bound(),
            max_bytes: self.memory_bytes / 2,
        }
    }

    /// Pages of the largest read-ahead window: what was set, and no more than a 16th of the memory.
    pub(crate) fn read_ahead_pages(&self) -> u32 {
        let most = self.memory_bytes / 16 / PAGE as u64;
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        (self.read_ahead_kb.get() / PAGE_KB).min(most)
    }
}

fn seconds(limit: &BytesOrTime) -> String {
    seconds_text(Nanos::from_millis(limit.ms.get().into()))
}

fn is_pair(option: &str) -> bool {
    option.ends_with("_bytes") || option.ends_with("_seconds")
}

fn limit_bytes(option: &str, value: &str, min: u64) -> Result<u64, Error> {
    let what = format!("0 (by seconds), or {min} to {DIRTY_BYTES_MAX} bytes");
    size(value)
        .filter(|b| *b == 0 || (min..=DIRTY_BYTES_MAX).contains(b))
        .ok_or_else(|| refused(option, value, &what))
}

fn centisecs(option: &str, value: &str) -> Result<u32, Error> {
    let count = time_in(option, value, TimeUnit::Centisecond, 0..=u32::MAX.into())?;
    Ok(u32::try_from(count).expect("within the range above"))
}

fn limit_ms(option: &str, value: &str) -> Result<u32, Error> {
    let ms = Nanos::from_millis(1).0;
    let whole = time(value, TimeUnit::Second.one()).filter(|time| time.0.is_multiple_of(ms));
    whole
        .and_then(|time| u32::try_from(time.0 / ms).ok())
        .filter(|ms| (1..=MS_MAX).contains(ms))
        .ok_or_else(|| refused(option, value, "0.001 to 3600 seconds"))
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
