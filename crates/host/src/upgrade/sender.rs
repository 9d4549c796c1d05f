// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon that hands over: what `handover::hand_over` does with its clients and devices.
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use block::{ErrorKind, Nanos};
use control::Failure;
use handover::{Channel, Frame, Message, OldDaemon, Parcel, WITH_VHOST};
use tokio::time::Instant;

use super::socket::Socket;
use super::{blocking, device, refuse_unaccepted};
use crate::engine::{CrossingClients, CrossingDevice, CrossingSession, Engine};
use crate::io_failure::io_failure;
use crate::routes::State;

/// How often it is said that a successor that was killed has not ended.
const END_REPORT: Duration = Duration::from_secs(10);

/// A hand-over that is under way.
pub(super) struct Sender {
    state: Arc<State>,
    socket: Socket,
    step: Duration,
    /// What the caller accepts.
    force: Vec<String>,
    child: Mutex<Option<Child>>,
    devices: OnceLock<Arc<Vec<CrossingDevice>>>,
    clients: Mutex<CrossingClients>,
    sessions: AtomicU64,
    /// Devices that can't go on yet.
    stuck: Mutex<Vec<Failure>>,
    /// When the clients had to stop.
    pause: OnceLock<Instant>,
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn parcel(message: Message) -> Parcel<OwnedFd> {
    (Frame::new(message), None)
}

fn copy(file: &OwnedFd) -> Result<OwnedFd, Failure> {
    let copy = file.as_fd().try_clone_to_owned();
    copy.map_err(|e| io_failure(&e, "a descriptor for the successor"))
}

/// A message with another descriptor of `file`.
fn with_file(message: Message, file: &OwnedFd) -> Result<Parcel<OwnedFd>, Failure> {
    Ok((Frame::new(message), Some(copy(file)?)))
}

impl Sender {
    pub(super) fn new(
        state: Arc<State>,
        child: Child,
        channel: Channel,
        step: Duration,
        force: Vec<String>,
    ) -> Sender {
        let (socket, child) = (Socket::new(channel, step), Mutex::new(Some(child)));
        Sender {
            state,
            socket,
            step,
            force,
            child,
            devices: OnceLock::new(),
            clients: Mutex::default(),
            sessions: AtomicU64::default(),
            stuck: Mutex::default(),
            pause: OnceLock::new(),
        }
    }

    /// Clients that have crossed.
    pub(super) fn sessions(&self) -> u64 {
        self.sessions.load(Relaxed)
    }

    /// Why the hand-over has failed, with the devices that can't go on yet.
    pub(super) fn with_stuck(&self, failure: Failure) -> Failure {
        let stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let text =
            |failure: &Failure| format!("; it stays suspended, and is tried again: {failure}");
        let stuck: String = stuck.iter().map(text).collect();
        Failure { message: format!("{}{stuck}", failure.message), ..failure }
    }

    /// How long clients have waited.
    pub(super) fn pause_ms(&self) -> u64 {
        let pause = self.pause.get().map(Instant::elapsed).unwrap_or_default();
        u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)
    }

    /// For whoever asks where a pause goes.
    fn log_step(&self, step: &str) {
        tracing::debug!(step, pause_ms = self.pause_ms(), "hand-over");
    }

    fn devices(&self) -> Arc<Vec<CrossingDevice>> {
        self.devices.get().cloned().unwrap_or_default()
    }
}

impl OldDaemon for Sender {
    type Failure = Failure;
    type Transport = Socket;

    fn transport(&self) -> &Socket {
        &self.socket
    }

    async fn prepare(&self) -> Result<(), Failure> {
        let time = nanos(self.step);
        let prepare = async move |e: Rc<Engine>| {
            e.flush_page_caches(time).await?;
            e.pause_background(time).await;
            Ok(())
        };
        self.state.core.call(prepare).await?
    }

    async fn take_back(&self) {
        let _ = self.state.core.call(async |e: Rc<Engine>| e.resume_background().await).await;
    }

