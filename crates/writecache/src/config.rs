// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table line: `<p|s> <origin> <cache> <block_size> <#opt_args> [<option> <value>]...`, with
//! the kernel's names, ranges and error texts.
use std::str::FromStr;

use block::{Error, ErrorKind, Nanos, Sector};

/// Default limit of blocks under writeback at once, in bytes: enough to keep any drive's queue
/// full, little enough to be no burden in memory. The kernel's 65536 blocks would be 256 MiB.
const WRITEBACK_BYTES_DEFAULT: u32 = 32 << 20;
/// Largest number that `#opt_args` may give: each option of this version with its value, twice.
const OPT_ARGS_MAX: usize = 36;

/// In which order dirty blocks are written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Ascending origin order with a cursor that sweeps on.
    #[default]
    Sorted,
    /// Oldest first, each extended to the right while the next block is dirty too: what
    /// dm-writecache did before its flush was sorted. For measurement.
    Lru,
}

/// Faults planted on purpose, so that tests can prove that they would be seen. Never set by a
/// table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    None,
    /// A commit skips the flush of the cache device.
    SkipCacheFlush,
    /// The superblock names a checkpoint before its units are on the media.
    SuperblockBeforeData,
    /// A FUA write completes without a commit.
    IgnoreFua,
    /// Recovery takes records without checking the checksums of their data.
    DropChecksumCheck,
    /// A block counts as written back before the origin's flush.
    FreeBeforeOriginDurable,
    /// A superseded slot is free before the record that supersedes it is durable.
    ReuseBeforeCommit,
    /// A block is written back although the log may still call an older version clean.
    WritebackBeforeCommit,
    /// A record says what data writes in flight will have written.
    RecordBeforeData,
}

/// A parsed table line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The origin, as the table names it.
    pub origin: String,
    /// The cache device, as the table names it.
    pub cache: String,
    /// Bytes in a block.
    pub block_size: u32,
    /// Where the cache area begins on the cache device.
    pub start_sector: Sector,
    /// Percent of blocks in use at which writeback starts.
    pub high_watermark: u8,
    /// Percent of blocks in use at which it stops.
    pub low_watermark: u8,
    /// Blocks under writeback at once.
    pub writeback_jobs: u32,
    /// Commit after this many uncommitted blocks.
    pub autocommit_blocks: u32,
    /// Commit this long after the first uncommitted write.
    pub autocommit_time: Nanos,
    /// Order of writeback.
    pub writeback_order: Order,
    /// Largest origin write, bytes.
    pub writeback_io_bytes: u32,
    /// A planted fault, for tests of the tests.
    #[doc(hidden)]
    pub mutation: Mutation,
    /// The options that the line gave, in the order in which a table line shows them.
    given: Vec<(&'static str, String)>,
}

/// Option names in the kernel's order, then ours.
const OPTIONS: [&str; 8] = [
    "start_sector",
    "high_watermark",
    "low_watermark",
    "writeback_jobs",
    "autocommit_blocks",
    "autocommit_time",
    "writeback_order",
    "writeback_io_bytes",
];

fn number<T: FromStr>(option: &str, word: &str, allowed: &str) -> Result<T, Error> {
    word.parse().map_err(|_| {
        Error::invalid(format!(
            "Invalid optional argument: {option} `{word}`: {allowed} is allowed"
        ))
    })
}

fn ranged(option: &str, word: &str, max: u64, unit: &str) -> Result<u64, Error> {
    let allowed = format!("0 to {max}{unit}");
    let value: u64 = number(option, word, &allowed)?;
    if value > max {
        return Err(Error::invalid(format!(
            "Invalid optional argument: {option} {value}: {allowed} is allowed"
        )));
    }
    Ok(value)
}

fn ranged_u32(option: &str, word: &str, max: u32, unit: &str) -> Result<u32, Error> {
    let value = ranged(option, word, u64::from(max), unit)?;
    Ok(u32::try_from(value).expect("at most max"))
}

fn percent(option: &str, word: &str) -> Result<u8, Error> {
    let value = ranged(option, word, 100, " percent")?;
    Ok(u8::try_from(value).expect("at most 100"))
}

