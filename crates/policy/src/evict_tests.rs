// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Against a model, and what a scan does to a hot set here and with LRU.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

/// A cache of pages by number, each in the slot of a slab, as a page cache has it.
struct Pages {
    evictor: S3Fifo,
    capacity: u64,
    slots: BTreeMap<u64, u32>,
    free: Vec<u32>,
    names: Vec<u64>,
    hits: u64,
}

impl Pages {
    fn new(capacity: u64) -> Pages {
        Pages {
            evictor: S3Fifo::new(capacity),
            capacity,
            slots: BTreeMap::new(),
            free: Vec::new(),
            names: Vec::new(),
            hits: 0,
        }
    }

    fn read(&mut self, page: u64) {
        if let Some(slot) = self.slots.get(&page) {
            self.hits += 1;
            self.evictor.touch(*slot);
            return;
        }
        if self.evictor.weight() == self.capacity {
            let slot = self.evictor.victim(|_| true).unwrap();
            self.slots.remove(&self.names[slot as usize]);
            self.free.push(slot);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.names.push(0);
            u32::try_from(self.names.len() - 1).unwrap()
        });
        self.names[slot as usize] = page;
        self.slots.insert(page, slot);
        self.evictor.insert(slot, 1, page);
    }
}

/// The same with LRU.
struct Lru {
    capacity: usize,
    order: VecDeque<u64>,
    hits: u64,
}

impl Lru {
    fn read(&mut self, page: u64) {
        if let Some(at) = self.order.iter().position(|p| *p == page) {
            self.order.remove(at);
            self.hits += 1;
        } else if self.order.len() == self.capacity {
            self.order.pop_front();
        }
        self.order.push_back(page);
    }
}

#[test]
fn a_scan_of_four_times_the_memory_leaves_the_hot_set() {
    const MEMORY: u64 = 4096;
    const HOT: u64 = 2048;
    let mut ours = Pages::new(MEMORY);
    let mut lru = Lru { capacity: 4096, order: VecDeque::new(), hits: 0 };
    let mut both = |pages: std::ops::Range<u64>| {
        for page in pages.clone() {
            ours.read(page);
            lru.read(page);
        }
        let hits = (std::mem::take(&mut ours.hits), std::mem::take(&mut lru.hits));
        (hits.0 * 100 / (pages.end - pages.start), hits.1 * 100 / (pages.end - pages.start))
    };
    for _ in 0..4 {
        both(0..HOT);
    }
    assert_eq!(both(0..HOT), (100, 100));
    both(1_000_000..1_000_000 + 4 * MEMORY);
    let (ours, lru) = both(0..HOT);
    assert_eq!(lru, 0);
    assert!(ours >= 99, "{ours} % of the hot set are left");
}

#[test]
fn what_is_used_no_more_goes_in_the_end() {
    let mut pages = Pages::new(4096);
    for _ in 0..4 {
        (0..2048).for_each(|p| pages.read(p));
    }
    // Another hot set, larger than what the scan leaves room for.
    for _ in 0..8 {
        (10_000..13_500).for_each(|p| pages.read(p));
    }
    pages.hits = 0;
    (10_000..13_500).for_each(|p| pages.read(p));
    assert!(pages.hits >= 3400, "{}", pages.hits);
}

#[test]
fn a_large_folio_that_is_read_in_pieces_was_used_once() {
    let mut evictor = S3Fifo::new(65536);
    for key in 0..100 {
        evictor.insert(key, 512, u64::from(key) * 512);
        (0..512).for_each(|_| evictor.touch(key));
    }
    let evicted: Vec<u32> = std::iter::from_fn(|| evictor.victim(|_| true)).collect();
    assert_eq!(evicted, (0..100).collect::<Vec<_>>(), "in their order, none was kept longer");
}

