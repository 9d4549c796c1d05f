// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The option phase as clients see it.

use crate::common::{Disk, SingleExport, info, meta, with_server};
use block::{Limits, Nanos, Sector};
use nbd::Options;
use nbd::wire::{opt, rep};
use reactor::{now, sleep};

fn one() -> SingleExport {
    SingleExport::new(&Disk::new(2048, Nanos::ZERO))
}

#[test]
fn go_tells_size_flags_name_description_and_block_sizes() {
    with_server(1, Options::default(), one, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::GO, &info("", &[1, 2, 3])).await;
        let (kind, export) = c.option_reply().await;
        assert_eq!(kind, rep::INFO);
        // Type 0, 1 MiB, has flags, flush, FUA, trim, write zeroes, multi-conn, fast zero.
        assert_eq!(export, [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0x09, 0x6d]);
        assert_eq!(c.option_reply().await, (rep::INFO, b"\x00\x01disk".to_vec()));
        assert_eq!(c.option_reply().await, (rep::INFO, b"\x00\x02a disk for tests".to_vec()));
        let sizes = vec![0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0];
        assert_eq!(c.option_reply().await, (rep::INFO, sizes));
        assert_eq!(c.option_reply().await, (rep::ACK, vec![]));
    });
}

#[test]
fn a_device_that_keeps_nothing_offers_no_flush_and_no_fua() {
    let volatile = || {
        let limits = Limits { keeps: false, ..Limits::new(Sector(2048)) };
        SingleExport::new(&Disk::with(limits, Nanos::ZERO))
    };
    with_server(1, Options::default(), volatile, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::GO, &info("", &[])).await;
        let (_, export) = c.option_reply().await;
        assert_eq!(export[10..], [0x09, 0x61], "all but flush (4) and FUA (8)");
        assert_eq!(c.option_reply().await.0, rep::INFO, "block sizes");
        assert_eq!(c.option_reply().await, (rep::ACK, vec![]));
        // Sent all the same, it is answered.
        assert_eq!(c.ask(nbd::wire::cmd::FLUSH, 0, 0, 0).await, (0, vec![]));
    });
}

#[test]
fn export_name_replies_with_size_flags_and_optional_zeroes() {
    with_server(1, Options::default(), one, |net, listener, _| async move {
        for (flags, zeroes) in [(1, 124), (3, 0)] {
            let mut c = net.connect(listener);
            c.recv(18).await;
            c.send(&[0, 0, 0, flags]).await;
            c.option(opt::EXPORT_NAME, b"disk").await;
            let reply = c.recv(10 + zeroes).await;
            assert_eq!(reply[..10], [0, 0, 0, 0, 0, 0x10, 0, 0, 0x09, 0x6d]);
            assert!(reply[10..].iter().all(|b| *b == 0));
            assert_eq!(c.ask(nbd::wire::cmd::READ, 0, 0, 512).await, (0, vec![0; 512]));
        }
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::EXPORT_NAME, b"nonsense").await;
        assert!(c.at_end().await);
    });
}

#[test]
fn list_names_every_export() {
    with_server(1, Options::default(), one, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::LIST, &[]).await;
        assert_eq!(c.option_reply().await, (rep::SERVER, b"\0\0\0\x04disk".to_vec()));
        assert_eq!(c.option_reply().await, (rep::SERVER, b"\0\0\0\x05ghost".to_vec()));
        assert_eq!(c.option_reply().await, (rep::ACK, vec![]));
    });
}

#[test]
fn wrong_options_get_their_error_and_the_handshake_goes_on() {
    let cases = [
        (opt::GO, info("nonsense", &[]), rep::ERR_UNKNOWN),
        (opt::INFO, vec![0, 0, 0, 9, 1], rep::ERR_INVALID),
        (opt::GO, vec![], rep::ERR_INVALID),
        (opt::GO, info(&"x".repeat(4097), &[]), rep::ERR_INVALID),
        (opt::GO, info(&"x".repeat(4096), &[]), rep::ERR_UNKNOWN),
        (opt::LIST, vec![1], rep::ERR_INVALID),
        (opt::STRUCTURED_REPLY, vec![1], rep::ERR_INVALID),
        (opt::SET_META_CONTEXT, meta("", &["base:allocation"]), rep::ERR_INVALID),
        (opt::STARTTLS, vec![], rep::ERR_POLICY),
        (99, vec![7; 65536], rep::ERR_UNSUP),
    ];
    with_server(1, Options::default(), one, move |net, listener, _| async move {
        net.0.borrow_mut().fragment = true;
        let mut c = net.connect(listener);
        c.greet().await;
        for (option, payload, want) in cases {
            c.option(option, &payload).await;
            let (kind, _) = c.option_reply().await;
            assert_eq!(kind, want, "option {option} with {} bytes", payload.len());
        }
        c.option(opt::GO, &info("disk", &[])).await;
        assert_eq!(c.option_reply().await.0, rep::INFO);
    });
}

