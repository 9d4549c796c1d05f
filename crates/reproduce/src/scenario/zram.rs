// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle writeback of a compressed RAM disk: page by page, in batches, packed; and the memory that
//! its pages take. What is compared alternates; ratios are those of the runs of one round.
use std::path::Path;

use super::{MIB, ROUNDS, mib};
use crate::compressed::PAGE_BYTES;
use crate::compressed::data::Data;
use crate::compressed::memory::{self, Used};
use crate::compressed::place::{Local, Place, Simulated};
use crate::compressed::writeback::{BATCHED, Case, PACKED, SINGLE, Written, run_on, sequential};
use crate::median::{median, median_of, median_ratio, spread_percent};
use crate::report::{Better, Decides, Row, Section, size_bars};
use crate::rounds::{Steps, Told, turns};
use crate::table::{Table, fixed};
use crate::tally::{Sizes, Tally};

/// 4 GiB idle to an NVMe drive: 68.6 s page by page, 15.5 s in batches; CPU 24.9 and 7.8 s.
const PUBLISHED_RATIO: f64 = 68.6 / 15.5;
const PUBLISHED_CPU_RATIO: f64 = 24.9 / 7.8;
/// More than the pages need, as in the published run.
const SPARE_BYTES: u64 = 64 * MIB;
/// Enough where figures do not depend on the size.
pub const SMALL_BYTES: u64 = 256 * MIB;
/// Compressors whose memory is measured.
pub const ALGORITHMS: [&str; 2] = ["lz4", "zstd"];

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of pages that do not compress; of those that do, at most [`SMALL_BYTES`].
    pub size_bytes: u64,
    pub rounds: usize,
    /// How the keys begin.
    pub prefix: &'static str,
}

impl Options {
    /// As `millpond reproduce` runs it.
    pub fn of_bytes(size_bytes: u64) -> Options {
        Options { size_bytes, rounds: ROUNDS, prefix: "" }
    }

    /// In virtual time, which is the same every time.
    pub fn simulated(size_bytes: u64, prefix: &'static str) -> Options {
        Options { size_bytes, rounds: 1, prefix }
    }

    fn bytes(&self, data: Data) -> u64 {
        if data == Data::Random { self.size_bytes } else { self.size_bytes.min(SMALL_BYTES) }
    }
}

/// What a key begins with, the data, and what people call them.
const DATA: [(&str, Data, &str); 2] = [
    ("", Data::Random, "incompressible, as fio writes by default"),
    ("half_", Data::Half, "half compressible"),
];

/// What is done with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Single,
    Batched,
    /// The device divided among two cores.
    TwoCores,
    Packed,
    /// Plain sequential writes.
    Plain,
}

const WAYS: [Way; 5] = [Way::Plain, Way::Batched, Way::Single, Way::TwoCores, Way::Packed];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Single => "page by page",
            Way::Batched => "batched",
            Way::TwoCores => "batched, two cores",
            Way::Packed => "batched, packed",
            Way::Plain => "plain sequential",
        }
    }

    fn makes_sense(self, place: &impl Place, data: Data) -> bool {
        match self {
            Way::Single | Way::Batched | Way::Plain => true,
            Way::TwoCores => place.cores().len() > 1,
            // What does not compress is written as it is, packed or not.
            Way::Packed => data != Data::Random,
        }
    }

    fn run(
        self,
        place: &impl Place,
        (data, bytes): (Data, u64),
        is_first: bool,
    ) -> Result<(Written, Sizes), String> {
        let (options, cores) = match self {
            Way::Single => (SINGLE, 1),
            Way::Batched => (BATCHED, 1),
            Way::TwoCores => (BATCHED, 2),
            Way::Packed => (PACKED, 1),
            Way::Plain => {
                let (s, cpu_s) = sequential(place, bytes)?;
                return Ok((Written { s, cpu_s, ..Written::default() }, Sizes::new()));
            }
        };
        // All pages once, then some: reading everything back takes longer than the rest.
        let compare_every = if is_first { 1 } else { 16 };
        let pages = bytes / PAGE_BYTES as u64;
        let case = Case { data, pages, algorithm: "lz4", options, cores, compare_every };
        let tally = Tally::new(place.disk());
        let written = run_on(place, tally.clone(), &case)?;
        Ok((written, tally.take()))
    }
}

