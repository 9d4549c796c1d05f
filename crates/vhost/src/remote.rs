// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queues of a session on another core: the part of the session there, to which the core that has
//! begun it forwards messages.
//!
//! ```text
//!   front end ──▶ Session, core 0 ── of a queue ──▶ the core that serves the queue
//!                                 ── of all queues ──▶ each core in turn, core 0 last
//! ```
//!
//! Invariants
//! - VH-Q1 A queue lives on one core: its kick, its ring, its requests, its notes and its calls are
//!   used there only. Which one it is is decided when the session begins.
//! - VH-Q2 A message has been handled on every core that it is for when it is answered.
use std::sync::Arc;

use block::{CoreId, Error};
use reactor::{CoreLocal, call};

use crate::export::Export;
use crate::figures::Figures;
use crate::message::{Answer, Request};
use crate::server::Server;
use crate::session::{Attachments, Common, Shared};

/// Another core, on which some queues of a session are served.
pub struct Place {
    /// The core.
    pub core: CoreId,
    /// To be called there: the server of that core, and the device as that core has it.
    pub begin: Box<dyn FnOnce() -> (Server, Box<dyn Export>) + Send>,
}

block::debug_as!(Place, s => "Place(core {})", s.core.0);

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Queue(u32),
    /// What all queues use.
    AllQueues,
    /// What only the core has that has begun the session.
    Session,
}

impl Scope {
    pub(crate) fn of(request: &Request) -> Scope {
        match request {
            Request::GetVringBase { queue }
            | Request::SetVringNum { queue, .. }
            | Request::SetVringAddr { queue, .. }
            | Request::SetVringBase { queue, .. }
            | Request::SetVringKick { queue, .. }
            | Request::SetVringCall { queue, .. }
            | Request::SetVringErr { queue, .. }
            | Request::SetVringEnable { queue, .. } => Scope::Queue(*queue),
            Request::SetFeatures(_)
            | Request::SetMemTable(_)
            | Request::SetInflightFd(_)
            | Request::ResetOwner
            | Request::ResetDevice => Scope::AllQueues,
            Request::GetFeatures
            | Request::GetProtocolFeatures
            | Request::GetQueueNum
            | Request::GetConfig { .. }
            | Request::GetInflightFd(_)
            | Request::SetOwner
            | Request::SetProtocolFeatures(_)
            | Request::SetBackendReqFd
            | Request::SetConfig => Scope::Session,
        }
    }
}

/// The part of a session on another core.
#[derive(Debug)]
pub(crate) struct RemoteQueues {
    pub(crate) core: CoreId,
    session: CoreLocal,
    pub(crate) figures: Arc<Figures>,
}

impl RemoteQueues {
    /// Begins it, for queues with these numbers.
    pub(crate) async fn begin(place: Place, common: Common, numbers: Vec<u16>) -> RemoteQueues {
        let Place { core, begin } = place;
        let begun = call(core, move || {
            let (server, export) = begin();
            let session = Shared::new(&server, export, common, &numbers);
            let figures = session.figures.clone();
            let session = CoreLocal::keep(session);
            async move { (session, figures) }
        });
        let (session, figures) = begun.await;
        RemoteQueues { core, session, figures }
    }

    /// Has the core handle a message.
    pub(crate) async fn handle(
        &self,
        request: Request,
        given: Attachments,
    ) -> Result<Answer, Error> {
        let session = self.session;
        let handled = call(self.core, move || async move {
            let session = session.get::<Shared>();
            // It ends after the last message.
            let session = session.ok_or_else(|| Error::not_found("the session has ended"))?;
            session.handle(request, given).await
        });
        handled.await
    }

    /// Pauses it; it takes no more requests from the moment on at which the core hears of it. As
    /// `Session::pause`.
    pub(crate) fn pause(&self) -> impl Future<Output = Vec<(u32, u16)>> + use<> {
        let session = self.session;
        call(self.core, move || async move {
            match session.get::<Shared>() {
                Some(session) => session.pause().await,
                None => Vec::new(),
            }
        })
    }

    /// Ends it; it takes no more requests from the moment on at which the core hears of it. The
    /// future ends when those in flight have ended.
    pub(crate) fn end(&self) -> impl Future<Output = ()> + use<> {
        let session = self.session;
        call(self.core, move || async move {
            if let Some(session) = session.get::<Shared>() {
                session.end().await;
            }
            session.release();
        })
    }
}