#[test]
fn what_is_no_option_ends_the_connection() {
    let too_big = [b"IHAVEOPT\0\0\0\x07".as_slice(), &(65537_u32.to_be_bytes())].concat();
    let no_magic = b"NBDMAGIC\0\0\0\x07\0\0\0\0".to_vec();
    with_server(1, Options::default(), one, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.greet().await;
        c.send(&too_big).await;
        assert_eq!(c.option_reply().await.0, rep::ERR_TOO_BIG);
        assert!(c.at_end().await);
        let mut c = net.connect(listener);
        c.greet().await;
        c.send(&no_magic).await;
        assert!(c.at_end().await);
        let mut c = net.connect(listener);
        c.recv(18).await;
        c.send(&[0x80, 0, 0, 3]).await;
        assert!(c.at_end().await, "unknown client flags");
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::ABORT, &[]).await;
        assert_eq!(c.option_reply().await.0, rep::ACK);
        assert!(c.at_end().await);
    });
}

#[test]
fn contexts_are_listed_and_set_by_name() {
    let dirty = || SingleExport { dirty: Some(vec![]), ..one() };
    with_server(1, Options::default(), dirty, |net, listener, _| async move {
        let mut c = net.connect(listener);
        c.greet().await;
        c.option(opt::STRUCTURED_REPLY, &[]).await;
        c.option_reply().await;
        let (base, ours) = (b"\0\0\0\x01base:allocation", b"\0\0\0\x02millpond:dirty");
        type Case<'a> = (u32, &'a [&'a str], &'a [&'a [u8]]);
        let cases: &[Case<'_>] = &[
            (opt::LIST_META_CONTEXT, &[], &[base, ours]),
            (opt::LIST_META_CONTEXT, &["base:"], &[base]),
            (opt::LIST_META_CONTEXT, &["qemu:"], &[]),
            (opt::SET_META_CONTEXT, &["base:"], &[]),
            (opt::SET_META_CONTEXT, &["millpond:dirty", "x"], &[ours]),
        ];
        for (option, queries, want) in cases {
            c.option(*option, &meta("disk", queries)).await;
            for want in *want {
                assert_eq!(c.option_reply().await, (rep::META_CONTEXT, want.to_vec()));
            }
            assert_eq!(c.option_reply().await, (rep::ACK, vec![]), "{queries:?}");
        }
    });
}

#[test]
fn contexts_are_for_the_export_they_were_set_for_and_no_other() {
    with_server(1, Options::default(), one, |net, listener, _| async move {
        for (export, error) in [("disk", 0), ("", 22)] {
            let mut c = net.connect(listener);
            c.greet().await;
            c.option(opt::STRUCTURED_REPLY, &[]).await;
            c.option_reply().await;
            c.option(opt::SET_META_CONTEXT, &meta("disk", &["base:allocation"])).await;
            while c.option_reply().await.0 != rep::ACK {}
            // Asking about another export changes nothing.
            c.option(opt::INFO, &info("", &[])).await;
            while c.option_reply().await.0 != rep::ACK {}
            c.option(opt::EXPORT_NAME, export.as_bytes()).await;
            c.recv(10).await;
            let told = c.ask(nbd::wire::cmd::BLOCK_STATUS, 0, 0, 4096).await.0;
            assert_eq!(told, error, "`{export}`");
        }
    });
}

#[test]
fn a_client_that_does_not_finish_its_handshake_is_cut_off() {
    with_server(1, Options::default(), one, |net, listener, server| async move {
        let mut lazy = net.connect(listener);
        lazy.greet().await;
        let mut done = net.connect(listener);
        done.go(false).await;
        let before = now();
        assert!(lazy.at_end().await);
        let waited = now() - before;
        assert!((Nanos::from_secs(9)..Nanos::from_secs(12)).contains(&waited), "{waited:?}");
        sleep(Nanos::from_secs(60)).await;
        assert_eq!(done.ask(nbd::wire::cmd::READ, 0, 0, 512).await.0, 0, "idle is allowed later");
        assert_eq!(server.stats().connections, 1);
    });
}

#[test]
fn one_connection_too_many_is_closed_at_once() {
    let options = Options { connections_max: 1, local_connections: 0, ..Options::default() };
    with_server(1, options, one, |net, listener, server| async move {
        let mut first = net.connect(listener);
        first.go(false).await;
        assert!(net.connect(listener).at_end().await);
        assert_eq!(server.stats().refused_total, 1);
        first.close().await;
        sleep(Nanos::from_millis(1)).await;
        net.connect(listener).go(false).await;
    });
}
