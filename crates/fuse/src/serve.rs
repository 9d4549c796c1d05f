// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests at any byte as bios of whole blocks: short at the end, read-modify-write at the edges.
//!
//! ```text
//!   blocks    |-------|-------|-------|-------|
//!   request        |-------------|                one read of four blocks' span, or
//!   write     |.rrr|wwww wwwwwwww|www.r|          reads of the edge blocks, then one write
//! ```
//!
//! A range that no file reaches is treated as block devices do: reads end at the end, writes
//! beyond it find no room.
use block::{BlockDevice, Buf, Bufs, Class, Flags, Sector, Slice, Status};

use crate::gate::Gate;

/// Zeroes are written in pieces of this where the device can't make them itself.
const ZEROES_BYTES: usize = 1 << 20;
/// Zeroes are asked for in pieces of this, so that one request does not hold a device for long.
const ZERO_STEP_BYTES: u64 = 1 << 30;

/// A device's size and block, as they are now.
struct Shape {
    size: u64,
    block: u64,
}

impl Shape {
    fn of(dev: &dyn BlockDevice) -> Shape {
        let limits = dev.limits();
        Shape { size: limits.capacity.bytes(), block: u64::from(limits.logical_block_bytes) }
    }

    fn down(&self, at: u64) -> u64 {
        at - at % self.block
    }

    fn up(&self, at: u64) -> u64 {
        at.next_multiple_of(self.block)
    }

    fn aligned(&self, at: u64) -> bool {
        at.is_multiple_of(self.block)
    }
}

fn bytes(len: u64) -> usize {
    usize::try_from(len).expect("lengths of requests are bounded")
}

/// Reads; nothing when `offset` is at the end or beyond it.
pub(crate) async fn read(
    dev: &dyn BlockDevice,
    offset: u64,
    len: u32,
) -> Result<Option<Slice>, Status> {
    let shape = Shape::of(dev);
    let end = offset.saturating_add(u64::from(len)).min(shape.size);
    if offset >= end {
        return Ok(None);
    }
    let from = shape.down(offset);
    let buf = Buf::alloc(bytes(shape.up(end) - from));
    reactor::read(dev, Class::Foreground, Sector::from_bytes(from), buf.clone().into()).await?;
    Ok(Some(buf.slice(bytes(offset - from)..bytes(end - from))))
}

/// Writes and returns how much: less than all at the end of the device.
pub(crate) async fn write(
    dev: &dyn BlockDevice,
    gate: &Gate,
    offset: u64,
    data: Buf,
    fua: bool,
) -> Result<u32, Status> {
    let shape = Shape::of(dev);
    if offset >= shape.size {
        return Err(Status::NoSpace);
    }
    let len = (data.len() as u64).min(shape.size - offset);
    let data = data.slice(0..bytes(len));
    write_range(dev, gate, &shape, offset, data, fua).await?;
    Ok(u32::try_from(len).expect("a request is shorter than 4 GiB"))
}

async fn write_range(
    dev: &dyn BlockDevice,
    gate: &Gate,
    shape: &Shape,
    offset: u64,
    data: Slice,
    fua: bool,
) -> Result<(), Status> {
    let (flags, class) = match fua {
        true => (Flags::FUA | Flags::SYNC, Class::Foreground),
        false => (Flags::empty(), Class::Normal),
    };
    let end = offset + data.len() as u64;
    if shape.aligned(offset) && shape.aligned(end) {
        let _passed = gate.together().await;
        return reactor::write(dev, flags, class, Sector::from_bytes(offset), data.into()).await;
    }
    // F3: between the reads and the write nobody else writes, so none of theirs is undone.
    let _passed = gate.alone().await;
    let (from, to) = (shape.down(offset), shape.up(end));
    let whole = Buf::alloc(bytes(to - from));
    let tail = to - shape.block;
    if offset > from {
        read_block(dev, &whole, from, from, shape).await?;
    }
    if end < to && (tail > from || offset == from) {
        read_block(dev, &whole, tail, from, shape).await?;
    }
    let at = bytes(offset - from);
    whole.write(|to| data.read(|new| to[at..at + new.len()].copy_from_slice(new)));
    reactor::write(dev, flags, class, Sector::from_bytes(from), whole.into()).await
}

/// Reads the block at `at` to where it belongs in `whole`, which begins at `from`.
async fn read_block(
    dev: &dyn BlockDevice,
    whole: &Buf,
    at: u64,
    from: u64,
    shape: &Shape,
) -> Result<(), Status> {
    let place = bytes(at - from)..bytes(at - from + shape.block);
    let bufs = Bufs::from(whole.slice(place));
    reactor::read(dev, Class::Foreground, Sector::from_bytes(at), bufs).await
}

/// Makes what has been written durable.
pub(crate) async fn flush(dev: &dyn BlockDevice) -> Result<(), Status> {
    reactor::flush(dev, Class::Foreground).await
}

/// Makes a range read as zeroes; it is cut off at the end of the device.
pub(crate) async fn zero(
    dev: &dyn BlockDevice,
    gate: &Gate,
    offset: u64,
    len: u64,
    unmap: bool,
) -> Result<(), Status> {
    let shape = Shape::of(dev);
    if offset >= shape.size {
        return Err(Status::Invalid);
    }
    let end = offset.saturating_add(len).min(shape.size);
    let (from, to) = (shape.up(offset), shape.down(end));
    if from >= to {
        // No whole block in it: within a block, or across the border of two.
        return write_zeroes(dev, gate, &shape, offset, end).await;
    }
    if offset < from {
        write_zeroes(dev, gate, &shape, offset, from).await?;
    }
    let flags = if unmap { Flags::empty() } else { Flags::NOUNMAP };
    let mut at = from;
    while at < to {
        let n = (to - at).min(ZERO_STEP_BYTES);
        let passed = gate.together().await;
        let (sector, sectors) = (Sector::from_bytes(at), Sector::from_bytes(n));
        let done = reactor::write_zeroes(dev, flags, Class::Normal, sector, sectors).await;
        drop(passed);
        match done {
            Err(Status::NotSupported) => write_zeroes(dev, gate, &shape, at, at + n).await?,
            done => done?,
        }
        at += n;
    }
    if to < end {
        write_zeroes(dev, gate, &shape, to, end).await?;
    }
    Ok(())
}

/// Zeroes as data.
async fn write_zeroes(
    dev: &dyn BlockDevice,
    gate: &Gate,
    shape: &Shape,
    from: u64,
    to: u64,
) -> Result<(), Status> {
    let zeroes = Buf::zeroed(bytes((to - from).min(ZEROES_BYTES as u64)));
    let mut at = from;
    while at < to {
        let n = (to - at).min(ZEROES_BYTES as u64);
        write_range(dev, gate, shape, at, zeroes.slice(0..bytes(n)), false).await?;
        at += n;
    }
    Ok(())
}
