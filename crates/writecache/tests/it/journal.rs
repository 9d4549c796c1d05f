// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal in memory, step by step: what is applied, what is ignored and why, what refuses the
//! opening, and what a journal costs. What random lives find is in `tests/crash`.
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::common::{BLOCK, Fixture, at, expect, fill, flush, get, number, pattern, put, suspend};
use block::{Budget, Bufs, Class, Error, Flags, Op, Sector, Status, Target};
use format::{
    Entry, JOURNAL_PREFIX, JournalChange, JournalEntry, JournalHeader, UNIT, journal_offset,
};
use sim::{DiskStats, Faults, Machine};
use writecache::{CacheEvent, Fault, IgnoredJournal, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Entries of the journals here.
const CAPACITY: u64 = 200;

/// A machine with shared memory.
fn fixture(options: &str) -> Fixture {
    let mut fixture = Fixture::small(&format!("{MANUAL} {options}"));
    fixture.config.set_journal_capacity(CAPACITY);
    fixture.world.borrow_mut().share_memory();
    fixture
}

/// One life, and what it has reported of journals.
pub(crate) fn life_with_events<T: 'static>(
    fixture: &Fixture,
    work: impl AsyncFnOnce(Rc<WriteCache>) -> T + 'static,
) -> (Result<T, Error>, Vec<CacheEvent>) {
    let machine = Machine::boot(&fixture.world, 1);
    let target = fixture.target();
    let events = Rc::new(RefCell::new(Vec::new()));
    let list = events.clone();
    let is_of_journal = |event: &CacheEvent| {
        use CacheEvent::{JournalApplied, JournalIgnored, NoJournal};
        matches!(event, JournalApplied { .. } | JournalIgnored { .. } | NoJournal)
    };
    target.on_event(move |event| {
        if is_of_journal(&event) {
            list.borrow_mut().push(event);
        }
    });
    let done = machine.block_on(async move {
        target.clone().resume().await?;
        Ok(work(target).await)
    });
    machine.kill();
    let events = events.take();
    (done.unwrap(), events)
}

pub(crate) fn applied(changes: u64) -> Vec<CacheEvent> {
    vec![CacheEvent::JournalApplied { changes }]
}

pub(crate) fn ignored(changes: u64, why: IgnoredJournal) -> Vec<CacheEvent> {
    vec![CacheEvent::JournalIgnored { changes, why }]
}

/// The bytes of the cache's journal.
fn journal(fixture: &Fixture) -> Rc<RefCell<Vec<u8>>> {
    let memories = fixture.world.borrow().memories().unwrap();
    let [name] = &memories.names()[..] else { panic!("one cache, one journal") };
    assert!(name.starts_with(JOURNAL_PREFIX), "{name}");
    memories.contents(name).unwrap()
}

fn header(fixture: &Fixture) -> JournalHeader {
    JournalHeader::decode(&journal(fixture).borrow()[..UNIT]).expect("a journal")
}

fn put_header(fixture: &Fixture, header: &JournalHeader) {
    header.encode(&mut journal(fixture).borrow_mut()[..UNIT]);
}

/// Stores an entry as a process would that has all others.
fn put_entry(fixture: &Fixture, seq: u64, entry: Entry) {
    let JournalHeader { incarnation, capacity, .. } = header(fixture);
    let change = Some(JournalChange { entry, epoch: 0, oldest: 0 });
    let bytes = JournalEntry { seq, start: 1, change }.encode(incarnation);
    let offset = usize::try_from(journal_offset(seq, capacity)).unwrap();
    journal(fixture).borrow_mut()[offset..offset + bytes.len()].copy_from_slice(&bytes);
}

/// The same journal under another header: its entries are of the same incarnation as it.
fn with_incarnation(fixture: &Fixture, incarnation: u64, changes: u64) {
    let old = header(fixture);
    for seq in 1..=changes {
        let offset = usize::try_from(journal_offset(seq, old.capacity)).unwrap();
        let memory = journal(fixture);
        let mut memory = memory.borrow_mut();
        let bytes = &mut memory[offset..offset + format::JOURNAL_ENTRY_BYTES];
        let entry = JournalEntry::decode(bytes, old.incarnation).unwrap().expect("an entry");
        bytes.copy_from_slice(&entry.encode(incarnation));
    }
    put_header(fixture, &JournalHeader { incarnation, ..old });
}

/// Blocks 0 to 4 were acknowledged, and no FLUSH followed.
pub(crate) fn killed(options: &str) -> Fixture {
    let fixture = fixture(options);
    fixture.life(async |cache| fill(&*cache, 0..5, 1).await).unwrap();
    fixture
}

