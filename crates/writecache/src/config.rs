// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table line: `<p|s> <origin> <cache> <block_size> <#opt_args> [<option> [<value>]]...`, with
//! the kernel's names, ranges and error texts.
//!
//! Invariant
//! - WC-C1 `tuning` is what a live device may change; all else in [`Config`] stays as in the table
//!   line.
use block::attr::OptionForm;
use block::{Error, Nanos, Planted, Sector};
use format::BLOCK_LIMIT;

use crate::options::{OPTIONS, Options};
use crate::planted::Fault;

/// Default limit of blocks under writeback, in bytes. Chosen: it fills the queue of any drive and
/// takes little memory. The kernel's 65536 blocks would be 256 MiB.
const WRITEBACK_BYTES_DEFAULT: u32 = 32 << 20;
/// Zeroes up to this length are written to the cache; longer ranges would only displace data.
pub(crate) const ZEROES_CACHED_BYTES_MAX: u64 = 64 << 10;
/// With epochs zeroes up to this length are data: a longer range is an epoch of its own, which
/// costs a flush of the origin. Chosen: a disk writes about so much in the time of a flush.
pub(crate) const ZEROES_AS_DATA_MAX_BYTES: u64 = 1 << 20;
/// Default size of the write buffer. Chosen: 32 runs of the longest length.
const WRITE_BUFFER_DEFAULT: u32 = 32 << 20;
/// Default memory for reads in the order of slots. Chosen: with half of it at a time, 256 MiB that
/// were written at random lie close enough to be read in large requests.
const WRITEBACK_BUFFER_DEFAULT: u32 = 256 << 20;
/// Default length of a stream of reads that is not admitted to the read cache. Chosen: a disk that
/// spins reads it in the time of one way of its head.
const SEQUENTIAL_READ_CUTOFF_DEFAULT: u64 = 1 << 20;
/// Slots of the smallest cache that takes blocks at their first read. Chosen: 16 MiB of 4 KiB
/// blocks; a smaller one is full at once, and does better with what is read again.
const FIRST_READS_SLOTS_MIN: u32 = 4096;
/// Entries of a journal. A commit begins when half of them are used, so that is about what the
/// default of `autocommit_blocks` asks for; 6 MiB.
const JOURNAL_CAPACITY: u64 = 1 << 17;
/// Largest `#opt_args`: each option of this version with its value, twice.
const OPT_ARGS_MAX: usize = 4 * OPTIONS.len();

/// What the cache device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `p`: persistent memory, mapped.
    Pmem,
    /// `s`: an SSD or any other block device.
    Ssd,
}

/// The format on the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaFormat {
    /// Ours: checksums, a record log, one flush a commit.
    Native,
    /// The kernel's version 1.
    Dm,
}

/// When a write is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// When the cache has it; the origin gets it later.
    #[default]
    Writeback,
    /// When the origin has accepted it. The cache takes nothing, and is emptied.
    Writethrough,
}

/// In which order dirty blocks are written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Ascending by origin sector, from a cursor that wraps around.
    #[default]
    Sorted,
    /// The oldest block first, extended to the right while the next block is dirty too: what
    /// dm-writecache did before it sorted its writeback. For measurement.
    Lru,
}

/// What an error of writeback does to the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// The blocks are kept and written again later; all other requests are served.
    #[default]
    Retry,
    /// The cache fails: it keeps the first error, and serves only reads, until the table is loaded
    /// again.
    Kernel,
}

/// What may be changed while the device is in use (WC-C1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Percent of blocks in use at which writeback starts.
    pub high_watermark: u8,
    /// Percent of blocks in use at which it stops.
    pub low_watermark: u8,
    /// Blocks under writeback at once; 0: no limit.
    pub writeback_jobs: u32,
    /// Commit after this many uncommitted blocks.
    pub autocommit_blocks: u32,
    /// Commit this long after the first uncommitted write.
    pub autocommit_time: Nanos,
    /// No block stays dirty for longer.
    pub max_age: Option<Nanos>,
    /// The cache is being emptied: writes of blocks that it does not have go to the origin. In an
    /// open cache `Writethrough` sets it, too.
    pub cleaner: bool,
    /// When a write is complete.
    pub cache_mode: CacheMode,
    /// Each write of writeback carries FUA, instead of one origin flush for many.
    pub fua: bool,
    /// Only metadata (the flag META of a bio) takes new blocks of the cache.
    pub metadata_only: bool,
    /// No writeback for so long after a write that went straight to the origin.
    pub pause_writeback: Nanos,
    /// Order of writeback.
    pub writeback_order: Order,
    /// Largest origin write, bytes.
    pub writeback_io_bytes: u32,
    /// Memory in which dirty blocks are read in the order of their slots, bytes; 0: none.
    pub writeback_buffer: u32,
    /// What is done with gaps between dirty blocks.
    pub gaps: GapRules,
    /// What an error of writeback does.
    pub fail_mode: FailMode,
    /// Limits of writeback.
    pub limits: WritebackLimits,
    /// A client's writes in order go around the cache from so many bytes on; 0: never.
    pub sequential_write_cutoff: u64,
    /// Bytes a second of cached blocks that are read in idle time and checked; 0: none.
    pub scrub_rate: u64,
    /// Which blocks that clients read enter the cache.
    pub reads: ReadTuning,
}

