// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Certificates of TLS: a directory of PEM files, named as nbdkit, libnbd and qemu name them.
//!
//! | file | of the server | of a client |
//! |---|---|---|
//! | `ca-cert.pem` | signs clients' certificates; if there, they need one | signs the server's |
//! | `server-cert.pem`, `server-key.pem` | its own | |
//! | `client-cert.pem`, `client-key.pem` | | its own; may be missing |
//!
//! Reading them may wait for a file system: not on core threads.
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use block::{Error, ErrorKind};
use control::Failure;
use nbd::TlsServer;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use uring::{Files, RemoteEnd};

const CA: &str = "ca-cert.pem";
const SERVER: [&str; 2] = ["server-cert.pem", "server-key.pem"];
const CLIENT: [&str; 2] = ["client-cert.pem", "client-key.pem"];

/// What a server speaks TLS with.
#[derive(Clone, Debug)]
pub(crate) struct ServerCertificates {
    pub(crate) config: Arc<ServerConfig>,
    /// Whether a client must have a certificate.
    pub(crate) verifies_clients: bool,
}

type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn file_error(e: &io::Error, path: &Path) -> Error {
    let kind = ErrorKind::of_io(e.kind());
    Error::new(kind, format!("{}: {}", path.display(), block::without_errno(e)))
}

fn pem_error(e: &pem::Error, path: &Path) -> Error {
    let shown = path.display();
    if let pem::Error::Io(e) = &e {
        return file_error(e, path);
    }
    Error::invalid(format!("{shown}: {e}"))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|e| pem_error(&e, path))?;
    if all.is_empty() {
        return Err(Error::invalid(format!("{}: it has no certificate", path.display())));
    }
    Ok(all)
}

/// Certificate and key.
fn own(dir: &Path, [certificate, key]: [&str; 2]) -> Result<Own, Error> {
    let chain = certificates(&dir.join(certificate))?;
    let path = dir.join(key);
    let key = PrivateKeyDer::from_pem_file(&path).map_err(|e| pem_error(&e, &path))?;
    let mode = std::fs::metadata(&path).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o007 != 0 {
        let (path, mode) = (path.display(), mode & 0o777);
        tracing::warn!("{path}: other users may use the key (mode {mode:04o}): chmod 0600");
    }
    Ok((chain, key))
}

fn authorities(dir: &Path) -> Result<RootCertStore, Error> {
    let path = dir.join(CA);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        let added = roots.add(certificate);
        added.map_err(|e| Error::invalid(format!("{}: {e}", path.display())))?;
    }
    Ok(roots)
}

fn wrong(dir: &Path, e: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {e}", dir.display()))
}

/// Reads the certificates of a server.
pub(crate) fn server(dir: &Path) -> Result<ServerCertificates, Error> {
    let (chain, key) = own(dir, SERVER)?;
    let (provider, ca) = (provider(), dir.join(CA));
    let verifies_clients = ca.try_exists().map_err(|e| file_error(&e, &ca))?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(dir, e))?;
    let builder = if verifies_clients {
        let roots = Arc::new(authorities(dir)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        builder.with_client_cert_verifier(verifier.map_err(|e| wrong(dir, e))?)
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| wrong(dir, e))?;
    // A resumed session would pass by a certificate that has expired since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(ServerCertificates { config: Arc::new(config), verifies_clients })
}

/// The same for the option of the daemon.
pub(crate) fn server_option(dir: &Path) -> Result<ServerCertificates, Failure> {
    server(dir).map_err(|e| Failure::from(e).within("--nbd-tls-certs"))
}

/// Whether nobody without a certificate of ours can be a client.
pub(crate) fn protects(certificates: Option<&ServerCertificates>) -> bool {
    certificates.is_some_and(|all| all.verifies_clients)
}

/// Reads the certificates of a client.
pub(crate) fn client(dir: &Path) -> Result<Arc<ClientConfig>, Error> {
    let roots = authorities(dir)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(dir, e))?
        .with_root_certificates(roots);
    let has = |name| {
        let path = dir.join(name);
        path.try_exists().map_err(|e| file_error(&e, &path))
    };
    let config = if has(CLIENT[0])? || has(CLIENT[1])? {
        let (chain, key) = own(dir, CLIENT)?;
        builder.with_client_auth_cert(chain, key).map_err(|e| wrong(dir, e))?
    } else {
        builder.with_no_client_auth()
    };
    Ok(Arc::new(config))
}

/// TLS for listeners: logs handshakes that fail.
pub(crate) fn listener(certificates: &ServerCertificates, files: Files) -> TlsServer {
    TlsServer::new(certificates.config.clone(), move |file, why| {
        let peer = match files.remote_end(file) {
            Some(RemoteEnd::Address(address)) => address.to_string(),
            Some(RemoteEnd::Process { pid, .. }) => format!("process {pid}"),
            None => "a client that has gone".to_owned(),
        };
        tracing::warn!(peer, "TLS handshake failed: {why}");
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_certificate_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for (error, name) in [
            (server(dir.path()).unwrap_err(), "server-cert.pem"),
            (client(dir.path()).unwrap_err(), "ca-cert.pem"),
        ] {
            assert!(error.to_string().contains(name), "{error}");
        }
        std::fs::write(dir.path().join("ca-cert.pem"), "no certificate").unwrap();
        let error = client(dir.path()).unwrap_err().to_string();
        assert!(error.contains("ca-cert.pem: it has no certificate"), "{error}");
    }
}