#[test]
fn what_a_killed_process_has_acknowledged_is_there() {
    for options in ["", "ordered"] {
        let fixture = killed(options);
        let (opened, events) =
            life_with_events(&fixture, async |cache| expect(&*cache, 0..5, 1).await);
        opened.unwrap();
        assert_eq!(events, applied(5), "{options}");
        let (_, events) = life_with_events(&fixture, async |cache| expect(&*cache, 0..5, 1).await);
        assert_eq!(events, [], "{options}: the opening has made it durable");
    }
}

/// WC-JR4, attack 3, break 1: a copy of the cache device, and both are used in one run directory.
/// Returns what the original had acknowledged and what its next process finds of it.
fn copied(fault: Option<Fault>) -> bool {
    // The data of the copy are in a write buffer, which would be shared, too.
    let options = "write_buffer 1M";
    let mut original = fixture(options);
    original.life(async |_| ()).unwrap();
    let options = &format!("{MANUAL} {options}");
    let mut copy = Fixture::within(original.world.clone(), 7, 256, 1024, options);
    copy.config.set_journal_capacity(CAPACITY);
    (original.config.cache, copy.config.cache) = ("./c1.img".to_owned(), "./c2.img".to_owned());
    copy.poke_area(0, &original.image());
    original.config.plant(fault);
    copy.config.plant(fault);
    let second = copy.target();
    let shared = original.life(async move |first| {
        fill(&*first, 0..5, 1).await;
        flush(&*first).await;
        let opened = second.clone().resume().await;
        if opened.is_ok() {
            fill(&*second, 0..9, 2).await;
            return true;
        }
        let why = opened.unwrap_err();
        assert_eq!(why.kind(), block::ErrorKind::Busy);
        let why = why.chain();
        for part in
            ["device ./c2.img", "cache on ./c1.img", "memory journal-", "Remove", "--run-dir"]
        {
            assert!(why.contains(part), "{part}: {why}");
        }
        // The way out.
        suspend(&first).await;
        second.clone().resume().await.unwrap();
        fill(&*second, 0..9, 2).await;
        let why = first.clone().resume().await.unwrap_err().chain();
        assert!(why.contains("cache on ./c2.img"), "{why}");
        suspend(&second).await;
        // A table of its own may take it while the suspended one is there.
        first.clone().resume().await.unwrap();
        fill(&*first, 5..7, 1).await;
        false
    });
    let is_right = original.life(async |cache| {
        let mut good = true;
        for block in 0..5 {
            good &= get(&*cache, block).await == Ok(pattern(block, 1));
        }
        // Nor has it entries of the copy behind its own.
        for block in 7..9 {
            good &= get(&*cache, block).await != Ok(pattern(block, 2));
        }
        good
    });
    shared.unwrap();
    is_right.unwrap()
}

#[test]
fn a_copy_of_a_cache_does_not_share_its_journal() {
    assert!(copied(None), "blocks that were made durable have other data");
    assert!(!copied(Some(Fault::JournalNotLocked)), "it was not found");
}

/// The opening is refused with a message that has all `parts`, and changes nothing.
fn is_refused(fixture: &Fixture, parts: &[&str]) {
    let (image, bytes) = (fixture.image(), journal(fixture).borrow().clone());
    let why = fixture.refusal();
    let memories = fixture.world.borrow().memories().unwrap();
    let name = memories.names().remove(0);
    for part in [&["cache device cache", &name][..], parts].concat() {
        assert!(why.contains(part), "{part:?} is not in: {why}");
    }
    assert!(fixture.image() == image, "the cache was changed: {why}");
    assert!(*journal(fixture).borrow() == bytes, "the journal was changed: {why}");
}

#[test]
fn a_journal_with_a_gap_refuses_the_opening() {
    let fixture = killed("");
    let offset = usize::try_from(journal_offset(3, CAPACITY)).unwrap();
    journal(&fixture).borrow_mut()[offset + 17] ^= 1;
    is_refused(&fixture, &["can't be used"]);
}

#[test]
fn a_journal_of_what_the_cache_does_not_have_is_refused() {
    let fixture = killed("");
    let slots = fixture.superblock().slots;
    let entry = |block, slot| Entry { op: format::Op::Write, block, slot, crc: 1 };
    for wrong in [entry(256, 1), entry(9, slots), Entry { op: format::Op::Drop, ..entry(250, 7) }] {
        put_entry(&fixture, 6, wrong);
        is_refused(&fixture, &["change 6 is about block", "256 blocks"]);
    }
    put_entry(&fixture, 6, entry(255, slots - 1));
    fixture.life(async |cache| expect(&*cache, 0..5, 1).await).unwrap();
}

