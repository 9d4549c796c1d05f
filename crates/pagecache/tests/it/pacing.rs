// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writers that are faster than the device, on the whole cache in virtual time: their bandwidth,
//! how long each write waits, and how much is dirty. And readers: read-ahead, and what a scan
//! evicts.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Fixture, Rig, Shape, config};
use block::{BlockDevice, Buf, Bufs, Class, Flags, Nanos, OpenDevice, Opener, Sector};
use sim::model::FlashParams;
use sim::{DiskSpec, World};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const PAGE: u64 = 4096;

/// A disk that writes `bytes_per_s`, under a cache of 256 MiB.
fn lab(bytes_per_s: u64, options: &str) -> Fixture {
    let config = config(options, 256 * MIB, None);
    Fixture::new(World::calm(1), Shape::Plain, 4096 * 2048, config, |world, name, capacity| {
        let rates = FlashParams {
            read_bytes_per_s: bytes_per_s,
            write_bytes_per_s: bytes_per_s,
            ..FlashParams::sata()
        };
        let spec = DiskSpec::flash(name, capacity, rates);
        let spec = DiskSpec { keeps_history: false, keeps_data: false, ..spec };
        world.borrow_mut().add_disk(spec)
    })
}

/// Counts of a writer since the last look.
#[derive(Default)]
struct WriterCounts {
    bytes: Cell<u64>,
    longest_ns: Cell<u64>,
}

/// Writes `bytes` at a time, one after the other, until the time is up.
async fn write_on(
    device: Rc<dyn BlockDevice>,
    at: u64,
    bytes: u64,
    until: Nanos,
    seen: Rc<WriterCounts>,
) {
    let buf: Bufs = Buf::zeroed(usize::try_from(bytes).expect("small")).into();
    // Over 512 MiB, again and again.
    let mut offset = 0;
    while reactor::now() < until {
        let began = reactor::now();
        let sector = Sector::from_bytes(at + offset);
        let done = reactor::write(&*device, Flags::empty(), Class::Normal, sector, buf.clone());
        assert_eq!(done.await, Ok(()));
        // The copy takes time, 4 GB/s, or the clock would stand still.
        reactor::sleep(Nanos(bytes / 4)).await;
        let took = reactor::now().0 - began.0;
        seen.longest_ns.set(seen.longest_ns.get().max(took));
        seen.bytes.set(seen.bytes.get() + bytes);
        offset = (offset + bytes) % (512 * MIB);
    }
}

/// Bytes per second and the longest write of each writer, and how much was dirty at most and in the
/// mean, from second 20 to second 30.
async fn measure(rig: &Rig, sizes: &[u64]) -> (Vec<(u64, u64)>, u64, u64) {
    let seen: Vec<Rc<WriterCounts>> = sizes.iter().map(|_| Rc::default()).collect();
    let until = Nanos(30 * SECOND);
    for ((nth, bytes), seen) in (0u32..).zip(sizes).zip(&seen) {
        let device = Rc::new(OpenDevice::new(rig.device.clone(), Opener(nth + 1)));
        let at = u64::from(nth) * 1024 * MIB;
        reactor::spawn(write_on(device, at, *bytes, until, seen.clone()));
    }
    reactor::sleep(Nanos(20 * SECOND)).await;
    for seen in &seen {
        seen.bytes.set(0);
        seen.longest_ns.set(0);
    }
    let (mut most, mut sum) = (0, 0);
    for _ in 0..1000 {
        reactor::sleep(Nanos(10 * MS)).await;
        let dirty = rig.number("bandwidth", "dirty_bytes").await;
        most = most.max(dirty);
        sum += dirty;
    }
    let rates = seen.iter().map(|s| (s.bytes.get() / 10, s.longest_ns.get())).collect();
    reactor::sleep(Nanos(SECOND)).await;
    (rates, most, sum / 1000)
}

fn within(what: &str, value: u64, wanted: u64, percent: u64) {
    let off = value.abs_diff(wanted) * 100;
    assert!(off <= wanted * percent, "{what}: {value} is not within {percent} % of {wanted}");
}

