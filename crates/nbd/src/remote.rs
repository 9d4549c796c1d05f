// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection that another core serves: as the core that has accepted it sees the other one, and
//! the other way round.
use std::rc::Rc;

use block::CoreId;
use reactor::{CoreLocal, Msg, post};

use crate::conn::Conn;

/// The connection on another core.
#[derive(Clone, Copy)]
pub(crate) enum OtherCore {
    /// That core serves the session.
    Serves(RemoteConnection),
    /// That core has accepted the connection.
    Accepted(RemoteConnection),
}

/// What another core knows as this connection.
#[derive(Clone, Copy)]
pub(crate) struct RemoteConnection {
    pub(crate) core: CoreId,
    pub(crate) conn: CoreLocal,
}

impl RemoteConnection {
    /// Has `f` run there, unless the session has ended.
    pub(crate) fn post(self, f: impl FnOnce(Rc<Conn>) + Send + 'static) {
        let run = move || {
            if let Some(conn) = self.conn.get::<Conn>() {
                f(conn);
            }
        };
        post(self.core, Msg::Call(Box::new(run)));
    }
}
