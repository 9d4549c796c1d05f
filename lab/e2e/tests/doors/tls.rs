// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD over TLS: real clients at our server, our client at a real server, and who is refused.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::clock;
use e2e::origin::{IMAGE, Kind, Origin, Transport};
use e2e::pause;
use e2e::process::{Ended, output, run};
use e2e::stamp::{BLOCK_BYTES, fill};
use e2e::test_bed::{TestBed, clients};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);
const LIN: (&str, &str) = ("lin", "0 16384 linear mem:8M 0");

/// One who signs certificates.
struct Authority(Issuer<'static, KeyPair>, String);

impl Authority {
    fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Authority(Issuer::new(params, key), pem)
    }

    /// Writes what `who`, "server" or "client", needs.
    fn sign(&self, dir: &Path, who: &str, expired: bool) {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, who);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match who {
            "server" => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        if expired {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let pem = params.signed_by(&key, &self.0).unwrap().pem();
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("ca-cert.pem"), &self.1).unwrap();
        std::fs::write(dir.join(format!("{who}-cert.pem")), pem).unwrap();
        std::fs::write(dir.join(format!("{who}-key.pem")), key.serialize_pem()).unwrap();
    }
}

/// A server by TLS with certificates in `server`, and those of clients beside it.
struct Setup {
    bed: TestBed,
    authority: Authority,
    port: u16,
    certificates: tempfile::TempDir,
}

impl Setup {
    fn start() -> Setup {
        let certificates = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
        let authority = Authority::new("ours");
        authority.sign(&certificates.path().join("server"), "server", false);
        authority.sign(&certificates.path().join("client"), "client", false);
        let dir = certificates.path().join("server");
        let options = format!("nbd = ['127.0.0.1:0']\nnbd_tls_certs = '{}'", dir.display());
        let bed = TestBed::start_with(&options, &[], &[LIN]);
        let log = bed.daemon().log();
        let (_, port) = log.split_once("nbd=127.0.0.1:").unwrap();
        let port = port.split_whitespace().next().unwrap().parse().unwrap();
        Setup { bed, authority, port, certificates }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.certificates.path().join(name)
    }

    fn uri(&self, certificates: &str) -> String {
        let dir = self.dir(certificates);
        format!("nbds://127.0.0.1:{}/lin?tls-certificates={}", self.port, dir.display())
    }

    fn nbdinfo(&self, uri: &str) -> Ended {
        run(Command::new("nbdinfo").arg("--size").arg(uri), LIMIT).unwrap()
    }

    /// qemu-io by TLS; `priority` is what GnuTLS may use.
    fn qemu_io(&self, certificates: &str, priority: &str, commands: &[&str]) -> Ended {
        let dir = self.dir(certificates).display().to_string();
        let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={dir},priority={priority}");
        let (host, port) = ("127.0.0.1", self.port);
        let image = format!("driver=nbd,host={host},port={port},export=lin,tls-creds=tls");
        let mut command = Command::new("qemu-io");
        command.args(["--object", &object, "--image-opts", &image]);
        for c in commands {
            command.args(["-c", c]);
        }
        run(&mut command, LIMIT).unwrap()
    }

    /// Waits for a line of the log with all of `parts`.
    fn logged(&self, parts: &[&str]) {
        let give_up = clock() + 10.0;
        let has = |line: &str| parts.iter().all(|part| line.contains(part));
        while !self.bed.daemon().log().lines().any(has) {
            assert!(clock() < give_up, "{parts:?}: {}", self.bed.daemon().log());
            pause(Duration::from_millis(10));
        }
    }
}

/// An image of 8 MiB in which every block is another.
fn image(path: &Path) -> Vec<u8> {
    let mut data = vec![0; 8 * MIB as usize];
    for (block, data) in (0..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
        fill(data, block, 1);
    }
    std::fs::write(path, &data).unwrap();
    data
}

#[test]
fn libnbd_copies_there_and_back_by_tls() {
    if !clients(&["nbdcopy", "nbdinfo"]) {
        return;
    }
    let setup = Setup::start();
    assert_eq!(setup.nbdinfo(&setup.uri("client")).ok().unwrap().trim(), (8 * MIB).to_string());
    let [there, back] = ["there", "back"].map(|name| setup.bed.path(name));
    let data = image(&there);
    let [there, back] = [there, back].map(|path| path.display().to_string());
    output("nbdcopy", &[&there, &setup.uri("client")]).unwrap();
    output("nbdcopy", &[&setup.uri("client"), &back]).unwrap();
    assert!(std::fs::read(back).unwrap() == data);
    // What came by TLS is there without it, at the Unix socket.
    let mut plain = vec![0; data.len()];
    setup.bed.connect("lin").read(0, &mut plain).unwrap();
    assert!(plain == data);
}

#[test]
fn qemu_io_writes_and_reads_by_tls() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let setup = Setup::start();
    let commands = ["write -P 0x5a 4096 1M", "read -P 0x5a 4096 1M", "flush", "read -P 0 0 4096"];
    for priority in ["NORMAL", "NORMAL:-VERS-ALL:+VERS-TLS1.2"] {
        setup.qemu_io("client", priority, &commands).ok().unwrap();
    }
}

