// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtqueue in memory of arbitrary bytes: rings, descriptors, requests, and the notes of
//! requests in flight.
//!
//! What must hold: no panic and no access beyond the memory; walks end; what is in a chain lies in
//! the memory; the used ring gets what was put there.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use vhost::inflight::{Inflight, bytes_for};
use block::ClientRegion;
use vhost::memory::Memory;
use vhost::message::{InflightInfo, RingAddresses};
use vhost::request::{DATA_BYTES_MAX, Request};
use vhost::ring::{INDIRECT_MAX, Ring};
use vhost::testing::{USER_OFFSET, ram_with, region_at};

/// Two regions with a hole between them.
const REGION_BYTES: u64 = 1 << 14;
const SECOND: u64 = 1 << 15;
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Turns of one input.
const TURNS: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first_chunk::<8>() else { return };
    let [shift, event, next0, next1, kind, first, second, third] = *choice;
    let half = data.len().min(REGION_BYTES as usize);
    let region = |bytes: &[u8]| {
        let mut all = bytes.to_vec();
        all.resize(REGION_BYTES as usize, 0);
        ram_with(&all) as Arc<dyn ClientRegion>
    };
    let rest = &data[half..data.len().min(2 * half)];
    let infos = [region_at(0, REGION_BYTES), region_at(SECOND, REGION_BYTES)];
    let regions = vec![region(&data[..half]), region(rest)];
    let memory = Memory::new(&infos, regions).expect("they do not overlap");
    let at = |base: u64, by: u8| base + USER_OFFSET + if kind & 1 == 1 { u64::from(by) } else { 0 };
    let addresses = RingAddresses {
        descriptors: at(DESCRIPTORS, first),
        available: at(AVAILABLE, second),
        used: at(USED, third),
    };
    let size = 1_u16 << (shift % 11);
    let next = u16::from_le_bytes([next0, next1]);
    let Ok(ring) = Ring::new(&memory, &addresses, size, next, event & 1 == 1) else { return };

    let mut info = InflightInfo { queues: 1, queue_size: size, ..InflightInfo::default() };
    info.len = bytes_for(&info).expect("a size that may be");
    let mut notes = rest.to_vec();
    notes.resize(info.len as usize, 0);
    let notes = Inflight::new(ram_with(&notes), info).expect("it is long enough");
    let notes = notes.queue(0, size).ok().flatten();
    if let Some(Ok(heads)) = notes.as_ref().map(|notes| notes.recover(&ring)) {
        assert!(heads.len() <= usize::from(size) && heads.iter().all(|head| *head < size));
    }
    for _ in 0..TURNS {
        let Ok(Some(head)) = ring.peek() else { break };
        let Ok(chain) = ring.chain(&memory, head) else { break };
        let extents = chain.readable().len() + chain.writable().len();
        // A descriptor may begin in one region and end in the other, if they were neighbours.
        assert!(extents <= 2 * (usize::from(size) + INDIRECT_MAX as usize));
        for extent in chain.readable().iter().chain(chain.writable()) {
            let mut bytes = vec![0; extent.len_bytes() as usize];
            assert!(!bytes.is_empty() && memory.read_extent(extent, &mut bytes).is_ok());
        }
        let Ok(request) = Request::parse(&memory, chain) else { break };
        assert!(request.data_bytes <= DATA_BYTES_MAX);
        memory.write_extent(request.status(), &[0]).expect("the status is in the memory");
        ring.take();
        let used = ring.used_idx();
        match &notes {
            Some(notes) => {
                notes.begin(head).expect("memory of a test is not lost");
                notes.put_used(&ring, head, 1).expect("as above");
                notes.publish(&ring).expect("as above");
            }
            None => {
                ring.put_used(head, 1).expect("as above");
                ring.publish().expect("as above");
            }
        }
        assert_eq!(ring.used_idx(), used.wrapping_add(1));
        let _ = ring.wants_call().expect("as above");
        ring.stop_kicks().expect("as above");
        ring.ask_for_kicks().expect("as above");
    }
});
