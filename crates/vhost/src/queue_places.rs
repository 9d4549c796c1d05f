// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places of queues: how many all front ends of a door may have, as each takes descriptors of the
//! process for as long as its front end is there.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use block::Error;

use crate::config::QUEUES_MAX;

/// What the socket and the memory of a front end take: as much as so many queues.
const PLACES_OF_SESSION: usize = 2;

/// The places of a door, on the core that handles its messages.
pub(crate) struct QueuePlaces {
    most: usize,
    taken: Cell<usize>,
}

impl QueuePlaces {
    /// Room for one queue at least.
    pub(crate) fn new(most: usize) -> QueuePlaces {
        QueuePlaces { most: most.max(PLACES_OF_SESSION + 1), taken: Cell::new(0) }
    }

    /// Queues that one front end may have.
    pub(crate) fn queues_max(&self) -> u16 {
        let most = self.most - PLACES_OF_SESSION;
        u16::try_from(most).unwrap_or(u16::MAX).min(QUEUES_MAX)
    }

    fn take(&self, places: usize) -> bool {
        let taken = self.taken.get() + places;
        let fits = taken <= self.most;
        if fits {
            self.taken.set(taken);
        }
        fits
    }
}

/// The places of one session; given back when it is dropped.
pub(crate) struct SessionPlaces {
    all: Rc<QueuePlaces>,
    queues: RefCell<BTreeSet<u32>>,
    taken: Cell<usize>,
}

impl SessionPlaces {
    pub(crate) fn new(all: &Rc<QueuePlaces>) -> SessionPlaces {
        SessionPlaces { all: all.clone(), queues: RefCell::default(), taken: Cell::new(0) }
    }

    /// Takes a place for a queue, unless it has one.
    pub(crate) fn take(&self, queue: u32) -> Result<(), Error> {
        let mut queues = self.queues.borrow_mut();
        if queues.contains(&queue) {
            return Ok(());
        }
        let places = if queues.is_empty() { PLACES_OF_SESSION + 1 } else { 1 };
        if !self.all.take(places) {
            let most = self.all.most;
            return Err(Error::busy(format!(
                "queue {queue}: all front ends together may have {most} queues and no more, of \
                 which each front end takes {PLACES_OF_SESSION} for itself, as few files may be \
                 open: raise that limit (`ulimit -n`, LimitNOFILE=), or give its machine fewer"
            )));
        }
        queues.insert(queue);
        self.taken.set(self.taken.get() + places);
        Ok(())
    }
}

impl Drop for SessionPlaces {
    fn drop(&mut self) {
        self.all.taken.set(self.all.taken.get() - self.taken.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_front_ends_have_no_more_queues_than_there_are_places() {
        let all = Rc::new(QueuePlaces::new(7));
        assert_eq!(all.queues_max(), 5);
        let (first, second) = (SessionPlaces::new(&all), SessionPlaces::new(&all));
        first.take(0).unwrap();
        first.take(0).unwrap();
        first.take(9).unwrap();
        second.take(0).unwrap();
        for session in [&first, &second] {
            let refused = session.take(3).unwrap_err().to_string();
            assert!(refused.contains("may have 7 queues"), "{refused}");
            session.take(0).unwrap();
        }
        // The way out: another one goes.
        drop(first);
        second.take(3).unwrap();
        drop(second);
        assert_eq!(all.taken.get(), 0);
    }

    #[test]
    fn a_queue_has_a_place_however_few_there_are() {
        for (most, queues) in [(0, 1), (3, 1), (130, 128), (usize::MAX, 128)] {
            let all = Rc::new(QueuePlaces::new(most));
            assert_eq!(all.queues_max(), queues);
            let session = SessionPlaces::new(&all);
            (0..queues.into()).for_each(|queue| session.take(queue).unwrap());
        }
    }
}
