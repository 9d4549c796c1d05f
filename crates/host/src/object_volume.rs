// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Volumes on object stores: what the engine does not know of the world, and its target.
//!
//! Invariants
//! - HO-OV1 Two devices never have the same volume, by whatever name: the second would take it over
//!   from the first. Snapshots of it may have any number.
use std::any::Any;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use block::{Error, Target};
use dm::Context;
use objstore::{CallCore, StoreClient, StoreUrl, UnboundClient, variables};
use objvol::{Environment, ObjectStore, TargetConfig, VolumeEvent, VolumeTarget, split_snapshot};
use uring::Files;

use crate::claims::Claims;
use crate::leaves::Leaves;

/// A client of a store for this core, whose files these are.
///
/// # Errors
/// As [`UnboundClient::open`].
pub async fn open_store(files: &Files, url: &StoreUrl) -> Result<Rc<StoreClient>, Error> {
    let (of, name) = (url.clone(), url.to_string());
    let unbound = files.away(&name, move || UnboundClient::open(&of, &variables())).await?;
    let files = files.clone();
    let caller = move || -> CallCore {
        let sender = files.sender();
        // Fails if the core has ended; then nothing waits there.
        Box::new(move |f| drop(sender.call(f)))
    };
    Ok(Rc::new(unbound.on_this_core(Rc::new(caller))))
}

#[expect(clippy::disallowed_methods, reason = "the time of day, for people")]
fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Host and clock for volumes.
pub fn volume_environment() -> Environment {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Environment { host, clock: seconds_since_1970 }
}

/// HO-OV1.
fn check_unused(claims: &Claims, ctx: &Context, store: &StoreClient) -> Result<(), Error> {
    let url = store.name();
    for (owner, target) in claims.all() {
        let target: Rc<dyn Any> = target;
        let is_it = target.downcast::<VolumeTarget>().is_ok_and(|volume| {
            let is_there = volume.config().url() == url || volume.place() == store.place();
            is_there && volume.config().snapshot().is_none()
        });
        if is_it && owner != ctx.device() {
            return Err(Error::busy(format!("{url} is the volume of device {owner}")));
        }
    }
    Ok(())
}

/// The target of a table line.
pub(crate) async fn construct(
    claims: &Claims,
    leaves: &Leaves,
    ctx: Context,
    args: Vec<String>,
) -> Result<Rc<dyn Target>, Error> {
    let mut words: Vec<&str> = args.iter().map(String::as_str).collect();
    let spelling;
    let mut url = None;
    if let Some(first) = words.first_mut() {
        let (url_word, snapshot) = split_snapshot(first);
        let parsed = StoreUrl::parse(url_word)?;
        spelling = match snapshot {
            Some(name) => format!("{parsed}@{name}"),
            None => parsed.to_string(),
        };
        *first = &spelling;
        url = Some(parsed);
    }
    let config = TargetConfig::parse(&words)?;
    let url = url.expect("the configuration has a URL");
    let store = open_store(leaves.files()?, &url).await?;
    if config.snapshot().is_none() {
        check_unused(claims, &ctx, &store)?;
    }
    let target = VolumeTarget::new(ctx.device(), config, store, ctx.len(), volume_environment())?;
    let (events, device) = (ctx.events(), ctx.device().to_owned());
    target.on_event(move |event| match event {
        VolumeEvent::Made(_) => tracing::info!(device, "objvol: {event}"),
        VolumeEvent::Fenced(_) => {
            tracing::error!(device, "objvol: {event}");
            events.raise();
        }
        VolumeEvent::Unreadable(..) => {
            tracing::error!(device, "objvol: {event}");
            events.raise();
        }
        VolumeEvent::CacheRefused(_) => {
            tracing::error!(device, "objvol: {event}");
            events.raise();
        }
        VolumeEvent::GaveUp(_) | VolumeEvent::LeftFenced => {
            tracing::warn!(device, "objvol: {event}");
        }
    });
    Ok(target)
}
