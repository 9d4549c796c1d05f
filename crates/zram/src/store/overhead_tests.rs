// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory taken over bytes stored, for several mixes of lengths, and whether the system gets back
//! what is not used any more.
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::idle::IDLE_MAX;
use super::*;

/// Reproducible numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32).unwrap()
    }

    fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + self.next() % (range.end() - range.start() + 1)
    }
}

/// Lengths as they come from pages of a kind.
type Mix = fn(&mut Random) -> usize;

/// Half of every page is random, the rest is not.
fn half(random: &mut Random) -> usize {
    random.within(2050..=2090)
}

/// All lengths, and pages that are not compressed.
fn any(random: &mut Random) -> usize {
    let len = random.within(60..=4300);
    if len > OBJECT_BYTES_MAX { PAGE } else { len }
}

/// Most about 1700 bytes, an eighth not compressed.
fn ordinary(random: &mut Random) -> usize {
    let len = 300 + (0..4).map(|_| random.next() % 700).sum::<usize>();
    if random.next().is_multiple_of(8) { PAGE } else { len }
}

/// What a device that is overwritten at random has in its store.
struct Device {
    memory: Arc<Memory>,
    store: Store,
    objects: Vec<Option<(usize, Handle)>>,
    random: Random,
}

impl Device {
    fn filled(slots: u32, mix: Mix) -> Device {
        let memory = Arc::new(Memory::new());
        let store = Store::new(memory.clone(), slots).unwrap();
        let objects = vec![None; slots as usize];
        let mut device = Device { memory, store, objects, random: Random(0x1234_5678) };
        for slot in 0..slots {
            device.write(slot, mix);
        }
        device
    }

    fn write(&mut self, slot: u32, mix: Mix) {
        let len = mix(&mut self.random);
        let new = self.store.insert(slot, &[0x77; PAGE][..len]).unwrap();
        self.discard(slot);
        self.objects[slot as usize] = Some((len, new));
    }

    fn discard(&mut self, slot: u32) {
        if let Some((_, old)) = self.objects[slot as usize].take() {
            self.store.remove(old);
        }
    }

    fn overwrite(&mut self, times: usize, mix: Mix) {
        for _ in 0..times {
            let slot = self.random.next() % self.objects.len();
            self.write(u32::try_from(slot).unwrap(), mix);
        }
    }

    fn compact(&mut self) -> u64 {
        let objects = &mut self.objects;
        self.store.compact(&mut |slot, old, new| moved(objects, slot, old, new))
    }

    fn overwrite_tidily(&mut self, times: usize, mix: Mix) {
        for _ in 0..times / 64 {
            self.overwrite(64, mix);
            let objects = &mut self.objects;
            self.store.tidy(&mut |slot, old, new| moved(objects, slot, old, new));
        }
    }

    /// Memory taken over bytes stored, in percent of the latter.
    fn overhead(&self) -> f64 {
        let bytes: usize = self.objects.iter().flatten().map(|(len, _)| len).sum();
        let taken = self.memory.used() * PAGE as u64;
        (taken as f64 / bytes as f64 - 1.0) * 100.0
    }
}

fn moved(objects: &mut [Option<(usize, Handle)>], slot: u32, old: Handle, new: Handle) {
    let (_, at) = objects[slot as usize].as_mut().unwrap();
    assert_eq!(std::mem::replace(at, new), old);
}

const SLOTS: u32 = 65_536;

#[test]
fn overhead_is_at_most_5_percent() {
    for (name, mix) in [("half", half as Mix), ("any", any), ("ordinary", ordinary)] {
        let mut device = Device::filled(SLOTS, mix);
        let written = device.overhead();
        device.overwrite(4 * SLOTS as usize, mix);
        let overwritten = device.overhead();
        device.compact();
        let compacted = device.overhead();
        for slot in (0..SLOTS).filter(|slot| slot % 2 == 0) {
            device.discard(slot);
        }
        device.compact();
        let sparse = device.overhead();
        println!("{name}: {written:.2} {overwritten:.2} {compacted:.2} {sparse:.2} %");
        assert!(written < 3.5, "{name}: {written:.2} % written");
        assert!(overwritten < 5.0, "{name}: {overwritten:.2} % overwritten");
        assert!(compacted < 3.5, "{name}: {compacted:.2} % compacted");
        assert!(sparse < 3.5, "{name}: {sparse:.2} % compacted after discards");
    }
}

#[test]
fn a_small_device_loses_little_once_it_is_compacted() {
    for (name, mix) in [("half", half as Mix), ("any", any), ("ordinary", ordinary)] {
        let mut device = Device::filled(8192, mix);
        device.overwrite(40_000, mix);
        let overwritten = device.overhead();
        device.compact();
        let compacted = device.overhead();
        device.overwrite_tidily(40_000, mix);
        let tidy = device.overhead();
        println!("{name}: {overwritten:.2} {compacted:.2} {tidy:.2} %");
        assert!(tidy < 5.0, "{name}: {tidy:.2} % tidied as it is overwritten");
        assert!(overwritten < 10.0, "{name}: {overwritten:.2} % overwritten");
        assert!(compacted < 4.0, "{name}: {compacted:.2} % compacted");
    }
}

/// Pages of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Runs alone, in a process of its own: other tests take and give memory as well.
#[test]
fn the_system_gets_memory_back_after_discards_and_compaction() {
    const ALONE: &str = "ZRAM_STORE_TEST_ALONE";
    let name = "the_system_gets_memory_back_after_discards_and_compaction";
    if std::env::var_os(ALONE).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([name, "--test-threads=1"]).env(ALONE, "1");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let before = resident();
    let mut device = Device::filled(SLOTS, ordinary);
    let used = usize::try_from(device.memory.used()).unwrap();
    // Other memory of the test and the store, in pages.
    let beside = 1500;
    assert!((used..used + beside).contains(&(resident() - before)), "{used} pages");
    for slot in (0..SLOTS).filter(|slot| slot % 4 != 0) {
        device.discard(slot);
    }
    // Spans are sparse, but pages that were not compressed and empty spans are gone.
    let sparse = usize::try_from(device.memory.used()).unwrap();
    assert!(sparse < used * 9 / 10, "{sparse} of {used}");
    assert!(resident() - before < sparse + beside + IDLE_MAX);
    device.compact();
    super::tests::sweep(&mut device.store);
    let packed = usize::try_from(device.memory.used()).unwrap();
    assert!(packed < used * 27 / 100, "{packed} of {used}");
    assert!(resident() - before < packed + beside, "{packed} pages");
    for slot in 0..SLOTS {
        device.discard(slot);
    }
    super::tests::sweep(&mut device.store);
    assert_eq!(device.memory.used(), 0);
    assert!(resident() - before < beside);
}
