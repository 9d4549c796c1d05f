// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of a hand-over, from arbitrary bytes.
//!
//! What must hold (invariants of `handover`): the decoder never panics and keeps its limits
//! (HV-F1); a message that is understood is written back to one that means the same.
#![no_main]

use handover::{BYTES_MAX, Frame, HEAD_BYTES, Head, JSON_BYTES_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((head, _)) = data.split_first_chunk::<HEAD_BYTES>()
        && let Ok(head) = Head::decode(*head)
    {
        assert!(head.json <= JSON_BYTES_MAX && head.bytes <= BYTES_MAX);
    }
    // A head of random bytes is refused nearly always, so the JSON is tried by itself.
    match Frame::decode(data, vec![1, 2]) {
        Ok(frame) => {
            let bytes = frame.encode(0).expect("it was not too long");
            let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().expect("a whole frame");
            let head = Head::decode(*head).expect("our own head");
            let (json, bytes) = rest.split_at(head.json);
            assert_eq!(Frame::decode(json, bytes.to_vec()).expect("our own message"), frame);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
});
