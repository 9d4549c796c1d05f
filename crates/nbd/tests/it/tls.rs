// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLS: what a server answers before it, our client over it, and peers that break it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crate::common::{Disk, Net, SingleExport, info, with_server};
use block::{Buf, Class, Error, Flags, LocalFuture, Nanos, Sector};
use nbd::client::{self, Client, Connect};
use nbd::wire::{opt, rep};
use nbd::{Options, Peer, Server, TlsClient, TlsServer};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use reactor::{FileId, flush, now, read, sleep, spawn, write, yield_now};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

const SECTORS: u64 = 4096;

fn one() -> SingleExport {
    SingleExport::new(&Disk::new(SECTORS, Nanos::ZERO))
}

/// A server's side and a client's, of one authority.
fn configs() -> (Arc<ServerConfig>, TlsClient) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["server".to_owned()]).unwrap();
    let own = params.signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![own.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        );
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("server").unwrap();
    (Arc::new(server.unwrap()), TlsClient { config: Arc::new(config), name })
}

type Causes = Rc<RefCell<Vec<String>>>;

/// Serves by TLS at a listener of its own.
fn serve(net: &Net, server: &Server, config: Arc<ServerConfig>) -> (FileId, Causes) {
    let (listener, causes) = (net.listen(), Causes::default());
    let log = causes.clone();
    let tls = TlsServer::new(config, move |_, why| log.borrow_mut().push(why.to_owned()));
    server.serve_tls(listener, Peer::Network, Rc::new(tls));
    (listener, causes)
}

struct Connector {
    net: Net,
    listener: FileId,
    tls: TlsClient,
}

impl Connect for Connector {
    fn connect(&self) -> LocalFuture<Result<FileId, Error>> {
        let file = self.net.connect(self.listener).file;
        Box::pin(async move { Ok(file) })
    }

    fn peer(&self) -> String {
        "server".into()
    }

    fn tls(&self) -> Option<TlsClient> {
        Some(self.tls.clone())
    }
}

#[test]
fn before_starttls_every_option_is_told_that_tls_is_needed() {
    with_server(1, Options::default(), one, |net, _, server| async move {
        let (listener, causes) = serve(&net, &server, configs().0);
        let mut c = net.connect(listener);
        c.greet().await;
        for option in [opt::GO, opt::INFO, opt::LIST, opt::STRUCTURED_REPLY, 77] {
            c.option(option, &info("disk", &[])).await;
            assert_eq!(c.option_reply().await.0, rep::ERR_TLS_REQD, "{option}");
        }
        c.option(opt::STARTTLS, b"more").await;
        assert_eq!(c.option_reply().await.0, rep::ERR_INVALID);
        c.option(opt::STARTTLS, &[]).await;
        assert_eq!(c.option_reply().await.0, rep::ACK);
        // No TLS after all.
        c.option(opt::GO, &info("disk", &[])).await;
        assert!(c.at_end().await || !causes.borrow().is_empty());
        // This option has no way to say so.
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::EXPORT_NAME, b"disk").await;
        assert!(c.at_end().await);
    });
}

/// Whoever can insert bytes before the handshake must not speak for the client after it.
#[test]
fn bytes_behind_starttls_end_the_connection() {
    with_server(1, Options::default(), one, |net, _, server| async move {
        let (listener, causes) = serve(&net, &server, configs().0);
        let mut c = net.connect(listener);
        c.greet().await;
        let began = now();
        let mut both = crate::common::option_bytes(opt::STARTTLS, &[]);
        both.extend(crate::common::option_bytes(opt::LIST, &[]));
        c.send(&both).await;
        assert!(c.at_end().await);
        // At once: no handshake has begun.
        assert_eq!((now() - began, causes.borrow().len()), (Nanos::ZERO, 0));
    });
}

#[test]
fn without_tls_here_starttls_is_refused_and_the_rest_goes_on() {
    with_server(1, Options::default(), one, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::STARTTLS, &[]).await;
        assert_eq!(c.option_reply().await.0, rep::ERR_POLICY);
        c.option(opt::GO, &info("disk", &[])).await;
        assert_eq!(c.option_reply().await.0, rep::INFO);
    });
}

