// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table line: `URL [<#opt_args> [<option> [<value>]]...]`, or `URL@SNAPSHOT`.
//!
//! Invariants
//! - OV-TC1 [`TargetConfig::table`] names what differs from the defaults, and parses to the same.
use block::attr::{self, Attr, Kind, OptionForm, flag, option};
use block::value::{TimeUnit, Value};
use block::{Error, Nanos, Sector};
use format::objvol::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

use crate::config::{Geometry, OpenOptions, READ_AHEAD_DEFAULT};
use crate::owner::hex;
use crate::snapshot::check_snapshot_name;

const SIZE_MIN: u64 = SEGMENT_BYTES_MIN as u64;
const SIZE_MAX: u64 = SEGMENT_BYTES_MAX as u64;
/// The least map: 40,000 extents.
const MAP_MEMORY_MIN: u64 = 1 << 20;
const MAP_MEMORY_MAX: u64 = 1 << 40;
/// With more, requests reach their largest size anyway.
const READ_AHEAD_MAX: u64 = 1 << 30;
/// A day: a reader of an old checkpoint has long ended then.
const GRACE_S_MAX: u64 = 86_400;

type Opt = Attr<TargetConfig>;

block::attrs! {
    /// The options, in the order in which a table line shows them.
    pub(crate) static OPTIONS: [Opt];

    segment_size: option(Kind::Size { min: SIZE_MIN, max: SIZE_MAX, unit: 512, or: None }, "4M")
        .fixed(),
        "bytes of a full object, of a volume that this line makes; a volume keeps its own",
        field segment_bytes;
    gc_threshold: option(Kind::number(0..=90, "percent"), "75").fixed(),
        "live data of all that is stored, below which garbage is collected; 0: never",
        field gc_threshold;
    map_memory: option(Kind::size(MAP_MEMORY_MIN..=MAP_MEMORY_MAX), "256M").fixed(),
        "memory of the map at 24 bytes an extent; writes beyond it fail with ENOSPC",
        field map_memory;
    read_ahead: option(Kind::size(0..=READ_AHEAD_MAX), "16M").fixed(),
        "memory for data that are read ahead of sequential readers; 0: none are", field read_ahead;
    grace: option(Kind::time(TimeUnit::Second, 0..=GRACE_S_MAX), "60").fixed(),
        "how long garbage stays after the checkpoint that lists it, in seconds", field grace_s;
    single_writer: flag().fixed(),
        "take a store without conditional writes; no second daemon may ever open the volume",
        field single_writer;
    take_over: flag().fixed(), "open the volume although another host has it, or died with it",
        field take_over;
    without_cache: option(Kind::Text("the UUID of a write cache, or none"), "none").fixed(),
        "take changes although this write cache, which the volume knows, is lost",
        get |c| c.without_cache.map_or_else(|| "none".to_owned(), |uuid| hex(&uuid)),
        set |c, v: String| c.without_cache = parse_uuid(&v);
}

fn check_uuid(word: &str) -> Result<(), Error> {
    if parse_uuid(word).is_some() {
        return Ok(());
    }
    let text = format!(
        "without_cache: `{word}`: the UUID of a write cache, 32 hexadecimal digits, or none"
    );
    Err(Error::invalid(text))
}

/// The UUID of 32 hexadecimal digits.
fn parse_uuid(word: &str) -> Option<[u8; 16]> {
    let is_hex = word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let number = is_hex.then(|| u128::from_str_radix(word, 16).ok()).flatten()?;
    Some(number.to_be_bytes())
}

/// What a table line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    pub(crate) url: String,
    pub(crate) snapshot: Option<String>,
    pub(crate) segment_bytes: u32,
    pub(crate) gc_threshold: u32,
    pub(crate) map_memory: u64,
    pub(crate) read_ahead: u64,
    pub(crate) grace_s: u64,
    pub(crate) single_writer: bool,
    pub(crate) take_over: bool,
    pub(crate) without_cache: Option<[u8; 16]>,
}

/// The URL of a volume and the name of a snapshot, of a word like `URL@NAME` or `URL`. No URL of a
/// store has an `@`.
pub fn split_snapshot(word: &str) -> (&str, Option<&str>) {
    word.split_once('@').map_or((word, None), |(url, name)| (url, Some(name)))
}