#[test]
fn a_writer_gets_the_device_bandwidth_at_the_setpoint() {
    for mb_per_s in [10, 60] {
        let bandwidth = mb_per_s * 1_000_000;
        let lab = lab(bandwidth, "");
        lab.run(async move |rig| {
            let (writers, most, mean) = measure(&rig, &[65536]).await;
            let (rate, longest) = writers[0];
            let number = async |name| rig.number("bandwidth", name).await;
            let shown = number("write_bytes_per_s").await;
            println!("{mb_per_s} MB/s: {rate} B/s, shown {shown}, longest {longest} ns");
            within("rate", rate, bandwidth, 5);
            within("shown", shown, bandwidth, 10);
            // Two seconds of writes, no more, and in the mean those of the setpoint.
            assert!(most <= number("limit_bytes").await, "{most} bytes were dirty");
            within("limit", number("limit_bytes").await, 2 * bandwidth, 15);
            within("mean", mean, number("setpoint_bytes").await, 15);
            // A write is late by about its own part (no sleeps of 200 ms).
            let part_ns = 65536 * SECOND / bandwidth;
            assert!(longest < 4 * part_ns, "{longest} ns for a part of {part_ns} ns");
        });
    }
}

#[test]
fn writers_share_equally_whatever_the_size_of_their_writes() {
    let bandwidth = 60_000_000;
    lab(bandwidth, "").run(async move |rig| {
        let (writers, ..) = measure(&rig, &[4096, 65536, MIB]).await;
        println!("{writers:?}");
        for (rate, _) in writers {
            within("share", rate, bandwidth / 3, 12);
        }
    });
}

#[test]
fn dirty_bytes_bound_dirty_data_at_any_bandwidth() {
    let options = "dirty_bytes 8M dirty_background_bytes 4M";
    lab(20_000_000, options).run(async move |rig| {
        let (writers, most, _) = measure(&rig, &[65536, 65536]).await;
        assert!(most <= 8 * MIB + 65536, "{most} bytes were dirty");
        within("all", writers.iter().map(|(rate, _)| rate).sum(), 20_000_000, 5);
    });
}

/// Reads `pages` one after the other.
async fn read(rig: &Rig, pages: impl Iterator<Item = u64>) {
    let buf: Bufs = Buf::zeroed(4096).into();
    for page in pages {
        let at = Sector::from_bytes(page * PAGE);
        let done = reactor::read(&*rig.device, Class::Foreground, at, buf.clone()).await;
        assert_eq!(done, Ok(()));
        reactor::sleep(Nanos(20_000)).await;
    }
}

#[test]
fn read_ahead_serves_sequential_readers_only() {
    // 20 us a page are 200 MB/s.
    lab(500_000_000, "").run(async move |rig| {
        read(&rig, 0..8192).await;
        let misses = rig.number("cache_stat", "read_misses").await;
        assert!(misses < 60, "{misses} of 8192 reads waited");
        let ahead = rig.number("cache_stat", "readahead_bytes").await;
        let mut page = 1;
        let random = std::iter::repeat_with(|| {
            page = (page * 1_103_515_245 + 12_345) % (1 << 20);
            page
        });
        read(&rig, random.take(2000)).await;
        assert_eq!(rig.number("cache_stat", "readahead_bytes").await, ahead);
    });
}

#[test]
fn a_scan_of_four_times_the_memory_keeps_pages_in_use() {
    lab(2_000_000_000, "").run(async move |rig| {
        // 64 MiB in 16 pages of every 32, four times; then a gigabyte once.
        let hot = || (0..1024u64).flat_map(|n| n * 32..n * 32 + 16);
        for _ in 0..4 {
            read(&rig, hot()).await;
        }
        read(&rig, 100_000..100_000 + 262_144).await;
        let before = rig.number("cache_stat", "read_misses").await;
        read(&rig, hot()).await;
        let misses = rig.number("cache_stat", "read_misses").await - before;
        println!("{misses} of 16384 hot reads missed");
        assert!(misses < 500, "{misses} of 16384 hot reads missed");
    });
}
