// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Caches of reads to compare with: LRU, and S3-FIFO as it was published. They hold names only.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A cache of so many blocks: whether a block that is read is there. One that is not enters.
pub trait ModelCache {
    /// Reads a block. Returns whether it was there.
    fn read(&mut self, block: u64) -> bool;
    /// How many blocks have entered: writes of the cache device.
    fn entered(&self) -> u64;
}

/// The block that was not used for longest leaves.
#[derive(Debug)]
pub struct Lru {
    capacity: usize,
    clock: u64,
    used_at: BTreeMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    entered: u64,
}

impl Lru {
    /// An empty one.
    pub fn new(capacity: usize) -> Lru {
        let (used_at, by_use) = Default::default();
        Lru { capacity, clock: 0, used_at, by_use, entered: 0 }
    }
}

impl ModelCache for Lru {
    fn read(&mut self, block: u64) -> bool {
        self.clock += 1;
        let was = self.used_at.insert(block, self.clock);
        if let Some(was) = was {
            self.by_use.remove(&was);
        } else {
            self.entered += 1;
            if self.used_at.len() > self.capacity
                && let Some((_, oldest)) = self.by_use.pop_first()
            {
                self.used_at.remove(&oldest);
            }
        }
        self.by_use.insert(self.clock, block);
        was.is_some()
    }

    fn entered(&self) -> u64 {
        self.entered
    }
}

/// S3-FIFO: a small queue of a tenth, a main queue, and as many ghosts as the main queue has.
#[derive(Debug)]
pub struct PlainS3Fifo {
    capacity: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    /// Uses of the blocks that are there, up to 3.
    uses: BTreeMap<u64, u8>,
    ghosts: VecDeque<u64>,
    has_ghost: BTreeSet<u64>,
    entered: u64,
}

impl PlainS3Fifo {
    /// An empty one.
    pub fn new(capacity: usize) -> PlainS3Fifo {
        let (small, main, uses, ghosts, has_ghost) = Default::default();
        PlainS3Fifo { capacity, small, main, uses, ghosts, has_ghost, entered: 0 }
    }

    fn evict(&mut self) {
        while self.uses.len() >= self.capacity {
            if self.small.len() * 10 >= self.capacity || self.main.is_empty() {
                let Some(block) = self.small.pop_front() else { return };
                if self.uses[&block] > 1 {
                    self.uses.insert(block, 0);
                    self.main.push_back(block);
                } else {
                    self.uses.remove(&block);
                    self.leave_ghost(block);
                }
            } else if let Some(block) = self.main.pop_front() {
                match self.uses[&block] {
                    0 => drop(self.uses.remove(&block)),
                    uses => {
                        self.uses.insert(block, uses - 1);
                        self.main.push_back(block);
                    }
                }
            }
        }
    }

    fn leave_ghost(&mut self, block: u64) {
        if self.has_ghost.insert(block) {
            self.ghosts.push_back(block);
        }
        while self.ghosts.len() > self.capacity * 9 / 10 {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.has_ghost.remove(&oldest);
            }
        }
    }
}

impl ModelCache for PlainS3Fifo {
    fn read(&mut self, block: u64) -> bool {
        if let Some(uses) = self.uses.get_mut(&block) {
            *uses = (*uses + 1).min(3);
            return true;
        }
        self.evict();
        self.entered += 1;
        self.uses.insert(block, 0);
        if self.has_ghost.remove(&block) {
            self.ghosts.retain(|ghost| *ghost != block);
            self.main.push_back(block);
        } else {
            self.small.push_back(block);
        }
        false
    }

    fn entered(&self) -> u64 {
        self.entered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(cache: &mut dyn ModelCache, blocks: &[u64]) -> Vec<bool> {
        blocks.iter().map(|block| cache.read(*block)).collect()
    }

    #[test]
    fn lru_drops_what_was_not_used_for_longest() {
        let mut lru = Lru::new(2);
        assert_eq!(hits(&mut lru, &[1, 2, 1, 3, 1, 2]), [false, false, true, false, true, false]);
        assert_eq!(lru.entered(), 4);
    }

    #[test]
    fn s3_fifo_keeps_what_is_used_again_through_a_scan() {
        let mut cache = PlainS3Fifo::new(100);
        for _ in 0..4 {
            hits(&mut cache, &(0..80).collect::<Vec<_>>());
        }
        hits(&mut cache, &(1000..2000).collect::<Vec<_>>());
        assert!(hits(&mut cache, &(0..80).collect::<Vec<_>>()).iter().all(|hit| *hit));
        let mut lru = Lru::new(100);
        hits(&mut lru, &(0..80).chain(1000..2000).collect::<Vec<_>>());
        assert!(!lru.read(0));
    }
}
