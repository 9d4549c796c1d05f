// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond recover`: writes a cache's dirty blocks back to its origin, offline.
//!
//! ```text
//!   probe ─▶ is it this origin's? ─▶ open as the target does ─▶ flush ─▶ suspend ─▶ both durable
//! ```
//!
//! The engine recovers, writes back and empties the cache, so its guarantees hold: blocks are
//! written in ascending order, after a check of their checksums; a block is clean after the
//! origin's flush; a crash at any point loses nothing, and the next run continues.
//!
//! Invariants
//! - CL-R1 An origin that is not the cache's own is written to with the token of the refusal only.
//! - CL-R2 Afterwards the cache holds no block: it can't be replayed over an origin that has
//!   changed. Then, not before, the record of a volume ends that named the cache.
//! - CL-R3 What somebody wrote over a guard is kept, or overwritten, with the token of the refusal
//!   only. A dry run makes the checks of a real one, but for the data of a volume, which can't be
//!   read before it is opened.
use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::{BlockDevice, Class, Error, ErrorKind, Nanos, Sector, Target};
use clap::Args;
use control::{EXIT_DONE, EXIT_FAILED, Failure, plain};
use format::LaterFormat;
use host::{Listing, print_error};
use serde_json::json;
use uring::Files;
use writecache::{
    Config, Contents, DamagedRanges, Depth, Mode, Occupancy, OriginGuard, ProbeReport, WriteCache,
};

use crate::columns::utc;
use crate::inspect::hex;
use crate::inspect_volume::url_of;
use crate::offline::{self, Access, refusal};
use crate::progress::ProgressLine;
use crate::volume_origin::{Argument, OpenOrigin, Origin, OriginFacts, StoredVolume};

/// How often the progress is asked for.
const LOOK_EVERY: Nanos = Nanos::from_secs(1);
/// Lost blocks that are listed.
const LOST_SHOWN: usize = 20;

/// The arguments that name a cache and what it is.
const WITH_CACHE: [&str; 3] = ["cache", "origin", "start_sector"];

/// Write a cache's dirty blocks back to its origin, without a daemon
///
/// Takes caches of our format and of the kernel's. Blocks go out in ascending order, those with
/// checksums checked; then the cache is emptied, durably, so that it can never be replayed over an
/// origin that has changed since. It may be stopped at any moment and run again. The journal in
/// memory that a killed daemon left in its run directory is applied first (`--run-dir`). An origin
/// of another size or identity is refused with a token, so is one that was used without its cache,
/// by a repair of its file system for example, and so is a journal that can't be used: `--force
/// TOKEN` goes on all the same.
///
/// The origin may be a volume on an object store, by its URL. It does not record the cache any more
/// then, and is used alone.
///
/// A guarded origin (table option `guard_origin`) whose cache is lost is given back by
/// `--without-cache`: it is as it was when the cache last wrote to it. What only the cache held is
/// lost. The cache refuses the origin from then on, if it turns up again. Where somebody has
/// written over the guard it is refused with two tokens: for what is there now, and for what was
/// there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond recover --cache /srv/cache.img --origin /srv/origin.img --dry-run
  millpond recover --cache /srv/cache.img --origin /srv/origin.img
  millpond recover --cache /dev/nvme0n1p4 --start-sector 2048 --origin /dev/sdb
  millpond recover --cache /dev/nvme0n1p4 --origin s3://bucket/disks/one --take-over
  millpond recover --without-cache /dev/sdb    # the cache is lost, the origin was guarded

Exit codes: 0 the origin has everything; 1 failed, refused, or blocks are lost; 2 usage; 3 no such \
file; 4 in use.")]
pub struct RecoverArgs {
    /// The cache device, or its image
    #[arg(long, value_name = "IMAGE", required_unless_present = "without_cache")]
    pub(crate) cache: Option<PathBuf>,
    /// The origin: what is written to. A device, its image, or the URL of a volume
    #[arg(long, value_name = "DEV|URL", required_unless_present = "without_cache")]
    pub(crate) origin: Option<PathBuf>,
    /// The cache is lost: take its guard from this origin, which then is as it last was. A volume
    /// does not record the cache any more
    #[arg(long, value_name = "DEV|URL", conflicts_with_all = WITH_CACHE)]
    pub(crate) without_cache: Option<PathBuf>,
    /// Where the cache begins on its device
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) start_sector: u64,
    /// Show what would be written, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Take this origin although it is not the cache's own, or was used without it: the token of
    /// the refusal
    #[arg(long, value_name = "TOKEN")]
    pub(crate) force: Option<String>,
    /// Take the volume although a host has it open, or died with it: a daemon loses it
    #[arg(long)]
    pub(crate) take_over: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Runs the verb; returns what to exit with.
