// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Bucket`: an object store in the simulator that lies in every way in which real ones do, and in
//! no other: what `ObjectStore` promises it keeps.
//!
//! ```text
//!   Connection (one a writer, may be paused) ── request ──► arrivals, by time ──► objects
//!                      ◄── answer: right, late, lost, doubled, throttled ──┘
//! ```
//!
//! Arrivals belong to the bucket: a request that was sent takes effect though its sender has died.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, LocalFuture, Nanos};
use objvol::{Listing, ObjectStore, StoreError};
use sim::{Rng, WorldRef};

/// How often the bucket does what, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lies {
    /// Nothing happens, and no answer comes.
    pub(crate) lost_request: u32,
    /// It happens, and no answer comes.
    pub(crate) lost_answer: u32,
    /// No answer comes, and it happens later: up to hours.
    pub(crate) late: u32,
    /// It happens, and once more later; the answer is that of the first.
    pub(crate) doubled: u32,
    /// It happens twice, and the answer is that of the second: 412 on one's own success.
    pub(crate) doubled_answer: u32,
    /// 409, and nothing happens.
    pub(crate) conflict: u32,
    /// 503, and nothing happens.
    pub(crate) throttled: u32,
    /// Answers take twenty times as long.
    pub(crate) slow: u32,
}

impl Lies {
    /// A profile: honest, or some lies, or many.
    pub(crate) fn draw(rng: &mut Rng) -> Lies {
        let most = rng.pick(&[0, 30, 150]);
        let mut draw = || if most == 0 { 0 } else { u32::try_from(rng.below(most)).unwrap() };
        Lies {
            lost_request: draw(),
            lost_answer: draw(),
            late: draw(),
            doubled: draw(),
            doubled_answer: draw(),
            conflict: draw(),
            throttled: draw(),
            slow: draw(),
        }
    }
}

/// How many requests of each kind have come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) puts: u64,
    pub(crate) gets: u64,
    pub(crate) lists: u64,
    pub(crate) deletes: u64,
}

const LATENCY_NS_MAX: u64 = 50_000_000;
const TIMEOUT: Nanos = Nanos(2_000_000_000);
const LATE_NS_MAX: u64 = 2 * 3600 * 1_000_000_000;

type Outcome<T> = Rc<RefCell<Option<Result<T, StoreError>>>>;

enum Change {
    Put {
        name: String,
        object: Rc<[u8]>,
    },
    /// The second half of a PUT of a store that looks first.
    Write {
        name: String,
        object: Rc<[u8]>,
    },
    Delete {
        name: String,
    },
}

/// See the module.
pub(crate) struct Bucket {
    world: WorldRef,
    rng: Rng,
    objects: BTreeMap<String, Rc<[u8]>>,
    arrivals: BTreeMap<(Nanos, u64), (Change, Outcome<()>)>,
    sent: u64,
    lies: Lies,
    outage_until: Nanos,
    counts: Counts,
    segment_bytes: u64,
    overwrites: bool,
    /// How long after it has looked it writes.
    looks_first: Nanos,
}

pub(crate) type BucketRef = Rc<RefCell<Bucket>>;

impl Bucket {
    /// An empty, honest bucket.
    pub(crate) fn new(world: &WorldRef) -> BucketRef {
        let rng = world.borrow_mut().rng.fork();
        Rc::new(RefCell::new(Bucket {
            world: world.clone(),
            rng,
            objects: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            sent: 0,
            lies: Lies::default(),
            outage_until: Nanos::ZERO,
            counts: Counts::default(),
            segment_bytes: 0,
            overwrites: false,
            looks_first: Nanos::ZERO,
        }))
    }

    /// From now on it lies so.
    pub(crate) fn set_lies(&mut self, lies: Lies) {
        self.lies = lies;
    }

