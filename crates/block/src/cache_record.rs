// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record that a device keeps of the one write cache above it.
//!
//! ```text
//!              attach                        leave
//!   no cache ─────────▶ attached, in use ──────────────▶ attached: nobody changes the device
//!       ▲                     │   ▲ attach                    │
//!       └──── release ────────┘   └───────────────────────────┘
//! ```
use std::rc::Rc;

use crate::{Error, LocalFuture};

/// A write cache, as the device below it records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheAbove {
    /// Its UUID; not zero.
    pub uuid: [u8; 16],
    /// Its cache device, for people.
    pub device: String,
    /// The identity that the device had when the cache compared what it holds with it.
    pub origin: String,
}

/// What a device knows of the write cache above it: durable, so that nobody changes the device
/// while a cache that is not there holds newer data.
pub trait CacheRecord {
    /// Records a cache that may acknowledge writes from now on: durable when it resolves. A cache
    /// that is recorded already only goes on.
    ///
    /// # Errors
    /// `EBUSY` if another cache is recorded, or the device is not open; `EINVAL` if it has another
    /// identity than the cache knows; `EIO` if a device far away does not answer: the cache may be
    /// recorded then, or be so later, and must not go on before it is attached.
    fn attach(self: Rc<Self>, cache: CacheAbove) -> LocalFuture<Result<(), Error>>;

    /// The cache stops using the device, and may hold what the device does not have.
    fn leave(&self, uuid: [u8; 16]);

    /// The cache holds nothing any more. Makes durable what it has written, then its record ends.
    ///
    /// # Errors
    /// Why it does not; the cache attaches again before it goes on.
    fn release(self: Rc<Self>, uuid: [u8; 16]) -> LocalFuture<Result<(), Error>>;
}
