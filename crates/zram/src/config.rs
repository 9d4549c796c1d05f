// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table line: `<algorithm> [<#opt_args> [<option> <value>]...]`; and the same options as an
//! unconfigured device gathers them from its attributes.
//!
//! Invariants
//! - ZR-CF1 [`Config::table`] names what differs from the defaults, and parses to the same config.
//! - ZR-CF2 A config that was parsed, or has been checked, is one that a device can be made of.
use block::attr::{self, GoneOption};
use block::value::{Value, number};
use block::{Error, Planted, Sector};
use format::Gone;
use policy::IdleRules;

use crate::algorithms::{Choice, Files};
use crate::attributes::{ATTRIBUTES, unknown};
use crate::codec::Algorithm;
use crate::codecs::Algorithms;
use crate::layout::PAGE_SECTORS;
use crate::planted::Fault;
use crate::shared::{BATCH_PAGES, INFLIGHT};

/// Largest device: 16 TiB, whose table of slots takes 64 GiB.
pub const SECTORS_MAX: Sector = Sector(1 << 35);
/// Pages of the largest batch: 1 MiB.
pub(crate) const BATCH_PAGES_MAX: u32 = 256;
/// Batches in flight at most.
pub(crate) const INFLIGHT_MAX: u32 = 64;
/// Parts at most.
pub const PARTS_MAX: u32 = 64;
/// Largest number that `#opt_args` may give: each option of this version, those of algorithms for
/// each priority, twice.
const OPT_ARGS_MAX: usize = 80;

/// What earlier versions took.
pub(crate) const GONE: [GoneOption; 1] =
    [GoneOption { name: Gone::PersistentZram.option(), way_out: Gone::PersistentZram.way_out() }];

/// What a device is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its size; zero while it is not known.
    pub len: Sector,
    /// The backing device, as the table names it.
    pub backing_dev: Option<String>,
    /// How many parts are wanted; otherwise as many as there are cores for it.
    pub parts: Option<u32>,
    pub(crate) choice: Choice,
    /// Bytes of memory, whole pages; 0 for no limit.
    pub(crate) mem_limit: u64,
    /// Whether several objects are packed into one block of the backing device.
    pub(crate) compressed_writeback: bool,
    pub(crate) writeback_batch_size: u32,
    pub(crate) writeback_inflight: u32,
    /// 4 KiB blocks.
    pub(crate) writeback_limit: u64,
    pub(crate) writeback_limit_enable: bool,
    pub(crate) auto: IdleRules,
    pub(crate) planted: Planted<Fault>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            len: Sector::ZERO,
            backing_dev: None,
            parts: None,
            choice: Choice::default(),
            mem_limit: 0,
            compressed_writeback: false,
            writeback_batch_size: BATCH_PAGES,
            writeback_inflight: INFLIGHT,
            writeback_limit: 0,
            writeback_limit_enable: false,
            auto: IdleRules::default(),
            planted: Planted::NONE,
        }
    }
}

