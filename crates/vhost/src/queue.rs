// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue of a session: what the front end has set, and its ring while it runs.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use block::Error;
use block::latency::TurnCounts;
use reactor::WaitList;

use crate::event_fd::EventFd;
use crate::figures::Figures;
use crate::inflight::{Inflight, QueueNotes};
use crate::memory::Memory;
use crate::message::RingAddresses;
use crate::ring::{Ring, RingError};

/// So many requests are answered before the guest may see and be told of them while others still go
/// on: then guest and core work at the same time.
const TOLD_AT_ONCE: u16 = 4;
/// Of requests that end as they are submitted the guest is told when so many of those that it has
/// at a time are left, or a quarter if that is more: waking it takes as long as they do. Told
/// earlier, it finds few answers and sleeps again, and each call to one that sleeps takes 3 us in a
/// virtual machine (docs/performance.md, "Doors").
const LEFT_AS_TOLD: u16 = 8;

/// A queue. It runs from the message that gives its kick to the one that asks for its base.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) number: u16,
    pub(crate) size: Cell<u16>,
    pub(crate) base: Cell<u16>,
    pub(crate) addresses: Cell<Option<RingAddresses>>,
    pub(crate) enabled: Cell<bool>,
    /// Whether it has run in this session.
    pub(crate) was_started: Cell<bool>,
    pub(crate) kick: RefCell<Option<Rc<EventFd>>>,
    pub(crate) call: RefCell<Option<Rc<EventFd>>>,
    ring: RefCell<Option<Rc<Ring>>>,
    notes: RefCell<Option<QueueNotes>>,
    /// Heads of the requests in flight, and how many they are.
    in_flight: RefCell<Vec<bool>>,
    in_flight_count: Cell<usize>,
    /// Of the session on this core.
    figures: Arc<Figures>,
    /// Requests of this turn that ended as they were submitted.
    pub(crate) ended_at_once: TurnCounts,
    /// Tasks that serve it.
    pub(crate) tasks: Cell<usize>,
    pub(crate) is_stopping: Cell<bool>,
    /// Requests were put into the used ring, and the guest may want to be told.
    pub(crate) is_call_due: Cell<bool>,
    /// Woken with the above, and when the queue stops.
    pub(crate) call_due: WaitList,
    /// Woken when a request or a task has ended.
    pub(crate) ended: WaitList,
}

impl Queue {
    pub(crate) fn new(number: u16, figures: &Arc<Figures>) -> Rc<Queue> {
        Rc::new(Queue { number, figures: figures.clone(), ..Queue::default() })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.ring.borrow().is_some()
    }

    /// Whether its requests in flight are noted.
    pub(crate) fn has_notes(&self) -> bool {
        self.notes.borrow().is_some()
    }

    pub(crate) fn ring(&self) -> Option<Rc<Ring>> {
        self.ring.borrow().clone()
    }

    /// Takes the entry that [`Ring::peek`] has found.
    pub(crate) fn take(&self) {
        if let Some(ring) = &*self.ring.borrow() {
            ring.take();
        }
    }

    /// Puts a request into the used ring, where the guest sees it when it is published; no effect
    /// when the queue has stopped.
    ///
    /// # Errors
    /// When memory is gone.
    pub(crate) fn put_used(&self, head: u16, written: u32) -> Result<(), RingError> {
        let ring = self.ring.borrow();
        let Some(ring) = &*ring else { return Ok(()) };
        match &*self.notes.borrow() {
            Some(notes) => notes.put_used(ring, head, written),
            None => ring.put_used(head, written),
        }
    }

    /// Lets the guest see all of the used ring.
    ///
    /// # Errors
    /// When memory is gone.
    pub(crate) fn publish(&self) -> Result<(), RingError> {
        let ring = self.ring.borrow();
        let Some(ring) = ring.as_ref().filter(|ring| ring.unpublished() > 0) else {
            return Ok(());
        };
        match &*self.notes.borrow() {
            Some(notes) => notes.publish(ring),
            None => ring.publish(),
        }
    }

    /// The same, and tells the guest, as soon as there are enough. More follow in this turn of the
    /// event loop, or the end of it.
    ///
    /// # Errors
    /// When memory is gone.
    pub(crate) fn publish_some(&self) -> Result<(), RingError> {
        let unpublished = self.ring.borrow().as_ref().map_or(0, |ring| ring.unpublished());
        if unpublished < TOLD_AT_ONCE {
            return Ok(());
        }
        self.publish()?;
        let at_once = self.ring.borrow().as_ref().map_or(0, |ring| ring.found_at_once());
        self.call_after(at_once.saturating_sub(LEFT_AS_TOLD.max(at_once / 4)))
    }

