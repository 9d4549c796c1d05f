// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`, and with TLS `nbds` in place of
//! `nbd`: exports of other servers as leaves. The addresses are those of the NBD URI specification
//! (`doc/uri.md` of github.com/NetworkBlockDevice/nbd), with `timeout`, `silence` and `fence` in
//! the query besides.
use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::{BlockDevice, Error, LocalFuture, Nanos};
use fluent_uri::Uri;
use fluent_uri::pct_enc::encoder::{Data, Query};
use fluent_uri::pct_enc::{EStr, EString, Encoder};
use nbd::TlsClient;
use nbd::client::{Client, Connect, LinkEvent, Options};
use reactor::FileId;
use rustls::pki_types::ServerName;
use uring::{Files, Peer};

use crate::units::time;

/// The port that IANA has given to NBD.
const PORT: u16 = 10_809;
const ALLOWED: &str = "nbd://HOST[:PORT]/EXPORT and nbd+unix:///EXPORT?socket=PATH are allowed, \
                       with timeout=TIME, silence=TIME and fence=TIME in the query \
                       (?timeout=30s&fence=60s); with TLS they begin with nbds and have \
                       tls-certificates=DIR and perhaps tls-hostname=NAME";
/// The name in the certificate of a server that is reached by a Unix socket, unless one is given.
const LOCAL_NAME: &str = "localhost";

/// Least `silence`: a server that is silent for less has a slow link or is busy, and is not gone.
const SILENCE_MIN: Nanos = Nanos::from_secs(1);

/// The address of an export, and the time limits for its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    pub(crate) peer: Peer,
    pub(crate) export: String,
    pub(crate) options: Options,
    /// None without TLS.
    tls: Option<Tls>,
}

/// TLS as an address asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tls {
    certificates: PathBuf,
    hostname: ServerName<'static>,
}

impl Tls {
    fn new(
        certificates: Option<PathBuf>,
        hostname: Option<String>,
        peer: &Peer,
    ) -> Result<Tls, Error> {
        let certificates =
            certificates.ok_or_else(|| invalid("nbds needs tls-certificates=DIR"))?;
        if !certificates.is_absolute() {
            return Err(invalid("the path of tls-certificates must begin with a slash"));
        }
        let host = match peer {
            Peer::Tcp(host, _) => host,
            Peer::Unix(_) => LOCAL_NAME,
        };
        let hostname = ServerName::try_from(hostname.unwrap_or_else(|| host.to_owned()));
        let hostname = hostname.map_err(|e| invalid(&format!("the name of the server: {e}")))?;
        Ok(Tls { certificates, hostname })
    }
}

/// Whether a table's word is an address of NBD, good or bad.
pub fn is_nbd(word: &str) -> bool {
    let scheme = word.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|s| matches!(&*s, "nbd" | "nbd+unix" | "nbds" | "nbds+unix"))
}

/// Refuses an address of a scheme that no device has: it is no path.
pub(crate) fn check_scheme(word: &str) -> Result<(), Error> {
    let Some((scheme, _)) = word.split_once("://") else { return Ok(()) };
    Err(Error::invalid(format!(
        "there are no devices of the scheme {scheme}:; nbd://HOST/EXPORT, \
         nbd+unix:///EXPORT?socket=PATH or a path with a slash is allowed"
    )))
}

fn decoded<E: Encoder>(text: &EStr<E>) -> Result<String, Error> {
    let decoded = text.decode().to_string();
    let text = decoded.map_err(|_| invalid("a percent-coded part is no UTF-8"))?.into_owned();
    if text.contains('\0') { Err(invalid("it holds a zero byte")) } else { Ok(text) }
}

fn invalid(why: &str) -> Error {
    Error::invalid(format!("{why}; {ALLOWED}"))
}

