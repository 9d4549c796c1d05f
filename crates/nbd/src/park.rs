// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session in a pause of its server: what has begun ends, its replies leave, a FLUSH of its own
//! brings out failures, and then nothing of it is in flight.
//!
//! ```text
//!   receive loop ─ends, with what it has not executed─▶ replies left ─▶ FLUSH ─▶ parked ─┬─ resume
//!        ▲                                                                               ├─ end
//!        └────── goes on with that ◀─────────────────────────────────────────────────────┘
//! ```
use std::rc::Rc;
use std::sync::Arc;

use block::{Bio, Bufs, Class, Flags, Op, Opener, Sector, Status};
use reactor::{OnDone, watched};

use crate::conn::Conn;
use crate::planted::ServerFault;
use crate::unread::{Parked, Unread};

/// Keeps the session until the server goes on: returns what it goes on with, or `None` when the
/// connection ends.
pub(crate) async fn park(conn: &Rc<Conn>, unread: Unread) -> Option<Unread> {
    let over = || conn.is_ending() || conn.pause.abandoned.get();
    let goes_on = || !conn.pause.is_pausing() || over();
    // NB-U2
    let early = conn.shared.planted.is(ServerFault::ParkEarly);
    let is_quiet = || early || conn.in_flight() == 0 && conn.ops.get() == 0;
    conn.room.wait_for(|| is_quiet() || goes_on()).await;
    if !goes_on() {
        begin_flush(conn);
        conn.room.wait_for(|| conn.pause.flushes.get() == 0 || goes_on()).await;
    }
    plant_receive(conn);
    let unread = Arc::new(unread);
    loop {
        let number = conn.pause.number.get();
        if over() {
            return None;
        }
        if number == 0 {
            return Some(Arc::unwrap_or_clone(unread));
        }
        let flush_failed = conn.pause.flush_failed.get();
        let parked = Parked { unread: unread.clone(), flush_failed };
        match conn.home() {
            Some(home) => home.post(move |conn| conn.set_parked(number, parked)),
            None => conn.set_parked(number, parked),
        }
        conn.room.wait_for(|| conn.pause.number.get() != number || over()).await;
    }
}

/// NB-U4: sends a FLUSH with the session's opener.
fn begin_flush(conn: &Rc<Conn>) {
    let flushes = &conn.pause.flushes;
    flushes.set(flushes.get() + 1);
    let done = watched(Rc::new(FlushOfPause(conn.clone())), 0);
    let (sector, len, bufs) = (Sector::ZERO, Sector::ZERO, Bufs::new());
    let (op, flags, class, opener) = (Op::Flush, Flags::empty(), Class::Foreground, Opener::NONE);
    conn.session().device.submit(Bio { op, flags, class, opener, sector, len, bufs, done });
}

/// Notes its outcome at once: a FLUSH that the client sends after it must know it.
struct FlushOfPause(Rc<Conn>);

impl OnDone for FlushOfPause {
    fn on_done(&self, status: Status, _tag: u64) {
        let FlushOfPause(conn) = self;
        // What the device does not know it says again to the client.
        let failed = !matches!(status, Status::Ok | Status::NotSupported | Status::Invalid);
        if failed && !conn.shared.planted.is(ServerFault::ForgetFlushFailure) {
            conn.pause.flush_failed.set(true);
        }
        conn.pause.flushes.set(conn.pause.flushes.get() - 1);
        conn.room.wake_all();
    }
}

/// The fault [`ServerFault::ReceiveInPause`].
fn plant_receive(conn: &Rc<Conn>) {
    if conn.shared.planted.is(ServerFault::ReceiveInPause) {
        let into = block::Buf::alloc(512).all();
        drop(reactor::driver_io(conn.file(), reactor::SqeOp::Recv { into }));
    }
}
