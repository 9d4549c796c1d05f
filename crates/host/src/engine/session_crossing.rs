// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients of the NBD server, and front ends of vhost-user, on their way to a successor, and on
//! their way from the daemon before.
use std::os::fd::OwnedFd;
use std::rc::Rc;

use block::{BlockDevice, Error, ErrorKind, Nanos, Sector};
use control::{Failure, api};
use handover::Committed;
use nbd::request::Errno;
use nbd::wire::ExportFlags;
use nbd::{Context, Exports, PausedSession, Peer, RefusedWrite};
use reactor::FileId;

use super::Engine;
use crate::vhost_user;
use crate::vhost_user::crossing::{self, CrossingGuest};

const NS_PER_MS: u64 = 1_000_000;
/// Problems of devices that an error names.
const PROBLEMS_MAX: usize = 3;

/// A client on its way.
#[derive(Debug)]
pub(crate) struct CrossingSession {
    pub(crate) session: handover::Session,
    pub(crate) socket: OwnedFd,
    /// What it has sent and nobody has executed.
    pub(crate) unread: Vec<u8>,
}

/// All clients on their way.
#[derive(Debug, Default)]
pub(crate) struct CrossingClients {
    pub(crate) sessions: Vec<CrossingSession>,
    /// Devices whose next client must hear that acknowledged writes may be lost.
    pub(crate) lost_writes: Vec<String>,
    /// Front ends of vhost-user.
    pub(crate) guests: Vec<CrossingGuest>,
    /// Devices that guests have used, these or others.
    pub(crate) used_by_guests: Vec<String>,
}

/// A session as the message that crosses.
pub(crate) fn session_of(paused: &PausedSession) -> handover::Session {
    let refused = paused.refused.map(|write| handover::RefusedWrite {
        cookie: write.cookie,
        error: write.error as u32,
        left: write.left,
    });
    handover::Session {
        id: paused.id,
        device: paused.export.clone(),
        peer: match paused.peer {
            Peer::Local => handover::Peer::Local,
            Peer::Network => handover::Peer::Network,
        },
        flags: paused.flags.bits(),
        structured: paused.structured,
        contexts: paused.contexts.iter().map(|context| context.name().to_owned()).collect(),
        size_sectors: paused.size.0,
        block_bytes: paused.block_bytes,
        present_size_sectors: paused.present_size.0,
        read_only: paused.read_only,
        refused,
        has_lost_writes: paused.has_lost_writes,
        age_ms: paused.age.0 / NS_PER_MS,
        requests: paused.requests,
        read_bytes: paused.read_bytes,
        write_bytes: paused.write_bytes,
        errors: paused.errors,
    }
}

/// An error of the protocol by its number. One that is not known is the most general one.
fn errno(number: u32) -> Errno {
    let all = [
        Errno::Perm,
        Errno::Io,
        Errno::NoMem,
        Errno::Invalid,
        Errno::NoSpace,
        Errno::Overflow,
        Errno::NotSupported,
        Errno::Shutdown,
    ];
    all.into_iter().find(|one| *one as u32 == number).unwrap_or(Errno::Io)
}

impl Engine {
    /// Clients of NBD that do not cross.
    pub(crate) fn session_problems(&self) -> Vec<api::UpgradeProblem> {
        let staying = self.server.staying_connections().into_iter();
        let problem = |connection: nbd::Connection| {
            let device = connection.export.unwrap_or_default();
            let why = format!(
                "this client of {device} uses TLS, whose keys do not cross: its connection ends \
                 after its replies, and the client has to connect again"
            );
            api::UpgradeProblem::new(&format!("nbd{}", connection.id), why, true)
        };
        staying.map(problem).collect()
    }

    /// How many clients of NBD and vhost-user would cross.
    pub(crate) fn count_sessions(&self) -> u64 {
        let all = self.server.stats().connections;
        let of_nbd = all.saturating_sub(self.server.staying_connections().len() as u64);
        of_nbd + crossing::count_guests()
    }

    /// Pauses the NBD server and the front ends of vhost-user, and returns them with descriptors of
    /// their sockets.
    ///
    /// # Errors
    /// When requests do not end in time: then all go on as before.
    pub(crate) async fn pause_clients(&self, time: Nanos) -> Result<CrossingClients, Failure> {
        crossing::begin_pause();
        let paused = self.pause_all(time).await;
        paused.inspect_err(|_| vhost_user::resume())
    }

    async fn pause_all(&self, time: Nanos) -> Result<CrossingClients, Failure> {
        let mut clients = self.pause_server(time).await.map_err(|failure| self.explain(failure))?;
        clients.guests = crossing::paused(time).await.inspect_err(|_| self.server.resume())?;
        let used = self.dm.devices().into_iter().filter(crossing::has_been_used);
        clients.used_by_guests = used.map(|device| device.info().name).collect();
        Ok(clients)
    }

