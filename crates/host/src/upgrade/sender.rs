// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The side of the daemon that hands over: stops, sends, commits; or goes on.
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::ErrorKind;
use control::{Failure, api};
use handover::{Frame, Message};

use super::{SuccessorProcess, blocking, device, end, nanos};
use crate::engine::{CrossingClients, CrossingDevice, CrossingLeaf, CrossingSession, Engine};
use crate::routes::State;

/// A hand-over that is under way.
pub(super) struct Sender {
    state: Arc<State>,
    started: Option<SuccessorProcess>,
    step: Duration,
    devices: Arc<Vec<CrossingDevice>>,
    /// The server of NBD has been paused.
    is_paused: bool,
    /// The successor may have opened the devices.
    may_have_opened: bool,
}

/// What is sent.
struct Load {
    leaves: Vec<CrossingLeaf>,
    clients: CrossingClients,
}

impl Sender {
    pub(super) fn new(state: Arc<State>, started: SuccessorProcess, step: Duration) -> Sender {
        let (devices, started) = (Arc::default(), Some(started));
        Sender { state, started, step, devices, is_paused: false, may_have_opened: false }
    }

    /// Stops clients and devices, sends everything, and has the successor open it.
    pub(super) async fn send_all(&mut self, report: &mut api::Upgraded) -> Result<(), Failure> {
        let (core, time) = (self.state.core.clone(), nanos(self.step));
        let devices = core.call(async |e: Rc<Engine>| e.crossing_devices().await).await??;
        self.devices = Arc::new(devices);
        self.state.pause_listeners(true);
        let pause = async move |e: Rc<Engine>| e.pause_clients(time).await;
        let clients = core.call(pause).await??;
        self.is_paused = true;
        core.call(async move |e: Rc<Engine>| e.hold(time).await).await??;
        let leaves = core.call(async |e: Rc<Engine>| e.crossing_leaves().await).await??;
        report.sessions = clients.sessions.len() as u64;
        self.may_have_opened = true;
        let started = self.started.take().ok_or_else(ended)?;
        let (state, devices, step) = (self.state.clone(), self.devices.clone(), self.step);
        let sent = blocking(move || {
            let load = Load { leaves, clients };
            let sent = send(&started, &state, &devices, &load, step);
            Ok((started, sent))
        });
        let (started, sent) = sent.await?;
        self.started = Some(started);
        sent
    }

    /// The successor serves from now on (HO-UP1).
    pub(super) async fn commit(&mut self) -> Result<(), Failure> {
        let started = self.started.take().ok_or_else(ended)?;
        let step = self.step;
        let sent = blocking(move || {
            let sent = started.channel.send_message(Message::Commit, step);
            Ok((started, sent.map_err(Failure::from)))
        });
        let (started, sent) = sent.await?;
        if sent.is_err() {
            self.started = Some(started);
        } else {
            // Open until this process ends: the successor sees that then.
            #[expect(clippy::mem_forget, reason = "its end is the end of the process")]
            std::mem::forget(started.channel);
            // HO-UP1: an error changes nothing any more.
            let _ = self.state.core.post(|e| {
                let engine = e.clone();
                reactor::spawn(async move { engine.abandon_clients().await });
            });
        }
        sent
    }

    /// Goes on as before.
    pub(super) async fn roll_back(mut self) {
        if let Some(started) = self.started.take() {
            end(started, self.may_have_opened).await; // HO-UP2
        }
        let (devices, anew) = (self.devices.clone(), self.may_have_opened);
        let core = &self.state.core;
        let failures = core.call(async move |e: Rc<Engine>| e.let_go(&devices, anew).await).await;
        for failure in failures.unwrap_or_default() {
            tracing::error!(error = %failure, "a device stays suspended after the hand-over");
        }
        if self.is_paused {
            let _ = core.call(async |e: Rc<Engine>| e.resume_clients()).await;
        }
        self.state.pause_listeners(false);
    }
}

fn ended() -> Failure {
    Failure::new(ErrorKind::Io, "the successor has ended")
}

fn send(
    started: &SuccessorProcess,
    state: &State,
    devices: &[CrossingDevice],
    load: &Load,
    step: Duration,
) -> Result<(), Failure> {
    let channel = &started.channel;
    let with = |message: Message, descriptor: &OwnedFd| {
        channel.send(&Frame::new(message), Some(descriptor.as_fd()), step)
    };
    let source = state.source.as_ref().ok_or_else(ended)?;
    with(Message::RunDirectory, &source.lock)?;
    for (listener, socket) in &source.listeners {
        with(Message::Listener(listener.clone()), socket)?;
    }
    for (name, file) in &load.leaves {
        with(Message::Leaf(handover::Leaf { name: name.clone() }), file)?;
    }
    for crossing in devices {
        channel.send_message(Message::Device(device(crossing)), step)?;
    }
    for device in &load.clients.lost_writes {
        channel.send_message(Message::LostWrites { device: device.clone() }, step)?;
    }
    for CrossingSession { session, socket, unread } in &load.clients.sessions {
        let frame = Frame { message: Message::Session(session.clone()), bytes: unread.clone() };
        channel.send(&frame, Some(socket.as_fd()), step)?;
    }
    channel.send_message(Message::Open, step)?;
    match channel.receive(step)?.0.message {
        Message::Opened => Ok(()),
        Message::Failed { cause } => {
            Err(Failure::new(ErrorKind::Io, format!("the successor: {cause}")))
        }
        Message::Greeting(_)
        | Message::RunDirectory
        | Message::Listener(_)
        | Message::Leaf(_)
        | Message::Device(_)
        | Message::Session(_)
        | Message::LostWrites { .. }
        | Message::Open
        | Message::Commit => {
            let text = "the successor does not say whether it has opened the devices";
            Err(Failure::new(ErrorKind::Io, text))
        }
    }
}
