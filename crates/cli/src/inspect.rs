// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond inspect`: shows what a cache image holds and what is damaged, without changing it.
use std::fmt::Write;
use std::path::{Path, PathBuf};

use block::Sector;
use clap::Args;
use control::{EXIT_DONE, EXIT_FAILED, Failure};
use format::LaterFormat;
use host::Listing;
use serde_json::{Value, json};
use writecache::{Contents, Depth, NativeCache, Occupancy, ProbeReport};

use crate::inspect_guard as guard_of_origin;
use crate::inspect_journal as journal;
use crate::inspect_volume as volume;
use crate::offline::{self, Access};

/// Dirty ranges and findings that are shown without `--all`.
pub(crate) const SHOWN: usize = 20;

/// Show what a write cache's device or image holds
///
/// Needs no daemon and changes nothing; the cache must not be in use. Shows the format (ours or the
/// kernel's), the superblocks and whether they agree, the blocks, the log, which sectors of the
/// origin are dirty, and every damage with its offset. The journal in memory that a killed daemon
/// left in its run directory counts (`--run-dir`). Such a journal, a file `journal-UUID` there, can
/// be shown itself; and so can an origin that a cache guards (table option `guard_origin`): whose
/// it is, and what to do with it.
///
/// The URL of a volume on an object store shows that volume, also while a daemon has it open: who
/// opened it last, its segments, and what cannot be read (`millpond help check`).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond inspect /srv/cache.img
  millpond inspect /dev/nvme0n1p4 --start-sector 2048 --all
  millpond inspect /srv/cache.img --data -o json
  millpond inspect /dev/sdb                       # an origin that a cache guards
  millpond inspect /run/millpond/journal-0123456789abcdef0123456789abcdef
  millpond inspect s3://bucket/disks/one

Exit codes: 0 a sound cache or volume, a guarded origin, or blank; 1 damaged, or no cache; 2 \
usage; 3 no such file; 4 in use.")]
pub struct InspectArgs {
    /// The cache device, its image, a journal, or the URL of a volume
    pub(crate) image: PathBuf,
    /// Where the cache begins on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) start_sector: u64,
    /// Read all cached blocks (of a volume all data) and compare them with their checksums, too
    #[arg(long)]
    pub(crate) data: bool,
    /// Show all dirty ranges and findings, however many
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Runs the verb; returns what to exit with.
pub(crate) fn run(args: &InspectArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    if let Some(url) = volume::url_of(&args.image) {
        return volume::run(args, &url, run_dir);
    }
    if journal::is_journal(&args.image) {
        return journal::run(args);
    }
    let (reactor, files) = offline::core(run_dir)?;
    let device = offline::open(&files, &args.image, Access::Read)?;
    let start = Sector(args.start_sector);
    let depth = if args.data { Depth::Data } else { Depth::Metadata };
    let look = device.clone();
    let report = reactor.block_on(writecache::probe(look, start, depth))?;
    if matches!(report.contents, Contents::Unknown) && args.start_sector == 0 {
        let found = reactor.block_on(async move { writecache::find_guard(&*device).await })?;
        if let Some(guard) = found {
            return guard_of_origin::show(args, &guard);
        }
    }
    let shown = if args.all { usize::MAX } else { SHOWN };
    args.listing.print(&value(args, &report, shown), || {
        text(&offline::place(&args.image, start), &report, shown)
    })?;
    Ok(if is_sound(&report) { EXIT_DONE } else { EXIT_FAILED })
}

fn is_sound(report: &ProbeReport) -> bool {
    let known = match &report.contents {
        Contents::Blank | Contents::Native(_) | Contents::Dm(_) | Contents::Replaced(_) => true,
        Contents::Unknown | Contents::Ruined | Contents::Gone(_) | Contents::Later(_) => false,
    };
    known && report.damage.is_empty()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(place: &str, report: &ProbeReport, shown: usize) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "{label:<12}{text}");
    };
    line("cache", format!("{place}, {} sectors", report.area));
    match &report.contents {
        Contents::Blank => line("format", "none: it is blank".into()),
        Contents::Unknown => line("format", "unknown: neither blank nor a cache".into()),
        Contents::Ruined => line("format", "a cache whose superblock is damaged".into()),
        Contents::Replaced(mark) => {
            line("format", format!("none: it holds nothing, {} has replaced it", mark.successor));
        }
        Contents::Native(cache) => {
            line(
                "format",
                format!(
                    "native, version {}, uuid {}",
                    cache.superblock.version(),
                    hex(&cache.superblock.uuid)
                ),
            );
            native(&mut line, cache);
        }
        Contents::Gone(gone) => {
            line("format", format!("{gone}"));
            line("way out", gone.way_out().into());
        }
        Contents::Later(later) => {
            line("format", format!("of a cache; {later}"));
            line("way out", LaterFormat::WAY_OUT.into());
        }
        Contents::Dm(cache) => {
            line("format", "dm (the kernel's), version 1".into());
            line("superblock", format!("{} commits have ended", cache.superblock.seq_count));
            line(
                "entries",
                format!(
                    "{} of a commit that never ended, {} that newer ones replace",
                    cache.leftovers, cache.superseded
                ),
            );
        }
    }
    if let Some(o) = report.occupancy() {
        line(
            "blocks",
            format!(
                "{} of {} bytes: {} free, {} dirty, {} clean, {} bad",
                o.total, o.block_size, o.free, o.dirty, o.clean, o.bad
            ),
        );
        let size = block::size_text(o.dirty_bytes());
        line(
            "dirty",
            match o.dirty_ranges.len() {
                0 => "nothing".into(),
                ranges => format!("{size} in {ranges} ranges of sectors (first, length)"),
            },
        );
        for (first, len) in o.dirty_ranges.iter().take(shown) {
            line("", format!("{first} {len}"));
        }
        line_left(&mut line, o.dirty_ranges.len().saturating_sub(shown));
    }
    for note in &report.notes {
        line("note", note.clone());
    }
    let found = report.damage.len() as u64 + report.damage_left_out;
    line(
        "damage",
        match found {
            0 if is_sound(report) => "none".into(),
            0 if matches!(report.contents, Contents::Gone(_) | Contents::Later(_)) => {
                "not judged".into()
            }
            0 => "not judged: it is no cache that we know".into(),
            found => format!("{found} found, by offset in the area"),
        },
    );
    for finding in report.damage.iter().take(shown) {
        line("", format!("{}: {}", finding.offset, finding.what));
    }
    let unshown = report.damage.len().saturating_sub(shown) as u64 + report.damage_left_out;
    line_left(&mut line, usize::try_from(unshown).unwrap_or(usize::MAX));
    out
}

