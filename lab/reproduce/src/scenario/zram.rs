// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle writeback of a compressed RAM disk: page by page, in batches, packed; and the memory that
//! its pages take. Compared methods alternate; ratios are taken within a round.
use std::path::Path;

use super::units::{MIB, ROUNDS, mib};
use crate::compressed::PAGE_BYTES;
use crate::compressed::data::Data;
use crate::compressed::memory::{self, MemoryUse};
use crate::compressed::platform::{Local, Platform, Simulated};
use crate::compressed::writeback::{
    BATCHED, Case, PACKED, SINGLE, WritebackResult, run_on, sequential,
};
use crate::median::{median, median_of, median_ratio, spread_percent};
use crate::report::{Basis, Direction, Row, Section, size_bars};
use crate::rounds::{Progress, Steps, turns};
use crate::size_counter::{SizeCounter, SizeCounts};
use crate::table::{Table, fixed};

/// 4 GiB idle to an NVMe drive: 68.6 s page by page, 15.5 s in batches; CPU 24.9 and 7.8 s.
const PUBLISHED_RATIO: f64 = 68.6 / 15.5;
const PUBLISHED_CPU_RATIO: f64 = 24.9 / 7.8;
/// Bytes of the backing device beyond the pages, as in the published run.
const SPARE_BYTES: u64 = 64 * MIB;
/// A size for figures that do not depend on it.
pub const SMALL_BYTES: u64 = 256 * MIB;
/// Compressors whose memory is measured.
pub const ALGORITHMS: [&str; 2] = ["lz4", "zstd"];

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of incompressible pages; of compressible ones at most [`SMALL_BYTES`].
    pub size_bytes: u64,
    pub rounds: usize,
    /// The prefix of the keys.
    pub prefix: &'static str,
}

impl Options {
    /// The options of `reproduce`.
    pub fn of_bytes(size_bytes: u64) -> Options {
        Options { size_bytes, rounds: ROUNDS, prefix: "" }
    }

    /// The options in virtual time: one round, as all would be equal.
    pub fn simulated(size_bytes: u64, prefix: &'static str) -> Options {
        Options { size_bytes, rounds: 1, prefix }
    }

    fn bytes(&self, data: Data) -> u64 {
        if data == Data::Random { self.size_bytes } else { self.size_bytes.min(SMALL_BYTES) }
    }
}

/// The prefix of the keys, the data, and their description.
const DATA: [(&str, Data, &str); 2] = [
    ("", Data::Random, "incompressible, as fio writes by default"),
    ("half_", Data::Half, "half compressible"),
];

/// A method of writing pages to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Single,
    Batched,
    /// Two cores share the device.
    TwoCores,
    Packed,
    /// Plain sequential writes.
    Plain,
}

const METHODS: [Method; 5] =
    [Method::Plain, Method::Batched, Method::Single, Method::TwoCores, Method::Packed];

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Single => "page by page",
            Method::Batched => "batched",
            Method::TwoCores => "batched, two cores",
            Method::Packed => "batched, packed",
            Method::Plain => "plain sequential",
        }
    }

    fn makes_sense(self, platform: &impl Platform, data: Data) -> bool {
        match self {
            Method::Single | Method::Batched | Method::Plain => true,
            Method::TwoCores => platform.cores().len() > 1,
            // Incompressible pages are never packed.
            Method::Packed => data != Data::Random,
        }
    }

    fn run(
        self,
        platform: &impl Platform,
        (data, bytes): (Data, u64),
        is_first: bool,
    ) -> Result<(WritebackResult, SizeCounts), String> {
        let (options, cores) = match self {
            Method::Single => (SINGLE, 1),
            Method::Batched => (BATCHED, 1),
            Method::TwoCores => (BATCHED, 2),
            Method::Packed => (PACKED, 1),
            Method::Plain => {
                let (s, cpu_s) = sequential(platform, bytes)?;
                return Ok((
                    WritebackResult { s, cpu_s, ..WritebackResult::default() },
                    SizeCounts::new(),
                ));
            }
        };
        // All pages in the first round, later a sample: reading all back takes longer than the
        // rest.
        let compare_every = if is_first { 1 } else { 16 };
        let pages = bytes / PAGE_BYTES as u64;
        let case = Case { data, pages, algorithm: "lz4", options, cores, compare_every };
        let counter = SizeCounter::new(platform.disk());
        let written = run_on(platform, counter.clone(), &case)?;
        Ok((written, counter.take()))
    }
}

/// The runs with one kind of data.
struct DataRuns {
    /// The prefix of its keys, and its title.
    key: String,
    title: String,
    bytes: u64,
    seen: Vec<MethodRuns>,
}