pub(crate) fn run(args: RecoverArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let (reactor, files) = offline::core(run_dir)?;
    reactor.block_on(async move { recover(&args, &files).await })
}

async fn recover(args: &RecoverArgs, files: &Files) -> Result<u8, Failure> {
    if let Some(origin) = &args.without_cache {
        return recover_without_cache(args, origin, files).await;
    }
    let (Some(cache), Some(origin)) = (&args.cache, &args.origin) else {
        unreachable!("the command line requires both");
    };
    recover_with_cache(args, &Images { cache, origin }, files).await
}

/// Takes the guard of a lost cache from its origin.
async fn recover_without_cache(
    args: &RecoverArgs,
    origin: &Path,
    files: &Files,
) -> Result<u8, Failure> {
    let (verb, name) = ("recover", "--without-cache");
    let argument = Argument { verb, name, take_over: args.take_over };
    if let Some(url) = url_of(origin) {
        return recover_volume(args, &url, &argument, files).await;
    }
    let access = if args.dry_run { Access::Read } else { Access::Write };
    let Origin::Device(device) = Origin::find(&argument, files, origin, access).await? else {
        unreachable!("it is no URL");
    };
    let guard = writecache::find_guard(&*device).await?.ok_or_else(|| {
        let text = format!("{}: no write cache guards it: nothing was changed", origin.display());
        Failure::new(ErrorKind::Invalid, text)
    })?;
    let decision = decide_damaged(&guard, &path(origin), args.force.as_deref())?;
    if !args.dry_run {
        restore(device, decision).await?;
    }
    let what = if args.dry_run { "would be given back" } else { "was given back" };
    let (name, cache) = (origin.display(), plain(&guard.cache));
    let value = json!({
        "origin": path(origin), "dry_run": args.dry_run, "cache": guard.cache,
        "uuid": hex(&guard.uuid), "ranges": guard.ranges,
    });
    args.listing.print(&value, || {
        format!(
            "{name} {what} as it last was: the cache {cache} (uuid {}) may have held newer blocks, \
             which are lost\n",
            hex(&guard.uuid)
        )
    })?;
    Ok(EXIT_DONE)
}

/// What counts of ranges of a guard that somebody has written to: the operator says so (CL-R3).
fn decide_damaged(
    guard: &OriginGuard,
    name: &str,
    force: Option<&str>,
) -> Result<Option<DamagedRanges>, Failure> {
    let Some(sector) = guard.damaged.first() else { return Ok(None) };
    let decisions = match guard.restorable.is_empty() {
        true => vec![DamagedRanges::Kept],
        false => vec![DamagedRanges::Kept, DamagedRanges::Restored],
    };
    let given = decisions.iter().find(|decision| force == Some(&guard.token(**decision)));
    if let Some(decision) = given {
        return Ok(Some(*decision));
    }
    let ways = decisions.iter().map(|decision| {
        let does = match decision {
            DamagedRanges::Kept => "keeps what is there now",
            DamagedRanges::Restored => "puts back what the cache last wrote there, over it",
        };
        format!("`--force {}` {does}", guard.token(*decision))
    });
    let ways: Vec<String> = ways.collect();
    let stale = match force {
        Some(given) => format!("the token {given} does not stand for what is there now; "),
        None => String::new(),
    };
    let held = match guard.restorable.is_empty() {
        true => "what they held is in neither of its slots",
        false => "a slot has what they held",
    };
    Err(refusal(format!(
        "{name}: somebody has written to its sectors from {sector} on, where its guard is: {held}; \
         {stale}nothing was changed there. {}; what lies elsewhere is as it is. Check the file \
         system then",
        ways.join(", ")
    )))
}

async fn restore(
    origin: Rc<dyn BlockDevice>,
    decision: Option<DamagedRanges>,
) -> Result<OriginGuard, Error> {
    match decision {
        None => writecache::restore_origin(origin).await,
        Some(decision) => writecache::restore_damaged_origin(origin, decision).await,
    }
}

