// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pagecache: a write-back page cache in RAM before any device; the target `buffered`.
//!
//! ```text
//!   read ──▶ folios ──miss──▶ read below, ahead of sequential readers
//!   write ─▶ folios (dirty) ─▶ done; slowed as dirty pages pile up (pacing)
//!                │
//!                ├── flusher: background, expired ──┐
//!                └── FLUSH, FUA ────────────────────┤
//!                                             iomap │ where does this run lie?
//!                                                   ▼
//!                                   ioends: large writes, one completion each ──▶ base below
//! ```
//!
//! What has been written is in memory only until it has been flushed: a client that needs it to
//! survive sends FLUSH or FUA, as to any device with a volatile cache.
//!
//! Invariants (those of the parts: arena M, folio FO, cache C)
//! - PC-PC1 A read returns what the last completed write put there, whether that is dirty, being
//!   written or on the device.
//! - PC-PC2 A FLUSH that succeeds has everything on the device below, durably, that had completed
//!   before it was submitted.
//! - PC-PC3 What could not be written stays dirty and is tried again; every opener hears of it
//!   once.
//! - PC-PC4 What is on its way to the device does not change (PC-FO1), and a page has one write in
//!   flight at a time (PC-C3): after a crash a page is old or new, never a mixture of two.
//! - PC-PC5 While a discard or write zeroes is below, nothing else of its range is.
//! - PC-PC6 Memory for pages and for what is known about them stays within `memory`.
#![warn(missing_docs)]

mod arena;
mod attributes;
mod bits;
mod cache;
mod config;
mod discard;
mod errors;
mod flush;
mod folio;
mod gather;
mod ioend;
mod iomap;
mod mutation;
mod pacing;
mod pin;
mod read;
mod readahead;
mod reclaim;
mod status;
mod target;
#[cfg(test)]
mod testing;
mod write;
mod writeback;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error, Limits, Opener, PAGE, Reservation, SECTOR_SIZE, Sector};
use reactor::{Grace, WaitList, Workers};

pub use config::Config;
#[doc(hidden)]
pub use mutation::Mutation;

use arena::Memory;
use cache::Cache;

/// The kernel has no such target; ours counts from here.
pub const VERSION: (u32, u32, u32) = (1, 0, 0);

/// Sectors of a page.
pub(crate) const PAGE_SECTORS: u64 = (PAGE / SECTOR_SIZE) as u64;

/// A page cache before a device.
pub struct PageCache {
    me: Weak<PageCache>,
    name: String,
    below: Rc<dyn BlockDevice>,
    /// Who sends its bios, which may go to a base of `below` at once.
    opener: Opener,
    limits: Limits,
    cache: RefCell<Cache>,
    memory: Memory,
    /// Its memory, of the budget of its core.
    _reserved: Reservation,
    /// Memory came back, something was written or read, a discard ended: whoever waits looks again.
    changed: WaitList,
    /// The round of flushes that a write belongs to.
    round: Cell<u64>,
    /// Reading ahead, for which no client waits.
    busy: Grace,
    discards: discard::Discards,
    config: Config,
    writeback: writeback::State,
    errors: errors::Errors,
    pacing: pacing::Pacing,
    ahead: readahead::Streams,
    misses_at_work: Workers<read::Miss>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    evicted: Cell<u64>,
    on_failure: RefCell<Option<Rc<dyn Fn()>>>,
}

impl PageCache {
    /// A cache called `name` of the first `len` sectors of `below`. Errors: `EINVAL` when they are
    /// not all there; `ENOMEM` when the budget of this core has no room for its memory.
    pub fn new(
        name: &str,
        config: Config,
        below: Rc<dyn BlockDevice>,
        len: Sector,
    ) -> Result<Rc<PageCache>, Error> {
        let under = below.limits();
        if under.capacity < len {
            return Err(Error::invalid(format!(
                "{} has {} sectors, fewer than the {len} of the table line",
                below.name(),
                under.capacity
            )));
        }
        if under.write_unit_bytes() as usize > PAGE {
            return Err(Error::invalid(format!(
                "{}: logical blocks of {} bytes, at most {PAGE} are allowed",
                below.name(),
                under.write_unit_bytes()
            )));
        }
        // The device's last page, which is written as far as it reaches.
        if !len.is_aligned(Sector::from_bytes(under.write_unit_bytes().into())) {
            return Err(Error::invalid(format!(
                "{}: a length of {len} is not a multiple of its logical block of {} bytes",
                below.name(),
                under.write_unit_bytes()
            )));
        }
        let limits = Limits {
            capacity: len,
            // Below go whole pages, whatever comes in: what is less is merged in memory.
            logical_block_bytes: 512,
            merge_block_bytes: 0,
            volatile_cache: true,
            atomic_write_unit_bytes: under.atomic_write_unit_bytes,
            ..under
        };
        let what = format_args!("{name}: the option memory");
        let reserved = reactor::memory().reserve(config.memory_bytes, what)?;
        Ok(Rc::new_cyclic(|me| PageCache {
            me: me.clone(),
            _reserved: reserved,
            name: name.to_owned(),
            opener: reactor::new_opener(),
            limits,
            cache: RefCell::new(Cache::new(config.memory_bytes)),
            memory: Memory::new(if config.mutation == Mutation::NoLimit {
                u64::MAX / 2
            } else {
                config.memory_bytes
            }),
            changed: WaitList::new(),
            round: Cell::new(1),
            busy: Grace::default(),
            discards: discard::Discards::default(),
            writeback: writeback::State::new(&below, len),
            errors: errors::Errors::default(),
            pacing: pacing::Pacing::new(&config),
            ahead: readahead::Streams::new(&config),
            misses_at_work: read::misses(),
            hits: Cell::new(0),
            misses: Cell::new(0),
            evicted: Cell::new(0),
            on_failure: RefCell::default(),
            config,
            below,
        }))
    }

    /// Has `tell` called whenever writeback begins to fail.
    pub fn on_failure(&self, tell: impl Fn() + 'static) {
        *self.on_failure.borrow_mut() = Some(Rc::new(tell));
    }

    pub(crate) fn tell_failure(&self) {
        let tell = self.on_failure.borrow().clone();
        if let Some(tell) = tell {
            tell();
        }
    }

    /// Pages of the device; the last one may reach beyond its end.
    pub(crate) fn device_pages(&self) -> u64 {
        self.limits.capacity.0.div_ceil(PAGE_SECTORS)
    }

    /// Whether a fault is planted.
    fn has(&self, mutation: Mutation) -> bool {
        self.config.mutation == mutation
    }

    fn rc(&self) -> Rc<PageCache> {
        self.me.upgrade().expect("a method of it runs")
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageCache({} over {})", self.name, self.below.name())
    }
}
