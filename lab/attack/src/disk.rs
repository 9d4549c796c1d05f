// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lossy disk as an NBD server on a Unix socket: slow, failing, delayed and hanging requests.
//!
//! A connection has one thread that reads requests and some that do them, in any order. A reply to
//! a change is sent under the lock of the media, so that what a client knows of it and what the
//! media may still lose never differ (AT-MD2).

use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::media::{Figures, Lie, Media};
use crate::pattern::SECTOR;
use crate::rng::Rng;
use crate::wire::{self, Request, cmd, opt};
use crate::{Result, clock, lock, pause, pause_ms, spawn};

/// Threads that do a connection's requests.
const WORKERS: usize = 4;
/// Longest request that is taken.
const LEN_MAX: u32 = 32 << 20;
/// How late after the loss of the connection a disk is that lies so.
const LATE_MS: u64 = 100;
/// The share of requests that such a disk delays until the loss of the connection.
const DELAYED: f64 = 0.01;
/// Seconds for which it delays a request at most, while the connection is not lost.
const DELAY_MAX: f64 = 0.3;
/// Longest wait for the requests of connections that have ended.
const SETTLE: f64 = 30.0;

/// How a disk behaves at the moment; all zero: well, and at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// How often a FLUSH fails, and loses some of what it should have saved.
    pub flush_fails: f64,
    /// How often a write fails, half done.
    pub write_fails: f64,
    /// How often a read fails.
    pub read_fails: f64,
    /// Sectors that can't be read: from the first one on, before the second one.
    pub unreadable: (u64, u64),
    /// How often any request is slow, and how many milliseconds it takes at most.
    pub slow: f64,
    /// See `slow`.
    pub slow_ms: u64,
    /// How many milliseconds a FLUSH takes at most.
    pub flush_ms: u64,
}

/// Which changes are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    None,
    /// All that come.
    More,
    /// Those that are.
    These,
}

struct Shared {
    media: Mutex<Media>,
    faults: Mutex<DiskFaults>,
    hanging: Mutex<bool>,
    wake: Condvar,
    hold: Mutex<Hold>,
    /// How many changes are held.
    held: AtomicUsize,
    connections: AtomicUsize,
    /// Of each connection: its number and stream.
    streams: Mutex<Vec<(u64, UnixStream)>>,
    /// New connections are ended at once.
    away: AtomicBool,
    ended: AtomicBool,
    rng: Mutex<Rng>,
    /// Told under the lock of the media before a FLUSH loses anything.
    on_loss: Box<dyn Fn() + Send + Sync>,
}

/// A disk that serves; it ends when this is dropped.
pub struct Disk {
    shared: Arc<Shared>,
    socket: PathBuf,
}

