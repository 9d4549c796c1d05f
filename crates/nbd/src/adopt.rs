// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sessions of another server, which has paused: this one goes on with them.
use std::rc::Rc;
use std::sync::Arc;

use block::{Error, ErrorKind, Limits};
use reactor::{SqeOp, driver_io, spawn};

use crate::conn::Conn;
use crate::export::{Context, Export};
use crate::figures::Figures;
use crate::handshake::{Session, SessionTerms};
use crate::pause::PausedSession;
use crate::peer::ListenerRules;
use crate::receive::UNREAD_BYTES_MAX;
use crate::server::{self, Server};
use crate::session;
use crate::unread::Unread;
use crate::wire::ExportFlags;

impl Server {
    /// Goes on with a session that another server has paused, by `export`: with what was received
    /// before, then with what its socket has. The server owns the socket from now on. Returns the
    /// number of the connection: that of the session, unless another connection has it.
    ///
    /// Its terms stay as they are: a device that has become larger does so for other clients.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, in words, when the export can't keep what the client was told (NB-U5): it is
    /// smaller than it was during the pause, takes no writes any more, or the like. The connection
    /// is closed.
    pub fn adopt(&self, paused: PausedSession, export: Box<dyn Export>) -> Result<u64, Error> {
        let shared = &self.0;
        assert!(!shared.stopping.get(), "adopt after shutdown");
        if let Some(why) = broken_promise(&paused, &*export) {
            if paused.has_lost_writes {
                shared.unreported.borrow_mut().insert(export.name());
            }
            let socket = paused.socket;
            spawn(async move {
                let _ = driver_io(socket, SqeOp::Close).await;
            });
            let (name, id) = (export.name(), paused.id);
            return Err(Error::new(
                ErrorKind::NotSupported,
                format!(
                    "{name}: the session of NBD client {id} can't go on, and its connection is \
                 closed: {why}"
                ),
            ));
        }
        shared.watch_deadlines();
        let is_taken = shared.conns.borrow().iter().any(|(_, conn)| conn.figures.id == paused.id);
        let id = if is_taken { shared.last_id.get() + 1 } else { paused.id };
        shared.last_id.set(shared.last_id.get().max(id));
        let figures = Arc::new(Figures::adopted(id, paused.age));
        figures.requests.set(paused.requests);
        figures.read_bytes.set(paused.read_bytes);
        figures.write_bytes.set(paused.write_bytes);
        figures.errors.set(paused.errors);
        let rules = ListenerRules { peer: paused.peer, tls: None };
        let conn = Rc::new(Conn::with_figures(shared.clone(), paused.socket, rules, figures));
        conn.set_has_place();
        conn.pause.flush_failed.set(paused.has_lost_writes);
        export.begin();
        let session = session_of(&paused, export);
        let unread = Unread { refused: paused.refused, bytes: paused.unread };
        server::run(&conn.clone(), session::run_adopted(conn, session, unread));
        Ok(id)
    }
}

/// What the client was told and would not hold any more.
fn broken_promise(paused: &PausedSession, export: &dyn Export) -> Option<String> {
    let limits = export.device().limits();
    // What was broken before the pause was so by an operator, and the session went on.
    let size = paused.size.min(paused.present_size);
    let read_only = paused.read_only || paused.flags.contains(ExportFlags::READ_ONLY);
    let lacks = |context: &&Context| !export.offers(**context);
    if limits.capacity < size {
        let (was, is) = (size.bytes(), limits.capacity.bytes());
        return Some(format!("its size was {was} bytes and is {is}"));
    }
    if limits.logical_block_bytes > paused.block_bytes {
        let (was, is) = (paused.block_bytes, limits.logical_block_bytes);
        return Some(format!("its blocks were of {was} bytes and are of {is}"));
    }
    if export.read_only() && !read_only {
        return Some("it is read-only now".into());
    }
    if paused.flags.contains(ExportFlags::FLUSH) && !limits.keeps {
        return Some("a FLUSH makes nothing durable any more".into());
    }
    if let Some(context) = paused.contexts.iter().find(lacks) {
        return Some(format!("it has no `{}` any more", context.name()));
    }
    if paused.unread.len() > UNREAD_BYTES_MAX {
        let bytes = paused.unread.len();
        return Some(format!("{bytes} bytes are unread, and at most {UNREAD_BYTES_MAX} can be"));
    }
    None
}

/// The session, with the terms that the client knows.
fn session_of(paused: &PausedSession, export: Box<dyn Export>) -> Session {
    let limits = Limits {
        capacity: paused.size,
        logical_block_bytes: paused.block_bytes,
        ..export.device().limits()
    };
    let (flags, structured) = (paused.flags, paused.structured);
    let contexts = Context::ALL.map(|context| paused.contexts.contains(&context));
    let latencies = export.latencies();
    SessionTerms { limits, flags, structured, latencies, contexts }.with(export)
}
