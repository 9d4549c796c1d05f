// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a power cut may leave: of each write that no flush covers all, nothing, or a part. And what
//! a kill may leave: of each write in flight all or nothing, and the memory that outlives the
//! process.
//!
//! ```text
//!            none   all   each subset, of few      torn: one write after the other
//!   write a    ·     █      █  ·  █                  ▀ or ▄    ·   █
//!   write b    ·     █      ·  █  █                  · or █    ▀   ▄
//! ```
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use reactor::FileId;
use sim::{Image, PendingWrite, WorldRef};

/// All subsets of as many pending writes; of more only none, all, each one, and all but each one.
const SUBSETS_OF_MAX: usize = 6;
/// Bytes that a disk keeps whole, and memory.
const SECTOR_BYTES: usize = 512;
const WORD_BYTES: usize = 8;
/// Places at which a write to memory is torn, evenly spread over the words that it changes: in a
/// crash, in one of the recovery from that, and in one of the recovery from that one. Each torn
/// write may be torn again by the next recovery, so there must be an end.
const MEMORY_TEARS: [usize; 3] = [5, 2, 0];

/// What both devices hold.
#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) cache: Image,
    pub(crate) origin: Image,
    /// Names and contents.
    pub(crate) memory: Memory,
}

pub(crate) type Memory = Vec<(String, Vec<u8>)>;

impl State {
    pub(crate) fn hash(&self) -> u64 {
        let memory = if self.memory.is_empty() { 0 } else { hash_of(&self.memory) };
        self.cache.hash() ^ self.origin.hash().rotate_left(32) ^ memory.rotate_left(16)
    }
}

fn hash_of(memory: &Memory) -> u64 {
    let mut hasher = DefaultHasher::new();
    memory.hash(&mut hasher);
    hasher.finish()
}

/// The memory that the machine has now.
pub(crate) fn memory_of(world: &WorldRef) -> Memory {
    let Some(memories) = world.borrow().memories() else { return Memory::new() };
    let contents = |name: &String| memories.contents(name).expect("it has a name").borrow().clone();
    memories.names().into_iter().map(|name| (name.clone(), contents(&name))).collect()
}

/// What survives of a write.
#[derive(Clone, PartialEq, Eq)]
enum SurvivorState {
    Nothing,
    All,
    Only(Range<usize>),
    AllBut(Range<usize>),
}

impl SurvivorState {
    fn whole(keep: bool) -> SurvivorState {
        if keep { SurvivorState::All } else { SurvivorState::Nothing }
    }

    fn write(&self, image: &mut Image, write: &PendingWrite) {
        let len = write.data.len();
        let parts = match self {
            SurvivorState::Nothing => [0..0, 0..0],
            SurvivorState::All => [0..len, 0..0],
            SurvivorState::Only(part) => [part.clone(), 0..0],
            SurvivorState::AllBut(part) => [0..part.start, part.end..len],
        };
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            image.write(write.offset + part.start as u64, &write.data[part]);
        }
    }
}

/// How a write may be torn; by the other writes nothing of it, or all.
struct Tears {
    each: Vec<SurvivorState>,
    /// When all writes are torn together.
    half: SurvivorState,
}

/// A machine's devices, to be cut off from their power.
#[derive(Clone, Copy)]
pub(crate) struct Devices {
    pub(crate) cache: FileId,
    pub(crate) origin: FileId,
    /// The cache device is persistent memory.
    pub(crate) is_memory: bool,
    pub(crate) block_bytes: usize,
    /// The process is killed, and the power stays.
    pub(crate) is_kill: bool,
}

impl Devices {
    pub(crate) fn durable(&self, world: &WorldRef) -> State {
        let world = world.borrow();
        let (cache, origin) = (world.durable(self.cache), world.durable(self.origin));
        State { cache, origin, memory: Memory::new() }
    }

    /// Numbers that change whenever what a stop may leave changes.
    pub(crate) fn version(&self, world: &WorldRef) -> (u64, u64) {
        let world = world.borrow();
        let stores = world.memories().map_or(0, |memories| memories.stores());
        (world.changes(), stores)
    }

    /// Everything that a stop now may leave, as far as it differs. So many recoveries were cut off
    /// before.
    pub(crate) fn survivors(&self, world: &WorldRef, recoveries: u32) -> Vec<State> {
        if self.is_kill { self.killed(world) } else { self.cut_off(world, recoveries) }
    }

