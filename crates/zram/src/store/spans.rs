// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Spans: which cells of the region are in use, by which class, and where there are holes.
//!
//! Invariants
//! - SP1 A span is in the list of its class and of how full it is just as long as it has both
//!   objects and holes.
//! - SP2 A class's counts are those of its spans.
use super::classes::{self, COUNT};

/// The class of a cell whose frames hold a page each.
pub(super) const PAGES: usize = COUNT;
/// The class of a cell that is not in use.
const UNUSED: u8 = u8::MAX;
/// No object, no span.
pub(super) const NONE_OBJECT: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
/// Lists of a class, by eighths of its objects that are there.
const GROUPS: usize = 8;

const _: () = assert!(PAGES < UNUSED as usize);

/// One cell of the region. 16 bytes for 32 KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    class: u8,
    /// Frames, by bits, that the system has or may have memory for.
    pub(super) resident: u8,
    pub(super) live: u16,
    /// The first hole, from which the others are linked; of pages, the frames in use by bits.
    pub(super) free: u16,
    /// From this object on none was ever used.
    pub(super) fresh: u16,
    prev: u32,
    next: u32,
}

impl Span {
    pub(super) fn class(&self) -> usize {
        usize::from(self.class)
    }

    pub(super) fn is_used(&self) -> bool {
        self.class != UNUSED
    }

    /// Frames in use, by bits.
    pub(super) fn in_use(&self) -> u8 {
        match self.class() {
            _ if !self.is_used() => 0,
            PAGES => self.free.to_le_bytes()[0],
            class => u8::MAX >> (classes::FRAMES_MAX - classes::class(class).frames),
        }
    }

    /// Frames that are not in use and have memory all the same, by bits.
    pub(super) fn idle(&self) -> u8 {
        self.resident & !self.in_use()
    }
}

/// Objects of a class at most.
pub(super) fn objects(class: usize) -> usize {
    if class == PAGES { classes::FRAMES_MAX } else { classes::class(class).objects }
}

/// All cells.
pub(super) struct Spans {
    cells: Vec<Span>,
    cells_max: u32,
    unused: Vec<u32>,
    heads: Vec<[u32; GROUPS]>,
    /// By class: groups with a span, by bits.
    groups: Vec<u8>,
    /// By class: spans and objects.
    counts: Vec<(u64, u64)>,
    /// Classes with a hole, by bits.
    holes: [u64; (PAGES + 64) / 64],
}

impl Spans {
    pub(super) fn new(cells_max: u32) -> Spans {
        Spans {
            cells: Vec::new(),
            cells_max,
            unused: Vec::new(),
            heads: vec![[NONE; GROUPS]; PAGES + 1],
            groups: vec![0; PAGES + 1],
            counts: vec![(0, 0); PAGES + 1],
            holes: [0; (PAGES + 64) / 64],
        }
    }

    pub(super) fn get(&self, cell: u32) -> &Span {
        &self.cells[cell as usize]
    }

    pub(super) fn get_mut(&mut self, cell: u32) -> &mut Span {
        &mut self.cells[cell as usize]
    }

    /// An unused cell becomes a span of this class, without objects and in no list; none when
    /// there is no cell.
    pub(super) fn add(&mut self, class: usize) -> Option<u32> {
        let cell = match self.unused.pop() {
            Some(cell) => cell,
            None if self.cells.len() < self.cells_max as usize => {
                let none = Span {
                    class: UNUSED,
                    resident: 0,
                    live: 0,
                    free: 0,
                    fresh: 0,
                    prev: NONE,
                    next: NONE,
                };
                self.cells.push(none);
                u32::try_from(self.cells.len() - 1).expect("at most cells_max")
            }
            None => return None,
        };
        let span = &mut self.cells[cell as usize];
        span.class = u8::try_from(class).expect("classes fit a byte");
        (span.live, span.fresh) = (0, 0);
        span.free = if class == PAGES { 0 } else { NONE_OBJECT };
        self.counts[class].0 += 1;
        Some(cell)
    }