struct MethodRuns {
    method: Method,
    /// One for each round.
    written: Vec<WritebackResult>,
    /// Sizes of writes in the last round.
    sizes: SizeCounts,
}

impl DataRuns {
    /// Empty if the method was not run.
    fn of(&self, method: Method) -> &[WritebackResult] {
        self.seen.iter().find(|seen| seen.method == method).map_or(&[], |seen| &seen.written)
    }

    fn rounds(&self, method: Method, figure: fn(&WritebackResult) -> f64) -> Vec<f64> {
        self.of(method).iter().map(figure).collect()
    }

    fn middle(&self, method: Method, figure: fn(&WritebackResult) -> f64) -> f64 {
        median_of(self.of(method), figure)
    }

    fn ratio(&self, of: Method, to: Method, figure: fn(&WritebackResult) -> f64) -> f64 {
        median_ratio(&self.rounds(of, figure), &self.rounds(to, figure))
    }

    fn sizes(&self, method: Method) -> SizeCounts {
        let seen = self.seen.iter().find(|seen| seen.method == method);
        seen.map(|seen| seen.sizes.clone()).unwrap_or_default()
    }
}

fn s(written: &WritebackResult) -> f64 {
    written.s
}

fn cpu_s(written: &WritebackResult) -> f64 {
    written.cpu_s
}

fn media_mib(written: &WritebackResult) -> f64 {
    written.media_bytes as f64 / MIB as f64
}

fn measure(
    platform: &impl Platform,
    options: &Options,
    (prefix, data, what): (&str, Data, &str),
    on: &str,
    steps: &mut Steps<'_>,
) -> Result<DataRuns, String> {
    let bytes = options.bytes(data);
    let methods: Vec<Method> =
        METHODS.into_iter().filter(|method| method.makes_sense(platform, data)).collect();
    let new = |method: &Method| MethodRuns {
        method: *method,
        written: Vec::new(),
        sizes: SizeCounts::new(),
    };
    let mut seen: Vec<MethodRuns> = methods.iter().map(new).collect();
    for (round, at) in turns(options.rounds, methods.len()) {
        steps.next(&format!("idle writeback, {what}, {}", methods[at].name()));
        let (written, sizes) = methods[at].run(platform, (data, bytes), round == 0)?;
        seen[at].written.push(written);
        seen[at].sizes = sizes;
    }
    let title = format!("idle writeback, {on}, lz4, {}, {what}", mib(bytes));
    Ok(DataRuns { key: format!("{}{prefix}", options.prefix), title, bytes, seen })
}

/// Runs idle writeback on an unnamed file in `dir`.
///
/// # Errors
/// The error of the file system or of a device.
pub fn run_local(dir: &Path, options: &Options, progress: Progress<'_>) -> Result<Section, String> {
    progress(0.0, "making files");
    let platform = Local::new(dir, options.size_bytes + SPARE_BYTES)?;
    let mut steps = Steps::new(progress, options.rounds * METHODS.len() * DATA.len());
    let measure = |data| measure(&platform, options, data, "local disk", &mut steps);
    let [random, half] = all(measure)?;
    if !platform.is_allocated() {
        return Err("the backing file has lost blocks: its writes allocated some again".into());
    }
    let mut section = section(options, &random, &half, false);
    section.notes.extend(platform.warning.clone());
    Ok(section)
}

/// Runs idle writeback on a model of an NVMe drive in virtual time.
///
/// # Errors
/// The error of a device.
pub fn run_simulated(options: &Options, progress: Progress<'_>) -> Result<Section, String> {
    let mut steps = Steps::new(progress, options.rounds * METHODS.len() * DATA.len());
    let measure = |data: (&'static str, Data, &'static str)| {
        let platform = Simulated::new(options.bytes(data.1) + SPARE_BYTES);
        measure(&platform, options, data, "simulated NVMe", &mut steps)
    };
    let [random, half] = all(measure)?;
    Ok(section(options, &random, &half, true))
}

fn all(
    mut measure: impl FnMut((&'static str, Data, &'static str)) -> Result<DataRuns, String>,
) -> Result<[DataRuns; 2], String> {
    let [random, half] = DATA;
    Ok([measure(random)?, measure(half)?])
}

