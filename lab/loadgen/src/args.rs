// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options, named as fio's where it has one, and the [`Work`] of jobs that they give.
use clap::{ArgGroup, Parser, ValueEnum};
use host::{CORES_MAX, Listing, TableArgs, parse_time};

use block::{BlockDevice, ErrorKind, Nanos, Sector};
use control::{Failure, parse_size};

use crate::job::{Kind, Sampling, Work};

/// Requests in flight of one job: more than any device wants.
const DEPTH_MAX: u32 = 65_536;
const JOBS_MAX: u32 = 1_024;
/// How long a run takes by default.
const RUNTIME: Nanos = Nanos::from_secs(10);

/// Measure a device from within, as bdevperf does
///
/// Makes the device in this process, drives it, and prints results as fio does. Nothing is between
/// the generator and the device: no socket, no system call, no copy. No daemon is needed. With
/// --uri the device is an export of a server, ours or another, and the server is measured.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "loadgen",
    version,
    max_term_width = 100,
    group = ArgGroup::new("what").required(true).multiple(true)
        .args(["table", "table_file", "raw", "uri", "drive"]),
    after_help = "\
The device is the one of --table, on those of --device, which are made first, in their order; or a
leaf as it is (--raw), or the export of any NBD server (--uri), to each job by a connection of its
own. With several jobs each has its own --iodepth requests in flight, and a core
(a thread) of its own, where it goes by a copy of the mapping; a device that can't be copied, of an
engine say, is reached through the core that has it.

Latency is from submission to the moment the generator looks at the completion. Reading the clock
takes as long as a request to memory: where all leaves are in memory every 64th request is timed,
else each one; --latency says otherwise.

Random positions are drawn anew for each request, as with fio's norandommap.

Examples:
  loadgen --raw mem:1G --prefill --rw randread --bs 512 --iodepth 32
  loadgen --table '0 2097152 linear mem:1G 0' --rw randread --bs 512 --iodepth 32
  loadgen --device low='0 2097152 linear mem:1G 0' --table '0 2097152 linear low 0' \\
      --rw randrw --rwmixread 70 --bs 4K --runtime 5s -o json
  loadgen --device a='0 2097152 linear mem:1G 0' --drive mem:1G --drive a --turns 20 \\
      --runtime 100ms --prefill --rw randread --bs 512
  loadgen --uri 'nbd+unix:///pond?socket=run/nbd.sock' --rw randread --iodepth 64 --jobs 4
  loadgen --table-file wc.table --rw randwrite --bs 4K --size 64MiB --verify
  loadgen --table '0 2097152 zram lz4' --rw randwrite --buffer-compress-percentage 50

Exit codes: 0 done, 1 failed (a request failed, or what was read back was wrong), 2 usage, 3 not
found, 4 busy."
)]
pub(crate) struct LoadgenArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Drive this leaf itself: a path with a slash, nbd://HOST/EXPORT, mem:SIZE or null:SIZE
    #[arg(long, value_name = "WORD", conflicts_with_all = ["table", "table_file", "device"])]
    pub(crate) raw: Option<String>,
    /// Drive this export of an NBD server: nbd://HOST[:PORT]/EXPORT or
    /// nbd+unix:///EXPORT?socket=PATH
    #[arg(long, conflicts_with_all = ["table", "table_file", "device", "raw", "drive"])]
    pub(crate) uri: Option<String>,
    /// A device for tables that come after it to name; may be given several times
    #[arg(long, value_name = "NAME=TABLE", value_parser = named)]
    pub(crate) device: Vec<(String, String)>,
    /// Name of the device of --table
    #[arg(long, default_value = "pond")]
    pub(crate) name: String,
    /// Drive this device of --device, or leaf, instead of that of --table; given several times,
    /// they are driven in turns and compared with the first
    #[arg(long, value_name = "NAME", conflicts_with_all = ["table", "table_file", "raw"])]
    pub(crate) drive: Vec<String>,
    /// How many times each is driven
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) turns: u32,
    /// Set an attribute of a device before; may be given several times
    #[arg(long, value_name = "NAME:ATTR=VALUE", value_parser = setting)]
    pub(crate) set: Vec<Setting>,
    /// How bios pass mappings, in all devices
    #[arg(long, value_name = "HOW", default_value = "in-place")]
    pub(crate) mapping: Mapping,
    /// What to do
    #[arg(long, value_name = "KIND", default_value = "randread")]
    pub(crate) rw: Kind,
    /// Share of reads in rw and randrw, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) rwmixread: u32,
    /// Size of a request
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = block_size)]
    pub(crate) bs: Sector,
    /// Requests in flight, of each job
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub(crate) iodepth: u32,
    /// Jobs in parallel
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(JOBS_MAX)))]
    pub(crate) jobs: u32,
    /// End after this time, as 10s, 500ms or 2m [default: 10s, unless --number-ios is given]; of
    /// each turn
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) runtime: Option<Nanos>,
    /// End after so many requests of each job
    #[arg(long, visible_alias = "number_ios", value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) number_ios: Option<u64>,
    /// Stay within the first SIZE bytes [default: the whole device]
    #[arg(long, value_name = "SIZE", value_parser = region)]
    pub(crate) size: Option<Sector>,
    /// Write the region once before, so that no block is a hole
    #[arg(long)]
    pub(crate) prefill: bool,
    /// Write blocks that hold their own place and check the data of reads; at the end read back the
    /// blocks that were written. With several jobs each has its own part of the region
    #[arg(long)]
    pub(crate) verify: bool,
    /// Write random bytes of which so many percent, at the end of each 512, are zeroes, so that
    /// they can be compressed by about as much [default: zeroes are written, or what was read]
    #[arg(long, visible_alias = "buffer_compress_percentage", value_name = "PERCENT",
        conflicts_with = "verify", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) buffer_compress_percentage: Option<u32>,
    /// Seed of positions and contents
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Which requests are timed
    #[arg(long, value_name = "WHICH")]
    pub(crate) latency: Option<Latency>,
    /// Show the progress, a line a second, also where standard error is no terminal
    #[arg(long)]
    pub(crate) progress: bool,
    /// Cores for devices in several parts, besides those of jobs
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "no_uring",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(CORES_MAX)))]
    pub(crate) cores: u32,
    /// Do without io_uring; then only mem: and null: can be driven
    #[arg(long)]
    pub(crate) no_uring: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// An attribute of a device and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) device: String,
    pub(crate) attribute: String,
    pub(crate) value: String,
}