impl Config {
    /// Defaults for an origin and a cache device.
    pub fn new(origin: impl Into<String>, cache: impl Into<String>, block_size: u32) -> Config {
        Config {
            origin: origin.into(),
            cache: cache.into(),
            block_size,
            start_sector: Sector::ZERO,
            high_watermark: 50,
            low_watermark: 45,
            writeback_jobs: WRITEBACK_BYTES_DEFAULT / block_size.max(512),
            autocommit_blocks: 65536,
            autocommit_time: Nanos::from_millis(1000),
            writeback_order: Order::Sorted,
            writeback_io_bytes: 1 << 20,
            mutation: Mutation::None,
            given: Vec::new(),
        }
    }

    /// Parses the arguments after the target's name.
    ///
    /// # Errors
    /// `EINVAL` with the kernel's text, the argument, and what is allowed; `EOPNOTSUPP` for
    /// persistent-memory mode, which this version does not have.
    pub fn parse(args: &[&str]) -> Result<Config, Error> {
        let usage = "writecache takes <p|s> <origin> <cache> <block_size> <#opt_args> [options]";
        let missing = || Error::invalid(format!("Bad arguments: {usage}"));
        let mut args = args.iter().copied();
        let mode = args.next().ok_or_else(missing)?;
        if mode.eq_ignore_ascii_case("p") {
            return Err(Error::new(
                ErrorKind::NotSupported,
                "Persistent memory or DAX not supported on this system: use mode `s`",
            ));
        }
        if !mode.eq_ignore_ascii_case("s") {
            return Err(Error::invalid(format!("Bad arguments: mode `{mode}`: `s` is allowed")));
        }
        let origin = args.next().ok_or_else(missing)?;
        let cache = args.next().ok_or_else(missing)?;
        let size_word = args.next().ok_or_else(missing)?;
        let block_size: u32 = size_word.parse().unwrap_or(0);
        let range = format::BLOCK_SIZE_MIN..=format::BLOCK_SIZE_MAX;
        if !block_size.is_power_of_two() || !range.contains(&block_size) {
            return Err(Error::invalid(format!(
                "Invalid block size `{size_word}`: a power of two from 512 to 4096 is allowed"
            )));
        }
        let count_word = args.next().ok_or_else(missing)?;
        let words: Vec<&str> = args.collect();
        let count: Option<usize> = count_word.parse().ok();
        let Some(count) = count.filter(|&c| c <= OPT_ARGS_MAX && c <= words.len()) else {
            return Err(Error::invalid(format!(
                "Invalid number of feature args `{count_word}`: {} follow, at most {OPT_ARGS_MAX} \
                 are allowed",
                words.len()
            )));
        };
        if count < words.len() {
            return Err(Error::invalid(format!(
                "Bad arguments: `{}` follows the {count} option words that were announced",
                words[count]
            )));
        }
        let mut config = Config::new(origin, cache, block_size);
        config.options(&words)?;
        Ok(config)
    }

