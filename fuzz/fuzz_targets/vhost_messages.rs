// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of a vhost-user front end, from arbitrary bytes.
//!
//! What must hold: no panic; a payload of another length than its header says is refused; memory
//! that a table describes is either refused or has no two places for one address; a message is
//! written as it was read; and what another process has decoded of a connection (VH-X1, VH-X3) is
//! what this one has encoded.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use vhost::connection::Connection;
use vhost::inflight::bytes_for;
use block::ClientRegion;
use vhost::memory::Memory;
use vhost::message::{Answer, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, Request};
use vhost::testing::ram;

/// Most bytes that a region of a test has: the daemon maps, it does not allocate.
const REGION_BYTES_MAX: u64 = 1 << 16;

/// As many descriptors as the first byte says.
fn crosses(data: &[u8]) {
    let Some((count, bytes)) = data.split_first() else { return };
    let descriptors: Vec<u16> = (0..u16::from(*count)).collect();
    let Ok(connection) = Connection::decode(bytes, descriptors) else { return };
    let (bytes, descriptors) = connection.encode();
    let again = Connection::decode(&bytes, descriptors).expect("our own bytes");
    assert_eq!(again, connection);
}

fuzz_target!(|data: &[u8]| {
    crosses(data);
    let Some((head, payload)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let mut head = *head;
    if head[11] & 1 == 0 {
        // A likely one: a low number, version 1, the length of what follows.
        head[0] %= 40;
        head[1..4].fill(0);
        head[4..8].copy_from_slice(&1_u32.to_le_bytes());
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        head[8..].copy_from_slice(&len.to_le_bytes());
    }
    let Ok(header) = Header::decode(&head) else { return };
    assert!(header.payload_bytes() <= PAYLOAD_BYTES_MAX);
    let Some(payload) = payload.get(..header.payload_bytes()) else { return };
    let Ok(request) = Request::decode(&header, payload) else { return };
    assert!(request.descriptors() <= 8);
    let bytes = request.encode();
    let (head, payload) = bytes.split_first_chunk().expect("a header");
    let header_again = Header::decode(head).expect("our own header");
    assert_eq!(Request::decode(&header_again, payload).expect("our own message"), request);
    match &request {
        Request::SetMemTable(infos) => {
            let regions = infos.iter().map(|info| {
                ram(info.len.clamp(1, REGION_BYTES_MAX)) as Arc<dyn ClientRegion>
            });
            let Ok(memory) = Memory::new(infos, regions.collect()) else { return };
            for info in infos {
                memory.write(info.guest, &[1]).expect("the first byte is there");
                let len = u32::try_from(info.len).unwrap_or(u32::MAX);
                assert!(memory.locate(info.guest, len, |_| Ok(())).is_ok());
            }
        }
        Request::GetInflightFd(info) => drop(bytes_for(info)),
        _ => {}
    }
    for answer in [Answer::Done, Answer::Number(7), Answer::Base { queue: 1, base: 2 }] {
        assert!(answer.encode(&header).len() > HEADER_BYTES);
    }
});
