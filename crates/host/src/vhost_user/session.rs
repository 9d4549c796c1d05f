// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session's thread, which has the control socket, and what it hands to core 0.
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;

use block::latency::Latencies;
use block::{BlockDevice, Error, Slice, Status};
use dm::Opened;
use reactor::{FileId, spawn};
use rustix::net::{Shutdown, shutdown};
use uring::{Files, GuestMemory, RemoteEnd};
use vhost::control::{Core, Descriptors, serve};
use vhost::memory::Region;
use vhost::message::{Answer, Request};
use vhost::{Attachments, EventFd, Export};

use super::VhostUser;
use crate::core_thread::CoreHandle;

/// Ends what is under way on a socket. Does not wait.
pub(super) fn shut_down(socket: &OwnedFd) {
    // An error means that the other side has gone.
    let _ = shutdown(socket, Shutdown::Both);
}

/// The process at the other end, and its user.
pub(super) fn peer(files: &Files, file: FileId) -> Option<(u32, u32)> {
    match files.remote_end(file) {
        Some(RemoteEnd::Process { pid, uid }) => Some((pid.cast_unsigned(), uid)),
        Some(RemoteEnd::Address(_)) | None => None,
    }
}

/// A mapped device for one session.
pub(super) struct DmExport {
    door: Rc<VhostUser>,
    opened: Opened,
    survives_kill: bool,
}

impl DmExport {
    pub(super) fn new(door: &Rc<VhostUser>, opened: Opened, survives_kill: bool) -> DmExport {
        DmExport { door: door.clone(), opened, survives_kill }
    }
}

impl Export for DmExport {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.opened.device().clone()
    }

    fn name(&self) -> String {
        self.opened.device().name().to_owned()
    }

    fn read_only(&self) -> bool {
        self.opened.device().read_only().get()
    }

    fn outlives_process(&self) -> bool {
        self.survives_kill
    }

    fn was_served(&self) -> bool {
        self.door.was_served(self.opened.device())
    }

    fn note_served(&self) {
        self.door.note_served(self.opened.device());
    }

    fn latencies(&self) -> Option<Arc<Latencies>> {
        Some(self.opened.device().latencies())
    }
}

/// Memory of a guest, for core 0.
#[derive(Debug)]
struct GuestRegion(GuestMemory);

impl Region for GuestRegion {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Status> {
        self.0.read(at, out)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        self.0.write(at, bytes)
    }

    fn read_to(&self, at: u64, to: &Slice) -> Result<(), Status> {
        self.0.read_to(at, to)
    }

    fn write_from(&self, at: u64, from: &Slice) -> Result<(), Status> {
        self.0.write_from(at, from)
    }

    fn load_u16(&self, at: u64) -> Result<u16, Status> {
        self.0.load_u16(at)
    }

    fn store_u16(&self, at: u64, value: u16) -> Result<(), Status> {
        self.0.store_u16(at, value)
    }
}

/// Core 0, for the thread of a session.
struct Core0 {
    core: CoreHandle,
    number: u64,
}

/// Runs a session's thread, until the front end or core 0 ends the connection.
pub(super) fn start_thread(core: CoreHandle, number: u64, socket: OwnedFd) -> std::io::Result<()> {
    let body = move || {
        let core0 = Core0 { core, number };
        let failure = serve(&socket, &core0).err().map(|e| e.chain());
        shut_down(&socket);
        // An error means that core 0 has ended.
        let _ = core0.core.post(move |_| super::socket_has_ended(number, failure));
    };
    std::thread::Builder::new().name(format!("vhost{number}")).spawn(body).map(drop)
}

impl Core for Core0 {
    type Region = GuestMemory;

    fn map(&self, file: &OwnedFd, offset: u64, len: u64) -> Result<GuestMemory, Error> {
        GuestMemory::map(file, offset, len)
    }

    fn is_eventfd(&self, fd: &OwnedFd) -> bool {
        uring::is_eventfd(fd)
    }

    fn handle(
        &self,
        request: Request,
        descriptors: Descriptors<GuestMemory>,
    ) -> Result<(Answer, bool), Error> {
        let ending = || Error::not_found("the daemon is shutting down");
        let (reply, answer) = mpsc::sync_channel(1);
        let number = self.number;
        let posted = self.core.post(move |_| {
            let Some(door) = super::door() else { return };
            let Some(client) = door.client(number) else { return };
            let Descriptors { regions, event, channel } = descriptors;
            let region = |memory| Rc::new(GuestRegion(memory)) as Rc<dyn Region>;
            let attachments = Attachments {
                regions: regions.into_iter().map(region).collect(),
                event: event.map(|fd| EventFd::new(door.files.adopt_eventfd(fd))),
                channel,
            };
            let session = client.session.clone();
            spawn(async move {
                let handled = session.handle(request, attachments).await;
                let acknowledges = session.acknowledges();
                // The thread waits, but for the end of the process.
                let _ = reply.send(handled.map(|answer| (answer, acknowledges)));
            });
        });
        posted.map_err(|_| ending())?;
        answer.recv().map_err(|_| ending())?
    }
}
