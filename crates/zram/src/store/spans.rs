// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Spans: which cells of the region are in use, by which class, and where there are holes.
//!
//! Invariants
//! - ZR-SP1 A span is in the list of its class and fill exactly while it has both objects and
//!   holes, unless it is hidden.
//! - ZR-SP2 The counts of a class are the sums over its spans.
//! - ZR-SP3 At most one span of a class is still growing.
use super::classes::{self, COUNT, Class, FRAMES_MAX};

/// The class of a cell whose frames hold a page each.
pub(super) const PAGES: usize = COUNT;
/// The class of a cell that is not in use.
const UNUSED: u8 = u8::MAX;
/// No object, no span.
pub(super) const NONE_OBJECT: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
/// Lists of a class, by eighths of its objects that are there.
const GROUPS: usize = 8;
const HOLES_WORDS: usize = PAGES / 64 + 1;

const _: () = assert!(PAGES < UNUSED as usize);
const _: () = assert!(FRAMES_MAX == u32::BITS as usize, "frames of a cell are bits of a u32");

/// One cell of the region. 28 bytes for 128 KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Frames, by bits, that are in use.
    pub(super) in_use: u32,
    /// Frames, by bits, that the system has or may have memory for.
    pub(super) resident: u32,
    prev: u32,
    next: u32,
    /// Objects that there are.
    pub(super) live: u16,
    /// Objects that fit into the frames in use.
    pub(super) ready: u16,
    /// From this object on none was ever used.
    pub(super) fresh: u16,
    /// The first object that is free again; the others are linked from it.
    pub(super) free: u16,
    class: u8,
}

const EMPTY: Span = Span {
    in_use: 0,
    resident: 0,
    prev: NONE,
    next: NONE,
    live: 0,
    ready: 0,
    fresh: 0,
    free: NONE_OBJECT,
    class: UNUSED,
};

impl Span {
    pub(super) fn class(&self) -> usize {
        usize::from(self.class)
    }

    pub(super) fn is_used(&self) -> bool {
        self.class != UNUSED
    }

    /// Frames that are not in use and have memory all the same, by bits.
    pub(super) fn idle(&self) -> u32 {
        self.resident & !self.in_use
    }

    /// The list where it belongs; none when it is empty or full.
    fn group(&self) -> Option<usize> {
        let (live, ready) = (usize::from(self.live), usize::from(self.ready));
        (live > 0 && live < ready).then(|| live * GROUPS / ready)
    }
}

/// The spans of a class.
#[derive(Clone, Debug)]
struct OfClass {
    heads: [u32; GROUPS],
    /// Groups with a span, by bits.
    groups: u8,
    /// The span that has not all its frames yet.
    growing: u32,
    /// Sums over all spans.
    ready: u64,
    live: u64,
}

/// All cells.
pub(super) struct Spans {
    cells: Vec<Span>,
    cells_max: u32,
    unused: Vec<u32>,
    of: Vec<OfClass>,
    /// Classes with a span in a list, by bits.
    holes: [u64; HOLES_WORDS],
}

impl Spans {
    pub(super) fn new(cells_max: u32) -> Spans {
        let none = OfClass { heads: [NONE; GROUPS], groups: 0, growing: NONE, ready: 0, live: 0 };
        let (cells, unused) = (Vec::new(), Vec::new());
        Spans { cells, cells_max, unused, of: vec![none; PAGES + 1], holes: [0; HOLES_WORDS] }
    }

    /// Cells that are or have been in use; the others come after them.
    pub(super) fn cells(&self) -> u32 {
        u32::try_from(self.cells.len()).expect("at most `cells_max`")
    }

    pub(super) fn get(&self, cell: u32) -> &Span {
        &self.cells[cell as usize]
    }

    pub(super) fn get_mut(&mut self, cell: u32) -> &mut Span {
        &mut self.cells[cell as usize]
    }

    /// The span of a class that grows next: the one that has not all its frames, or a cell that is
    /// not in use yet; none when there is no cell.
    pub(super) fn growing(&mut self, class: usize) -> Option<u32> {
        let growing = self.of[class].growing;
        if growing != NONE {
            return Some(growing);
        }
        let cell = self.take_cell(class)?;
        self.of[class].growing = cell;
        Some(cell)
    }

    /// A cell that is not in use becomes one of pages; none when there is no cell.
    pub(super) fn add_pages(&mut self) -> Option<u32> {
        let cell = self.take_cell(PAGES)?;
        let span = &mut self.cells[cell as usize];
        span.ready = u16::try_from(FRAMES_MAX).expect("few");
        self.of[PAGES].ready += u64::from(span.ready);
        Some(cell)
    }

    fn take_cell(&mut self, class: usize) -> Option<u32> {
        let cell = match self.unused.pop() {
            Some(cell) => cell,
            None if self.cells.len() < self.cells_max as usize => {
                self.cells.push(EMPTY);
                u32::try_from(self.cells.len() - 1).expect("at most cells_max")
            }
            None => return None,
        };
        let span = &mut self.cells[cell as usize];
        let class = u8::try_from(class).expect("classes fit a byte");
        *span = Span { class, resident: span.resident, ..EMPTY };
        Some(cell)
    }

