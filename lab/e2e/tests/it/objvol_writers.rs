// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two daemons and one volume: the last to open it is its writer, the other one loses cleanly, and
//! nothing that a flush acknowledged is lost.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use e2e::bucket::{Bucket, Faults};
use e2e::stamp::{BLOCK_BYTES, Stamps, Written};
use e2e::test_bed::TestBed;
use e2e::{clock, pause};

const BLOCKS: u64 = 512;
/// Writes that are answered before the other daemon comes.
const WRITES: u64 = 300;

fn table(url: &str) -> String {
    format!("0 {} objvol {url} 2 segment_size 128K", BLOCKS * BLOCK_BYTES as u64 / 512)
}

/// Waits until a device says so of itself.
fn wait_for_state(bed: &TestBed, state: &str) {
    let give_up = clock() + 60.0;
    while bed.verb(&["get", "vol", "state"]).trim_end() != state {
        assert!(clock() < give_up, "{}", bed.verb(&["status", "vol"]));
        pause(Duration::from_millis(50));
    }
}

/// Removes the device, once the server has noticed that its clients have gone.
fn remove(bed: &TestBed) {
    let give_up = clock() + 30.0;
    loop {
        let ended = bed.daemon().try_verb(&["remove", "vol"]).unwrap();
        if ended.code == 0 {
            return;
        }
        assert!(ended.code == 4 && clock() < give_up, "{}", ended.stderr);
        pause(Duration::from_millis(20));
    }
}

/// Each of two daemons takes the volume from the other while that writes.
pub(crate) fn fight(beds: &[TestBed; 2], url: &str, rounds: usize) {
    let mut area = Stamps::new(0..BLOCKS, 7);
    beds[0].verb(&["create", "vol", "--table", &table(url)]);
    area.lay(&mut beds[0].connect("vol")).unwrap();
    let mut written = Written::default();
    let mut owed = 0;
    for round in 0..rounds {
        let (loser, winner) = (&beds[round % 2], &beds[(round + 1) % 2]);
        let mut client = loser.connect("vol");
        let answers = &AtomicU64::new(0);
        let error = std::thread::scope(|scope| {
            let (area, written) = (&mut area, &mut written);
            let writer = scope.spawn(move || {
                let before = written.writes;
                area.write(&mut client, written, |w| {
                    answers.fetch_max(w.writes - before, Ordering::Relaxed);
                    false
                })
            });
            while answers.load(Ordering::Relaxed) < WRITES {
                assert!(!writer.is_finished(), "round {round}: the client has failed too early");
                pause(Duration::from_millis(1));
            }
            winner.verb(&["create", "vol", "--table", &table(url)]);
            writer.join().unwrap().unwrap_err()
        });
        assert!(error.to_string().contains("the server says"), "{error}");
        wait_for_state(loser, "fenced");
        let status = loser.verb(&["status", "vol"]);
        assert!(status.contains("fenced by epoch "), "{status}");
        // Reads fail, too: they could be old.
        assert!(loser.connect("vol").read(0, &mut [0; 4096]).is_err());
        let mut client = winner.connect("vol");
        let found = area.check(|at, data| client.read(at, data));
        owed += found.unwrap_or_else(|e| panic!("round {round}: {e}")).owed;
        remove(loser);
        assert!(loser.daemon().log().contains("every request fails with ESTALE"));
    }
    assert!(
        written.flushes >= rounds as u64 && owed > BLOCKS / 4,
        "too little to prove: {written:?} {owed}"
    );
}

#[test]
fn of_two_daemons_with_one_directory_one_loses_cleanly() {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-store-").tempdir().unwrap();
    let beds = [(); 2].map(|()| TestBed::start(&[], &[]));
    fight(&beds, &format!("file://{}", dir.path().display()), 4);
}

#[test]
fn of_two_daemons_with_one_bad_bucket_one_loses_cleanly() {
    let bucket = Bucket::start().unwrap();
    let beds = [(); 2].map(|()| TestBed::start_in(&bucket.variables(), "", &[], &[]));
    bucket.set_faults(Faults::some());
    fight(&beds, "s3://bucket/disks/one", 4);
    assert!(bucket.faults_met() > 20, "{} faults", bucket.faults_met());
}
