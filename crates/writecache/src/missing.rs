// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write cache whose cache device is missing: its origin alone, read-only, by the operator's
//! force. What the cache device holds is newer than the origin, and nobody knows which blocks that
//! are: reads may return old data.
//!
//! Invariants
//! - WC-MI1 Nothing is written to the origin: when the cache device is back, the cache and its
//!   origin are as they were, and nothing is lost.
use std::cell::RefCell;
use std::rc::Rc;

use block::{
    Bio, BlockDevice, Component, Error, Limits, LocalFuture, Op, Role, Sector, Status, Target,
    UnsavedBlocks,
};

use crate::config::Config;
use crate::guard::view_origin;
use crate::manual::MANUAL;
use crate::planted::Fault;

/// The origin of a cache that is missing, as the target of the cache's line.
pub struct StaleOrigin {
    name: String,
    config: Config,
    /// The name of the cache device when it is there: mode `p` takes a path without `pmem:`, too.
    cache: String,
    origin: Rc<dyn BlockDevice>,
    /// The origin as clients see it, if it has a guard; from the first resume on.
    view: RefCell<Rc<dyn BlockDevice>>,
    sectors: Sector,
}

impl StaleOrigin {
    /// The origin of the cache of `config`, on which `sectors` lie. `cache` is the name that the
    /// missing cache device has when it is there.
    ///
    /// # Errors
    /// `EINVAL` when the length does not fit the block size.
    pub fn new(
        name: impl Into<String>,
        config: Config,
        cache: impl Into<String>,
        origin: Rc<dyn BlockDevice>,
        sectors: Sector,
    ) -> Result<Rc<StaleOrigin>, Error> {
        config.check_length(sectors)?;
        let (name, cache, view) = (name.into(), cache.into(), RefCell::new(origin.clone()));
        Ok(Rc::new(StaleOrigin { name, config, cache, origin, view, sectors }))
    }

    /// What the operator must give to have device `name` without its cache: the same for the same
    /// line of the same device.
    pub fn token(name: &str, config: &Config) -> String {
        let Config { origin, cache, start_sector, .. } = config;
        format::token(format!("missing {name} {origin} {cache} {start_sector}").as_bytes())
    }

    /// What is wrong, in one sentence.
    pub fn problem(&self) -> String {
        format!(
            "its cache device {} is missing: reads are of the origin alone and may be OLD, writes \
             are refused",
            self.config.cache
        )
    }
}

impl BlockDevice for StaleOrigin {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        Limits {
            capacity: self.sectors,
            discard_granularity_bytes: 0,
            write_zeroes: false,
            ..self.origin.limits()
        }
    }

    fn is_stale(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        match bio.op {
            Op::Read => self.view.borrow().submit(bio),
            Op::Write if self.config.planted.is(Fault::WriteWithoutCache) => {
                self.origin.submit(bio);
            }
            Op::Flush => bio.complete(Status::Ok),
            // WC-MI1
            Op::Write | Op::Discard | Op::WriteZeroes => bio.complete(Status::ReadOnly),
        }
    }
}

impl Target for StaleOrigin {
    fn kind(&self) -> &'static str {
        MANUAL.name
    }

    fn table(&self) -> String {
        self.config.table()
    }

    fn status(&self) -> String {
        "missing".into()
    }

    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            let view = view_origin(self.origin.clone()).await?;
            *self.view.borrow_mut() = view;
            Ok(())
        })
    }

    fn components(&self) -> Vec<Component> {
        let (device, len) = (self.origin.clone(), self.sectors);
        vec![Component { device, start: Sector::ZERO, len, role: Role::Origin }]
    }

    fn unsaved(&self) -> Option<UnsavedBlocks> {
        Some(UnsavedBlocks {
            block_bytes: u64::from(self.config.block_size),
            cache: self.cache.clone(),
            start: self.config.start_sector,
            origin: self.config.origin.clone(),
            is_missing: true,
            ..UnsavedBlocks::default()
        })
    }

    fn problems(&self) -> Vec<String> {
        vec![self.problem()]
    }
}

block::debug_as!(StaleOrigin, s => "StaleOrigin({} without {})", s.name, s.config.cache);
