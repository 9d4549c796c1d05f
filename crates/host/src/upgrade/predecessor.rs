// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The side of the successor: takes what the daemon before gives.
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use block::ErrorKind;
use control::Failure;
use handover::{
    Channel, Committed, Greeting, Message, Parcel, PlantedFault, Takeover, VhostSession,
};

use super::SUCCESSOR;
use super::socket::Socket;
use crate::engine::{CrossingClients, CrossingSession};
use crate::io_failure::io_failure;
use crate::passed::{ListenerOrigin, ListenerRole, PassedListener, address};
use crate::vhost_user::crossing::CrossingGuest;

/// How long the daemon before may take for a step: it has a limit of its own.
const PATIENCE: Duration = Duration::from_secs(900);

/// The daemon before.
#[derive(Clone, Debug)]
pub(crate) struct Predecessor(Arc<Takeover<Socket>>);

/// What it leaves.
#[derive(Debug)]
pub(crate) struct PredecessorState {
    pub(crate) lock: File,
    pub(crate) listeners: Vec<PassedListener>,
    pub(crate) leaves: Vec<OwnedFd>,
    pub(crate) devices: Vec<handover::Device>,
    pub(crate) clients: CrossingClients,
}

/// A front end of vhost-user, of which more descriptors may come.
struct ArrivingGuest {
    session: VhostSession,
    socket: OwnedFd,
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

fn wrong(text: &str) -> Failure {
    Failure::new(ErrorKind::Invalid, format!("hand-over: {text}"))
}

impl Predecessor {
    /// The daemon that has started this process to take over, if one has. To be called before the
    /// first ring is made: each holds the socket to it (HO-UP2).
    pub(crate) fn of_process() -> Result<Option<Predecessor>, Failure> {
        if std::env::var_os(SUCCESSOR).is_none() {
            return Ok(None);
        }
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let socket = socket.map_err(|e| io_failure(&e, "standard input"))?;
        let channel = Channel::of(socket);
        uring::set_lifeline(channel.descriptor()?);
        let takeover = Takeover::new(Socket::new(channel, PATIENCE), PlantedFault::NONE);
        Ok(Some(Predecessor(Arc::new(takeover))))
    }

    /// Greets it, and waits for what it leaves: it stops serving before it sends that.
    pub(crate) async fn state(&self) -> Result<PredecessorState, Failure> {
        let theirs = self.0.greet(Greeting::new(env!("CARGO_PKG_VERSION"))).await?;
        tracing::info!(pid = theirs.pid, version = theirs.program, "takes over from a daemon");
        state(self.0.receive().await?)
    }

    /// Reports that all is open, and waits for COMMIT.
    ///
    /// # Errors
    /// When it goes on itself: this process has to end.
    pub(crate) async fn commit(&self) -> Result<Committed, Failure> {
        Ok(self.0.commit().await?)
    }

    /// Reports why this process can't take over.
    pub(crate) async fn refuse(&self, failure: &Failure) {
        self.0.refuse(failure.message.clone()).await;
    }

    /// Waits until its process has ended.
    pub(crate) async fn ended(&self) {
        self.0.ended().await;
    }
}

fn state(load: Vec<Parcel<OwnedFd>>) -> Result<PredecessorState, Failure> {
    let mut lock = None;
    let (mut listeners, mut leaves) = (Vec::new(), Vec::new());
    let (mut devices, mut clients) = (Vec::new(), CrossingClients::default());
    let mut guests: Vec<ArrivingGuest> = Vec::new();
    for (frame, descriptor) in load {
        match (frame.message, descriptor) {
            (Message::RunDirectory, Some(file)) => lock = Some(File::from(file)),
            (Message::Listener(one), Some(socket)) => listeners.push(listener(one, socket)?),
            (Message::Leaf(_), Some(file)) => leaves.push(file),
            (Message::Device(device), None) => devices.push(device),
            (Message::Session(session), Some(socket)) => {
                let unread = frame.bytes;
                clients.sessions.push(CrossingSession { session, socket, unread });
            }
            (Message::VhostSession(session), Some(socket)) => {
                let (bytes, descriptors) = (frame.bytes, Vec::new());
                guests.push(ArrivingGuest { session, socket, bytes, descriptors });
            }
            (Message::VhostDescriptor, Some(descriptor)) => {
                let guest = guests.last_mut();
                let guest = guest.ok_or_else(|| wrong("a descriptor of no front end"))?;
                guest.descriptors.push(descriptor);
            }
            (Message::LostWrites { device }, None) => clients.lost_writes.push(device),
            (other, _) => return Err(wrong(&format!("{other:?} is not expected here"))),
        }
    }
    for ArrivingGuest { session, socket, bytes, descriptors } in guests {
        clients.guests.push(CrossingGuest::new(session, socket, &bytes, descriptors)?);
    }
    let lock = lock.ok_or_else(|| wrong("the lock of the run directory is missing"))?;
    Ok(PredecessorState { lock, listeners, leaves, devices, clients })
}

fn listener(one: handover::Listener, socket: OwnedFd) -> Result<PassedListener, Failure> {
    let role = match one.role {
        handover::ListenerRole::Nbd => ListenerRole::Nbd,
        handover::ListenerRole::Control => ListenerRole::Control,
        handover::ListenerRole::Metrics => ListenerRole::Metrics,
    };
    let origin = match (one.of_unit, one.stored) {
        (true, _) => ListenerOrigin::Unit,
        (false, Some(name)) => ListenerOrigin::Store(name),
        (false, None) => ListenerOrigin::Predecessor,
    };
    let addr = address(&socket).ok_or_else(|| wrong("a listener has no address"))?;
    Ok(PassedListener { role, addr, socket, origin })
}