/// The runs of one kind of data.
struct Runs {
    /// How its keys begin, and what people call it.
    key: String,
    title: String,
    bytes: u64,
    seen: Vec<Seen>,
}

struct Seen {
    way: Way,
    /// For each round.
    written: Vec<Written>,
    /// Of the last one.
    sizes: Sizes,
}

impl Runs {
    /// Empty when it makes no sense.
    fn of(&self, way: Way) -> &[Written] {
        self.seen.iter().find(|seen| seen.way == way).map_or(&[], |seen| &seen.written)
    }

    fn rounds(&self, way: Way, figure: fn(&Written) -> f64) -> Vec<f64> {
        self.of(way).iter().map(figure).collect()
    }

    fn middle(&self, way: Way, figure: fn(&Written) -> f64) -> f64 {
        median_of(self.of(way), figure)
    }

    fn ratio(&self, of: Way, to: Way, figure: fn(&Written) -> f64) -> f64 {
        median_ratio(&self.rounds(of, figure), &self.rounds(to, figure))
    }

    fn sizes(&self, way: Way) -> Sizes {
        let seen = self.seen.iter().find(|seen| seen.way == way);
        seen.map(|seen| seen.sizes.clone()).unwrap_or_default()
    }
}

fn s(written: &Written) -> f64 {
    written.s
}

fn cpu_s(written: &Written) -> f64 {
    written.cpu_s
}

fn media_mib(written: &Written) -> f64 {
    written.media_bytes as f64 / MIB as f64
}

fn measure(
    place: &impl Place,
    options: &Options,
    (prefix, data, what): (&str, Data, &str),
    on: &str,
    steps: &mut Steps<'_>,
) -> Result<Runs, String> {
    let bytes = options.bytes(data);
    let ways: Vec<Way> = WAYS.into_iter().filter(|way| way.makes_sense(place, data)).collect();
    let new = |way: &Way| Seen { way: *way, written: Vec::new(), sizes: Sizes::new() };
    let mut seen: Vec<Seen> = ways.iter().map(new).collect();
    for (round, at) in turns(options.rounds, ways.len()) {
        steps.next(&format!("idle writeback, {what}, {}", ways[at].name()));
        let (written, sizes) = ways[at].run(place, (data, bytes), round == 0)?;
        seen[at].written.push(written);
        seen[at].sizes = sizes;
    }
    let title = format!("idle writeback, {on}, lz4, {}, {what}", mib(bytes));
    Ok(Runs { key: format!("{}{prefix}", options.prefix), title, bytes, seen })
}

/// Runs it on a file without a name in `dir`.
///
/// # Errors
/// What the file system or a device said.
pub fn run_local(dir: &Path, options: &Options, told: Told<'_>) -> Result<Section, String> {
    told(0.0, "making files");
    let place = Local::new(dir, options.size_bytes + SPARE_BYTES)?;
    let mut steps = Steps::new(told, options.rounds * WAYS.len() * DATA.len());
    let measure = |data| measure(&place, options, data, "local disk", &mut steps);
    let [random, half] = all(measure)?;
    if !place.is_allocated() {
        return Err("the backing file has lost blocks: its writes allocated some again".into());
    }
    let mut section = section(options, &random, &half, false);
    section.notes.extend(place.warning.clone());
    Ok(section)
}

/// Runs it on a model of an NVMe drive in virtual time.
///
/// # Errors
/// What a device said.
pub fn run_simulated(options: &Options, told: Told<'_>) -> Result<Section, String> {
    let mut steps = Steps::new(told, options.rounds * WAYS.len() * DATA.len());
    let measure = |data: (&'static str, Data, &'static str)| {
        let place = Simulated::new(options.bytes(data.1) + SPARE_BYTES);
        measure(&place, options, data, "simulated NVMe", &mut steps)
    };
    let [random, half] = all(measure)?;
    Ok(section(options, &random, &half, true))
}

