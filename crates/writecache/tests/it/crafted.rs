// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crafted images: good checksums over numbers that no cache counts to. They are refused by name,
//! by who opens them and by who surveys them, and nothing is changed; none makes anybody panic.

use std::rc::Rc;
use std::sync::Arc;

use crate::common::faulty_cache::life;
use crate::common::{self, Fixture, config, expect, fill, flush, number, say, suspend};
use block::{
    Bio, BlockDevice, Budget, Buf, Class, ErrorKind, Flags, Limits, Op as Request, Sector, Status,
    Target,
};
use format::{Entry, Geometry, Kind, Op, RecordHeader, SUPERBLOCK_COPIES, Superblock, UNIT};
use sim::Machine;
use writecache::{Depth, ProbeReport, WriteCache};

/// A cache with dirty blocks in three records.
fn used(options: &str) -> Fixture {
    let fixture = Fixture::small(options);
    let filled = fixture.life(async |cache| {
        for block in [0, 10, 20] {
            fill(&*cache, block..block + 5, 1).await;
            flush(&*cache).await;
        }
    });
    filled.unwrap();
    fixture
}

/// Changes all copies of the superblock alike.
fn forge_superblock(fixture: &Fixture, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = fixture.superblock();
    change(&mut superblock);
    for copy in 0..SUPERBLOCK_COPIES {
        let mut unit = [0; UNIT];
        superblock.encode(copy, &mut unit);
        fixture.poke_area(Geometry::superblock_offset(copy), &unit);
    }
}

/// Changes the newest record.
fn forge_record(fixture: &Fixture, change: impl FnOnce(&mut RecordHeader, &mut Vec<Entry>)) {
    let seq = fixture.last_record();
    let (mut header, mut entries) = fixture.record(seq).unwrap();
    change(&mut header, &mut entries);
    let mut unit = [0; UNIT];
    format::encode_record(&header, &entries, &mut unit);
    fixture.poke_area(fixture.geometry().log_offset(seq), &unit);
}

fn look(fixture: &Fixture) -> ProbeReport {
    let machine = Machine::boot(&fixture.world, 1);
    let (device, start): (Rc<dyn BlockDevice>, _) =
        (fixture.leaf(fixture.cache), fixture.config.start_sector);
    let found = machine.block_on(writecache::probe(device, start, Depth::Data));
    machine.kill();
    found.expect("no power cut was planned").unwrap()
}

fn is_refused(fixture: &Fixture, wanted: &str) {
    let before = fixture.image();
    let why = fixture.refusal();
    assert!(why.contains("cache device cache") && why.contains(wanted), "{why}, not {wanted}");
    let report = look(fixture);
    let reported = report.damage.iter().any(|found| found.what.contains(wanted));
    assert!(reported && report.occupancy().is_none(), "{wanted}: {report:?}");
    assert!(fixture.image() == before, "{wanted}: it was changed");
}

/// A life of it with everything in it: writes, FLUSH, writeback, a clean end.
fn is_used_on(fixture: &Fixture) {
    let lived = fixture.life(async move |cache| {
        for version in 2..5 {
            fill(&*cache, 0..30, version).await;
            flush(&*cache).await;
            say(&cache, "flush").await.unwrap();
        }
        expect(&*cache, 0..30, 4).await;
        suspend(&cache).await;
    });
    lived.unwrap();
}

const COUNTER_MAX: u64 = u64::MAX / 2;

type Change = fn(&mut Superblock, u64);
const COUNTERS: [(&str, u64, Change); 3] = [
    ("generation", 0, |s, n| s.generation = n),
    ("checkpoint id", 0, |s, n| s.checkpoint.id = n),
    ("log_start_seq", 1, |s, n| s.checkpoint.log_start_seq = n),
];

/// The story: `log_start_seq - 1`, and `+ 1` of each of the others, wrapped or panicked; and what
/// then failed an assertion ended the daemon with all of its devices, at each start again.
#[test]
fn counters_that_no_cache_reaches_are_refused_by_name() {
    for (name, least, change) in COUNTERS {
        let below = (least > 0).then_some(0);
        for n in below.into_iter().chain([COUNTER_MAX + 1, u64::MAX - 1, u64::MAX]) {
            let fixture = used("");
            forge_superblock(&fixture, |s| change(s, n));
            is_refused(&fixture, &format!("{name} is {n}, {least} to {COUNTER_MAX} are allowed"));
        }
    }
    for n in [COUNTER_MAX + 1, u64::MAX] {
        let fixture = used("");
        forge_record(&fixture, |header, _| header.incarnation = n);
        is_refused(
            &fixture,
            &format!("incarnation of a record is {n}, 0 to {COUNTER_MAX} are allowed"),
        );
    }
}