    /// A span without objects, in no list, becomes an unused cell.
    pub(super) fn drop_empty(&mut self, cell: u32) {
        let span = &mut self.cells[cell as usize];
        assert_eq!(span.live, 0, "a span with objects is in use");
        let class = span.class();
        span.class = UNUSED;
        self.counts[class].0 -= 1;
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

    /// Holes of a class, those of spans in no list too.
    pub(super) fn holes(&self, class: usize) -> u64 {
        let (spans, live) = self.counts[class];
        spans * objects(class) as u64 - live
    }

    /// One of the fullest spans of a class that have a hole.
    pub(super) fn fullest(&self, class: usize) -> Option<u32> {
        let group = self.groups[class].checked_ilog2()?;
        Some(self.heads[class][group as usize])
    }

    /// One of the emptiest spans of a class that have a hole and an object.
    pub(super) fn emptiest(&self, class: usize) -> Option<u32> {
        let groups = self.groups[class];
        (groups != 0).then(|| self.heads[class][groups.trailing_zeros() as usize])
    }

    /// Counts an object more, and puts the span where it belongs then.
    pub(super) fn filled(&mut self, cell: u32) {
        let span = &mut self.cells[cell as usize];
        let (class, before) = (span.class(), usize::from(span.live));
        span.live += 1;
        self.counts[class].1 += 1;
        self.regroup(cell, class, before, before + 1);
    }

    /// Counts an object less, and puts the span where it belongs then: in no list once it is empty.
    pub(super) fn emptied(&mut self, cell: u32) {
        let span = &mut self.cells[cell as usize];
        let (class, before) = (span.class(), usize::from(span.live));
        span.live = span.live.checked_sub(1).expect("an object was there");
        self.counts[class].1 -= 1;
        self.regroup(cell, class, before, before - 1);
    }

    /// Takes a span out of its list, so that nothing is put there any more.
    pub(super) fn hide(&mut self, cell: u32) {
        let span = &self.cells[cell as usize];
        let class = span.class();
        if let Some(group) = group(class, usize::from(span.live)) {
            self.unlink(cell, class, group);
        }
    }

    /// Counts an object less of a hidden span.
    pub(super) fn emptied_hidden(&mut self, cell: u32) {
        let span = &mut self.cells[cell as usize];
        span.live = span.live.checked_sub(1).expect("an object was there");
        let class = span.class();
        self.counts[class].1 -= 1;
    }

    /// SP1
    fn regroup(&mut self, cell: u32, class: usize, before: usize, after: usize) {
        let (from, to) = (group(class, before), group(class, after));
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.unlink(cell, class, from);
        }
        if let Some(to) = to {
            self.link(cell, class, to);
        }
    }

    fn link(&mut self, cell: u32, class: usize, group: usize) {
        let head = std::mem::replace(&mut self.heads[class][group], cell);
        if head != NONE {
            self.cells[head as usize].prev = cell;
        }
        let span = &mut self.cells[cell as usize];
        (span.prev, span.next) = (NONE, head);
        self.groups[class] |= 1 << group;
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
        self.heads[class][group] = next;
        if next == NONE {
            self.groups[class] &= !(1 << group);
            if self.groups[class] == 0 {
                self.holes[class / 64] &= !(1 << (class % 64));
            }
        }
    }
}

/// The list of a span with that many objects; none for an empty and a full one.
fn group(class: usize, live: usize) -> Option<usize> {
    let objects = objects(class);
    (live > 0 && live < objects).then(|| live * GROUPS / objects)
}

#[cfg(test)]
impl Spans {
    pub(super) fn cells(&self) -> u32 {
        u32::try_from(self.cells.len()).unwrap()
    }

    pub(super) fn by_class(&self) -> Vec<Vec<u32>> {
        let mut by_class = vec![Vec::new(); PAGES + 1];
        for (cell, span) in (0..).zip(&self.cells).filter(|(_, span)| span.is_used()) {
            by_class[span.class()].push(cell);
        }
        by_class
    }

    pub(super) fn is_listed(&self, cell: u32) -> bool {
        self.heads[self.get(cell).class()].iter().any(|&head| {
            let mut at = head;
            while at != NONE && at != cell {
                at = self.get(at).next;
            }
            at == cell
        })
    }
}
