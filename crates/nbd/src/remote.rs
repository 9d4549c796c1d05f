// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection that another core serves, as the core sees it that has accepted it.
use std::rc::Rc;

use block::CoreId;
use reactor::{CoreLocal, Msg, post, spawn};

use crate::conn::Conn;

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

    fn post(self, f: fn(Rc<Conn>)) {
        let conn = self.conn;
        let run = move || {
            // Absent when the session has ended.
            if let Some(conn) = conn.get::<Conn>() {
                f(conn);
            }
        };
        post(self.core, Msg::Call(Box::new(run)));
    }
}