impl Disk {
    /// A blank disk at a socket.
    pub fn serve(
        socket: &Path,
        bytes: u64,
        lie: Lie,
        mut rng: Rng,
        on_loss: impl Fn() + Send + Sync + 'static,
    ) -> Result<Disk> {
        let listener =
            UnixListener::bind(socket).map_err(|e| format!("{}: {e}", socket.display()))?;
        let shared = Arc::new(Shared {
            media: Mutex::new(Media::new(bytes, lie, rng.fork())),
            faults: Mutex::new(DiskFaults::default()),
            hanging: Mutex::new(false),
            wake: Condvar::new(),
            hold: Mutex::new(Hold::None),
            held: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            streams: Mutex::new(Vec::new()),
            away: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            rng: Mutex::new(rng),
            on_loss: Box::new(on_loss),
        });
        let ours = Arc::clone(&shared);
        spawn(move || {
            for (stream, number) in listener.incoming().zip(0..) {
                if ours.ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let Ok(again) = stream.try_clone() else { continue };
                {
                    // One that is seen here is ended by who makes the disk go away, or not begun.
                    let mut streams = lock(&ours.streams);
                    if ours.away.load(Ordering::SeqCst) {
                        continue;
                    }
                    streams.push((number, again));
                    ours.connections.fetch_add(1, Ordering::SeqCst);
                }
                let ours = Arc::clone(&ours);
                spawn(move || {
                    let _ = serve(&ours, stream); // the client has gone
                    lock(&ours.streams).retain(|(n, _)| *n != number);
                    ours.connections.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(Disk { shared, socket: socket.into() })
    }

    /// The word for it in a table, with how patient its client is.
    pub fn word(&self, patience: &str) -> String {
        format!("nbd+unix:///disk?socket={}&{patience}", self.socket.display())
    }

    /// From now on it behaves like this.
    pub fn set_faults(&self, faults: DiskFaults) {
        *lock(&self.shared.faults) = faults;
    }

    /// From now on it answers nothing, or goes on.
    pub fn hang(&self, hanging: bool) {
        *lock(&self.shared.hanging) = hanging;
        self.shared.wake.notify_all();
    }

    /// From now on it holds the changes that come, also after the end of their connections, as a
    /// server does whose disk is slow.
    pub fn hold_changes(&self) {
        *lock(&self.shared.hold) = Hold::More;
    }

    /// It holds no more than it does.
    pub fn hold_no_more(&self) {
        *lock(&self.shared.hold) = Hold::These;
    }

    /// It goes on with those that it holds.
    pub fn let_go(&self) {
        *lock(&self.shared.hold) = Hold::None;
        self.shared.wake.notify_all();
    }

    /// How many changes it holds, or goes on with.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Loses its connections, and takes none for a while. What was in flight is done or not, and
    /// answered or not, before they end; nothing of it lands later. With `restart` it
    /// comes back without some of what was not flushed.
    pub fn disconnect(&self, away: Duration, restart: bool) -> Result<()> {
        let late = self.media().lies(Lie::Late);
        if self.media().lies(Lie::Silent) {
            self.media().power_cut();
            return Ok(());
        }
        {
            let streams = lock(&self.shared.streams);
            self.shared.away.store(true, Ordering::SeqCst);
            // The client reads what is answered yet, and sends no more.
            let how = if late { Shutdown::Both } else { Shutdown::Read };
            streams.iter().for_each(|(_, s)| drop(s.shutdown(how)));
        }
        let ended = if late { Ok(()) } else { self.await_connections() };
        {
            let mut media = lock(&self.shared.media);
            media.figures.disconnected += 1;
            // Without a loss the judge takes no older version: what is late is seen at once.
            if restart && !late {
                (self.shared.on_loss)();
                media.power_cut();
            }
        }
        // A client that comes back at once finds requests that are still to be executed.
        pause(if late { Duration::ZERO } else { away });
        self.shared.away.store(false, Ordering::SeqCst);
        ended
    }

    /// Loses its connections, and takes none until it comes back; it forgets nothing.
    pub fn leave(&self) -> Result<()> {
        {
            let streams = lock(&self.shared.streams);
            self.shared.away.store(true, Ordering::SeqCst);
            streams.iter().for_each(|(_, s)| drop(s.shutdown(Shutdown::Read)));
        }
        let ended = self.await_connections();
        self.media().figures.disconnected += 1;
        ended
    }

    /// It takes connections again.
    pub fn come_back(&self) {
        self.shared.away.store(false, Ordering::SeqCst);
    }

    /// Waits until nothing is left of connections that have ended: done, or dropped.
    pub fn settle(&self) -> Result<()> {
        self.hang(false);
        self.let_go();
        self.await_connections()
    }

    fn await_connections(&self) -> Result<()> {
        let give_up = clock() + SETTLE;
        while self.shared.connections.load(Ordering::SeqCst) > 0 || self.held() > 0 {
            if clock() > give_up {
                return Err("a connection to a disk does not end".into());
            }
            pause_ms(1);
        }
        Ok(())
    }

    /// Nothing was ever written to it. Whoever used it has gone.
    pub fn blank(&self) {
        self.media().blank();
    }

    /// The media.
    pub fn media(&self) -> std::sync::MutexGuard<'_, Media> {
        lock(&self.shared.media)
    }

    /// What happened to it so far.
    pub fn figures(&self) -> Figures {
        self.media().figures
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.hang(false);
        self.shared.ended.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket); // wakes the listener
    }
}

fn handshake(stream: &mut UnixStream, size: u64) -> std::io::Result<bool> {
    let mut hello = wire::HELLO.to_be_bytes().to_vec();
    hello.extend(wire::OPTION.to_be_bytes());
    hello.extend(3u16.to_be_bytes()); // fixed newstyle, no zeroes
    stream.write_all(&hello)?;
    let client_flags = wire::u32(stream)?;
    loop {
        if wire::u64(stream)? != wire::OPTION {
            return Err(wire::wrong("no option"));
        }
        let (option, len) = (wire::u32(stream)?, wire::u32(stream)?);
        let _ = wire::bytes(stream, len.min(1 << 16) as usize)?;
        match option {
            opt::EXPORT_NAME => {
                let mut out = size.to_be_bytes().to_vec();
                out.extend(wire::EXPORT_FLAGS.to_be_bytes());
                if client_flags & 2 == 0 {
                    out.extend([0; 124]);
                }
                stream.write_all(&out)?;
                return Ok(true);
            }
            opt::INFO | opt::GO => {
                let mut export = opt::INFO_EXPORT.to_be_bytes().to_vec();
                export.extend(size.to_be_bytes());
                export.extend(wire::EXPORT_FLAGS.to_be_bytes());
                wire::answer_option(stream, option, opt::TELL, &export)?;
                let mut sizes = opt::INFO_BLOCK_SIZE.to_be_bytes().to_vec();
                for size in [SECTOR as u32, 4096, LEN_MAX] {
                    sizes.extend(size.to_be_bytes());
                }
                wire::answer_option(stream, option, opt::TELL, &sizes)?;
                wire::answer_option(stream, option, opt::ACK, &[])?;
                if option == opt::GO {
                    return Ok(true);
                }
            }
            opt::ABORT => {
                wire::answer_option(stream, option, opt::ACK, &[])?;
                return Ok(false);
            }
            _ => wire::answer_option(stream, option, opt::UNSUPPORTED, &[])?,
        }
    }
}

#[derive(Clone)]
struct Job {
    request: Request,
    payload: Vec<u8>,
    /// When it came, on the clock of the media.
    came: u64,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    ended: bool,
}

struct Connection {
    shared: Arc<Shared>,
    queue: Mutex<Queue>,
    more: Condvar,
    out: Mutex<UnixStream>,
}

fn serve(shared: &Arc<Shared>, mut stream: UnixStream) -> std::io::Result<()> {
    let size = lock(&shared.media).len();
    if !handshake(&mut stream, size)? {
        return Ok(());
    }
    let connection = Arc::new(Connection {
        shared: Arc::clone(shared),
        queue: Mutex::new(Queue::default()),
        more: Condvar::new(),
        out: Mutex::new(stream.try_clone()?),
    });
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let connection = Arc::clone(&connection);
            let rng = lock(&shared.rng).fork();
            spawn(move || connection.work(rng))
        })
        .collect();
    if connection.read(&mut stream).is_err() {
        lock(&shared.media).figures.dropped += 1;
    }
    lock(&connection.queue).ended = true;
    connection.more.notify_all();
    for worker in workers {
        let _ = worker.join();
    }
    Ok(())
}

impl Connection {
    fn read(&self, stream: &mut UnixStream) -> std::io::Result<()> {
        let mut stream = std::io::BufReader::with_capacity(1 << 16, stream);
        loop {
            let request = Request::read(&mut stream)?;
            if request.cmd == cmd::DISC {
                return Ok(());
            }
            let len = if request.cmd == cmd::WRITE { request.len.min(LEN_MAX) } else { 0 };
            let payload = wire::bytes(&mut stream, len as usize)?;
            let came = lock(&self.shared.media).flush_came();
            lock(&self.queue).jobs.push_back(Job { request, payload, came });
            self.more.notify_one();
        }
    }