impl TargetConfig {
    /// Reads the arguments of a table line.
    ///
    /// # Errors
    /// `Invalid` names what is wrong, and what is allowed.
    pub fn parse(args: &[&str]) -> Result<TargetConfig, Error> {
        let Some((url, rest)) = args.split_first() else {
            return Err(Error::invalid("must be URL [#opt_args [OPTION [VALUE]]...]"));
        };
        let (url, snapshot) = split_snapshot(url);
        snapshot.map_or(Ok(()), check_snapshot_name)?;
        let mut config = TargetConfig {
            url: url.to_owned(),
            snapshot: snapshot.map(str::to_owned),
            segment_bytes: 4 << 20,
            gc_threshold: 75,
            map_memory: 256 << 20,
            read_ahead: READ_AHEAD_DEFAULT,
            grace_s: 60,
            single_writer: false,
            take_over: false,
            without_cache: None,
        };
        let Some((count, words)) = rest.split_first() else { return Ok(config) };
        attr::check_count(count, words, 2 * OPTIONS.len())?;
        if let (Some(name), Some(word)) = (&config.snapshot, words.first()) {
            let text = format!("`{word}`: the table of a snapshot, here {name}, takes no options");
            return Err(Error::invalid(text));
        }
        attr::options(&OPTIONS, &[], words, |option, word| {
            let value = match option.spec.form {
                OptionForm::Name => Value::Flag(true),
                OptionForm::Value | OptionForm::Never => {
                    option.spec.parse(word.unwrap_or_default())?
                }
            };
            if option.spec.name == "without_cache" && value != "none" {
                check_uuid(&value.to_string())?;
            }
            option.set.expect("each option can be set")(&mut config, &value);
            Ok(())
        })?;
        Ok(config)
    }

    /// The store's URL, as the table line has it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The snapshot that the table line names.
    pub fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_deref()
    }

    /// The arguments of a table line (OV-TC1).
    pub fn table(&self) -> String {
        if let Some(name) = &self.snapshot {
            return format!("{}@{name}", self.url);
        }
        let defaults = TargetConfig::parse(&[&self.url]).expect("a URL alone is allowed");
        attr::arguments(&self.url, &OPTIONS, self, &defaults)
    }

    /// What a volume is made with.
    pub(crate) fn geometry(&self, sectors: Sector) -> Geometry {
        Geometry { segment_bytes: self.segment_bytes, ..Geometry::new(sectors) }
    }

    /// What it is opened with.
    pub(crate) fn open_options(&self, host: &str, now: u64, sectors: Sector) -> OpenOptions {
        OpenOptions {
            sectors: Some(sectors),
            take_over: self.take_over,
            without_cache: self.without_cache,
            single_writer: self.single_writer,
            gc_threshold: self.gc_threshold,
            map_memory: self.map_memory,
            read_ahead: self.read_ahead,
            grace: Nanos::from_secs(self.grace_s),
            ..OpenOptions::new(host, now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<TargetConfig, Error> {
        TargetConfig::parse(&line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
    }

    #[test]
    fn a_table_names_what_is_no_default() {
        let uuid = "0123456789abcdef0123456789abcdef";
        let given_up = format!("s3://b/p 2 without_cache {uuid}");
        for line in [
            "s3://b/p",
            &given_up,
            "s3://b/p 2 segment_size 8388608",
            "file:///d 9 gc_threshold 60 map_memory 1048576 grace 0 single_writer take_over x",
        ] {
            let line = line.strip_suffix(" x").map_or(line.to_owned(), |l| l.replace(" 9 ", " 8 "));
            let config = parsed(&line).unwrap();
            assert_eq!(config.table(), line);
            assert_eq!(parsed(&config.table()).unwrap(), config);
        }
        let snapshot = parsed("s3://b/p@Monday 0").unwrap();
        assert_eq!((snapshot.url(), snapshot.snapshot()), ("s3://b/p", Some("Monday")));
        assert_eq!(snapshot.table(), "s3://b/p@Monday");
        let defaults =
            "s3://b/p 10 segment_size 4M gc_threshold 75 map_memory 256M read_ahead 16M grace 1m";
        assert_eq!(parsed(defaults).unwrap().table(), "s3://b/p");
    }

    #[test]
    fn defaults_are_those_that_help_shows() {
        let config = parsed("s3://b/p").unwrap();
        for Attr { spec, get, .. } in &OPTIONS {
            assert_eq!(spec.parse(spec.default).unwrap(), get.unwrap()(&config), "{}", spec.name);
        }
    }

    #[test]
    fn wrong_lines_are_refused_with_what_is_allowed() {
        for (line, why) in [
            ("", "must be URL"),
            ("s3://b/p 2 segment_size 3M5", "segment_size: `3M5`: 4K to 16M bytes"),
            ("s3://b/p 2 segment_size 1K", "segment_size: `1K`: 4K to 16M bytes"),
            ("s3://b/p 2 gc_threshold 91", "gc_threshold: `91`: a number from 0 to 90 percent"),
            ("s3://b/p 2 grace 2d", "grace: `2d`: 0 to 86400 s"),
            ("s3://b/p 1 take", "take"),
            ("s3://b/p 2 without_cache 12", "without_cache: `12`: the UUID of a write cache, 32"),
            ("s3://b/p@", "``: the name of a snapshot has 1 to 56 letters"),
            ("s3://b/p@a@b", "`a@b`: the name of a snapshot"),
            ("s3://b/p@a 1 take_over", "`take_over`: the table of a snapshot, here a, takes no"),
        ] {
            let e = parsed(line).unwrap_err().to_string();
            assert!(e.contains(why), "{line}: {e}");
        }
    }
}
