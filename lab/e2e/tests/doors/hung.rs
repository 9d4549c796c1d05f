// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file system that does not answer, below one device, while the others are used: a FUSE mount
//! whose server is stopped. An attack from outside found that it stopped all devices, the control
//! socket and SIGTERM.
#![expect(clippy::disallowed_methods, reason = "a client that hangs needs a thread of its own")]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use e2e::binary::Build;
use e2e::client::Client;
use e2e::mounted::{file, fuse};
use e2e::process::{Job, Process};
use e2e::test_bed::TestBed;
use e2e::virtual_machine::{VirtualMachine, kind};
use e2e::{clock, pause};
use rustix::process::{Pid, Signal, kill_process};

const MEMORY: &str = "0 131072 linear mem:64M 0";
/// Longest time for what has nothing to do with the mount that hangs.
const PROMPT_SECONDS: f64 = 4.0;
const LIMIT: Duration = Duration::from_secs(60);

/// The daemon whose mount hangs while it is stopped.
struct Server(TestBed);

impl Server {
    fn start() -> Server {
        Server(TestBed::start_mounted(&[], &[("org", MEMORY)]))
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.0.daemon().id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
        // One thread takes the signal, and only then the others stop.
        while signal == Signal::STOP && !is_stopped(id) {
            pause(Duration::from_millis(5));
        }
    }

    /// A table on its file.
    fn table(&self) -> String {
        format!("0 131072 linear {} 0", file(&self.0, "org").display())
    }
}

/// Whether all threads of a process are stopped.
fn is_stopped(id: i32) -> bool {
    std::fs::read_dir(format!("/proc/{id}/task")).unwrap().all(|task| {
        // A thread may have ended meanwhile. The name before the state is in brackets.
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
        stat.map_or(true, |stat| stat.rsplit(") ").next().unwrap().starts_with('T'))
    })
}

/// Runs `f`, which has to be quick.
fn prompt<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let begin = clock();
    let value = f();
    let took = clock() - begin;
    assert!(took < PROMPT_SECONDS, "{what} took {took:.1} s");
    value
}

/// All that others do.
fn others_go_on(bed: &TestBed) {
    let mut client = prompt("connecting", || bed.connect("free"));
    for _ in 0..20 {
        prompt("a write", || client.write(0, &[3; 4096]).unwrap());
        prompt("ls", || bed.verb(&["ls"]));
        prompt("status", || bed.verb(&["status", "free"]));
        prompt("get", || bed.verb(&["get", "free"]));
        pause(Duration::from_millis(50));
    }
}

#[test]
fn a_path_on_a_hung_mount_is_refused_without_delay_for_others() {
    if !fuse() {
        return;
    }
    let server = Server::start();
    let mut bed = TestBed::start(&[], &[("free", MEMORY)]);
    server.signal(Signal::STOP);
    let begin = clock();
    let mut create = bed.daemon().command(&["create", "x", "--table", &server.table()]);
    let create = Job::start(&mut create).unwrap();
    others_go_on(&bed);
    let refused = create.wait(LIMIT).unwrap();
    assert!(clock() - begin < 15.0, "it took {:.1} s", clock() - begin);
    assert_eq!(refused.code, 1, "{}", refused.complaint());
    let text = refused.complaint();
    assert!(text.contains("org: the file system did not answer within 10 s"), "{text}");
    let again = prompt("a second create", || {
        bed.daemon().try_verb(&["create", "y", "--table", &server.table()]).unwrap()
    });
    assert!(again.complaint().contains("an earlier call"), "{}", again.complaint());
    prompt("SIGTERM", || bed.terminate());
    server.signal(Signal::CONT);
}

#[test]
fn the_first_request_to_a_hung_mount_delays_no_others() {
    if !fuse() {
        return;
    }
    let server = Server::start();
    let mut bed = TestBed::start(&[], &[("free", MEMORY), ("hung", &server.table())]);
    server.signal(Signal::STOP);
    let mut client = bed.connect("hung");
    let reader = std::thread::spawn(move || client.read(0, &mut [0; 4096]));
    pause(Duration::from_millis(100));
    others_go_on(&bed);
    assert!(!reader.is_finished(), "the file answers");
    // The device is open, so it stays, with a table of errors.
    let forced =
        prompt("remove --force", || bed.daemon().try_verb(&["remove", "--force", "hung"]).unwrap());
    assert_eq!(forced.code, 4, "{}", forced.complaint());
    let mut second = bed.connect("hung");
    prompt("an error", || second.read(0, &mut [0; 4096]).unwrap_err());
    drop(second);
    server.signal(Signal::CONT);
    reader.join().unwrap().unwrap();
    bed.terminate();
}

