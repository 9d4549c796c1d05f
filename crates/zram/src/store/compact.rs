// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compaction: objects of the emptiest spans move to holes of others, until whole spans are free.
use block::PAGE;

use super::classes::{self, HEADER};
use super::spans::{NONE_OBJECT, PAGES};
use super::{CELL, Handle, Store};

/// Objects of a span by bits.
const WORDS: usize = classes::OBJECTS_MAX.div_ceil(64);

/// Classes that are visited in one step.
const TIDY_CLASSES: usize = 16;

/// Steps after which all classes have been visited.
pub(crate) const TIDY_ROUND: usize = PAGES.div_ceil(TIDY_CLASSES);

/// Called for each object that moves: its owner, its old place and its new one.
pub(crate) type Moved<'a> = dyn FnMut(u32, Handle, Handle) + 'a;

impl Store {
    /// Classes that a compaction goes through.
    pub(crate) const CLASSES: usize = PAGES;

    /// A step of a compaction: empties a span of a class if that is possible; classes are counted
    /// from 0 on to [`Store::CLASSES`]. Returns whether it was, so that another one may be. The
    /// memory is given back by sweeps, or when more becomes idle.
    pub(crate) fn compact_step(&mut self, class: usize, moved: &mut Moved<'_>) -> bool {
        self.compact_one(class, moved)
    }

    /// All steps. Returns how many pages they freed.
    #[cfg(test)]
    pub(crate) fn compact(&mut self, moved: &mut Moved<'_>) -> u64 {
        let before = self.frames;
        for class in 0..Store::CLASSES {
            while self.compact_step(class, moved) {}
        }
        before - self.frames
    }

    /// For now and then between writes: looks at a few classes, from where it looked last, and
    /// empties at most one span. Returns how many pages that freed.
    pub(crate) fn tidy(&mut self, moved: &mut Moved<'_>) -> u64 {
        let before = self.frames;
        for _ in 0..TIDY_CLASSES {
            self.tidy_next = (self.tidy_next + 1) % PAGES;
            if self.compact_one(self.tidy_next, moved) {
                break;
            }
        }
        before - self.frames
    }

    /// Empties one span of a class, if its objects fit into holes of others: of its class and of
    /// those a little larger.
    fn compact_one(&mut self, class: usize, moved: &mut Moved<'_>) -> bool {
        let Some(cell) = self.spans.emptiest(class) else { return false };
        let span = self.spans.get(cell);
        let (live, ready) = (u64::from(span.live), u64::from(span.ready));
        let to = classes::near(class);
        let holes: u64 = (class..to).map(|class| self.spans.holes(class)).sum();
        // Its own do not count.
        if holes - (ready - live) < live {
            return false;
        }
        self.spans.hide(cell);
        self.drain(cell, to, moved);
        true
    }

    /// Moves all objects of a span that is in no list to holes of classes before `to`, where there
    /// are enough, and frees it.
    fn drain(&mut self, cell: u32, to: usize, moved: &mut Moved<'_>) {
        let size = classes::class(self.spans.get(cell).class()).size;
        let live = self.live_objects(cell, size);
        let mut bytes = [0; PAGE];
        for nth in 0..usize::from(self.spans.get(cell).fresh) {
            if live[nth / 64] & (1 << (nth % 64)) == 0 {
                continue;
            }
            let at = cell as usize * CELL + nth * size;
            let (owner, len) = self.header(at);
            self.ram.read(at + HEADER, &mut bytes[..len]);
            let class = self.spans.class_with_hole(classes::of(len), to);
            let hole = class.and_then(|class| self.spans.fullest(class));
            let new = self.put(hole.expect("holes were counted"), owner, &bytes[..len]);
            self.spans.emptied_hidden(cell);
            moved(owner, Handle((at + HEADER) as u64), new);
        }
        self.drop_span(cell);
        self.bound_idle();
    }

    /// Objects of a span, by bits.
    pub(super) fn live_objects(&self, cell: u32, size: usize) -> [u64; WORDS] {
        let span = self.spans.get(cell);
        let mut live = [0; WORDS];
        for nth in 0..usize::from(span.fresh) {
            live[nth / 64] |= 1 << (nth % 64);
        }
        let mut hole = span.free;
        while hole != NONE_OBJECT {
            let nth = usize::from(hole);
            live[nth / 64] &= !(1 << (nth % 64));
            let mut next = [0; 2];
            self.ram.read(cell as usize * CELL + nth * size, &mut next);
            hole = u16::from_le_bytes(next);
        }
        live
    }
}
