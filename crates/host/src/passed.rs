// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listeners that systemd has opened and passes to the daemon when it starts it (socket
//! activation, sd_listen_fds(3)).
//!
//! Each has a name, `FileDescriptorName=` of its unit, which says what is served there: `nbd`,
//! `control` or `metrics`; a single one without a name is for NBD. Any number of each is allowed,
//! Unix or TCP. The rules for addresses and
//! for TLS are those of `--nbd`, `--http` and `--metrics`.
use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use block::ErrorKind;
use control::Failure;
use rustix::net::{SocketAddrUnix, getsockname};

use crate::addr::Addr;
use crate::fd_store::{self, FdStore};

/// The name of a socket without one, as LISTEN_FDNAMES is absent.
const NO_NAME: &str = "unknown";

/// What is served at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerRole {
    Nbd,
    Control,
    Metrics,
}

impl ListenerRole {
    pub(crate) fn of(name: &str) -> Option<ListenerRole> {
        [ListenerRole::Nbd, ListenerRole::Control, ListenerRole::Metrics]
            .into_iter()
            .find(|role| role.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            ListenerRole::Nbd => "nbd",
            ListenerRole::Control => "control",
            ListenerRole::Metrics => "metrics",
        }
    }
}

impl fmt::Display for ListenerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who has opened a listener that this process was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenerOrigin {
    /// A socket unit of systemd.
    Unit,
    /// An earlier daemon; it has this name in systemd's store (`fd_store`).
    Store(String),
    /// The daemon that hands over to this one.
    Predecessor,
}

impl ListenerOrigin {
    /// Its name in systemd's store.
    pub(crate) fn stored(&self) -> Option<&str> {
        match self {
            ListenerOrigin::Store(name) => Some(name),
            ListenerOrigin::Unit | ListenerOrigin::Predecessor => None,
        }
    }
}

/// A listener that the process was started with.
#[derive(Debug)]
pub(crate) struct PassedListener {
    pub(crate) role: ListenerRole,
    pub(crate) addr: Addr,
    pub(crate) socket: OwnedFd,
    pub(crate) origin: ListenerOrigin,
}

/// What a service manager has and keeps for the daemon; nothing by default.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager {
    pub(crate) listeners: Vec<PassedListener>,
    pub(crate) store: FdStore,
}

impl ServiceManager {
    /// That of this process; takes the listeners that it was started with.
    pub(crate) fn of_process() -> Result<ServiceManager, Failure> {
        Ok(ServiceManager::with_listeners(listeners()?))
    }

    /// With listeners that the daemon before has left.
    pub(crate) fn with_listeners(listeners: Vec<PassedListener>) -> ServiceManager {
        let store = FdStore::of_process(&listeners);
        ServiceManager { listeners, store }
    }
}

fn listeners() -> Result<Vec<PassedListener>, Failure> {
    let wrong = |e: &str| Failure::new(ErrorKind::Invalid, format!("sockets of systemd: {e}"));
    let passed = sd_notify::listen_fds_with_names(false);
    let passed = passed.map_err(|e| wrong(&block::without_errno(&e)))?;
    let (descriptors, names): (Vec<_>, Vec<_>) = passed.unzip();
    let is_one = names.len() == 1;
    let roles = names.into_iter().map(|name| role(name, is_one));
    let roles = roles.collect::<Result<Vec<_>, Failure>>()?;
    let sockets = uring::take_passed(descriptors.into_iter());
    let sockets = sockets.map_err(|e| wrong(&e.to_string()))?;
    let listener = |(socket, (role, origin)): (OwnedFd, (ListenerRole, ListenerOrigin))| {
        let addr = address(&socket).ok_or_else(|| {
            let allowed = "allowed are Unix sockets with a path, and TCP";
            wrong(&format!("the one called `{role}`: {allowed}"))
        })?;
        tracing::info!(role = role.name(), address = %addr, "listener passed by systemd");
        Ok(PassedListener { role, addr, socket, origin })
    };
    sockets.into_iter().zip(roles).map(listener).collect()
}

/// The role of a name, and who has opened the listener. `is_one`: it is the only one, so that one
/// without a name is for NBD, as programs of libnbd start a server.
fn role(name: String, is_one: bool) -> Result<(ListenerRole, ListenerOrigin), Failure> {
    if is_one && name == NO_NAME {
        return Ok((ListenerRole::Nbd, ListenerOrigin::Unit));
    }
    if let Some(role) = fd_store::role(&name) {
        return Ok((role, ListenerOrigin::Store(name)));
    }
    ListenerRole::of(&name).map(|role| (role, ListenerOrigin::Unit)).ok_or_else(|| {
        let message = format!(
            "socket `{name}` of systemd: FileDescriptorName= says what is served there: allowed \
             are nbd, control and metrics. A single socket without a name is for NBD"
        );
        Failure::new(ErrorKind::Invalid, message)
    })
}

/// Where a socket listens.
pub(crate) fn address(socket: &OwnedFd) -> Option<Addr> {
    let address = getsockname(socket).ok()?;
    if let Ok(tcp) = SocketAddr::try_from(address.clone()) {
        return Some(Addr::Tcp(tcp));
    }
    let unix = SocketAddrUnix::try_from(address).ok()?;
    Some(Addr::Unix(OsStr::from_bytes(unix.path_bytes()?).into()))
}
