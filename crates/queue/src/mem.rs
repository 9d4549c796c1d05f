// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Mem`: a sparse device in RAM (`mem:SIZE`); its bios complete as they are submitted.
//!
//! Several of them, on several cores, may use one [`Ram`]: they are the same device, each with the
//! counters of its core.
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{
    Base, Bio, BlockDevice, Error, Limits, LocalFuture, OnIoError, Op, Ram, SECTOR_SHIFT, Sector,
    Status,
};

use crate::leaf::{Leaf, SharedLeaf};
use crate::stats::Stats;

/// A device in RAM. The first write to a page takes memory; discard and write zeroes return it.
pub struct Mem {
    limits: Limits,
    stats: Stats,
    ram: Arc<Ram>,
    /// The first device on its memory.
    is_first: bool,
}

impl Mem {
    /// A device of `capacity`, all zeroes. Reserves all of that of this core's budget. Fails when
    /// the budget or the system has no room for it.
    pub fn new(name: impl Into<String>, capacity: Sector) -> Result<Mem, Error> {
        let name = name.into();
        let memory = reactor::memory().reserve(capacity.bytes(), &name)?;
        let ram = Ram::new(capacity.bytes()).map_err(|e| e.within(&name))?;
        let mut mem = Mem::on(name, Arc::new(ram.holding(memory)));
        mem.is_first = true;
        Ok(mem)
    }

    /// A device on `ram`, as large as it is.
    pub fn on(name: impl Into<String>, ram: Arc<Ram>) -> Mem {
        let limits = Limits {
            // The contents end with the process.
            survives_kill: false,
            flushed_survives_kill: false,
            // Bytes beyond the last whole sector are not used.
            ..Limits::of_memory(Sector(ram.len() as u64 >> SECTOR_SHIFT))
        };
        Mem { limits, stats: Stats::new(name.into()), ram, is_first: false }
    }

    /// The memory, for another device on it.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// Its counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    #[inline]
    fn end(&self, sector: Sector, bio: Bio, status: Status) {
        self.stats.count(bio.op, sector, bio.len, status);
        bio.complete(status);
    }
}

/// The byte of a sector in memory; beyond its bounds when it does not fit.
fn index(at: Sector) -> usize {
    usize::try_from(at.0 << SECTOR_SHIFT).unwrap_or(usize::MAX)
}

impl BlockDevice for Mem {
    fn name(&self) -> &str {
        self.stats.device()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        match self.limits.check_range(&bio) {
            Ok(()) => self.submit_at(bio.sector, bio),
            Err(status) => self.end(bio.sector, bio, status),
        }
    }

    fn takes_client_memory(&self) -> bool {
        true
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl Base for Mem {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        let status = Status::from(bio.check_bufs());
        if status == Status::Ok {
            let at = index(sector);
            match bio.op {
                Op::Read => self.ram.read_bufs(at, &bio.bufs),
                Op::Write => self.ram.write_bufs(at, &bio.bufs),
                Op::Flush => {}
                Op::Discard | Op::WriteZeroes => self.ram.punch(at..index(sector + bio.len)),
            }
        }
        self.end(sector, bio, status);
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        // Nothing is in flight: a bio ends as it is submitted.
        Box::pin(std::future::ready(()))
    }

    fn watch(&self, watcher: Weak<dyn OnIoError>) {
        self.stats.watch(watcher);
    }
}

impl Leaf for Mem {
    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn share(&self) -> Option<SharedLeaf> {
        let (name, ram) = (self.name().to_owned(), self.ram.clone());
        Some(SharedLeaf::new(self, move |_| Rc::new(Mem::on(&*name, ram.clone()))))
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        // A device on another core may keep the region for long, but not its pages.
        if self.is_first && Arc::strong_count(&self.ram) > 1 {
            self.ram.punch(0..self.ram.len());
        }
    }
}

block::debug_as!(Mem, s => "Mem({}, {:?})", s.name(), s.ram);

#[cfg(test)]
mod tests {
    use block::{Buf, Bufs, Class, Flags};
    use reactor::{discard, flush, read, write, write_zeroes};

    use super::*;
    use crate::testing::{Script, pattern, with_core};

