// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue of slots, stored in pieces of one size. It may hold millions: a `VecDeque` would waste a
//! third of its memory on average, and would need three times its size while it grows.
use std::collections::VecDeque;
use std::ops::{Index, IndexMut, Range};

/// Slots in one piece: 64 KiB.
const PIECE: usize = 16 << 10;

/// A queue of slots. Index 0 is its front.
#[derive(Default)]
pub(super) struct Chunks {
    /// All pieces are full, except the last one.
    pieces: VecDeque<Vec<u32>>,
    /// Index of the front in the first piece: the slots before it have left the queue.
    head: usize,
    len: usize,
}

impl Chunks {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push_back(&mut self, slot: u32) {
        self.len += 1;
        match self.pieces.back_mut() {
            Some(last) if last.len() < PIECE => last.push(slot),
            // The only piece of a short queue takes no more memory than it needs.
            None => self.pieces.push_back(vec![slot]),
            Some(_) => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(slot);
                self.pieces.push_back(piece);
            }
        }
    }

    /// Drops the first `count` slots.
    pub(super) fn drop_front(&mut self, count: usize) {
        assert!(count <= self.len, "{count} of {}", self.len);
        self.len -= count;
        self.head += count;
        while self.head >= PIECE {
            self.pieces.pop_front();
            self.head -= PIECE;
        }
        if self.len == 0 {
            self.pieces.clear();
            self.head = 0;
        }
    }

    /// Drops all slots after the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        self.len = len;
        let end = self.head + len;
        self.pieces.truncate(end.div_ceil(PIECE));
        if let Some(last) = self.pieces.back_mut() {
            last.truncate((end - 1) % PIECE + 1);
        }
        if len == 0 {
            self.pieces.clear();
            self.head = 0;
        }
    }

    pub(super) fn range(&self, range: Range<usize>) -> impl Iterator<Item = u32> + '_ {
        let (mut at, end) = (range.start + self.head, range.end + self.head);
        let pieces = std::iter::from_fn(move || {
            let piece = (at < end).then(|| {
                let in_piece = at % PIECE..(at % PIECE + end - at).min(PIECE);
                &self.pieces[at / PIECE][in_piece]
            })?;
            at += piece.len();
            Some(piece)
        });
        pieces.flatten().copied()
    }
}

impl Index<usize> for Chunks {
    type Output = u32;

    fn index(&self, at: usize) -> &u32 {
        let at = at + self.head;
        &self.pieces[at / PIECE][at % PIECE]
    }
}

impl IndexMut<usize> for Chunks {
    fn index_mut(&mut self, at: usize) -> &mut u32 {
        let at = at + self.head;
        &mut self.pieces[at / PIECE][at % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(usize),
        Drop(usize),
        Keep(usize),
        Set(usize, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let count = 0..3 * PIECE;
        prop_oneof![
            count.clone().prop_map(Step::Push),
            count.clone().prop_map(Step::Drop),
            count.clone().prop_map(Step::Keep),
            (count, any::<u32>()).prop_map(|(at, slot)| Step::Set(at, slot)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn it_holds_what_a_plain_queue_holds(steps in prop::collection::vec(step(), 1..24)) {
            let (mut chunks, mut plain) = (Chunks::default(), VecDeque::new());
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Push(count) => for _ in 0..count {
                        chunks.push_back(next);
                        plain.push_back(next);
                        next += 1;
                    },
                    Step::Drop(count) => {
                        chunks.drop_front(count.min(plain.len()));
                        plain.drain(..count.min(plain.len()));
                    }
                    Step::Keep(len) => {
                        chunks.truncate(len);
                        plain.truncate(len);
                    }
                    Step::Set(at, slot) if at < plain.len() => {
                        chunks[at] = slot;
                        plain[at] = slot;
                    }
                    Step::Set(..) => {}
                }
                prop_assert_eq!(chunks.len(), plain.len());
                prop_assert!(chunks.range(0..plain.len()).eq(plain.iter().copied()));
            }
        }
    }
}
