// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle writeback: fills a device, marks its pages idle, measures their writeback, reads them back.
//!
//! "Before" and "after" are the same code with other settings: one page a write and one write in
//! flight, as kernels did for years, and the defaults.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Sector, Status, Target};
use reactor::WaitList;
use sim::Rng;
use zram::{Config, NoFiles, Zram};

use super::data::Data;
use super::platform::Platform;
use super::{PAGE_BYTES, PAGE_SECTORS};
use crate::cpu::cpu_seconds;

/// Block size of the plain sequential writes: the default batch.
pub const SEQUENTIAL_BYTES: usize = 128 << 10;
/// Depth of the plain sequential writes: the default number of batches in flight.
pub const SEQUENTIAL_DEPTH: usize = 16;
/// Writes in flight while filling.
const FILL_DEPTH: usize = 16;
/// Pages of one read while comparing: 1 MiB.
const COMPARE_PAGES: u64 = 256;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub data: Data,
    pub pages: u64,
    pub algorithm: &'static str,
    /// Options of the table, as pairs of name and value.
    pub options: &'static [&'static str],
    /// The number of cores that share the device.
    pub cores: usize,
    /// One MiB of so many is read back and compared.
    pub compare_every: u64,
}

/// "Before".
pub const SINGLE: &[&str] = &["writeback_batch_size", "1", "writeback_inflight", "1"];
/// "After": the defaults.
pub const BATCHED: &[&str] = &[];
/// The defaults, several compressed objects to a block.
pub const PACKED: &[&str] = &["compressed_writeback", "1"];

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WritebackResult {
    pub s: f64,
    pub cpu_s: f64,
    /// Writes to the backing device, and their bytes.
    pub writes: u64,
    pub media_bytes: u64,
    /// Bytes of the objects before writeback, and the memory that they took.
    pub compr_bytes: u64,
    pub mem_bytes: u64,
    /// Pages a second of reading back in order.
    pub read_back_pages_per_s: f64,
}

/// A new device, resumed.
///
/// # Errors
/// Why it could not be made.
pub fn device(
    platform: &impl Platform,
    (algorithm, options): (&str, &[&str]),
    (pages, cores): (u64, usize),
    backing: Option<Rc<dyn BlockDevice>>,
) -> Result<Rc<Zram>, String> {
    let mut words = options.to_vec();
    if backing.is_some() {
        words.extend(["backing_dev", "backing"]);
    }
    let count = words.len().to_string();
    let args = [&[algorithm, &count], &words[..]].concat();
    let len = Sector(pages * PAGE_SECTORS);
    let config = Config::parse(&args, len, &NoFiles).map_err(|e| e.chain())?;
    let mut on_cores = platform.cores();
    on_cores.truncate(cores);
    let made = async move {
        let zram = Zram::new("bench", config, backing, on_cores)?;
        zram.clone().resume().await.map(|()| zram)
    };
    platform.finish(made)?.map_err(|e| e.chain())
}

/// Suspends a device, which completes its requests in flight.
///
/// # Errors
/// The error of the device.
pub fn end(platform: &impl Platform, zram: Rc<Zram>) -> Result<(), String> {
    platform.finish(zram.suspend())?.map_err(|e| e.chain())
}

/// The numbers of an attribute.
///
/// # Errors
/// The error of the device.
pub fn numbers(
    platform: &impl Platform,
    zram: &Rc<Zram>,
    attribute: &str,
) -> Result<Vec<u64>, String> {
    let text = platform.finish(zram.clone().get_attribute(attribute.to_owned()))?;
    let text = text.map_err(|e| e.chain())?.to_string();
    let parsed = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
    parsed.map_err(|_| format!("{attribute}: {text}"))
}

fn set(platform: &impl Platform, zram: &Rc<Zram>, name: &str, value: &str) -> Result<(), String> {
    let done = zram.clone().set_attribute(name.to_owned(), value.to_owned());
    platform.finish(done)?.map_err(|e| e.chain())
}

