// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store against a model, and a test of each of its invariants.
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::idle::IDLE_MAX;
use super::*;

impl Store {
    /// ZR-SP1, ZR-SP2, ZR-ST2 and ZR-ST3 of everything there is.
    pub(super) fn check(&self) {
        let mut frames = 0;
        let mut idle = 0;
        for (class, of_class) in self.spans.by_class().iter().enumerate() {
            let sum = |of: &dyn Fn(&spans::Span) -> u16| -> u64 {
                of_class.iter().map(|&cell| u64::from(of(self.spans.get(cell)))).sum()
            };
            let holes = sum(&|span| span.ready) - sum(&|span| span.live);
            assert_eq!(self.spans.holes(class), holes, "holes of class {class}");
            let growing = of_class.iter().filter(|&&cell| self.spans.is_growing(cell));
            assert!(growing.count() <= 1);
            for &cell in of_class {
                let span = self.spans.get(cell);
                assert!(span.live > 0, "cell {cell} is empty");
                assert_eq!(self.spans.is_listed(cell), span.live < span.ready, "cell {cell}");
                assert_eq!(span.resident & span.in_use, span.in_use);
                let count = span.in_use.count_ones();
                frames += u64::from(count);
                if class == PAGES {
                    assert_eq!(count, u32::from(span.live));
                    continue;
                }
                let class = classes::class(class);
                assert_eq!(usize::from(span.ready), classes::fit(class, count as usize));
                assert_eq!(self.spans.is_growing(cell), (count as usize) < class.frames);
                let bits = self.live_objects(cell, class.size);
                let bits: u32 = bits.iter().map(|word| word.count_ones()).sum();
                assert_eq!(bits, u32::from(span.live), "objects of cell {cell}");
            }
        }
        for cell in 0..self.spans.cells() {
            idle += self.spans.get(cell).idle().count_ones() as usize;
        }
        assert_eq!(self.frames, frames);
        assert_eq!(self.idle_count, idle);
        assert!(idle <= IDLE_MAX || self.keep);
        assert!(self.idle.len() <= 4 * IDLE_MAX);
    }
}

fn store(slots: u32) -> (Store, Arc<Memory>) {
    let memory = Arc::new(Memory::new());
    (Store::new(memory.clone(), slots).unwrap(), memory)
}

/// Gives the memory of all idle frames back.
pub(super) fn sweep(store: &mut Store) {
    let mut at = Some(0);
    while let Some(cell) = at {
        at = store.sweep(cell);
    }
}

