// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The types that all rooms use: one block request (`Bio`), what it carries, and the traits of
//! devices that take it.
//!
//! The border contract, which every device keeps and the simulator implements exactly:
//!
//! 1. `submit` takes a bio, never blocks, never fails; the outcome comes once, by its completion,
//!    never inline in the caller's stack.
//! 2. In-flight bios are unordered; overlapping in-flight writes end in either order.
//! 3. A flush covers the writes *completed* before it was submitted.
//! 4. A FUA write is durable when it completes.
//! 5. A power cut may lose, keep, or tear (at `atomic_write_unit`) a write not covered by 3 or 4.
//!    The death of the process may do that to writes that have not completed; to completed ones
//!    only on devices in the memory of the process (RAM, zram, the page cache) and where their
//!    manual says so.
//! 6. A read returns the last completed write, or a concurrent one.
//! 7. After an error on a write its range is undefined until rewritten, even if a crash came before
//!    the error was reported. A failed flush is never retried as if nothing had been lost.
//! 8. The buffer belongs to the bio from submit to completion: nobody else changes it. Only a
//!    device that says so gets memory that its client changes (`takes_client_memory`).
#![warn(missing_docs)]

pub mod attr;
mod attrs;
mod backing;
mod bio;
mod borrow;
mod buf;
mod bufs;
mod cache_record;
mod client_memory;
mod client_region;
mod completion;
mod component;
mod control_chars;
mod counter;
mod debug_as;
mod device;
mod edges;
mod error;
pub mod latency;
mod limits;
mod memory;
pub mod metric;
mod op;
mod planted;
mod ram;
pub mod runs;
mod shared_copy;
mod status;
mod suggest;
mod units;
pub mod value;

pub use backing::Backing;
pub use bio::{Bio, Class, Flags, Opener};
pub use buf::{Buf, PAGE, Slice};
pub use bufs::Bufs;
pub use cache_record::{CacheAbove, CacheRecord};
pub use client_memory::ClientMemory;
pub use client_region::ClientRegion;
pub use completion::{Completion, CoreId, FinishFn, OpKey, crashing, set_crashing};
pub use component::{Component, Role, UnsavedBlocks};
pub use control_chars::is_control_char;
pub use counter::Counter;
pub use device::{
    Access, Base, BlockDevice, DirtyRuns, LocalFuture, LostWrites, MakeDevice, MappedExtent,
    OnIoError, OpenDevice, Target, ZeroRuns, same_device,
};
pub use edges::{Edges, block_end, block_start};
pub use error::{Error, ErrorKind, without_errno};
pub use limits::Limits;
pub use memory::{Budget, Reservation};
pub use op::Op;
pub use planted::Planted;
pub use ram::Ram;
pub use shared_copy::copy_shared;
pub use status::{IoError, Status};
pub use suggest::{name_hint, nearest};
pub use units::{Nanos, SECTOR_SHIFT, SECTOR_SIZE, Sector, quote, size_text};