#[test]
fn the_last_counters_that_are_allowed_are_counted_on() {
    for (_, _, change) in COUNTERS {
        for options in ["", "ordered"] {
            let fixture = used(options);
            forge_superblock(&fixture, |s| change(s, COUNTER_MAX));
            is_used_on(&fixture);
        }
    }
    let fixture = used("");
    forge_record(&fixture, |header, _| header.incarnation = COUNTER_MAX);
    is_used_on(&fixture);
}

const EPOCH_MAX: u64 = format::BLOCK_LIMIT / 2;
const PENDING_MAX: u32 = (1 << 31) - 1;

/// The story: the first commit of a write panicked, because the number of the epoch, or of those
/// that are pending, was more than its field holds.
#[test]
fn epochs_of_writes_that_no_cache_reaches_are_refused() {
    let epoch = |block, slot| Entry { op: Op::Epoch, block, slot, crc: 0 };
    let most = u64::from(u32::MAX);
    for (number, pending) in [(EPOCH_MAX + 1, 0), (format::BLOCK_LIMIT - 1, 3)] {
        let fixture = used("ordered");
        forge_record(&fixture, |_, entries| entries[0] = epoch(number, pending));
        is_refused(&fixture, &format!("epoch of writes is {number}, 1 to {EPOCH_MAX} are allowed"));
    }
    for pending in [PENDING_MAX + 1, u32::MAX] {
        let fixture = used("ordered");
        forge_record(&fixture, |_, entries| entries[0] = epoch(most + 10, pending));
        is_refused(
            &fixture,
            &format!("pending epochs is {pending}, 0 to {PENDING_MAX} are allowed"),
        );
    }
    // The last that are allowed are counted on.
    for (number, pending) in [(EPOCH_MAX, 0), (EPOCH_MAX, PENDING_MAX), (3, 3)] {
        let fixture = used("ordered");
        forge_record(&fixture, |_, entries| entries[0] = epoch(number, pending));
        is_used_on(&fixture);
    }
}

/// The story: epochs that go back in the log left a block with two versions of one epoch, and when
/// its turn came to be written back that was an assertion.
#[test]
fn a_block_with_two_versions_of_one_epoch_is_refused() {
    let write = |op, slot| Entry { op, block: 50, slot, crc: format::checksum(&[0; 4096]) };
    let epoch = Entry::epoch(5, 5);
    for back in [5, 6] {
        let fixture = used("ordered");
        forge_record(&fixture, |_, entries| {
            *entries = vec![epoch, write(Op::Write, 30), write(Op::WriteNext, 31)];
            entries.extend([Entry::epoch(back, 5), write(Op::Write, 32)]);
        });
        match back {
            5 => is_refused(&fixture, "block 50: two versions of epoch 5"),
            _ => is_used_on(&fixture),
        }
    }
}

