// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compaction: objects of the emptiest spans move to holes of others, until whole spans are free.
use block::PAGE;

use super::classes::{self, HEADER};
use super::spans::{NONE_OBJECT, PAGES};
use super::{CELL, Handle, Store};

/// Told of each object that moves: its owner, where it was and where it is.
pub(crate) type Moved<'a> = dyn FnMut(u32, Handle, Handle) + 'a;

impl Store {
    /// Moves objects together and says how many pages that freed. Their memory is given back by
    /// `trim`, or when more becomes idle.
    pub(crate) fn compact(&mut self, moved: &mut Moved<'_>) -> u64 {
        let before = self.frames;
        for class in 0..PAGES {
            while self.compact_one(class, moved) {}
        }
        before - self.frames
    }

    /// Empties one span of a class, if its objects fit into holes of others.
    fn compact_one(&mut self, class: usize, moved: &mut Moved<'_>) -> bool {
        let Some(cell) = self.spans.emptiest(class) else { return false };
        let (objects, live) = (classes::class(class).objects, self.spans.get(cell).live);
        let own = self.spans.holes(class) + u64::from(live) - objects as u64;
        if own < u64::from(live) {
            return false;
        }
        self.spans.hide(cell);
        self.drain(cell, class, moved);
        true
    }

    /// Moves all objects of a span that is in no list, and frees it.
    fn drain(&mut self, cell: u32, class: usize, moved: &mut Moved<'_>) {
        let size = classes::class(class).size;
        let live = self.live_objects(cell, size);
        let mut bytes = [0; PAGE];
        for nth in 0..usize::from(self.spans.get(cell).fresh) {
            if live[nth / 64] & (1 << (nth % 64)) == 0 {
                continue;
            }
            let at = cell as usize * CELL + nth * size;
            let (owner, len) = self.header(at);
            self.ram.read(at + HEADER, &mut bytes[..len]);
            let to = self.spans.fullest(class).expect("holes were counted");
            let new = self.put(to, owner, &bytes[..len]);
            self.spans.emptied_hidden(cell);
            moved(owner, Handle((at + HEADER) as u64), new);
        }
        let frames = self.spans.get(cell).in_use();
        self.release(cell, frames);
        self.spans.drop_empty(cell);
        self.bound_idle();
    }

    /// Objects of a span, by bits.
    pub(super) fn live_objects(&self, cell: u32, size: usize) -> [u64; CELL / 16 / 64] {
        let span = self.spans.get(cell);
        let mut live = [0; CELL / 16 / 64];
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