#[test]
fn a_journal_of_another_cache_boot_or_opening_is_ignored() {
    use IgnoredJournal::{Newer, Older, OtherBoot, OtherCache};
    for why in [OtherCache, OtherBoot, Older, Newer] {
        let fixture = killed("");
        let header = header(&fixture);
        match why {
            OtherCache => put_header(&fixture, &JournalHeader { uuid: [7; 16], ..header }),
            OtherBoot => put_header(&fixture, &JournalHeader { boot_id: [7; 16], ..header }),
            Older => with_incarnation(&fixture, header.incarnation - 1, 5),
            Newer => with_incarnation(&fixture, header.incarnation + 1, 5),
            IgnoredJournal::Damaged { .. } => unreachable!("it has a test of its own"),
        }
        let (opened, events) =
            life_with_events(&fixture, async |cache| has_nothing_of(&cache, 0..5).await);
        opened.unwrap();
        assert_eq!(events, ignored(5, why));
    }
}

/// Nothing was ever written there.
async fn has_nothing_of(cache: &Rc<WriteCache>, blocks: std::ops::Range<u64>) {
    for block in blocks {
        assert_eq!(get(&**cache, block).await, Ok(vec![0; BLOCK]), "block {block}");
    }
}

#[test]
fn a_journal_without_changes_or_header_is_no_news() {
    let fixture = killed("");
    journal(&fixture).borrow_mut()[..UNIT].fill(0);
    let (opened, events) =
        life_with_events(&fixture, async |cache| has_nothing_of(&cache, 0..5).await);
    opened.unwrap();
    assert_eq!(events, [], "a blank header");
    let fixture = killed("");
    journal(&fixture).borrow_mut()[20] ^= 1;
    journal(&fixture).borrow_mut()[UNIT..].fill(0); // before the header, as a process does
    let (opened, events) = life_with_events(&fixture, async |_| ());
    opened.unwrap();
    assert_eq!(events, [], "a torn header");
    let fixture = killed("");
    fixture
        .life(async |cache| {
            fill(&*cache, 0..5, 2).await;
            suspend(&cache).await;
        })
        .unwrap();
    let (opened, events) = life_with_events(&fixture, async |cache| expect(&*cache, 0..5, 2).await);
    opened.unwrap();
    assert_eq!(events, [], "a journal without changes");
}

fn in_directory(fixture: &Fixture, directory: Option<u32>) {
    fixture.world.borrow_mut().use_memory(directory);
}

/// The process between had other memory, or none: what it has changed counts, and the journal of
/// before names slots that may hold other blocks now.
fn an_old_journal_is_not_believed(between: Option<u32>, fault: Option<Fault>) -> bool {
    let mut fixture = killed("");
    fixture.config.plant(fault);
    in_directory(&fixture, between);
    fixture.life(async |cache| fill(&*cache, 10..15, 2).await).unwrap();
    in_directory(&fixture, Some(0));
    let (old, events) = life_with_events(&fixture, async |cache| {
        let mut is_old = true;
        for block in 0..5 {
            is_old &= get(&*cache, block).await == Ok(vec![0; BLOCK]);
        }
        is_old
    });
    old.is_ok_and(|is_old| is_old) && events == ignored(5, IgnoredJournal::Older)
}

#[test]
fn a_journal_from_before_other_changes_is_not_believed() {
    assert!(an_old_journal_is_not_believed(Some(1), None), "the other one had other memory");
    assert!(an_old_journal_is_not_believed(None, None), "the other one had no memory");
    for fault in [Fault::JournalOfOlderOpening, Fault::ChangeBeforeRecord] {
        assert!(!an_old_journal_is_not_believed(Some(1), Some(fault)), "{fault:?} was not found");
    }
}

/// What a client has read and then flushed is not undone by a journal that is found later.
#[test]
fn a_flush_of_what_was_read_ends_journals_of_before() {
    for between in [Some(1), None] {
        let fixture = killed("");
        in_directory(&fixture, between);
        let read = async |cache: Rc<WriteCache>| {
            has_nothing_of(&cache, 0..5).await;
            flush(&*cache).await;
        };
        fixture.life(read).unwrap();
        in_directory(&fixture, Some(0));
        fixture.life(async |cache| has_nothing_of(&cache, 0..5).await).unwrap();
    }
}

