// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Marks a cache device that another one has replaced. The map is empty, and no task runs.
//!
//! ```text
//!   native   copies 0 and 1, flush, copies 2 and 3, flush: until two copies of the superblock are
//!            gone it is elected, and then a mark is there, durably
//!   kernel's the first word, flush: it is no cache any more; the rest of the sector, flush
//! ```
use block::{Buf, Class, Flags, Status};
use format::{Geometry, ReplacedMark, SUPERBLOCK_COPIES, UNIT};

use super::Store;
use super::media::{Media, Native};
use crate::planted::Fault;
use crate::recovery::area::wait_all;

impl Store {
    /// Marks the device, durably. After an error the superblock is there again, or the cache fails
    /// stop: it holds nothing that could be lost.
    pub(crate) async fn mark_replaced(&self, mark: &ReplacedMark) -> Result<(), Status> {
        self.health()?;
        let marked = match &self.media {
            Media::Native(_) => self.write_marks(mark).await,
            Media::Dm(_) => self.mark_header(mark).await,
        };
        let Err(status) = marked else { return Ok(()) };
        let restored = match &self.media {
            Media::Native(native) => self.restore_copies(native).await,
            Media::Dm(_) => Err(status), // its header is not in memory
        };
        if restored.is_err() {
            self.fail(status);
        }
        Err(status)
    }

    async fn write_marks(&self, mark: &ReplacedMark) -> Result<(), Status> {
        let unit = Buf::zeroed(UNIT);
        unit.write(|out| mark.encode(out));
        self.write_pairs(&|_| unit.clone()).await
    }

    async fn restore_copies(&self, native: &Native) -> Result<(), Status> {
        self.health()?;
        let superblock = native.superblock.borrow().clone();
        let copy = |copy| {
            let unit = Buf::alloc(UNIT);
            unit.write(|out| superblock.encode(copy, out));
            unit
        };
        self.write_pairs(&copy).await
    }

    /// Writes the places of the superblock copies, one pair at a time, each durably.
    async fn write_pairs(&self, unit: &dyn Fn(u8) -> Buf) -> Result<(), Status> {
        for first in (0..SUPERBLOCK_COPIES).step_by(2) {
            let write =
                |copy| self.write_area(Geometry::superblock_offset(copy), &unit(copy), 0..1);
            wait_all([write(first), write(first + 1)]).await?;
            if !self.has_fault(Fault::MarkNotFlushed) {
                self.flush_device().await?;
            }
        }
        Ok(())
    }

    /// The kernel's format has one superblock, in a sector with entries: none of them may be torn
    /// while the superblock would still make it valid.
    async fn mark_header(&self, mark: &ReplacedMark) -> Result<(), Status> {
        let (at, class) = (self.area_sector(0), Class::Foreground);
        let bytes = self.device.limits().write_unit_bytes() as usize;
        let sector = Buf::alloc(bytes);
        reactor::read(&*self.device, class, at, sector.all().into()).await?;
        for encode in
            [&|out: &mut [u8]| ReplacedMark::begin(out), &|out: &mut [u8]| mark.encode(out)]
                as [&dyn Fn(&mut [u8]); 2]
        {
            let next = Buf::alloc(bytes);
            next.write(|out| {
                sector.read(|bytes| out.copy_from_slice(bytes));
                encode(out);
            });
            reactor::write(&*self.device, Flags::META, class, at, next.into()).await?;
            self.flush_device().await?;
        }
        Ok(())
    }
}