#[test]
fn who_has_no_certificate_of_ours_is_refused() {
    if !clients(&["nbdinfo", "qemu-io"]) {
        return;
    }
    let setup = Setup::start();
    let refused = |dir: &str, cause: &str| {
        assert_ne!(setup.nbdinfo(&setup.uri(dir)).code, 0, "{dir}");
        setup.logged(&["TLS handshake failed", "peer=\"127.0.0.1:", cause]);
    };
    std::fs::create_dir(setup.dir("none")).unwrap();
    std::fs::copy(setup.dir("client/ca-cert.pem"), setup.dir("none/ca-cert.pem")).unwrap();
    refused("none", "peer sent no certificates");
    setup.authority.sign(&setup.dir("old"), "client", true);
    refused("old", "xpired");
    Authority::new("stranger").sign(&setup.dir("strange"), "client", false);
    std::fs::copy(setup.dir("client/ca-cert.pem"), setup.dir("strange/ca-cert.pem")).unwrap();
    // By our client: libnbd does not send a certificate that the server's CA has not signed.
    let table = format!("0 16384 linear {} 0", setup.uri("strange"));
    let created = setup.bed.daemon().try_verb(&["create", "far", "--table", &table]).unwrap();
    assert_ne!(created.code, 0);
    setup.logged(&["TLS handshake failed", "peer=\"127.0.0.1:", "UnknownIssuer"]);
    // Too old a TLS.
    let old = "NORMAL:-VERS-ALL:+VERS-TLS1.1";
    assert_ne!(setup.qemu_io("client", old, &["read 0 4096"]).code, 0);
    setup.logged(&["TLS handshake failed", "peer is incompatible"]);
    // No TLS at all.
    let plain = format!("nbd://127.0.0.1:{}/lin", setup.port);
    let complaint = setup.nbdinfo(&plain).complaint();
    assert!(complaint.to_lowercase().contains("tls"), "{complaint}");
    setup.nbdinfo(&setup.uri("client")).ok().unwrap();
}

#[test]
fn a_server_without_a_certificate_of_ours_is_refused() {
    let setup = Setup::start();
    Authority::new("stranger").sign(&setup.dir("strange"), "client", false);
    let create = |uri: &str| {
        let table = format!("0 16384 linear {uri} 0");
        setup.bed.daemon().try_verb(&["create", "far", "--table", &table]).unwrap()
    };
    let complaint = create(&setup.uri("strange")).complaint();
    assert!(complaint.contains("TLS: invalid peer certificate"), "{complaint}");
    let other = format!("{}&tls-hostname=other.example", setup.uri("client"));
    let complaint = create(&other).complaint();
    assert!(complaint.contains("not valid for name"), "{complaint}");
    // Plain, where TLS is the only way.
    let complaint = create(&format!("nbd://127.0.0.1:{}/lin", setup.port)).complaint();
    assert!(complaint.contains("must begin with nbds"), "{complaint}");
}

#[test]
fn our_client_reads_and_writes_our_server_by_tls() {
    let setup = Setup::start();
    let table = format!("0 16384 linear {} 0", setup.uri("client"));
    setup.bed.daemon().verb(&["create", "far", "--table", &table]).unwrap();
    let data = image(&setup.bed.path("there"));
    let mut client = setup.bed.connect("far");
    // Pieces of no common size, in no order.
    let mut at = 0;
    for nth in 0_u64.. {
        let len = (512 * (1 + nth * 37 % 900)).min(8 * MIB - at);
        client.write(at, &data[at as usize..(at + len) as usize]).unwrap();
        at += len;
        if at == 8 * MIB {
            break;
        }
    }
    client.flush().unwrap();
    let mut back = vec![0; data.len()];
    client.read(0, &mut back).unwrap();
    assert!(back == data, "by TLS");
    setup.bed.connect("lin").read(0, &mut back).unwrap();
    assert!(back == data, "at the server");
}

#[test]
fn sighup_takes_new_certificates() {
    if !clients(&["nbdinfo"]) {
        return;
    }
    let setup = Setup::start();
    let other = Authority::new("other");
    other.sign(&setup.dir("server"), "server", false);
    other.sign(&setup.dir("new"), "client", false);
    assert_ne!(setup.nbdinfo(&setup.uri("new")).code, 0, "not yet");
    setup.bed.daemon().verb(&["reload"]).unwrap();
    setup.nbdinfo(&setup.uri("new")).ok().unwrap();
    assert_ne!(setup.nbdinfo(&setup.uri("client")).code, 0, "not any more");
    // Without ca-cert.pem anybody could come: not before the next start.
    std::fs::remove_file(setup.dir("server/ca-cert.pem")).unwrap();
    let refused = setup.bed.daemon().try_verb(&["reload"]).unwrap();
    assert!(refused.complaint().contains("ca-cert.pem is gone"), "{}", refused.complaint());
    setup.nbdinfo(&setup.uri("new")).ok().unwrap();
}

#[test]
fn nbdkit_by_tls_is_a_device() {
    if !clients(&["nbdkit", "nbdcopy"]) {
        return;
    }
    let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.sign(dir.path(), "server", false);
    authority.sign(dir.path(), "client", false);
    std::fs::File::create(dir.path().join(IMAGE)).unwrap().set_len(8 * MIB).unwrap();
    let origin = Origin::start(Kind::NbdkitTls, Transport::Tcp, dir.path());
    let uri = origin.uri(&format!("tls-certificates={}", dir.path().display()));
    let bed = TestBed::start(&[], &[("far", &format!("0 16384 linear {uri} 0"))]);
    let there = bed.path("there");
    let data = image(&there);
    output("nbdcopy", &["--flush", &there.display().to_string(), &bed.uri("far")]).unwrap();
    let mut back = vec![0; data.len()];
    bed.connect("far").read(0, &mut back).unwrap();
    assert!(back == data, "by TLS");
    drop(bed);
    origin.kill();
    assert!(std::fs::read(origin.image()).unwrap() == data, "at the server");
}