/// What a process has had before its first change does not count as one: whoever comes next still
/// has the journal.
#[test]
fn an_opening_without_requests_leaves_the_journal_good() {
    for between in [Some(1), None] {
        let fixture = killed("");
        in_directory(&fixture, between);
        fixture.life(async |_| ()).unwrap();
        in_directory(&fixture, Some(0));
        let (_, events) = life_with_events(&fixture, async |cache| expect(&*cache, 0..5, 1).await);
        assert_eq!(events, applied(5));
    }
}

/// A reader has got the versions before: they may not be replaced without a write.
#[test]
fn a_read_by_an_opening_without_the_journal_ends_it() {
    for between in [Some(1), None] {
        let fixture = killed("");
        in_directory(&fixture, between);
        fixture.life(async |cache| has_nothing_of(&cache, 0..5).await).unwrap();
        in_directory(&fixture, Some(0));
        let (_, events) =
            life_with_events(&fixture, async |cache| has_nothing_of(&cache, 0..5).await);
        let ignored = CacheEvent::JournalIgnored { why: IgnoredJournal::Older, changes: 5 };
        assert_eq!(events, [ignored]);
    }
}

/// WC-J3: a flush has failed.
#[test]
fn a_cache_that_has_failed_leaves_no_journal() {
    let life = |fault| {
        let mut fixture = fixture("");
        fixture.config.plant(fault);
        let inner = fixture.clone();
        let failed = fixture.life(async move |cache| {
            fill(&*cache, 0..5, 1).await;
            let faults = Faults { flush_error_per_mille: 1000, ..Faults::default() };
            inner.world.borrow_mut().set_faults(inner.cache, faults);
            let failed = reactor::flush(&*cache, Class::Foreground).await;
            assert_eq!(text(&cache, "journal"), "none: the cache has failed");
            inner.world.borrow_mut().set_faults(inner.cache, Faults::default());
            failed
        });
        assert_eq!(failed.unwrap(), Err(Status::Io));
        life_with_events(&fixture, async |_| ()).1
    };
    assert_eq!(life(None), []);
    assert_eq!(life(Some(Fault::JournalKeptAfterFailure)), applied(5), "it was not found");
}

/// WC-J3: what the device has refused is in the journal and in its frames, as after a kill.
#[test]
fn a_cache_whose_device_refuses_writes_leaves_its_journal() {
    for suspends in [true, false] {
        let fixture = fixture("write_buffer 65536");
        let inner = fixture.clone();
        let failed = fixture.life(async move |cache| {
            fill(&*cache, 0..5, 1).await;
            flush(&*cache).await;
            let faults = Faults { write_error_per_mille: 1000, ..Faults::default() };
            inner.world.borrow_mut().set_faults(inner.cache, faults);
            fill(&*cache, 0..5, 2).await;
            let failed = reactor::flush(&*cache, Class::Foreground).await;
            assert_eq!(number(&cache, "unwritten_blocks"), 5);
            assert_eq!(text(&cache, "journal"), "in memory");
            if suspends {
                cache.clone().suspend().await.unwrap();
            }
            inner.world.borrow_mut().set_faults(inner.cache, Faults::default());
            failed
        });
        assert_eq!(failed.unwrap(), Err(Status::Io));
        let next = async |cache: Rc<WriteCache>| expect(&*cache, 0..5, 2).await;
        let (_, events) = life_with_events(&fixture, next);
        assert_eq!(events, applied(5), "suspended: {suspends}");
    }
}

fn text(cache: &WriteCache, name: &str) -> String {
    cache.attribute(name).unwrap().to_string()
}

#[test]
fn a_cache_without_memory_for_a_journal_works() {
    let mut fixture = fixture("");
    fixture.config.set_journal_capacity(1 << 17);
    let (machine, target) = (Machine::boot(&fixture.world, 1), fixture.target());
    let events = Rc::new(RefCell::new(Vec::new()));
    let list = events.clone();
    target.on_event(move |event| list.borrow_mut().push(event));
    let done = machine.block_on(async move {
        reactor::set_memory(Arc::new(Budget::new(1 << 20, "a test")));
        target.clone().resume().await.unwrap();
        let why = text(&target, "journal");
        for part in ["none: ", "the journal memory journal-", " needs 6.0 MiB of memory"] {
            assert!(why.contains(part), "{part:?} is not in: {why}");
        }
        fill(&*target, 0..9, 1).await;
        flush(&*target).await;
        fill(&*target, 9..12, 1).await;
    });
    machine.kill();
    done.unwrap();
    assert_eq!(*events.borrow(), [CacheEvent::NoJournal]);
    fixture.life(async |cache| expect(&*cache, 0..9, 1).await).unwrap();
}

