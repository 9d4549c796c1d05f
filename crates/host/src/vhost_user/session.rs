// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session's thread, which has the control socket, and what it hands to core 0; and the device of
//! a session, on each core that serves queues of it.
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use block::latency::Latencies;
use block::{BlockDevice, ClientRegion, CoreId, Error};
use dm::{Opened, ReadOnly};
use reactor::spawn;
use rustix::net::{Shutdown, shutdown};
use uring::{GuestBudget, GuestMemory, RemoteEnd};
use vhost::control::{Connection, Core, Descriptors, Message, ServiceEnd, drain, serve};
use vhost::message::{Answer, Request};
use vhost::{Attachments, EventFd, Export, OpenEvent, Place, Server};

use super::{VhostClient, VhostUser, server_of_this_core, socket_is_paused};
use crate::core_thread::CoreHandle;
use crate::secondary::{Lease, device_on_this_core};
use crate::sessions::{SessionCore, SessionCores};

/// Ends what is under way on a socket. Does not wait.
pub(super) fn shut_down(socket: &OwnedFd) {
    // An error means that the other side has gone.
    let _ = shutdown(socket, Shutdown::Both);
}

/// The process at the other end, and its user.
pub(super) fn peer(socket: &OwnedFd) -> Option<(u32, u32)> {
    match uring::remote_end(socket) {
        Some(RemoteEnd::Process { pid, uid }) => Some((pid.cast_unsigned(), uid)),
        Some(RemoteEnd::Address(_)) | None => None,
    }
}

/// What each core is told of a session's device.
#[derive(Clone)]
struct ExportTerms {
    read_only: ReadOnly,
    latencies: Arc<Latencies>,
    was_used: Arc<AtomicBool>,
    survives_kill: bool,
}

/// A session's device, on one of the cores that serve its queues.
struct CoreExport {
    device: Rc<dyn BlockDevice>,
    terms: ExportTerms,
    /// On core 0: what other cores have of the device, as long as they may use it; the device; and
    /// the places of its queues.
    _home: Option<(Option<Lease>, Rc<Opened>, SessionCore)>,
}

/// A mapped device for one session, and where its queues are served.
pub(super) type Exported = (Box<dyn Export>, Vec<Option<Place>>);

impl VhostUser {
    pub(super) fn export(
        &self,
        session_cores: &Rc<SessionCores>,
        opened: Opened,
        survives_kill: bool,
    ) -> Exported {
        let opened = Rc::new(opened);
        let device = opened.device().clone();
        let terms = ExportTerms {
            read_only: device.read_only().clone(),
            latencies: device.latencies(),
            was_used: self.was_used(&device),
            survives_kill,
        };
        let placed = session_cores.begin(device.minor());
        let cores = placed.in_turn(self.cores);
        let lease = (cores.len() > 1).then(|| session_cores.owner.lease(opened.clone()));
        let place = |core: CoreId| {
            let (handle, terms) = (lease.as_ref()?.handle(), terms.clone());
            let bytes_max = self.core_bytes_max;
            let begin = move || -> (Server, Box<dyn Export>) {
                let device = device_on_this_core(&handle);
                let export = CoreExport { device, terms, _home: None };
                (server_of_this_core(bytes_max), Box::new(export))
            };
            (core != CoreId(0)).then(|| Place { core, begin: Box::new(begin) })
        };
        let places = cores.into_iter().map(place).collect();
        let _home = Some((lease, opened, placed));
        (Box::new(CoreExport { device, terms, _home }), places)
    }
}

impl Export for CoreExport {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.device.clone()
    }

    fn read_only(&self) -> bool {
        self.terms.read_only.get()
    }

    fn outlives_process(&self) -> bool {
        self.terms.survives_kill
    }

    fn was_used(&self) -> Arc<AtomicBool> {
        self.terms.was_used.clone()
    }

    fn warn(&self, why: &str) {
        tracing::warn!(device = self.device.name(), "vhost-user: {why}");
    }

    fn latencies(&self) -> Option<Arc<Latencies>> {
        Some(self.terms.latencies.clone())
    }
}

fn ending() -> Error {
    Error::not_found("the daemon is shutting down")
}

fn opener(fd: OwnedFd) -> OpenEvent {
    Box::new(move || {
        let files = super::files().ok_or_else(ending)?;
        Ok(EventFd::new(files.adopt_eventfd(fd)))
    })
}

/// Core 0, for the thread of a session.
struct Core0 {
    core: CoreHandle,
    number: u64,
    memory: Arc<GuestBudget>,
}

impl Core0 {
    /// Names the front end.
    fn of_this<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let named = |e: Error| Error::new(e.kind(), format!("vhost{}: {}", self.number, e.chain()));
        outcome.map_err(named)
    }
}

/// Runs a session's thread, until the front end or core 0 ends the connection, or it is paused.
/// First it has core 0 handle `first`.
pub(super) fn start_thread(
    core: CoreHandle,
    client: &VhostClient,
    connection: Connection,
    first: Vec<Message>,
    memory: Arc<GuestBudget>,
) -> std::io::Result<()> {
    let (number, socket, pause) = (client.number, client.socket.clone(), client.signal.clone());
    let body = move || {
        let core0 = Core0 { core, number, memory };
        let ended = serve(&socket, &pause, &core0, connection, first);
        // An error of `post` means that core 0 has ended.
        let _ = match ended {
            Ok(ServiceEnd::Paused(connection)) => {
                let paused = move |_: &_| socket_is_paused(number, connection);
                core0.core.post(paused)
            }
            ended => {
                shut_down(&socket);
                drain(&socket);
                let failure = ended.err().map(|e| e.chain());
                core0.core.post(move |_| super::socket_has_ended(number, failure))
            }
        };
    };
    std::thread::Builder::new().name(format!("vhost{number}")).spawn(body).map(drop)
}

impl Core for Core0 {
    type Region = GuestMemory;

    fn check_memory(&self, bytes: u64) -> Result<(), Error> {
        self.of_this(self.memory.check(bytes))
    }

    fn map(&self, file: &OwnedFd, offset: u64, len: u64) -> Result<GuestMemory, Error> {
        self.of_this(GuestMemory::map(file, offset, len, &self.memory))
    }

    fn is_eventfd(&self, fd: &OwnedFd) -> bool {
        uring::is_eventfd(fd)
    }

    fn handle(
        &self,
        request: Request,
        descriptors: Descriptors<GuestMemory>,
    ) -> Result<Answer, Error> {
        let (reply, answer) = mpsc::sync_channel(1);
        let number = self.number;
        let posted = self.core.post(move |_| {
            let Some(door) = super::door() else { return };
            let Some(client) = door.client(number) else { return };
            let Descriptors { regions, event, channel } = descriptors;
            let region = |memory| Arc::new(memory) as Arc<dyn ClientRegion>;
            let attachments = Attachments {
                regions: regions.into_iter().map(region).collect(),
                event: event.map(opener),
                channel,
            };
            let session = client.session.clone();
            spawn(async move {
                let handled = session.handle(request, attachments).await;
                // The thread waits, but for the end of the process.
                let _ = reply.send(handled);
            });
        });
        posted.map_err(|_| ending())?;
        answer.recv().map_err(|_| ending())?
    }
}
