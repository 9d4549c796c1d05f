// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Engines as target types: how each is made of a table line. Engines do not know the device
//! mapper, nor it them; they meet here.
use std::rc::Rc;

use block::{Error, Target};
use dm::{Context, Dm, TargetType};
use writecache::{Config, WriteCache};

/// Adds the engines' target types.
pub(crate) fn register(dm: &Dm) {
    dm.register(TargetType::new("writecache", writecache::VERSION, |ctx, args| {
        Box::pin(write_cache(ctx, args))
    }));
}

async fn write_cache(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let config = Config::parse(&words)?;
    let origin = ctx.lookup(&config.origin).await?;
    let cache = ctx.lookup(&config.cache).await?;
    if Rc::ptr_eq(&origin, &cache) {
        let both = &config.origin;
        return Err(Error::invalid(format!("origin and cache are the same device, {both}")));
    }
    ctx.check_area(&*origin, block::Sector::ZERO, ctx.len())?;
    let target = WriteCache::new(ctx.device(), config, origin, cache, ctx.len())?;
    let events = ctx.events();
    let device = ctx.device().to_owned();
    target.on_failure(move || {
        tracing::error!(
            device,
            "writecache has failed: it serves reads only and keeps its dirty blocks until its \
             table is loaded again"
        );
        events.raise();
    });
    Ok(target)
}