    fn work(self: &Arc<Self>, mut rng: Rng) {
        loop {
            let (job, ended) = {
                let mut queue = lock(&self.queue);
                loop {
                    if let Some(job) = queue.jobs.pop_front() {
                        break (job, queue.ended);
                    }
                    if queue.ended {
                        return;
                    }
                    queue = self.more.wait(queue).unwrap_or_else(|e| e.into_inner());
                }
            };
            if self.holds(&job, &mut rng) {
                continue;
            }
            let late = lock(&self.shared.media).lies(Lie::Late);
            let delayed = late && (ended || rng.chance(DELAYED) && self.has_ended_soon());
            if delayed {
                pause_ms(LATE_MS);
            }
            // Whose connection is lost: done or not, and answered or not.
            if !ended || delayed || rng.chance(0.5) {
                let answering = !ended && !delayed || rng.chance(0.5);
                let _ = self.execute(&job, answering, &mut rng); // the client has gone
            }
        }
    }

    /// Waits for the loss of the connection, up to a limit, and returns whether it came.
    fn has_ended_soon(&self) -> bool {
        let give_up = clock() + DELAY_MAX;
        while !lock(&self.queue).ended && clock() < give_up {
            pause_ms(5);
        }
        lock(&self.queue).ended
    }

    /// Whether this job is held; then it is done later.
    fn holds(self: &Arc<Self>, job: &Job, rng: &mut Rng) -> bool {
        let is_change = [cmd::WRITE, cmd::WRITE_ZEROES, cmd::TRIM].contains(&job.request.cmd);
        if !is_change || *lock(&self.shared.hold) != Hold::More {
            return false;
        }
        self.shared.held.fetch_add(1, Ordering::SeqCst);
        let (ours, job, mut rng) = (Arc::clone(self), job.clone(), rng.fork());
        spawn(move || {
            let shared = &ours.shared;
            let early = lock(&shared.media).lies(Lie::Again);
            let mut hold = lock(&shared.hold);
            if early {
                let _ = ours.send(job.request.cookie, 0, &[]);
            }
            while *hold != Hold::None {
                hold = shared.wake.wait(hold).unwrap_or_else(|e| e.into_inner());
            }
            drop(hold);
            let _ = ours.execute(&job, !early, &mut rng); // the client may have gone
            shared.held.fetch_sub(1, Ordering::SeqCst);
        });
        true
    }

