// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Engines on slices of one device: each of them gets the error of a failed flush.
use std::cell::Cell;
use std::rc::Rc;

use block::{
    Bio, BlockDevice, Buf, Class, Error, Flags, Limits, LocalFuture, Nanos, Op, Sector, Status,
    Target,
};
use dm::{Dm, Resolver, TargetType};
use pagecache::{Config, PageCache};
use queue::Mem;
use sim::{Machine, World};

/// Each engine has a page that it has written, and the disk fails a flush when the test asks for
/// it.
struct Disk {
    mem: Mem,
    flushes_fail: Cell<bool>,
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        "disk"
    }
    fn limits(&self) -> Limits {
        Limits { volatile_cache: true, ..self.mem.limits() }
    }
    fn submit(&self, bio: Bio) {
        match bio.op {
            Op::Flush if self.flushes_fail.get() => bio.complete(Status::Io),
            Op::Read | Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                self.mem.submit(bio);
            }
        }
    }
}

struct Disks(Rc<Disk>);

impl Resolver for Disks {
    fn open(&self, _word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let disk = self.0.clone();
        Box::pin(async move { Ok(disk as Rc<dyn BlockDevice>) })
    }
}

fn buffered() -> TargetType {
    TargetType::new(&pagecache::MANUAL, |ctx, args| {
        Box::pin(async move {
            let below = ctx.lookup(&args[0]).await?;
            let words: Vec<&str> = args[1..].iter().map(String::as_str).collect();
            let config = Config::parse(&words)?;
            Ok(PageCache::new(ctx.device(), config, below, ctx.len())? as Rc<dyn Target>)
        })
    })
}

/// Two devices on slices of one `buffered`: the origin of an engine, or a device with an engine.
fn with_two(
    engine: Option<&'static str>,
    work: impl AsyncFnOnce([Rc<dyn BlockDevice>; 2], Rc<Disk>) + 'static,
) {
    let machine = Machine::boot(&World::calm(1), 1);
    let all = async move {
        let mem = Mem::new("disk", Sector(8192)).unwrap();
        let disk = Rc::new(Disk { mem, flushes_fail: Cell::new(false) });
        let dm = Dm::new(Rc::new(Disks(disk.clone())));
        dm.register(buffered());
        dm.create("all", None, Some("0 8192 buffered disk 2 memory 8M")).await.unwrap();
        let mut tops: Vec<Rc<dyn BlockDevice>> = Vec::new();
        for (nth, at) in [(1, 0), (2, 4096)] {
            let slice = format!("slice{nth}");
            let table = format!("0 4096 linear all {at}");
            let made = dm.create(&slice, None, Some(&table)).await.unwrap();
            tops.push(match engine {
                None => made,
                Some(line) => {
                    let table = format!("0 4096 {}", line.replace("SLICE", &slice));
                    dm.create(&format!("top{nth}"), None, Some(&table)).await.unwrap()
                }
            });
        }
        work(tops.try_into().ok().unwrap(), disk).await;
    };
    machine.block_on(all).unwrap();
    machine.kill();
}

const AT_ONCE: &str = "buffered SLICE 8 memory 8M dirty_background_bytes 1 \
                       dirty_writeback_centisecs 1 dirty_expire_centisecs 1";

/// Found by reading: the bios of all engines had the same opener, so the first engine whose flush
/// failed got the error for all of them. The flush of the other succeeded, and it counted lost data
/// as durable.
#[test]
fn each_engine_on_a_shared_device_gets_a_failed_flush() {
    for engine in [None, Some(AT_ONCE)] {
        with_two(engine, async move |tops, disk| {
            let class = Class::Normal;
            for top in &tops {
                let page = Buf::zeroed(4096).into();
                reactor::write(&**top, Flags::empty(), class, Sector(0), page).await.unwrap();
            }
            reactor::sleep(Nanos(1_000_000_000)).await;
            disk.flushes_fail.set(true);
            assert_eq!(reactor::flush(&*tops[0], class).await, Err(Status::Io), "{engine:?}");
            disk.flushes_fail.set(false);
            assert_eq!(reactor::flush(&*tops[1], class).await, Err(Status::Io), "{engine:?}");
            for top in &tops {
                assert_eq!(
                    reactor::flush(&**top, class).await,
                    Ok(()),
                    "{engine:?}: reported once"
                );
            }
        });
    }
}
