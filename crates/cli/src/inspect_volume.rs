// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `millpond inspect` and `millpond check` show of a volume on an object store.
use std::fmt::Write;
use std::path::Path;
use std::rc::Rc;

use block::size_text;
use control::{EXIT_DONE, EXIT_FAILED, Failure, plain};
use format::objvol::{Owner, OwnerState, Place};
use host::{Listing, open_store};
use objstore::{StoreClient, StoreUrl};
use objvol::{
    CheckpointReport, Depth, Health, LostRange, OpenOptions, RecordedCache, Snapshot,
    SnapshotReport, VolumeReport, check,
};
use serde_json::{Value, json};

use crate::columns::utc;
use crate::inspect::{InspectArgs, SHOWN, hex, line_left};
use crate::offline;
use crate::progress::ProgressLine;

/// The URL that an argument is, unless it is a path.
pub(crate) fn url_of(image: &Path) -> Option<String> {
    let text = image.to_str()?;
    text.contains("://").then(|| text.to_owned())
}

/// `millpond inspect URL`.
pub(crate) fn run(args: &InspectArgs, url: &str, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let url = StoreUrl::parse(url)?;
    let (reactor, files) = offline::core(run_dir)?;
    let depth = if args.data { Depth::Data } else { Depth::Metadata };
    let place = url.clone();
    let report = reactor.block_on(async move {
        let store = open_store(&files, &place).await?;
        look("inspect", store, &offline::volume_options(), depth).await
    })?;
    print(&url, &report, &args.listing, args.all)
}

/// Checks a volume and shows the progress of `verb`.
pub(crate) async fn look(
    verb: &'static str,
    store: Rc<StoreClient>,
    options: &OpenOptions,
    depth: Depth,
) -> Result<VolumeReport, Failure> {
    let line = ProgressLine::begin(verb, "bytes");
    Ok(check(store, options, depth, &|done, total| line.show(done, total)).await?)
}

/// Prints the report, with `all` of its lists or the first of each; returns what to exit with.
pub(crate) fn print(
    url: &StoreUrl,
    report: &VolumeReport,
    listing: &Listing,
    all: bool,
) -> Result<u8, Failure> {
    let shown = if all { usize::MAX } else { SHOWN };
    listing.print(&value(url, report, shown), || text(url, report, shown))?;
    Ok(if report.health() == Health::Sound { EXIT_DONE } else { EXIT_FAILED })
}

fn owner_text(owner: Option<&Owner>) -> String {
    match owner {
        None => "nobody has opened it yet".into(),
        Some(Owner { state: OwnerState::Clean, host, .. }) => {
            format!("nobody: host {} closed it in order", plain(host))
        }
        Some(Owner { state: OwnerState::Attached, host, .. }) => {
            format!("host {} has it open, or died with it", plain(host))
        }
    }
}