impl NbdUri {
    pub fn parse(word: &str) -> Result<NbdUri, Error> {
        let uri = Uri::parse(word).map_err(|e| invalid(&format!("no URI: {e}")))?;
        let (mut socket, mut options) = (None, Options::default());
        let (mut certificates, mut hostname) = (None, None);
        for part in uri.query().into_iter().flat_map(|query| query.split('&')) {
            if part.is_empty() {
                continue;
            }
            let (key, value) = part.split_once('=').ok_or_else(|| no_such(part.as_str()))?;
            let value = decoded(value)?;
            let a_time = || time(&value).map_err(|e| invalid(&format!("{}: {e}", part.as_str())));
            match key.as_str() {
                "socket" => socket = Some(PathBuf::from(value)),
                "tls-certificates" => certificates = Some(PathBuf::from(value)),
                "tls-hostname" => hostname = Some(value),
                "timeout" => options.timeout = a_time()?,
                "silence" if a_time()? < SILENCE_MIN => {
                    return Err(invalid(&format!("{}: 1s is the least", part.as_str())));
                }
                "silence" => options.silence = a_time()?,
                "fence" => options.fence = Some(a_time()?),
                _ => return Err(no_such(key.as_str())),
            }
        }
        if uri.fragment().is_some() {
            return Err(invalid("nothing may follow a #"));
        }
        let scheme = uri.scheme().as_str().to_ascii_lowercase();
        let (scheme, wants_tls) = match scheme.strip_prefix("nbds") {
            Some(rest) => (format!("nbd{rest}"), true),
            None => (scheme, false),
        };
        let authority = uri.authority();
        if authority.is_some_and(|a| a.has_userinfo()) {
            return Err(invalid("a user before an @ is not supported"));
        }
        let peer = match (&*scheme, socket) {
            ("nbd+unix", Some(socket)) => {
                if authority.is_some_and(|a| !a.as_str().is_empty()) {
                    return Err(invalid("nbd+unix names no host: three slashes"));
                }
                if !socket.is_absolute() {
                    return Err(invalid("the socket's path must begin with a slash"));
                }
                Peer::Unix(socket)
            }
            ("nbd+unix", None) => return Err(invalid("nbd+unix needs socket=PATH")),
            ("nbd", Some(_)) => return Err(invalid("a socket belongs to nbd+unix")),
            ("nbd", None) => {
                let authority = authority.filter(|a| !a.host().is_empty());
                let authority = authority.ok_or_else(|| invalid("the host is missing"))?;
                let port = authority.port_to_u16().map_err(|_| invalid("no such port"))?;
                let host = authority.host();
                let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
                Peer::Tcp(bare.unwrap_or(host).to_owned(), port.unwrap_or(PORT))
            }
            _ => return Err(invalid("no such scheme")),
        };
        let tls = match wants_tls {
            true => Some(Tls::new(certificates, hostname, &peer)?),
            false if certificates.is_some() || hostname.is_some() => {
                return Err(invalid("TLS belongs to nbds"));
            }
            false => None,
        };
        let path = decoded(uri.path())?;
        let export = path.strip_prefix('/').unwrap_or(&path).to_owned();
        Ok(NbdUri { peer, export, options, tls })
    }

    /// The same for two words that mean the same export, whatever their time limits.
    pub(crate) fn canonical(&self) -> String {
        let scheme = if self.tls.is_some() { "nbds" } else { "nbd" };
        format!("{scheme} {} {:?}", self.peer, self.export)
    }

    /// Connects.
    pub async fn open(self, word: String, files: Files) -> Result<Client, Error> {
        let NbdUri { peer, export, options, tls } = self;
        let tls = match tls {
            None => None,
            Some(Tls { certificates, hostname: name }) => {
                let what = certificates.display().to_string();
                let config = files.away(&what, move || crate::tls::client(&certificates)).await?;
                Some(TlsClient { config, name })
            }
        };
        let name = word.clone();
        let log = move |event: &LinkEvent| match event {
            LinkEvent::Reconnected => tracing::info!(device = name, "{event}"),
            LinkEvent::Lost(_) | LinkEvent::ConnectFailed(_) | LinkEvent::BecameReadOnly => {
                tracing::warn!(device = name, "{event}");
            }
            LinkEvent::Failed(_) => tracing::error!(device = name, "{event}"),
        };
        let client =
            Client::open(word, &export, Rc::new(Connector { peer, files, tls }), options, log)
                .await?;
        if client.is_read_only() {
            tracing::warn!(device = client.name(), "the export is read-only: writes will fail");
        }
        Ok(client)
    }
}

