// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors that clients get when the disk below fails a flush and loses its cache: each client of
//! `buffered` gets one at every FLUSH that should have covered lost data, and one of a mapping gets
//! it when the table has left the disk meanwhile. The disk is an NBD server in this file that
//! delays a FLUSH until a test lets it fail.
#![expect(clippy::disallowed_methods, reason = "the disk is a server of this process")]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use e2e::client::{Answer, Client};
use e2e::pause;
use e2e::test_bed::TestBed;
use nbd::option::{HEADER_BYTES, Header, reply, reply_info_export};
use nbd::request::{REQUEST_BYTES, Request};
use nbd::wire::{ExportFlags, cmd, opt, rep};
use tempfile::TempDir;

const BYTES: usize = 16 << 20;
const EIO: u32 = 5;
const LIMIT: Duration = Duration::from_secs(60);

/// What is in the cache of the disk and on it, and the FLUSHes that are held.
struct Media {
    cached: Vec<u8>,
    durable: Vec<u8>,
    holds: bool,
    held: Vec<u64>,
}

struct Disk {
    media: Mutex<Media>,
    changed: Condvar,
    replies: Mutex<Option<UnixStream>>,
    dir: TempDir,
}

fn array<const N: usize>(stream: &mut UnixStream) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

impl Disk {
    fn start() -> Arc<Disk> {
        let dir = tempfile::Builder::new().prefix("millpond-e2e-disk-").tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("sock")).unwrap();
        let zero = || vec![0; BYTES];
        let media = Media { cached: zero(), durable: zero(), holds: false, held: Vec::new() };
        let disk = Arc::new(Disk {
            media: Mutex::new(media),
            changed: Condvar::new(),
            replies: Mutex::new(None),
            dir,
        });
        let server = disk.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                server.serve(stream.unwrap());
            }
        });
        disk
    }

    fn word(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.dir.path().join("sock").display())
    }

    /// A connection, until its client has gone.
    fn serve(&self, mut stream: UnixStream) -> Option<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03").ok()?;
        array::<4>(&mut stream)?;
        loop {
            let head = array::<HEADER_BYTES>(&mut stream)?;
            let Header { option, len } = Header::parse(&head).unwrap().unwrap();
            stream.read_exact(&mut vec![0; len as usize]).ok()?;
            let mut out = Vec::new();
            let kind = if option == opt::GO { rep::ACK } else { rep::ERR_UNSUP };
            if option == opt::GO {
                let flags = ExportFlags::HAS_FLAGS | ExportFlags::FLUSH | ExportFlags::WRITE_ZEROES;
                reply_info_export(&mut out, option, BYTES as u64, flags.bits());
            }
            reply(&mut out, option, kind, &[]);
            stream.write_all(&out).ok()?;
            if option == opt::GO {
                break;
            }
        }
        *self.replies.lock().unwrap() = Some(stream.try_clone().unwrap());
        loop {
            let head = array::<REQUEST_BYTES>(&mut stream)?;
            let request = Request::parse(&head).unwrap().unwrap();
            let mut data = vec![0; request.payload_len() as usize];
            stream.read_exact(&mut data).ok()?;
            self.perform(&request, &data)?;
        }
    }

    fn perform(&self, request: &Request, data: &[u8]) -> Option<()> {
        let part = request.offset as usize..request.offset as usize + request.len as usize;
        let mut media = self.media.lock().unwrap();
        let mut read = Vec::new();
        match request.kind {
            cmd::READ => read.extend_from_slice(&media.cached[part]),
            cmd::WRITE => media.cached[part].copy_from_slice(data),
            cmd::WRITE_ZEROES => media.cached[part].fill(0),
            cmd::FLUSH if media.holds => {
                media.held.push(request.cookie);
                self.changed.notify_all();
                return Some(());
            }
            cmd::FLUSH => media.durable = media.cached.clone(),
            cmd::DISC => return None,
            other => panic!("request of type {other}"),
        }
        self.answer(request.cookie, 0, &read);
        Some(())
    }

    fn answer(&self, cookie: u64, error: u32, data: &[u8]) {
        let mut out = 0x6744_6698_u32.to_be_bytes().to_vec();
        out.extend(error.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend_from_slice(data);
        // The client may have gone.
        let _ = self.replies.lock().unwrap().as_mut().unwrap().write_all(&out);
    }

    fn hold_flushes(&self) {
        self.media.lock().unwrap().holds = true;
    }

    fn wait_until_held(&self) {
        let media = self.media.lock().unwrap();
        let (media, waited) =
            self.changed.wait_timeout_while(media, LIMIT, |m| m.held.is_empty()).unwrap();
        assert!(!waited.timed_out() && media.held.len() == 1, "one FLUSH at a time");
    }

    /// The FLUSH that is held fails and takes along what it should have saved; later ones do well.
    fn fail_held(&self) {
        let held = {
            let mut media = self.media.lock().unwrap();
            media.cached = media.durable.clone();
            media.holds = false;
            std::mem::take(&mut media.held)
        };
        held.into_iter().for_each(|cookie| self.answer(cookie, EIO, &[]));
    }

    /// The server is another one from now on, and has what was durable.
    fn restart(&self) {
        let mut media = self.media.lock().unwrap();
        media.cached = media.durable.clone();
        self.replies.lock().unwrap().as_ref().unwrap().shutdown(Shutdown::Both).unwrap();
    }

    fn is_durable(&self, at: usize, data: &[u8]) -> bool {
        self.media.lock().unwrap().durable[at..at + data.len()] == *data
    }
}

