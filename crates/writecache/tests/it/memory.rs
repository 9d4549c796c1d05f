// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a map is counted against the budget of the core before anything is written.

use std::rc::Rc;
use std::sync::Arc;

use crate::common::{Fixture, expect, fill, flush, suspend};
use block::{BlockDevice, Budget, Error, ErrorKind, Target};
use sim::Machine;
use writecache::{Depth, ProbeReport};

/// One life with a budget of so many bytes; what is free while the cache is open, and afterwards.
fn life(fixture: &Fixture, limit: u64) -> Result<(u64, u64), Error> {
    let machine = Machine::boot(&fixture.world, 1);
    let target = fixture.target();
    let done = machine.block_on(async move {
        let budget = Arc::new(Budget::new(limit, "a test"));
        reactor::set_memory(budget.clone());
        target.clone().resume().await?;
        let free = budget.free();
        fill(&*target, 0..9, 1).await;
        flush(&*target).await;
        suspend(&target).await;
        drop(target);
        reactor::yield_now().await;
        Ok((free, budget.free()))
    });
    machine.kill();
    done.unwrap()
}

fn look(fixture: &Fixture, limit: u64) -> Result<ProbeReport, Error> {
    let machine = Machine::boot(&fixture.world, 1);
    let (device, start): (Rc<dyn BlockDevice>, _) =
        (fixture.leaf(fixture.cache), fixture.config.start_sector);
    let found = machine.block_on(async move {
        reactor::set_memory(Arc::new(Budget::new(limit, "a test")));
        writecache::probe(device, start, Depth::Data).await
    });
    machine.kill();
    found.unwrap()
}

/// The story, found by an attack from outside: a sparse file of 15 TiB as a cache device. The
/// format was written, then 60 GiB for the map were asked for, and the process was gone with all
/// of its devices, at each start again.
#[test]
fn a_cache_whose_map_has_no_room_is_not_made() {
    for options in ["", "ordered", "format dm"] {
        let fixture = Fixture::new(256, 2048, options);
        let before = fixture.image();
        let e = life(&fixture, 1000).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoMemory, "{options}: {}", e.chain());
        let why = e.chain();
        for part in ["cache device cache: the map of its ", " blocks needs ", "1000 bytes are free"]
        {
            assert!(why.contains(part), "{options}: {why}");
        }
        assert!(fixture.image() == before, "{options}: something was written");
        let limit = 1 << 20;
        let (open, closed) = life(&fixture, limit).unwrap();
        assert!(open < limit - 8000 && open > limit - 100_000, "{options}: {open} are free");
        assert_eq!(closed, limit, "{options}: a cache that was closed holds memory");
    }
}

/// A cache that is there and does not fit is left as it is, by tools too; with memory it opens.
#[test]
fn a_cache_that_has_no_room_is_left_as_it_is() {
    for options in ["", "ordered", "format dm"] {
        let fixture = Fixture::new(256, 2048, options);
        life(&fixture, u64::MAX).unwrap();
        let before = fixture.image();
        assert_eq!(life(&fixture, 4096).unwrap_err().kind(), ErrorKind::NoMemory, "{options}");
        let looked = look(&fixture, 100);
        assert_eq!(looked.map(|_| ()).unwrap_err().kind(), ErrorKind::NoMemory, "{options}");
        assert!(fixture.image() == before, "{options}: it was changed");
        assert!(look(&fixture, 1 << 20).unwrap().damage.is_empty(), "{options}");
        fixture.life(async |cache| expect(&*cache, 0..9, 1).await).unwrap();
    }
}
