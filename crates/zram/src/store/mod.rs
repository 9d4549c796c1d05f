// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Store: the objects of a part, packed by size so that little memory is lost between them.
//!
//! ```text
//!   region   │ cell 0        │ cell 1        │ cell 2        │ ...       32 frames of 4 KiB each
//!   cell     │ span: 1 to 32 frames, divided into objects of one class │ nothing │
//!         or │ page │ page │ nothing │ page │ ...     for pages that are not compressed
//!   object   │ owner 4 │ length 2 │ bytes │ ...         hole: │ next hole 2 │ ...
//! ```
//!
//! The region is address space: it takes memory where it is written, and gives memory back where
//! holes are punched. A span grows frame by frame, so that the last span of a class takes no more
//! than it needs; before it grows, an object goes to a hole of a slightly larger class. Holes are
//! linked in the memory itself: the store keeps only 28 bytes a cell outside of it.
//!
//! Invariants
//! - ZR-ST1 The bytes of an object do not change until it is removed or moved; no two overlap.
//! - ZR-ST2 `Memory` counts the frames in use. The limit is checked before a frame is added, so a
//!   store that refuses an object has taken no memory.
//! - ZR-ST3 Frames that are not in use and still have memory are at most `IDLE_MAX` between calls.
//! - ZR-ST4 Insert, remove and read take a bounded number of steps, whatever the store contains.
mod classes;
pub(crate) mod compact;
mod idle;
mod memory;
mod spans;

#[cfg(test)]
mod overhead_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use block::{Error, ErrorKind, PAGE, Ram};

use self::classes::{FRAMES_MAX, HEADER};
pub(crate) use self::memory::Memory;
use self::spans::{NONE_OBJECT, PAGES, Spans};

/// Bytes of a cell.
const CELL: usize = FRAMES_MAX * PAGE;
/// A longer object is not worth it: the page is stored as it is.
pub(crate) const OBJECT_BYTES_MAX: usize = classes::LONGEST;

/// Where an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle(pub(crate) u64);

/// The limit has been reached, or the address space is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// The objects of a part.
pub(crate) struct Store {
    ram: Ram,
    memory: Arc<Memory>,
    spans: Spans,
    /// Frames taken from `memory`.
    frames: u64,
    /// Frames that became idle, oldest first; some are in use again.
    idle: VecDeque<u64>,
    /// Frames that are idle.
    idle_count: usize,
    /// Idle frames are kept, and not listed.
    keep: bool,
    /// The class that was tidied last.
    tidy_next: usize,
}

impl Store {
    /// An empty store for objects of that many slots.
    pub(crate) fn new(memory: Arc<Memory>, slots: u32) -> Result<Store, Error> {
        // A cell for each object can't be too few. Fewer do as long as spans are not nearly empty;
        // the least is twice what pages that are not compressed need.
        let spare = 2 * classes::COUNT as u32;
        let sizes = [1, 2, 4, 8, 16].map(|part| (slots / part).saturating_add(spare));
        let mut refused = None;
        for cells in sizes {
            match Ram::new(u64::from(cells) * CELL as u64) {
                Ok(ram) => return Ok(Store::of(ram, memory, cells)),
                Err(e) => refused = Some(e),
            }
        }
        Err(refused.unwrap_or_else(|| Error::new(ErrorKind::NoSpace, "no memory")))
    }

    fn of(ram: Ram, memory: Arc<Memory>, cells: u32) -> Store {
        let spans = Spans::new(cells);
        let idle = VecDeque::new();
        Store { ram, memory, spans, frames: 0, idle, idle_count: 0, keep: false, tidy_next: 0 }
    }

    /// Stores the object of a slot: 1 to [`OBJECT_BYTES_MAX`] bytes, or a whole page.
    pub(crate) fn insert(&mut self, owner: u32, object: &[u8]) -> Result<Handle, Full> {
        if object.len() == PAGE {
            return self.insert_page(object);
        }
        let cell = self.cell_with_hole(object.len())?;
        Ok(self.put(cell, owner, object))
    }