/// Limits of writeback for the sake of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritebackLimits {
    /// Bytes a second that it may write to the origin; 0: no limit.
    pub rate_max: u64,
    /// It slows down so that the 99th percentile of the clients' requests stays below this.
    pub p99_target: Option<Nanos>,
}

/// Which blocks that clients read enter the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTuning {
    /// Those that are read again, or none.
    pub enter: bool,
    /// Not those of streams that are longer, bytes; 0: of any stream.
    pub sequential_cutoff: u64,
    /// At most so many bytes of them in any 24 hours; 0: no limit.
    pub bytes_per_day: u64,
    /// Slots of the smallest cache that takes blocks at their first read while it has ample room.
    pub(crate) first_slots_min: u32,
}

/// What writeback does with gaps between dirty blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapRules {
    /// Whether it fills them where that is faster (`gap_fill`).
    pub fill: bool,
    /// They take at most so many percent of the dirty bytes that it writes (`gap_write_percent`);
    /// `None`: no limit on an origin that rotates and for a `flush`, else none are filled.
    pub write_percent: Option<u32>,
}

/// Sizes that only tests set, so that little data takes ways that much data takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestSizes {
    /// Blocks of the write buffer, whatever the size of the cache.
    pub(crate) buffer_blocks: Option<u32>,
    /// Blocks that a commit looks at between two yields.
    pub(crate) batch_piece: Option<usize>,
}

/// A parsed table line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the cache device is.
    pub mode: Mode,
    /// The origin, as the table names it.
    pub origin: String,
    /// The cache device, as the table names it.
    pub cache: String,
    /// Bytes in a block.
    pub block_size: u32,
    /// Where the cache area begins on the cache device.
    pub start_sector: Sector,
    /// The format in the table line. Without one: that of the existing cache, or native for a new
    /// cache.
    pub format: Option<MediaFormat>,
    /// Writeback in the order of epochs: the origin alone is always in a state in which a disk may
    /// be after a power failure.
    pub ordered: bool,
    /// The cache adopts this origin, even if it had another one.
    pub adopt_origin: bool,
    /// The guard of the origin.
    pub guard: GuardPlan,
    /// What a live device may change.
    pub tuning: Tuning,
    /// A planted fault, for tests.
    pub(crate) planted: Planted<Fault>,
    /// The costs of origin writes to use, instead of measured ones.
    pub(crate) assumed_costs: Option<policy::destage::Costs>,
    /// With `ordered`: WRITE_ZEROES of at most so many bytes is data.
    pub(crate) zeroes_as_data_max_bytes: u64,
    /// Entries of the journal in memory.
    pub(crate) journal_capacity: u64,
    /// Bytes of the write buffer; 0: none.
    pub write_buffer: u32,
    /// Sizes that only tests set.
    pub(crate) test_sizes: TestSizes,
    /// The options that the table line has, to show it again.
    pub(crate) given: Options,
}

/// What a cache does about a guard of its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardPlan {
    /// What the table line asks for: whether the origin shows a signature in the place of its
    /// superblocks. Without it: as the existing cache has it.
    pub asked: Option<bool>,
    /// What a new cache does where the table line does not say; not where the origin is there to be
    /// used alone.
    pub is_default: bool,
    /// What the open cache does.
    pub(crate) is_on: bool,
    /// The guard is put on the origin later: another cache has the origin still.
    pub(crate) is_late: bool,
    /// A new cache does not ask whether another one guards its origin; only tests set it.
    pub(crate) is_origin_trusted: bool,
}

