// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients of a device: random requests, and what each of them must get. A sector has at most one
//! request in flight, so that what it reads is known.
use std::collections::{BTreeMap, BTreeSet};

use sim::Rng;

use super::kernel::{ClientRequest, Completed, DISCARD, FLUSH, READ, WRITE, ZEROES};

pub(crate) const SECTORS: u64 = 64;
const FUA: u32 = 1 << 13;

/// Requests without an end, and the contents that they have been promised.
pub(crate) struct Clients {
    rng: Rng,
    next: u64,
    in_flight: BTreeMap<u64, ClientRequest>,
    busy: BTreeSet<u64>,
    /// What each sector holds; `None`: anything, after a discard.
    promised: Vec<Option<u64>>,
    pub(crate) completed: u64,
}

/// The bytes of a sector with this stamp.
fn stamped(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(64)
}

impl Clients {
    pub(crate) fn new(rng: Rng) -> Clients {
        Clients {
            rng,
            next: 1,
            in_flight: BTreeMap::new(),
            busy: BTreeSet::new(),
            promised: vec![Some(0); SECTORS as usize],
            completed: 0,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The next request; none when the place drawn is busy.
    pub(crate) fn draw(&mut self) -> Option<ClientRequest> {
        let sectors = self.rng.range(1, 5);
        let sector = self.rng.below(SECTORS - sectors + 1);
        let range = sector..sector + sectors;
        if range.clone().any(|s| self.busy.contains(&s)) {
            return None;
        }
        let op = self.rng.pick(&[READ, READ, WRITE, WRITE, WRITE | FUA, FLUSH, DISCARD, ZEROES]);
        Some(self.begin(op, sector, sectors))
    }

    /// A read of one sector that nobody uses.
    pub(crate) fn read(&mut self, sector: u64) -> ClientRequest {
        assert!(!self.busy.contains(&sector));
        self.begin(READ, sector, 1)
    }

    fn begin(&mut self, op_flags: u32, sector: u64, sectors: u64) -> ClientRequest {
        let id = self.next;
        self.next += 1;
        let op = op_flags & 0xff;
        let (sector, sectors) = if op == FLUSH { (0, 0) } else { (sector, sectors) };
        let data = match op {
            WRITE => stamped(id).repeat(usize::try_from(sectors).unwrap()),
            READ => vec![0xee; usize::try_from(sectors * 512).unwrap()],
            _ => Vec::new(),
        };
        self.busy.extend(sector..sector + sectors);
        let sectors = u32::try_from(sectors).unwrap();
        let request = ClientRequest { id, op_flags, sector, sectors, data, is_filled: false };
        self.in_flight.insert(id, request.clone());
        request
    }

    /// Checks what a client got.
    pub(crate) fn check(&mut self, completed: Completed) -> Result<(), String> {
        let Completed { request, result } = completed;
        let Some(begun) = self.in_flight.remove(&request.id) else {
            return Err(format!("{request:?} ended twice"));
        };
        self.completed += 1;
        if result < 0 {
            return Err(format!("a client got error {result}: {begun:?}"));
        }
        let range = begun.sector..begun.sector + u64::from(begun.sectors);
        for (nth, sector) in range.enumerate() {
            self.busy.remove(&sector);
            let promised = &mut self.promised[usize::try_from(sector).unwrap()];
            match begun.op_flags & 0xff {
                WRITE => *promised = Some(request.id),
                ZEROES => *promised = Some(0),
                DISCARD => *promised = None,
                READ => {
                    let got = &request.data[nth * 512..(nth + 1) * 512];
                    if promised.is_some_and(|stamp| got != stamped(stamp)) {
                        return Err(format!(
                            "sector {sector}: {:?}, {promised:?} was promised",
                            &got[..8]
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
