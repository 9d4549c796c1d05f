// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests at any byte as bios of whole sectors: short at the end, read-modify-write at the edges.
//!
//! ```text
//!   sectors   |-------|-------|-------|-------|
//!   request        |-------------|                one read of four sectors' span, or
//!   write     |.rrr|wwww wwwwwwww|www.r|          reads of the edge sectors, then one write
//! ```
//!
//! Every device takes any sectors: devices with larger blocks merge themselves.
//!
//! Ranges beyond the end behave as on block devices: reads stop at the end, writes beyond it fail
//! with ENOSPC.
use block::{BlockDevice, Buf, Bufs, Class, Flags, SECTOR_SIZE, Sector, Slice, Status};
use reactor::ZeroBuffer;

use crate::write_lock::WriteLock;

/// Longest range that is zeroed in one step. The lock is held for a step, and on a device without
/// write zeroes a step is that many zeroes written as data.
const ZERO_STEP_BYTES: u64 = 64 << 20;

const SECTOR: u64 = SECTOR_SIZE as u64;

/// The current size of a device.
fn size_of(dev: &dyn BlockDevice) -> u64 {
    dev.limits().capacity.bytes()
}

fn down(at: u64) -> u64 {
    at - at % SECTOR
}

fn up(at: u64) -> u64 {
    at.next_multiple_of(SECTOR)
}

/// Whether a range is one of whole sectors.
pub(crate) fn is_whole(offset: u64, len: u64) -> bool {
    (offset | len).is_multiple_of(SECTOR)
}

fn bytes(len: u64) -> usize {
    usize::try_from(len).expect("lengths of requests are bounded")
}

/// Reads; `None` at the end of the device or beyond it.
pub(crate) async fn read(
    dev: &dyn BlockDevice,
    offset: u64,
    len: u32,
) -> Result<Option<Slice>, Status> {
    let end = offset.saturating_add(u64::from(len)).min(size_of(dev));
    if offset >= end {
        return Ok(None);
    }
    let from = down(offset);
    let buf = Buf::alloc(bytes(up(end) - from));
    reactor::read(dev, Class::Foreground, Sector::from_bytes(from), buf.clone().into()).await?;
    Ok(Some(buf.slice(bytes(offset - from)..bytes(end - from))))
}

/// Writes and returns the number of bytes: fewer at the end of the device.
pub(crate) async fn write(
    dev: &dyn BlockDevice,
    lock: &WriteLock,
    offset: u64,
    data: Buf,
    fua: bool,
) -> Result<u32, Status> {
    let size = size_of(dev);
    if offset >= size {
        return Err(Status::NoSpace);
    }
    let len = (data.len() as u64).min(size - offset);
    let data = data.slice(0..bytes(len));
    write_range(dev, lock, offset, data, fua).await?;
    Ok(u32::try_from(len).expect("a request is shorter than 4 GiB"))
}

async fn write_range(
    dev: &dyn BlockDevice,
    lock: &WriteLock,
    offset: u64,
    data: Slice,
    fua: bool,
) -> Result<(), Status> {
    let (flags, class) = match fua {
        true => (Flags::FUA | Flags::SYNC, Class::Foreground),
        false => (Flags::empty(), Class::Normal),
    };
    let end = offset + data.len() as u64;
    if is_whole(offset, data.len() as u64) {
        let _guard = lock.shared().await;
        return reactor::write(dev, flags, class, Sector::from_bytes(offset), data.into()).await;
    }
    // FU-F3: no other write happens between the reads and the write, so none is undone.
    let _guard = lock.exclusive().await;
    let (from, to) = (down(offset), up(end));
    let whole = Buf::alloc(bytes(to - from));
    let tail = to - SECTOR;
    if offset > from {
        read_sector(dev, &whole, from, from).await?;
    }
    if end < to && (tail > from || offset == from) {
        read_sector(dev, &whole, tail, from).await?;
    }
    let at = bytes(offset - from);
    whole.write(|to| data.read(|new| to[at..at + new.len()].copy_from_slice(new)));
    reactor::write(dev, flags, class, Sector::from_bytes(from), whole.into()).await
}

/// Reads the sector at `at` to where it belongs in `whole`, which begins at `from`.
async fn read_sector(dev: &dyn BlockDevice, whole: &Buf, at: u64, from: u64) -> Result<(), Status> {
    let place = bytes(at - from)..bytes(at - from + SECTOR);
    let bufs = Bufs::from(whole.slice(place));
    reactor::read(dev, Class::Foreground, Sector::from_bytes(at), bufs).await
}

/// Makes completed writes durable.
pub(crate) async fn flush(dev: &dyn BlockDevice) -> Result<(), Status> {
    reactor::flush(dev, Class::Foreground).await
}