/// Bytes that no other object has.
fn content(owner: u32, version: u32, len: usize) -> Vec<u8> {
    let word = u64::from(owner) << 32 | u64::from(version);
    let word = (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.into_iter().cycle().enumerate().map(|(i, b)| b ^ (i / 8) as u8).take(len).collect()
}

/// What a store should have: by owner, version, length and handle.
#[derive(Default)]
struct Model {
    objects: BTreeMap<u32, (u32, usize, Handle)>,
    versions: u32,
}

impl Model {
    fn put(&mut self, store: &mut Store, owner: u32, len: usize) -> Result<(), Full> {
        self.versions += 1;
        let object = content(owner, self.versions, len);
        // As a part does, now and then.
        let over = self.objects.get_mut(&owner).filter(|_| self.versions.is_multiple_of(2));
        if let Some(old) = over
            && store.overwrite(old.2, owner, &object)
        {
            (old.0, old.1) = (self.versions, len);
            return Ok(());
        }
        let new = store.insert(owner, &object)?;
        if let Some((.., old)) = self.objects.insert(owner, (self.versions, len, new)) {
            assert_ne!(old, new);
            store.remove(old);
        }
        Ok(())
    }

    fn remove(&mut self, store: &mut Store, owner: u32) {
        if let Some((.., at)) = self.objects.remove(&owner) {
            store.remove(at);
        }
    }

    fn compact(&mut self, store: &mut Store) -> u64 {
        store.compact(&mut |owner, old, new| {
            let (.., at) = self.objects.get_mut(&owner).expect("it moves what there is");
            assert_eq!(std::mem::replace(at, new), old);
        })
    }

    fn tidy(&mut self, store: &mut Store) -> u64 {
        store.tidy(&mut |owner, old, new| {
            let (.., at) = self.objects.get_mut(&owner).expect("it moves what there is");
            assert_eq!(std::mem::replace(at, new), old);
        })
    }

    fn check(&self, store: &Store) {
        for (&owner, &(version, len, at)) in &self.objects {
            let mut out = vec![0; len];
            store.read(at, &mut out);
            assert!(out == content(owner, version, len), "object of {owner}, {len} bytes");
        }
        store.check();
    }

    fn bytes(&self) -> usize {
        self.objects.values().map(|(_, len, _)| len).sum()
    }
}

#[test]
fn objects_of_every_length_are_kept() {
    let (mut store, memory) = store(5000);
    let mut model = Model::default();
    for len in (1..=OBJECT_BYTES_MAX).chain([PAGE]) {
        model.put(&mut store, len as u32, len).unwrap();
    }
    model.check(&store);
    assert!(memory.used() * PAGE as u64 >= model.bytes() as u64);
    for owner in model.objects.keys().copied().collect::<Vec<_>>() {
        model.remove(&mut store, owner);
    }
    model.check(&store);
    assert_eq!(memory.used(), 0);
    assert!(memory.max_used() > 1600);
}

#[test]
fn classes_lose_little() {
    const { assert!(OBJECT_BYTES_MAX > PAGE * 7 / 8) };
    for len in 1..=OBJECT_BYTES_MAX {
        let class = classes::class(classes::of(len));
        assert!(class.size >= len + HEADER);
        assert!(class.size * class.objects <= class.frames * PAGE);
        let each = (class.frames * PAGE).div_ceil(class.objects);
        // A granule, and what is left over at the end of the span.
        let allowed = if len > 200 { len + len / 25 + 24 } else { len + 32 };
        assert!(each <= allowed, "{len} takes {each}");
        assert!(Store::class_bytes(len) >= Store::class_bytes(len.max(2) - 1));
    }
    assert_eq!(Store::class_bytes(OBJECT_BYTES_MAX + 1), PAGE);
    assert_eq!(Store::class_bytes(PAGE), PAGE);
}

#[test]
fn an_object_replaces_only_one_of_the_same_class() {
    let (mut store, memory) = store(100);
    let (a, b) = (store.insert(1, &[1; 500]).unwrap(), store.insert(2, &[2; PAGE]).unwrap());
    memory.set_limit(memory.used());
    let mut out = [0; PAGE];
    assert_eq!(classes::of(500), classes::of(497));
    assert!(store.overwrite(a, 1, &[3; 497]) && store.overwrite(b, 2, &[4; PAGE]));
    store.read(a, &mut out[..497]);
    assert!(out[..497].iter().all(|byte| *byte == 3));
    store.read(b, &mut out);
    assert_eq!(out, [4; PAGE]);
    for other in [&[5; PAGE][..], &[5; 400], &[5; 600]] {
        assert!(!store.overwrite(a, 1, other), "{}", other.len());
    }
    assert!(!store.overwrite(b, 2, &[5; 500]));
    store.check();
}

#[test]
fn a_full_store_refuses_and_has_taken_nothing() {
    let (mut store, memory) = store(100);
    let mut model = Model::default();
    memory.set_limit(3);
    for owner in 0..3 {
        model.put(&mut store, owner, PAGE).unwrap();
    }
    assert_eq!(model.put(&mut store, 3, PAGE), Err(Full));
    assert_eq!(model.put(&mut store, 3, 10), Err(Full));
    assert_eq!(memory.used(), 3);
    model.remove(&mut store, 1);
    // One frame is a span of the smallest; any hole that is large enough will do then.
    model.put(&mut store, 3, 10).unwrap();
    assert_eq!(model.put(&mut store, 1, PAGE), Err(Full));
    model.put(&mut store, 4, 2).unwrap();
    model.check(&store);
    assert_eq!((memory.used(), memory.max_used()), (3, 3));
}

#[test]
fn at_the_limit_a_hole_of_any_size_is_taken() {
    let (mut store, memory) = store(100);
    let mut model = Model::default();
    for owner in 0..20 {
        model.put(&mut store, owner, 3600).unwrap();
    }
    memory.set_limit(memory.used());
    model.remove(&mut store, 3);
    model.remove(&mut store, 7);
    for owner in [3, 7] {
        model.put(&mut store, owner, 20).unwrap();
    }
    model.check(&store);
    let more = (20..60).take_while(|&owner| model.put(&mut store, owner, 20).is_ok()).count();
    // What was left over in the last frame.
    assert!(more < 2, "{more}");
    memory.set_limit(0);
    model.remove(&mut store, 3);
    model.put(&mut store, 9, 20).unwrap();
    assert_eq!(memory.used(), memory.max_used());
}

#[test]
fn the_watermark_stays_until_it_is_reset() {
    let (mut store, memory) = store(100);
    let a = store.insert(0, &[1; PAGE]).unwrap();
    let b = store.insert(1, &[1; PAGE]).unwrap();
    store.remove(a);
    assert_eq!((memory.used(), memory.max_used()), (1, 2));
    memory.reset_max_used();
    assert_eq!((memory.used(), memory.max_used()), (1, 1));
    store.remove(b);
    drop(store);
    assert_eq!((memory.used(), memory.limit()), (0, u64::MAX));
}

#[test]
fn stores_of_one_device_share_the_limit_and_give_memory_back() {
    let memory = Arc::new(Memory::new());
    memory.set_limit(10);
    let mut stores: Vec<_> = (0..3).map(|_| Store::new(memory.clone(), 50).unwrap()).collect();
    let mut stored = 0;
    for owner in 0..20 {
        stored += usize::from(stores[owner as usize % 3].insert(owner, &[7; PAGE]).is_ok());
    }
    assert_eq!((stored, memory.used()), (10, 10));
    stores.pop();
    assert_eq!(memory.used(), 7);
    stores.clear();
    assert_eq!(memory.used(), 0);
}

#[test]
fn compaction_frees_spans_and_reports_moved_objects() {
    let (mut store, memory) = store(10_000);
    let mut model = Model::default();
    for owner in 0..8000 {
        model.put(&mut store, owner, 500 + (owner as usize * 7) % 900).unwrap();
    }
    let full = memory.used();
    for owner in (0..8000).filter(|owner| owner % 4 != 0) {
        model.remove(&mut store, owner);
    }
    let sparse = memory.used();
    assert!(sparse > full / 2, "{sparse} of {full}");
    let freed = model.compact(&mut store);
    assert_eq!(freed, sparse - memory.used());
    model.check(&store);
    let least = model.bytes() / PAGE;
    assert!(memory.used() < least as u64 * 110 / 100, "{} for {least}", memory.used());
    assert_eq!(model.compact(&mut store), 0);
}

#[test]
#[should_panic(expected = "no object at")]
fn an_object_that_was_the_last_of_its_span_is_not_removed_twice() {
    let (mut store, _) = store(10);
    let at = store.insert(0, &[1; 100]).unwrap();
    store.remove(at);
    store.remove(at);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u32, usize),
    Remove(u32),
    Compact,
    Tidy,
    Keep,
    Sweep { keep: bool },
    Limit(u64),
}

