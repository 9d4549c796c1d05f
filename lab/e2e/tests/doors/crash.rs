// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kill -9`, again and again, while two clients write: every answered write survives, flushed or
//! not; blocks that were being written are old or new.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use e2e::fio::Fio;
use e2e::stamp::{FLUSH_ONE_IN, Random, Stamps, Written};
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};

const BLOCKS: u64 = 2048;
/// A cache of half the data: writeback and eviction are always under way.
const CACHE_BYTES: u64 = 8 << 20;

/// How often the daemon is killed: `make kills` sets the variable.
fn rounds(usual: u64) -> u64 {
    let set = std::env::var("MILLPOND_KILLS").ok();
    set.map_or(usual, |text| text.parse().expect("MILLPOND_KILLS is a number"))
}

fn bed(mode: &str, options: &str) -> TestBed {
    TestBed::with_cache_in(mode, 32 << 20, CACHE_BYTES, options)
}

#[test]
fn ten_kills_undo_no_answered_write() {
    kills_undo_nothing(bed("s", ""), rounds(10), FLUSH_ONE_IN);
}

/// No client has asked for anything durable.
#[test]
fn kills_undo_no_write_of_clients_that_never_flush() {
    kills_undo_nothing(bed("s", "autocommit_time 1000000"), rounds(4), None);
}

#[test]
fn kills_undo_no_answered_write_of_an_ordered_cache() {
    kills_undo_nothing(bed("s", "ordered"), rounds(4), FLUSH_ONE_IN);
}

/// A copy is cut where it stands, and what the mapping has taken is the file's.
#[test]
fn kills_undo_no_answered_write_of_a_mapped_cache() {
    kills_undo_nothing(bed("p", ""), rounds(4), FLUSH_ONE_IN);
}

fn kills_undo_nothing(mut bed: TestBed, rounds: u64, flush_one_in: Option<u64>) {
    let mut areas = [Stamps::new(0..BLOCKS, 1), Stamps::new(5000..5000 + BLOCKS, 2)];
    let mut random = Random::new(3);
    for area in &mut areas {
        area.lay(&mut bed.connect("wc")).unwrap();
        area.flush_one_in(flush_one_in);
    }
    let mut written = [Written::default(); 2];
    let mut owed = 0;
    // Disks have the default write buffer, memory has none.
    let has_buffer = bed.verb(&["table", "wc"]).contains(" writecache s ");
    let (mut buffered, mut in_buffer) = (0, 0);
    for round in 0..rounds {
        let mut clients = [bed.connect("wc"), bed.connect("wc")];
        // The kill comes after a number of answers, not after a time: machines differ.
        let answers = &AtomicU64::new(0);
        let kill_at = 100 + random.below(3000);
        std::thread::scope(|scope| {
            let work = areas.iter_mut().zip(&mut clients).zip(&mut written);
            let writers: Vec<_> = work
                .map(|((area, client), written)| {
                    let before = written.writes;
                    let count = move |w: &Written| {
                        answers.fetch_max(w.writes - before, Ordering::Relaxed);
                        false
                    };
                    scope.spawn(move || area.write(client, written, count))
                })
                .collect();
            while answers.load(Ordering::Relaxed) < kill_at {
                assert!(!writers.iter().any(ScopedJoinHandle::is_finished), "a client has failed");
                pause(Duration::from_micros(200));
            }
            buffered += bed.attribute("wc", "writes_buffered");
            in_buffer += bed.attribute("wc", "buffered_blocks");
            bed.kill();
            for writer in writers {
                let ended = writer.join().unwrap().unwrap_err();
                assert!(!ended.to_string().contains("the server says"), "{ended}");
            }
        });
        bed.start_again();
        assert_eq!(bed.verb(&["get", "wc", "journal"]).trim(), "in memory");
        let mut client = bed.connect("wc");
        for (nth, area) in areas.iter_mut().enumerate() {
            area.all_durable();
            let found = area.check(|at, data| client.read(at, data));
            owed += found.unwrap_or_else(|e| panic!("round {round}, client {nth}: {e}")).owed;
        }
        assert_eq!(bed.attribute("wc", "error"), 0);
        assert_eq!(bed.attribute("wc", "checksum_errors"), 0);
    }
    for written in written {
        let flushes = if flush_one_in.is_some() { 10 } else { 0 };
        let is_enough = written.writes > 1000 && written.flushes >= flushes;
        assert!(is_enough, "too little to prove: {written:?}");
    }
    eprintln!("{written:?}: {owed} owed, {buffered} buffered, {in_buffer} in memory at the end");
    assert_eq!(buffered > 0 && in_buffer > 0, has_buffer, "the kills found no buffered block");
    assert!(owed > BLOCKS, "too little to prove: {owed} blocks were owed");
    // And all of it gets to the origin.
    bed.verb(&["message", "wc", "0", "flush"]);
    let origin = std::fs::File::open(bed.path("origin.img")).unwrap();
    for area in &mut areas {
        let found = area.check(|at, data| origin.read_exact_at(data, at)).unwrap();
        assert_eq!(found.older, 0, "{found:?}");
    }
}

/// fio's way to verify data, another one each round: it takes no block of a round before for one of
/// this round.
const VERIFY: [&str; 4] = ["crc32c", "xxhash", "crc64", "sha1"];

/// What `round` writes, once each block in random order. fio notes how many requests it has sent,
/// and takes all but the last one for answered: it has one request in flight.
fn fio_round(bed: &TestBed, round: u64) -> Fio {
    let verify = VERIFY[round as usize % VERIFY.len()];
    let fio = Fio::new(bed.dir(), &bed.uri("wc")).with(["--rw=randwrite", "--size=64m"]);
    fio.with([&format!("--verify={verify}"), &format!("--randseed={round}")])
}