/// Zeroes a range; it is cut at the end of the device.
pub(crate) async fn zero(
    dev: &dyn BlockDevice,
    lock: &WriteLock,
    offset: u64,
    len: u64,
    unmap: bool,
) -> Result<(), Status> {
    let size = size_of(dev);
    if offset >= size || len == 0 {
        return Err(Status::Invalid);
    }
    let end = offset.saturating_add(len).min(size);
    let zeroes = |a, b| write_range(dev, lock, a, Buf::zeroed(bytes(b - a)).all(), false);
    let (from, to) = (up(offset), down(end));
    if from >= to {
        // No whole sector in it: within a sector, or across the border of two.
        return zeroes(offset, end).await;
    }
    if offset < from {
        zeroes(offset, from).await?;
    }
    let flags = if unmap { Flags::empty() } else { Flags::NOUNMAP };
    let source = ZeroBuffer::default();
    let mut at = from;
    while at < to {
        let n = (to - at).min(ZERO_STEP_BYTES);
        let place = (Sector::from_bytes(at), Sector::from_bytes(n));
        let guard = lock.shared().await;
        reactor::zero_out(dev, flags, Class::Normal, place, &source, || true).await?;
        drop(guard);
        at += n;
        // A device in memory has done it at once, and there may be a million steps.
        reactor::yield_now().await;
    }
    if to < end {
        zeroes(to, end).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use block::{Bio, Limits, Op};
    use sim::model::Uniform;
    use sim::{DiskSpec, Machine, Rng, World};

    const SIZE: usize = 64 << 10;
    const BLOCK: usize = SECTOR_SIZE;

    /// A disk that may lack write zeroes.
    struct Disk {
        disk: Rc<dyn BlockDevice>,
        zeroes: Cell<bool>,
        log: RefCell<Vec<(Op, Flags)>>,
    }

    impl BlockDevice for Disk {
        fn name(&self) -> &str {
            "disk"
        }

        fn limits(&self) -> Limits {
            self.disk.limits()
        }

        fn submit(&self, bio: Bio) {
            self.log.borrow_mut().push((bio.op, bio.flags));
            if bio.op == Op::WriteZeroes && !self.zeroes.get() {
                return bio.complete(Status::NotSupported);
            }
            self.disk.submit(bio);
        }
    }

    /// Runs `test` on a disk whose requests end in an order drawn from `seed`.
    fn on_disk<F>(seed: u64, test: impl FnOnce(Rc<Disk>, Rc<WriteLock>) -> F + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let world = World::calm(seed);
        let model = Box::new(Uniform::new(seed, 1_000, 900_000));
        let spec = DiskSpec::new("disk", Sector::from_bytes(SIZE as u64), model);
        let file = world.borrow_mut().add_disk(spec);
        let machine = Machine::boot(&world, 1);
        let disk = world.borrow().leaf(file);
        let zeroes = Cell::new(true);
        let dev = Rc::new(Disk { disk, zeroes, log: RefCell::default() });
        let done = machine.block_on(async move { test(dev, Rc::new(WriteLock::new())).await });
        done.expect("nothing waits for ever");
        machine.shut_down();
    }

    async fn contents(dev: &Disk) -> Vec<u8> {
        let all = read(dev, 0, u32::try_from(SIZE).unwrap()).await.unwrap().unwrap();
        all.read(<[u8]>::to_vec)
    }

    #[test]
    fn neighbours_that_share_blocks_do_not_undo_each_other() {
        for seed in 1..=20 {
            on_disk(seed, move |dev, lock| async move {
                let mut rng = Rng::new(seed);
                let mut model = vec![0; SIZE];
                // The whole device in pieces that end anywhere, and one in three at a block's end.
                let mut pieces = Vec::new();
                let mut at = 0;
                while at < SIZE {
                    let mut end = (at + 1 + rng.index(2 * BLOCK)).min(SIZE);
                    if rng.chance_per_mille(333) {
                        end = end.next_multiple_of(BLOCK);
                    }
                    pieces.push((at, end, u8::try_from(1 + rng.index(255)).unwrap()));
                    at = end;
                }
                rng.shuffle(&mut pieces);
                let left = Rc::new((Cell::new(pieces.len()), reactor::WaitList::new()));
                for (at, end, byte) in pieces {
                    model[at..end].fill(byte);
                    let (dev, lock, left) = (dev.clone(), lock.clone(), left.clone());
                    reactor::spawn(async move {
                        let data = Buf::copy_of(&vec![byte; end - at]);
                        let n = write(&*dev, &lock, at as u64, data, false).await.unwrap();
                        assert_eq!(n as usize, end - at);
                        left.0.set(left.0.get() - 1);
                        left.1.wake_all();
                    });
                }
                left.1.wait_for(|| left.0.get() == 0).await;
                assert!(contents(&dev).await == model, "seed {seed}");
            });
        }
    }

    #[test]
    fn zero_ranges_end_at_any_byte_with_or_without_device_help() {
        for zeroes in [true, false] {
            on_disk(7, move |dev, lock| async move {
                dev.zeroes.set(zeroes);
                let mut model = vec![9; SIZE];
                let data = Buf::copy_of(&model);
                write(&*dev, &lock, 0, data, false).await.unwrap();
                for (at, len) in [
                    (0, BLOCK),
                    (700, 100),
                    (3 * BLOCK - 50, 100),
                    (4 * BLOCK + 1, 3 * BLOCK),
                    (9 * BLOCK, 4 * BLOCK + 511),
                    (SIZE - 10, 10),
                ] {
                    zero(&*dev, &lock, at as u64, len as u64, true).await.unwrap();
                    model[at..at + len].fill(0);
                    assert!(contents(&dev).await == model, "{at}+{len}");
                }
                // Cut off at the end, and refused beyond it.
                zero(&*dev, &lock, SIZE as u64 - 1, u64::MAX, false).await.unwrap();
                let beyond = zero(&*dev, &lock, SIZE as u64, 1, false).await;
                assert_eq!(beyond, Err(Status::Invalid));
                assert_eq!(zero(&*dev, &lock, 0, 0, true).await, Err(Status::Invalid));
            });
        }
    }

    /// A huge device that completes each request at once and counts them.
    struct CountingDevice(Cell<u64>);

    impl BlockDevice for CountingDevice {
        fn name(&self) -> &str {
            "counting"
        }

        fn limits(&self) -> Limits {
            Limits { write_zeroes: true, ..Limits::new(Sector(1 << 40)) }
        }

        fn submit(&self, bio: Bio) {
            self.0.set(self.0.get() + 1);
            bio.complete(Status::Ok);
        }
    }

    #[test]
    fn a_long_range_of_zeroes_lets_others_run() {
        on_disk(1, |_, lock| async move {
            let dev = Rc::new(CountingDevice(Cell::new(0)));
            let seen = Rc::new(Cell::new(u64::MAX));
            let (of, note) = (dev.clone(), seen.clone());
            reactor::spawn(async move { note.set(of.0.get()) });
            zero(&*dev, &lock, 0, 100 * ZERO_STEP_BYTES, true).await.unwrap();
            assert_eq!(dev.0.get(), 100);
            assert!(seen.get() < 100, "no other task ran before the end");
        });
    }

    #[test]
    fn the_end_of_the_device_is_where_a_block_device_has_it() {
        on_disk(1, |dev, lock| async move {
            let end = SIZE as u64;
            assert!(read(&*dev, end, 1).await.unwrap().is_none());
            assert!(read(&*dev, u64::MAX, 1).await.unwrap().is_none());
            assert_eq!(read(&*dev, end - 3, 4096).await.unwrap().unwrap().len(), 3);
            let write = |at, len| {
                let (dev, lock) = (dev.clone(), lock.clone());
                async move { write(&*dev, &lock, at, Buf::copy_of(&vec![5; len]), false).await }
            };
            assert_eq!(write(end - 3, 10).await, Ok(3));
            assert_eq!(write(end, 1).await, Err(Status::NoSpace));
            assert_eq!(write(u64::MAX, 1).await, Err(Status::NoSpace));
        });
    }

    #[test]
    fn whole_blocks_go_straight_and_flags_reach_the_device() {
        on_disk(1, |dev, lock| async move {
            let block = || Buf::copy_of(&[1; BLOCK]);
            write(&*dev, &lock, 0, block(), false).await.unwrap();
            write(&*dev, &lock, 4096, block(), true).await.unwrap();
            flush(&*dev).await.unwrap();
            zero(&*dev, &lock, 0, 4096, true).await.unwrap();
            zero(&*dev, &lock, 0, 4096, false).await.unwrap();
            let fua = Flags::FUA | Flags::SYNC;
            let none = Flags::empty();
            let expected = [
                (Op::Write, none),
                (Op::Write, fua),
                (Op::Flush, none),
                (Op::WriteZeroes, none),
                (Op::WriteZeroes, Flags::NOUNMAP),
            ];
            assert_eq!(*dev.log.borrow(), expected);
            dev.log.take();
            write(&*dev, &lock, 100, block(), true).await.unwrap();
            let expected = [(Op::Read, none), (Op::Read, none), (Op::Write, fua)];
            assert_eq!(*dev.log.borrow(), expected, "both edges are read, one write follows");
        });
    }
}