    async fn pause_clients(&self) -> Result<(), Failure> {
        let (core, time) = (&self.state.core, nanos(self.step));
        self.pause.get_or_init(Instant::now);
        let devices = core.call(async |e: Rc<Engine>| e.crossing_devices().await).await??;
        self.devices.get_or_init(|| Arc::new(devices));
        self.state.pause_listeners(true);
        let pause = async move |e: Rc<Engine>| e.pause_clients(time).await;
        let clients = core.call(pause).await??;
        *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = clients;
        self.log_step("clients have stopped");
        Ok(())
    }

    async fn hold_devices(&self) -> Result<(), Failure> {
        let time = nanos(self.step);
        let hold = async move |e: Rc<Engine>| {
            e.hold(time).await?;
            e.upgrade_losses().await
        };
        let losses = self.state.core.call(hold).await??;
        refuse_unaccepted(&losses, &self.force)?; // HO-UP5
        self.log_step("devices are suspended");
        Ok(())
    }

    async fn load(&self, version: u32) -> Result<Vec<Parcel<OwnedFd>>, Failure> {
        let leaves = async |e: Rc<Engine>| e.crossing_leaves().await;
        let leaves = self.state.core.call(leaves).await??;
        let source =
            self.state.source.as_ref().ok_or_else(|| {
                Failure::new(ErrorKind::NotSupported, "this daemon can't hand over")
            })?;
        let clients =
            std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        let mut load = vec![with_file(Message::RunDirectory, &source.lock)?];
        for (listener, socket) in &source.listeners {
            load.push(with_file(Message::Listener(listener.clone()), socket)?);
        }
        for (name, file) in leaves {
            load.push((Frame::new(Message::Leaf(handover::Leaf { name })), Some(file)));
        }
        let devices = self.devices();
        let CrossingClients { sessions, lost_writes, mut guests, used_by_guests } = clients;
        let device = |crossing| parcel(Message::Device(device(crossing, &used_by_guests)));
        load.extend(devices.iter().map(device));
        if version < WITH_VHOST {
            // Their connections end with this process, and they connect again.
            guests.clear();
        }
        self.sessions.store((sessions.len() + guests.len()) as u64, Relaxed);
        load.extend(lost_writes.into_iter().map(|device| parcel(Message::LostWrites { device })));
        for CrossingSession { session, socket, unread } in sessions {
            let frame = Frame { message: Message::Session(session), bytes: unread };
            load.push((frame, Some(socket)));
        }
        for guest in guests {
            let (bytes, descriptors) = guest.connection.encode();
            let frame = Frame { message: Message::VhostSession(guest.session), bytes };
            load.push((frame, Some(copy(&guest.socket)?)));
            for descriptor in descriptors {
                load.push(with_file(Message::VhostDescriptor, &descriptor)?);
            }
        }
        Ok(load)
    }

    fn successor_lives(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    async fn end_successor(&self, has_files: bool) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut child) = child else { return };
        let socket = self.socket.clone();
        let ended = blocking(move || {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
            while has_files && !socket.wait_for_end(END_REPORT) {
                tracing::error!(
                    pid = child.id(),
                    "requests of the successor that was ended do not end: its disk hangs. This \
                     daemon goes on when they have"
                );
            }
            Ok(())
        });
        // Only a panic of its thread, which ends the process.
        let _ = ended.await;
    }

    async fn release_devices(&self, anew: bool) {
        let devices = self.devices();
        let release = async move |e: Rc<Engine>| e.let_go(&devices, anew).await;
        let failures = self.state.core.call(release).await.unwrap_or_default();
        *self.stuck.lock().unwrap_or_else(PoisonError::into_inner) = failures;
    }

    async fn resume_clients(&self) {
        let _ = self.state.core.call(async |e: Rc<Engine>| e.resume_clients()).await;
        self.state.pause_listeners(false);
    }

    async fn leave(&self) {
        self.log_step("committed");
        // Open until this process ends: the successor sees that then.
        #[expect(clippy::mem_forget, reason = "its end is the end of the process")]
        std::mem::forget(self.socket.clone());
        // HO-UP1: an error changes nothing any more.
        let _ = self.state.core.post(|e| {
            let engine = e.clone();
            reactor::spawn(async move { engine.abandon_clients().await });
        });
    }
}