impl Config {
    /// A config with defaults, for an origin and a cache device.
    pub fn new(
        mode: Mode,
        origin: impl Into<String>,
        cache: impl Into<String>,
        block_size: u32,
    ) -> Config {
        Config {
            mode,
            origin: origin.into(),
            cache: cache.into(),
            block_size,
            start_sector: Sector::ZERO,
            format: None,
            ordered: false,
            adopt_origin: false,
            guard: GuardPlan::default(),
            tuning: Tuning {
                high_watermark: 50,
                low_watermark: 45,
                writeback_jobs: WRITEBACK_BYTES_DEFAULT / block_size.max(512),
                autocommit_blocks: match mode {
                    Mode::Pmem => 64,
                    Mode::Ssd => 65536,
                },
                autocommit_time: Nanos::from_millis(1000),
                max_age: None,
                cleaner: false,
                cache_mode: CacheMode::Writeback,
                fua: false,
                metadata_only: false,
                pause_writeback: match mode {
                    Mode::Pmem => Nanos(0),
                    Mode::Ssd => Nanos::from_millis(3000),
                },
                writeback_order: Order::Sorted,
                writeback_io_bytes: 1 << 20,
                writeback_buffer: WRITEBACK_BUFFER_DEFAULT,
                gaps: GapRules { fill: true, write_percent: None },
                fail_mode: FailMode::Retry,
                limits: WritebackLimits::default(),
                sequential_write_cutoff: 0,
                scrub_rate: 0,
                reads: ReadTuning {
                    enter: false,
                    sequential_cutoff: SEQUENTIAL_READ_CUTOFF_DEFAULT,
                    bytes_per_day: 0,
                    first_slots_min: FIRST_READS_SLOTS_MIN,
                },
            },
            planted: Planted::NONE,
            journal_capacity: JOURNAL_CAPACITY,
            write_buffer: WRITE_BUFFER_DEFAULT,
            test_sizes: TestSizes::default(),
            assumed_costs: None,
            zeroes_as_data_max_bytes: ZEROES_AS_DATA_MAX_BYTES,
            given: Options::default(),
        }
    }

    /// Parses the arguments after the target's name.
    ///
    /// # Errors
    /// `EINVAL` with the kernel's text, the argument, and what is allowed.
    pub fn parse(args: &[&str]) -> Result<Config, Error> {
        let usage = "writecache takes <p|s> <origin> <cache> <block_size> <#opt_args> [options]";
        let missing =
            |what| move || Error::invalid(format!("Bad arguments: {what} is missing: {usage}"));
        let mut args = args.iter().copied();
        let mode = args.next().ok_or_else(missing("<p|s>"))?;
        let mode = match mode.to_ascii_lowercase().as_str() {
            "p" => Mode::Pmem,
            "s" => Mode::Ssd,
            _ => {
                return Err(Error::invalid(format!(
                    "Bad arguments: mode `{mode}`: `p` or `s` is allowed"
                )));
            }
        };
        let origin = args.next().ok_or_else(missing("<origin>"))?;
        let cache = args.next().ok_or_else(missing("<cache>"))?;
        let size_word = args.next().ok_or_else(missing("<block_size>"))?;
        let block_size: u32 = size_word.parse().unwrap_or(0);
        let range = format::BLOCK_SIZE_MIN..=format::BLOCK_SIZE_SERVED_MAX;
        if !block_size.is_power_of_two() || !range.contains(&block_size) {
            return Err(Error::invalid(format!(
                "Invalid block size `{size_word}`: a power of two from 512 to 4096 is allowed"
            )));
        }
        let count_word = args.next().ok_or_else(missing("<#opt_args>"))?;
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
        let mut config = Config::new(mode, origin, cache, block_size);
        config.options(&words)?;
        Ok(config)
    }