/// Does `work` for each of `0..count`, `depth` at a time.
async fn each<Fut: Future<Output = Result<(), Status>> + 'static>(
    count: u64,
    depth: usize,
    work: impl Fn(u64) -> Fut + 'static,
) -> Result<(), Status> {
    let work = Rc::new(work);
    let (next, running) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(depth)));
    let (ended, outcome) = (Rc::new(WaitList::new()), Rc::new(Cell::new(Ok(()))));
    for _ in 0..depth {
        let (work, next, running) = (work.clone(), next.clone(), running.clone());
        let (ended, outcome) = (ended.clone(), outcome.clone());
        reactor::spawn(async move {
            loop {
                let nth = next.get();
                if nth >= count || outcome.get().is_err() {
                    break;
                }
                next.set(nth + 1);
                if let Err(status) = work(nth).await {
                    outcome.set(Err(status));
                }
            }
            running.set(running.get() - 1);
            ended.wake_all();
        });
    }
    ended.wait_for(|| running.get() == 0).await;
    outcome.get()
}

/// Writes a page at each of `slots`; slot n gets the data of page `first` + n.
///
/// # Errors
/// The error of the device.
pub fn write_pages(
    platform: &impl Platform,
    device: Rc<dyn BlockDevice>,
    data: Data,
    slots: Vec<u32>,
    first: u64,
) -> Result<(), String> {
    let count = slots.len() as u64;
    let work = move |nth: u64| {
        let slot = u64::from(slots[usize::try_from(nth).expect("an index of a vector")]);
        let buf = Buf::alloc(PAGE_BYTES);
        buf.write(|page| data.fill(first + slot, page));
        let at = Sector(slot * PAGE_SECTORS);
        let device = device.clone();
        async move {
            reactor::write(&*device, Flags::empty(), Class::Normal, at, buf.all().into()).await
        }
    };
    let filled = platform.finish(each(count, FILL_DEPTH, work))?;
    filled.map_err(|status| format!("fill: {status}"))
}

/// The numbers `0..pages`, shuffled.
pub fn shuffled(pages: u64) -> Vec<u32> {
    let mut slots: Vec<u32> = (0..u32::try_from(pages).expect("below 16 TiB")).collect();
    Rng::new(1).shuffle(&mut slots);
    slots
}

/// RP-C1: reads and compares one MiB of `compare_every`, and returns pages a second.
fn compare(platform: &impl Platform, zram: &Rc<Zram>, case: &Case) -> Result<f64, String> {
    let (device, data, every) = (zram.clone(), case.data, case.compare_every);
    let pieces = (case.pages / COMPARE_PAGES).div_ceil(every);
    let mut read_s = 0.0;
    for piece in 0..pieces {
        let first = piece * every * COMPARE_PAGES;
        let buf = Buf::alloc(PAGE_BYTES * usize::try_from(COMPARE_PAGES).expect("256"));
        let (device, at, into) = (device.clone(), Sector(first * PAGE_SECTORS), buf.all().into());
        let begin = platform.now_s();
        let read = platform
            .finish(async move { reactor::read(&*device, Class::Normal, at, into).await })?;
        read_s += platform.now_s() - begin;
        read.map_err(|status| format!("reading back: {status}"))?;
        let wanted = data.pages(first, buf.len() / PAGE_BYTES);
        if !buf.read(|found| found == wanted) {
            return Err(format!("pages {first} and on are not what was written"));
        }
    }
    Ok((pieces * COMPARE_PAGES) as f64 / read_s)
}

/// Runs a case.
///
/// # Errors
/// An unexpected answer of a device.
pub fn run(platform: &impl Platform, case: &Case) -> Result<WritebackResult, String> {
    run_on(platform, platform.disk(), case)
}

