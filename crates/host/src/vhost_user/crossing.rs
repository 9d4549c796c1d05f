// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Front ends on their way to a successor, and on their way from the daemon before.
//!
//! ```text
//!   paused   threads end · queues stop, their requests end ─┬─▶ go on: queues start, threads
//!                                                           └─▶ sent: the next daemon adopts them
//! ```
//!
//! Invariants
//! - HO-VU3 While the door is paused no session begins, no message is read and no request is taken.
//! - HO-VU4 From COMMIT on nothing is done with a front end's socket here, not even its end.
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block::{Error, ErrorKind, Nanos};
use control::Failure;
use dm::MappedDevice;
use handover::VhostSession;
use reactor::{now, sleep, spawn};
use vhost::Stats;
use vhost::control::Connection;

use super::{DOOR, History, VhostClient, VhostUser, door};
use crate::engine::Engine;

const NS_PER_MS: u64 = 1_000_000;

/// A front end on its way, as it is sent.
#[derive(Debug)]
pub(crate) struct CrossingGuest {
    pub(crate) session: VhostSession,
    pub(crate) socket: Arc<OwnedFd>,
    /// What it has set.
    pub(crate) connection: Connection,
}

impl CrossingGuest {
    /// As it has come, in parts.
    ///
    /// # Errors
    /// When these are not what a front end can have set.
    pub(crate) fn new(
        session: VhostSession,
        socket: OwnedFd,
        bytes: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<CrossingGuest, Failure> {
        let descriptors = descriptors.into_iter().map(Arc::new).collect();
        let connection = Connection::decode(bytes, descriptors)?;
        Ok(CrossingGuest { session, socket: Arc::new(socket), connection })
    }
}

/// Tells all front ends' threads to pause. On core 0.
pub(crate) fn begin_pause() {
    let Some(door) = door() else { return };
    door.is_paused.set(true);
    for client in door.clients() {
        client.signal.give();
    }
}

/// Waits, after [`begin_pause`], until all front ends are paused, and returns them. On core 0.
///
/// # Errors
/// When requests of one do not end in time. Then, and after a failure elsewhere: [`resume`].
pub(crate) async fn paused(time: Nanos) -> Result<Vec<CrossingGuest>, Failure> {
    let Some(door) = door() else { return Ok(Vec::new()) };
    let deadline = now() + time;
    let late = door.clone();
    spawn(async move {
        sleep(time).await;
        late.changed.wake_all();
    });
    let first_left = || {
        let left = |client: &Rc<VhostClient>| client.paused.borrow().is_none();
        door.clients().into_iter().filter(|client| !client.is_ending()).find(left)
    };
    let are_paused = || first_left().is_none() && door.beginning.get() == 0;
    door.changed.wait_for(|| are_paused() || now() >= deadline).await;
    if let Some(client) = first_left().filter(|_| !are_paused()) {
        let (number, device) = (client.number, client.device());
        let text = format!(
            "vhost{number}: requests of this guest of {device} do not end in time, or its front \
             end does not take its answers (`disconnect vhost{number}` ends it)"
        );
        return Err(Failure::new(ErrorKind::Busy, text));
    }
    if !are_paused() {
        let text = "a front end that connects does not get its device in time: try again";
        return Err(Failure::new(ErrorKind::Busy, text));
    }
    Ok(door.clients().iter().filter_map(|client| client.crossing()).collect())
}

/// A successor goes on with all front ends, which are paused (HO-VU4). On core 0.
pub(crate) fn abandon() {
    drop(DOOR.take());
}

/// Whether a guest has used a device in this process. On core 0.
pub(crate) fn has_been_used(device: &Rc<MappedDevice>) -> bool {
    door().is_some_and(|door| door.was_used(device).load(Relaxed))
}

/// A guest has used a device, and what it was told is still there. On core 0.
pub(crate) fn set_used(device: &Rc<MappedDevice>) {
    if let Some(door) = door() {
        door.was_used(device).store(true, Relaxed);
    }
}

/// How many front ends are connected. On core 0.
pub(crate) fn count_guests() -> u64 {
    door().map_or(0, |door| door.clients().len() as u64)
}

impl VhostClient {
    fn crossing(&self) -> Option<CrossingGuest> {
        if self.is_ending() || self.session.failure().is_some() {
            return None;
        }
        let Stats { requests, read_bytes, write_bytes, errors } = self.stats();
        let session = VhostSession {
            id: self.number,
            device: self.device(),
            age_ms: self.age().0 / NS_PER_MS,
            requests,
            read_bytes,
            write_bytes,
            errors,
        };
        let connection = self.paused.borrow().clone()?;
        Some(CrossingGuest { session, socket: self.socket.clone(), connection })
    }
}

impl VhostUser {
    /// Goes on with a front end of the daemon before.
    async fn adopt(
        self: &Rc<Self>,
        engine: &Rc<Engine>,
        guest: CrossingGuest,
    ) -> Result<(), Error> {
        let CrossingGuest { session, socket, connection } = guest;
        let device = engine.dm.get(&session.device)?;
        let opened = device.open()?;
        let survives_kill = engine.survives_kill(&device).await;
        let export = self.export(&engine.places, opened, survives_kill);
        let VhostSession { id, device: name, age_ms, requests, read_bytes, write_bytes, errors } =
            session;
        let stats = Stats { requests, read_bytes, write_bytes, errors };
        let history = History { age: Nanos(age_ms.saturating_mul(NS_PER_MS)), stats };
        self.next.set(self.next.get().max(id + 1));
        let begun = self.begin((id, device.minor()), export, socket, (history, connection)).await;
        let client = begun.map_err(|e| Error::io(format!("its thread: {e}")))?;
        tracing::info!(device = name, number = id, "vhost-user: goes on with a front end");
        let door = self.clone();
        spawn(async move { door.follow_to_end(&client, &name).await });
        Ok(())
    }
}

/// Goes on with the front ends of the daemon before. One whose device is not what it was told is
/// disconnected; the log says why. On core 0.
pub(crate) async fn adopt(engine: &Rc<Engine>, guests: Vec<CrossingGuest>) {
    for guest in guests {
        let device = guest.session.device.clone();
        let adopted = match door() {
            Some(door) => door.adopt(engine, guest).await,
            None => Err(Error::not_found("this daemon serves no virtual machines (--vhost-user)")),
        };
        if let Err(e) = adopted {
            tracing::error!(device, "vhost-user: a front end is disconnected: {}", e.chain());
        }
    }
}