/// How bios pass mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mapping {
    /// Rewritten in place, through one flat mapping for the whole stack
    #[default]
    InPlace,
    /// Each layer allocates a request and copies the bio into it: the naive way
    Clone,
}

impl Mapping {
    /// The word of the attribute `mapping`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mapping::InPlace => "in-place",
            Mapping::Clone => "clone",
        }
    }
}

/// Which requests are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Latency {
    /// Every one
    On,
    /// Every 64th
    Sampled,
    /// None
    Off,
}

fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, table)) if !name.is_empty() => Ok((name.into(), table.into())),
        _ => Err("NAME=TABLE is what is allowed".into()),
    }
}

fn setting(text: &str) -> Result<Setting, String> {
    let wrong = || "NAME:ATTR=VALUE is what is allowed".to_owned();
    let (left, value) = text.split_once('=').ok_or_else(wrong)?;
    // The last colon: names may hold some.
    let (device, attribute) = left.rsplit_once(':').ok_or_else(wrong)?;
    let (device, attribute, value) = (device.into(), attribute.into(), value.into());
    Ok(Setting { device, attribute, value })
}

fn block_size(text: &str) -> Result<Sector, String> {
    let sectors = region(text)?;
    if sectors.bytes() <= 32 << 20 { Ok(sectors) } else { Err("at most 32M is allowed".into()) }
}

fn region(text: &str) -> Result<Sector, String> {
    let bytes = parse_size(text).map_err(|e| e.to_string())?;
    if bytes == 0 || !bytes.is_multiple_of(512) {
        return Err("a positive multiple of 512 bytes is allowed".into());
    }
    Ok(Sector::from_bytes(bytes))
}

