// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On-media structures of a zram device's backing area: packed objects.
//!
//! The byte map with its promises is `docs/format/zram.md`; the code and that page change together.
//!
//! Invariants
//! - ZF1 A decoder never panics, whatever the bytes; it says what is wrong.
//! - ZF2 An encoder never writes what its decoder would refuse (asserted before the bytes are made).
//! - ZF3 One flipped bit anywhere in what is read is detected.

mod object;

pub use object::{
    CHECK_MASK, Damaged, Found, OBJECT_ALIGN, OBJECT_HEADER, OBJECT_MAX, Object, encode_with,
    object_bytes, verify, walk,
};
