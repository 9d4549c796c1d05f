// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients of the control sockets can do to each other: nothing. Each case was found by an
//! attack from outside.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests of processes, by the clock"
)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{Daemon, sh};

const MS: Duration = Duration::from_millis(1);

fn connect(daemon: &Daemon) -> UnixStream {
    UnixStream::connect(daemon.run_dir().join("control.sock")).unwrap()
}

fn ask(mut to: impl Write, method: &str, path: &str) {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    to.write_all(request.as_bytes()).unwrap();
}

/// Whether requests of others are answered soon.
fn assert_serves(daemon: &Daemon) {
    let (status, text) = daemon.curl("GET", "/v1/devices", &["-m", "5"]);
    assert_eq!(status, "200", "{text}");
}

/// A daemon with a TCP port besides its socket, and the port's address.
fn with_tcp() -> (Daemon, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let addr = format!("127.0.0.1:{port}");
    (Daemon::start_with(&["--http", &addr]), addr)
}

/// 64 commands that waited took all places: `ls` and `remove` hung until one of them ended.
#[test]
fn requests_that_wait_keep_no_place_from_others() {
    let daemon = Daemon::start();
    daemon.create("d", "0 8 zero");
    let mut waiters: Vec<UnixStream> = (0..100).map(|_| connect(&daemon)).collect();
    for waiter in &waiters {
        ask(waiter, "GET", "/v1/devices/d/wait");
    }
    assert_serves(&daemon);
    let (status, _) = daemon.curl("DELETE", "/v1/devices/d", &["-m", "5"]);
    assert_eq!(status, "200");
    for waiter in &mut waiters {
        let mut answer = [0; 4096];
        waiter.set_read_timeout(Some(5000 * MS)).unwrap();
        let n = waiter.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..n]);
        assert!(answer.contains("event_nr"), "{answer}");
    }
}

#[test]
fn more_requests_than_may_wait_are_refused_not_queued() {
    let daemon = Daemon::start();
    daemon.create("d", "0 8 zero");
    let mut waiters: Vec<UnixStream> = (0..512 + 40).map(|_| connect(&daemon)).collect();
    for waiter in &waiters {
        ask(waiter, "GET", "/v1/devices/d/wait");
    }
    assert_serves(&daemon);
    sleep(500 * MS);
    let (mut refused, mut buf) = (0, [0; 4096]);
    for waiter in &mut waiters {
        waiter.set_nonblocking(true).unwrap();
        let n = waiter.read(&mut buf).unwrap_or(0);
        refused += usize::from(String::from_utf8_lossy(&buf[..n]).contains("wait already"));
    }
    assert_eq!(refused, 40);
    assert_serves(&daemon);
}

#[test]
fn tcp_clients_take_no_place_of_the_local_socket() {
    let (daemon, addr) = with_tcp();
    // More than are served at once, 64, and fewer than those and the kernel's queue of 128: no
    // `connect` waits.
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&addr).unwrap()).collect();
    sleep(100 * MS);
    for _ in 0..3 {
        assert_serves(&daemon);
    }
    drop(idle);
}

/// `remove` waited for a `suspend`, which waited for a slow disk. Its client was killed, and the
/// device was removed all the same, minutes later.
#[test]
fn a_remove_whose_client_has_gone_removes_nothing() {
    let daemon = Daemon::start();
    daemon.create("slow", "0 16384 delay mem:8M 0 0");
    daemon.create("d", "0 2048 writecache s mem:1M slow 4096 0");
    assert_eq!(daemon.qemu_io("d", &["write 0 64k"]).code, Some(0));
    daemon.cli(&["load", "slow", "--table", "0 16384 delay mem:8M 0 1000"]).ok();
    daemon.cli(&["suspend", "slow"]).ok();
    daemon.cli(&["resume", "slow"]).ok();
    let suspend = connect(&daemon);
    ask(&suspend, "POST", "/v1/devices/d/suspend");
    sleep(100 * MS);
    let (status, _) = daemon.curl("DELETE", "/v1/devices/d", &["-m", "0.3"]);
    assert_eq!(status, "000", "it waits");
    let mut answer = [0; 12];
    (&suspend).read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    sleep(2700 * MS); // long enough for a removal
    assert!(daemon.cli(&["info", "d"]).ok().contains("SUSPENDED"));
    // One whose client stays has its turn.
    let removal = daemon.cli(&["remove", "d", "--force"]);
    assert_eq!(removal.code, Some(0)); // it tells what stays in a cache
}

