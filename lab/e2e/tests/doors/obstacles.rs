// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verbs that meet a degraded device: what it holds, and who has taken it over, is not forgotten
//! behind the operator's back.
use std::process::Command;
use std::time::Duration;

use e2e::bucket::Bucket;
use e2e::client::Client;
use e2e::process::{Process, run};
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};
use rustix::process::Signal;
use serde_json::Value;

use crate::upgrade::{is_root, pid, script, upgrade};

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 20;

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = clock() + 30.0;
    while !holds() {
        assert!(clock() < give_up, "{what}");
        pause(Duration::from_millis(20));
    }
}

/// What a verb says that is refused because something is in its way.
fn refusal(bed: &TestBed, words: &[&str]) -> String {
    let ended = bed.daemon().try_verb(words).unwrap();
    assert_eq!(ended.code, 4, "{words:?}: {}", ended.complaint());
    ended.stderr
}

fn write_all(client: &mut Client, byte: u8) {
    for block in 0..BLOCKS {
        client.write(block * 4096, &[byte; 4096]).unwrap();
    }
}

/// How many blocks have this byte.
fn count(client: &mut Client, byte: u8) -> usize {
    let mut data = [0; 4096];
    let mut is_there = |block| client.read(block * 4096, &mut data).is_ok() && data == [byte; 4096];
    (0..BLOCKS).filter(|block| is_there(*block)).count()
}

/// Two daemons; the second has taken a volume from the first, which has a client still.
struct Fenced {
    first: TestBed,
    second: TestBed,
    client: Client,
    table: String,
    _store: tempfile::TempDir,
}

impl Fenced {
    fn new() -> Fenced {
        let store = tempfile::Builder::new().prefix("millpond-e2e-store-").tempdir().unwrap();
        let url = format!("file://{}", store.path().display());
        let table = format!("0 8192 objvol {url} 1 take_over");
        let [first, second] = [(); 2].map(|()| TestBed::start(&[], &[]));
        first.verb(&["create", "vol", "--table", &table]);
        let mut client = first.connect("vol");
        write_all(&mut client, 1);
        client.flush().unwrap();
        Fenced { first, second, client, table, _store: store }
    }

    fn take_over(&self) {
        self.second.verb(&["create", "vol", "--table", &self.table]);
        self.wait_until_fenced();
        write_all(&mut self.second.connect("vol"), 2);
    }

    fn wait_until_fenced(&self) {
        let state = || self.first.verb(&["get", "vol", "state"]);
        wait_until("it is fenced", || state().trim_end() == "fenced");
    }

    /// The second one has the volume still, and the client of the first one gets errors.
    fn check_owner(&mut self) {
        let mut client = self.second.connect("vol");
        write_all(&mut client, 3);
        client.flush().unwrap();
        assert!(self.client.read(0, &mut [0; 4096]).is_err(), "the first daemon reads");
        assert!(self.client.write(0, &[9; 4096]).is_err(), "the first daemon writes");
        assert_eq!(count(&mut client, 3), 20);
    }
}

#[test]
fn a_daemon_that_was_fenced_does_not_upgrade() {
    let mut fenced = Fenced::new();
    fenced.take_over();
    let report = upgrade(&fenced.first, &["--dry-run"]);
    let why = report["problems"][0]["why"].as_str().unwrap_or_default();
    assert!(why.contains("fenced by epoch "), "{report}");
    assert!(refusal(&fenced.first, &["upgrade"]).contains("`millpond remove vol` gives it up"));
    // No other verb that makes a table of its own takes it back, either.
    let resize = refusal(&fenced.first, &["resize", "vol", "8M"]);
    assert!(resize.contains("`remove` gives it up"), "{resize}");
    fenced.check_owner();
    // The way out.
    let Fenced { first, second, client, .. } = fenced;
    drop(client);
    let removed = || first.daemon().try_verb(&["remove", "vol"]).unwrap().code == 0;
    wait_until("the client has gone", removed);
    upgrade(&first, &[]);
    assert_eq!(count(&mut second.connect("vol"), 3), 20);
}