    /// Requests that do not end wait for a device below, as for a store that refuses: its problem
    /// is the cause.
    fn explain(&self, failure: Failure) -> Failure {
        let (devices, refusing) = (self.dm.devices(), self.leaves.refusing());
        let problems = devices.iter().flat_map(|device| {
            let named = move |problem| format!("; {}: {problem}", device.name());
            self.problems_of(device, &refusing).into_iter().map(named)
        });
        let problems: String = problems.take(PROBLEMS_MAX).collect();
        Failure { message: format!("{}{problems}", failure.message), ..failure }
    }

    async fn pause_server(&self, time: Nanos) -> Result<CrossingClients, Failure> {
        let paused = self.server.pause(time).await?;
        let crossing = |session: PausedSession| {
            let socket = self.files.copy_of_socket(session.socket).ok_or_else(|| {
                Error::new(ErrorKind::Limit, "no descriptor is free for a client's socket")
            })?;
            let wire = session_of(&session);
            Ok(CrossingSession { session: wire, socket, unread: session.unread })
        };
        let sessions = paused.sessions.into_iter().map(crossing).collect::<Result<_, Error>>();
        let sessions = sessions.inspect_err(|_| self.server.resume())?;
        let lost_writes = paused.lost_writes;
        Ok(CrossingClients { sessions, lost_writes, ..CrossingClients::default() })
    }

    /// The NBD server goes on, and so do the front ends of vhost-user.
    pub(crate) fn resume_clients(&self) {
        self.server.resume();
        vhost_user::resume();
    }

    /// A successor goes on with the clients: their descriptors here are closed.
    pub(crate) async fn abandon_clients(&self) {
        crossing::abandon();
        self.server.abandon().await;
    }

    /// Goes on with the front ends of vhost-user of the daemon before; `used`: devices that guests
    /// have used there and may go on with. HO-UP3: only after COMMIT.
    pub(crate) async fn adopt_guests(
        self: &Rc<Self>,
        guests: Vec<CrossingGuest>,
        used: &[String],
        _: &Committed,
    ) {
        for device in used.iter().filter_map(|name| self.dm.get(name).ok()) {
            crossing::set_used(&device);
        }
        crossing::adopt(self, guests).await;
    }

    /// Goes on with the clients of NBD of the daemon before. One whose device is not what it was
    /// told is disconnected; the log says why. HO-UP3: only after COMMIT.
    pub(crate) fn adopt_clients(&self, clients: CrossingClients, _: &Committed) {
        for device in clients.lost_writes {
            self.server.note_lost_writes(device);
        }
        for crossing in clients.sessions {
            let device = crossing.session.device.clone();
            if let Err(e) = self.adopt(crossing) {
                tracing::error!(device, "a client is disconnected: {}", e.chain());
            }
        }
    }

    fn adopt(&self, crossing: CrossingSession) -> Result<(), Error> {
        let CrossingSession { session, socket, unread } = crossing;
        let export = self.exports.open(&session.device)?;
        let socket = self.files.adopt_socket(socket)?;
        self.server.adopt(paused_session(session, socket, unread), export)?;
        Ok(())
    }
}

/// The session that a message is, with its socket here.
pub(crate) fn paused_session(
    session: handover::Session,
    socket: FileId,
    unread: Vec<u8>,
) -> PausedSession {
    let named = |context: &Context| session.contexts.iter().any(|name| name == context.name());
    let refused = session.refused.map(|write| RefusedWrite {
        cookie: write.cookie,
        error: errno(write.error),
        left: write.left,
    });
    PausedSession {
        id: session.id,
        socket,
        peer: match session.peer {
            handover::Peer::Local => Peer::Local,
            handover::Peer::Network => Peer::Network,
        },
        flags: ExportFlags::from_bits_retain(session.flags),
        structured: session.structured,
        contexts: Context::ALL.into_iter().filter(named).collect(),
        size: Sector(session.size_sectors),
        block_bytes: session.block_bytes,
        present_size: Sector(session.present_size_sectors),
        read_only: session.read_only,
        refused,
        unread,
        has_lost_writes: session.has_lost_writes,
        age: Nanos(session.age_ms.saturating_mul(NS_PER_MS)),
        requests: session.requests,
        read_bytes: session.read_bytes,
        write_bytes: session.write_bytes,
        errors: session.errors,
        export: session.device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_protocol_keep_their_numbers() {
        for error in [Errno::Perm, Errno::NoSpace, Errno::Shutdown] {
            assert_eq!(errno(error as u32), error);
        }
        assert_eq!(errno(7), Errno::Io);
    }
}