/// Opens a volume without the cache that it has recorded, and takes the guard of a lost cache from
/// it. The record ends first: the volume takes no writes before.
async fn recover_volume(
    args: &RecoverArgs,
    url: &str,
    argument: &Argument,
    files: &Files,
) -> Result<u8, Failure> {
    if args.dry_run {
        let text = format!("--dry-run: {url}: `millpond inspect` shows the cache of a volume");
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    let stored = StoredVolume::find(argument, files, url).await?;
    let given_up = stored.recorded().map(|cache| cache.uuid);
    let options = objvol::OpenOptions { without_cache: given_up, ..offline::volume_options() };
    let volume = stored.open(options).await?;
    let device = volume.device.clone();
    let restored = async {
        let Some(guard) = writecache::find_guard(&*device).await? else { return Ok(None) };
        let decision = decide_damaged(&guard, url, args.force.as_deref())?;
        Ok::<_, Failure>(Some(restore(device, decision).await?))
    };
    let restored = restored.await;
    let guard = volume.close(restored).await?;
    let uuid = given_up.or(guard.as_ref().map(|guard| guard.uuid)).ok_or_else(|| {
        let text = format!("{}: {url}: records no write cache, and none guards it", argument.name);
        Failure::new(ErrorKind::Invalid, text)
    })?;
    let uuid = hex(&uuid);
    let value = json!({ "origin": url, "uuid": uuid, "guarded": guard.is_some() });
    args.listing.print(&value, || {
        format!(
            "{url} is used without the cache {uuid} from now on, which may have held newer blocks: \
             they are lost\n"
        )
    })?;
    Ok(EXIT_DONE)
}

/// Where a cache and its origin are.
struct Images<'a> {
    cache: &'a Path,
    origin: &'a Path,
}

async fn recover_with_cache(
    args: &RecoverArgs,
    images: &Images<'_>,
    files: &Files,
) -> Result<u8, Failure> {
    let access = if args.dry_run { Access::Read } else { Access::Write };
    let (start, cache) = (Sector(args.start_sector), offline::open(files, images.cache, access)?);
    let report = writecache::probe(cache.clone(), start, Depth::Metadata).await?;
    let place = offline::place(images.cache, start);
    let found = contents(&report, &place)?;
    let argument = Argument { verb: "recover", name: "--origin", take_over: args.take_over };
    let origin = Origin::find(&argument, files, images.origin, access).await?;
    let check = OriginCheck {
        report: &report,
        found,
        facts: origin.facts(),
        cache: (images.cache, start, &cache),
        force: args.force.as_deref(),
    };
    let (sectors, mut adopts) = check.run(origin.device()).await?;
    let plan = Plan::of(found);
    if args.dry_run {
        print_result(args, images, &plan, "would be written back")?;
        return Ok(EXIT_DONE);
    }
    let mut config =
        Config::new(Mode::Ssd, path(images.origin), path(images.cache), found.block_size);
    config.start_sector = start;
    config.write_buffer = 0; // no client writes
    config.guard.asked = Some(false); // the origin is used alone from now on
    // The epochs of an ordered cache keep their order; those of another are one.
    config.ordered = matches!(report.contents, Contents::Native(_));
    let origin = origin.open().await?;
    if origin.is_volume() {
        // Its data can be read now.
        adopts = match check.run(Some(&origin.device)).await {
            Ok((_, adopts)) => adopts,
            Err(refused) => return origin.close(Err(refused)).await,
        };
    }
    config.adopt_origin = adopts;
    let lost = write_back(config, &origin, &cache, sectors).await;
    let lost = origin.close(lost).await?;
    if lost != 0 {
        let report = writecache::probe(cache, start, Depth::Data).await?;
        for finding in report.damage.iter().take(LOST_SHOWN) {
            let what = format!("{place}: offset {}: {}", finding.offset, finding.what);
            print_error(&format!("millpond: recover: {}", plain(&what)));
        }
        let message = format!(
            "{lost} blocks can't be read and stay in {place}, all others are on {}; to give them \
             up, `millpond wipe` the cache",
            images.origin.display()
        );
        print_error(&format!("millpond: recover: {}", plain(&message)));
        return Ok(EXIT_FAILED);
    }
    print_result(args, images, &plan, "written back")?;
    Ok(EXIT_DONE)
}