/// The story: that a checkpoint fits into its area was an assertion. A version of a pending epoch
/// takes two entries of it where the number of the epoch does not follow that of the one before,
/// which no cache makes of itself; nor does one format so small an area.
#[test]
fn a_checkpoint_that_does_not_fit_fails_only_the_cache() {
    const VERSIONS: u64 = 440;
    let mut fixture = Fixture::new(4_000, 1 << 10, "");
    fixture.config = config(512, "ordered high_watermark 100 low_watermark 100");
    fixture.life(async |_| ()).unwrap();
    forge_superblock(&fixture, |s| (s.slots, s.checkpoint_units, s.log_units) = (500, 3, 16));
    let (superblock, zeroes) = (fixture.superblock(), format::checksum(&[0; 512]));
    let header = RecordHeader {
        kind: Kind::Log,
        uuid: superblock.uuid,
        seq: 0,
        incarnation: 1,
        link: 0,
        flushed_seq: 0,
        count: 0,
    };
    let numbers: Vec<u64> = (0..VERSIONS).collect();
    let mut link = 0;
    for (seq, part) in (1..).zip(numbers.chunks(100)) {
        let version = |&n: &u64| {
            let write = Entry { op: Op::Write, block: n, slot: n as u32, crc: zeroes };
            [Entry::epoch(1 + 2 * n, 1), write]
        };
        let entries: Vec<Entry> = part.iter().flat_map(version).collect();
        let header = RecordHeader { seq, link, flushed_seq: seq - 1, ..header };
        let mut unit = [0; UNIT];
        link = format::encode_record(&header, &entries, &mut unit);
        fixture.poke_area(superblock.geometry().log_offset(seq), &unit);
    }
    life(&fixture, async |w| {
        w.origin.refuse(Request::Write, 0..4_000); // nothing leaves the cache
        assert_eq!(number(&w.cache, "dirty_blocks"), VERSIONS);
        let mut ended = Ok(());
        for block in 0..40 {
            let data = Buf::zeroed(512).all().into();
            let at = Sector(30_000 + block);
            let put = reactor::write(&*w.cache, Flags::FUA, Class::Normal, at, data).await;
            ended = ended.and(put);
        }
        assert_eq!(ended, Err(Status::NoSpace));
    });
    // Without the order it fits.
    fixture.config = config(512, "high_watermark 100 low_watermark 100");
    fixture
        .life(async |cache| {
            assert!(number(&cache, "dirty_blocks") >= VERSIONS);
            say(&cache, "flush").await.unwrap();
        })
        .unwrap();
}

/// The story, found by an attack from outside: the kernel's format has no checksum, and a cache
/// whose number of commits was the last that its superblock takes was opened and read; its first
/// commit failed an assertion, and with it the daemon and all of its devices.
#[test]
fn a_count_of_commits_without_headroom_is_refused() {
    use format::dm::{HEADER_BYTES, SEQ_COUNT_FOUND_MAX, Superblock};
    let fixture = used("format dm");
    let forge = |n: u64| {
        let header = fixture.area(0, HEADER_BYTES);
        let superblock = Superblock { seq_count: n, ..Superblock::decode(&header).unwrap() };
        let mut unit = fixture.area(0, UNIT);
        superblock.encode(&mut unit[..HEADER_BYTES]);
        fixture.poke_area(0, &unit);
    };
    for n in [SEQ_COUNT_FOUND_MAX + 1, (u64::MAX / 2) - 1, u64::MAX / 2] {
        forge(n);
        is_refused(
            &fixture,
            &format!("seq_count is {n}, at most {SEQ_COUNT_FOUND_MAX} is allowed"),
        );
    }
    forge(SEQ_COUNT_FOUND_MAX);
    is_used_on(&fixture);
}

/// The kernel's format with numbers at random in its header and entries, which no checksum covers:
/// each image is refused, or opened and used with errors at most. A panic would end the daemon.
#[test]
fn damaged_images_of_the_kernels_format_cause_no_panic() {
    sim::seeds::run(300, |seed| {
        let mut rng = sim::Rng::new(seed);
        let fixture = used("format dm");
        for _ in 0..=rng.below(3) {
            let mut unit = fixture.area(0, UNIT);
            let bytes = rng.pick(&[4, 8]);
            let places = rng.pick(&[24, 300]) / bytes;
            let at = 8 + rng.index(places) * bytes;
            let number = match rng.below(6) {
                0 => u64::MAX >> (64 - 8 * bytes),
                1 => (u64::MAX >> (65 - 8 * bytes)) - rng.below(2),
                2 => 1 << rng.below(8 * bytes as u64),
                3 => rng.next_u64(),
                4 => u64::MAX >> 2,
                _ => rng.below(3000),
            };
            unit[at..at + bytes].copy_from_slice(&number.to_le_bytes()[..bytes]);
            fixture.poke_area(0, &unit);
        }
        look(&fixture);
        let _ = fixture.life(async |cache| {
            for block in 0..40 {
                let _ = common::put(&*cache, block, 5).await;
            }
            let _ = reactor::flush(&*cache, Class::Foreground).await;
            let _ = say(&cache, "flush").await;
            let _ = Target::suspend(cache.clone()).await;
        });
        Ok(())
    });
}

