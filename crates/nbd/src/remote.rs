// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection that another core serves: as the core that has accepted it sees the other one, and
//! the other way round.
use std::rc::Rc;

use block::CoreId;
use reactor::{CoreLocal, Msg, post, spawn};

use crate::conn::Conn;
use crate::unread::Parked;

/// The connection on another core.
#[derive(Clone, Copy)]
pub(crate) enum OtherCore {
    /// That core serves the session.
    Serves(RemoteConnection),
    /// That core has accepted the connection.
    Accepted(HomeConnection),
}

/// The connection on the core that serves the session.
#[derive(Clone, Copy)]
pub(crate) struct RemoteConnection {
    pub(crate) core: CoreId,
    pub(crate) conn: CoreLocal,
}

impl RemoteConnection {
    /// [`Conn::drain`], there.
    pub(crate) fn drain(self) {
        self.post(Conn::drain);
    }

    /// [`Conn::cut_off`], there.
    pub(crate) fn cut_off(self) {
        self.post(|conn| spawn(conn.cut_off()));
    }

    /// [`Conn::pause`], there.
    pub(crate) fn pause(self, number: u64) {
        self.post(move |conn| conn.pause(number));
    }

    /// [`Conn::resume`], there.
    pub(crate) fn resume(self) {
        self.post(|conn| conn.resume());
    }

    /// [`Conn::abandon`], there.
    pub(crate) fn abandon(self) {
        self.post(|conn| conn.abandon());
    }

    fn post(self, f: impl FnOnce(Rc<Conn>) + Send + 'static) {
        post_to(self.core, self.conn, f);
    }
}

/// The connection on the core that has accepted it.
#[derive(Clone, Copy)]
pub(crate) struct HomeConnection {
    pub(crate) core: CoreId,
    pub(crate) conn: CoreLocal,
}

impl HomeConnection {
    /// [`Conn::set_parked`], there.
    pub(crate) fn set_parked(self, number: u64, parked: Parked) {
        post_to(self.core, self.conn, move |conn| conn.set_parked(number, parked));
    }
}

fn post_to(core: CoreId, conn: CoreLocal, f: impl FnOnce(Rc<Conn>) + Send + 'static) {
    let run = move || {
        // Absent when the session has ended.
        if let Some(conn) = conn.get::<Conn>() {
            f(conn);
        }
    };
    post(core, Msg::Call(Box::new(run)));
}