#[test]
fn a_fenced_daemon_upgrades_when_a_new_table_has_it_back() {
    let mut fenced = Fenced::new();
    fenced.take_over();
    fenced.check_owner();
    refusal(&fenced.first, &["upgrade"]);
    fenced.first.verb(&["load", "vol", "--table", &fenced.table]);
    fenced.first.verb(&["resume", "vol"]);
    upgrade(&fenced.first, &[]);
    assert_eq!(count(&mut fenced.first.connect("vol"), 3), 20);
}

/// Somebody takes the volume while the successor starts.
#[test]
fn a_fence_that_comes_during_an_upgrade_ends_it() {
    if !is_root() {
        return;
    }
    let mut fenced = Fenced::new();
    let program = fenced.first.daemon().command(&[]);
    let program = program.get_program().to_str().unwrap().to_owned();
    let (run_dir, table) = (fenced.second.path("run"), &fenced.table);
    let take = format!("{program} --run-dir {} create vol --table '{table}'", run_dir.display());
    let binary = script(&fenced.first, &format!("{take}\nexec {program} \"$@\""));
    let before = pid(&fenced.first);
    let refused = refusal(&fenced.first, &["upgrade", "--binary", &binary]);
    assert!(refused.contains("fenced by epoch "), "{refused}");
    assert_eq!(pid(&fenced.first), before);
    // The client of the first one is not left waiting: it gets an error.
    fenced.check_owner();
}

/// A cache on a mapped device, which can be made to refuse writes.
fn cached() -> TestBed {
    let files = [("origin.img", 32 * MIB), ("ssd.img", 16 * MIB)];
    let cache = "0 65536 writecache s ./origin.img ssd 4096 0";
    TestBed::start(&files, &[("ssd", "0 32768 linear ./ssd.img 0"), ("wc", cache)])
}

fn swap_ssd(bed: &TestBed, target: &str) {
    bed.verb(&["load", "ssd", "--table", &format!("0 32768 {target}")]);
    bed.verb(&["resume", "ssd"]);
}

/// Has all that the client writes in memory alone.
fn refuse_writes(bed: &TestBed, client: &mut Client) {
    let path = bed.path("ssd.img");
    swap_ssd(bed, &format!("flakey {} 0 0 3600 1 error_writes", path.display()));
    write_all(client, 2);
    client.flush().unwrap_err();
    assert_eq!(bed.attribute("wc", "unwritten_blocks"), BLOCKS);
}

fn mend(bed: &TestBed) {
    swap_ssd(bed, &format!("linear {} 0", bed.path("ssd.img").display()));
}

fn token_of(report: &Value) -> String {
    let problem = &report["problems"][0];
    let why = problem["why"].as_str().unwrap_or_default();
    assert!(why.contains("20 of which are in memory alone"), "{report}");
    problem["token"].as_str().expect("there is one").to_owned()
}

#[test]
fn blocks_in_memory_alone_cross_with_their_token_only() {
    let bed = cached();
    let mut client = bed.connect("wc");
    write_all(&mut client, 1);
    client.flush().unwrap();
    refuse_writes(&bed, &mut client);
    let token = token_of(&upgrade(&bed, &["--dry-run"]));
    assert!(refusal(&bed, &["upgrade"]).contains(&format!("`--force={token}` accepts that")));
    // The name is not enough.
    assert_ne!(bed.daemon().try_verb(&["upgrade", "--force", "wc"]).unwrap().code, 0);
    assert_eq!(count(&mut client, 2), 20, "nothing was lost by that");
    mend(&bed);
    upgrade(&bed, &[&format!("--force={token}")]);
    client.flush().unwrap_err();
    client.flush().unwrap();
    assert_eq!(count(&mut client, 2), 20, "the journal has them");
}