const OWNERS: u32 = 600;

fn a_step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![
        3 => 1..=OBJECT_BYTES_MAX,
        3 => 1900..2100_usize,
        1 => 1..40_usize,
        2 => Just(PAGE),
    ];
    prop_oneof![
        200 => (0..OWNERS, len).prop_map(|(owner, len)| Step::Put(owner, len)),
        100 => (0..OWNERS).prop_map(Step::Remove),
        2 => Just(Step::Compact),
        10 => Just(Step::Tidy),
        1 => Just(Step::Keep),
        2 => any::<bool>().prop_map(|keep| Step::Sweep { keep }),
        1 => (0..600_u64).prop_map(Step::Limit),
        1 => Just(Step::Limit(u64::MAX)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// ZR-ST1 to ZR-ST3 after any steps.
    #[test]
    fn a_store_has_what_its_model_has(steps in proptest::collection::vec(a_step(), 1..3000)) {
        let (mut store, memory) = store(OWNERS);
        let mut model = Model::default();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(owner, len) => {
                    let before = memory.used();
                    if model.put(&mut store, owner, len).is_err() {
                        prop_assert_eq!(memory.used(), before);
                        prop_assert!(before + 2 > memory.limit());
                    }
                }
                Step::Remove(owner) => model.remove(&mut store, owner),
                Step::Compact => {
                    let before = memory.used();
                    let freed = model.compact(&mut store);
                    prop_assert_eq!(freed, before - memory.used());
                }
                Step::Tidy => {
                    let before = memory.used();
                    let freed = model.tidy(&mut store);
                    prop_assert_eq!(freed, before - memory.used());
                }
                Step::Keep => store.keep_idle(true),
                Step::Sweep { keep } => {
                    store.keep_idle(keep);
                    sweep(&mut store);
                    prop_assert_eq!(store.idle_count, 0);
                }
                Step::Limit(pages) => memory.set_limit(pages),
            }
            prop_assert!(memory.max_used() >= memory.used());
            prop_assert_eq!(memory.used(), store.frames);
            if i % 100 == 0 {
                model.check(&store);
            }
        }
        model.check(&store);
    }
}
