// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of `make bench-zram` beside those of `reproduce::compressed`.
//!
//! ```text
//!   speed      a page written and read in process, against the bare compressor
//!   served     the same over NBD, against nbdkit's compressed memory
//! ```

pub mod served;
pub mod speed;