/// SIGTERM or `stop` end all the same: the journal keeps what the cache device has refused.
#[test]
fn an_orderly_end_keeps_what_is_in_memory_alone() {
    for by_verb in [true, false] {
        let mut bed = cached();
        let mut client = bed.connect("wc");
        write_all(&mut client, 1);
        client.flush().unwrap();
        refuse_writes(&bed, &mut client);
        drop(client);
        if by_verb {
            let stopped = bed.daemon().try_verb(&["stop"]).unwrap();
            assert_eq!(stopped.code, 1, "{}", stopped.complaint());
            assert!(stopped.stderr.contains("they stay in the journal in"), "{}", stopped.stderr);
        } else {
            bed.daemon().signal(Signal::TERM).unwrap();
        }
        wait_until("the daemon ends", || !bed.daemon().is_running());
        assert_eq!(bed.daemon().exit_code(), Some(1));
        let log = bed.daemon().log();
        let said = format!(
            "20 of which are in memory alone: they stay in the journal in {}/ until this machine \
             boots",
            bed.path("run").display()
        );
        assert!(log.contains(&said), "{log}");
        bed.forget();
        bed.start_again();
        assert_eq!(count(&mut bed.connect("wc"), 2), 20);
        bed.verb(&["flush", "wc"]);
        assert_eq!(count(&mut bed.connect("wc"), 2), 20);
    }
}

#[test]
fn a_private_run_directory_stays_while_a_cache_needs_it() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let dir = tempfile::Builder::new().prefix("millpond-e2e-run-").tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (name, bytes) in [("origin.img", 32 * MIB), ("ssd.img", 16 * MIB)] {
        std::fs::File::create(path(name)).unwrap().set_len(bytes).unwrap();
    }
    let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
    let program = program.to_str().unwrap();
    let table = "0 65536 writecache s ./origin.img ssd 4096 0";
    // The run command's own daemon gets the cache device first, and then one that refuses writes.
    let work = format!(
        "set -e
         {program} create ssd --table '0 32768 linear ./ssd.img 0'
         {program} create wc --table '{table}'
         qemu-io -f raw \"nbd+unix:///wc?socket=$MILLPOND_SOCKET\" -c 'write -P 1 0 80k' -c flush
         {program} load ssd --table '0 32768 flakey ./ssd.img 0 0 3600 1 error_writes'
         {program} resume ssd
         ! qemu-io -t writeback -f raw \"nbd+unix:///wc?socket=$MILLPOND_SOCKET\" -c 'write -P 2 0 40k' -c 'write -P 2 40k 40k' -c flush"
    );
    let mut command = Command::new(program);
    command.current_dir(dir.path()).env("TMPDIR", dir.path());
    command.args(["run", "--table", "0 8 zero", "--", "sh", "-c", &work]);
    let ended = run(&mut command, Duration::from_secs(60)).unwrap();
    assert_eq!(ended.code, 1, "{}", ended.complaint());
    let kept = ended.stderr.lines().find_map(|line| line.strip_prefix("millpond: run: "));
    let kept = kept.and_then(|line| line.split_once(" is kept until this machine boots"));
    let (kept, _) = kept.unwrap_or_else(|| panic!("{}", ended.complaint()));
    let work = format!(
        "{program} create wc --table '{table}' &&
         qemu-io -f raw \"nbd+unix:///wc?socket=$MILLPOND_SOCKET\" -c 'read -P 2 0 80k'"
    );
    let mut command = Command::new(program);
    command.current_dir(dir.path());
    command.args(["--run-dir", kept, "run", "--name", "ssd"]);
    command.args(["--table", "0 32768 linear ./ssd.img 0", "--", "sh", "-c", &work]);
    let ended = run(&mut command, Duration::from_secs(60)).unwrap();
    assert_eq!(ended.code, 0, "{}", ended.complaint());
    assert!(!ended.stdout.contains("Pattern verification failed"), "{}", ended.stdout);
}