/// A checkpoint names each slot once. One that names a slot again and again, with right checksums,
/// took memory for each version, without a bound but its area, and from 2^32 versions on ended in
/// an assertion.
#[test]
fn more_versions_than_a_log_can_have_are_refused() {
    const UNITS: u32 = 17;
    let fixture = used("");
    forge_superblock(&fixture, |s| {
        (s.slots, s.log_units, s.checkpoint_units) = (16, 16, UNITS + 3);
        (s.checkpoint.area, s.checkpoint.units, s.checkpoint.id) = (0, UNITS, 1);
    });
    let superblock = fixture.superblock();
    let start = superblock.geometry().checkpoint_offset(0);
    let mut header = RecordHeader {
        kind: Kind::Checkpoint,
        uuid: superblock.uuid,
        seq: 0,
        incarnation: 1,
        link: 0,
        flushed_seq: 0,
        count: 0,
    };
    let entries: Vec<Entry> =
        (0..252).map(|block| Entry { op: Op::Write, block, slot: 0, crc: 0 }).collect();
    for seq in 0..u64::from(UNITS) {
        let mut unit = [0; UNIT];
        header.seq = seq;
        header.link = format::encode_record(&header, &entries, &mut unit);
        fixture.poke_area(start + seq * UNIT as u64, &unit);
    }
    is_refused(&fixture, "more versions of blocks than slots and a log can tell of");
}

/// A device that has as many sectors as there can be, and no data.
struct Huge;

impl BlockDevice for Huge {
    fn name(&self) -> &str {
        "huge"
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector(1 << 54))
    }
    fn submit(&self, bio: Bio) {
        bio.complete(Status::Ok);
    }
}

/// A table over more blocks than the formats can number ended in an assertion when it was resumed,
/// after the magic was written; and in the kernel's format at the first write behind them.
#[test]
fn an_origin_with_too_many_blocks_is_refused() {
    let fixture = Fixture::small("");
    for (block_size, most) in [(512, 1_u64 << 48), (4096, 1 << 51)] {
        for format in ["native", "dm"] {
            let config = config(block_size, &format!("format {format}"));
            let cache = fixture.leaf(fixture.cache);
            let made = |sectors| {
                let (config, cache) = (config.clone(), cache.clone());
                WriteCache::new("wc", config, Rc::new(Huge), cache, Sector(sectors))
            };
            let block = u64::from(block_size / 512);
            assert!(made(most - block).is_ok(), "{block_size} {format}");
            let why = made(most).unwrap_err().to_string();
            let wanted = format!("less than {most} sectors are allowed");
            assert!(why.contains(&wanted), "{why}");
        }
    }
}

/// Long drops were counted as nothing: a crafted log of them took memory outside of the budget.
#[test]
fn long_drops_of_a_log_are_counted_against_the_budget() {
    const UNITS: u64 = 2000;
    let fixture = Fixture::new(256, 12 << 10, "");
    fixture.life(async |cache| suspend(&cache).await).unwrap();
    forge_superblock(&fixture, |s| (s.slots, s.log_units) = (16, 2048));
    let superblock = fixture.superblock();
    let mut header = RecordHeader {
        kind: Kind::Log,
        uuid: superblock.uuid,
        seq: superblock.checkpoint.log_start_seq,
        incarnation: 1,
        link: superblock.checkpoint.log_start_link,
        flushed_seq: 0,
        count: 0,
    };
    let entries: Vec<Entry> =
        (0..252).map(|block| Entry { op: Op::Drop, block, slot: 65, crc: 0 }).collect();
    for _ in 0..UNITS {
        let mut unit = [0; UNIT];
        let at = superblock.geometry().log_offset(header.seq);
        header.link = format::encode_record(&header, &entries, &mut unit);
        fixture.poke_area(at, &unit);
        header.flushed_seq = header.seq;
        header.seq += 1;
    }
    let opens_with = |fixture: &Fixture, bytes: u64| {
        let machine = Machine::boot(&fixture.world, 1);
        let target = fixture.target();
        let opened = machine.block_on(async move {
            reactor::set_memory(Arc::new(Budget::new(bytes, "a test")));
            target.resume().await
        });
        machine.kill();
        opened.unwrap()
    };
    // 504,000 drops: 64 MiB by what is counted for each.
    let why = opens_with(&fixture, 32 << 20).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::NoMemory, "{}", why.chain());
    opens_with(&fixture, 256 << 20).unwrap();
}