    fn wait_while_hanging(&self) {
        let mut hanging = lock(&self.shared.hanging);
        while *hanging {
            let limit = Duration::from_millis(50);
            let (again, _) =
                self.shared.wake.wait_timeout(hanging, limit).unwrap_or_else(|e| e.into_inner());
            hanging = again;
        }
    }

    fn send(&self, cookie: u64, error: u32, data: &[u8]) -> std::io::Result<()> {
        let mut out = lock(&self.out);
        out.write_all(&wire::reply(cookie, error))?;
        out.write_all(data)
    }

    fn execute(&self, job: &Job, answering: bool, rng: &mut Rng) -> std::io::Result<()> {
        let Job { request, payload, came } = job;
        let answer = |error: u32, data: &[u8]| match answering {
            true => self.send(request.cookie, error, data),
            false => Ok(()),
        };
        let faults = *lock(&self.shared.faults);
        self.wait_while_hanging();
        let slow = |rng: &mut Rng| {
            if rng.chance(faults.slow) {
                pause_ms(rng.below(faults.slow_ms + 1));
            }
        };
        slow(rng);
        let size = lock(&self.shared.media).len();
        let (sector, sectors) = (request.offset / 512, u64::from(request.len) / 512);
        let inside = request.offset.checked_add(request.len.into()).is_some_and(|end| end <= size);
        let aligned = request.offset % 512 == 0 && request.len % 512 == 0;
        if request.cmd != cmd::FLUSH && !(inside && aligned) {
            return answer(wire::EINVAL, &[]);
        }
        match request.cmd {
            cmd::READ => {
                let mut data = vec![0; request.len as usize];
                let mut media = lock(&self.shared.media);
                let (from, until) = faults.unreadable;
                let bad = sector < until && from < sector + sectors;
                if bad || rng.chance(faults.read_fails) {
                    media.figures.reads_failed += 1;
                    if media.lies(Lie::Read) {
                        return answer(0, &data);
                    }
                    return answer(wire::EIO, &[]);
                }
                media.read(sector, &mut data);
                drop(media);
                answer(0, &data)
            }
            cmd::FLUSH => {
                if faults.flush_ms > 0 {
                    pause_ms(rng.below(faults.flush_ms + 1));
                }
                self.wait_while_hanging();
                let mut media = lock(&self.shared.media);
                let done = if rng.chance(faults.flush_fails) {
                    (self.shared.on_loss)();
                    media.flush_failing();
                    false
                } else {
                    media.flush(*came)
                };
                answer(if done { 0 } else { wire::EIO }, &[])
            }
            cmd::WRITE | cmd::WRITE_ZEROES | cmd::TRIM => {
                let zeroes =
                    vec![0; if request.cmd == cmd::WRITE { 0 } else { request.len as usize }];
                let data = if request.cmd == cmd::WRITE { payload } else { &zeroes };
                if request.cmd == cmd::TRIM && rng.chance(0.3) {
                    return answer(0, &[]); // advice that is not taken
                }
                if rng.chance(faults.write_fails) {
                    let mut media = lock(&self.shared.media);
                    media.write_failing(sector, data);
                    return answer(wire::EIO, &[]);
                }
                if request.flags & wire::FUA != 0 {
                    let mut media = lock(&self.shared.media);
                    media.write_durable(sector, data);
                    return answer(0, &[]);
                }
                let ticket = lock(&self.shared.media).write(sector, data);
                slow(rng);
                let mut media = lock(&self.shared.media);
                media.replied(ticket, sector, sectors);
                answer(0, &[])
            }
            _ => answer(wire::EINVAL, &[]),
        }
    }
}