fn section(options: &Options, random: &DataRuns, half: &DataRuns, is_simulated: bool) -> Section {
    let mut section = Section { name: "zram", ..Section::default() };
    section.rows = rows(random, half, is_simulated);
    section.tables = [random, half].map(|runs| table(runs, is_simulated)).to_vec();
    put(&mut section, random, is_simulated);
    put(&mut section, half, is_simulated);
    put_packed(&mut section, options.prefix, half, is_simulated);
    section.plots.push(size_bars(
        ("batch-sizes", "Writes to the backing device by size"),
        ("up to so many bytes", "writes"),
        &[
            ("page by page", random.sizes(Method::Single)),
            ("batches", random.sizes(Method::Batched)),
            ("packed", half.sizes(Method::Packed)),
        ],
    ));
    section.notes.push(format!(
        "{} of idle pages, lz4; published: 4 GiB to an NVMe drive; what was written back is read \
         back and compared: all of it in the first round, one MiB of 16 later",
        mib(random.bytes)
    ));
    if is_simulated {
        let note = "virtual time has no CPU: the CPU ratio is the matter of a run on a machine";
        section.notes.push(note.to_owned());
    }
    section
}

fn rows(random: &DataRuns, half: &DataRuns, is_simulated: bool) -> Vec<Row> {
    let row = |what: &str, figure, unit, basis| {
        let [single, batched] =
            [Method::Single, Method::Batched].map(|method| random.rounds(method, figure));
        let (before, after) = (("page by page", &single[..]), ("batches", &batched[..]));
        let row = Row::new(what, before, after, (unit, Direction::LowerIsBetter, basis));
        row.limit("plain sequential writes", random.middle(Method::Plain, figure))
    };
    let basis = if is_simulated { Basis::Model } else { Basis::Disk };
    let mut rows = vec![row("idle writeback", s, "s", basis).published(PUBLISHED_RATIO)];
    if !is_simulated {
        let cpu = row("idle writeback, CPU", cpu_s, "s", Basis::Cpu);
        rows.push(cpu.published(PUBLISHED_CPU_RATIO));
    }
    let compressed = half.middle(Method::Packed, |w| w.compr_bytes as f64) / MIB as f64;
    let packed = Row::new(
        "written to the disk, half compressible",
        ("raw", &half.rounds(Method::Batched, media_mib)),
        ("packed", &half.rounds(Method::Packed, media_mib)),
        ("MiB", Direction::LowerIsBetter, Basis::Count),
    );
    rows.push(packed.limit("the compressed bytes", compressed));
    rows
}

fn table(runs: &DataRuns, is_simulated: bool) -> Table {
    let head = ["s", "+-%", "MiB/s", "CPU s", "us a page", "writes", "media MiB", "read MiB/s"];
    let mut table = Table::new(runs.title.clone(), &[""], &head);
    let (mib, pages) = (runs.bytes as f64 / MIB as f64, runs.bytes as f64 / PAGE_BYTES as f64);
    for method in [Method::Single, Method::Batched, Method::TwoCores, Method::Packed, Method::Plain]
    {
        let s = runs.rounds(method, s);
        if s.is_empty() {
            continue;
        }
        let cpu_s = runs.middle(method, cpu_s);
        let mut figures = vec![
            fixed(median(&s), 3),
            fixed(spread_percent(&s), 0),
            fixed(mib / median(&s), 0),
            fixed(cpu_s, 3),
            fixed(cpu_s * 1e6 / pages, 2),
        ];
        if method != Method::Plain {
            let pages_per_s = runs.middle(method, |w| w.read_back_pages_per_s);
            figures.extend([
                fixed(runs.middle(method, |w| w.writes as f64), 0),
                fixed(runs.middle(method, media_mib), 1),
                fixed(pages_per_s * PAGE_BYTES as f64 / MIB as f64, 0),
            ]);
        }
        table.row(&[method.name()], figures);
    }
    let [wall, cpu] = [s, cpu_s].map(|figure| runs.ratio(Method::Single, Method::Batched, figure));
    table.note(format!("page by page / batched: {wall:.1} wall, {cpu:.1} CPU"));
    let share = |method| runs.ratio(Method::Plain, method, s);
    let mut note = "limit: the disk's plain sequential writes; reached: ".to_owned();
    note += &fixed(share(Method::Batched), 3);
    if !runs.of(Method::TwoCores).is_empty() {
        note += &format!(", two cores {:.3}", share(Method::TwoCores));
    }
    table.note(note);
    if !runs.of(Method::Packed).is_empty() {
        let over = runs.middle(Method::Packed, |w| w.media_bytes as f64 / w.compr_bytes as f64);
        table.note(format!("limit: the objects' bytes; packed media bytes to them: {over:.3}"));
    }
    if is_simulated {
        table.note("CPU seconds are the simulator's own");
    }
    table
}

