// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Engines as target types: makes each from a table line. Engines and the device mapper do not know
//! each other; they are joined here.
//!
//! `dm` checks that no two of them use the same sectors (`dm::overlap`).
use std::rc::Rc;

use block::attr::{Manual, Spec};
use block::value::digits;
use block::{BlockDevice, CoreId, Error, ErrorKind, Sector, Target};
use dm::{Constructing, Context, Dm, TargetType, Whole, WholeOf};
use pagecache::PageCache;
use writecache::{CacheEvent, Config, Mode, StaleOrigin, WriteCache};

use crate::cache_warnings;
use crate::claims::{Claims, engine};
use crate::leaf_word::as_pmem;
use crate::leaves::Leaves;
use crate::log::BlockLog;
use crate::object_volume;
use crate::zram_factory::{self, ZramFactory};

/// What the constructors of engines need. Clones are the same.
#[derive(Clone)]
struct Machine {
    claims: Rc<Claims>,
    leaves: Leaves,
    zram_factory: ZramFactory,
}

/// An engine's target type.
struct EngineType {
    manual: &'static Manual,
    construct: fn(Machine, Context, Vec<String>) -> Constructing,
    /// What the length `-` means to it.
    whole: Option<WholeOf>,
    /// It grows by itself.
    grows: bool,
}

/// All engines.
static ENGINES: [EngineType; 4] = [
    EngineType {
        manual: &pagecache::MANUAL,
        construct: |_, ctx, args| Box::pin(page_cache(ctx, args)),
        whole: Some(|args| Whole::of_device(args, 0, Sector(1))),
        grows: false,
    },
    EngineType {
        manual: &objvol::MANUAL,
        construct: |machine, ctx, args| {
            Box::pin(async move {
                object_volume::construct(&machine.claims, &machine.leaves, ctx, args).await
            })
        },
        whole: None,
        grows: true,
    },
    EngineType {
        manual: &writecache::MANUAL,
        construct: |machine, ctx, args| Box::pin(write_cache(machine, ctx, args)),
        whole: Some(whole_origin),
        grows: false,
    },
    EngineType {
        manual: &zram::MANUAL,
        construct: |machine, ctx, args| {
            Box::pin(zram_factory::construct(machine.zram_factory, ctx, args))
        },
        whole: None,
        grows: false,
    },
];

/// Registers the engines' target types. `cores` are those that parts of devices may run on, core 0
/// first. Returns the maker of compressed RAM disks without a table, and the record of all engines.
pub(crate) fn register(
    dm: &Rc<Dm>,
    leaves: &Leaves,
    cores: &[CoreId],
) -> (ZramFactory, Rc<Claims>) {
    let claims = Rc::new(Claims::new(dm));
    let zram_factory = ZramFactory::new(dm, leaves.clone(), claims.clone(), cores);
    let machine = Machine { claims, leaves: leaves.clone(), zram_factory };
    for EngineType { manual, construct, whole, grows } in &ENGINES {
        let of = machine.clone();
        let constructor = move |ctx, args| construct(of.clone(), ctx, args);
        let kind = engine(manual, &machine.claims, constructor);
        dm.register(TargetType { whole: *whole, grows: *grows, ..kind });
    }
    (machine.zram_factory, machine.claims)
}

/// The length `-` of a write cache: whole blocks of its origin.
fn whole_origin(args: &[String]) -> Option<Whole> {
    // A wrong block size is for the constructor to report.
    let block_size = args.get(3).and_then(|word| digits(word)).unwrap_or(4096).clamp(512, 4096);
    Whole::of_device(args, 1, Sector::from_bytes(block_size))
}

/// All target types, by name, for `help`.
pub fn manuals() -> Vec<&'static Manual> {
    let built_in = dm::built_in().into_iter().map(|kind| kind.manual);
    let mut all: Vec<_> = built_in.chain(ENGINES.iter().map(|kind| kind.manual)).collect();
    all.sort_by_key(|manual| manual.name);
    all
}

/// The tables of all attributes, each with those that have them: target types first.
pub fn attribute_tables() -> Vec<(&'static str, Vec<&'static Spec>)> {
    let of_targets = manuals().into_iter().map(|manual| (manual.name, (manual.specs)()));
    of_targets.chain(crate::sysfs::tables()).collect()
}

/// Registers the engines' target types, for a device mapper that makes devices by tables only.
pub fn register_targets(dm: &Rc<Dm>, leaves: &Leaves, cores: &[CoreId]) {
    let _ = register(dm, leaves, cores);
}

/// The kernel's words.
const CACHE_LOOKUP_FAILED: &str = "Cache data device lookup failed";

