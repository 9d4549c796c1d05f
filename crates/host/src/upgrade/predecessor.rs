// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The side of the successor: takes what the daemon before gives.
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use block::ErrorKind;
use control::Failure;
use handover::{Channel, Greeting, Message};

use super::{SUCCESSOR, blocking};
use crate::engine::{CrossingClients, CrossingSession};
use crate::io_failure::io_failure;
use crate::passed::{ListenerOrigin, ListenerRole, PassedListener, address};

/// How long the daemon before may take for a step: it has a limit of its own.
const PATIENCE: Duration = Duration::from_secs(900);

/// The daemon before.
#[derive(Clone, Debug)]
pub(crate) struct Predecessor(Arc<Channel>);

/// What it leaves.
#[derive(Debug)]
pub(crate) struct PredecessorState {
    pub(crate) lock: File,
    pub(crate) listeners: Vec<PassedListener>,
    pub(crate) leaves: Vec<OwnedFd>,
    pub(crate) devices: Vec<handover::Device>,
    pub(crate) clients: CrossingClients,
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
        Ok(Some(Predecessor(Arc::new(channel))))
    }

    async fn send(&self, message: Message) -> Result<(), Failure> {
        let channel = self.0.clone();
        blocking(move || Ok(channel.send_message(message, PATIENCE)?)).await
    }

    /// Greets it, and waits for what it leaves: it stops serving before it sends that.
    pub(crate) async fn state(&self) -> Result<PredecessorState, Failure> {
        let channel = self.0.clone();
        blocking(move || state(&channel)).await
    }

    /// Reports that all is open, and waits for COMMIT.
    ///
    /// # Errors
    /// When it goes on itself: this process has to end.
    pub(crate) async fn commit(&self) -> Result<(), Failure> {
        self.send(Message::Opened).await?;
        let channel = self.0.clone();
        let next = blocking(move || Ok(channel.receive(PATIENCE)?.0.message)).await?;
        if next != Message::Commit {
            return Err(wrong(&format!("{next:?} instead of COMMIT")));
        }
        Ok(())
    }

    /// Reports why this process can't take over.
    pub(crate) async fn refuse(&self, failure: &Failure) {
        // It sees the end of this process in any case.
        let _ = self.send(Message::Failed { cause: failure.message.clone() }).await;
    }

    /// Waits until its process has ended.
    pub(crate) async fn ended(&self) {
        let channel = self.0.clone();
        let _ = blocking(move || Ok(channel.wait_for_end(PATIENCE))).await;
    }
}

fn state(channel: &Channel) -> Result<PredecessorState, Failure> {
    let ours = Greeting::new(env!("CARGO_PKG_VERSION"));
    channel.send_message(Message::Greeting(ours.clone()), PATIENCE)?;
    let (frame, _) = channel.receive(PATIENCE)?;
    let Message::Greeting(theirs) = frame.message else {
        return Err(wrong("it does not begin with a greeting"));
    };
    if ours.common_version(&theirs).is_none() {
        return Err(wrong("the versions do not fit"));
    }
    tracing::info!(pid = theirs.pid, version = theirs.program, "takes over from a daemon");
    let mut lock = None;
    let (mut listeners, mut leaves) = (Vec::new(), Vec::new());
    let (mut devices, mut clients) = (Vec::new(), CrossingClients::default());
    loop {
        let (frame, descriptor) = channel.receive(PATIENCE)?;
        match (frame.message, descriptor) {
            (Message::RunDirectory, Some(file)) => lock = Some(File::from(file)),
            (Message::Listener(one), Some(socket)) => listeners.push(listener(one, socket)?),
            (Message::Leaf(_), Some(file)) => leaves.push(file),
            (Message::Device(device), None) => devices.push(device),
            (Message::Session(session), Some(socket)) => {
                let unread = frame.bytes;
                clients.sessions.push(CrossingSession { session, socket, unread });
            }
            (Message::LostWrites { device }, None) => clients.lost_writes.push(device),
            (Message::Open, None) => break,
            (other, _) => return Err(wrong(&format!("{other:?} is not expected here"))),
        }
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
