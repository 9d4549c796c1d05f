// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of the process and of its directories (`ulimit`, a service's, a full tmpfs): a request or
//! a verb meets them, never the daemon.
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::client::Client;
use e2e::process::{Ended, Process, run};
use e2e::test_bed::{TestBed, clients};
use e2e::virtual_machine::VirtualMachine;
use e2e::{clock, pause};
use rustix::process::Signal;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = clock() + 30.0;
    while !holds() {
        assert!(clock() < give_up, "{what}");
        pause(Duration::from_millis(20));
    }
}

/// A daemon that a shell has started after other commands.
struct Limited {
    dir: TempDir,
    program: PathBuf,
    daemon: Process,
}

impl Limited {
    fn start(before: &str, options: &str) -> Limited {
        let dir = tempfile::Builder::new().prefix("millpond-e2e-limits-").tempdir().unwrap();
        let program = millpond(Build::Workspace).unwrap();
        Limited::start_in(dir, program, before, options)
    }

    fn start_in(dir: TempDir, program: PathBuf, before: &str, options: &str) -> Limited {
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let line = format!("{before} {} --run-dir ./run daemon {options}", program.display());
        let mut command = Command::new("sh");
        command.current_dir(dir.path()).args(["-c", &line]).stderr(log);
        let daemon = Process::start(&mut command).unwrap();
        let limited = Limited { dir, program, daemon };
        let log = || limited.log();
        wait_until("the daemon is ready", || log().contains("ready") || limited.has_ended());
        assert!(!limited.has_ended(), "{}", log());
        limited
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn has_ended(&self) -> bool {
        self.daemon.ended().is_some()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn try_verb(&self, words: &[&str]) -> Ended {
        let mut command = Command::new(&self.program);
        command.current_dir(self.dir.path()).args(["--run-dir", "./run"]).args(words);
        run(&mut command, SOON).unwrap()
    }

    fn verb(&self, words: &[&str]) -> String {
        self.try_verb(words).ok().unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    fn make_file(&self, name: &str, bytes: u64) {
        std::fs::File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
    }

    fn connect(&self, device: &str) -> Client {
        Client::connect(&self.path("run/nbd.sock"), device).unwrap()
    }
}

/// `ulimit -f`: the write gets an error, and nothing else does.
#[test]
fn a_write_beyond_the_limit_of_file_sizes_is_an_error() {
    let daemon = Limited::start("ulimit -f 32768; exec", "");
    daemon.make_file("a.img", 16 * MIB);
    std::fs::File::options()
        .write(true)
        .open(daemon.path("a.img"))
        .unwrap()
        .set_len(64 * MIB)
        .unwrap();
    daemon.verb(&["create", "a", "--table", "0 131072 linear ./a.img 0"]);
    let mut client = daemon.connect("a");
    client.write(0, &[1; 4096]).unwrap();
    let e = client.write(40 * MIB, &[1; 4096]).unwrap_err();
    assert!(e.to_string().contains("error 28"), "ENOSPC: {e}");
    client.write(4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    daemon.verb(&["ls"]);
}

/// The same of a verb that works on images without a daemon.
#[test]
fn a_verb_beyond_the_limit_of_file_sizes_fails_with_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let program = millpond(Build::Workspace).unwrap();
    let file = dir.path().join("f.img");
    std::fs::write(&file, vec![1; 4 << 20]).unwrap();
    let wipe = |limit: &str, force: &str| {
        let (program, file) = (program.display(), file.display());
        let line = format!("{limit} exec {program} wipe {file} {force}");
        run(Command::new("sh").args(["-c", &line]), SOON).unwrap()
    };
    let force = || {
        let refused = wipe("", "").stderr;
        let token = refused.split("--force ").nth(1).and_then(|rest| rest.split('`').next());
        format!("--force {}", token.expect("a token"))
    };
    // 32 KiB, and it makes blank what is behind.
    let ended = wipe("ulimit -f 64;", &force());
    assert!(ended.code == 1 && ended.stderr.contains("no space left"), "{}", ended.complaint());
    // What was in front is blank now, and the token is one of what is there.
    assert_eq!(wipe("", &force()).code, 0, "without the limit");
}

/// A user who has no other process, so that a limit of threads counts this daemon's only.
const USER: &str = "61234";

/// A daemon of that user, who can start no more threads from now on.
fn without_threads(options: &str) -> Option<Limited> {
    if !rustix::process::geteuid().is_root() || !clients(&["setpriv", "prlimit"]) {
        println!("skipped: needs root, whose daemon of another user has a limit of threads");
        return None;
    }
    let dir = tempfile::Builder::new().prefix("millpond-e2e-limits-").tempdir().unwrap();
    let program = dir.path().join("millpond");
    std::fs::copy(millpond(Build::Workspace).unwrap(), &program).unwrap();
    std::fs::write(dir.path().join("cfg"), "").unwrap();
    let mine = Command::new("chown").args(["-R", USER]).arg(dir.path()).status().unwrap();
    assert!(mine.success());
    let by = format!("exec setpriv --reuid={USER} --regid={USER} --clear-groups");
    let limited = Limited::start_in(dir, program, &by, options);
    let mut limit = Command::new("setpriv");
    limit.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]);
    limit.args(["prlimit", "--nproc=1:1", "--pid", &limited.daemon.id().to_string()]);
    run(&mut limit, SOON).unwrap().ok().unwrap();
    Some(limited)
}

/// HO-B1. Each of these needs work that blocks.
#[test]
fn no_verb_and_no_signal_ends_a_daemon_without_threads() {
    let Some(daemon) = without_threads("--config ./cfg") else { return };
    daemon.verb(&["create", "z", "--table", "0 8192 zero"]);
    let mut client = daemon.connect("z");
    client.read(0, &mut [0; 4096]).unwrap();
    daemon.verb(&["reload"]);
    daemon.daemon.signal(Signal::HUP).unwrap();
    wait_until("it has read the file again", || daemon.log().contains("reading the configuration"));
    let refused = daemon.try_verb(&["upgrade"]);
    assert_ne!(refused.code, 0, "no process can be started");
    // A store has threads of its own.
    let store = format!("0 8192 objvol file://{}", daemon.path("store").display());
    let refused = daemon.try_verb(&["create", "v", "--table", &store]);
    assert!(refused.stderr.contains("no threads for object stores"), "{}", refused.complaint());
    client.read(0, &mut [0; 4096]).unwrap();
    daemon.daemon.signal(Signal::TERM).unwrap();
    assert_eq!(daemon.daemon.wait(SOON), Ok(0), "{}", daemon.log());
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

/// As many clients as like: the operator is served.
#[test]
fn clients_leave_descriptors_to_the_operator() {
    let daemon = Limited::start("ulimit -n 256; exec", "");
    daemon.verb(&["create", "z", "--table", "0 8192 zero"]);
    let socket = daemon.path("run/nbd.sock");
    let control = daemon.path("run/control.sock");
    let connect = |path: &Path| UnixStream::connect(path).ok();
    let clients: Vec<_> = (0..300).filter_map(|_| connect(&socket)).collect();
    let asking: Vec<_> = (0..100).filter_map(|_| connect(&control)).collect();
    drop(asking);
    daemon.make_file("a.img", MIB);
    daemon.verb(&["create", "a", "--table", "0 2048 linear ./a.img 0"]);
    daemon.verb(&["ls"]);
    assert!(clients.len() > 200, "{}", clients.len());
    let failed = daemon.log().matches("accept on the").count();
    assert!(failed < 5, "{failed} lines about accepts:\n{}", daemon.log());
}

/// Queues of virtual machines take four each.
#[test]
fn virtual_machines_leave_descriptors_to_the_operator() {
    let daemon = Limited::start("ulimit -n 256; exec", "--vhost-user ./vm");
    let names: Vec<String> = (0..20).map(|n| format!("z{n}")).collect();
    for name in &names {
        daemon.verb(&["create", name, "--table", "0 8192 zero"]);
    }
    let machine = |name: &str, queues: u16| {
        let mut machine = VirtualMachine::new(queues).unwrap();
        machine.connect(&daemon.path(&format!("vm/{name}.sock"))).map(|()| machine)
    };
    assert_eq!(machine("z0", 7).unwrap_err(), "too few queues");
    let machines: Vec<_> = names.iter().map(|name| machine(name, 6)).collect();
    assert_eq!(machines.iter().filter(|machine| machine.is_ok()).count(), 1);
    assert!(daemon.log().contains("may have 8 queues and no more"), "{}", daemon.log());
    daemon.make_file("a.img", MIB);
    daemon.verb(&["create", "a", "--table", "0 2048 linear ./a.img 0"]);
    // The way out: the first one goes.
    drop(machines);
    wait_until("its places are free", || machine("z1", 6).is_ok());
}

/// A scrape that is slow to ask has its place among many that never do.
#[test]
fn silent_connections_push_no_scrape_out() {
    let daemon = Limited::start("exec", "--metrics 127.0.0.1:0");
    let log = daemon.log();
    let address = log.split("metrics=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let connect = || TcpStream::connect(address.unwrap()).unwrap();
    let mut scrape = connect();
    let silent: Vec<_> = (0..100).map(|_| connect()).collect();
    // The last of them is accepted.
    pause(Duration::from_millis(200));
    scrape.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
    drop(silent);
}

/// A cache that has no journal, though it should, says so: when it is made, and from then on.
#[test]
fn a_cache_without_room_for_its_journal_says_so() {
    let files = [("o.img", 16 * MIB), ("c.img", 8 * MIB)];
    // A journal takes 6 MiB.
    let bed = TestBed::start_with("memory = '5M'", &files, &[]);
    let path = |name| bed.path(name).display().to_string();
    let table = format!("0 32768 writecache s {} {} 4096 0", path("o.img"), path("c.img"));
    let made = bed.daemon().try_verb(&["create", "wc", "--table", &table]).unwrap();
    assert_eq!(made.code, 0, "{}", made.complaint());
    assert!(made.stderr.contains("there is no journal in memory"), "{}", made.stderr);
    let shown = bed.verb(&["show", "wc"]);
    assert!(shown.contains("it has no journal in memory"), "{shown}");
}

/// The same when somebody cuts the journal off while it is in use.
#[test]
fn a_cache_whose_journal_is_cut_off_says_so() {
    let bed = TestBed::with_cache(16 * MIB, 8 * MIB, "");
    let mut client = bed.connect("wc");
    client.write(0, &[1; 4096]).unwrap();
    assert!(!bed.verb(&["show", "wc"]).contains("no journal"));
    let run_dir = std::fs::read_dir(bed.path("run")).unwrap().flatten();
    let is_journal = |path: &PathBuf| path.to_string_lossy().contains("/journal-");
    let journal = run_dir.map(|entry| entry.path()).find(is_journal).expect("there is one");
    std::fs::File::options().write(true).open(journal).unwrap().set_len(0).unwrap();
    client.write(4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    let shown = bed.verb(&["show", "wc"]);
    assert!(shown.contains("it has no journal in memory"), "{shown}");
}

/// As programs of libnbd start a server: one socket, and no name.
#[test]
fn a_single_socket_without_a_name_is_for_nbd() {
    if !clients(&["nbdinfo"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = "[[device]]\nname = 'z'\ntable = '0 8192 zero'\n";
    std::fs::write(dir.path().join("cfg"), format!("default_export = 'z'\n{config}")).unwrap();
    let program = millpond(Build::Workspace).unwrap();
    let mut command = Command::new("nbdinfo");
    command.current_dir(dir.path()).args(["--size", "--", "["]).arg(&program);
    command.args(["--run-dir", "./run", "daemon", "--config", "./cfg", "]"]);
    let ended = run(&mut command, SOON).unwrap();
    assert_eq!(ended.stdout.trim(), (8192 * 512).to_string(), "{}", ended.complaint());
}

/// The figure is that of the daemon, whoever asks.
#[test]
fn the_control_socket_knows_when_the_daemon_started() {
    let bed = TestBed::start(&[], &[]);
    let mut stream = UnixStream::connect(bed.path("run/control.sock")).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let value = answer.lines().find_map(|line| line.strip_prefix("process_start_time_seconds "));
    let seconds: f64 = value.unwrap_or_else(|| panic!("{answer}")).parse().unwrap();
    assert!(seconds > 1.7e9, "{seconds}");
}