    /// Until then nobody reaches it.
    pub(crate) fn set_outage(&mut self, until: Nanos) {
        self.outage_until = until;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// From now on it has no conditional writes: a PUT replaces what is there.
    pub(crate) fn set_overwrites(&mut self) {
        self.overwrites = true;
    }

    /// From now on a PUT looks whether the object is there, and writes so much later.
    pub(crate) fn set_looks_first(&mut self, writes_after: Nanos) {
        self.looks_first = writes_after;
    }

    /// Bytes of all segments and seals that were ever created.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// All names now.
    pub(crate) fn names(&mut self) -> Vec<String> {
        self.settle();
        self.objects.keys().cloned().collect()
    }

    /// What is there under a name.
    pub(crate) fn object(&mut self, name: &str) -> Option<Rc<[u8]>> {
        self.settle();
        self.objects.get(name).cloned()
    }

    /// Puts or removes an object in no time, as an operator or a lifecycle rule would.
    pub(crate) fn force(&mut self, name: &str, object: Option<Vec<u8>>) {
        self.settle();
        match object {
            Some(object) => drop(self.objects.insert(name.to_owned(), object.into())),
            None => drop(self.objects.remove(name)),
        }
    }

    /// Lets a PUT of an object land `after` from now, as if its sender had sent it long ago.
    pub(crate) fn land_later(&mut self, name: &str, object: &[u8], after: Nanos) {
        let change = Change::Put { name: name.to_owned(), object: object.into() };
        let at = self.now() + after;
        self.arrive(at, change, &Outcome::default());
    }

    fn now(&self) -> Nanos {
        self.world.borrow().now()
    }

    /// Everything that has arrived by now takes effect, in order.
    fn settle(&mut self) {
        let now = self.now();
        while let Some(entry) = self.arrivals.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let arrived = entry.key().0;
            let (change, outcome) = entry.remove();
            let result = match change {
                Change::Put { name, object } if self.overwrites => {
                    self.objects.insert(name, object);
                    Ok(())
                }
                Change::Put { name, object } if self.looks_first > Nanos::ZERO => {
                    if self.objects.contains_key(&name) {
                        Err(StoreError::Exists)
                    } else {
                        let change = Change::Write { name, object };
                        self.arrive(arrived + self.looks_first, change, &Outcome::default());
                        Ok(())
                    }
                }
                Change::Write { name, object } => {
                    self.objects.insert(name, object);
                    Ok(())
                }
                Change::Put { name, object } => match self.objects.entry(name) {
                    std::collections::btree_map::Entry::Occupied(_) => Err(StoreError::Exists),
                    std::collections::btree_map::Entry::Vacant(free) => {
                        if free.key().starts_with("segment/") {
                            self.segment_bytes += object.len() as u64;
                        }
                        free.insert(object);
                        Ok(())
                    }
                },
                Change::Delete { name } => {
                    self.objects.remove(&name);
                    Ok(())
                }
            };
            *outcome.borrow_mut() = Some(result);
        }
    }

    fn arrive(&mut self, at: Nanos, change: Change, outcome: &Outcome<()>) {
        self.sent += 1;
        self.arrivals.insert((at, self.sent), (change, outcome.clone()));
    }

    fn latency(&mut self) -> Nanos {
        let slow = self.rng.chance_per_mille(self.lies.slow);
        Nanos(self.rng.range(1_000, LATENCY_NS_MAX) * if slow { 20 } else { 1 })
    }

    fn is_out(&self) -> bool {
        self.now() < self.outage_until
    }