    /// Copies an object out; `out` is as long as it is.
    #[inline]
    pub(crate) fn read(&self, at: Handle, out: &mut [u8]) {
        debug_assert_eq!(out.len(), self.len(at), "an object is read whole");
        self.ram.read(address(at), out);
    }

    /// An object of `len` bytes will be read or removed soon.
    #[inline]
    pub(crate) fn prefetch(&self, at: Handle, len: usize) {
        // A whole page has no header before it.
        self.ram.prefetch(address(at).saturating_sub(HEADER), len + HEADER);
    }

    /// Stores the object of a slot where another of its is, if that is of the same class; says
    /// whether it is. The span stays as it is: no list, no frame and no count changes.
    pub(crate) fn overwrite(&mut self, at: Handle, owner: u32, object: &[u8]) -> bool {
        let (_, class, _) = self.find(at);
        let place = address(at);
        if object.len() == PAGE && class == PAGES {
            self.ram.write(place, object);
            return true;
        }
        if object.len() == PAGE || class != classes::of(object.len()) {
            return false;
        }
        self.ram.write(place - HEADER, &header(owner, object.len()));
        self.ram.write(place, object);
        true
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, at: Handle) {
        let (cell, class, nth) = self.find(at);
        if class == PAGES {
            assert!(self.spans.get(cell).in_use & (1 << nth) != 0, "no page at {at:?}");
            self.spans.emptied(cell);
            self.release(cell, 1 << nth);
        } else {
            self.free_object(cell, class, nth);
            self.spans.emptied(cell);
        }
        if self.spans.get(cell).live == 0 {
            self.drop_span(cell);
        }
        self.bound_idle();
    }

    /// Bytes that an object of this length takes, with its share of what is lost.
    pub(crate) fn class_bytes(len: usize) -> usize {
        if len > OBJECT_BYTES_MAX { PAGE } else { classes::class(classes::of(len)).size }
    }

    /// Pages in use.
    pub(crate) fn pages(&self) -> u64 {
        self.frames
    }

    fn insert_page(&mut self, page: &[u8]) -> Result<Handle, Full> {
        let partial = self.spans.fullest(PAGES);
        // ZR-ST2
        if !self.memory.take(1) {
            return Err(Full);
        }
        let Some(cell) = partial.or_else(|| self.spans.add_pages()) else {
            self.memory.give(1);
            return Err(Full);
        };
        self.frames += 1;
        let span = self.spans.get_mut(cell);
        // Memory that is there already, first.
        let choice = if span.idle() != 0 { span.idle() } else { !span.in_use };
        let nth = choice.trailing_zeros();
        self.occupied(cell, 1 << nth);
        self.spans.get_mut(cell).in_use |= 1 << nth;
        self.spans.filled(cell);
        let at = cell as usize * CELL + nth as usize * PAGE;
        self.ram.write(at, page);
        Ok(Handle(at as u64))
    }

    /// A span with a hole for an object of `len` bytes: of its class or one a little larger; one
    /// that has grown; where none may grow, of any larger class.
    fn cell_with_hole(&mut self, len: usize) -> Result<u32, Full> {
        let class = classes::of(len);
        let hole = match self.spans.class_with_hole(class, classes::near(class)) {
            Some(near) => near,
            None => match self.grow(class) {
                Some(cell) => return Ok(cell),
                None => self.spans.class_with_hole(class, PAGES).ok_or(Full)?,
            },
        };
        Ok(self.spans.fullest(hole).expect("it has a hole"))
    }

