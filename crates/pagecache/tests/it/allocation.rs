// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which runs read as zeroes, while pages are written back.
use std::cell::RefCell;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Nanos, Sector, Target};
use pagecache::{Config, Fault, PageCache};
use reactor::FileId;
use sim::model::Uniform;
use sim::{DiskSpec, HoleFinder, Machine, Rng, World, WorldRef};

const PAGES: u64 = 64;
const PAGE: usize = 4096;
const ALL: Sector = Sector(PAGES * 8);

fn page(nth: u64) -> Sector {
    Sector(nth * 8)
}

/// A cache over a disk that tells its holes.
fn cached(
    world: &WorldRef,
    fault: Option<Fault>,
    delays: impl Fn() -> [Nanos; 2] + 'static,
) -> (Machine, FileId, Rc<dyn Fn() -> Rc<PageCache>>) {
    let model = Uniform::new(1, 20_000, 600_000);
    let file = world.borrow_mut().add_disk(DiskSpec::new("disk", ALL, Box::new(model)));
    let machine = Machine::boot(world, 1);
    let disk = world.borrow().leaf(file);
    let below = HoleFinder::over(world, disk, delays);
    let make = move || {
        let mut config = Config::parse(&["0"]).unwrap();
        config.plant(fault);
        PageCache::new("cache", config, below.clone(), ALL).unwrap()
    };
    (machine, file, Rc::new(make))
}

async fn write(cache: &PageCache, nth: u64, byte: u8) {
    let data = Buf::copy_of(&[byte; PAGE]).into();
    reactor::write(cache, Flags::empty(), Class::Normal, page(nth), data).await.unwrap();
}

async fn flush(cache: &PageCache) {
    reactor::flush(cache, Class::Normal).await.unwrap();
}

/// A client writes, zeroes, flushes and asks. Whether all that was told to be zeroes was.
fn run(seed: u64) -> Option<u64> {
    let world = World::calm(seed);
    let delay = RefCell::new(Rng::new(seed));
    let any = move || Nanos(delay.borrow_mut().below(3_000_000));
    let (machine, _, make) = cached(&world, None, move || [any(), any()]);
    let done = machine.block_on(async move {
        let cache = make();
        cache.clone().resume().await.unwrap();
        let (mut rng, mut model, mut zero) = (Rng::new(seed), vec![0; 64], 0);
        for _ in 0..400 {
            let nth = rng.below(PAGES);
            match rng.below(10) {
                0..4 => {
                    let byte = u8::try_from(rng.below(3)).unwrap();
                    write(&cache, nth, byte).await;
                    model[usize::try_from(nth).unwrap()] = byte;
                }
                4 => {
                    let (class, none) = (Class::Normal, Flags::empty());
                    if reactor::write_zeroes(&*cache, none, class, page(nth), page(1)).await.is_ok()
                    {
                        model[usize::try_from(nth).unwrap()] = 0;
                    }
                }
                5 => {
                    let beside = cache.clone();
                    reactor::spawn(async move { flush(&beside).await });
                }
                _ => {
                    let len = rng.range(1, 1 + ALL.0 - nth * 8);
                    for (run, len) in cache.zero_runs(page(nth), Sector(len)).await {
                        for sector in run.0..(run + len).0 {
                            if model[usize::try_from(sector / 8).unwrap()] != 0 {
                                return None;
                            }
                            zero += 1;
                        }
                    }
                }
            }
        }
        cache.clone().suspend().await.unwrap();
        Some(zero)
    });
    machine.kill();
    done.expect("no power cut was planned")
}

#[test]
fn what_is_told_to_be_zeroes_reads_as_zeroes() {
    for seed in 1..=20 {
        assert!(run(seed).expect("a page with data") > 100, "seed {seed}");
    }
}

/// What is told of all pages when `beside` runs while the device below is asked.
fn told(
    fault: Option<Fault>,
    before: u8,
    delays: [Nanos; 2],
    beside: impl AsyncFnOnce(Rc<PageCache>, WorldRef, FileId) + 'static,
) -> Vec<(Sector, Sector)> {
    let world = World::calm(1);
    let (machine, file, make) = cached(&world, fault, move || delays);
    world.borrow_mut().poke(file, page(5), &[before; PAGE]);
    let done = machine.block_on(async move {
        let cache = make();
        cache.clone().resume().await.unwrap();
        if before == 0 {
            write(&cache, 5, 1).await;
        }
        let (zeroes, other) = (cache.zero_runs(Sector::ZERO, ALL), cache.clone());
        reactor::spawn(async move {
            reactor::sleep(Nanos::from_millis(1)).await;
            beside(other, world, file).await;
        });
        let found = zeroes.await;
        cache.clone().suspend().await.unwrap();
        found
    });
    machine.kill();
    done.expect("no power cut was planned")
}

fn all_but_page_5() -> Vec<(Sector, Sector)> {
    vec![(Sector::ZERO, page(5)), (page(6), page(PAGES - 6))]
}

/// The page is dirty when the question comes, and written back when the answer is given; the disk
/// was looked at before.
#[test]
fn zero_runs_that_look_at_the_pages_only_late_are_caught() {
    let told = |fault| {
        let delays = [Nanos::ZERO, Nanos::from_millis(50)];
        told(fault, 0, delays, async |cache, _, _| flush(&cache).await)
    };
    assert_eq!(told(None), all_but_page_5());
    assert_eq!(told(Some(Fault::ZeroRunsLookLate)), [(Sector::ZERO, ALL)]);
}

/// The page is written, and its write below fails and leaves zeroes, between question and answer.
#[test]
fn zero_runs_that_look_at_the_pages_only_early_are_caught() {
    let told = |fault| {
        let delays = [Nanos::from_millis(5), Nanos::ZERO];
        told(fault, 1, delays, async |cache, world, file| {
            write(&cache, 5, 2).await;
            world.borrow_mut().poke(file, page(5), &[0; PAGE]);
        })
    };
    assert_eq!(told(None), all_but_page_5());
    assert_eq!(told(Some(Fault::ZeroRunsLookEarly)), [(Sector::ZERO, ALL)]);
}