impl LoadgenArgs {
    /// Checks that clap can't make.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.size.is_some_and(|size| size < self.bs) {
            let message = format!("--size is smaller than one request of --bs {}", self.bs.bytes());
            return Err(Failure::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// What all jobs together do to `device`.
    pub(crate) fn work(
        &self,
        device: &dyn BlockDevice,
        sampling: Sampling,
    ) -> Result<Work, Failure> {
        let limits = device.limits();
        let refuse = |message: String| {
            Err(Failure::new(ErrorKind::Invalid, format!("{}: {message}", device.name())))
        };
        let size = self.size.unwrap_or(limits.capacity);
        if size > limits.capacity {
            let (size, capacity) = (size.bytes(), limits.capacity.bytes());
            return refuse(format!("--size {size} is more than the device has, {capacity} bytes"));
        }
        let unit = u64::from(limits.logical_block_bytes);
        if !self.bs.bytes().is_multiple_of(unit) {
            return refuse(format!("--bs must be a multiple of its block of {unit} bytes"));
        }
        let blocks = size.0 / self.bs.0;
        let parts = if self.verify { u64::from(self.jobs) } else { 1 };
        if blocks < parts {
            let bs = self.bs.bytes();
            return refuse(format!("{parts} requests of --bs {bs} at least must fit"));
        }
        let runtime = match (self.runtime, self.number_ios) {
            (None, None) => Some(RUNTIME),
            (runtime, _) => runtime,
        };
        Ok(Work {
            kind: self.rw,
            mix_read_percent: self.rwmixread,
            first: Sector::ZERO,
            blocks,
            block: self.bs,
            depth: self.iodepth,
            number_ios: self.number_ios,
            runtime,
            seed: self.seed,
            pattern_seed: self.seed,
            sampling,
            verify: self.verify,
            zero_percent: self.buffer_compress_percentage,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &[&str]) -> Result<LoadgenArgs, clap::Error> {
        LoadgenArgs::try_parse_from(["loadgen"].iter().chain(words))
    }

    #[test]
    fn the_help_has_examples_and_each_of_them_is_understood() {
        let mut command = LoadgenArgs::command();
        command.clone().debug_assert();
        let help = command.render_long_help().to_string();
        let (_, examples) = help.split_once("Examples:\n").unwrap();
        let (examples, _) = examples.split_once("\n\n").unwrap();
        let examples = examples.replace("\\\n", " ");
        assert!(examples.lines().count() >= 5, "{help}");
        for example in examples.lines() {
            // As a shell reads it: words, with single quotes.
            let mut words = vec![String::new()];
            for (nth, part) in example.trim().split('\'').enumerate() {
                let mut pieces = part.split(if nth % 2 == 0 { &[' '][..] } else { &[] });
                words.last_mut().unwrap().push_str(pieces.next().unwrap());
                words.extend(pieces.map(str::to_owned));
            }
            words.retain(|word| !word.is_empty());
            LoadgenArgs::try_parse_from(&words).unwrap_or_else(|e| panic!("{example}: {e}"));
        }
    }

    #[test]
    fn sizes_and_times_are_read_as_people_write_them() {
        let args =
            parse(&["--raw", "mem:1M", "--bs", "64KiB", "--size", "8s", "--runtime", "1.5s"]);
        let args = args.unwrap();
        assert_eq!((args.bs, args.size), (Sector(128), Some(Sector(8))));
        assert_eq!(args.runtime, Some(Nanos(1_500_000_000)));
    }

    #[test]
    fn lower_devices_keep_their_order_and_equal_signs() {
        let words = ["--device", "b=0 8 linear a 0", "--device", "a=0 8 x k=v", "--table", "t"];
        let named = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let wanted = [named("b", "0 8 linear a 0"), named("a", "0 8 x k=v")];
        assert_eq!(parse(&words).unwrap().device, wanted);
    }

    #[test]
    fn a_wrong_command_line_is_refused_with_what_is_allowed() {
        for (words, part) in [
            (&[][..], "--table"),
            (&["--raw", "mem:1M", "--table", "t"], "cannot be used with"),
            (&["--raw", "mem:1M", "--device", "a=t"], "cannot be used with"),
            (&["--table", "t", "--device", "a"], "NAME=TABLE"),
            (&["--table", "t", "--set", "a=b"], "NAME:ATTR=VALUE"),
            (&["--table", "t", "--drive", "a"], "cannot be used with"),
            (&["--table", "t", "--uri", "nbd://h/x"], "cannot be used with"),
            (&["--raw", "mem:1M", "--bs", "1000"], "multiple of 512"),
            (&["--raw", "mem:1M", "--bs", "64M"], "at most 32M"),
            (&["--raw", "mem:1M", "--iodepth", "0"], "1..=65536"),
            (&["--raw", "mem:1M", "--rwmixread", "101"], "0..=100"),
            (&["--raw", "mem:1M", "--rw", "trim"], "randwrite"),
            (&["--raw", "mem:1M", "--buffer-compress-percentage", "101"], "0..=100"),
            (
                &["--raw", "mem:1M", "--verify", "--buffer_compress_percentage", "5"],
                "cannot be used with",
            ),
        ] {
            let said = parse(words).unwrap_err().to_string();
            assert!(said.contains(part), "{words:?}: {said}");
        }
    }

    #[test]
    fn what_does_not_fit_the_device_is_refused_with_numbers() {
        let dev = queue::Null::new("null:8K", Sector(16));
        let refused = |words: &[&str]| {
            let args = parse(&[&["--raw", "x"], words].concat()).unwrap();
            args.work(&dev, Sampling::All).unwrap_err().to_string()
        };
        assert!(refused(&["--size", "16K"]).contains("null:8K: --size 16384 is more"));
        assert!(refused(&["--bs", "16K"]).contains("1 requests of --bs 16384"));
        assert!(refused(&["--bs", "4K", "--jobs", "3", "--verify"]).contains("3 requests"));
    }
}