/// Writes back what the cache holds, and empties it (CL-R2). Returns how many blocks can't be read:
/// if there are any, they stay, and so does what names the cache.
async fn write_back(
    config: Config,
    origin: &OpenOrigin,
    cache: &Rc<dyn BlockDevice>,
    sectors: Sector,
) -> Result<u64, Failure> {
    let target = WriteCache::new("recover", config, origin.device.clone(), cache.clone(), sectors)?;
    target.clone().resume().await?;
    let progress = show_progress(&target);
    let mut flushed = target.clone().message(vec!["flush".into()]).await.map(drop);
    drop(progress);
    let count = |name| Ok::<u64, Error>(target.attribute(name)?.number().unwrap_or(0));
    let lost = count("bad_blocks")?;
    let is_left = count("dirty_blocks")? + count("zero_blocks")? > 0;
    if origin.is_volume() && lost == 0 {
        flushed = flushed.and(target.clone().empty().await); // clean blocks, too
    }
    let settled = target.clone().suspend().await;
    for device in [&origin.device, cache] {
        let flushed = reactor::flush(&**device, Class::Foreground).await;
        flushed.map_err(|s| Error::io(format!("{}: flush: {s}", device.name())))?;
    }
    // A flush fails of lost blocks, too: what else it has left must not be given up with them.
    if lost == 0 || is_left {
        let mut done = flushed.and(settled);
        if origin.is_volume() && done.is_ok() {
            done = target.release_origin().await;
        }
        done.map_err(|e| {
            let what = "stopped; run it again when the device is repaired: it continues";
            Failure::from(e).within(what)
        })?;
    }
    Ok(lost)
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// What the cache holds. Fails when it is no cache, or too damaged to open.
fn contents<'a>(report: &'a ProbeReport, place: &str) -> Result<&'a Occupancy, Failure> {
    let found = match &report.contents {
        Contents::Blank => Err(format!("{place}: is blank: there is nothing to recover")),
        Contents::Replaced(mark) => Err(format!(
            "{place}: holds nothing: {} has replaced it, and may hold blocks that the \
             origin does not have",
            mark.successor
        )),
        Contents::Gone(gone) => Err(format!(
            "{place}: holds {gone}: {}. `millpond wipe` gives up what it holds; nothing was \
             changed",
            gone.way_out()
        )),
        Contents::Later(later) => Err(format!(
            "{place}: {later}: {}. `millpond wipe` gives up what it holds; nothing was changed",
            LaterFormat::WAY_OUT
        )),
        Contents::Unknown => Err(format!("{place}: is no cache; --start-sector says where one is")),
        Contents::Ruined | Contents::Native(_) | Contents::Dm(_) => {
            report.occupancy().ok_or_else(|| {
                let first = report.damage.first().map_or("", |finding| finding.what.as_str());
                format!("{place}: is damaged: {first}; `millpond inspect` shows all damage")
            })
        }
    };
    found.map_err(|message| Failure::new(ErrorKind::Invalid, message))
}

/// Whether an origin is the one of a cache.
struct OriginCheck<'a> {
    report: &'a ProbeReport,
    found: &'a Occupancy,
    facts: OriginFacts,
    /// Its path, where it begins, and its device.
    cache: (&'a Path, Sector, &'a Rc<dyn BlockDevice>),
    /// The token that was given.
    force: Option<&'a str>,
}

impl OriginCheck<'_> {
    /// The length to map, and whether the origin has to be adopted (CL-R1). `origin` is there if it
    /// can be read now.
    async fn run(&self, origin: Option<&Rc<dyn BlockDevice>>) -> Result<(Sector, bool), Failure> {
        let (cache, start, device) = self.cache;
        let mut is_used = None;
        if let Some(origin) = origin {
            is_used = self.report.find_use(start, &**origin, &**device).await?;
        }
        let is_used = is_used.map(|how| {
            format!(
                "{how}. If it counts as it is now, `millpond wipe {}` gives up what the cache \
                 holds, and `millpond recover --without-cache {}` takes the rest of the guard away",
                cache.display(),
                self.facts.name
            )
        });
        check_origin(self.report, self.found, &self.facts, is_used, self.force)
    }
}

