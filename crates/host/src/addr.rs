// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses to serve at: `unix:PATH` or `HOST:PORT`, by TCP on loopback only unless allowed.
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use block::ErrorKind;
use control::Failure;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Addr {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Addr {
    /// Reads `text`, the value of `option`.
    pub(crate) fn parse(option: &str, text: &str, allow_remote: bool) -> Result<Addr, Failure> {
        let invalid = |why: &str| {
            let message = format!("{option} {text}: {why}; allowed are unix:PATH and HOST:PORT");
            Failure::new(ErrorKind::Invalid, message)
        };
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(invalid("the path is empty"));
            }
            let path = std::path::absolute(path).map_err(|e| invalid(&e.to_string()))?;
            return Ok(Addr::Unix(path));
        }
        let mut found = text.to_socket_addrs().map_err(|e| invalid(&e.to_string()))?;
        let addr = found.next().ok_or_else(|| invalid("no such host"))?;
        let addr = Addr::Tcp(addr);
        addr.check_reach(&format!("{option} {text}"), allow_remote)?;
        Ok(addr)
    }

    /// Refuses an address that other machines reach, unless that is allowed; `what` names it.
    pub(crate) fn check_reach(&self, what: &str, allow_remote: bool) -> Result<(), Failure> {
        match self {
            Addr::Tcp(addr) if !allow_remote && !addr.ip().is_loopback() => {
                let message = format!(
                    "{what}: {} is not loopback, and clients need neither a certificate nor a \
                     password; --allow-remote allows it all the same",
                    addr.ip()
                );
                Err(Failure::new(ErrorKind::Denied, message))
            }
            Addr::Tcp(_) | Addr::Unix(_) => Ok(()),
        }
    }

    /// Whether a listener at `other` is what was asked for: any port is one.
    pub(crate) fn is_met_by(&self, other: &Addr) -> bool {
        match (self, other) {
            (Addr::Tcp(asked), Addr::Tcp(there)) if asked.port() == 0 => asked.ip() == there.ip(),
            _ => self == other,
        }
    }

    /// The path of a Unix socket.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Addr::Unix(path) => Some(path),
            Addr::Tcp(_) => None,
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
            Addr::Tcp(addr) => write!(f, "{addr}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_and_tcp_addresses_are_parsed() {
        let unix = Addr::parse("--nbd", "unix:/a/b.sock", false).unwrap();
        assert_eq!(unix, Addr::Unix("/a/b.sock".into()));
        let tcp = Addr::parse("--nbd", "127.0.0.1:10809", false).unwrap();
        assert_eq!(tcp.to_string(), "127.0.0.1:10809");
    }

    #[test]
    fn beyond_loopback_needs_allow_remote() {
        let e = Addr::parse("--http", "0.0.0.0:80", false).unwrap_err();
        assert_eq!(e.kind(), Some(ErrorKind::Denied));
        assert!(e.message.contains("--allow-remote"), "{e}");
        assert!(Addr::parse("--http", "0.0.0.0:80", true).is_ok());
        assert!(Addr::parse("--http", "[::1]:80", false).is_ok());
    }

    #[test]
    fn a_wrong_address_is_refused_with_what_is_allowed() {
        for text in ["", "unix:", "10809", "host", "127.0.0.1:99999"] {
            let e = Addr::parse("--nbd", text, false).unwrap_err();
            assert!(e.message.contains("unix:PATH and HOST:PORT"), "{e}");
        }
    }
}
