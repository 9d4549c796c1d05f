// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of sectors on a page cache over a device of 4096-byte blocks: merged in memory. They
//! were refused once, although pages are merged here anyway.
use std::rc::Rc;

use block::{Bio, BlockDevice, Buf, Class, Flags, Limits, Sector, Target};
use pagecache::{Config, PageCache};
use queue::Mem;
use sim::{Machine, World};

const PAGES: u64 = 64;

/// Memory that refuses what is not of whole blocks.
struct LargeBlockRam(Mem);

impl BlockDevice for LargeBlockRam {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn limits(&self) -> Limits {
        Limits { logical_block_bytes: 4096, ..self.0.limits() }
    }
    fn submit(&self, bio: Bio) {
        match self.limits().check(&bio) {
            Ok(()) => self.0.submit(bio),
            Err(status) => bio.complete(status),
        }
    }
}

fn open(below: &Rc<LargeBlockRam>, len: Sector) -> Result<Rc<PageCache>, block::Error> {
    let config = Config::parse(&["0"]).unwrap();
    PageCache::new("cache", config, below.clone(), len)
}

#[test]
fn sectors_are_merged_over_a_device_of_larger_blocks() {
    let machine = Machine::boot(&World::calm(1), 1);
    let done = machine.block_on(async {
        let below = Rc::new(LargeBlockRam(Mem::new("below", Sector(PAGES * 8)).unwrap()));
        assert!(open(&below, Sector(PAGES * 8 - 1)).is_err());
        let cache = open(&below, Sector(PAGES * 8)).unwrap();
        cache.clone().resume().await.unwrap();
        assert_eq!(cache.limits().logical_block_bytes, 512);
        let mut model = vec![0; 32 * 512];
        let (none, class) = (Flags::empty(), Class::Normal);
        for (n, (from, to)) in [(2, 4), (7, 9), (13, 30), (0, 1), (31, 32)].into_iter().enumerate()
        {
            let data = vec![u8::try_from(n + 1).unwrap(); (to - from) * 512];
            model[from * 512..to * 512].copy_from_slice(&data);
            let flags = if n % 2 == 0 { none } else { Flags::FUA };
            let at = Sector(from as u64);
            reactor::write(&*cache, flags, class, at, Buf::copy_of(&data).into()).await.unwrap();
        }
        let zeroes = reactor::write_zeroes(&*cache, none, class, Sector(3), Sector(14)).await;
        match zeroes {
            Ok(()) => model[3 * 512..17 * 512].fill(0),
            Err(status) => assert_eq!(status, block::Status::NotSupported),
        }
        reactor::discard(&*cache, class, Sector(18), Sector(3)).await.ok();
        let part = Buf::zeroed(1024);
        reactor::read(&*cache, class, Sector(2), part.all().into()).await.unwrap();
        assert!(part.read(|b| b == &model[1024..2048]));
        reactor::flush(&*cache, class).await.unwrap();
        let all = Buf::zeroed(model.len());
        reactor::read(&*below, class, Sector(0), all.all().into()).await.unwrap();
        assert!(all.read(|b| b == model), "the device below holds all of it");
    });
    done.unwrap();
    machine.kill();
}
