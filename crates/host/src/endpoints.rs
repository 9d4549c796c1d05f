// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listeners of a daemon: where it listens, by its options and by what systemd passes to it.
//!
//! Invariants
//! - HO-EP1 A listener of a socket unit takes the place of the one that the options ask for at the
//!   same address; any other one is a further one. Either way the rules for addresses hold.
//! - HO-EP2 The path of a socket that systemd has, by a unit or in its store, is not unlinked, and
//!   its mode is not changed.
//! - HO-EP3 A listener that an earlier daemon has stored is used only where the options ask for it,
//!   and as they ask for it; any other one ends before the daemon listens anywhere.
use std::fs::symlink_metadata;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use control::Failure;
use uring::SocketAccess;

use crate::addr::Addr;
use crate::config::ServeArgs;
use crate::fd_store::FdStore;
use crate::passed::{ListenerOrigin, ListenerRole, PassedListener};
use crate::rundir::RunDir;

/// Who has opened the listener of a place.
#[derive(Debug)]
pub(crate) enum Source {
    /// Nobody yet.
    Open,
    /// A socket unit.
    Unit(OwnedFd),
    /// An earlier daemon, which has left it in systemd's store by this name, or with this one.
    Before(OwnedFd, Option<String>),
}

impl Source {
    /// What a successor is told of its listener.
    pub(crate) fn passed(&self, role: ListenerRole) -> handover::Listener {
        let role = match role {
            ListenerRole::Nbd => handover::ListenerRole::Nbd,
            ListenerRole::Control => handover::ListenerRole::Control,
            ListenerRole::Metrics => handover::ListenerRole::Metrics,
        };
        let (of_unit, stored) = match self {
            Source::Open => (false, None),
            Source::Unit(_) => (true, None),
            Source::Before(_, name) => (false, name.clone()),
        };
        handover::Listener { role, stored, of_unit }
    }
}

/// A place to listen at.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) addr: Addr,
    pub(crate) source: Source,
}

/// Where a daemon listens.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) nbd: Vec<Endpoint>,
    pub(crate) control: Vec<Endpoint>,
    pub(crate) metrics: Vec<Endpoint>,
    /// Listeners of an earlier daemon that are of no use.
    unused: Vec<PassedListener>,
}

impl Endpoints {
    /// Those of a daemon with these options. `is_protected`: nobody without a certificate of ours
    /// can be a client of NBD by TCP. `access` is that of NBD sockets.
    pub(crate) fn new(
        run_dir: &RunDir,
        options: &ServeArgs,
        is_protected: bool,
        access: SocketAccess,
        mut passed: Vec<PassedListener>,
    ) -> Result<Endpoints, Failure> {
        let remote = options.allow_remote;
        let nbd_remote = remote || is_protected;
        let mut nbd = vec![Addr::Unix(run_dir.nbd())];
        for text in &options.nbd {
            nbd.push(Addr::parse("--nbd", text, nbd_remote)?);
        }
        let mut control = vec![Addr::Unix(run_dir.control())];
        if let Some(text) = &options.http {
            control.push(Addr::parse("--http", text, remote)?);
        }
        let metrics = options.metrics.iter();
        let metrics = metrics.map(|text| Addr::parse("--metrics", text, remote));
        let metrics = metrics.collect::<Result<Vec<Addr>, Failure>>()?;
        for listener in passed.iter().filter(|listener| listener.origin == ListenerOrigin::Unit) {
            let allowed = match listener.role {
                ListenerRole::Nbd => nbd_remote,
                ListenerRole::Control | ListenerRole::Metrics => remote,
            };
            listener
                .addr
                .check_reach(&format!("socket `{}` of systemd", listener.role), allowed)?;
        }
        Ok(Endpoints {
            nbd: places(ListenerRole::Nbd, nbd, access, &mut passed),
            control: places(ListenerRole::Control, control, SocketAccess::OWNER, &mut passed),
            metrics: places(ListenerRole::Metrics, metrics, SocketAccess::OWNER, &mut passed),
            unused: passed,
        })
    }

    /// Ends the stored listeners that are of no use (HO-EP3).
    pub(crate) fn drop_unused(&mut self, store: &FdStore) {
        for listener in self.unused.drain(..) {
            let (role, address) = (listener.role.name(), listener.addr.to_string());
            tracing::info!(role, address, "listener of the daemon before: not asked for, closed");
            store.drop_listener(listener);
        }
    }

    /// The paths of sockets that are the daemon's alone, which it unlinks at its end (HO-EP2).
    pub(crate) fn own_paths(&self, store: &FdStore) -> Vec<PathBuf> {
        if store.is_there() {
            return Vec::new();
        }
        let all = self.nbd.iter().chain(&self.control).chain(&self.metrics);
        let own = all.filter(|place| !matches!(place.source, Source::Unit(_)));
        own.filter_map(|place| place.addr.path()).map(PathBuf::from).collect()
    }