    fn bytes_of(bufs: &Bufs) -> Vec<u8> {
        let mut out = vec![0; bufs.len_bytes()];
        bufs.copy_to(&mut out);
        out
    }

    #[test]
    fn written_data_is_read_back_across_pages_and_buffers() {
        with_core(Script::default().driver(), async {
            let dev = Mem::new("mem:1G", Sector(1 << 21)).unwrap();
            let mut data = pattern(100 * 1024, 1);
            for slice in pattern(60 * 1024, 9).iter() {
                data.push(slice.clone());
            }
            let at = Sector::from_bytes((32 << 20) - 512);
            write(&dev, Flags::FUA, Class::Normal, at, data.clone()).await.unwrap();
            flush(&dev, Class::Normal).await.unwrap();
            let back = Bufs::from(Buf::alloc(160 * 1024));
            read(&dev, Class::Normal, at, back.clone()).await.unwrap();
            assert_eq!(bytes_of(&back), bytes_of(&data));
        });
    }

    #[test]
    fn unwritten_sectors_of_a_huge_ram_device_read_as_zeroes() {
        with_core(Script::default().driver(), async {
            let dev = Mem::new("mem:1T", Sector(1 << 31)).unwrap();
            let back = pattern(8192, 5);
            read(&dev, Class::Normal, Sector((1 << 31) - 16), back.clone()).await.unwrap();
            assert!(bytes_of(&back).iter().all(|&b| b == 0));
        });
    }

    #[test]
    fn discard_and_write_zeroes_zero_just_their_range() {
        with_core(Script::default().driver(), async {
            let dev = Mem::new("mem:1M", Sector(2048)).unwrap();
            let all = pattern(1 << 20, 1);
            write(&dev, Flags::empty(), Class::Normal, Sector(0), all.clone()).await.unwrap();
            discard(&dev, Class::Normal, Sector(1), Sector(256)).await.unwrap();
            write_zeroes(&dev, Flags::empty(), Class::Normal, Sector(1024), Sector(128))
                .await
                .unwrap();
            let mut want = bytes_of(&all);
            want[512..512 + 256 * 512].fill(0);
            want[1024 * 512..1152 * 512].fill(0);
            read(&dev, Class::Normal, Sector(0), all.clone()).await.unwrap();
            assert_eq!(bytes_of(&all), want);
        });
    }

    #[test]
    fn requests_beyond_the_end_are_refused_and_counted() {
        with_core(Script::default().driver(), async {
            let dev = Mem::new("mem:4K", Sector(8)).unwrap();
            let bad = read(&dev, Class::Normal, Sector(4), pattern(4096, 0)).await;
            assert_eq!(bad, Err(Status::Invalid));
            assert_eq!(dev.stats().of(Op::Read).errors, 1);
            let error = dev.stats().last_error().unwrap().to_string();
            assert_eq!(error, "mem:4K: read at sector 4: invalid range or alignment");
        });
    }

    #[test]
    fn devices_on_one_memory_share_data_and_not_counters() {
        with_core(Script::default().driver(), async {
            let here = Mem::new("mem:1M", Sector(2048)).unwrap();
            let there = Mem::on("mem:1M", here.ram().clone());
            assert_eq!(here.limits(), there.limits());
            let data = pattern(4096, 3);
            write(&here, Flags::empty(), Class::Normal, Sector(80), data.clone()).await.unwrap();
            let back = Bufs::from(Buf::zeroed(4096));
            read(&there, Class::Normal, Sector(80), back.clone()).await.unwrap();
            assert_eq!(bytes_of(&back), bytes_of(&data));
            assert_eq!((here.stats().of(Op::Read).ios, here.stats().of(Op::Write).ios), (0, 1));
            assert_eq!((there.stats().of(Op::Read).ios, there.stats().of(Op::Write).ios), (1, 0));
        });
    }

    #[test]
    fn what_does_not_fit_the_system_is_refused_with_name_and_size() {
        with_core(Script::default().driver(), async {
            let e = Mem::new("mem:1E", Sector(1 << 51)).unwrap_err();
            assert_eq!(e.to_string(), "mem:1E: cannot reserve 1152921504606846976 bytes of memory");
        });
    }
}
