// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sequence: numbers of ioends, and which of them are still open.
//!
//! A FLUSH waits for all ioends that exist when it begins. It notes the next number, say 7, and
//! waits until everything below 7 has ended; ioends that are opened later do not delay it.
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;

/// See the module.
#[derive(Default)]
pub(crate) struct Sequence {
    oldest: Cell<u64>,
    /// How many open ioends `oldest` and each number after it has.
    open: RefCell<VecDeque<u32>>,
}

impl Sequence {
    /// Opens one ioend with a new number.
    pub(crate) fn open(&self) -> u64 {
        let mut open = self.open.borrow_mut();
        open.push_back(1);
        self.oldest.get() + open.len() as u64 - 1
    }

    fn count(&self, number: u64) -> RefMut<'_, u32> {
        let at = usize::try_from(number - self.oldest.get()).expect("few are in flight");
        RefMut::map(self.open.borrow_mut(), |open| &mut open[at])
    }

    /// Opens one more ioend with a number that has one.
    pub(crate) fn open_again(&self, number: u64) {
        *self.count(number) += 1;
    }

    /// Ends one ioend of a number.
    pub(crate) fn end(&self, number: u64) {
        *self.count(number) -= 1;
        let mut open = self.open.borrow_mut();
        while open.front() == Some(&0) {
            open.pop_front();
            self.oldest.set(self.oldest.get() + 1);
        }
    }

    /// The number that the next ioend will have.
    pub(crate) fn next(&self) -> u64 {
        self.oldest.get() + self.open.borrow().len() as u64
    }

    /// Whether all ioends with numbers below `number` have ended.
    pub(crate) fn all_ended_below(&self, number: u64) -> bool {
        self.oldest.get() >= number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_passed_when_all_ioends_below_have_ended() {
        let sequence = Sequence::default();
        assert!(sequence.all_ended_below(sequence.next()));
        let (a, b, c) = (sequence.open(), sequence.open(), sequence.open());
        let wait = sequence.next();
        sequence.open_again(b);
        sequence.end(b);
        sequence.end(c);
        assert!(sequence.all_ended_below(a) && !sequence.all_ended_below(b));
        sequence.end(a);
        assert!(sequence.all_ended_below(b) && !sequence.all_ended_below(c));
        let later = sequence.open();
        sequence.end(b);
        assert!(sequence.all_ended_below(wait) && !sequence.all_ended_below(later + 1));
    }
}
