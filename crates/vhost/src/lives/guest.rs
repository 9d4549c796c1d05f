// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest and its front end, which outlive the processes that serve them: random requests on two
//! queues, and what each of them must get. A sector has at most one request in flight, so that what
//! it reads is known.
//!
//! ```text
//!   queue q at q * 64 KiB:  descriptors │ available │ used │ indirect tables │ headers │ data
//!   slot s                  descriptor s ─▶ table s: header, data, status
//! ```
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use block::Ram;
use sim::Rng;

use crate::inflight::bytes_for;
use crate::message::{InflightInfo, RingAddresses};
use crate::testing::{TestEvent, USER_OFFSET, ram};
use block::ClientRegion;

pub(super) const SECTORS: u64 = 64;
pub(super) const QUEUES: u16 = 2;
pub(super) const SIZE: u16 = 16;
pub(super) const MEMORY_BYTES: u64 = 2 * QUEUE_BYTES;

const QUEUE_BYTES: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const TABLES: u64 = 0x3000;
const TABLE_BYTES: u64 = 48;
const HEADERS: u64 = 0x4000;
const HEADER_BYTES: u64 = 32;
const STATUS: u64 = 16;
const DATA: u64 = 0x8000;
/// Most sectors of a request.
const SECTORS_MAX: u64 = 4;
const DATA_BYTES: u64 = SECTORS_MAX * 512;

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const DISCARD: u32 = 11;
const ZEROES: u32 = 13;

/// A request in flight.
#[derive(Debug)]
struct Begun {
    id: u64,
    kind: u32,
    sector: u64,
    sectors: u64,
}

#[derive(Default)]
struct DriverQueue {
    offered: u16,
    seen: u16,
    begun: BTreeMap<u16, Begun>,
}

/// See the module.
pub(super) struct Guest {
    rng: Rng,
    pub(super) memory: Arc<Ram>,
    pub(super) notes: Arc<Ram>,
    pub(super) inflight_info: InflightInfo,
    pub(super) has_event_idx: bool,
    /// Requests that it begins together.
    pub(super) burst: u64,
    queues: Vec<DriverQueue>,
    next: u64,
    busy: BTreeSet<u64>,
    /// What each sector holds; `None`: anything, after a discard.
    promised: Vec<Option<u64>>,
    pub(super) completed: u64,
}

/// The bytes of a sector with this stamp.
fn stamped(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(64)
}

/// For the notes of both queues, as the front end has asked for: for its rings, or as qemu 10.0 for
/// smaller ones.
fn inflight_info(rng: &mut Rng) -> InflightInfo {
    let queue_size = rng.pick(&[SIZE, SIZE / 2]);
    let info = InflightInfo { len: 0, offset: 0, queues: QUEUES, queue_size };
    InflightInfo { len: bytes_for(&info).expect("these may be"), ..info }
}

fn place(queue: u16) -> u64 {
    u64::from(queue) * QUEUE_BYTES
}

/// Where a queue is, for the front end.
pub(super) fn addresses(queue: u16) -> RingAddresses {
    let at = USER_OFFSET + place(queue);
    RingAddresses { descriptors: at, used: at + USED, available: at + AVAILABLE }
}

