// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle writeback: a device is filled, marked idle, written back under the clock, and read back.
//!
//! "Before" and "after" are the same code with other settings: one page a write and one write in
//! flight, as kernels did it for years, against the defaults.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Sector, Status, Target};
use reactor::WaitList;
use sim::Rng;
use zram::{Config, NoFiles, Zram};

use super::data::Data;
use super::place::Place;
use super::{PAGE_BYTES, PAGE_SECTORS};
use crate::cpu::cpu_seconds;

/// Block size of the plain sequential writes: the default batch.
pub const SEQUENTIAL_BYTES: usize = 128 << 10;
/// And their depth: the default number of batches in flight.
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
    /// Words of the table, by pairs.
    pub options: &'static [&'static str],
    /// Cores that the device is divided among.
    pub cores: usize,
    /// Every so many MiB one is read back and compared.
    pub compare_every: u64,
}

/// "Before".
pub const SINGLE: &[&str] = &["writeback_batch_size", "1", "writeback_inflight", "1"];
/// "After": the defaults.
pub const BATCHED: &[&str] = &[];
/// The defaults, several compressed objects to a block.
pub const PACKED: &[&str] = &["compressed_writeback", "1"];

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Written {
    pub s: f64,
    pub cpu_s: f64,
    /// Writes to the backing device, and their bytes.
    pub writes: u64,
    pub media_bytes: u64,
    /// Bytes of the objects before they were written back, and the memory they took.
    pub compr_bytes: u64,
    pub mem_bytes: u64,
    /// Reading back in order what is compared, pages a second.
    pub read_back_pages_per_s: f64,
}

/// A new device, resumed.
///
/// # Errors
/// Why there is none.
pub fn device(
    place: &impl Place,
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
    let mut given = place.cores();
    given.truncate(cores);
    let made = async move {
        let zram = Zram::new("bench", config, backing, given)?;
        zram.clone().resume().await.map(|()| zram)
    };
    place.finish(made)?.map_err(|e| e.chain())
}

/// Ends a device: what it has in flight, too.
///
/// # Errors
/// What it said.
pub fn end(place: &impl Place, zram: Rc<Zram>) -> Result<(), String> {
    place.finish(zram.suspend())?.map_err(|e| e.chain())
}

/// `cat ATTRIBUTE`, by its numbers.
///
/// # Errors
/// What the device said.
pub fn numbers(place: &impl Place, zram: &Rc<Zram>, attribute: &str) -> Result<Vec<u64>, String> {
    let text = place.finish(zram.clone().get_attribute(attribute.to_owned()))?;
    let text = text.map_err(|e| e.chain())?;
    let parsed = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
    parsed.map_err(|_| format!("{attribute}: {text}"))
}