/// As [`OriginCheck::run`]; `is_used` is how the origin was used without its cache, if it was.
fn check_origin(
    report: &ProbeReport,
    found: &Occupancy,
    origin: &OriginFacts,
    is_used: Option<String>,
    force: Option<&str>,
) -> Result<(Sector, bool), Failure> {
    let OriginFacts { name, capacity, identity } = origin;
    let block = u64::from(found.block_size / 512);
    let has = Sector(capacity.0 / block * block);
    let end = found.dirty_ranges.last().map_or(Sector::ZERO, |(at, len)| *at + *len);
    let (needs, own_id) = match &report.contents {
        Contents::Native(cache) => {
            (Sector(cache.superblock.origin_sectors), cache.superblock.origin_id)
        }
        // The kernel's format does not identify its origin: all cached blocks must lie on it.
        Contents::Dm(_) => (has.max(end), [0; 16]),
        Contents::Blank
        | Contents::Unknown
        | Contents::Ruined
        | Contents::Replaced(_)
        | Contents::Gone(_)
        | Contents::Later(_) => unreachable!("not a cache"),
    };
    if has < needs {
        return Err(Failure::new(
            ErrorKind::Invalid,
            format!("{name}: has {has} sectors, the cache is of an origin of {needs}"),
        ));
    }
    let mut doubts = Vec::new();
    let identity = identity.as_ref().map(|text| (format::origin_id(text), text));
    // Its own may have grown: a `resize` that was killed has done that alone.
    let is_own = identity.as_ref().is_some_and(|(id, _)| own_id != [0; 16] && *id == own_id);
    if has > needs && !is_own {
        doubts.push(format!("has {has} sectors, the cache's own has {needs}"));
    }
    let other = identity.filter(|(id, _)| own_id != [0; 16] && *id != own_id);
    if let Some((id, text)) = &other {
        doubts.push(format!(
            "has identity {} ({}), the cache's own has {}: it is another device, or a copy",
            hex(id),
            identity_text(text),
            hex(&own_id)
        ));
    }
    let unused = &report.unused_journals;
    doubts.extend(unused.iter().map(|why| {
        format!("would not get the newest writes that the cache had acknowledged: {why}")
    }));
    let token = report.token(&format!("recover {has} {other:?} {unused:?} {is_used:?}"));
    let adopts = other.is_some() || is_used.is_some();
    doubts.extend(is_used);
    let doubts = doubts.join("; it ");
    match force {
        Some(given) if doubts.is_empty() || given == token => Ok((needs, adopts)),
        None if doubts.is_empty() => Ok((needs, false)),
        Some(given) => Err(refusal(format!(
            "{name}: {doubts}; the token {given} does not stand for what is there now; nothing was \
             changed. `--force {token}` takes it all the same"
        ))),
        None => Err(refusal(format!(
            "{name}: {doubts}; nothing was changed. `--force {token}` takes it all the same"
        ))),
    }
}

/// An identity as people read it: `inode 7 made 1795535237.123456789` is that of a file.
fn identity_text(identity: &str) -> String {
    let made = identity.rsplit_once(" made ").and_then(|(file, made)| {
        let seconds = made.split_once('.')?.0.parse().ok()?;
        Some(format!("{file} made {}", utc(seconds)))
    });
    made.unwrap_or_else(|| identity.to_owned())
}

/// The work to do.
#[derive(Debug)]
struct Plan {
    blocks: u64,
    bytes: u64,
    ranges: usize,
}

impl Plan {
    fn of(found: &Occupancy) -> Plan {
        let (bytes, ranges) = (found.dirty_bytes(), found.dirty_ranges.len());
        Plan { blocks: found.dirty, bytes, ranges }
    }
}

fn print_result(
    args: &RecoverArgs,
    images: &Images<'_>,
    plan: &Plan,
    what: &str,
) -> Result<(), Failure> {
    let Plan { blocks, bytes, ranges } = plan;
    let value = json!({
        "cache": path(images.cache), "origin": path(images.origin), "dry_run": args.dry_run,
        "blocks": blocks, "bytes": bytes, "ranges": ranges,
    });
    args.listing.print(&value, || {
        format!(
            "{blocks} blocks ({}) in {ranges} ranges {what} from {} to {}\n",
            block::size_text(*bytes),
            images.cache.display(),
            images.origin.display()
        )
    })
}

/// Shows on standard error how far the flush is.
fn show_progress(target: &Rc<WriteCache>) -> Rc<ProgressLine> {
    let line = Rc::new(ProgressLine::begin("recover", "blocks"));
    let (weak, shown) = (Rc::downgrade(target), Rc::downgrade(&line));
    reactor::spawn(async move {
        while let (Some(target), Some(line)) = (weak.upgrade(), shown.upgrade()) {
            let number = |name| target.attribute(name).ok()?.number();
            let progress = (number("flush_done_blocks"), number("flush_total_blocks"));
            if let (Some(done), Some(total)) = progress {
                line.show(done, total);
            }
            drop((target, line));
            reactor::sleep(LOOK_EVERY).await;
        }
    });
    line
}
