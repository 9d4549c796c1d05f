// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle writeback of a compressed RAM disk: page by page, in batches, packed.
use std::path::Path;

use super::{MIB, ROUNDS, Told, mib};
use crate::compressed::PAGE_BYTES;
use crate::compressed::data::Data;
use crate::compressed::place::{Local, Place, Simulated};
use crate::compressed::writeback::{BATCHED, Case, PACKED, SINGLE, Written, run_on, sequential};
use crate::median::median;
use crate::report::{Better, Decides, Row, Section, size_bars};
use crate::tally::{Sizes, Tally};

/// 4 GiB idle to an NVMe drive: 68.6 s page by page, 15.5 s in batches; CPU 24.9 and 7.8 s.
const PUBLISHED_RATIO: f64 = 68.6 / 15.5;
const PUBLISHED_CPU_RATIO: f64 = 24.9 / 7.8;
/// More than the pages need, as in the published run.
const SPARE_BYTES: u64 = 64 * MIB;

/// What was seen in the rounds.
#[derive(Default)]
struct Seen {
    single: Vec<Written>,
    batched: Vec<Written>,
    half_batched: Vec<Written>,
    packed: Vec<Written>,
    /// Seconds and CPU seconds of plain sequential writes.
    plain: Vec<(f64, f64)>,
    /// Of the last runs of `single`, `batched` and `packed`.
    sizes: [Sizes; 3],
}

fn measure(
    place: &impl Place,
    (size, rounds): (u64, usize),
    told: Told<'_>,
) -> Result<Seen, String> {
    let tally = Tally::new(place.disk());
    let pages = size / PAGE_BYTES as u64;
    let mut seen = Seen::default();
    let kinds = ["plain sequential writes", "page by page", "in batches", "half", "packed"];
    for round in 0..rounds {
        for turn in 0..kinds.len() {
            let at = (round + turn) % kinds.len();
            let done = (round * kinds.len() + turn) as f64 / (rounds * kinds.len()) as f64;
            told(done, &format!("idle writeback, {}", kinds[at]));
            tally.take();
            let run = |data, options| {
                // All pages once, then some: reading all back takes longer than the rest.
                let compare_every = if round == 0 { 1 } else { 16 };
                let case = Case { data, pages, algorithm: "lz4", options, cores: 1, compare_every };
                run_on(place, tally.clone(), &case)
            };
            match at {
                0 => seen.plain.push(sequential(place, size)?),
                1 => {
                    seen.single.push(run(Data::Random, SINGLE)?);
                    seen.sizes[0] = tally.take();
                }
                2 => {
                    seen.batched.push(run(Data::Random, BATCHED)?);
                    seen.sizes[1] = tally.take();
                }
                3 => seen.half_batched.push(run(Data::Half, BATCHED)?),
                _ => {
                    seen.packed.push(run(Data::Half, PACKED)?);
                    seen.sizes[2] = tally.take();
                }
            }
        }
    }
    Ok(seen)
}

fn of(runs: &[Written], field: fn(&Written) -> f64) -> Vec<f64> {
    runs.iter().map(field).collect()
}

fn section(seen: &Seen, size: u64, is_simulated: bool) -> Section {
    let mut section = Section { name: "zram", ..Section::default() };
    let decides = if is_simulated { Decides::Model } else { Decides::Disk };
    let (single_s, batched_s) = (of(&seen.single, |w| w.s), of(&seen.batched, |w| w.s));
    let plain_s = median(&seen.plain.iter().map(|p| p.0).collect::<Vec<_>>());
    section.rows.push(
        Row::new(
            "idle writeback",
            ("page by page", &single_s),
            ("batches", &batched_s),
            ("s", Better::Less, decides),
        )
        .published(PUBLISHED_RATIO)
        .limit("plain sequential writes", plain_s),
    );
    section.put("single_s", median(&single_s));
    section.put("batched_s", median(&batched_s));
    section.put("disk_seq_s", plain_s);
    if !is_simulated {
        let cpu = |runs: &[Written]| of(runs, |w| w.cpu_s);
        let plain = median(&seen.plain.iter().map(|p| p.1).collect::<Vec<_>>());
        section.rows.push(
            Row::new(
                "idle writeback, CPU",
                ("page by page", &cpu(&seen.single)),
                ("batches", &cpu(&seen.batched)),
                ("s", Better::Less, Decides::Cpu),
            )
            .published(PUBLISHED_CPU_RATIO)
            .limit("plain sequential writes", plain),
        );
        section.put("single_cpu_s", median(&cpu(&seen.single)));
        section.put("batched_cpu_s", median(&cpu(&seen.batched)));
    }
    let mib_of = |runs: &[Written], field: fn(&Written) -> u64| -> Vec<f64> {
        runs.iter().map(|w| field(w) as f64 / MIB as f64).collect()
    };
    let objects = mib_of(&seen.packed, |w| w.compr_bytes);
    section.rows.push(
        Row::new(
            "written to the disk, half compressible",
            ("raw", &mib_of(&seen.half_batched, |w| w.media_bytes)),
            ("packed", &mib_of(&seen.packed, |w| w.media_bytes)),
            ("MiB", Better::Less, Decides::Count),
        )
        .limit("the compressed bytes", median(&objects)),
    );
    let bytes = |runs: &[Written], field: fn(&Written) -> u64| {
        median(&runs.iter().map(|w| field(w) as f64).collect::<Vec<_>>())
    };
    section.put("compressed_bytes", bytes(&seen.packed, |w| w.compr_bytes));
    section.put("packed_media_bytes", bytes(&seen.packed, |w| w.media_bytes));
    section.put("compr_data_size", bytes(&seen.half_batched, |w| w.compr_bytes));
    section.put("mem_used_total", bytes(&seen.half_batched, |w| w.mem_bytes));
    let [single, batched, packed] = seen.sizes.clone();
    section.plots.push(size_bars(
        ("batch-sizes", "Writes to the backing device by size"),
        ("up to so many bytes", "writes"),
        &[("page by page", single), ("batches", batched), ("packed", packed)],
    ));
    section.notes.push(format!(
        "{} of idle pages, lz4; published: 4 GiB to an NVMe drive; all that was written back is \
         read back and compared",
        mib(size)
    ));
    if is_simulated {
        let note = "virtual time has no CPU: the CPU ratio is the matter of a run on a machine";
        section.notes.push(note.to_owned());
    }
    section
}

pub(super) fn simulated(size: u64, told: Told<'_>) -> Result<Section, String> {
    let place = Simulated::new(size + SPARE_BYTES);
    // Virtual time is the same every time.
    Ok(section(&measure(&place, (size, 1), told)?, size, true))
}

pub(super) fn real(dir: &Path, size: u64, told: Told<'_>) -> Result<Section, String> {
    told(0.0, "making files");
    let place = Local::new(dir, size + SPARE_BYTES)?;
    let seen = measure(&place, (size, ROUNDS), told)?;
    if !place.is_allocated() {
        return Err("the backing file has lost blocks: its writes allocated some again".into());
    }
    let mut section = section(&seen, size, false);
    section.notes.extend(place.warning.clone());
    Ok(section)
}