impl Guest {
    pub(super) fn new(mut rng: Rng, burst: u64) -> Guest {
        let has_event_idx = rng.chance_per_mille(500);
        let inflight_info = inflight_info(&mut rng);
        Guest {
            rng,
            memory: ram(MEMORY_BYTES),
            notes: ram(inflight_info.len),
            inflight_info,
            has_event_idx,
            burst,
            queues: (0..QUEUES).map(|_| DriverQueue::default()).collect(),
            next: 1,
            busy: BTreeSet::new(),
            promised: vec![Some(0); usize::try_from(SECTORS).expect("few")],
            completed: 0,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.queues.iter().map(|queue| queue.begun.len()).sum()
    }

    fn load(&self, at: u64) -> u16 {
        self.memory.load_u16(at).expect("an array")
    }

    fn store(&self, at: u64, value: u16) {
        self.memory.store_u16(at, value).expect("an array");
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        ClientRegion::write(&*self.memory, at, bytes).expect("an array");
    }

    /// The index from which the front end lets a queue go on: it knows that of the used ring only.
    pub(super) fn base(&self, queue: u16) -> u16 {
        self.load(place(queue) + USED + 2)
    }

    /// The index of a queue's available ring.
    pub(super) fn offered(&self, queue: u16) -> u16 {
        self.queues[usize::from(queue)].offered
    }

    /// Begins a random request, if its place and a slot are free; kicks if the server asks for it.
    pub(super) fn draw(&mut self, kicks: &[Arc<TestEvent>]) -> bool {
        let sectors = self.rng.range(1, SECTORS_MAX + 1);
        let sector = self.rng.below(SECTORS - sectors + 1);
        let kind = self.rng.pick(&[READ, READ, WRITE, WRITE, WRITE, FLUSH, DISCARD, ZEROES]);
        let range = sector..sector + sectors;
        if kind != FLUSH && range.clone().any(|s| self.busy.contains(&s)) {
            return false;
        }
        self.begin(kind, sector, sectors, kicks)
    }

    /// Reads a sector that nobody uses.
    pub(super) fn read(&mut self, sector: u64, kicks: &[Arc<TestEvent>]) -> bool {
        assert!(!self.busy.contains(&sector));
        self.begin(READ, sector, 1, kicks)
    }

    fn begin(&mut self, kind: u32, sector: u64, sectors: u64, kicks: &[Arc<TestEvent>]) -> bool {
        let number = u16::try_from(self.rng.below(QUEUES.into())).expect("few");
        let free = |slot: &u16| !self.queues[usize::from(number)].begun.contains_key(slot);
        let free: Vec<u16> = (0..SIZE).filter(free).collect();
        if free.is_empty() {
            return false;
        }
        let slot = free[self.rng.index(free.len())];
        let (id, sectors) = (self.next, if kind == FLUSH { 0 } else { sectors });
        self.next += 1;
        self.busy.extend(sector..sector + sectors);
        self.describe(number, slot, &Begun { id, kind, sector, sectors });
        let queue = &mut self.queues[usize::from(number)];
        queue.begun.insert(slot, Begun { id, kind, sector, sectors });
        let idx = queue.offered;
        queue.offered = idx.wrapping_add(1);
        let at = place(number) + AVAILABLE;
        self.store(at + 4 + u64::from(idx % SIZE) * 2, slot);
        self.store(at + 2, idx.wrapping_add(1));
        let used = place(number) + USED;
        let wants_kick = match self.has_event_idx {
            true => self.load(used + 4 + u64::from(SIZE) * 8) == idx,
            false => self.load(used) == 0,
        };
        if wants_kick {
            kicks[usize::from(number)].add();
        }
        true
    }

    /// Lays out a request.
    fn describe(&self, queue: u16, slot: u16, begun: &Begun) {
        let (base, nth) = (place(queue), u64::from(slot));
        let (table, header) =
            (base + TABLES + nth * TABLE_BYTES, base + HEADERS + nth * HEADER_BYTES);
        let data = base + DATA + nth * DATA_BYTES;
        let of_ranges = matches!(begun.kind, DISCARD | ZEROES);
        let bytes = match begun.kind {
            WRITE => stamped(begun.id).repeat(usize::try_from(begun.sectors).expect("few")),
            READ => vec![0xee; usize::try_from(begun.sectors * 512).expect("few")],
            FLUSH => Vec::new(),
            _ => {
                let sectors = u32::try_from(begun.sectors).expect("few");
                let range = begun.sector.to_le_bytes().into_iter().chain(sectors.to_le_bytes());
                range.chain([0; 4]).collect()
            }
        };
        self.write(data, &bytes);
        let sector = if of_ranges || begun.kind == FLUSH { 0 } else { begun.sector };
        let head = begun.kind.to_le_bytes().into_iter().chain([0; 4]).chain(sector.to_le_bytes());
        self.write(header, &head.collect::<Vec<_>>());
        self.write(header + STATUS, &[0xff]);
        let len = u32::try_from(bytes.len()).expect("few");
        let after = if bytes.is_empty() { 2 } else { 1 };
        let writable = if begun.kind == READ { 2 } else { 0 };
        self.descriptor(table, 0, (header, 16), (1, after));
        self.descriptor(table, 1, (data, len.max(1)), (1 | writable, 2));
        self.descriptor(table, 2, (header + STATUS, 1), (2, 0));
        self.descriptor(base, nth, (table, 48), (4, 0));
    }

    fn descriptor(&self, table: u64, nth: u64, (at, len): (u64, u32), (flags, next): (u16, u16)) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(table + nth * 16, &bytes);
    }

    /// Takes what is in the used rings, and checks what it got.
    pub(super) fn collect(&mut self) -> Result<(), String> {
        for number in 0..QUEUES {
            let used = place(number) + USED;
            let idx = self.load(used + 2);
            while self.queues[usize::from(number)].seen != idx {
                let queue = &mut self.queues[usize::from(number)];
                let entry = used + 4 + u64::from(queue.seen % SIZE) * 8;
                queue.seen = queue.seen.wrapping_add(1);
                let slot = self.load(entry);
                let Some(begun) = self.queues[usize::from(number)].begun.remove(&slot) else {
                    return Err(format!("queue {number}: slot {slot} was completed twice"));
                };
                self.check(number, slot, &begun)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, queue: u16, slot: u16, begun: &Begun) -> Result<(), String> {
        self.completed += 1;
        let (base, nth) = (place(queue), u64::from(slot));
        let mut status = [0xff];
        let at = base + HEADERS + nth * HEADER_BYTES + STATUS;
        ClientRegion::read(&*self.memory, at, &mut status).expect("an array");
        if status != [0] {
            return Err(format!("status {}: {begun:?}", status[0]));
        }
        for nth_sector in 0..begun.sectors {
            let sector = begun.sector + nth_sector;
            self.busy.remove(&sector);
            let promised = &mut self.promised[usize::try_from(sector).expect("few")];
            match begun.kind {
                WRITE => *promised = Some(begun.id),
                ZEROES => *promised = Some(0),
                DISCARD => *promised = None,
                READ => {
                    let mut got = [0; 512];
                    let at = base + DATA + nth * DATA_BYTES + nth_sector * 512;
                    ClientRegion::read(&*self.memory, at, &mut got).expect("an array");
                    if promised.is_some_and(|stamp| got[..] != stamped(stamp)) {
                        let got = &got[..8];
                        return Err(format!("sector {sector}: {got:?}, {promised:?} was promised"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