    /// Adds what frames the growing span of a class needs for an object more.
    fn grow(&mut self, nth: usize) -> Option<u32> {
        let class = classes::class(nth);
        let cell = self.spans.growing(nth)?;
        let span = self.spans.get(cell);
        let before = span.in_use.count_ones();
        let objects = usize::from(span.ready) + 1;
        let after = u32::try_from((objects * class.size).div_ceil(PAGE)).expect("few frames");
        let frames = (u32::MAX >> (u32::BITS - after)) & !span.in_use;
        // ZR-ST2
        if !self.memory.take(u64::from(after - before)) {
            if before == 0 {
                self.spans.drop_empty(cell);
            }
            return None;
        }
        self.frames += u64::from(after - before);
        self.occupied(cell, frames);
        self.spans.grew(cell, class, frames);
        Some(cell)
    }

    /// A span without objects is not in use any more.
    fn drop_span(&mut self, cell: u32) {
        self.release(cell, self.spans.get(cell).in_use);
        self.spans.drop_empty(cell);
    }

    /// Puts an object into a hole of the span.
    fn put(&mut self, cell: u32, owner: u32, object: &[u8]) -> Handle {
        let span = self.spans.get_mut(cell);
        let class = classes::class(span.class());
        let start = |nth: u16| cell as usize * CELL + usize::from(nth) * class.size;
        let nth = span.free;
        let at = if nth == NONE_OBJECT {
            let nth = span.fresh;
            assert!(usize::from(nth) < class.objects, "the span has a hole");
            span.fresh += 1;
            start(nth)
        } else {
            let mut next = [0; 2];
            self.ram.read(start(nth), &mut next);
            span.free = u16::from_le_bytes(next);
            start(nth)
        };
        self.spans.filled(cell);
        self.ram.write(at, &header(owner, object.len()));
        self.ram.write(at + HEADER, object);
        Handle((at + HEADER) as u64)
    }

    /// Makes an object a hole, without counting it.
    fn free_object(&mut self, cell: u32, class: usize, nth: usize) {
        let span = self.spans.get_mut(cell);
        let nth = u16::try_from(nth).expect("objects of a span are few");
        assert!(nth < span.fresh, "object {nth} of cell {cell} was never used");
        let next = std::mem::replace(&mut span.free, nth);
        let at = cell as usize * CELL + usize::from(nth) * classes::class(class).size;
        self.ram.write(at, &next.to_le_bytes());
    }

    /// The cell of an object, its class, and which object it is there.
    fn find(&self, at: Handle) -> (u32, usize, usize) {
        let at = address(at);
        let cell = u32::try_from(at / CELL).expect("handles are of this region");
        let (span, inside) = (self.spans.get(cell), at % CELL);
        assert!(span.is_used(), "no object at {at}");
        let class = span.class();
        if class == PAGES {
            return (cell, class, inside / PAGE);
        }
        let size = classes::class(class).size;
        assert_eq!(inside % size, HEADER, "no object at {at}");
        (cell, class, inside / size)
    }

    fn len(&self, at: Handle) -> usize {
        let (_, class, _) = self.find(at);
        if class == PAGES { PAGE } else { self.header(address(at) - HEADER).1 }
    }

    /// Owner and length of the object that begins there.
    fn header(&self, at: usize) -> (u32, usize) {
        let mut bytes = [0; HEADER];
        self.ram.read(at, &mut bytes);
        let [a, b, c, d, e, f] = bytes;
        (u32::from_le_bytes([a, b, c, d]), usize::from(u16::from_le_bytes([e, f])))
    }

    /// Frames of a cell, by bits, are going to be in use.
    fn occupied(&mut self, cell: u32, frames: u32) {
        let span = self.spans.get_mut(cell);
        self.idle_count -= (span.idle() & frames).count_ones() as usize;
        span.resident |= frames;
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.memory.give(self.frames);
    }
}

fn header(owner: u32, len: usize) -> [u8; HEADER] {
    let [a, b, c, d] = owner.to_le_bytes();
    let [e, f] = u16::try_from(len).expect("shorter than a page").to_le_bytes();
    [a, b, c, d, e, f]
}

fn address(at: Handle) -> usize {
    usize::try_from(at.0).expect("handles are addresses of a region that is mapped")
}
