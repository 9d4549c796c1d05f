// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The atomics that `tokens` goes by. Its model check (`tests/it/wait_queue_model.rs`)
//! puts the checker's in their place.
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
