// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keeper: connects, connects again, gives up on what has waited too long, and says goodbye.
use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Error, Nanos, Status};
use policy::{BACKOFF_FIRST_NS, backoff_ns};
use reactor::{FileId, SqeOp, driver_io, now, sleep, spawn};

use crate::client::device::Inner;
use crate::client::hello::{Hello, Said};
use crate::client::terms::Terms;
use crate::client::{Connect, News};
use crate::wire::OPTION_BYTES_MAX;

/// Time for a handshake, unless requests wait for a connection only so long.
const HELLO_TIME: Nanos = Nanos::from_secs(10);
/// Time for a server to end a connection that we have said goodbye on.
const GOODBYE_TIME: Nanos = Nanos::from_secs(2);
/// How often a pause looks whether it is over.
const PAUSE_STEP: Nanos = Nanos::from_millis(200);
/// Lost connections at a time that a server has not ended; each holds a buffer and a socket. Before
/// one more is made the oldest is given up, and its end will never be known.
const DYING_MAX: usize = 4;
/// What a handshake's buffer begins with.
const HELLO_BYTES: usize = 4096;

pub(crate) async fn close(file: FileId) {
    let _ = driver_io(file, SqeOp::Close).await;
}

/// How a handshake ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Not,
    Late,
    Done,
}

/// A new connection and what the server says of the export.
pub(crate) async fn dial(
    connect: &Rc<dyn Connect>,
    export: &str,
    timeout: Nanos,
) -> Result<(FileId, Terms), Error> {
    let file = connect.connect().await?;
    let time = timeout.min(HELLO_TIME);
    let over = Rc::new(Cell::new(Over::Not));
    let late = over.clone();
    spawn(async move {
        sleep(time).await;
        if late.get() == Over::Not {
            late.set(Over::Late);
            let _ = driver_io(file, SqeOp::Shutdown).await;
        }
    });
    let mut hello = Hello::new(export);
    let agreed = greet(file, &mut hello).await;
    let agreed = match over.replace(Over::Done) {
        // The socket is being shut down, whatever came of it.
        Over::Late => {
            let (s, what) = (time.0 as f64 / 1e9, hello.waits_for());
            Err(Error::io(format!("the server said nothing within {s} s: waited for {what}")))
        }
        Over::Not | Over::Done => agreed,
    };
    match agreed {
        Ok(terms) => Ok((file, terms)),
        Err(e) => {
            close(file).await;
            Err(e.within(connect.peer()))
        }
    }
}

async fn greet(file: FileId, hello: &mut Hello) -> Result<Terms, Error> {
    let mut out = Vec::new();
    let mut buf = Buf::alloc(HELLO_BYTES);
    let (mut start, mut end) = (0, 0);
    loop {
        let said = buf.read(|b| hello.step(&b[start..end], &mut out));
        let said = said.map_err(|refused| Error::new(refused.kind, refused.why))?;
        if !out.is_empty() {
            let bufs = Buf::copy_of(&out).into();
            out.clear();
            if driver_io(file, SqeOp::Send { bufs }).await.status != Status::Ok {
                return Err(Error::io("the server ended the connection during the handshake"));
            }
        }
        match said {
            Said::Took(n) => start += n,
            Said::Go(n, terms) if start + n == end => return Ok(terms),
            Said::Go(..) => return Err(Error::io("the server answers before it is asked")),
            Said::More(total) => {
                assert!(total <= OPTION_BYTES_MAX + HELLO_BYTES, "bounded by the handshake"); // C2
                if total > buf.len() {
                    let rest = buf.read(|b| b[start..end].to_vec());
                    buf = Buf::alloc(total);
                    buf.write(|b| b[..rest.len()].copy_from_slice(&rest));
                } else if start > 0 {
                    buf.write(|b| b.copy_within(start..end, 0));
                }
                (start, end) = (0, end - start);
                let into = buf.slice(end..buf.len());
                let result = driver_io(file, SqeOp::Recv { into }).await;
                if result.status != Status::Ok || result.value == 0 {
                    return Err(Error::io("the server ended the connection during the handshake"));
                }
                end += result.value as usize;
            }
        }
    }
}

/// Keeps a client connected until it is closed.
pub(crate) async fn run(client: Rc<Inner>) {
    let mut failures = 0;
    loop {
        let connected = || client.link.borrow().is_some();
        let over = || client.closing.get() && (!client.has_work() || client.failed.get());
        let wanted = || !connected() && !client.failed.get();
        let proved = || client.link.borrow().as_ref().is_some_and(|l| l.proved.get());
        client.changed.wait_for(|| over() || wanted()).await;
        if over() {
            break;
        }
        // One that connects and then fails at once would be tried in a tight loop.
        if failures > 0 {
            pause(&client, Nanos(backoff_ns(failures))).await;
            if over() {
                break;
            }
        }
        failures += 1;
        let oldest = {
            let dying = client.dying.borrow();
            dying.front().filter(|_| dying.len() >= DYING_MAX).cloned()
        };
        if let Some(link) = oldest {
            link.cut_off().await;
        }
        match dial(&client.connect, &client.export, client.options.timeout).await {
            Ok((file, terms)) => match client.terms.differ(&terms) {
                None => {
                    client.use_link(file, terms.structured);
                    client.tell(&News::Back);
                    client.changed.wait_for(|| proved() || !connected() || over()).await;
                    if proved() {
                        failures = 0;
                    }
                }
                Some(change) => {
                    close(file).await;
                    let export = &client.export;
                    client
                        .fail(format!("export `{export}` is another after a reconnect: {change}"));
                }
            },
            Err(e) => client.tell(&News::Refused(e.chain())),
        }
    }
    goodbye(&client).await;
    client.set_closed();
}

/// Sleeps, but not beyond the end of the client, and not long while somebody waits.
async fn pause(client: &Rc<Inner>, time: Nanos) {
    let began = now();
    let patience = Nanos((client.options.timeout.0 / 8).max(BACKOFF_FIRST_NS));
    loop {
        let waits = client.has_work();
        let until = began + if waits { time.min(patience) } else { time };
        if now() >= until || client.closing.get() && !waits {
            return;
        }
        sleep((until - now()).min(PAUSE_STEP)).await;
    }
}

async fn goodbye(client: &Rc<Inner>) {
    let link = client.link.borrow().clone();
    if let Some(link) = link {
        let late = link.clone();
        spawn(async move {
            sleep(GOODBYE_TIME).await;
            late.cut_off().await;
        });
        link.say_goodbye().await;
        link.break_off("closed");
    }
    let ended = || client.dying.borrow().is_empty() && client.link.borrow().is_none();
    client.changed.wait_for(ended).await;
}

/// Fails what waits too long.
pub(crate) async fn expire(client: Rc<Inner>) {
    let timeout = client.options.timeout;
    let step = Nanos((timeout.0 / 8).clamp(1_000_000, 1_000_000_000));
    loop {
        let connected = || client.link.borrow().is_some();
        let waits = || client.work.borrow().has_waiting(connected());
        let over = || client.closing.get() && !client.has_work();
        client.changed.wait_for(|| waits() || over()).await;
        if over() {
            return;
        }
        sleep(step).await;
        client.work.borrow_mut().expire(now(), timeout, connected(), &client.stats);
        if !client.has_work() {
            client.changed.wake_all();
        }
    }
}
