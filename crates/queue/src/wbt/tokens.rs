// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tokens: a tracked write holds one while it is with the device, on any core. When a token comes
//! back, leaves with waiters are woken.
//!
//! ```text
//!   waits    queues itself: waiting += 1 ── fence ── tries once more
//!   ends     load -= 1                   ── fence ── reads waiting
//!   switch   on = ...                    ── fence ── reads waiting
//! ```
//!
//! Each side first publishes its own change and then reads the other's, with a full fence between.
//! So at least one of the two sees the other, and no wake-up is lost. A leaf is woken through its
//! `PeerWaker`, at most once until it has looked.
//!
//! Invariants
//! - QU-K1 `take` lets nothing through above the limit that it is given.
//! - QU-K2 A leaf that has announced itself, tried again and still has waiters is woken by every
//!   token that comes back, and by every switch, after that try.
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Counts of tokens: writes, discards.
pub(crate) const COUNTS: usize = 2;

/// Sectors share a word with requests: 8 TiB and 16 million requests in flight.
const SECTOR_BITS: u32 = 40;
const ONE: u64 = 1 << SECTOR_BITS;

/// What is in flight of one count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) ios: u32,
    pub(crate) sectors: u64,
}

impl Load {
    fn of(word: u64) -> Load {
        let ios = u32::try_from(word >> SECTOR_BITS).expect("24 bits");
        Load { ios, sectors: word & (ONE - 1) }
    }

    /// Whether so many sectors more may go. Alone anything may that any request may.
    fn has_room(self, sectors: u64, limit: Load) -> bool {
        let fits = self.sectors.saturating_add(sectors) <= limit.sectors;
        self.ios < limit.ios && (self.ios == 0 || fits)
    }
}

/// The tokens of one device.
pub(crate) struct Tokens {
    on: AtomicBool,
    loads: [AtomicU64; COUNTS],
    /// Leaves that have waiters.
    waiting: AtomicU32,
}

impl Tokens {
    pub(crate) fn new(on: bool) -> Tokens {
        let loads = [AtomicU64::new(0), AtomicU64::new(0)];
        Tokens { on: AtomicBool::new(on), loads, waiting: AtomicU32::new(0) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn load(&self, count: usize) -> Load {
        Load::of(self.loads[count].load(Ordering::SeqCst))
    }

    /// Takes a token if fewer requests and no more sectors than `limit` are in flight with it.
    /// Returns what was in flight before.
    pub(crate) fn take(&self, count: usize, sectors: u64, limit: Load) -> Option<Load> {
        let more = |word| Load::of(word).has_room(sectors, limit).then(|| word + ONE + sectors);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        self.loads[count].fetch_update(set, get, more).ok().map(Load::of)
    }

    /// Takes a token whatever is in flight.
    pub(crate) fn take_anyway(&self, count: usize, sectors: u64) -> Load {
        Load::of(self.loads[count].fetch_add(ONE + sectors, Ordering::SeqCst))
    }

    /// Gives a token back. Returns what is left in flight, and how many leaves have waiters, which
    /// the caller must wake.
    pub(crate) fn give(&self, count: usize, sectors: u64) -> (Load, u32) {
        let before = self.loads[count].fetch_sub(ONE + sectors, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        (Load::of(before - ONE - sectors), self.waiting())
    }

    /// Switches the throttle; limits may have changed. Returns how many leaves have waiters, which
    /// the caller must wake.
    pub(crate) fn set_on(&self, on: bool) -> u32 {
        self.on.store(on, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.waiting()
    }

    /// A leaf has its first waiter: it must try once more after this.
    pub(crate) fn announce(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The leaf has no waiter any more.
    pub(crate) fn retract(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::SeqCst)
    }
}

/// Whether a leaf with waiters has been woken and has not looked yet.
pub(crate) struct WakeFlag(AtomicBool);

impl WakeFlag {
    pub(crate) fn new() -> WakeFlag {
        WakeFlag(AtomicBool::new(false))
    }

    /// Returns whether the caller must wake the leaf now: it has looked since it was woken last.
    pub(crate) fn set(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// The leaf is about to look.
    pub(crate) fn clear(&self) {
        self.0.swap(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}