    /// Makes the ring. Returns the heads that an earlier process has left in flight, to be issued
    /// again.
    ///
    /// # Errors
    /// When it has no size or place yet, or they are impossible.
    pub(crate) fn begin(
        &self,
        memory: &Memory,
        has_event_idx: bool,
        inflight: Option<&Inflight>,
    ) -> Result<Vec<u16>, Error> {
        let failed = |e: String| Error::invalid(format!("queue {}: {e}", self.number));
        let size = self.size.get();
        let Some(addresses) = self.addresses.get().filter(|_| size > 0) else {
            return Err(failed("it has a kick, but no size or no addresses yet".to_owned()));
        };
        let ring = Ring::new(memory, &addresses, size, self.base.get(), has_event_idx);
        let ring = ring.map_err(failed)?;
        let mut again = Vec::new();
        if let Some(inflight) = inflight {
            let of_ring = |e: RingError| failed(e.to_string());
            let notes = inflight.queue(self.number, size).map_err(of_ring)?;
            if let Some(notes) = &notes {
                again = notes.recover(&ring).map_err(of_ring)?;
                let count = u16::try_from(again.len()).expect("at most the queue's size");
                ring.set_next(ring.used_idx().wrapping_add(count));
            }
            self.notes.replace(notes);
        }
        self.in_flight.replace(vec![false; size.into()]);
        self.is_stopping.set(false);
        self.ring.replace(Some(Rc::new(ring)));
        self.figures.queues.add(1);
        Ok(again)
    }

    /// Finds the ring in other memory.
    ///
    /// # Errors
    /// When it is not whole there.
    pub(crate) fn move_to(&self, memory: &Memory) -> Result<(), Error> {
        let (Some(old), Some(addresses)) = (self.ring(), self.addresses.get()) else {
            return Ok(());
        };
        let ring = old.moved_to(memory, &addresses);
        let ring = ring.map_err(|e| Error::invalid(format!("queue {}: {e}", self.number)))?;
        self.ring.replace(Some(Rc::new(ring)));
        Ok(())
    }

    /// A request is in flight; `is_new`: no earlier process has noted it.
    ///
    /// # Errors
    /// When one with this head is already, and when memory is gone.
    pub(crate) fn begin_request(&self, head: u16, is_new: bool) -> Result<(), RingError> {
        let mut in_flight = self.in_flight.borrow_mut();
        let entry = in_flight.get_mut(usize::from(head)).ok_or(RingError::Notes)?;
        if *entry {
            return Err(RingError::InFlight(head));
        }
        if let (true, Some(notes)) = (is_new, &*self.notes.borrow()) {
            notes.begin(head)?;
        }
        *entry = true;
        self.in_flight_count.set(self.in_flight_count.get() + 1);
        self.figures.in_flight.add(1);
        Ok(())
    }

    /// Tells the guest about used requests before the others of this turn have ended, if there are
    /// enough and it wants that; the task that calls the guest at the end of the turn tells the
    /// rest.
    ///
    /// # Errors
    /// When memory is gone.
    pub(crate) fn call_early(&self) -> Result<(), RingError> {
        self.call_after(TOLD_AT_ONCE)
    }

    /// The same, if there are `enough`, and [`TOLD_AT_ONCE`].
    fn call_after(&self, enough: u16) -> Result<(), RingError> {
        let ring = self.ring.borrow();
        let has_enough = |ring: &&Rc<Ring>| ring.untold() >= enough.max(TOLD_AT_ONCE);
        let Some(ring) = ring.as_ref().filter(has_enough) else { return Ok(()) };
        let call = self.call.borrow();
        // What can't be told now must not count as told.
        if let Some(call) = call.as_ref().filter(|call| call.can_signal_now())
            && ring.wants_early_call()?
        {
            call.signal_now();
        }
        Ok(())
    }

    pub(crate) fn end_request(&self, head: u16) {
        self.in_flight.borrow_mut()[usize::from(head)] = false;
        self.in_flight_count.set(self.in_flight_count.get() - 1);
        self.figures.in_flight.subtract(1);
        // Who calls the guest was woken by the first of them.
        if !self.is_call_due.replace(true) || self.is_stopping.get() {
            self.call_due.wake_all();
        }
        // Nobody waits for it but the one that stops the queue.
        if self.is_stopping.get() {
            self.ended.wake_all();
        }
    }