fn text(url: &StoreUrl, report: &VolumeReport, shown: usize) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        let _ = writeln!(out, "{label:<12}{}", plain(&text));
    };
    let (sectors, size) = (report.sectors, size_text(report.sectors.bytes()));
    line("volume", format!("{url}, {sectors} sectors ({size}), uuid {}", hex(&report.uuid)));
    let (epoch, at) = (report.epoch, utc(report.opened_at));
    line("opened", format!("last by host {}, {at}, as epoch {epoch}", report.host));
    line("owner", owner_text(report.owner.as_ref()));
    if let Some(cache) = report.owner.as_ref().and_then(|owner| owner.cache.as_ref()) {
        let (uuid, at) = (hex(&cache.uuid), utc(cache.attached_at));
        line("cache", format!("{uuid} on {}, since {at}: it may hold newer data", cache.device));
    }
    let behind = match report.end {
        end if end == Place::default() => "nothing was written yet".to_owned(),
        end => format!("{} segments behind it, the last is {end}", report.replayed),
    };
    line(
        "checkpoint",
        match report.checkpoint {
            Some(CheckpointReport { place, objects: 1 }) => {
                format!("of segment {place}; {behind}")
            }
            Some(CheckpointReport { place, objects }) => {
                format!("of segment {place}, in {objects} objects; {behind}")
            }
            None => format!("none; {behind}"),
        },
    );
    let (segments, stored) = (report.segments.count, size_text(report.segments.bytes));
    let (live, extents) = (size_text(report.live_bytes), report.extents);
    line("segments", format!("{segments} with {stored}; {live} are live, in {extents} extents"));
    line(
        "checksums",
        match report.checked_bytes {
            0 => "of no data were compared".into(),
            bytes => format!("of {} were compared", size_text(bytes)),
        },
    );
    for of in &report.snapshots {
        let damage = of.damage.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        line("snapshot", format!("{}, {}{damage}", of.snapshot.name, utc(of.snapshot.created_at)));
    }
    line(
        "lost",
        match report.lost.len() {
            0 => "nothing".into(),
            ranges => format!("{ranges} ranges of sectors (first, length)"),
        },
    );
    for range in report.lost.iter().take(shown) {
        line("", format!("{} {}: {}", range.start, range.len, range.why));
    }
    line_left(&mut line, report.lost.len().saturating_sub(shown));
    for note in report.notes.iter().take(shown) {
        line("note", note.clone());
    }
    line_left(&mut line, report.notes.len().saturating_sub(shown));
    line(
        "damage",
        match report.damage.len() {
            0 => "none".into(),
            _ => format!(
                "it does not open; {} segments are cut off: `millpond check {url} --repair` gives \
                 them up",
                report.cut_off
            ),
        },
    );
    for damage in report.damage.iter().take(shown) {
        line("", damage.clone());
    }
    line_left(&mut line, report.damage.len().saturating_sub(shown));
    out
}

fn range_value(lost: &LostRange) -> Value {
    json!({ "start": lost.start.0, "sectors": lost.len.0, "why": lost.why })
}

fn snapshot_value(of: &SnapshotReport) -> Value {
    let Snapshot { name, created_at, volume_sectors, .. } = &of.snapshot;
    json!({
        "name": name, "created_at": created_at, "sectors": volume_sectors, "damage": of.damage,
    })
}

fn value(url: &StoreUrl, report: &VolumeReport, shown: usize) -> Value {
    let health = match report.health() {
        Health::Sound => "sound",
        Health::Lossy => "lossy",
        Health::Broken => "broken",
    };
    let owner = report.owner.as_ref().map(|owner| {
        let is_attached = owner.state == OwnerState::Attached;
        let cache = owner.cache.as_ref().map(|cache| {
            let RecordedCache { uuid, attached_at, device } = cache;
            json!({ "uuid": hex(uuid), "attached_at": attached_at, "device": device })
        });
        json!({ "host": owner.host, "attached": is_attached, "cache": cache })
    });
    json!({
        "url": url.to_string(),
        "format": "volume on an object store",
        "health": health,
        "sound": report.health() == Health::Sound,
        "uuid": hex(&report.uuid),
        "sectors": report.sectors.0,
        "segment_bytes": report.segment_bytes,
        "opened": { "epoch": report.epoch, "host": report.host, "at": report.opened_at },
        "lineage": hex(&report.lineage),
        "owner": owner,
        "checkpoint": report.checkpoint.map(|checkpoint| checkpoint.place.to_string()),
        "checkpoint_objects": report.checkpoint.map_or(0, |checkpoint| checkpoint.objects),
        "replayed_segments": report.replayed,
        "last_segment": report.end.to_string(),
        "segments": report.segments.count,
        "stored_bytes": report.segments.bytes,
        "live_bytes": report.live_bytes,
        "extents": report.extents,
        "checked_bytes": report.checked_bytes,
        "damage_found": report.damage.len(),
        "damage": report.damage.iter().take(shown).collect::<Vec<_>>(),
        "cut_off_segments": report.cut_off,
        "lost_range_count": report.lost.len(),
        "lost_ranges": report.lost.iter().take(shown).map(range_value).collect::<Vec<_>>(),
        "snapshots": report.snapshots.iter().map(snapshot_value).collect::<Vec<_>>(),
        "notes": report.notes.iter().take(shown).collect::<Vec<_>>(),
    })
}