/// Ends a daemon in order while a device hangs, by one signal or by two. A client and a guest wait
/// for the device on each core.
fn shutdown_of_a_hung_device(twice: bool) {
    let server = Server::start();
    let options = "shutdown_timeout = '6s'\ncores = 2\nvhost_user = './vm'";
    let tables = [("free", MEMORY), ("hung", &*server.table())];
    let bed = TestBed::start_with(options, &[], &tables);
    let clients = [bed.connect("hung"), bed.connect("hung")];
    let mut machine = VirtualMachine::new(2).unwrap();
    machine.connect(&bed.path("vm/hung.sock")).unwrap();
    server.signal(Signal::STOP);
    for queue in 0..2 {
        machine.begin(queue, (kind::READ, 0), &[0; 4096], true).unwrap();
    }
    let read =
        |mut client: Client| std::thread::spawn(move || drop(client.read(0, &mut [0; 4096])));
    let readers = clients.map(read);
    pause(Duration::from_millis(100));
    let id = i32::try_from(bed.daemon().id()).unwrap();
    let id = Pid::from_raw(id).unwrap();
    kill_process(id, Signal::HUP).unwrap();
    others_go_on(&bed);
    while !bed.daemon().log().contains("SIGHUP") {
        pause(Duration::from_millis(5));
    }
    let begin = clock();
    kill_process(id, Signal::TERM).unwrap();
    if twice {
        pause(Duration::from_millis(500));
        kill_process(id, Signal::TERM).unwrap();
    }
    let most = if twice { 3.0 } else { 9.0 };
    while bed.daemon().is_running() {
        assert!(clock() - begin < most, "it ends later than {most} s:\n{}", bed.daemon().log());
        pause(Duration::from_millis(20));
    }
    let log = bed.daemon().log();
    assert!(log.contains(if twice { "told to end again" } else { "hung has not ended" }), "{log}");
    // By whichever of its bounds it ended.
    assert_eq!(bed.daemon().exit_code(), Some(if twice { 143 } else { 1 }), "{log}");
    server.signal(Signal::CONT);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn a_hung_device_delays_a_shutdown_for_its_timeout_only() {
    if fuse() {
        shutdown_of_a_hung_device(false);
    }
}

#[test]
fn a_second_signal_ends_a_shutdown_that_a_hung_device_delays() {
    if fuse() {
        shutdown_of_a_hung_device(true);
    }
}

/// `stop` waits for the end and tells what was left behind; it took its exit code before that.
/// Found by the attack `degraded`, seed 755388087.
#[test]
fn a_stop_names_what_has_not_ended() {
    if !fuse() {
        return;
    }
    let server = Server::start();
    let tables = [("free", MEMORY), ("hung", &*server.table())];
    let bed = TestBed::start_with("shutdown_timeout = '6s'", &[], &tables);
    let mut client = bed.connect("hung");
    client.write(0, &[5; 4096]).unwrap();
    server.signal(Signal::STOP);
    let reader = std::thread::spawn(move || drop(client.read(0, &mut [0; 4096])));
    pause(Duration::from_millis(100));
    let mut stop = bed.daemon().command(&["stop"]);
    let stop = Job::start(&mut stop).unwrap().wait(LIMIT).unwrap();
    assert!(!bed.daemon().is_running(), "it waits for the end");
    assert_eq!(bed.daemon().exit_code(), Some(1), "{}", bed.daemon().log());
    assert_eq!(stop.code, 1, "{}", stop.complaint());
    let text = stop.complaint();
    assert!(text.contains("hung has not ended in time") && !text.contains("free"), "{text}");
    server.signal(Signal::CONT);
    reader.join().unwrap();
}

/// The same where the daemon is killed while it ends, and where all is well.
#[test]
fn a_stop_tells_an_end_in_order_from_another_one() {
    let bed = TestBed::start(&[], &[("free", MEMORY)]);
    bed.verb(&["stop"]);
    assert_eq!(bed.daemon().exit_code(), Some(0));
    if !fuse() {
        return;
    }
    let server = Server::start();
    let bed = TestBed::start(&[], &[("hung", &server.table())]);
    let mut client = bed.connect("hung");
    server.signal(Signal::STOP);
    let reader = std::thread::spawn(move || drop(client.read(0, &mut [0; 4096])));
    pause(Duration::from_millis(100));
    let stop = Job::start(&mut bed.daemon().command(&["stop"])).unwrap();
    while !bed.daemon().log().contains("shutting down, by request") {
        pause(Duration::from_millis(5));
    }
    bed.daemon().signal(Signal::KILL).unwrap();
    let stop = stop.wait(LIMIT).unwrap();
    assert_eq!(stop.code, 1, "{}", stop.complaint());
    let text = stop.complaint();
    assert!(text.contains("has ended without saying that its devices are settled"), "{text}");
    server.signal(Signal::CONT);
    reader.join().unwrap();
}

/// Found by a long run of a bench: the pipe of standard error was full after some hundred clients,
/// core 0 waited in the write of a line, and every device stood still.
#[test]
fn standard_error_that_nobody_reads_delays_nobody() {
    let mut bed = TestBed::start(&[], &[("free", MEMORY)]);
    bed.terminate();
    let (mut errors, _never_read) = UnixStream::pair().unwrap();
    errors.set_nonblocking(true).unwrap();
    while errors.write(&[b'x'; 4096]).is_ok() {}
    errors.set_nonblocking(false).unwrap();
    let mut command = Command::new(e2e::binary::millpond(Build::Workspace).unwrap());
    command.arg("--run-dir").arg(bed.path("run")).arg("daemon").arg("--config");
    command.arg(bed.path("millpond.toml")).env("MILLPOND_LOG", "debug");
    let daemon = Process::start(command.stderr(std::os::fd::OwnedFd::from(errors))).unwrap();
    let give_up = clock() + 20.0;
    let write = || -> std::io::Result<()> {
        Client::connect(&bed.path("run/nbd.sock"), "free")?.write(4096, &[7; 4096])
    };
    while let Err(e) = write() {
        assert!(clock() < give_up, "no daemon after 20 s: {e}");
        pause(Duration::from_millis(20));
    }
    // Each client is some lines.
    for _ in 0..50 {
        prompt("a client", || write().unwrap());
    }
    daemon.signal(Signal::TERM).unwrap();
    assert_eq!(daemon.wait(Duration::from_secs(10)), Ok(0));
}