    pub(crate) fn end_task(&self) {
        self.tasks.set(self.tasks.get() - 1);
        self.call_due.wake_all();
        self.ended.wake_all();
    }

    /// Whether it stops, and only the task that calls the guest is left.
    pub(crate) fn has_ended_but_calls(&self) -> bool {
        self.is_stopping.get() && self.tasks.get() == 1 && self.in_flight_count.get() == 0
    }

    /// Stops at once: nobody is there any more to be told.
    pub(crate) fn cut_off(&self) {
        self.is_stopping.set(true);
        for event in self.kick.take().into_iter().chain(self.call.take()) {
            event.close();
        }
        self.call_due.wake_all();
    }

    /// Takes no more requests.
    pub(crate) fn begin_stop(&self) {
        self.is_stopping.set(true);
        if let Some(kick) = self.kick.take() {
            kick.close();
        }
        self.call_due.wake_all();
    }

    /// Takes no more requests, and waits until those in flight have ended. Returns the index of the
    /// next one.
    pub(crate) async fn stop(&self) -> u16 {
        self.begin_stop();
        let over = || self.tasks.get() == 0 && self.in_flight_count.get() == 0;
        self.ended.wait_for(over).await;
        self.notes.take();
        if let Some(ring) = self.ring.take() {
            self.figures.queues.subtract(1);
            self.base.set(ring.next());
        }
        self.base.get()
    }

    /// Forgets all that the front end has set. It is stopped.
    pub(crate) fn reset(&self) {
        self.size.set(0);
        self.base.set(0);
        self.addresses.set(None);
        self.enabled.set(false);
        self.call.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestEvent, USER_OFFSET, ram, region_at};
    use block::ClientRegion;

    const SIZE: u16 = 64;
    const AVAILABLE: u64 = 0x1000;

    /// A queue whose guest wants to be told of everything, until it has been told.
    struct TestQueue {
        queue: Rc<Queue>,
        region: Arc<dyn ClientRegion>,
        event: Arc<TestEvent>,
    }

    impl TestQueue {
        fn new() -> TestQueue {
            let (region, event) = (ram(0x3000), Arc::new(TestEvent::default()));
            let region = region as Arc<dyn ClientRegion>;
            let memory = Memory::new(&[region_at(0, 0x3000)], vec![region.clone()]).unwrap();
            let queue = Queue::new(0, &Arc::default());
            queue.size.set(SIZE);
            queue.addresses.set(Some(RingAddresses {
                descriptors: USER_OFFSET,
                used: USER_OFFSET + 0x2000,
                available: USER_OFFSET + AVAILABLE,
            }));
            queue.begin(&memory, true, None).unwrap();
            queue.call.replace(Some(EventFd::of_test(event.clone())));
            TestQueue { queue, region, event }
        }

        /// The guest makes entries available up to this index, which are found.
        fn offer(&self, index: u16) {
            self.region.store_u16(AVAILABLE + 2, index).unwrap();
            assert_eq!(self.queue.ring().unwrap().peek(), Ok(Some(0)));
        }

        /// The guest wants to be told again, after this index.
        fn want_call(&self, index: u16) {
            self.region.store_u16(AVAILABLE + 4 + u64::from(SIZE) * 2, index).unwrap();
        }

        /// Requests end as they are submitted. Returns how often the guest has been told.
        fn end(&self, heads: std::ops::Range<u16>) -> u64 {
            for head in heads {
                self.queue.begin_request(head, true).unwrap();
                self.queue.put_used(head, 1).unwrap();
                self.queue.end_request(head);
                self.queue.publish_some().unwrap();
            }
            self.event.count()
        }
    }

    #[test]
    fn the_guest_is_told_before_all_requests_have_ended() {
        let test = TestQueue::new();
        test.offer(8);
        assert_eq!(test.end(0..3), 0, "so few are told at the end of the turn");
        assert_eq!(test.end(3..4), 1);
        assert_eq!(test.end(4..12), 1, "the guest has not asked again");
        test.want_call(12);
        assert_eq!(test.end(12..16), 2);
        assert_eq!(test.queue.ring().unwrap().wants_call(), Ok(false), "all were told");
    }

    #[test]
    fn a_guest_with_many_requests_is_told_when_few_are_left() {
        let test = TestQueue::new();
        test.offer(32);
        assert_eq!(test.end(0..23), 0);
        assert_eq!(test.end(23..24), 1, "8 of 32 are left");
        let test = TestQueue::new();
        test.offer(64);
        assert_eq!(test.end(0..47), 0);
        assert_eq!(test.end(47..48), 1, "a quarter of 64 is left");
    }
}
