// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table that did not go live had the same cache as the one that stays: what it has changed on
//! the media counts for that.
use std::rc::Rc;

use block::{BlockDevice, Error, LocalFuture, Nanos, Sector, Target};
use dm::{Dm, Resolver, TargetType};
use sim::model::Uniform;
use sim::{DiskSpec, Machine};
use writecache::WriteCache;

use crate::common::{Fixture, config, expect, fill, flush, number, put, suspend};

const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Writes everything back at once, with many commits.
const EAGER: &str = "high_watermark 0 low_watermark 0 autocommit_time 1 writeback_jobs 8";

fn table(fixture: &Fixture, options: &str) -> Rc<WriteCache> {
    Fixture { config: config(4096, options), ..fixture.clone() }.target()
}

/// The cache is opened by another table, written back in part, and closed; then the first one goes
/// on, and the process is killed. The next one opens the cache, and nothing is lost.
fn killed_after_another_table(of_other: &str) {
    let fixture = Fixture::new(1024, 2048, MANUAL);
    let first = table(&fixture, MANUAL);
    let other = table(&fixture, of_other);
    let machine = Machine::boot(&fixture.world, 1);
    let done = machine.block_on(async move {
        first.clone().resume().await.unwrap();
        fill(&*first, 0..100, 1).await;
        flush(&*first).await;
        suspend(&first).await;
        other.clone().resume().await.unwrap();
        reactor::sleep(Nanos::from_millis(500)).await;
        suspend(&other).await;
        first.reread_media();
        first.clone().resume().await.unwrap();
        assert_eq!(number(&first, "dirty_blocks"), number(&other, "dirty_blocks"));
        expect(&*first, 0..100, 1).await;
        for block in [5, 25] {
            put(&*first, block, 2).await.unwrap();
        }
        flush(&*first).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
    let machine = Machine::boot(&fixture.world, 1);
    let again = table(&fixture, MANUAL);
    let done = machine.block_on(async move {
        again.clone().resume().await.unwrap();
        for block in (0..100).filter(|block| ![5, 25].contains(block)) {
            expect(&*again, block..block + 1, 1).await;
        }
        expect(&*again, 5..6, 2).await;
        expect(&*again, 25..26, 2).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
}

/// Its records lay behind those of the first, which did not know of them: to a recovery they told
/// of records that were lost, and the cache was refused.
#[test]
fn a_table_that_stays_goes_on_behind_what_another_has_logged() {
    killed_after_another_table(EAGER);
}

/// It had written a checkpoint, into the area where the first wrote its next one.
#[test]
fn a_table_that_stays_knows_the_checkpoint_of_another() {
    killed_after_another_table(&format!("{EAGER} ordered"));
}

/// Opens the disks of the world by their names.
struct Disks(Vec<Rc<dyn BlockDevice>>);

impl Resolver for Disks {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let found = self.0.iter().find(|disk| disk.name() == word).cloned();
        let missing = Error::not_found(format!("{word}: no such disk"));
        Box::pin(async move { found.ok_or(missing) })
    }
}

/// The second line of the other table can't be opened.
#[test]
fn a_device_whose_other_table_fails_goes_on_with_its_caches() {
    let fixture = Fixture::new(1024, 2048, MANUAL);
    let tiny = {
        let (model, mut world) = (Uniform::new(3, 20_000, 60_000), fixture.world.borrow_mut());
        world.add_disk(DiskSpec::new("tiny", Sector(8), Box::new(model)))
    };
    let disks = [fixture.origin, fixture.cache, tiny].map(|file| fixture.leaf(file));
    let machine = Machine::boot(&fixture.world, 1);
    let done = machine.block_on(async move {
        let dm = Dm::new(Rc::new(Disks(disks.to_vec())));
        dm.register(TargetType::new(&writecache::MANUAL, |ctx, args| {
            Box::pin(async move {
                let words: Vec<&str> = args.iter().map(String::as_str).collect();
                let mut config = writecache::Config::parse(&words)?;
                config.write_buffer = 0;
                let origin = ctx.lookup(&config.origin).await?;
                let cache = ctx.lookup(&config.cache).await?;
                let target = WriteCache::new("wc", config, origin, cache, ctx.len())?;
                Ok(target as Rc<dyn Target>)
            })
        }));
        let line = |options: &str| {
            let count = options.split(' ').count();
            format!("0 4096 writecache s origin cache 4096 {count} {options}")
        };
        let first = format!("{}\n4096 4096 zero", line(MANUAL));
        let device = dm.create("d", None, Some(&first)).await.unwrap();
        fill(&*device, 0..100, 1).await;
        flush(&*device).await;
        // Opening the second one takes a while, and the first one is at work meanwhile.
        dm.create("slow", None, Some("0 8 delay tiny 0 500")).await.unwrap();
        dm.create("empty", None, Some("0 4096 zero")).await.unwrap();
        let other = format!("{}\n4096 4096 writecache s empty slow 4096 0", line(EAGER));
        dm.load("d", &other).await.unwrap();
        let e = dm.resume("d").await.unwrap_err().chain();
        assert!(e.contains("Invalid device size"), "{e}");
        dm.clear("d").await.unwrap();
        dm.resume("d").await.unwrap();
        expect(&*device, 0..100, 1).await;
        put(&*device, 5, 2).await.unwrap();
        flush(&*device).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
    let again = Fixture { sectors: Sector(4096), ..fixture.clone() };
    again
        .life(async |cache| {
            expect(&*cache, 0..5, 1).await;
            expect(&*cache, 5..6, 2).await;
            expect(&*cache, 6..100, 1).await;
        })
        .unwrap();
}
