// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table line: `DEVICE [<#opt_args> [<option> <value>]...]`; and what can be set while the
//! device runs, by the same names.
//!
//! Invariants
//! - PC-CF1 [`Config::table`] names what differs from the defaults, and parses to the same config.
//! - PC-CF2 Of the two options of one limit, bytes and seconds, the one that was not set last is 0.
//! - PC-CF3 A value that is refused changes nothing.
use std::cell::Cell;

use block::attr::{self, Attr, FromValue, Kind, SetShared, option};
use block::value::{TimeUnit, Value, seconds_text};
use block::{Error, Nanos, PAGE, Planted};
use policy::{Bound, DIRTY_BYTES_MIN, DirtyLimits};

use crate::planted::Fault;

/// Default memory of a cache: 256 MiB. Chosen.
const MEMORY_DEFAULT: u64 = 256 << 20;
/// The least memory, with which a folio of 2 MiB and reads beside it still fit, and the most.
const MEMORY_MIN: u64 = 8 << 20;
const MEMORY_MAX: u64 = 1 << 40;
/// Two seconds and one of the device's own bandwidth.
const DIRTY_MS: u32 = 2000;
const BACKGROUND_MS: u32 = 1000;
const MS_MAX: u64 = 3_600_000;
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

/// An option of a cache; it can be set while the cache runs unless it has no setter.
type Opt = Attr<Config, SetShared<Config>>;

const MEMORY: Kind = Kind::Size { min: MEMORY_MIN, max: MEMORY_MAX, unit: PAGE as u64, or: None };
const IOEND_BYTES_ALLOWED: Kind =
    Kind::Size { min: PAGE as u64, max: IOEND_BYTES_MAX as u64, unit: PAGE as u64, or: None };
const SECONDS: Kind = Kind::Seconds { min_ms: 1, max_ms: MS_MAX };
const CENTISECONDS: Kind = Kind::time(TimeUnit::Centisecond, 0..=u32::MAX as u64);

const fn dirty_bytes(min: u64) -> Kind {
    Kind::Size { min, max: DIRTY_BYTES_MAX, unit: 1, or: Some(0) }
}

block::attrs! {
    /// Options that a table line knows, in the order in which it shows them.
    pub(crate) static OPTIONS: [Opt];

    memory: option(MEMORY, "256M").fixed(), "memory for pages and for what is known about them",
        get |c| c.memory_bytes;
    dirty_bytes: option(dirty_bytes(DIRTY_BYTES_MIN), "0"),
        "dirty bytes at which writers wait; 0: by dirty_seconds",
        get |c| c.dirty.bytes.get(), set |c, v| c.dirty.set_bytes(v, DIRTY_MS);
    dirty_background_bytes: option(dirty_bytes(1), "0"),
        "dirty bytes at which writeback starts; 0: by dirty_background_seconds",
        get |c| c.background.bytes.get(), set |c, v| c.background.set_bytes(v, BACKGROUND_MS);
    dirty_seconds: option(SECONDS, "2"), "the same as a time of the device's bandwidth",
        get |c| c.dirty.seconds(), set |c, v| c.dirty.set_ms(v);
    dirty_background_seconds: option(SECONDS, "1"), "the same as a time of its bandwidth",
        get |c| c.background.seconds(), set |c, v| c.background.set_ms(v);
    dirty_expire_centisecs: option(CENTISECONDS, "3000"), "older dirty pages are written back",
        get |c| c.dirty_expire_centisecs.get(), set |c, v| c.dirty_expire_centisecs.set(v);
    dirty_writeback_centisecs: option(CENTISECONDS, "500"),
        "how often old pages are looked for; 0 for never",
        get |c| c.dirty_writeback_centisecs.get(), set |c, v| c.dirty_writeback_centisecs.set(v);
    // A part of a page does not count, as in the kernel.
    read_ahead_kb: option(Kind::number(0..=READ_AHEAD_KB_MAX as u64, ""), "512"),
        "largest read-ahead, in KiB; whole pages count",
        get |c| c.read_ahead_kb.get(), set |c, v: u32| c.read_ahead_kb.set(v - v % PAGE_KB);
    map_blocks: option(Kind::Choice(&["multi", "single"]), "multi"),
        "whether one question to the device below is for many blocks",
        get |c| if c.maps_each_page.get() { "single" } else { "multi" },
        set |c, v: String| c.maps_each_page.set(v == "single");
    ioend_bytes: option(IOEND_BYTES_ALLOWED, "1M"), "largest write of writeback",
        get |c| c.ioend_bytes.get(), set |c, v| c.ioend_bytes.set(v);
}

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

    fn seconds(&self) -> String {
        seconds_text(Nanos::from_millis(self.ms.get().into()))
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
    /// Whether the mapping is looked up for each page, instead of once for a run of dirty pages.
    pub(crate) maps_each_page: Cell<bool>,
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
            maps_each_page: Cell::new(false),
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
        attr::check_count(count_word, words, 2 * OPTIONS.len())?;
        attr::options(&OPTIONS, &[], words, |option, word| {
            let value = option.spec.parse(word.unwrap_or_default())?;
            match option.set {
                Some(set) => set(&config, &value),
                None => config.memory_bytes = u64::from_value(&value),
            }
            Ok(())
        })?;
        Ok(config)
    }

    /// Plants a fault, or none.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, fault: Option<Fault>) {
        self.planted = fault.into();
    }

    /// Sets what can be set while the device runs (PC-CF3).
    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let unknown = || attr::unknown("buffered", name, &attr::names(&attr::specs(&OPTIONS)));
        let option = attr::find(&OPTIONS, name).ok_or_else(unknown)?;
        let set = option.set.ok_or_else(|| attr::fixed(name))?;
        set(self, &option.spec.parse(value)?);
        Ok(())
    }

    /// The value of an option, as it may be set.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        attr::get(&OPTIONS, name, self)
    }

    /// The arguments of a table line (PC-CF1). `device` is spelt as it is to be read.
    pub fn table(&self, device: &str) -> String {
        attr::arguments(device, &OPTIONS, self, &Config::default())
    }

    /// The limits of dirty bytes: never more than half of the memory, so that there is always
    /// something clean to evict.
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

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
