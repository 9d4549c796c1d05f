// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listeners that the daemon leaves with systemd for its next start (the file descriptor store,
//! sd_notify(3)): until then their clients wait instead of being refused.
//!
//! The next daemon gets them as it gets those of socket units (`passed`), by the names that they
//! have in the store: `stored-nbd-0`.
//!
//! Invariants
//! - HO-FS1 What is in the store has a name of its own: systemd removes by name.
//! - HO-FS2 Only listening sockets are stored. A file or a block device would keep its lock there
//!   after the last request of this process (HO-LF1).
use std::collections::BTreeSet;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::socket_acceptconn;
use sd_notify::NotifyState;

use crate::passed::{ListenerRole, PassedListener};
use crate::rundir::remove_stale_socket;

/// What the names of stored listeners begin with.
const PREFIX: &str = "stored-";

/// Listeners that are kept at most: as many as `FileDescriptorStoreMax=` of the unit allows.
const STORED_MAX: usize = 64;

/// The role of a stored listener's name.
pub(crate) fn role(name: &str) -> Option<ListenerRole> {
    let (role, number) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
    number.parse::<u32>().ok()?;
    ListenerRole::of(role)
}

/// The store that this process has; without a service manager nothing is stored.
#[derive(Debug, Default)]
pub(crate) struct FdStore {
    is_there: bool,
    names: BTreeSet<String>,
}

impl FdStore {
    /// The store of a process that was started with these listeners.
    pub(crate) fn of_process(passed: &[PassedListener]) -> FdStore {
        let names =
            passed.iter().filter_map(|listener| listener.origin.stored().map(str::to_owned));
        FdStore { is_there: std::env::var_os("NOTIFY_SOCKET").is_some(), names: names.collect() }
    }

    /// Whether what is given to it is kept.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Keeps a listener of ours. Returns its name there, if it is kept.
    pub(crate) fn keep(&mut self, role: ListenerRole, socket: &impl AsFd) -> Option<String> {
        if !self.is_there {
            return None;
        }
        assert!(socket_acceptconn(socket) == Ok(true), "only listeners are stored"); // HO-FS2
        let free = (0..STORED_MAX).map(|number| format!("{PREFIX}{role}-{number}"));
        let name = free.into_iter().find(|name| !self.names.contains(name))?;
        let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
        match sd_notify::notify_with_fds(false, &state, &[socket.as_fd()]) {
            // HO-FS1
            Ok(()) => {
                self.names.insert(name.clone());
                Some(name)
            }
            Err(e) => {
                tracing::warn!(name, "systemd does not keep a listener: {e}");
                None
            }
        }
    }

    /// Ends a listener that an earlier daemon has stored and that is of no use: nothing listens at
    /// its address then.
    pub(crate) fn drop_listener(&self, listener: PassedListener) {
        let PassedListener { role: _, addr, socket, origin } = listener;
        // For systemd's copy, too, which is closed later.
        end(socket);
        if let Some(name) = origin.stored() {
            let state = [NotifyState::FdStoreRemove, NotifyState::FdName(name)];
            if let Err(e) = sd_notify::notify(false, &state) {
                tracing::warn!(name, "systemd still keeps a listener: {e}");
            }
        }
        if let Some(Err(e)) = addr.path().map(remove_stale_socket) {
            tracing::warn!("path of a listener of the daemon before: {e}");
        }
    }
}

fn end(socket: OwnedFd) {
    // Any kind: std has no type for all of them. It has ended already if this fails.
    let _ = std::os::unix::net::UnixStream::from(socket).shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_store_have_a_role_and_a_number() {
        assert_eq!(role("stored-nbd-0"), Some(ListenerRole::Nbd));
        assert_eq!(role("stored-metrics-12"), Some(ListenerRole::Metrics));
        for name in ["nbd", "stored-nbd", "stored-web-0", "stored-nbd-x", "stored--0"] {
            assert_eq!(role(name), None, "{name}");
        }
    }
}