/// The address with its socket's path as seen from `here`, if it is a relative one.
pub fn with_absolute_socket(word: &str, here: &Path) -> String {
    let key = "socket=";
    let found = word.match_indices(key).find(|(at, _)| word[..*at].ends_with(['?', '&']));
    let Some(at) = found.map(|(at, _)| at + key.len()) else { return word.to_owned() };
    let path = &word[at..];
    let coded = path.get(..3).is_some_and(|head| head.eq_ignore_ascii_case("%2f"));
    if coded || path.starts_with('/') {
        return word.to_owned();
    }
    // Slashes may stand in a query as they are, and the rest of the path has them so.
    let encoded = |name: &str| {
        let mut encoded = EString::<Query>::new();
        encoded.encode_str::<Data>(name);
        encoded.into_string()
    };
    let base: Vec<String> = here.to_string_lossy().split('/').map(encoded).collect();
    format!("{}{}/{}", &word[..at], base.join("/"), path.strip_prefix("./").unwrap_or(path))
}

fn no_such(key: &str) -> Error {
    invalid(&format!("`{key}` is no parameter"))
}

/// Connections by the driver.
struct Connector {
    peer: Peer,
    files: Files,
    tls: Option<TlsClient>,
}

impl Connect for Connector {
    fn connect(&self) -> LocalFuture<Result<FileId, Error>> {
        let (peer, files) = (self.peer.clone(), self.files.clone());
        Box::pin(async move { files.connect(&peer).await })
    }

    fn peer(&self) -> String {
        self.peer.to_string()
    }