/// The client was killed while its `remove --drain` wrote back, and the device was removed all the
/// same.
#[test]
fn a_drain_whose_client_has_gone_removes_nothing() {
    let daemon = Daemon::start();
    daemon.create("slow", "0 16384 delay mem:8M 0 0");
    daemon.create("d", "0 2048 writecache s slow mem:1M 4096 0");
    assert_eq!(daemon.qemu_io("d", &["write 0 64k"]).code, Some(0));
    daemon.cli(&["load", "slow", "--table", "0 16384 delay mem:8M 0 1000"]).ok();
    daemon.cli(&["resume", "slow"]).ok();
    let (status, _) = daemon.curl("DELETE", "/v1/devices/d?drain=true", &["-m", "0.3"]);
    assert_eq!(status, "000", "it writes back");
    sleep(3000 * MS); // long enough for the removal
    assert_eq!(daemon.cli(&["get", "d", "dirty_blocks"]).ok().trim(), "0");
    daemon.cli(&["remove", "d", "--drain"]).ok();
}

/// A server that was slow to answer, and a `create` whose client had been killed meanwhile: the
/// device came up all the same, later.
#[test]
fn what_is_made_for_a_client_that_has_gone_is_not_made() {
    let server = Daemon::start();
    server.create("d", "0 8 zero");
    let daemon = Daemon::start();
    daemon.create("old", "0 8 zero");
    let between = daemon.dir.path().join("between.sock");
    let listener = UnixListener::bind(&between).unwrap();
    let table = format!("0 8 linear nbd+unix:///d?socket={} 0", between.display());
    let create = format!("{{\"name\": \"new\", \"table\": \"{table}\"}}");
    let load = format!("{{\"table\": \"{table}\"}}");
    for (path, body) in [("/v1/devices", &create), ("/v1/devices/old/load", &load)] {
        let mut client = connect(&daemon);
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n");
        write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let (accepted, _) = listener.accept().unwrap(); // it waits for the server's greeting
        drop(client);
        assert_serves(&daemon);
        sleep(100 * MS); // the client's end has been seen
        let disk = UnixStream::connect(server.run_dir().join("nbd.sock")).unwrap();
        let (mut from, mut to) = (disk.try_clone().unwrap(), accepted.try_clone().unwrap());
        let there = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        // The daemon ends the connection: nothing uses it.
        accepted.set_read_timeout(Some(5000 * MS)).unwrap();
        std::io::copy(&mut &accepted, &mut &disk).expect("no end");
        disk.shutdown(Shutdown::Write).unwrap();
        there.join().unwrap().unwrap();
        assert_serves(&daemon);
        daemon.cli(&["info", "new"]).failed(3);
        assert!(daemon.cli(&["info", "old"]).ok().contains("Tables present:    LIVE\n"));
    }
}

/// A request that waited in the socket while the daemon was busy was executed though its client had
/// disconnected.
#[test]
fn a_request_that_was_left_behind_changes_nothing() {
    let daemon = Daemon::start();
    daemon.create("d", "0 8 zero");
    daemon.signal("-STOP");
    let gone = connect(&daemon);
    ask(&gone, "DELETE", "/v1/devices/d");
    drop(gone);
    daemon.signal("-CONT");
    assert_serves(&daemon);
    sleep(100 * MS);
    daemon.cli(&["info", "d"]).ok();
}

/// A web page whose name points to 127.0.0.1 read devices, tables and paths: a browser takes it for
/// the page's own server.
#[test]
fn a_host_by_another_name_is_refused_on_tcp() {
    let (daemon, addr) = with_tcp();
    let port = addr.rsplit_once(':').unwrap().1;
    let url = format!("http://{addr}/v1/devices");
    let curl = |host: &str| sh("curl", &["-s", "-w", "%{http_code}", "-H", host, &url]).out;
    for host in ["127.0.0.1", "localhost", "LocalHost", "[::1]", "192.0.2.7"] {
        assert_eq!(curl(&format!("Host: {host}")), "[]200", "{host}");
        assert_eq!(curl(&format!("Host: {host}:{port}")), "[]200", "{host}");
    }
    for host in ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io"] {
        let text = curl(&format!("Host: {host}"));
        assert!(text.contains(&format!("host `{host}`: allowed are")), "{text}");
        assert!(text.ends_with("403"), "{text}");
    }
    assert!(curl("Host:").ends_with("400") || curl("Host:").ends_with("403"));
    let (status, _) = daemon.curl("GET", "/v1/devices", &["-H", "Host: pond.example"]);
    assert_eq!(status, "200", "no web page gets to the local socket");
}
