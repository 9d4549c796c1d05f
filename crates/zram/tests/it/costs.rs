// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Costs of writeback and read-back, counted exactly: requests of the backing device a MiB, and
//! memory that is allocated.

use std::cell::RefCell;
use std::rc::Rc;

use crate::fixture::{self, PAGE, at, page, set};
use block::{
    Bio, BlockDevice, Buf, Class, CoreId, Flags, Limits, Nanos, Op, Ram, Sector, Status, Target,
};
use reactor::{Driver, Event, Msg, Reactor, Sqe};
use zram::{Config, NoFiles, Zram};

/// A driver without a device, whose clock goes from timer to timer.
#[derive(Default)]
struct Clock(Nanos);

impl Driver for Clock {
    fn now(&self) -> Nanos {
        self.0
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        assert!(batch.is_empty(), "no disks here");
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, deadline: Option<Nanos>, _out: &mut Vec<Event>) {
        self.0 = self.0.max(deadline.unwrap_or(self.0));
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// A device in memory that completes at once and records its requests.
struct Mem {
    ram: Ram,
    asked: RefCell<Vec<(Op, u64)>>,
}

impl Mem {
    /// Bytes of each request of a kind since this was last asked.
    fn asked(&self, op: Op) -> Vec<u64> {
        let asked = self.asked.take();
        asked.into_iter().filter(|(o, _)| *o == op).map(|(_, bytes)| bytes).collect()
    }
}

impl BlockDevice for Mem {
    fn name(&self) -> &str {
        "mem"
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector::from_bytes(self.ram.len() as u64))
    }
    fn submit(&self, bio: Bio) {
        self.asked.borrow_mut().push((bio.op, bio.len.bytes()));
        let from = usize::try_from(bio.sector.bytes()).unwrap();
        match bio.op {
            Op::Read => self.ram.read_bufs(from, &bio.bufs),
            Op::Write => self.ram.write_bufs(from, &bio.bufs),
            Op::Flush | Op::Discard | Op::WriteZeroes => {}
        }
        bio.complete(Status::Ok);
    }
}

/// A device of pages that half compress, on one in memory.
struct Bench {
    zram: Rc<Zram>,
    mem: Rc<Mem>,
    // Last, so that the others go while there is a core.
    reactor: Reactor,
}

impl Bench {
    fn new(slots: u64, packed: u8) -> Bench {
        let reactor = Reactor::enter(CoreId(0), Box::new(Clock::default()));
        let ram = Ram::new(slots * PAGE as u64 * 2).unwrap();
        let mem = Rc::new(Mem { ram, asked: RefCell::new(Vec::with_capacity(1 << 16)) });
        let packed = packed.to_string();
        let args = ["lz4", "4", "backing_dev", "mem", "compressed_writeback", &packed];
        let config = Config::parse(&args, Sector(slots * 8), &NoFiles).unwrap();
        let backing: Rc<dyn BlockDevice> = mem.clone();
        let zram = Zram::new("zram0", config, Some(backing), vec![CoreId(0)]).unwrap();
        let bench = Bench { zram, mem, reactor };
        bench.run(async move |zram| {
            zram.clone().resume().await.unwrap();
            for slot in 0..slots {
                let data = Buf::copy_of(&page(slot, 1, 500));
                let write =
                    reactor::write(&*zram, Flags::empty(), Class::Normal, at(slot), data.into());
                write.await.unwrap();
            }
        });
        bench
    }

    fn run(&self, work: impl AsyncFnOnce(Rc<Zram>) + 'static) {
        let zram = self.zram.clone();
        self.reactor.block_on(async move { work(zram).await });
    }

    /// How often this allocates.
    fn allocations(&self, work: impl AsyncFnOnce(Rc<Zram>) + 'static) -> u64 {
        allocation_counter::measure(|| self.run(work)).count_total
    }
}

#[test]
fn a_mebibyte_takes_eight_writes_and_fewer_when_packed() {
    // Packed: 62 objects of 2088 bytes a write.
    for (packed, writes) in [(0, 128), (1, 4096_usize.div_ceil(62))] {
        let bench = Bench::new(4096, packed);
        bench.run(async |zram| set(&zram, "writeback", "page_indexes=0-4095").await.unwrap());
        let asked = bench.mem.asked(Op::Write);
        assert_eq!(asked.len(), writes);
        assert!(asked[..writes - 1].iter().all(|bytes| *bytes == 128 << 10), "{asked:?}");
    }
}

#[test]
fn a_page_takes_one_read_and_a_mebibyte_eight_or_fewer() {
    for packed in [0, 1] {
        let bench = Bench::new(4096, packed);
        bench.run(async |zram| {
            set(&zram, "writeback", "page_indexes=0-4095").await.unwrap();
        });
        bench.mem.asked(Op::Write);
        bench.run(async |zram| drop(fixture::get(&*zram, 1000).await.unwrap()));
        let one = bench.mem.asked(Op::Read);
        assert!(one.len() == 1 && one[0] <= 8192, "{one:?}");
        bench.run(async |zram| drop(fixture::get_run(&*zram, 2048, 256).await.unwrap()));
        let many = bench.mem.asked(Op::Read);
        assert!(many.len() <= 8, "{many:?}");
    }
}

#[test]
fn writeback_allocates_nothing_a_page_once_it_runs() {
    for packed in [0, 1] {
        let bench = Bench::new(8192, packed);
        let write_back = |slots: &'static str| {
            bench.allocations(async move |zram| set(&zram, "writeback", slots).await.unwrap())
        };
        // Buffers and lists come about.
        write_back("page_indexes=0-1023");
        let few = write_back("page_indexes=1024-2047");
        let many = write_back("page_indexes=2048-8191");
        // What is left is the timer of a yield, one for 32 pages.
        assert!(many - few <= 5120 / 32 + 8, "{few} for 1024 pages, {many} for 6144");
    }
}

#[test]
fn writing_and_reading_allocates_nothing_for_any_page() {
    let bench = Bench::new(4096, 0);
    let pages: Vec<Buf> = (0..512)
        .map(|slot| {
            Buf::copy_of(&match slot % 3 {
                0 => page(slot, 2, 500),
                1 => fixture::noise(slot, 2),
                _ => vec![7; PAGE],
            })
        })
        .collect();
    let overwrite = |shift: usize| {
        let pages = pages.clone();
        bench.allocations(async move |zram| {
            for (slot, _) in (0..).zip(&pages) {
                let data = pages[(slot as usize + shift) % pages.len()].all();
                let none = Flags::empty();
                reactor::write(&*zram, none, Class::Normal, at(slot), data.clone().into())
                    .await
                    .unwrap();
                reactor::read(&*zram, Class::Normal, at(slot), data.into()).await.unwrap();
            }
        })
    };
    overwrite(0);
    // The same lengths again, and others.
    for shift in [0, 3, 1] {
        let count = overwrite(shift);
        assert!(count < 32, "{count} allocations for 512 writes and reads");
    }
}

#[test]
fn reading_back_allocates_nothing_a_page() {
    let bench = Bench::new(4096, 0);
    let read = |first: u64| {
        bench.allocations(async move |zram| {
            let buf = Buf::zeroed(PAGE);
            for slot in first..first + 512 {
                let read = reactor::read(&*zram, Class::Normal, at(slot), buf.all().into());
                read.await.unwrap();
            }
        })
    };
    bench.run(async |zram| set(&zram, "writeback", "page_indexes=0-4095").await.unwrap());
    read(0);
    let count = read(1024);
    assert!(count < 64, "{count} allocations for 512 pages");
}