    fn tls(&self) -> Option<TlsClient> {
        self.tls.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_another_scheme_is_no_path() {
        let e = check_scheme("http://h/x").unwrap_err().to_string();
        assert!(e.contains("of the scheme http:; nbd://HOST/EXPORT"), "{e}");
        assert!(check_scheme("/a/b:c/d").is_ok());
    }

    fn tcp(host: &str, port: u16) -> Peer {
        Peer::Tcp(host.into(), port)
    }

    #[test]
    fn addresses_are_read_as_the_specification_has_them() {
        let unix = Peer::Unix("/run/a b/sock".into());
        for (word, peer, export) in [
            ("nbd://localhost", tcp("localhost", 10_809), ""),
            ("nbd://localhost/", tcp("localhost", 10_809), ""),
            ("NBD://example.org:1234/disk", tcp("example.org", 1234), "disk"),
            ("nbd://[::1]:7/a/b", tcp("::1", 7), "a/b"),
            ("nbd://h//x", tcp("h", 10_809), "/x"),
            ("nbd://h/%C3%A4%20%2F%3F+1", tcp("h", 10_809), "ä /?+1"),
            ("nbd+unix:///pond?socket=/run/a%20b/sock", unix.clone(), "pond"),
            ("nbd+unix:///?socket=/run/a%20b/sock", unix.clone(), ""),
            ("nbd+unix://?socket=/run/a%20b/sock", unix, ""),
        ] {
            assert!(is_nbd(word));
            let uri = NbdUri::parse(word).unwrap_or_else(|e| panic!("{word}: {e}"));
            let options = Options::default();
            let plain = NbdUri { peer, export: export.into(), options, tls: None };
            assert_eq!(uri, plain, "{word}");
        }
    }

    #[test]
    fn time_limits_are_in_the_query_and_make_no_other_export() {
        let plain = NbdUri::parse("nbd://h/x").unwrap();
        let word = "nbd://h:10809/x?timeout=2m&silence=5m&fence=90s";
        let patient = NbdUri::parse(word).unwrap();
        let least = NbdUri::parse("nbd://h/x?silence=1s").unwrap();
        assert_eq!(least.options.silence, Nanos::from_secs(1));
        assert_eq!(patient.options.timeout, Nanos::from_secs(120));
        assert_eq!(patient.options.silence, Nanos::from_secs(300));
        assert_eq!(patient.options.fence, Some(Nanos::from_secs(90)));
        assert_eq!(plain.canonical(), patient.canonical());
        assert_ne!(plain.canonical(), NbdUri::parse("nbd://h/y").unwrap().canonical());
    }

    #[test]
    fn tls_is_another_export_with_a_name_to_verify() {
        for (word, name) in [
            ("nbds://h/x?tls-certificates=/c", "h"),
            ("nbds://[::1]/x?tls-certificates=/c", "::1"),
            ("nbds://h/x?tls-certificates=/c&tls-hostname=other", "other"),
            ("nbds+unix:///x?socket=/s&tls-certificates=/c", "localhost"),
        ] {
            let uri = NbdUri::parse(word).unwrap_or_else(|e| panic!("{word}: {e}"));
            let tls = uri.tls.clone().unwrap();
            assert_eq!((&*tls.hostname.to_str(), &*tls.certificates), (name, Path::new("/c")));
            let plain = NbdUri { tls: None, ..uri.clone() };
            assert_ne!(uri.canonical(), plain.canonical());
        }
    }

    #[test]
    fn a_relative_socket_is_relative_to_the_current_directory() {
        let here = Path::new("/my disks/a&b");
        for (word, socket) in [
            ("nbd+unix:///x?socket=run/s", "/my disks/a&b/run/s"),
            ("nbd+unix:///x?timeout=1s&socket=./s", "/my disks/a&b/s"),
            ("nbd+unix:///x?socket=/s", "/s"),
            ("nbd+unix:///x?socket=%2fs", "/s"),
        ] {
            let uri = NbdUri::parse(&with_absolute_socket(word, here)).unwrap();
            assert_eq!(uri.peer, Peer::Unix(socket.into()), "{word}");
        }
        // A person reads it, in the output of `loadgen --uri`.
        let shown = with_absolute_socket("nbd+unix:///x?socket=run/s", here);
        assert_eq!(shown, "nbd+unix:///x?socket=/my%20disks/a%26b/run/s");
    }

    #[test]
    fn a_wrong_address_is_refused_with_what_is_allowed() {
        for (word, why) in [
            ("nbd:///x", "the host is missing"),
            ("nbd://h:99999/x", "no such port"),
            ("nbd://h/%zz", "no URI"),
            ("nbd://h/%ff", "no UTF-8"),
            ("nbd://h/%00", "zero byte"),
            ("nbd://me@h/x", "before an @"),
            ("nbd://h/x?socket=/a", "belongs to nbd+unix"),
            ("nbd://h/x?size=1", "`size` is no parameter"),
            ("nbd://h/x?timeout=soon", "ms, s, m or h"),
            ("nbd://h/x?silence=1us", "silence=1us: 1s is the least"),
            ("nbd://h/x?silence=999ms", "1s is the least"),
            ("nbd://h/x#1", "follow a #"),
            ("nbd+unix:///x", "needs socket=PATH"),
            ("nbd+unix://h/x?socket=/a", "three slashes"),
            ("nbd+unix:///x?socket=a/b", "begin with a slash"),
            ("nbds://h/x", "nbds needs tls-certificates=DIR"),
            ("nbds://h/x?tls-certificates=a", "tls-certificates must begin with a slash"),
            ("nbds://h/x?tls-certificates=/a&tls-hostname=a%20b", "the name of the server"),
            ("nbd://h/x?tls-certificates=/a", "TLS belongs to nbds"),
        ] {
            let e = NbdUri::parse(word).unwrap_err().to_string();
            assert!(e.contains(why) && e.contains("nbd://HOST[:PORT]/EXPORT"), "{word}: {e}");
        }
        assert!(!is_nbd("nbdkit") && !is_nbd("/a/nbd") && !is_nbd("mem:4K"));
    }
}
