// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Eviction by S3-FIFO, which resists scans.
//!
//! ```text
//! new ──▶ small (a tenth) ── used again ──▶ main ── not used since ──▶ out
//!              └── not used again ──▶ out, its name is kept ──┐   ▲
//! new, and its name is kept ──────────────────────────────────┴───┘ (into main)
//! ```
//!
//! Juncheng Yang, Yazhuo Zhang, Ziyue Qiu, Yao Yue, K. V. Rashmi: FIFO queues are all you need for
//! cache eviction, SOSP 2023. Keys that are used once leave through the small queue, so a scan of
//! any length costs 1/10 of the memory. Keys that return soon after their eviction go straight to
//! the main queue. A hit increments a counter and moves nothing.
//!
//! Two differences: keys have weights, and the size of a queue is the sum of weights. And uses
//! close together count as one, because reading a large folio once in small pieces is one use: two
//! uses are separate if 1/64 of the capacity (and 512) was inserted or used between them.
//!
//! Invariants
//! - PO-E1 A key is in one queue, or in none; the weights add up.
//! - PO-E2 A victim is a key that the caller allows to evict; there is one while any is allowed.
//! - PO-E3 The remembered names take at most 8 bytes for every two units of capacity.
use std::cell::Cell;

/// Uses counted: enough to go round the main queue three times.
const USES_MAX: u8 = 3;
/// Uses with which a key passes from the small queue to the main one.
const USES_TO_MAIN: u8 = 2;
/// The small queue has one in so many of all.
const SMALL_SHARE: u64 = 10;
/// So many in a row may refuse to go before another queue is asked. Chosen: what has been written
/// is new and may not go, so that all of the small queue may refuse, and looking through thousands
/// for one that may costs more than it is worth.
const REFUSALS_MAX: u32 = 64;
/// No end of a list.
const NONE: u32 = u32::MAX;
/// Names in a bucket of [`Names`].
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
}

#[derive(Clone, Debug)]
struct Node {
    queue: Option<Queue>,
    uses: Cell<u8>,
    weight: u32,
    newer: u32,
    older: u32,
    /// The clock at the last use that counted.
    used_at: Cell<u64>,
    name: u64,
}

impl Node {
    fn absent() -> Node {
        Node {
            queue: None,
            uses: Cell::new(0),
            weight: 0,
            newer: NONE,
            older: NONE,
            used_at: Cell::new(0),
            name: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
    len: u32,
    weight: u64,
}

const EMPTY: List = List { newest: NONE, oldest: NONE, len: 0, weight: 0 };

/// The order in which keys are evicted. Keys are small numbers, as those of a slab.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    nodes: Vec<Node>,
    small: List,
    main: List,
    names: Names,
    /// Weight inserted, and uses.
    clock: Cell<u64>,
    /// Uses are apart when the clock went on by this.
    apart: u64,
}

impl S3Fifo {
    /// For keys of at most `capacity` together.
    #[must_use]
    pub fn new(capacity: u64) -> S3Fifo {
        S3Fifo {
            nodes: Vec::new(),
            small: EMPTY,
            main: EMPTY,
            names: Names::new(capacity),
            clock: Cell::new(0),
            apart: apart(capacity),
        }
    }

    /// Their weight.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.small.weight + self.main.weight
    }

    /// Whether `key` is there.
    #[must_use]
    pub fn contains(&self, key: u32) -> bool {
        self.nodes.get(key as usize).is_some_and(|n| n.queue.is_some())
    }

    /// Takes `key` in; what it stands for is `name`, by which it is known again after it was
    /// evicted, whatever its key is then.
    ///
    /// # Panics
    /// If the key is there.
    pub fn insert(&mut self, key: u32, weight: u32, name: u64) {
        assert!(key != NONE && !self.contains(key), "a key is in one queue");
        let at = key as usize;
        if at >= self.nodes.len() {
            self.nodes.resize_with(at + 1, Node::absent);
        }
        self.clock.set(self.clock.get() + u64::from(weight));
        self.nodes[at] = Node { weight, name, used_at: self.clock.clone(), ..Node::absent() };
        let queue = if self.names.take(name) { Queue::Main } else { Queue::Small };
        self.push(key, queue);
    }

    /// `key` was used.
    pub fn touch(&self, key: u32) {
        let clock = self.clock.get() + 1;
        self.clock.set(clock);
        let Some(node) = self.nodes.get(key as usize) else { return };
        let uses = node.uses.get();
        if uses < USES_MAX && (uses == 0 || clock - node.used_at.get() >= self.apart) {
            node.uses.set(uses + 1);
            node.used_at.set(clock);
        }
    }

    /// Forgets `key`: it is gone for another reason than eviction.
    pub fn remove(&mut self, key: u32) {
        if self.contains(key) {
            self.unlink(key);
        }
    }

    /// Takes out the key to evict, one for which `may` returns true. The others are treated as
    /// if they had just entered their queue.
    pub fn victim(&mut self, mut may: impl FnMut(u32) -> bool) -> Option<u32> {
        // What passes to the main queue late in the first whole round may not be looked at in it;
        // in the second one nothing passes any more (PO-E2).
        [REFUSALS_MAX, u32::MAX, u32::MAX].iter().find_map(|max| self.round(*max, &mut may))
    }