impl Config {
    /// Plants a fault, or none.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, fault: Option<Fault>) {
        self.planted = fault.into();
    }

    /// Parses the arguments after the target's name, of a table line of `len`. `files` reads
    /// dictionaries; whether there is such a backing device is not asked.
    ///
    /// # Errors
    /// `EINVAL` names the word and what is allowed; or an error of reading a dictionary.
    pub fn parse(args: &[&str], len: Sector, files: &dyn Files) -> Result<Config, Error> {
        let (algorithm, rest) = args.split_first().ok_or_else(|| {
            Error::invalid("zram takes <algorithm> [<#opt_args> [<option> <value>]...]")
        })?;
        let mut config = Config { len, ..Config::default() };
        config.choice.set_primary(algorithm)?;
        if let Some((count_word, words)) = rest.split_first() {
            attr::check_count(count_word, words, OPT_ARGS_MAX)?;
            config.options(words, files)?;
        }
        config.check()?;
        Ok(config)
    }

    fn options(&mut self, words: &[&str], files: &dyn Files) -> Result<(), Error> {
        let mut params = Vec::new();
        let mut limit = None;
        attr::options(&ATTRIBUTES, &GONE, words, |option, value| {
            let name = option.spec.name;
            let value = value.expect("every option of zram has one");
            match name {
                // After all algorithms are known.
                "algorithm_params" => params.push(value),
                "recomp_algorithm" => self.choice.set_secondary(value.split(','))?,
                _ => self.set(name, value)?,
            }
            match name {
                "writeback_limit" => limit = limit.or(Some(true)),
                "writeback_limit_enable" => limit = Some(self.writeback_limit_enable),
                _ => {}
            }
            Ok(())
        })?;
        for value in params {
            self.choice.set_params(value.split(','), files)?;
        }
        self.writeback_limit_enable = limit.unwrap_or(false);
        Ok(())
    }

    /// Sets one option of a single value, by the name that table and attributes share.
    pub(crate) fn set(&mut self, option: &str, value: &str) -> Result<(), Error> {
        let known = attr::find(&ATTRIBUTES, option).ok_or_else(|| unknown(option))?;
        let set = known.set.ok_or_else(|| attr::read_only(option))?;
        let value = match (option, number(option, value, 0..=u64::MAX)) {
            // As in the kernel any number but 0 is on.
            ("writeback_limit_enable", Ok(n)) => Value::Flag(n != 0),
            (_, _) => known.spec.kind.parse(option, value)?,
        };
        set(self, &value);
        Ok(())
    }

    /// Whether a device can be made of it (ZR-CF2).
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.len == Sector::ZERO || !self.len.is_aligned(Sector(PAGE_SECTORS)) {
            return Err(Error::invalid(format!(
                "length {}: a multiple of {PAGE_SECTORS} sectors (a page of 4096 bytes) is \
                 allowed",
                self.len
            )));
        }
        if self.len > SECTORS_MAX {
            return Err(Error::invalid(format!(
                "length {}: up to {SECTORS_MAX} sectors (16 TiB) are allowed",
                self.len
            )));
        }
        if self.backing_dev.is_none() {
            let wants = [
                ("auto_writeback_idle", self.auto.idle_secs.is_some()),
                ("auto_writeback_watermark", self.auto.watermark_bytes.is_some()),
            ];
            if let Some((option, _)) = wants.iter().find(|(_, wanted)| *wanted) {
                return Err(Error::invalid(format!("{option} needs a backing_dev")));
            }
        }
        self.choice.check()
    }

    /// The arguments of a table line as words: the options that differ from the defaults (ZR-CF1).
    pub(crate) fn words(&self) -> Vec<String> {
        let mut options = Vec::new();
        let mut give = |option: &str, value: String| options.extend([option.to_owned(), value]);
        if let Some(device) = &self.backing_dev {
            give("backing_dev", device.clone());
        }
        if self.mem_limit > 0 {
            give("mem_limit", self.mem_limit.to_string());
        }
        if self.compressed_writeback {
            give("compressed_writeback", "1".to_owned());
        }
        if self.writeback_batch_size != BATCH_PAGES {
            give("writeback_batch_size", self.writeback_batch_size.to_string());
        }
        if self.writeback_inflight != INFLIGHT {
            give("writeback_inflight", self.writeback_inflight.to_string());
        }
        if self.writeback_limit > 0 {
            give("writeback_limit", self.writeback_limit.to_string());
        }
        // A limit enables itself, and without one it is off.
        if self.writeback_limit_enable != (self.writeback_limit > 0) {
            give("writeback_limit_enable", u8::from(self.writeback_limit_enable).to_string());
        }
        if let Some(parts) = self.parts {
            give("shards", parts.to_string());
        }
        let defaults = Config::default();
        let auto = ATTRIBUTES.iter().filter(|attr| attr.spec.name.starts_with("auto_"));
        for (option, get) in auto.filter_map(|attr| Some((attr.spec.name, attr.get?))) {
            let value = get(self);
            if value != get(&defaults) {
                give(option, value.to_string());
            }
        }
        self.choice.options(&mut give);
        let mut words = vec![self.choice.primary().name().to_owned()];
        if !options.is_empty() {
            words.push(options.len().to_string());
        }
        words.extend(options);
        words
    }

    /// The arguments as a table line shows them (ZR-CF1).
    pub fn table(&self) -> String {
        let words: Vec<String> = self.words().iter().map(|w| block::quote(w)).collect();
        words.join(" ")
    }

    /// Pages of the device.
    pub(crate) fn slots(&self) -> u64 {
        self.len.0 / PAGE_SECTORS
    }

    /// Algorithms and parameters by priority.
    pub(crate) fn algorithms(&self) -> Algorithms {
        self.choice.algorithms()
    }

    /// The primary algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.choice.primary()
    }

    /// The limit of memory in pages, `u64::MAX` for none.
    pub(crate) fn mem_limit_pages(&self) -> u64 {
        limit_pages(self.mem_limit)
    }
}

/// A limit of memory in pages, `u64::MAX` for none; `bytes` is 0 then.
pub(crate) fn limit_pages(bytes: u64) -> u64 {
    if bytes == 0 { u64::MAX } else { bytes / block::PAGE as u64 }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
