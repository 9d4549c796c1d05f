// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listeners of the NBD server.
use std::os::fd::OwnedFd;
use std::rc::Rc;

use block::Error;
use control::Failure;
use nbd::Peer;
use reactor::FileId;
use uring::{LockOwner, SocketAccess};

use super::Engine;
use crate::addr::Addr;
use crate::endpoints::{Endpoint, Source};
use crate::passed::ListenerRole;
use crate::retry::Patience;
use crate::tls::{self, ServerCertificates};

/// A listener of the NBD server.
pub(crate) struct NbdListener {
    pub(crate) file: FileId,
    pub(crate) addr: Addr,
    /// A copy of one that was opened now.
    pub(crate) opened: Option<OwnedFd>,
    /// What a successor is told of it.
    pub(crate) passed: handover::Listener,
}

impl NbdListener {
    fn peer(&self) -> Peer {
        match self.addr {
            Addr::Unix(_) => Peer::Local,
            Addr::Tcp(_) => Peer::Network,
        }
    }
}

impl Engine {
    /// Listens at places for the NBD server, without serving yet. `access` is that of Unix sockets
    /// that it opens.
    pub(crate) async fn listen(
        &self,
        places: Vec<Endpoint>,
        access: SocketAccess,
        patience: Patience,
    ) -> Result<Vec<NbdListener>, Failure> {
        let mut all = Vec::new();
        for Endpoint { addr, source } in places {
            let failed = |e: Error| Failure::from(e).within(format!("--nbd {addr}"));
            let passed = source.passed(ListenerRole::Nbd);
            all.push(match source {
                Source::Unit(socket) | Source::Before(socket, _) => {
                    let file = self.files.adopt_socket(socket).map_err(failed)?;
                    NbdListener { file, addr, opened: None, passed }
                }
                Source::Open => {
                    let listen = async || self.listen_once(&addr, access);
                    let owner = async || LockOwner::Unknown;
                    patience.retry(listen, owner).await.map_err(failed)?
                }
            });
        }
        Ok(all)
    }

    fn listen_once(&self, addr: &Addr, access: SocketAccess) -> Result<NbdListener, Error> {
        let (file, addr) = match addr {
            Addr::Unix(path) => (self.files.listen_unix(path, access)?, addr.clone()),
            Addr::Tcp(tcp) => {
                let (file, bound) = self.files.listen_tcp(*tcp)?;
                (file, Addr::Tcp(bound))
            }
        };
        let (opened, passed) =
            (self.files.copy_of_socket(file), Source::Open.passed(ListenerRole::Nbd));
        Ok(NbdListener { file, addr, opened, passed })
    }

    /// Serves NBD to clients that connect.
    /// With certificates, clients of the network must use TLS.
    pub(crate) fn serve(
        &self,
        listeners: &[NbdListener],
        certificates: Option<&ServerCertificates>,
    ) {
        let tls = certificates.map(|all| Rc::new(tls::listener(all, self.files.clone())));
        for listener in listeners {
            let (file, peer) = (listener.file, listener.peer());
            match (&tls, peer) {
                (Some(tls), Peer::Network) => self.server.serve_tls(file, peer, tls.clone()),
                (_, Peer::Local | Peer::Network) => self.server.serve(file, peer),
            }
        }
        self.tls.replace(tls);
    }
}