#[test]
fn data_arrive_unchanged_by_tls_in_pieces_of_any_size() {
    for seed in 0..8 {
        with_server(seed, Options::default(), one, move |net, _, server| async move {
            let (config, tls) = configs();
            let (listener, causes) = serve(&net, &server, config);
            let connect = Rc::new(Connector { net, listener, tls });
            let options = client::Options::default();
            let client = Client::open("far", "disk", connect, options, |_| {}).await.unwrap();
            let mut model = vec![0_u8; SECTORS as usize * 512];
            let mut x = seed + 1;
            let mut below = |n: u64| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 33) % n
            };
            for nth in 0..60_u8 {
                let at = below(SECTORS);
                let len = 1 + below((SECTORS - at).min(1024));
                let range = at as usize * 512..(at + len) as usize * 512;
                let buf = Buf::alloc(range.len());
                if below(2) == 0 {
                    buf.write(|b| b.fill(nth));
                    model[range].fill(nth);
                    let flags = Flags::empty();
                    let to = Sector(at);
                    write(&client, flags, Class::Normal, to, buf.into()).await.unwrap();
                } else {
                    read(&client, Class::Normal, Sector(at), buf.clone().into()).await.unwrap();
                    assert!(buf.read(|b| *b == model[range]), "seed {seed}");
                }
            }
            flush(&client, Class::Normal).await.unwrap();
            client.close().await;
            assert!(causes.borrow().is_empty(), "{:?}", causes.borrow());
        });
    }
}

#[test]
fn anything_in_place_of_tls_ends_the_connection_with_its_cause() {
    with_server(1, Options::default(), one, |net, _, server| async move {
        let (listener, causes) = serve(&net, &server, configs().0);
        let mut x = 1_u64;
        for len in [1_usize, 5, 6, 300, 20_000, 70_000] {
            let mut next = || {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 56) as u8
            };
            let mut bytes: Vec<u8> = (0..len).map(|_| next()).collect();
            // Half of them begin as a handshake record does.
            if len % 2 == 0 {
                bytes[..3].copy_from_slice(&[22, 3, 1]);
            }
            let mut c = net.connect(listener);
            c.greet().await;
            c.option(opt::STARTTLS, &[]).await;
            assert_eq!(c.option_reply().await.0, rep::ACK);
            c.send(&bytes).await;
            net.half_close(c.file);
            c.drain().await;
            assert_eq!(causes.borrow_mut().drain(..).count(), 1, "{len}");
        }
    });
}

#[test]
fn a_client_that_does_not_finish_tls_is_cut_off() {
    let options = Options { handshake_time: Nanos::from_secs(2), ..Options::default() };
    with_server(1, options, one, |net, _, server| async move {
        let (listener, causes) = serve(&net, &server, configs().0);
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::STARTTLS, &[]).await;
        assert_eq!(c.option_reply().await.0, rep::ACK);
        let began = now();
        assert!(c.at_end().await);
        assert!(now() - began < Nanos::from_secs(4));
        assert_eq!(causes.borrow().len(), 1);
    });
}

/// Nobody else has its keys, so it stays with its server, whose pause is one for it, too: also in
/// the middle of a record.
#[test]
fn a_client_with_tls_waits_in_a_pause_and_goes_on_after_it() {
    with_server(1, Options::default(), one, |net, _, server| async move {
        net.0.borrow_mut().fragment = true;
        let (config, tls) = configs();
        let (listener, _) = serve(&net, &server, config);
        let door = Rc::new(Connector { net: net.clone(), listener, tls });
        let opened = Client::open("nbd", "disk", door, client::Options::default(), |_| {}).await;
        let client = Rc::new(opened.unwrap());
        let stays: Vec<u64> = server.staying_connections().iter().map(|c| c.id).collect();
        assert_eq!(stays, [1]);
        for nth in 0..8_u8 {
            let done = Rc::new(Cell::new(false));
            let (set, writer) = (done.clone(), client.clone());
            spawn(async move {
                let data = Buf::alloc(200_000);
                data.write(|b| b.fill(nth));
                let (flags, class) = (Flags::empty(), Class::Normal);
                write(&*writer, flags, class, Sector(0), data.slice(0..199_680).into())
                    .await
                    .unwrap();
                set.set(true);
            });
            for _ in 0..nth {
                yield_now().await; // further into the WRITE
            }
            let paused = server.pause(Nanos::from_secs(1)).await.unwrap();
            assert_eq!((paused.sessions.len(), paused.staying.len()), (0, 1));
            let written = done.get();
            sleep(Nanos::from_millis(100)).await;
            assert_eq!(done.get(), written, "nothing is done in a pause");
            server.resume();
            sleep(Nanos::from_millis(100)).await;
            assert!(done.get());
            let back = Buf::alloc(512);
            read(&*client, Class::Normal, Sector(389), back.all().into()).await.unwrap();
            back.read(|b| assert!(b.iter().all(|b| *b == nth)));
        }
        assert_eq!(server.stats().connections_total, 1, "it has not connected again");
    });
}