    /// The growing span has got frames, by bits, and room for more objects.
    pub(super) fn grew(&mut self, cell: u32, class: &Class, frames: u32) {
        let before = self.get(cell).group();
        let span = &mut self.cells[cell as usize];
        span.in_use |= frames;
        let count = span.in_use.count_ones() as usize;
        let ready = u16::try_from(classes::fit(class, count)).expect("objects of a span are few");
        let nth = span.class();
        self.of[nth].ready += u64::from(ready - span.ready);
        span.ready = ready;
        if count == class.frames {
            // ZR-SP3
            self.of[nth].growing = NONE;
        }
        self.regroup(cell, before);
    }

    /// A span without objects, in no list, becomes an unused cell.
    pub(super) fn drop_empty(&mut self, cell: u32) {
        let span = &mut self.cells[cell as usize];
        assert_eq!(span.live, 0, "a span with objects is in use");
        let of = &mut self.of[span.class()];
        of.ready -= u64::from(span.ready);
        if of.growing == cell {
            of.growing = NONE;
        }
        *span = Span { resident: span.resident, ..EMPTY };
        self.unused.push(cell);
    }

    /// The first class from `from` to before `to` with a hole in a list.
    pub(super) fn class_with_hole(&self, from: usize, to: usize) -> Option<usize> {
        let mut at = from;
        while at < to {
            let word = self.holes[at / 64] >> (at % 64);
            if word != 0 {
                let found = at + word.trailing_zeros() as usize;
                return (found < to).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Holes of a class, those of hidden spans too.
    pub(super) fn holes(&self, class: usize) -> u64 {
        self.of[class].ready - self.of[class].live
    }

    /// One of the fullest spans of a class that have a hole.
    pub(super) fn fullest(&self, class: usize) -> Option<u32> {
        let of = &self.of[class];
        Some(of.heads[of.groups.checked_ilog2()? as usize])
    }

    /// One of the emptiest spans of a class that have a hole and an object.
    pub(super) fn emptiest(&self, class: usize) -> Option<u32> {
        let of = &self.of[class];
        (of.groups != 0).then(|| of.heads[of.groups.trailing_zeros() as usize])
    }

    /// Counts an object more, and puts the span where it belongs then.
    pub(super) fn filled(&mut self, cell: u32) {
        let before = self.get(cell).group();
        let span = &mut self.cells[cell as usize];
        span.live += 1;
        assert!(span.live <= span.ready, "cell {cell} has no room");
        self.of[span.class()].live += 1;
        self.regroup(cell, before);
    }

    /// Counts an object less, and puts the span where it belongs then: in no list once it is empty.
    pub(super) fn emptied(&mut self, cell: u32) {
        let before = self.get(cell).group();
        self.emptied_hidden(cell);
        self.regroup(cell, before);
    }

    /// Takes a span out of its list, so that nothing is put there any more.
    pub(super) fn hide(&mut self, cell: u32) {
        let span = self.get(cell);
        let class = span.class();
        if let Some(group) = span.group() {
            self.unlink(cell, class, group);
        }
        if self.of[class].growing == cell {
            self.of[class].growing = NONE;
        }
    }

    /// Counts an object less of a hidden span.
    pub(super) fn emptied_hidden(&mut self, cell: u32) {
        let span = &mut self.cells[cell as usize];
        span.live = span.live.checked_sub(1).expect("an object was there");
        self.of[span.class()].live -= 1;
    }

    /// ZR-SP1
    fn regroup(&mut self, cell: u32, before: Option<usize>) {
        let span = self.get(cell);
        let (class, after) = (span.class(), span.group());
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.unlink(cell, class, before);
        }
        if let Some(after) = after {
            self.link(cell, class, after);
        }
    }

    fn link(&mut self, cell: u32, class: usize, group: usize) {
        let head = std::mem::replace(&mut self.of[class].heads[group], cell);
        if head != NONE {
            self.cells[head as usize].prev = cell;
        }
        let span = &mut self.cells[cell as usize];
        (span.prev, span.next) = (NONE, head);
        self.of[class].groups |= 1 << group;
        self.holes[class / 64] |= 1 << (class % 64);
    }

    fn unlink(&mut self, cell: u32, class: usize, group: usize) {
        let Span { prev, next, .. } = self.cells[cell as usize];
        if next != NONE {
            self.cells[next as usize].prev = prev;
        }
        if prev != NONE {
            self.cells[prev as usize].next = next;
            return;
        }
        let of = &mut self.of[class];
        of.heads[group] = next;
        if next == NONE {
            of.groups &= !(1 << group);
            if of.groups == 0 {
                self.holes[class / 64] &= !(1 << (class % 64));
            }
        }
    }
}

#[cfg(test)]
impl Spans {
    pub(super) fn by_class(&self) -> Vec<Vec<u32>> {
        let mut by_class = vec![Vec::new(); PAGES + 1];
        for (cell, span) in (0..).zip(&self.cells).filter(|(_, span)| span.is_used()) {
            by_class[span.class()].push(cell);
        }
        by_class
    }

    pub(super) fn is_growing(&self, cell: u32) -> bool {
        self.of[self.get(cell).class()].growing == cell
    }

    pub(super) fn is_listed(&self, cell: u32) -> bool {
        self.of[self.get(cell).class()].heads.iter().any(|&head| {
            let mut at = head;
            while at != NONE && at != cell {
                at = self.get(at).next;
            }
            at == cell
        })
    }
}
