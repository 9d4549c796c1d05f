// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Engines as target types: how each is made of a table line. Engines do not know the device
//! mapper, nor it them; they meet here.
//!
//! Invariants
//! - T1 A device is the origin or the cache of write caches of one mapped device only: two engines
//!   would overwrite each other's blocks. Tables of the same device may name it again, as the old
//!   one has settled before the new one runs.
use std::cell::RefCell;
use std::rc::{Rc, Weak};

use block::{BlockDevice, CoreId, Error, Target};
use dm::{Context, Dm, MappedDevice, TargetType};
use writecache::{Config, WriteCache};

/// Adds the engines' target types. `cores` are all on which parts of devices may be, this first.
pub(crate) fn register(dm: &Rc<Dm>, cores: &[CoreId]) {
    tracing::debug!(?cores, "engines");
    let claims = Rc::new(Claims { dm: Rc::downgrade(dm), held: RefCell::default() });
    dm.register(TargetType::new("writecache", writecache::VERSION, move |ctx, args| {
        Box::pin(write_cache(claims.clone(), ctx, args))
    }));
}

/// Which write caches there are, and on what (T1).
struct Claims {
    dm: Weak<Dm>,
    held: RefCell<Vec<Claim>>,
}

struct Claim {
    target: Weak<WriteCache>,
    /// Not its name: that may change.
    owner: Weak<MappedDevice>,
    devices: [Weak<dyn BlockDevice>; 2],
}

impl Claims {
    fn owner(&self, ctx: &Context) -> Result<Rc<MappedDevice>, Error> {
        let gone = || Error::busy("the device mapper is shutting down");
        self.dm.upgrade().ok_or_else(gone)?.get(ctx.device())
    }

    fn check(&self, ctx: &Context, devices: &[Rc<dyn BlockDevice>; 2]) -> Result<(), Error> {
        let me = self.owner(ctx)?;
        let mut held = self.held.borrow_mut();
        held.retain(|claim| claim.target.strong_count() > 0);
        for claim in held.iter() {
            let Some(owner) = claim.owner.upgrade() else { continue };
            let taken = devices.iter().find(|d| claim.devices.iter().any(|c| same(c, d)));
            if let Some(taken) = taken.filter(|_| !Rc::ptr_eq(&owner, &me)) {
                return Err(Error::busy(format!(
                    "{} is in the write cache {} already; a device may be origin or cache of one \
                     write cache only",
                    taken.name(),
                    owner.name()
                )));
            }
        }
        Ok(())
    }
}

fn same(a: &Weak<dyn BlockDevice>, b: &Rc<dyn BlockDevice>) -> bool {
    std::ptr::addr_eq(a.as_ptr(), Rc::as_ptr(b))
}

async fn write_cache(
    claims: Rc<Claims>,
    ctx: Context,
    args: Vec<String>,
) -> Result<Rc<dyn Target>, Error> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let config = Config::parse(&words)?;
    let origin = ctx.lookup(&config.origin).await?;
    let cache = ctx.lookup(&config.cache).await?;
    if Rc::ptr_eq(&origin, &cache) {
        let both = &config.origin;
        return Err(Error::invalid(format!("origin and cache are the same device, {both}")));
    }
    ctx.check_area(&*origin, block::Sector::ZERO, ctx.len())?;
    let devices = [origin.clone(), cache.clone()];
    claims.check(&ctx, &devices)?;
    let target = WriteCache::new(ctx.device(), config, origin, cache, ctx.len())?;
    claims.held.borrow_mut().push(Claim {
        target: Rc::downgrade(&target),
        owner: Rc::downgrade(&claims.owner(&ctx)?),
        devices: devices.each_ref().map(Rc::downgrade),
    });
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