    /// Sends a change; returns when its answer comes, and what the answer is: that of an arrival,
    /// or one that no arrival has given.
    fn send(&mut self, make: &dyn Fn() -> Change, late_segments: u32) -> (Nanos, Answer) {
        let (now, mut lies) = (self.now(), self.lies);
        if matches!(make(), Change::Put { name, .. } if name.starts_with("segment/")) {
            lies.late = (lies.late + late_segments).min(950);
        }
        let arrival = now + self.latency();
        let answer = arrival + self.latency() + self.looks_first;
        let outcome = Outcome::default();
        let late = |rng: &mut Rng| {
            let most = rng.pick(&[1_000_000_000, 60_000_000_000, LATE_NS_MAX]);
            Nanos(rng.range(1, most))
        };
        let unknown = (now + TIMEOUT, Answer::Given(StoreError::Unknown));
        if self.is_out() || self.rng.chance_per_mille(lies.lost_request) {
            return unknown;
        }
        if self.rng.chance_per_mille(lies.throttled) {
            return (answer, Answer::Given(StoreError::Throttled));
        }
        if self.rng.chance_per_mille(lies.lost_answer) {
            self.arrive(arrival, make(), &outcome);
            return unknown;
        }
        if self.rng.chance_per_mille(lies.late) {
            let at = arrival + late(&mut self.rng);
            self.arrive(at, make(), &outcome);
            return unknown;
        }
        if self.rng.chance_per_mille(lies.doubled_answer) {
            self.arrive(arrival, make(), &Outcome::default());
            self.arrive(arrival, make(), &outcome);
            return (answer, Answer::Of(outcome));
        }
        if self.rng.chance_per_mille(lies.doubled) {
            let again = arrival + late(&mut self.rng);
            self.arrive(again, make(), &Outcome::default());
        }
        self.arrive(arrival, make(), &outcome);
        (answer, Answer::Of(outcome))
    }

    /// For requests that change nothing: when they are executed and answered, or why not.
    fn ask(&mut self) -> Result<(Nanos, Nanos), (Nanos, StoreError)> {
        let (now, lies) = (self.now(), self.lies);
        let arrival = now + self.latency();
        let answer = arrival + self.latency();
        let lost = lies.lost_request + lies.lost_answer;
        if self.is_out() || self.rng.chance_per_mille(lost) {
            return Err((now + TIMEOUT, StoreError::Unknown));
        }
        if self.rng.chance_per_mille(lies.throttled) {
            return Err((answer, StoreError::Throttled));
        }
        Ok((arrival, answer))
    }
}

enum Answer {
    Given(StoreError),
    Of(Outcome<()>),
}

/// A writer's way to the bucket, which can be paused: a machine that stands still.
#[derive(Clone)]
pub(crate) struct Connection {
    bucket: BucketRef,
    paused_until: Rc<Cell<Nanos>>,
    /// So many of its segments and seals are late, in thousandths, beside the bucket's lies.
    late_segments: Rc<Cell<u32>>,
    /// The last request has had no answer.
    has_failed: Rc<Cell<bool>>,
}

impl Connection {
    pub(crate) fn new(bucket: &BucketRef) -> Connection {
        let (paused_until, late_segments, has_failed) = Default::default();
        Connection { bucket: bucket.clone(), paused_until, late_segments, has_failed }
    }

    /// Until then it sends nothing and hears nothing; what it has sent is on its way.
    pub(crate) fn pause_until(&self, time: Nanos) {
        self.paused_until.set(time);
    }

    /// From now on so many of its segments and seals are late, in thousandths.
    pub(crate) fn delay_segments(&self, per_mille: u32) {
        self.late_segments.set(per_mille);
    }

    /// Waits until `time`, and until the pause has ended.
    pub(crate) async fn wait(&self, time: Nanos) {
        loop {
            let until = time.max(self.paused_until.get());
            if reactor::now() >= until {
                return;
            }
            reactor::sleep(until.saturating_sub(reactor::now())).await;
        }
    }

    async fn change(&self, make: impl Fn() -> Change) -> Result<(), StoreError> {
        self.wait(Nanos::ZERO).await;
        let (at, answer) = self.bucket.borrow_mut().send(&make, self.late_segments.get());
        self.wait(at).await;
        self.bucket.borrow_mut().settle();
        self.has_failed.set(matches!(answer, Answer::Given(StoreError::Unknown)));
        match answer {
            Answer::Given(error) => Err(error),
            Answer::Of(outcome) => outcome.take().expect("it arrived before it is answered"),
        }
    }