    /// Looks at each key once, in the main queue once more for each counted use; leaves a queue in
    /// which `refusals_max` refused.
    fn round(&mut self, refusals_max: u32, mut may: impl FnMut(u32) -> bool) -> Option<u32> {
        let (mut small_refused, mut main_refused) = (0, 0);
        let mut small_left = self.small.len;
        let mut main_left = self.main.len.saturating_mul(u32::from(USES_MAX) + 1);
        while small_left > 0 || main_left > 0 {
            let small_is_full = self.small.weight * SMALL_SHARE >= self.weight();
            if small_left > 0 && (small_is_full || main_left == 0) {
                small_left -= 1;
                let key = self.small.oldest;
                self.unlink(key);
                if self.node(key).uses.get() >= USES_TO_MAIN {
                    self.node(key).uses.set(0);
                    self.push(key, Queue::Main);
                    main_left += 1;
                } else if may(key) {
                    let (name, weight) = (self.node(key).name, self.node(key).weight);
                    self.names.keep(name, weight);
                    return Some(key);
                } else {
                    self.push(key, Queue::Small);
                    small_refused += 1;
                    if small_refused == refusals_max {
                        small_left = 0;
                    }
                }
            } else {
                main_left -= 1;
                let key = self.main.oldest;
                self.unlink(key);
                let uses = self.node(key).uses.get();
                if uses > 0 {
                    self.node(key).uses.set(uses - 1);
                } else if may(key) {
                    return Some(key);
                } else {
                    main_refused += 1;
                    if main_refused == refusals_max {
                        main_left = 0;
                    }
                }
                self.push(key, Queue::Main);
            }
        }
        None
    }

    fn node(&self, key: u32) -> &Node {
        &self.nodes[key as usize]
    }

    fn node_mut(&mut self, key: u32) -> &mut Node {
        &mut self.nodes[key as usize]
    }

    fn list(&mut self, queue: Queue) -> &mut List {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }

    /// As the newest.
    fn push(&mut self, key: u32, queue: Queue) {
        let weight = u64::from(self.node(key).weight);
        let list = self.list(queue);
        let older = std::mem::replace(&mut list.newest, key);
        if older == NONE {
            list.oldest = key;
        }
        list.len += 1;
        list.weight += weight;
        if older != NONE {
            self.node_mut(older).newer = key;
        }
        let node = self.node_mut(key);
        (node.queue, node.newer, node.older) = (Some(queue), NONE, older);
    }

    fn unlink(&mut self, key: u32) {
        let Node { queue, newer, older, weight, .. } = self.node(key).clone();
        let queue = queue.expect("only what is in a queue is taken out");
        let list = self.list(queue);
        list.len -= 1;
        list.weight -= u64::from(weight);
        if newer == NONE {
            list.newest = older;
        }
        if older == NONE {
            list.oldest = newer;
        }
        if newer != NONE {
            self.node_mut(newer).older = older;
        }
        if older != NONE {
            self.node_mut(older).newer = newer;
        }
        self.node_mut(key).queue = None;
    }
}

/// How far apart two uses have to be; see the module.
fn apart(capacity: u64) -> u64 {
    (capacity / 64).max(512)
}

/// Names of what left the small queue lately: as much of it, by weight, as the main queue holds.
/// A bucket that is full forgets its oldest; two names may rarely be taken for one another, which
/// costs a place in the main queue.
#[derive(Clone, Debug)]
struct Names {
    buckets: Box<[[Name; WAYS]]>,
    /// Weight kept so far.
    clock: u32,
    /// Older ones are forgotten.
    span: u32,
}

/// `print` 0 is no name.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    print: u32,
    kept_at: u32,
}

impl Names {
    fn new(capacity: u64) -> Names {
        let span = (capacity - capacity / SMALL_SHARE).clamp(1, u64::from(u32::MAX / 2));
        let buckets = (span / 2 / WAYS as u64).max(1).next_power_of_two();
        let buckets = usize::try_from(buckets).expect("less than 2^32");
        let span = u32::try_from(span).expect("clamped");
        Names { buckets: vec![[Name::default(); WAYS]; buckets].into(), clock: 0, span }
    }

    fn place(&self, name: u64) -> (usize, u32) {
        // The finaliser of MurmurHash3, a bijection that spreads neighbours.
        let mut h = name;
        h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h ^= h >> 33;
        let low = u32::try_from(h & u64::from(u32::MAX)).expect("masked");
        let high = u32::try_from(h >> 32).expect("shifted");
        (low as usize & (self.buckets.len() - 1), high | 1)
    }

    fn keep(&mut self, name: u64, weight: u32) {
        self.clock = self.clock.wrapping_add(weight);
        let (bucket, print) = self.place(name);
        let clock = self.clock;
        let age = |n: &Name| if n.print == 0 { u32::MAX } else { clock.wrapping_sub(n.kept_at) };
        let oldest = self.buckets[bucket].iter_mut().max_by_key(|n| age(n));
        *oldest.expect("a bucket has ways") = Name { print, kept_at: clock };
    }

    /// Whether the name is kept; it is not any more.
    fn take(&mut self, name: u64) -> bool {
        let (bucket, print) = self.place(name);
        let (clock, span) = (self.clock, self.span);
        let Some(found) = self.buckets[bucket].iter_mut().find(|n| n.print == print) else {
            return false;
        };
        let kept_at = std::mem::take(found).kept_at;
        clock.wrapping_sub(kept_at) < span
    }
}

#[cfg(test)]
#[path = "evict_tests.rs"]
mod tests;