#[test]
fn many_that_may_not_go_cost_few_looks() {
    const KEYS: u32 = 8192;
    let mut evictor = S3Fifo::new(u64::from(KEYS));
    // What was there before is used; what comes may not go, as pages that have just been written.
    (0..KEYS).for_each(|key| evictor.insert(key, 1, u64::from(key)));
    (0..KEYS).for_each(|key| evictor.touch(key));
    let mut new = BTreeSet::new();
    let mut looks = 0;
    for nth in 0..KEYS / 2 {
        let may = |key| {
            looks += 1;
            !new.contains(&key)
        };
        let key = evictor.victim(may).unwrap();
        new.insert(key);
        evictor.insert(key, 1, u64::from(KEYS + nth));
    }
    assert!(looks <= u64::from(KEYS / 2 * (REFUSALS_MAX + 1)), "{looks} looks");
    // When only one may go it is found all the same.
    let last = (0..KEYS).find(|key| !new.contains(key)).unwrap();
    assert_eq!(evictor.victim(|key| key == last), Some(last));
}

#[test]
fn what_comes_back_soon_is_in_the_main_queue_at_once() {
    let mut evictor = S3Fifo::new(100);
    (0..100).for_each(|key| evictor.insert(key, 1, u64::from(key)));
    assert_eq!(evictor.victim(|_| true), Some(0));
    evictor.insert(0, 1, 0);
    for round in 1..90 {
        assert_eq!(evictor.victim(|_| true), Some(round));
    }
    assert!(evictor.contains(0));
    // Its name was forgotten with that.
    evictor.remove(0);
    evictor.insert(0, 1, 0);
    (90..100).for_each(|key| assert_eq!(evictor.victim(|_| true), Some(key)));
    assert_eq!(evictor.victim(|_| true), Some(0));
    assert_eq!((evictor.victim(|_| true), evictor.weight()), (None, 0));
}

#[test]
fn names_are_forgotten_after_the_weight_of_the_main_queue() {
    let mut names = Names::new(1000);
    names.keep(7, 1);
    names.keep(8, 898);
    assert!(names.take(7));
    assert!(!names.take(7));
    names.keep(7, 1);
    names.keep(9, 900);
    assert!(!names.take(7));
    // Bounded for any number of kept keys.
    (0..1_000_000).for_each(|n| names.keep(n, 1));
    assert!(names.buckets.len() * WAYS <= 1024);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u32, u64),
    Touch(u32),
    Remove(u32),
    Victim(BTreeSet<u32>),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..24u32;
    prop_oneof![
        4 => (key.clone(), 1..600u32, 0..60u64).prop_map(|(k, w, n)| Step::Insert(k, w, n)),
        4 => key.clone().prop_map(Step::Touch),
        1 => key.clone().prop_map(Step::Remove),
        3 => prop::collection::btree_set(key, 0..24).prop_map(Step::Victim),
    ]
}

proptest! {
    #[test]
    fn keys_and_weights_are_those_of_a_map(steps in prop::collection::vec(step(), 1..300)) {
        let mut evictor = S3Fifo::new(4096);
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(key, weight, name) => {
                    if model.insert(key, u64::from(weight)).is_some() {
                        evictor.remove(key);
                    }
                    evictor.insert(key, weight, name);
                }
                Step::Touch(key) => evictor.touch(key),
                Step::Remove(key) => {
                    evictor.remove(key);
                    model.remove(&key);
                }
                Step::Victim(pinned) => {
                    let victim = evictor.victim(|key| !pinned.contains(&key));
                    let any = model.keys().any(|key| !pinned.contains(key));
                    prop_assert_eq!(victim.is_some(), any); // PO-E2
                    if let Some(key) = victim {
                        prop_assert!(!pinned.contains(&key));
                        prop_assert!(model.remove(&key).is_some());
                    }
                }
            }
            // PO-E1
            prop_assert_eq!((evictor.small.len + evictor.main.len) as usize, model.len());
            prop_assert_eq!(evictor.weight(), model.values().sum::<u64>());
            for key in 0..24 {
                prop_assert_eq!(evictor.contains(key), model.contains_key(&key));
            }
        }
        let mut left: Vec<u32> = std::iter::from_fn(|| evictor.victim(|_| true)).collect();
        left.sort_unstable();
        prop_assert!(left.iter().eq(model.keys()));
    }
}