fn native(line: &mut impl FnMut(&str, String), cache: &NativeCache) {
    let s = &cache.superblock;
    let generation = s.generation;
    line("superblock", format!("generation {generation}, {} of 4 agree", cache.agreeing));
    let known = if s.origin_id == [0; 16] { "unknown".into() } else { hex(&s.origin_id) };
    let guarded = if s.guards_origin { ", guarded" } else { "" };
    line("origin", format!("{} sectors, identity {known}{guarded}", s.origin_sectors));
    let c = &s.checkpoint;
    line(
        "checkpoint",
        match c.units {
            0 => "none".into(),
            units => format!("{}, {units} units in area {}", c.id, c.area),
        },
    );
    let from = c.log_start_seq;
    line(
        "log",
        match cache.log_end {
            Some((last, epoch)) => format!(
                "{} of {} units in use, records {from} to {last}, epoch {epoch}",
                (last + 1).saturating_sub(from),
                s.log_units
            ),
            None => format!("{} units, from record {from} on, damaged", s.log_units),
        },
    );
}

pub(crate) fn line_left(line: &mut impl FnMut(&str, String), left: usize) {
    if left > 0 {
        line("", format!("and {left} more; --all shows them"));
    }
}

fn value(args: &InspectArgs, report: &ProbeReport, shown: usize) -> Value {
    let mut value = json!({
        "image": args.image.to_string_lossy(),
        "start_sector": args.start_sector,
        "area_sectors": report.area.0,
        "format": offline::kind(report),
        "sound": is_sound(report),
        "notes": report.notes,
        "unused_journals": report.unused_journals,
        "damage_found": report.damage.len() as u64 + report.damage_left_out,
        "damage": report.damage.iter().take(shown)
            .map(|f| json!({ "offset": f.offset, "what": f.what })).collect::<Vec<_>>(),
    });
    match &report.contents {
        Contents::Blank | Contents::Unknown | Contents::Ruined => {}
        Contents::Gone(gone) => {
            value["gone"] = json!({
                "option": gone.option(), "what": gone.to_string(), "way_out": gone.way_out(),
            });
        }
        Contents::Later(later) => {
            value["later"] = json!({
                "incompat": later.incompat, "ro_compat": later.ro_compat,
                "written_by": later.written_by, "way_out": LaterFormat::WAY_OUT,
            });
        }
        Contents::Replaced(mark) => value["replaced_by"] = mark.successor.as_str().into(),
        Contents::Native(cache) => {
            native_value(&mut value, cache);
        }
        Contents::Dm(cache) => {
            value["superblock"] = json!({ "seq_count": cache.superblock.seq_count });
            value["entries"] =
                json!({ "leftovers": cache.leftovers, "superseded": cache.superseded });
        }
    }
    if let Some(o) = report.occupancy() {
        value["blocks"] = occupancy(o);
        value["dirty_range_count"] = o.dirty_ranges.len().into();
        value["dirty_ranges"] =
            o.dirty_ranges.iter().take(shown).map(|(at, len)| json!([at.0, len.0])).collect();
    }
    value
}

fn native_value(value: &mut Value, cache: &NativeCache) {
    let s = &cache.superblock;
    let copies = cache.copies.iter().map(|copy| match copy {
        Ok(generation) => json!({ "generation": generation }),
        Err(damage) => json!({ "damage": damage.to_string() }),
    });
    value["uuid"] = hex(&s.uuid).into();
    value["superblock"] = json!({
        "generation": s.generation,
        "agreeing": cache.agreeing,
        "copies": copies.collect::<Vec<_>>(),
    });
    let identity = (s.origin_id != [0; 16]).then(|| hex(&s.origin_id));
    value["origin"] =
        json!({ "sectors": s.origin_sectors, "identity": identity, "guarded": s.guards_origin });
    value["checkpoint"] = json!({
        "id": s.checkpoint.id, "area": s.checkpoint.area, "units": s.checkpoint.units,
    });
    value["log"] = json!({
        "units": s.log_units,
        "first_record": s.checkpoint.log_start_seq,
        "last_record": cache.log_end.map(|(last, _)| last),
        "epoch": cache.log_end.map(|(_, epoch)| epoch),
    });
}

fn occupancy(o: &Occupancy) -> Value {
    json!({
        "block_size": o.block_size,
        "total": o.total,
        "free": o.free,
        "dirty": o.dirty,
        "clean": o.clean,
        "bad": o.bad,
    })
}
