// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves `nbd://HOST:PORT/EXPORT` on real servers over TCP: data and requests arrive unchanged,
//! and an outage, a hung server and a silent server give the documented errors.

use std::net::TcpListener;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::clock;
use e2e::daemon::Daemon;
use e2e::origin::{IMAGE, Kind, LOG, Origin, Transport};
use e2e::process::output;
use e2e::stamp::{BLOCK_BYTES, fill, version_of};
use e2e::test_bed::{TestBed, clients};
use tempfile::TempDir;

const SIZE: u64 = 8 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
const WAIT: Duration = Duration::from_secs(60);

struct Setup {
    daemon: Daemon,
    origin: Origin,
    dir: TempDir,
}

/// A daemon with a linear device `far` on a server of an empty file.
fn setup(kind: Kind, query: &str) -> Setup {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
    std::fs::File::create(dir.path().join(IMAGE)).unwrap().set_len(SIZE).unwrap();
    let origin = Origin::start(kind, Transport::Tcp, dir.path());
    let table = format!("0 {} linear {} 0", SIZE / 512, origin.uri(query));
    let program = millpond(Build::Workspace).unwrap();
    let daemon = Daemon::start(&program, dir.path(), &[("far", &table)]).unwrap();
    Setup { daemon, origin, dir }
}

fn sha256(file: &Path) -> String {
    let line = output("sha256sum", &[&file.display().to_string()]).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

fn block(version: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_BYTES];
    fill(&mut data, 0, version);
    data
}

/// Which version of block 0 the server's file holds.
fn version_at(image: &Path) -> Option<u64> {
    let mut data = vec![0; BLOCK_BYTES];
    std::fs::File::open(image).unwrap().read_exact_at(&mut data, 0).unwrap();
    version_of(&data, 0)
}

/// Copies a disk through the device to the server and back.
fn copied_there_and_back(kind: Kind) {
    if !clients(&[kind.program(), "nbdcopy", "sha256sum"]) {
        return;
    }
    let Setup { daemon, origin, dir } = setup(kind, "");
    let (disk, back) = (dir.path().join("disk.img"), dir.path().join("back.img"));
    let mut data = vec![0; SIZE as usize];
    for (nth, block) in (0..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
        if nth % 64 < 40 {
            fill(block, nth, 1); // the rest is zeroes
        }
    }
    std::fs::write(&disk, data).unwrap();
    let (uri, disk_word) = (daemon.uri("far"), disk.display().to_string());
    output("nbdcopy", &["--flush", &disk_word, &uri]).unwrap();
    output("nbdcopy", &[&uri, &back.display().to_string()]).unwrap();
    daemon.terminate().unwrap();
    origin.kill();
    let want = sha256(&disk);
    assert_eq!(sha256(&origin.image()), want, "at the server");
    assert_eq!(sha256(&back), want, "read back");
}

#[test]
fn a_disk_is_copied_to_nbdkit_and_back() {
    copied_there_and_back(Kind::Nbdkit);
}

#[test]
fn a_disk_is_copied_to_qemu_nbd_and_back() {
    copied_there_and_back(Kind::QemuNbd);
}

#[test]
fn a_disk_is_copied_to_qemu_storage_daemon_and_back() {
    copied_there_and_back(Kind::QemuStorageDaemon);
}

#[test]
fn every_request_arrives_as_what_it_is() {
    if !clients(&["nbdkit"]) {
        return;
    }
    const MIB: u64 = 1 << 20;
    let Setup { daemon, origin, dir } = setup(Kind::NbdkitLogged, "");
    let mut client = daemon.connect("far").unwrap();
    let data = vec![0x5a; 4 * MIB as usize];
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    let full = std::fs::metadata(origin.image()).unwrap().blocks();
    client.write_fua(0, &block(1)).unwrap();
    client.trim(MIB, MIB).unwrap();
    client.write_zeroes(3 * MIB, MIB / 2).unwrap();
    client.flush().unwrap();
    let log = std::fs::read_to_string(dir.path().join(LOG)).unwrap();
    let asked = |words: &[&str]| {
        let found = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "{words:?} is not in\n{log}");
    };
    asked(&[" Write ", "offset=0x0 count=0x1000 ", "fua=1"]);
    asked(&[" Trim ", "offset=0x100000 count=0x100000 ", "fua=0"]);
    asked(&[" Zero ", "offset=0x300000 count=0x80000 ", "fua=0"]);
    assert_eq!(log.matches(" Flush ").count(), 2, "{log}");
    // What it did.
    assert_eq!(version_at(&origin.image()), Some(1));
    let mut read = data;
    client.read(0, &mut read).unwrap();
    let all = |range: std::ops::Range<u64>, byte: u8| {
        read[range.start as usize..range.end as usize].iter().all(|b| *b == byte)
    };
    assert!(all(BLOCK..MIB, 0x5a) && all(MIB..2 * MIB, 0) && all(2 * MIB..3 * MIB, 0x5a));
    assert!(all(3 * MIB..3 * MIB + MIB / 2, 0) && all(3 * MIB + MIB / 2..4 * MIB, 0x5a));
    let trimmed = std::fs::metadata(origin.image()).unwrap().blocks();
    assert!(trimmed + MIB / 512 <= full, "{trimmed} of {full} sectors are left");
}