/// The origin fails reads while the successor, and then the daemon itself, open a guarded cache.
#[test]
fn after_a_failed_upgrade_a_device_goes_on_when_it_can() {
    if !clients(&["nbdkit"]) {
        return;
    }
    let dir = tempfile::Builder::new().prefix("millpond-e2e-origin-").tempdir().unwrap();
    let (image, socket) = (dir.path().join("o.img"), dir.path().join("o.sock"));
    let trigger = dir.path().join("fails");
    std::fs::File::create(&image).unwrap().set_len(32 * MIB).unwrap();
    let mut server = Command::new("nbdkit");
    server.args(["-f", "-U"]).arg(&socket).args(["--filter=error", "file"]).arg(&image);
    server.arg("error-pread-rate=100%").arg(format!("error-pread-file={}", trigger.display()));
    let _server = Process::start(&mut server).unwrap();
    wait_until("nbdkit listens", || socket.exists());
    let origin = format!("nbd+unix:///?socket={}", socket.display());
    let table = format!("0 65536 writecache s {origin} ./cache.img 4096 1 guard_origin");
    let bed = TestBed::start(&[("cache.img", 16 * MIB)], &[("wc", &table)]);
    let mut client = bed.connect("wc");
    write_all(&mut client, 1);
    client.flush().unwrap();
    std::fs::File::create(&trigger).unwrap();
    assert_eq!(count(&mut client, 1), 20, "the cache serves");
    let refused = bed.daemon().try_verb(&["upgrade"]).unwrap();
    assert_ne!(refused.code, 0);
    println!("{}", refused.stderr);
    assert!(refused.stderr.contains("wc"), "{}", refused.stderr);
    let is_suspended = || bed.verb(&["info", "wc"]).contains("SUSPENDED");
    if is_suspended() {
        assert!(
            refused.stderr.contains("it stays suspended, and is tried again"),
            "{}",
            refused.stderr
        );
        let shown = bed.verb(&["show", "wc"]);
        assert!(shown.contains("it is suspended since an upgrade failed"), "{shown}");
    }
    std::fs::remove_file(&trigger).unwrap();
    wait_until("it goes on by itself", || !is_suspended());
    assert_eq!(count(&mut client, 1), 20);
    let shown = bed.verb(&["show", "wc"]);
    assert!(!shown.contains("since an upgrade failed"), "{shown}");
    upgrade(&bed, &[]);
    assert_eq!(count(&mut client, 1), 20);
}

/// A store that refuses keeps requests from their end: the message has to name it.
#[test]
fn an_upgrade_that_waits_for_a_store_names_the_store() {
    let bucket = Bucket::start().unwrap();
    let table = "0 65536 objvol s3://bucket/disks/one 2 segment_size 128K";
    let bed = TestBed::start_in(&bucket.variables(), "", &[], &[("vol", table)]);
    let mut client = bed.connect("vol");
    client.write(0, &[1; 4096]).unwrap();
    bucket.accept(&[]);
    // Answered; the pause of the client flushes it.
    client.write(4096, &[2; 4096]).unwrap();
    let refused = refusal(&bed, &["upgrade", "--timeout", "2s"]);
    assert!(refused.contains("vol: the store refuses"), "{refused}");
    let [.., (_, key), _] = bucket.variables();
    bucket.accept(&[&key]);
    client.flush().unwrap();
    upgrade(&bed, &[]);
}

/// A program that is no regular file is refused before it is opened for good.
#[test]
fn an_upgrade_to_a_fifo_is_refused_at_once() {
    if !is_root() {
        return;
    }
    let bed = TestBed::start(&[], &[]);
    let fifo = bed.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let refused = bed.daemon().try_verb(&["upgrade", "--binary", fifo.to_str().unwrap()]).unwrap();
    assert!(refused.stderr.contains("no regular file"), "{}", refused.complaint());
    upgrade(&bed, &[]);
}

/// `--force TOKEN` would be `--force` alone, and a device of the name TOKEN.
#[test]
fn a_token_behind_a_blank_removes_nothing() {
    let bed = cached();
    let mut client = bed.connect("wc");
    write_all(&mut client, 1);
    client.flush().unwrap();
    refuse_writes(&bed, &mut client);
    drop(client);
    let mut refused = bed.daemon().try_verb(&["remove", "wc"]).unwrap();
    wait_until("the client has gone", || {
        refused = bed.daemon().try_verb(&["remove", "wc"]).unwrap();
        refused.stderr.contains("--force=")
    });
    let token = refused.stderr.split("--force=").nth(1).unwrap();
    let token = token[..8].to_owned();
    let wrong = bed.daemon().try_verb(&["remove", "wc", "--force", &token]).unwrap();
    assert_eq!(wrong.code, 1, "{}", wrong.complaint());
    assert!(wrong.stderr.contains(&format!("`--force={token}` gives it")), "{}", wrong.stderr);
    assert_eq!(count(&mut bed.connect("wc"), 2), 20, "it is there still");
    wait_until("the right form removes it", || {
        bed.daemon().try_verb(&["remove", "wc", &format!("--force={token}")]).unwrap().code == 0
    });
}