    fn options(&mut self, words: &[&str]) -> Result<(), Error> {
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            if crate::options::is_without_effect(word) {
                words.next();
                continue;
            }
            let option = crate::options::find(word)?;
            let value = match option.spec.form {
                OptionForm::Value => Some(words.next().ok_or_else(|| {
                    let name = option.spec.name;
                    Error::invalid(format!("Invalid optional argument: {name} has no value"))
                })?),
                OptionForm::Name | OptionForm::Never => None,
            };
            self.set_from_table(option, value)?;
        }
        self.check()
    }

    /// A copy of the config with one option changed that a live device may change.
    ///
    /// # Errors
    /// `ENXIO` for an unknown option, `EACCES` for one that only a table can set, `EINVAL` for a
    /// value that is not allowed; the text says what is.
    pub fn with_option(&self, name: &str, value: &str) -> Result<Config, Error> {
        let option = crate::options::find_live(name)?;
        let mut new = self.clone();
        new.set_live(option, value)?;
        new.check()?;
        Ok(new)
    }

    fn check(&self) -> Result<(), Error> {
        let t = &self.tuning;
        let (io_bytes, size) = (t.writeback_io_bytes, self.block_size);
        if io_bytes < size || !io_bytes.is_multiple_of(size) {
            return Err(Error::invalid(format!(
                "Invalid optional argument: writeback_io_bytes: `{io_bytes}`: a multiple of the \
                 block size {size} up to 16777216 is allowed"
            )));
        }
        if t.low_watermark > t.high_watermark {
            return Err(Error::invalid(format!(
                "High watermark must be greater than or equal to low watermark: {} < {}",
                t.high_watermark, t.low_watermark
            )));
        }
        if self.ordered && t.metadata_only {
            return Err(Error::invalid(
                "Invalid optional argument: metadata_only and ordered exclude each other: writes \
                 that go around the cache can't be kept in order",
            ));
        }
        if self.ordered && t.sequential_write_cutoff > 0 {
            return Err(Error::invalid(
                "Invalid optional argument: sequential_write_cutoff and ordered exclude each \
                 other: writes that go around the cache can't be kept in order",
            ));
        }
        if self.ordered && t.cache_mode == CacheMode::Writethrough {
            return Err(Error::invalid(
                "Invalid optional argument: cache_mode: `writethrough`: with ordered only \
                 `writeback` is allowed: writes that go to the origin at once can't be kept in \
                 order",
            ));
        }
        if self.ordered && t.writeback_order == Order::Lru {
            return Err(Error::invalid(
                "Invalid optional argument: writeback_order lru and ordered exclude each other",
            ));
        }
        if self.ordered && self.format == Some(MediaFormat::Dm) {
            return Err(Error::invalid(
                "Invalid optional argument: ordered needs the native format, format dm can't hold \
                 epochs",
            ));
        }
        let has = |option| self.given.words().iter().any(|word| word == option);
        if has("guard_origin") && has("no_guard") {
            return Err(Error::invalid(
                "Invalid optional argument: guard_origin and no_guard exclude each other",
            ));
        }
        if self.guard.asked == Some(true) && self.format == Some(MediaFormat::Dm) {
            return Err(Error::invalid(
                "Invalid optional argument: guard_origin needs the native format, format dm has no \
                 room for its records",
            ));
        }
        let is_given = self.given.words().iter().any(|word| word == "write_buffer");
        if is_given && self.write_buffer > 0 && self.format == Some(MediaFormat::Dm) {
            return Err(Error::invalid(
                "Invalid optional argument: write_buffer needs the native format: with format dm \
                 the kernel would not know what is in memory",
            ));
        }
        Ok(())
    }

    /// Whether the origin is there to be used alone after the loss of the cache.
    pub(crate) fn lets_origin_alone(&self) -> bool {
        self.ordered || self.tuning.cache_mode == CacheMode::Writethrough
    }

    /// Length in bytes of the area of the cache.
    pub(crate) fn area_bytes(&self, device: &dyn block::BlockDevice) -> u64 {
        device.limits().capacity.saturating_sub(self.start_sector).bytes()
    }

    /// The arguments as a table line shows them: only the options that were given.
    pub fn table(&self) -> String {
        let mode = match self.mode {
            Mode::Pmem => "p",
            Mode::Ssd => "s",
        };
        let options = self.given.words();
        let mut line = format!("{mode} {} {} {}", self.origin, self.cache, self.block_size);
        line.push_str(&format!(" {}", options.len()));
        for word in options {
            line.push(' ');
            line.push_str(&word);
        }
        line
    }

    /// Checksum of a block's data.
    pub(crate) fn checksum(&self, data: &[u8]) -> u32 {
        if self.planted.is(Fault::TrustSectors) {
            let head = |sector: &[u8]| sector[..32].to_vec();
            let heads: Vec<u8> = data.chunks(block::SECTOR_SIZE).flat_map(head).collect();
            return format::checksum(&heads);
        }
        format::checksum(data)
    }

    /// Checks that so many sectors are whole blocks, and few enough for the formats.
    pub(crate) fn check_length(&self, sectors: Sector) -> Result<(), Error> {
        let unit = Sector(self.block_sectors());
        if !sectors.is_aligned(unit) {
            return Err(Error::invalid(format!(
                "length {sectors} is not a multiple of the block size, {unit} sectors"
            )));
        }
        let most = BLOCK_LIMIT * unit.0;
        if sectors.0 >= most {
            let size = self.block_size;
            return Err(Error::invalid(format!(
                "length {sectors}: with blocks of {size} bytes less than {most} sectors are allowed"
            )));
        }
        Ok(())
    }

    pub(crate) fn block_sectors(&self) -> u64 {
        u64::from(self.block_size) >> block::SECTOR_SHIFT
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