/// Nothing but the journal asks for commits here.
#[test]
fn a_full_journal_makes_commits_and_loses_nothing() {
    let mut fixture = Fixture::new(256, 4096, MANUAL);
    fixture.config.set_journal_capacity(70);
    fixture.world.borrow_mut().share_memory();
    let inner = fixture.clone();
    let (commits, most) = fixture
        .life(async move |cache| {
            let before = inner.world.borrow().stats(inner.cache).flushes;
            let mut most = 0;
            for version in 1..4 {
                for block in 0..256 {
                    put(&*cache, block, version).await.unwrap();
                    most = most.max(number(&cache, "journal_changes"));
                }
            }
            (inner.world.borrow().stats(inner.cache).flushes - before, most)
        })
        .unwrap();
    assert!((768 / 70..768 / 10).contains(&commits), "{commits} commits");
    assert!((30..70).contains(&most), "at most {most} changes were in the journal");
    fixture.life(async |cache| expect(&*cache, 0..256, 3).await).unwrap();
}

/// What `work` asks the cache device for, after `prepare`.
fn cost_of(
    prepare: impl AsyncFnOnce(Rc<WriteCache>) + 'static,
    work: impl AsyncFnOnce(Rc<WriteCache>) + 'static,
) -> DiskStats {
    let fixture = fixture("");
    let inner = fixture.clone();
    let cost = fixture.life(async move |cache| {
        prepare(cache.clone()).await;
        let stats = || inner.world.borrow().stats(inner.cache);
        let before = stats();
        work(cache).await;
        let DiskStats { writes, write_bytes, flushes, reads, .. } = stats();
        DiskStats {
            writes: writes - before.writes,
            write_bytes: write_bytes - before.write_bytes,
            flushes: flushes - before.flushes,
            reads: reads - before.reads,
            ..DiskStats::default()
        }
    });
    cost.unwrap()
}

fn writes(blocks: u64, flushes: u64) -> DiskStats {
    let write_bytes = blocks * BLOCK as u64;
    DiskStats { writes: blocks, write_bytes, flushes, ..DiskStats::default() }
}

#[test]
fn a_write_with_a_journal_costs_one_write_as_before() {
    let first = cost_of(async |_| (), async |cache| fill(&*cache, 7..8, 1).await);
    assert_eq!(first, writes(2, 1), "the first change costs a record and a flush more");
    let other = |work| cost_of(async |cache| fill(&*cache, 0..1, 1).await, work);
    assert_eq!(other(async |cache: Rc<WriteCache>| fill(&*cache, 7..8, 1).await), writes(1, 0));
}

#[test]
fn a_flush_with_a_journal_costs_a_record_and_a_flush() {
    let cost = cost_of(
        async |cache| fill(&*cache, 0..1, 1).await,
        async |cache| {
            fill(&*cache, 7..8, 1).await;
            flush(&*cache).await;
        },
    );
    assert_eq!(cost, writes(2, 1));
}

/// A write that is acknowledged although the process dies before the next one begins: its entry was
/// there before.
#[test]
fn an_entry_that_comes_after_its_request_is_found() {
    let is_there = |fault| {
        let mut fixture = fixture("");
        fixture.config.plant(fault);
        fixture.life(async |cache| fill(&*cache, 0..1, 1).await).unwrap();
        let found = fixture.life(async |cache| get(&*cache, 0).await);
        found.unwrap() == Ok(pattern(0, 1))
    };
    assert!(is_there(None));
    assert!(!is_there(Some(Fault::EntryAfterRequest)), "it was not found");
}

/// Zeroes over a long range go to the origin, and the blocks leave the cache. Random lives seldom
/// die between that and the next commit.
#[test]
fn zeroes_over_a_long_range_stay_when_the_process_dies() {
    let are_there = |fault| {
        let mut fixture = fixture("");
        fixture.config.plant(fault);
        let write = async |cache: Rc<WriteCache>| {
            fill(&*cache, 0..40, 1).await;
            flush(&*cache).await;
            let range = (Sector::ZERO, at(40));
            let (flags, class) = (Flags::empty(), Class::Foreground);
            let zeroes = reactor::io(&*cache, Op::WriteZeroes, flags, class, range, Bufs::new());
            assert_eq!(zeroes.await, Ok(()));
        };
        fixture.life(write).unwrap();
        fixture.life(async |cache| get(&*cache, 7).await).unwrap() == Ok(vec![0; BLOCK])
    };
    assert!(are_there(None));
    assert!(!are_there(Some(Fault::DropNotInJournal)), "it was not found");
}