fn buffered(disk: &Disk) -> TestBed {
    let table = format!("0 {} buffered {}", BYTES / 512, disk.word());
    TestBed::start(&[], &[("b", &table)])
}

fn send(client: &mut Client, kind: u16, flags: u16, cookie: u64, len: u32) {
    client.send(Request { flags, kind, cookie, offset: 0, len }, &[]).unwrap();
}

/// Found by an attack from outside: the second FLUSH succeeded, though what it should have covered
/// was lost with the first one.
#[test]
fn each_flush_that_covers_lost_data_fails() {
    let disk = Disk::start();
    let bed = buffered(&disk);
    let (mut client, mut other) = (bed.connect("b"), bed.connect("b"));
    let data = [0x58; 4096];
    client.write(0, &data).unwrap();
    other.write(8192, &data).unwrap();
    disk.hold_flushes();
    send(&mut client, cmd::FLUSH, 0, 1, 0);
    disk.wait_until_held();
    send(&mut client, cmd::FLUSH, 0, 2, 0);
    send(&mut other, cmd::FLUSH, 0, 3, 0);
    pause(Duration::from_millis(300)); // They have been submitted, and wait.
    disk.fail_held();
    let mut answers = [client.receive(), client.receive(), other.receive()].map(Result::unwrap);
    answers.sort_by_key(|a| a.cookie);
    assert_eq!(answers, [1, 2, 3].map(|cookie| Answer { cookie, error: EIO }));
    for client in [&mut client, &mut other] {
        client.flush().unwrap();
    }
    assert!(!disk.is_durable(0, &data), "it was lost");
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    assert!(disk.is_durable(0, &data));
}

/// A connection that is lost before its client was told; and the one that was told stays.
#[test]
fn a_reconnected_client_gets_the_error_of_lost_data() {
    let disk = Disk::start();
    let bed = buffered(&disk);
    let (mut client, mut other) = (bed.connect("b"), bed.connect("b"));
    client.write(0, &[0x58; 4096]).unwrap();
    disk.hold_flushes();
    send(&mut other, cmd::FLUSH, 0, 1, 0);
    disk.wait_until_held();
    disk.fail_held();
    assert_eq!(other.receive().unwrap().error, EIO);
    drop(client);
    let mut again = bed.connect("b");
    assert!(again.flush().is_err(), "in the place of the connection that was lost");
    for client in [&mut again, &mut other] {
        client.flush().unwrap();
    }
    bed.connect("b").flush().unwrap();
}

/// Zeroes with FUA are zeroes and a flush; when that flush fails the client hears of it as an error
/// of the zeroes. That other writes are lost with it must still be told by its next FLUSH.
#[test]
fn failed_zeroes_with_fua_hide_no_loss_from_a_flush() {
    let disk = Disk::start();
    let bed = buffered(&disk);
    let mut client = bed.connect("b");
    client.write(1 << 20, &[0x58; 4096]).unwrap();
    disk.hold_flushes();
    send(&mut client, cmd::WRITE_ZEROES, 1, 1, 8192);
    disk.wait_until_held();
    disk.fail_held();
    assert_eq!(client.receive().unwrap().error, EIO);
    assert!(client.flush().is_err(), "the write is lost");
    client.flush().unwrap();
}

/// `low` over the disk, and `top` over `low`: what their clients write goes straight to the disk.
fn mapped(disk: &Disk) -> (TestBed, String) {
    let sectors = BYTES / 512;
    let low = format!("0 {sectors} linear {} 0", disk.word());
    let top = format!("0 {sectors} linear low 0");
    (TestBed::start(&[], &[("low", &low), ("top", &top)]), low)
}

fn swap(bed: &TestBed, table: &str) {
    for words in [&["load", "low", "--table", table][..], &["suspend", "low"], &["resume", "low"]] {
        bed.daemon().verb(words).unwrap();
    }
}

/// Found by an attack from outside: the FLUSH succeeded after a swap away and back, though the
/// server had lost what it should have covered.
#[test]
fn a_swap_of_tables_forgets_no_loss() {
    let zero = format!("0 {} zero", BYTES / 512);
    for back in [true, false] {
        let disk = Disk::start();
        let (bed, table) = mapped(&disk);
        let mut clients = ["low", "low", "top"].map(|device| bed.connect(device));
        for client in &mut clients {
            client.write(0, &[0x58; 4096]).unwrap();
        }
        disk.restart();
        swap(&bed, &zero);
        if back {
            swap(&bed, &table);
        }
        for client in &mut clients {
            assert!(client.flush().is_err(), "back: {back}");
            client.flush().unwrap();
        }
        if back {
            clients[2].write(0, &[0x59; 4096]).unwrap();
            clients[2].flush().unwrap();
            assert!(disk.is_durable(0, &[0x59; 4096]));
        }
    }
}

/// What nobody has flushed yet is flushed before the table leaves the disk. Where that fails the
/// clients hear of it; else nothing that happens to the disk later concerns them.
#[test]
fn a_table_leaves_nothing_unflushed_behind() {
    for fails in [false, true] {
        let disk = Disk::start();
        let (bed, table) = mapped(&disk);
        let mut client = bed.connect("top");
        client.write(0, &[0x58; 4096]).unwrap();
        if fails {
            disk.hold_flushes();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| swap(&bed, &format!("0 {} zero", BYTES / 512)));
            if fails {
                disk.wait_until_held();
                disk.fail_held();
            }
        });
        assert_eq!(disk.is_durable(0, &[0x58; 4096]), !fails);
        swap(&bed, &table);
        assert_eq!(client.flush().is_err(), fails);
        client.flush().unwrap();
    }
}
