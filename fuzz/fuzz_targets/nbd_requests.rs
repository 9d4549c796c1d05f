// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests and replies of NBD, from arbitrary bytes.
//!
//! What must hold: no panic; what is accepted is written back to the same bytes; a shorter input
//! asks for more or is refused, never read past its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::request::{CHUNK_BYTES, REQUEST_BYTES, ReplyIn, Request, SIMPLE_BYTES};
use nbd::wire::{CHUNK_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC};

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut bytes = data.to_vec();
    let magics = [REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, CHUNK_MAGIC];
    if let (Some(magic), Some(head)) = (magics.get(usize::from(choice % 4)), bytes.get_mut(..4)) {
        head.copy_from_slice(&magic.to_be_bytes());
    }
    match Request::parse(&bytes) {
        Ok(Some(request)) => {
            assert_eq!(request.encode(), bytes[..REQUEST_BYTES]);
            assert!(matches!(Request::parse(&bytes[..REQUEST_BYTES - 1]), Ok(None)));
        }
        Ok(None) => assert!(bytes.len() < REQUEST_BYTES),
        Err(_) => assert!(bytes[..4] != REQUEST_MAGIC.to_be_bytes()),
    }
    match ReplyIn::parse(&bytes) {
        Ok(Some((reply, n))) => {
            let want = match reply {
                ReplyIn::Simple { .. } => SIMPLE_BYTES,
                ReplyIn::Chunk { .. } => CHUNK_BYTES,
            };
            assert!(n == want && n <= bytes.len());
        }
        Ok(None) => assert!(bytes.len() < CHUNK_BYTES),
        Err(_) => assert!(bytes.len() >= 4),
    }
});