    fn options(&mut self, words: &[&str]) -> Result<(), Error> {
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let known = OPTIONS.iter().find(|o| o.eq_ignore_ascii_case(word));
            let Some(&option) = known else {
                return Err(Error::invalid(format!(
                    "Invalid optional argument `{word}`: {} are allowed",
                    OPTIONS.join(", ")
                )));
            };
            let Some(value) = words.next() else {
                return Err(Error::invalid(format!(
                    "Invalid optional argument: {option} has no value"
                )));
            };
            self.option(option, value)?;
            self.given.retain(|(name, _)| *name != option); // the last one wins
            self.given.push((option, value.to_ascii_lowercase()));
        }
        if self.low_watermark > self.high_watermark {
            return Err(Error::invalid(format!(
                "High watermark must be greater than or equal to low watermark: {} < {}",
                self.high_watermark, self.low_watermark
            )));
        }
        self.given.sort_by_key(|(name, _)| OPTIONS.iter().position(|o| o == name));
        Ok(())
    }

    fn option(&mut self, option: &str, value: &str) -> Result<(), Error> {
        match option {
            "start_sector" => {
                let max = u64::MAX >> block::SECTOR_SHIFT;
                self.start_sector = Sector(ranged(option, value, max, " sectors")?);
            }
            "high_watermark" => self.high_watermark = percent(option, value)?,
            "low_watermark" => self.low_watermark = percent(option, value)?,
            "writeback_jobs" => {
                let jobs = ranged_u32(option, value, u32::MAX, " blocks")?;
                self.writeback_jobs = if jobs == 0 { u32::MAX } else { jobs };
            }
            "autocommit_blocks" => {
                self.autocommit_blocks = ranged_u32(option, value, u32::MAX, " blocks")?;
            }
            "autocommit_time" => {
                self.autocommit_time = Nanos::from_millis(ranged(option, value, 3_600_000, " ms")?);
            }
            "writeback_order" => {
                self.writeback_order = match value.to_ascii_lowercase().as_str() {
                    "sorted" => Order::Sorted,
                    "lru" => Order::Lru,
                    _ => {
                        return Err(Error::invalid(format!(
                            "Invalid optional argument: writeback_order `{value}`: sorted or lru \
                             is allowed"
                        )));
                    }
                };
            }
            "writeback_io_bytes" => {
                let bytes = ranged_u32(option, value, 16 << 20, " bytes")?;
                if bytes < self.block_size || !bytes.is_multiple_of(self.block_size) {
                    return Err(Error::invalid(format!(
                        "Invalid optional argument: writeback_io_bytes {bytes}: a multiple of the \
                         block size {} up to 16777216 is allowed",
                        self.block_size
                    )));
                }
                self.writeback_io_bytes = bytes;
            }
            _ => unreachable!("only called with a name of OPTIONS"),
        }
        Ok(())
    }

    /// The arguments as a table line shows them: only the options that were given.
    pub fn table(&self) -> String {
        let mut line = format!("s {} {} {}", self.origin, self.cache, self.block_size);
        line.push_str(&format!(" {}", self.given.len() * 2));
        for (name, value) in &self.given {
            line.push_str(&format!(" {name} {value}"));
        }
        line
    }

    pub(crate) fn block_sectors(&self) -> u64 {
        u64::from(self.block_size) >> block::SECTOR_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Config, Error> {
        Config::parse(&line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn the_line_comes_back_with_options_in_the_kernels_order() {
        let line = "s /dev/o /dev/c 4096 6 low_watermark 40 HIGH_WATERMARK 60 start_sector 1024";
        let config = parse(line).unwrap();
        assert_eq!(config.high_watermark, 60);
        assert_eq!(
            config.table(),
            "s /dev/o /dev/c 4096 6 start_sector 1024 high_watermark 60 low_watermark 40"
        );
    }

    #[test]
    fn of_a_repeated_option_the_last_wins() {
        let config = parse("s o c 512 4 autocommit_time 5 autocommit_time 7").unwrap();
        assert_eq!(config.autocommit_time, Nanos::from_millis(7));
        assert_eq!(config.table(), "s o c 512 2 autocommit_time 7");
    }

    #[test]
    fn zero_jobs_mean_unlimited_and_zero_autocommit_blocks_is_taken() {
        let config = parse("s o c 4096 4 writeback_jobs 0 autocommit_blocks 0").unwrap();
        assert_eq!((config.writeback_jobs, config.autocommit_blocks), (u32::MAX, 0));
    }

    #[test]
    fn bad_lines_get_the_kernels_text_and_name_the_argument() {
        for (line, text) in [
            ("", "Bad arguments"),
            ("s", "Bad arguments"),
            ("x o c 4096 0", "Bad arguments: mode `x`"),
            ("s o c 4095 0", "Invalid block size `4095`"),
            ("s o c 8192 0", "Invalid block size `8192`"),
            ("s o c 256 0", "Invalid block size `256`"),
            ("s o c 4k 0", "Invalid block size `4k`"),
            ("s o c 4096", "Bad arguments"),
            ("s o c 4096 99", "Invalid number of feature args `99`"),
            ("s o c 4096 2 high_watermark", "Invalid number of feature args `2`"),
            ("s o c 4096 2 high_watermark 101", "high_watermark 101: 0 to 100 percent"),
            ("s o c 4096 2 high_watermark x", "high_watermark `x`"),
            ("s o c 4096 1 bogus", "Invalid optional argument `bogus`"),
            ("s o c 4096 1 high_watermark", "high_watermark has no value"),
            ("s o c 4096 2 autocommit_time 3600001", "autocommit_time 3600001"),
            ("s o c 4096 0 extra", "`extra` follows"),
            ("s o c 4096 2 writeback_order random", "sorted or lru"),
            ("s o c 4096 2 writeback_io_bytes 5000", "multiple of the block size"),
            (
                "s o c 4096 4 high_watermark 10 low_watermark 20",
                "High watermark must be greater than or equal to low watermark",
            ),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.to_string().contains(text), "`{line}`: {error}");
        }
    }

    #[test]
    fn pmem_mode_is_refused_with_the_way_out() {
        let error = parse("p o c 4096 0").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported);
    }
}