    fn killed(&self, world: &WorldRef) -> Vec<State> {
        let mut base = self.durable(world);
        base.memory = memory_of(world);
        let world = world.borrow();
        let mut in_flight = Vec::new();
        for (image, file) in [(&mut base.cache, self.cache), (&mut base.origin, self.origin)] {
            let writes = world.pending(file);
            let here = world.in_flight(file);
            let completed = writes.len() - here.len();
            writes[..completed].iter().for_each(|write| image.write(write.offset, &write.data));
            in_flight.extend(here.into_iter().map(|write| (file, write)));
        }
        let whole = || Tears { each: Vec::new(), half: SurvivorState::All };
        let tears: Vec<Tears> = in_flight.iter().map(|_| whole()).collect();
        let mut left: BTreeMap<u64, State> = BTreeMap::new();
        each_choice(&tears, |choice| {
            let mut state = base.clone();
            for (kept, (file, write)) in choice.iter().zip(&in_flight) {
                let image = if *file == self.cache { &mut state.cache } else { &mut state.origin };
                kept.write(image, write);
            }
            left.insert(state.hash(), state);
        });
        left.into_values().collect()
    }

    fn cut_off(&self, world: &WorldRef, recoveries: u32) -> Vec<State> {
        let places = MEMORY_TEARS[MEMORY_TEARS.len().min(recoveries as usize + 1) - 1];
        let durable = self.durable(world);
        let cached = world.borrow().pending(self.cache);
        let to_origin = world.borrow().pending(self.origin);
        let cached_count = cached.len();
        let mut tears: Vec<Tears> = Vec::new();
        for write in &cached {
            tears.push(match self.is_memory {
                true => tears_of_words(write, &durable.cache, places),
                false => tears_of_sectors(write, self.block_bytes),
            });
        }
        tears.extend(to_origin.iter().map(|write| tears_of_sectors(write, self.block_bytes)));
        let pending: Vec<PendingWrite> = cached.into_iter().chain(to_origin).collect();
        let mut left: BTreeMap<u64, State> = BTreeMap::new();
        each_choice(&tears, |choice| {
            let mut state = durable.clone();
            for (n, kept) in choice.iter().enumerate() {
                let image = if n < cached_count { &mut state.cache } else { &mut state.origin };
                kept.write(image, &pending[n]);
            }
            left.insert(state.hash(), state);
        });
        left.into_values().collect()
    }
}

/// A disk tears a write behind its first sector. Zeroes are those of a discard, which the engine
/// passes on: within a block nobody promises that they are whole.
fn tears_of_sectors(write: &PendingWrite, block_bytes: usize) -> Tears {
    let is_zero = write.data.iter().all(|&b| b == 0);
    let unit = if is_zero { block_bytes } else { SECTOR_BYTES };
    let half = (write.data.len() / unit).div_ceil(2) * unit;
    let mut each = Vec::new();
    if write.data.len() > unit {
        each.extend([SurvivorState::Only(0..unit), SurvivorState::AllBut(0..unit)]);
    }
    Tears { each, half: SurvivorState::Only(0..half) }
}

/// Of memory any words survive. Only those matter that differ from what is there already: up to
/// each of some of them, from it on, it alone, all but it.
fn tears_of_words(write: &PendingWrite, durable: &Image, places: usize) -> Tears {
    let len = write.data.len();
    let mut old = vec![0; len];
    durable.read(write.offset, &mut old);
    let words = old.chunks(WORD_BYTES).zip(write.data.chunks(WORD_BYTES)).enumerate();
    let changed: Vec<usize> = words.filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect();
    let count = places.min(changed.len());
    let half = changed.get(changed.len() / 2).filter(|_| count > 0).map_or(len, |n| n * WORD_BYTES);
    let half = SurvivorState::Only(0..half);
    let mut each = Vec::new();
    if count > 1 {
        for nth in 0..count {
            let at = changed[nth * (changed.len() - 1) / (count - 1)] * WORD_BYTES;
            let word = at..(at + WORD_BYTES).min(len);
            each.extend([SurvivorState::Only(0..at), SurvivorState::AllBut(0..at)]);
            each.extend([SurvivorState::Only(word.clone()), SurvivorState::AllBut(word)]);
        }
    }
    Tears { each, half }
}

/// Each choice of what survives, given how each write may be torn. One is torn at a time.
fn each_choice(tears: &[Tears], mut f: impl FnMut(&[SurvivorState])) {
    let count = tears.len();
    let choice = |keep: &dyn Fn(usize) -> bool| -> Vec<_> {
        (0..count).map(|n| SurvivorState::whole(keep(n))).collect()
    };
    if count <= SUBSETS_OF_MAX {
        for bits in 0..1usize << count {
            f(&choice(&|n| bits >> n & 1 == 1));
        }
    } else {
        f(&choice(&|_| false));
        f(&choice(&|_| true));
        for one in 0..count {
            f(&choice(&|n| n == one));
            f(&choice(&|n| n != one));
        }
    }
    f(&tears.iter().map(|t| t.half.clone()).collect::<Vec<_>>());
    for (one, tears) in tears.iter().enumerate() {
        for others in [false, true] {
            for torn in &tears.each {
                let mut torn_one = choice(&|_| others);
                torn_one[one] = torn.clone();
                f(&torn_one);
            }
        }
    }
}