#[test]
fn a_short_outage_is_waited_out_and_a_long_one_is_an_error() {
    if !clients(&["nbdkit"]) {
        return;
    }
    let Setup { daemon, mut origin, dir: _dir } = setup(Kind::Nbdkit, "timeout=4s");
    let mut client = daemon.connect("far").unwrap();
    client.write_fua(0, &block(1)).unwrap();
    origin.kill();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| client.write_fua(0, &block(2)));
        let give_up = clock() + WAIT.as_secs_f64();
        while !daemon.log().contains("cannot connect again yet") {
            assert!(clock() < give_up, "{}", daemon.log());
            e2e::pause(Duration::from_millis(5));
        }
        origin.start_again();
        write.join().unwrap().unwrap();
    });
    assert_eq!(version_at(&origin.image()), Some(2));
    origin.kill();
    let (began, refused) = (clock(), daemon.log().matches("cannot connect again yet").count());
    let error = client.write_fua(0, &block(3)).unwrap_err();
    assert!(error.to_string().contains("error 5"), "{error}");
    assert!(clock() - began >= 3.9, "it was waited for");
    let log = daemon.log();
    let tried = log.matches("cannot connect again yet").count() - refused;
    assert!((2..=5).contains(&tried), "at once, then every second:\n{log}");
    assert!(log.contains(&origin.peer()), "{log}");
    origin.start_again();
    client.write_fua(0, &block(4)).unwrap();
    assert_eq!(version_at(&origin.image()), Some(4));
}

/// The process is stopped with a write in its socket: that ends in an error in bounded time, which
/// the log explains, and when the process goes on, what it still does with the old write does not
/// undo a newer one.
#[test]
fn a_hung_server_is_an_error_and_its_late_write_is_harmless() {
    if !clients(&["nbdkit"]) {
        return;
    }
    let Setup { daemon, origin, dir: _dir } = setup(Kind::Nbdkit, "timeout=2s&silence=2s");
    let mut client = daemon.connect("far").unwrap();
    client.write_fua(0, &block(1)).unwrap();
    origin.stop();
    let began = clock();
    client.write(0, &block(2)).unwrap_err();
    assert!(clock() - began < WAIT.as_secs_f64());
    let (log, peer) = (daemon.log(), origin.peer());
    let lost = format!(
        "connection lost: {peer}: the server said nothing for 2 s: waited for the answer to write \
         of 4096 bytes at 0, the oldest of 1"
    );
    assert!(log.contains(&lost), "{log}");
    origin.go_on();
    let give_up = clock() + WAIT.as_secs_f64();
    while client.write_fua(0, &block(3)).is_err() {
        assert!(clock() < give_up, "{}", daemon.log());
    }
    let mut found = vec![0; BLOCK_BYTES];
    client.read(0, &mut found).unwrap();
    assert_eq!(version_of(&found, 0), Some(3));
    daemon.terminate().unwrap();
    assert_eq!(version_at(&origin.image()), Some(3));
}

#[test]
fn the_error_names_a_silent_server_and_the_awaited_reply() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = silent.local_addr().unwrap().to_string();
    let uri = format!("nbd://{peer}/disk?timeout=1s");
    let bed = TestBed::start(&[], &[]);
    let (began, table) = (clock(), format!("0 8 linear {uri} 0"));
    let created = bed.daemon().verb(&["create", "far", "--table", &table]).unwrap_err();
    let want = format!("{peer}: the server said nothing within 1 s: waited for its greeting");
    assert!(created.contains(&want), "{created}");
    assert!(clock() - began < WAIT.as_secs_f64());
}