async fn write_cache(
    machine: Machine,
    ctx: Context,
    args: Vec<String>,
) -> Result<Rc<dyn Target>, Error> {
    let Machine { claims, leaves, .. } = machine;
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut config = Config::parse(&words)?;
    config.guard.is_default = claims.is_configured(ctx.device());
    let origin = ctx.lookup_or("Origin data device lookup failed", &config.origin).await?;
    let cache = match config.mode {
        Mode::Ssd => ctx.lookup_or(CACHE_LOOKUP_FAILED, &config.cache).await,
        Mode::Pmem => persistent_memory(&claims, &ctx, &config.cache).await,
    };
    let cache = match cache {
        Ok(cache) => cache,
        Err(e) => return without_cache(&leaves, &ctx, config, origin, e),
    };
    if Rc::ptr_eq(&origin, &cache) {
        let both = &config.origin;
        return Err(Error::invalid(format!("origin and cache are the same device, {both}")));
    }
    ctx.check_area(&*origin, block::Sector::ZERO, ctx.len())?;
    let log = Rc::new(BlockLog::new(ctx.device(), config.block_size));
    let (below, start) = ([origin.clone(), cache.clone()], config.start_sector);
    let target = WriteCache::new(ctx.device(), config, origin, cache, ctx.len())?;
    cache_warnings::warn((&claims, &leaves), &ctx, &below, start).await;
    let events = ctx.events();
    target.on_event(move |event| {
        if event == CacheEvent::NoJournal {
            // Whoever makes the device should hear it, too.
            leaves.warn(format!("{}: {event}", log.device()));
            return;
        }
        match event.block() {
            Some((kind, sector)) => log.error(kind, sector, &event),
            None if event.is_progress() => {
                tracing::info!(device = log.device(), "{event}");
                return;
            }
            None if event.is_over() => tracing::info!(device = log.device(), "{event}"),
            None => tracing::error!(device = log.device(), "{event}"),
        }
        events.raise();
    });
    Ok(target)
}

/// What the line of a cache is whose cache device was not found: an error with a token, or with
/// that token its origin alone, read-only.
fn without_cache(
    leaves: &Leaves,
    ctx: &Context,
    config: Config,
    origin: Rc<dyn BlockDevice>,
    e: Error,
) -> Result<Rc<dyn Target>, Error> {
    let is_missing = [ErrorKind::NotFound, ErrorKind::NoFile, ErrorKind::NoDevice, ErrorKind::Io];
    if !is_missing.contains(&e.kind()) {
        return Err(e);
    }
    let token = StaleOrigin::token(ctx.device(), &config);
    if ctx.force() != Some(&*token) {
        // A new cache with a mistyped name is more frequent than a lost one.
        let new = "a new one has to be made first, with `truncate` or `lvcreate`";
        let e = Error::new(e.kind(), format!("{}; {new}", e.chain()));
        let what = "is for a cache that is lost: it makes the device of its origin alone, \
                    read-only: what only the cache holds is not visible then, and reads may return \
                    OLD data";
        return Err(e.unless_forced(token, what));
    }
    ctx.check_area(&*origin, Sector::ZERO, ctx.len())?;
    let cache = match config.mode {
        Mode::Ssd => None,
        Mode::Pmem => as_pmem(&config.cache),
    };
    let cache = cache.map_or_else(|| config.cache.clone(), Into::into);
    let target = StaleOrigin::new(ctx.device(), config, cache, origin, ctx.len())?;
    leaves.warn(format!("{}: {}", ctx.device(), target.problem()));
    Ok(target)
}

/// The cache device of mode p: mapped, or refused as the kernel refuses it.
async fn persistent_memory(
    claims: &Claims,
    ctx: &Context,
    word: &str,
) -> Result<Rc<dyn BlockDevice>, Error> {
    let is_mapped = claims.is_mapped(word);
    let word = as_pmem(word).filter(|_| !is_mapped).ok_or_else(|| {
        let kind = ErrorKind::NotSupported;
        let text = "Persistent memory or DAX not supported on this system";
        let allowed = "the path of a file on a file system mounted with DAX, or of a DAX device, \
                       is allowed, and of any file for tests; or mode `s`";
        Error::new(kind, format!("{text}: cache `{word}` can't be mapped: {allowed}"))
    })?;
    ctx.lookup_or(CACHE_LOOKUP_FAILED, &word).await
}

async fn page_cache(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some((word, options)) = words.split_first() else {
        return Err(Error::invalid("must be DEVICE [#opt_args [OPTION VALUE]...]"));
    };
    let config = pagecache::Config::parse(options)?;
    let below = ctx.lookup(word).await?;
    ctx.check_area(&*below, block::Sector::ZERO, ctx.len())?;
    let target = PageCache::new(ctx.device(), config, below, ctx.len())?;
    let events = ctx.events();
    let device = ctx.device().to_owned();
    target.on_failure(move || {
        tracing::error!(
            device,
            "buffered: dirty pages could not be written; they are kept, and tried again"
        );
        events.raise();
    });
    Ok(target)
}

#[cfg(test)]
#[path = "targets_tests.rs"]
mod tests;