    async fn ask<T>(
        &self,
        execute: impl FnOnce(&mut Bucket) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.wait(Nanos::ZERO).await;
        let asked = self.bucket.borrow_mut().ask();
        match asked {
            Err((at, error)) => {
                self.wait(at).await;
                self.has_failed.set(error == StoreError::Unknown);
                Err(error)
            }
            Ok((arrival, answer)) => {
                // What is on its way is executed also while its sender stands still.
                reactor::sleep(arrival.saturating_sub(reactor::now())).await;
                let result = {
                    let mut bucket = self.bucket.borrow_mut();
                    bucket.settle();
                    execute(&mut bucket)
                };
                self.wait(answer).await;
                self.has_failed.set(false);
                result
            }
        }
    }
}

impl ObjectStore for Connection {
    fn name(&self) -> &str {
        "sim://bucket/volume"
    }

    fn last_failure(&self) -> Option<String> {
        self.has_failed.get().then(|| "no answer".to_owned())
    }

    fn put_absent(&self, name: &str, object: Buf) -> LocalFuture<Result<(), StoreError>> {
        let (this, name) = (self.clone(), name.to_owned());
        let object: Rc<[u8]> = object.read(|bytes| bytes.into());
        Box::pin(async move {
            this.wait(Nanos::ZERO).await;
            let conflict = {
                let mut bucket = this.bucket.borrow_mut();
                bucket.counts.puts += 1;
                let per_mille = bucket.lies.conflict;
                let conflict = bucket.rng.chance_per_mille(per_mille);
                conflict.then(|| bucket.latency())
            };
            if let Some(latency) = conflict {
                this.wait(reactor::now() + latency).await;
                return Err(StoreError::Conflict);
            }
            this.change(|| Change::Put { name: name.clone(), object: object.clone() }).await
        })
    }

    fn get(&self, name: &str, range: Range<u64>) -> LocalFuture<Result<Buf, StoreError>> {
        let (this, name) = (self.clone(), name.to_owned());
        Box::pin(async move {
            this.bucket.borrow_mut().counts.gets += 1;
            this.ask(|bucket| {
                let object = bucket.objects.get(&name).ok_or(StoreError::NotFound)?;
                let end = usize::try_from(range.end.min(object.len() as u64)).unwrap();
                let start = usize::try_from(range.start).unwrap();
                match object.get(start..end) {
                    Some(bytes) if !bytes.is_empty() => Ok(Buf::copy_of(bytes)),
                    Some(_) | None => Err(StoreError::NotFound),
                }
            })
            .await
        })
    }

    fn list(&self, prefix: &str, after: &str) -> LocalFuture<Result<Listing, StoreError>> {
        let (this, prefix, after) = (self.clone(), prefix.to_owned(), after.to_owned());
        Box::pin(async move {
            this.bucket.borrow_mut().counts.lists += 1;
            this.ask(|bucket| {
                let page = 1 + bucket.rng.index(9);
                let from = if after < prefix { &prefix } else { &after };
                let behind = bucket.objects.range(from.clone()..);
                let mut found = behind
                    .filter(|(name, _)| **name > after && name.starts_with(&prefix))
                    .map(|(name, object)| (name.clone(), object.len() as u64));
                let objects = found.by_ref().take(page).collect();
                Ok(Listing { objects, has_more: found.next().is_some() })
            })
            .await
        })
    }

    fn delete(&self, name: &str) -> LocalFuture<Result<(), StoreError>> {
        let (this, name) = (self.clone(), name.to_owned());
        Box::pin(async move {
            this.bucket.borrow_mut().counts.deletes += 1;
            this.change(|| Change::Delete { name: name.clone() }).await
        })
    }
}
