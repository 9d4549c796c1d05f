// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk of larger blocks, and a wrapper that reads whole blocks where sectors are wanted.
use std::rc::Rc;

use block::{Bio, BlockDevice, Buf, Limits, Op, Sector};
use reactor::spawn;

pub(crate) struct WholeBlocks(pub(crate) Rc<dyn BlockDevice>);

impl BlockDevice for WholeBlocks {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limits(&self) -> Limits {
        Limits { logical_block_bytes: 512, ..self.0.limits() }
    }

    fn submit(&self, bio: Bio) {
        assert_eq!(bio.op, Op::Read, "it is only looked at");
        let disk = self.0.clone();
        spawn(async move {
            let block = u64::from(disk.limits().logical_block_bytes) / 512;
            let first = bio.sector.0 / block * block;
            let len = bio.end().0.next_multiple_of(block) - first;
            let bytes = |sectors: u64| usize::try_from(sectors * 512).expect("in memory");
            let whole = Buf::alloc(bytes(len));
            let read = reactor::read(&*disk, bio.class, Sector(first), whole.all().into()).await;
            let from = bytes(bio.sector.0 - first);
            whole.read(|data| bio.bufs.copy_from(&data[from..from + bytes(bio.len.0)]));
            bio.complete(read.into());
        });
    }
}