fn all(
    mut measure: impl FnMut((&'static str, Data, &'static str)) -> Result<Runs, String>,
) -> Result<[Runs; 2], String> {
    let [random, half] = DATA;
    Ok([measure(random)?, measure(half)?])
}

fn section(options: &Options, random: &Runs, half: &Runs, is_simulated: bool) -> Section {
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
            ("page by page", random.sizes(Way::Single)),
            ("batches", random.sizes(Way::Batched)),
            ("packed", half.sizes(Way::Packed)),
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

fn rows(random: &Runs, half: &Runs, is_simulated: bool) -> Vec<Row> {
    let row = |what: &str, figure, unit, decides| {
        let [single, batched] = [Way::Single, Way::Batched].map(|way| random.rounds(way, figure));
        let (before, after) = (("page by page", &single[..]), ("batches", &batched[..]));
        let row = Row::new(what, before, after, (unit, Better::Less, decides));
        row.limit("plain sequential writes", random.middle(Way::Plain, figure))
    };
    let decides = if is_simulated { Decides::Model } else { Decides::Disk };
    let mut rows = vec![row("idle writeback", s, "s", decides).published(PUBLISHED_RATIO)];
    if !is_simulated {
        let cpu = row("idle writeback, CPU", cpu_s, "s", Decides::Cpu);
        rows.push(cpu.published(PUBLISHED_CPU_RATIO));
    }
    let compressed = half.middle(Way::Packed, |w| w.compr_bytes as f64) / MIB as f64;
    let packed = Row::new(
        "written to the disk, half compressible",
        ("raw", &half.rounds(Way::Batched, media_mib)),
        ("packed", &half.rounds(Way::Packed, media_mib)),
        ("MiB", Better::Less, Decides::Count),
    );
    rows.push(packed.limit("the compressed bytes", compressed));
    rows
}

fn table(runs: &Runs, is_simulated: bool) -> Table {
    let head = ["s", "+-%", "MiB/s", "CPU s", "us a page", "writes", "media MiB", "read MiB/s"];
    let mut table = Table::new(runs.title.clone(), &[""], &head);
    let (mib, pages) = (runs.bytes as f64 / MIB as f64, runs.bytes as f64 / PAGE_BYTES as f64);
    for way in [Way::Single, Way::Batched, Way::TwoCores, Way::Packed, Way::Plain] {
        let s = runs.rounds(way, s);
        if s.is_empty() {
            continue;
        }
        let cpu_s = runs.middle(way, cpu_s);
        let mut figures = vec![
            fixed(median(&s), 3),
            fixed(spread_percent(&s), 0),
            fixed(mib / median(&s), 0),
            fixed(cpu_s, 3),
            fixed(cpu_s * 1e6 / pages, 2),
        ];
        if way != Way::Plain {
            let pages_per_s = runs.middle(way, |w| w.read_back_pages_per_s);
            figures.extend([
                fixed(runs.middle(way, |w| w.writes as f64), 0),
                fixed(runs.middle(way, media_mib), 1),
                fixed(pages_per_s * PAGE_BYTES as f64 / MIB as f64, 0),
            ]);
        }
        table.row(&[way.name()], figures);
    }
    let [wall, cpu] = [s, cpu_s].map(|figure| runs.ratio(Way::Single, Way::Batched, figure));
    table.note(format!("page by page / batched: {wall:.1} wall, {cpu:.1} CPU"));
    let share = |way| runs.ratio(Way::Plain, way, s);
    let mut note = "limit: the disk's plain sequential writes; reached: ".to_owned();
    note += &fixed(share(Way::Batched), 3);
    if !runs.of(Way::TwoCores).is_empty() {
        note += &format!(", two cores {:.3}", share(Way::TwoCores));
    }
    table.note(note);
    if !runs.of(Way::Packed).is_empty() {
        let over = runs.middle(Way::Packed, |w| w.media_bytes as f64 / w.compr_bytes as f64);
        table.note(format!("limit: the objects' bytes; packed media bytes to them: {over:.3}"));
    }
    if is_simulated {
        table.note("CPU seconds are the simulator's own");
    }
    table
}

fn put(section: &mut Section, runs: &Runs, is_simulated: bool) {
    let mut put = |name: &str, value: f64| section.put(format!("{}{name}", runs.key), value);
    put("single_s", runs.middle(Way::Single, s));
    put("batched_s", runs.middle(Way::Batched, s));
    put("disk_seq_s", runs.middle(Way::Plain, s));
    put("wall_ratio", runs.ratio(Way::Single, Way::Batched, s));
    put("share_of_seq", runs.ratio(Way::Plain, Way::Batched, s));
    put("read_back_pages_per_s", runs.middle(Way::Batched, |w| w.read_back_pages_per_s));
    // Virtual time knows of no CPU.
    if !is_simulated {
        put("single_cpu_s", runs.middle(Way::Single, cpu_s));
        put("batched_cpu_s", runs.middle(Way::Batched, cpu_s));
        put("disk_seq_cpu_s", runs.middle(Way::Plain, cpu_s));
        put("cpu_ratio", runs.ratio(Way::Single, Way::Batched, cpu_s));
    }
    if !runs.of(Way::TwoCores).is_empty() {
        put("two_cores_s", runs.middle(Way::TwoCores, s));
        put("two_cores_cpu_s", runs.middle(Way::TwoCores, cpu_s));
        put("two_cores_share_of_seq", runs.ratio(Way::Plain, Way::TwoCores, s));
    }
}

fn put_packed(section: &mut Section, prefix: &str, half: &Runs, is_simulated: bool) {
    let mut put = |name: &str, value: f64| section.put(format!("{prefix}{name}"), value);
    put("compressed_bytes", half.middle(Way::Packed, |w| w.compr_bytes as f64));
    put("packed_media_bytes", half.middle(Way::Packed, |w| w.media_bytes as f64));
    put("raw_media_bytes", half.middle(Way::Batched, |w| w.media_bytes as f64));
    put("packed_s", half.middle(Way::Packed, s));
    if !is_simulated {
        put("packed_cpu_s", half.middle(Way::Packed, cpu_s));
    }
    let pages_per_s = half.middle(Way::Packed, |w| w.read_back_pages_per_s);
    put("packed_read_back_pages_per_s", pages_per_s);
}

/// Memory used against bytes stored, of so many bytes of pages. It is counted: the same wherever
/// it runs.
///
/// # Errors
/// What a device said.
pub fn run_memory(bytes: u64, told: Told<'_>) -> Result<Section, String> {
    let place = Simulated::new(MIB);
    let mut section = Section { name: "zram", ..Section::default() };
    let mut steps = Steps::new(told, ALGORITHMS.len() * 2);
    let title = format!("memory used, {}; limit: the objects' bytes", mib(bytes));
    let mut table = Table::new(title, &[""], &["stored MiB", "used MiB", "used/stored"]);
    for algorithm in ALGORITHMS {
        for data in [Data::Mixed, Data::Half] {
            steps.next(&format!("memory used, {algorithm}, {}", data.name()));
            let both = memory::run(&place, data, algorithm, bytes / PAGE_BYTES as u64)?;
            for (used, when) in both.iter().zip(["filled", "overwritten"]) {
                let Used { compr_bytes, mem_bytes } = *used;
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

/// As `millpond reproduce` runs it: writeback, then memory.
pub(super) fn scenario(dir: Option<&Path>, size: u64, told: Told<'_>) -> Result<Section, String> {
    let mut part = |done: f64, what: &str| told(done * 0.8, what);
    let mut section = match dir {
        Some(dir) => run_local(dir, &Options::of_bytes(size), &mut part)?,
        None => run_simulated(&Options::simulated(size, ""), &mut part)?,
    };
    let mut part = |done: f64, what: &str| told(0.8 + done * 0.2, what);
    section.append(run_memory(size.min(SMALL_BYTES), &mut part)?);
    Ok(section)
}