fn set(place: &impl Place, zram: &Rc<Zram>, name: &str, value: &str) -> Result<(), String> {
    let done = zram.clone().set_attribute(name.to_owned(), value.to_owned());
    place.finish(done)?.map_err(|e| e.chain())
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

/// Writes page after page, each where `slots` says; the data are those of page `first` and on.
///
/// # Errors
/// What the device answered.
pub fn write_pages(
    place: &impl Place,
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
    let filled = place.finish(each(count, FILL_DEPTH, work))?;
    filled.map_err(|status| format!("fill: {status}"))
}

/// 0 to `pages`, shuffled.
pub fn shuffled(pages: u64) -> Vec<u32> {
    let mut slots: Vec<u32> = (0..u32::try_from(pages).expect("below 16 TiB")).collect();
    Rng::new(1).shuffle(&mut slots);
    slots
}

/// C1: reads a MiB of every `every`, and returns pages a second.
fn compare(place: &impl Place, zram: &Rc<Zram>, case: &Case) -> Result<f64, String> {
    let (device, data, every) = (zram.clone(), case.data, case.compare_every);
    let pieces = (case.pages / COMPARE_PAGES).div_ceil(every);
    let mut read_s = 0.0;
    for piece in 0..pieces {
        let first = piece * every * COMPARE_PAGES;
        let buf = Buf::alloc(PAGE_BYTES * usize::try_from(COMPARE_PAGES).expect("256"));
        let (device, at, into) = (device.clone(), Sector(first * PAGE_SECTORS), buf.all().into());
        let begin = place.now_s();
        let read =
            place.finish(async move { reactor::read(&*device, Class::Normal, at, into).await })?;
        read_s += place.now_s() - begin;
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
/// What a device answered when it was not what it should have been.
pub fn run(place: &impl Place, case: &Case) -> Result<Written, String> {
    run_on(place, place.disk(), case)
}

/// Runs a case with another way to the place's disk.
///
/// # Errors
/// What a device answered when it was not what it should have been.
pub fn run_on(
    place: &impl Place,
    backing: Rc<dyn BlockDevice>,
    case: &Case,
) -> Result<Written, String> {
    let size = (case.pages, case.cores);
    let zram = device(place, (case.algorithm, case.options), size, Some(backing))?;
    write_pages(place, zram.clone(), case.data, shuffled(case.pages), 0)?;
    let mm_stat = numbers(place, &zram, "mm_stat")?;
    set(place, &zram, "idle", "all")?;
    let before = place.written();
    let (begin, cpu_begin) = (place.now_s(), cpu_seconds());
    set(place, &zram, "writeback", "idle")?;
    let (s, cpu_s) = (place.now_s() - begin, cpu_seconds() - cpu_begin);
    let after = place.written();

    let (writes, media_bytes) = (after.0 - before.0, after.1 - before.1);
    let blocks = media_bytes / PAGE_BYTES as u64;
    let bd_stat = numbers(place, &zram, "bd_stat")?;
    if bd_stat != [blocks, 0, blocks] {
        return Err(format!("bd_stat is {bd_stat:?} after {blocks} blocks were written"));
    }
    if numbers(place, &zram, "mm_stat")?[1] != 0 {
        return Err("pages are in memory after they were written back".into());
    }
    let read_back_pages_per_s = compare(place, &zram, case)?;
    end(place, zram)?;
    let (compr_bytes, mem_bytes) = (mm_stat[1], mm_stat[2]);
    Ok(Written { s, cpu_s, writes, media_bytes, compr_bytes, mem_bytes, read_back_pages_per_s })
}

/// Writes so many bytes to the same disk, in order, as large and as many at once as batches are.
/// Returns seconds and CPU seconds.
///
/// # Errors
/// What the disk answered.
pub fn sequential(place: &impl Place, bytes: u64) -> Result<(f64, f64), String> {
    let disk = place.disk();
    let data = Buf::copy_of(&Data::Random.pages(0, SEQUENTIAL_BYTES / PAGE_BYTES));
    let work = move |nth: u64| {
        let at = Sector::from_bytes(nth * SEQUENTIAL_BYTES as u64);
        let (disk, data) = (disk.clone(), data.all().into());
        async move { reactor::write(&*disk, Flags::empty(), Class::Background, at, data).await }
    };
    let count = bytes / SEQUENTIAL_BYTES as u64;
    let (begin, cpu_begin) = (place.now_s(), cpu_seconds());
    let done = place.finish(each(count, SEQUENTIAL_DEPTH, work))?;
    done.map_err(|status| format!("sequential write: {status}"))?;
    Ok((place.now_s() - begin, cpu_seconds() - cpu_begin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compressed::place::Simulated;

    const PAGES: u64 = 4096;

    fn case(data: Data, options: &'static [&'static str]) -> Case {
        Case { data, pages: PAGES, algorithm: "lz4", options, cores: 1, compare_every: 1 }
    }

    fn simulated() -> Simulated {
        Simulated::new((PAGES + 1024) * PAGE_BYTES as u64)
    }

    #[test]
    fn batches_are_several_times_as_fast_as_pages_on_a_simulated_drive() {
        let place = simulated();
        for data in [Data::Random, Data::Half] {
            let single = run(&place, &case(data, SINGLE)).unwrap();
            let batched = run(&place, &case(data, BATCHED)).unwrap();
            assert_eq!((single.writes, batched.writes), (PAGES, PAGES / 32));
            assert!(single.s > 4.4 * batched.s, "{single:?} {batched:?}");
            let (plain_s, _) = sequential(&place, PAGES * PAGE_BYTES as u64).unwrap();
            assert!(batched.s < plain_s / 0.9, "{batched:?}, plain {plain_s} s");
        }
    }

    #[test]
    fn packed_writes_little_more_than_the_objects_have() {
        let place = simulated();
        for data in [Data::Half, Data::Mixed] {
            let packed = run(&place, &case(data, PACKED)).unwrap();
            let objects = packed.compr_bytes as f64;
            assert!((packed.media_bytes as f64) < objects * 1.1, "{data:?} {packed:?}");
            assert!(packed.media_bytes >= packed.compr_bytes, "{data:?} {packed:?}");
        }
    }
}