/// Runs a case with this device in front of the platform's disk.
///
/// # Errors
/// An unexpected answer of a device.
pub fn run_on(
    platform: &impl Platform,
    backing: Rc<dyn BlockDevice>,
    case: &Case,
) -> Result<WritebackResult, String> {
    let size = (case.pages, case.cores);
    let zram = device(platform, (case.algorithm, case.options), size, Some(backing))?;
    write_pages(platform, zram.clone(), case.data, shuffled(case.pages), 0)?;
    let mm_stat = numbers(platform, &zram, "mm_stat")?;
    set(platform, &zram, "idle", "all")?;
    let before = platform.written();
    let (begin, cpu_begin) = (platform.now_s(), cpu_seconds());
    set(platform, &zram, "writeback", "idle")?;
    let (s, cpu_s) = (platform.now_s() - begin, cpu_seconds() - cpu_begin);
    let after = platform.written();

    let (writes, media_bytes) = (after.0 - before.0, after.1 - before.1);
    let blocks = media_bytes / PAGE_BYTES as u64;
    let bd_stat = numbers(platform, &zram, "bd_stat")?;
    if bd_stat != [blocks, 0, blocks] {
        return Err(format!("bd_stat is {bd_stat:?} after {blocks} blocks were written"));
    }
    if numbers(platform, &zram, "mm_stat")?[1] != 0 {
        return Err("pages are in memory after they were written back".into());
    }
    let read_back_pages_per_s = compare(platform, &zram, case)?;
    end(platform, zram)?;
    let (compr_bytes, mem_bytes) = (mm_stat[1], mm_stat[2]);
    Ok(WritebackResult {
        s,
        cpu_s,
        writes,
        media_bytes,
        compr_bytes,
        mem_bytes,
        read_back_pages_per_s,
    })
}

/// Writes `bytes` to the same disk in order, with the size and depth of batches. Returns seconds
/// and CPU seconds.
///
/// # Errors
/// The error of the disk.
pub fn sequential(platform: &impl Platform, bytes: u64) -> Result<(f64, f64), String> {
    let disk = platform.disk();
    let data = Buf::copy_of(&Data::Random.pages(0, SEQUENTIAL_BYTES / PAGE_BYTES));
    let work = move |nth: u64| {
        let at = Sector::from_bytes(nth * SEQUENTIAL_BYTES as u64);
        let (disk, data) = (disk.clone(), data.all().into());
        async move { reactor::write(&*disk, Flags::empty(), Class::Background, at, data).await }
    };
    let count = bytes / SEQUENTIAL_BYTES as u64;
    let (begin, cpu_begin) = (platform.now_s(), cpu_seconds());
    let done = platform.finish(each(count, SEQUENTIAL_DEPTH, work))?;
    done.map_err(|status| format!("sequential write: {status}"))?;
    Ok((platform.now_s() - begin, cpu_seconds() - cpu_begin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compressed::platform::Simulated;

    const PAGES: u64 = 4096;

    fn case(data: Data, options: &'static [&'static str]) -> Case {
        Case { data, pages: PAGES, algorithm: "lz4", options, cores: 1, compare_every: 1 }
    }

    fn simulated() -> Simulated {
        Simulated::new((PAGES + 1024) * PAGE_BYTES as u64)
    }

    #[test]
    fn batches_are_several_times_as_fast_as_single_pages() {
        let platform = simulated();
        for data in [Data::Random, Data::Half] {
            let single = run(&platform, &case(data, SINGLE)).unwrap();
            let batched = run(&platform, &case(data, BATCHED)).unwrap();
            assert_eq!((single.writes, batched.writes), (PAGES, PAGES / 32));
            assert!(single.s > 4.4 * batched.s, "{single:?} {batched:?}");
            let (plain_s, _) = sequential(&platform, PAGES * PAGE_BYTES as u64).unwrap();
            assert!(batched.s < plain_s / 0.9, "{batched:?}, plain {plain_s} s");
        }
    }

    #[test]
    fn packed_writes_little_more_than_the_objects_have() {
        let platform = simulated();
        for data in [Data::Half, Data::Mixed] {
            let packed = run(&platform, &case(data, PACKED)).unwrap();
            let objects = packed.compr_bytes as f64;
            assert!((packed.media_bytes as f64) < objects * 1.1, "{data:?} {packed:?}");
            assert!(packed.media_bytes >= packed.compr_bytes, "{data:?} {packed:?}");
        }
    }
}
