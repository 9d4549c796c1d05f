// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Claims: which mapped device each engine belongs to.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use block::attr::Manual;
use block::{Base, BlockDevice, Error, Target};
use dm::{Constructing, Context, Dm, MappedDevice, TargetType};

use crate::leaves::Leaves;

/// The engines of all devices, each with the device that it belongs to.
pub(crate) struct Claims {
    dm: Weak<Dm>,
    held: RefCell<Vec<Claim>>,
    /// The devices of the configuration file that are being made.
    configured: RefCell<BTreeSet<String>>,
}

/// The time in which a device of the configuration file is being made.
pub(crate) struct Configuring<'a> {
    claims: &'a Claims,
    name: String,
}

impl Drop for Configuring<'_> {
    fn drop(&mut self) {
        self.claims.configured.borrow_mut().remove(&self.name);
    }
}

struct Claim {
    target: Weak<dyn Target>,
    /// Not its name, which may change.
    owner: Weak<MappedDevice>,
}

impl Claims {
    pub(crate) fn new(dm: &Rc<Dm>) -> Claims {
        let (held, configured) = (RefCell::default(), RefCell::default());
        Claims { dm: Rc::downgrade(dm), held, configured }
    }

    /// The device called `name` is made of the configuration file, until the result is dropped.
    pub(crate) fn configure(&self, name: &str) -> Configuring<'_> {
        self.configured.borrow_mut().insert(name.to_owned());
        Configuring { claims: self, name: name.to_owned() }
    }

    /// Whether the device called `name` is being made of the configuration file.
    pub(crate) fn is_configured(&self, name: &str) -> bool {
        self.configured.borrow().contains(name)
    }

    /// Whether a table's word names a mapped device.
    pub(crate) fn is_mapped(&self, word: &str) -> bool {
        self.dm.upgrade().is_some_and(|dm| dm.find(word).is_some())
    }

    pub(crate) fn owner(&self, ctx: &Context) -> Result<Rc<MappedDevice>, Error> {
        let gone = || Error::busy("the device mapper is shutting down");
        self.dm.upgrade().ok_or_else(gone)?.get(ctx.device())
    }

    /// The engines of a mapped device, in all its tables.
    pub(crate) fn of(&self, owner: &Rc<MappedDevice>) -> Vec<Rc<dyn Target>> {
        let held = self.held.borrow();
        let mine = held.iter().filter(|c| c.owner.upgrade().is_some_and(|o| Rc::ptr_eq(&o, owner)));
        mine.filter_map(|claim| claim.target.upgrade()).collect()
    }

    /// All engines with their devices' names.
    pub(crate) fn all(&self) -> Vec<(String, Rc<dyn Target>)> {
        let held = self.held.borrow();
        let all = held.iter().filter_map(|claim| {
            Some((claim.owner.upgrade()?.name().to_owned(), claim.target.upgrade()?))
        });
        all.collect()
    }

    /// The engines and their devices' names, by kind and name; of one kind one a device.
    pub(crate) fn engines(&self) -> BTreeMap<(&'static str, String), Rc<dyn Target>> {
        let held = self.held.borrow();
        let all = held.iter().filter_map(|claim| {
            let target = claim.target.upgrade()?;
            Some(((target.kind(), claim.owner.upgrade()?.name().to_owned()), target))
        });
        all.collect()
    }

    /// Why a write cache of a device has no journal in memory; `None` when all have one.
    pub(crate) async fn without_journal(&self, device: &Rc<MappedDevice>) -> Option<String> {
        for target in self.of(device) {
            if target.kind() != writecache::MANUAL.name {
                continue;
            }
            let state = target.get_attribute("journal".to_owned()).await;
            let state = state.map_or_else(|e| e.chain(), |state| state.to_string());
            if !state.starts_with("in memory") {
                return Some(state);
            }
        }
        None
    }

    /// Records `target` and its mapped device for as long as it lives.
    pub(crate) fn hold(&self, ctx: &Context, target: &Rc<dyn Target>) -> Result<(), Error> {
        let owner = Rc::downgrade(&self.owner(ctx)?);
        let mut held = self.held.borrow_mut();
        held.retain(|claim| claim.target.strong_count() > 0);
        held.push(Claim { target: Rc::downgrade(target), owner });
        Ok(())
    }

    /// Warns when a cache lies in memory, as its content is lost with that.
    pub(crate) fn warn_of_memory(
        &self,
        leaves: &Leaves,
        ctx: &Context,
        cache: &Rc<dyn BlockDevice>,
    ) {
        for base in self.bases_below(cache) {
            let Some(end) = leaves.lasts_until(&base) else { continue };
            leaves.warn(format!(
                "{}: the cache is in memory ({}): what it holds, flushed data too, is gone when \
                 {end}",
                ctx.device(),
                base.name()
            ));
        }
    }

    /// The paths of the leaves on files on which a device lies.
    pub(crate) fn files_below(
        &self,
        leaves: &Leaves,
        device: &Rc<dyn BlockDevice>,
    ) -> Vec<PathBuf> {
        self.bases_below(device).iter().filter_map(|base| leaves.path_of(base)).collect()
    }

    fn bases_below(&self, device: &Rc<dyn BlockDevice>) -> Vec<Rc<dyn Base>> {
        let below = self.dm.upgrade().map(|dm| dm.at_the_bottom(device)).unwrap_or_default();
        below.into_iter().filter_map(|below| below.as_base()).collect()
    }
}

/// The target type of an engine: `manual` has its name, options and attributes, `construct` makes
/// one of a table line, and the claims know each from then on, so that its metrics are exported.
pub(crate) fn engine(
    manual: &'static Manual,
    claims: &Rc<Claims>,
    construct: impl Fn(Context, Vec<String>) -> Constructing + 'static,
) -> TargetType {
    let claims = claims.clone();
    TargetType::new(manual, move |ctx, args| {
        let (claims, made) = (claims.clone(), construct(ctx.clone(), args));
        Box::pin(async move {
            let target = made.await?;
            claims.hold(&ctx, &target)?;
            Ok(target)
        })
    })
}