/// Kills the daemon under a round of fio, once enough is answered, and starts it again.
fn kill_under_fio(bed: &mut TestBed, fio: &Fio, answered: impl Fn(&TestBed) -> bool) {
    let notes = bed.path("local-e2e-0-verify.state");
    let _ = std::fs::remove_file(&notes); // of the round before
    let running = fio.clone().with(["--do_verify=0"]).start().unwrap();
    while !answered(bed) {
        assert!(running.is_running(), "fio is done before the kill");
        pause(Duration::from_millis(1));
    }
    bed.kill();
    running.wait_failed(Duration::from_secs(60)).unwrap();
    assert!(notes.exists(), "fio has noted nothing");
    bed.start_again();
}

/// fio reads what was answered before the kill, and nothing else.
fn verify_answered(fio: &Fio) -> e2e::Result<u64> {
    let fio = fio.clone().with(["--verify_only", "--verify_state_load=1"]);
    Ok(fio.run(Duration::from_secs(60))?.reads)
}

#[test]
fn fio_finds_each_write_that_was_answered_before_a_kill() {
    if !clients(&["fio"]) {
        return;
    }
    let mut bed = TestBed::with_cache(128 << 20, 32 << 20, "");
    let mut random = Random::new(5);
    let mut verified = [0, 0];
    for round in 0..rounds(4) {
        let is_flushing = round % 2 == 1;
        let mut fio = fio_round(&bed, round);
        if is_flushing {
            fio = fio.with(["--fsync=32"]);
        }
        let least = 200 + random.below(3000);
        kill_under_fio(&mut bed, &fio, |bed| bed.attribute("wc", "writes") >= least);
        let found = verify_answered(&fio).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(found + 1 >= least, "round {round}: {found} of {least} writes were verified");
        verified[usize::from(is_flushing)] += found;
    }
    eprintln!("verified by fio, without and with flushes: {verified:?}");
    assert!(verified.iter().all(|n| *n > 100), "too little to prove: {verified:?}");
}

/// Its verification is worth something only if it notices.
#[test]
fn fio_notices_a_device_that_forgets() {
    if !clients(&["fio"]) {
        return;
    }
    let table = "0 131072 writecache s mem:64M mem:32M 4096 0";
    let mut bed = TestBed::start(&[], &[("wc", table)]);
    let fio = fio_round(&bed, 0);
    kill_under_fio(&mut bed, &fio, |bed| bed.attribute("wc", "writes") >= 500);
    verify_answered(&fio).unwrap_err();
}

/// Once the status says that nothing needs the cache, a kill under load leaves every answered write
/// on the origin, flushed or not; and the cache that is opened again undoes none, nor is it missed.
#[test]
fn a_kill_after_writethrough_leaves_all_on_the_origin() {
    let mut bed =
        TestBed::with_cache(32 << 20, 16 << 20, "no_guard high_watermark 90 low_watermark 80");
    let mut area = Stamps::new(0..BLOCKS, 1);
    area.lay(&mut bed.connect("wc")).unwrap();
    let mut written = Written::default();
    for cache_is_kept in [true, false] {
        let mut client = bed.connect("wc");
        let answers = &AtomicU64::new(0);
        let before = written.writes;
        let area = &mut area;
        let count = |w: &Written| {
            answers.fetch_max(w.writes - before, Ordering::Relaxed);
            false
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| area.write(&mut client, &mut written, count));
            let wait_for = |least: u64| {
                while answers.load(Ordering::Relaxed) < least {
                    assert!(!writer.is_finished(), "the client has failed");
                    pause(Duration::from_micros(200));
                }
            };
            wait_for(500);
            assert!(bed.attribute("wc", "dirty_blocks") > 0, "the cache is not used");
            bed.verb(&["set", "wc", "cache_mode", "writethrough"]);
            assert_eq!(bed.verb(&["get", "wc", "cache_mode"]).trim(), "writethrough");
            let give_up = clock() + 60.0;
            while bed.attribute("wc", "used_blocks") > 0 {
                assert!(clock() < give_up, "the cache is still needed");
                pause(Duration::from_millis(1));
            }
            wait_for(answers.load(Ordering::Relaxed) + 500);
            bed.kill();
            writer.join().unwrap().unwrap_err();
        });
        let origin = std::fs::File::open(bed.path("origin.img")).unwrap();
        let found = area.check(|at, data| origin.read_exact_at(data, at)).unwrap();
        assert_eq!(found.older, 0, "cache kept: {cache_is_kept}: {found:?}");
        if !cache_is_kept {
            std::fs::remove_file(bed.path("cache.img")).unwrap();
            bed.make_file("cache.img", 16 << 20);
        }
        bed.start_again();
        assert_eq!(bed.attribute("wc", "dirty_blocks"), 0);
        let mut client = bed.connect("wc");
        let found = area.check(|at, data| client.read(at, data)).unwrap();
        assert_eq!(found.older, 0, "cache kept: {cache_is_kept}: {found:?}");
    }
}

/// The books are worth something only if they notice: memory forgets everything when it is killed.
#[test]
fn a_device_that_forgets_is_noticed() {
    let mut bed = TestBed::start(&[], &[("m", "0 65536 linear mem:32M 0")]);
    let mut stamps = Stamps::new(0..BLOCKS, 1);
    let mut client = bed.connect("m");
    stamps.lay(&mut client).unwrap();
    stamps.write(&mut client, &mut Written::default(), |w| w.writes > 100).unwrap();
    stamps.check(|at, data| client.read(at, data)).unwrap();
    bed.kill();
    bed.start_again();
    let mut client = bed.connect("m");
    let noticed = stamps.check(|at, data| client.read(at, data)).unwrap_err();
    assert!(noticed.contains("no version"), "{noticed}");
}
