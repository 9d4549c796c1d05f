// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads, writes and flushes of the cache area while a cache is opened or probed, and their errors.
use std::collections::VecDeque;

use block::{BlockDevice, Buf, Class, Error, ErrorKind, Flags, Reservation, Sector, Status};
use format::UNIT;
use reactor::BioFuture;

use crate::config::Config;
use crate::map::{map_bytes, ordered_map_bytes};

/// Units read at once: 1 MiB.
const UNITS_PER_READ: u64 = 256;
/// Reads in flight while metadata are loaded. Chosen: 4 MiB keep any device busy.
const READS_IN_FLIGHT: usize = 4;

pub(crate) fn io_error(config: &Config, what: &str, status: Status) -> Error {
    Error::io(format!("cache device {}: {what}: {status}", config.cache))
}

/// Reads pieces of the area in their order, with several reads in flight.
pub(crate) struct ReadAhead<'a> {
    config: &'a Config,
    device: &'a dyn BlockDevice,
    what: &'static str,
    /// Pieces that are not being read yet: offsets in the area and lengths.
    left: VecDeque<(u64, u64)>,
    in_flight: VecDeque<(Buf, BioFuture)>,
}

impl<'a> ReadAhead<'a> {
    pub(crate) fn new(
        config: &'a Config,
        device: &'a dyn BlockDevice,
        what: &'static str,
    ) -> ReadAhead<'a> {
        ReadAhead { config, device, what, left: VecDeque::new(), in_flight: VecDeque::new() }
    }

    /// Adds `len` bytes from `offset` on to what is read.
    pub(crate) fn bytes(&mut self, offset: u64, len: u64) {
        self.left.push_back((offset, len));
    }

    /// The next piece; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Buf>, Error> {
        while self.in_flight.len() < READS_IN_FLIGHT {
            let Some((offset, len)) = self.left.pop_front() else { break };
            let part = len.min(UNITS_PER_READ * UNIT as u64);
            if part == 0 {
                continue;
            }
            self.left.push_front((offset + part, len - part));
            let buf = Buf::alloc(usize::try_from(part).expect("at most 1 MiB"));
            let at = self.config.start_sector + Sector::from_bytes(offset);
            let read = reactor::read(self.device, Class::Foreground, at, buf.all().into());
            self.in_flight.push_back((buf, read));
        }
        let Some((buf, read)) = self.in_flight.pop_front() else { return Ok(None) };
        read.await.map_err(|status| io_error(self.config, self.what, status))?;
        Ok(Some(buf))
    }
}

/// Reads `len` bytes from `offset` of the area on.
pub(crate) async fn read_area(
    config: &Config,
    device: &dyn BlockDevice,
    offset: u64,
    len: usize,
    what: &str,
) -> Result<Buf, Error> {
    let buf = Buf::alloc(len);
    let at = config.start_sector + Sector::from_bytes(offset);
    let read = reactor::read(device, Class::Foreground, at, buf.all().into()).await;
    read.map_err(|status| io_error(config, what, status))?;
    Ok(buf)
}

/// Writes at `offset` of the area.
pub(crate) async fn write_area(
    config: &Config,
    device: &dyn BlockDevice,
    offset: u64,
    flags: Flags,
    buf: Buf,
    what: &str,
) -> Result<(), Error> {
    let at = config.start_sector + Sector::from_bytes(offset);
    let written = reactor::write(device, flags, Class::Foreground, at, buf.into()).await;
    written.map_err(|status| io_error(config, what, status))
}

/// Makes durable what was written, and what was read.
pub(crate) async fn flush_area(config: &Config, device: &dyn BlockDevice) -> Result<(), Error> {
    let flushed = reactor::flush(device, Class::Foreground).await;
    flushed.map_err(|status| io_error(config, "flush", status))
}

/// The kernel's text for a device that can't be formatted because it fails.
pub(crate) fn not_initialized(e: Error) -> Error {
    if e.kind() == ErrorKind::Io { e.within("Unable to initialize device") } else { e }
}

pub(crate) fn no_space(config: &Config, e: &dyn std::fmt::Display) -> Error {
    let text = format!("Invalid device size: {}: {e}", config.cache);
    Error::new(ErrorKind::NoSpace, text)
}

pub(crate) fn damaged(config: &Config, what: &str) -> Error {
    Error::io(format!(
        "cache device {}: damaged metadata: {what}; nothing was changed",
        config.cache
    ))
}

/// Reserves memory for the map of a cache of `slots` blocks.
///
/// # Errors
/// `ENOMEM`; the text has the bytes.
pub(crate) fn map_memory(config: &Config, slots: u64) -> Result<Reservation, Error> {
    let bytes = if config.ordered { ordered_map_bytes(slots) } else { map_bytes(slots) };
    reactor::memory().reserve(bytes, map_of(config, slots))
}

/// The name of the map of a cache in errors.
pub(crate) fn map_of(config: &Config, slots: u64) -> String {
    format!("cache device {}: the map of its {slots} blocks", config.cache)
}

/// Waits for all requests, also after an error, so that none is in flight afterwards. Returns the
/// worst outcome.
pub(crate) async fn wait_all(ios: impl IntoIterator<Item = BioFuture>) -> Result<(), Status> {
    let mut worst = Status::Ok;
    for io in ios {
        worst = worst.worst(io.await.into());
    }
    worst.ok()
}
