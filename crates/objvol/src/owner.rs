// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner record as an opening knows it: which write cache may hold what the volume does not
//! have, and whether that is there. The rules are OV-A in `attach`.
use std::cell::{Cell, RefCell};

use format::objvol::{Owner, RecordedCache};

/// The newest owner record of a volume, as an opening sees it.
pub(crate) struct FoundOwner {
    /// Its name; empty when there is none.
    pub(crate) name: String,
    pub(crate) owner: Option<Owner>,
}

impl FoundOwner {
    /// The cache that it names.
    pub(crate) fn cache(&self) -> Option<&RecordedCache> {
        self.owner.as_ref().and_then(|owner| owner.cache.as_ref())
    }
}

/// What an opening has decided about the cache that is recorded.
pub(crate) struct CacheDecision {
    /// The cache that stays recorded.
    pub(crate) kept: Option<RecordedCache>,
    /// The one that does not.
    pub(crate) given_up: Option<RecordedCache>,
    pub(crate) lineage: [u8; 16],
}

/// The record as one opening knows it.
pub(crate) struct OwnerRecord {
    /// The cache that the newest durable record names.
    pub(crate) recorded: RefCell<Option<RecordedCache>>,
    /// That cache is there.
    pub(crate) is_attached: Cell<bool>,
    /// Why nobody changes the volume: a cache of another lineage is above it.
    locked: RefCell<Option<String>>,
    /// Sequence of the newest record of this epoch that was sent.
    pub(crate) sent: Cell<u64>,
    /// Whether the store has that (OV-A4).
    pub(crate) is_settled: Cell<bool>,
    /// Somebody is changing the record.
    pub(crate) is_busy: Cell<bool>,
    /// The cache that was given up by this opening.
    given_up: Option<RecordedCache>,
}

impl OwnerRecord {
    pub(crate) fn new(CacheDecision { kept, given_up, .. }: CacheDecision) -> OwnerRecord {
        OwnerRecord {
            recorded: RefCell::new(kept),
            given_up,
            is_attached: Cell::default(),
            locked: RefCell::default(),
            sent: Cell::default(),
            is_settled: Cell::default(),
            is_busy: Cell::default(),
        }
    }

    /// The cache that is recorded.
    pub(crate) fn recorded(&self) -> Option<RecordedCache> {
        self.recorded.borrow().clone()
    }

    /// The cache that was recorded, and that this opening has given up.
    pub(crate) fn given_up(&self) -> Option<RecordedCache> {
        self.given_up.clone()
    }

    /// Whether the volume takes no changes, because the cache that is recorded is not there.
    pub(crate) fn is_reserved(&self) -> bool {
        let is_missing = !self.is_attached.get() && self.recorded.borrow().is_some();
        is_missing || self.locked.borrow().is_some()
    }

    /// Why the volume takes no changes, if it takes none.
    pub(crate) fn reservation(&self) -> Option<String> {
        let recorded = self.recorded.borrow();
        let missing = recorded.as_ref().filter(|_| !self.is_attached.get()).map(missing_cache);
        self.locked.borrow().clone().or(missing)
    }

    /// A cache of another lineage is above: no change is taken any more.
    pub(crate) fn lock(&self, why: String) {
        *self.locked.borrow_mut() = Some(why);
    }

    /// The cache is not there any more.
    pub(crate) fn leave(&self, uuid: [u8; 16]) {
        if self.recorded.borrow().as_ref().is_some_and(|cache| cache.uuid == uuid) {
            self.is_attached.set(false);
        }
    }
}

/// A UUID as people read it.
pub(crate) fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a cache above compares.
pub(crate) fn identity_text(uuid: &[u8; 16], lineage: &[u8; 16]) -> String {
    format!("volume {} lineage {}", hex(uuid), hex(lineage))
}

/// What an operator does where a cache is recorded that is not there.
pub(crate) fn missing_cache(cache: &RecordedCache) -> String {
    let uuid = hex(&cache.uuid);
    format!(
        "the write cache {uuid} on {}, attached at {}, may hold newer data, and writes are refused \
         until it is there: make its table live. If it is lost, the option `without_cache {uuid}` \
         of the volume's table gives up what it alone holds",
        cache.device, cache.attached_at
    )
}