    /// NBD sockets of socket units: their mode is not the daemon's to set.
    pub(crate) fn nbd_paths_of_units(&self) -> impl Iterator<Item = &Addr> {
        let passed = self.nbd.iter().filter(|place| matches!(place.source, Source::Unit(_)));
        passed.map(|place| &place.addr).filter(|addr| addr.path().is_some())
    }
}

/// The places of one role (HO-EP1, HO-EP3).
fn places(
    role: ListenerRole,
    asked: Vec<Addr>,
    access: SocketAccess,
    passed: &mut Vec<PassedListener>,
) -> Vec<Endpoint> {
    let mut places: Vec<Endpoint> =
        asked.into_iter().map(|addr| Endpoint { addr, source: Source::Open }).collect();
    let of_units =
        |one: &mut PassedListener| one.role == role && one.origin == ListenerOrigin::Unit;
    for PassedListener { addr, socket, .. } in passed.extract_if(.., of_units) {
        let source = Source::Unit(socket);
        match places.iter_mut().find(|place| place.addr == addr) {
            Some(place) => place.source = source,
            None => places.push(Endpoint { addr, source }),
        }
    }
    for place in places.iter_mut().filter(|place| matches!(place.source, Source::Open)) {
        let fits = |one: &PassedListener| {
            one.role == role && place.addr.is_met_by(&one.addr) && is_usable(&one.addr, access)
        };
        if let Some(at) = passed.iter().position(fits) {
            let PassedListener { addr, socket, origin, .. } = passed.remove(at);
            let name = origin.stored().map(str::to_owned);
            (place.addr, place.source) = (addr, Source::Before(socket, name));
        }
    }
    places
}

/// Whether the path of a stored listener is still there, with the permissions that it has to have.
fn is_usable(addr: &Addr, access: SocketAccess) -> bool {
    let Some(path) = addr.path() else { return true };
    symlink_metadata(path).is_ok_and(|meta| {
        meta.file_type().is_socket()
            && meta.mode() & 0o777 == access.mode
            && access.group.is_none_or(|group| meta.gid() == group)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn listener(role: ListenerRole, stored: Option<&str>) -> PassedListener {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = Addr::Tcp(socket.local_addr().unwrap());
        let origin = stored.map_or(ListenerOrigin::Unit, |s| ListenerOrigin::Store(s.to_owned()));
        PassedListener { role, addr, socket: socket.into(), origin }
    }

    #[test]
    fn a_stored_listener_is_used_only_where_it_is_asked_for() {
        let tmp = tempfile::tempdir().unwrap();
        let run_dir = RunDir::at(&tmp.path().join("pond")).unwrap();
        let (asked, other) = (
            listener(ListenerRole::Nbd, Some("stored-nbd-0")),
            listener(ListenerRole::Nbd, Some("stored-nbd-1")),
        );
        let metrics = listener(ListenerRole::Metrics, Some("stored-metrics-0"));
        let (unit, address) = (listener(ListenerRole::Metrics, None), asked.addr.to_string());
        let options = ServeArgs { nbd: vec![address.clone()], ..ServeArgs::default() };
        let passed = vec![other, asked, metrics, unit];
        let endpoints =
            Endpoints::new(&run_dir, &options, false, SocketAccess::OWNER, passed).unwrap();
        assert!(matches!(endpoints.nbd[0].source, Source::Open));
        assert!(matches!(endpoints.nbd[1].source, Source::Before(..)));
        assert_eq!((endpoints.nbd[1].addr.to_string(), endpoints.nbd.len()), (address, 2));
        assert!(matches!(endpoints.metrics[..], [Endpoint { source: Source::Unit(_), .. }]));
        let unused: Vec<_> =
            endpoints.unused.iter().filter_map(|one| one.origin.stored()).collect();
        assert_eq!(unused, ["stored-nbd-1", "stored-metrics-0"]);
    }

    #[test]
    fn any_port_is_the_port_that_the_daemon_before_had() {
        let tmp = tempfile::tempdir().unwrap();
        let run_dir = RunDir::at(&tmp.path().join("pond")).unwrap();
        let stored = listener(ListenerRole::Metrics, Some("stored-metrics-0"));
        let at = stored.addr.clone();
        for (asked, is_met) in [("127.0.0.1:0", true), ("[::1]:0", false)] {
            assert_eq!(Addr::parse("--metrics", asked, false).unwrap().is_met_by(&at), is_met);
        }
        let options = ServeArgs { metrics: Some("127.0.0.1:0".into()), ..ServeArgs::default() };
        let endpoints =
            Endpoints::new(&run_dir, &options, false, SocketAccess::OWNER, vec![stored]);
        assert_eq!(endpoints.unwrap().metrics[0].addr, at);
    }
}