fn put(section: &mut Section, runs: &DataRuns, is_simulated: bool) {
    let mut put = |name: &str, value: f64| section.put(format!("{}{name}", runs.key), value);
    put("single_s", runs.middle(Method::Single, s));
    put("batched_s", runs.middle(Method::Batched, s));
    put("disk_seq_s", runs.middle(Method::Plain, s));
    put("wall_ratio", runs.ratio(Method::Single, Method::Batched, s));
    put("share_of_seq", runs.ratio(Method::Plain, Method::Batched, s));
    put("read_back_pages_per_s", runs.middle(Method::Batched, |w| w.read_back_pages_per_s));
    // Virtual time knows of no CPU.
    if !is_simulated {
        put("single_cpu_s", runs.middle(Method::Single, cpu_s));
        put("batched_cpu_s", runs.middle(Method::Batched, cpu_s));
        put("disk_seq_cpu_s", runs.middle(Method::Plain, cpu_s));
        put("cpu_ratio", runs.ratio(Method::Single, Method::Batched, cpu_s));
    }
    if !runs.of(Method::TwoCores).is_empty() {
        put("two_cores_s", runs.middle(Method::TwoCores, s));
        put("two_cores_cpu_s", runs.middle(Method::TwoCores, cpu_s));
        put("two_cores_share_of_seq", runs.ratio(Method::Plain, Method::TwoCores, s));
    }
}

fn put_packed(section: &mut Section, prefix: &str, half: &DataRuns, is_simulated: bool) {
    let mut put = |name: &str, value: f64| section.put(format!("{prefix}{name}"), value);
    put("compressed_bytes", half.middle(Method::Packed, |w| w.compr_bytes as f64));
    put("packed_media_bytes", half.middle(Method::Packed, |w| w.media_bytes as f64));
    put("raw_media_bytes", half.middle(Method::Batched, |w| w.media_bytes as f64));
    put("packed_s", half.middle(Method::Packed, s));
    if !is_simulated {
        put("packed_cpu_s", half.middle(Method::Packed, cpu_s));
    }
    let pages_per_s = half.middle(Method::Packed, |w| w.read_back_pages_per_s);
    put("packed_read_back_pages_per_s", pages_per_s);
}

/// Memory used against bytes stored, of so many bytes of pages. It is counted: the same wherever
/// it runs.
///
/// # Errors
/// The error of a device.
pub fn run_memory(bytes: u64, progress: Progress<'_>) -> Result<Section, String> {
    let platform = Simulated::new(MIB);
    let mut section = Section { name: "zram", ..Section::default() };
    let mut steps = Steps::new(progress, ALGORITHMS.len() * 2);
    let title = format!("memory used, {}; limit: the objects' bytes", mib(bytes));
    let mut table = Table::new(title, &[""], &["stored MiB", "used MiB", "used/stored"]);
    for algorithm in ALGORITHMS {
        for data in [Data::Mixed, Data::Half] {
            steps.next(&format!("memory used, {algorithm}, {}", data.name()));
            let both = memory::run(&platform, data, algorithm, bytes / PAGE_BYTES as u64)?;
            for (used, when) in both.iter().zip(["filled", "overwritten"]) {
                let MemoryUse { compr_bytes, mem_bytes } = *used;
                let figures = [compr_bytes, mem_bytes].map(|b| fixed(b as f64 / MIB as f64, 1));
                let figures = figures.into_iter().chain([fixed(used.ratio(), 4)]);
                table.row(&[&format!("{algorithm}, {}, {when}", data.name())], figures);
                let key = format!("{algorithm}_{}_{when}_used_over_stored", data.name());
                section.put(key, used.ratio());
                if (algorithm, data, when) == ("lz4", Data::Mixed, "overwritten") {
                    section.put("compr_data_size", compr_bytes as f64);
                    section.put("mem_used_total", mem_bytes as f64);
                }
            }
        }
    }
    section.tables.push(table);
    Ok(section)
}

/// As `reproduce` runs it: writeback, then memory.
pub(super) fn scenario(
    dir: Option<&Path>,
    size: u64,
    progress: Progress<'_>,
) -> Result<Section, String> {
    let mut part = |done: f64, what: &str| progress(done * 0.8, what);
    let mut section = match dir {
        Some(dir) => run_local(dir, &Options::of_bytes(size), &mut part)?,
        None => run_simulated(&Options::simulated(size, ""), &mut part)?,
    };
    let mut part = |done: f64, what: &str| progress(0.8 + done * 0.2, what);
    section.append(run_memory(size.min(SMALL_BYTES), &mut part)?);
    Ok(section)
}
