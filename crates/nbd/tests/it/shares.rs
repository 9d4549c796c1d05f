// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one client can keep from the others: memory, places, time. Each was found by an attack.

use crate::common::{Client, Disk, Net, SingleExport, with_server};
use block::Nanos;
use nbd::wire::cmd;
use nbd::{Options, Peer, Server};
use reactor::{FileId, now, sleep};

const MIB: u64 = 1 << 20;
const MS: Nanos = Nanos::from_millis(1);
const SECOND: Nanos = Nanos::from_secs(1);

fn disk() -> SingleExport {
    SingleExport::new(&Disk::new(64 << 11, MS))
}

/// Clients that ask for 40 x 2 MiB each, and read nothing.
async fn hoard(net: &Net, listener: FileId, count: usize) {
    for _ in 0..count {
        let mut hoarder = net.connect(listener);
        hoarder.go(false).await;
        for cookie in 0..40 {
            hoarder.request(cmd::READ, 0, cookie, 0, 2 << 20).await;
        }
    }
    sleep(SECOND).await;
}

async fn newcomer(net: &Net, listener: FileId) -> Client {
    let mut c = net.connect(listener);
    c.go(false).await;
    c
}

fn listen_local(net: &Net, server: &Server) -> FileId {
    let local = net.listen();
    server.serve(local, Peer::Local);
    local
}

/// Nine clients that stopped to read blocked every request above 1 MiB of all others for ever.
#[test]
fn clients_that_do_not_read_leave_a_share_to_others() {
    with_server(1, Options::default(), disk, |net, listener, server| async move {
        hoard(&net, listener, 9).await;
        let before = now();
        let mut good = newcomer(&net, listener).await;
        assert_eq!(good.ask(cmd::READ, 0, 0, 2 << 20).await.0, 0);
        assert_eq!(good.write(0, 0, &vec![1; 2 << 20]).await, 0);
        assert!(now() - before < SECOND);
        let mut local = newcomer(&net, listen_local(&net, &server)).await;
        assert_eq!(local.ask(cmd::READ, 0, 0, 32 << 20).await.0, 0, "local sockets: at once");
        assert!(now() - before < SECOND);
        // What is free is no 32 MiB: that waits until the clients are given up.
        assert_eq!(good.ask(cmd::READ, 0, 0, 32 << 20).await.0, 0);
        assert!(now() - before < Nanos::from_secs(33));
        assert_eq!(server.stats().stalled_total, 9);
    });
}

#[test]
fn sixty_clients_that_do_not_read_are_no_lock_out() {
    with_server(1, Options::default(), disk, |net, listener, server| async move {
        hoard(&net, listener, 60).await;
        let before = now();
        let mut good = newcomer(&net, listener).await;
        assert_eq!(good.ask(cmd::READ, 0, 0, 32 << 20).await.0, 0);
        assert!(now() - before < Nanos::from_secs(33));
        // Those that waited take the place of those that held, and go the same way.
        sleep(Nanos::from_secs(600)).await;
        assert_eq!((server.stats().connections, server.stats().stalled_total), (1, 60));
    });
}

/// Every connection had its place and its memory for ever, though its client took no reply.
#[test]
fn a_session_that_takes_no_replies_is_dropped() {
    with_server(1, Options::default(), disk, |net, listener, server| async move {
        let stalled = newcomer(&net, listener).await;
        for cookie in 0..8 {
            stalled.request(cmd::READ, 0, cookie, 0, 1 << 20).await;
        }
        let mut slow = newcomer(&net, listener).await;
        slow.request(cmd::READ, 0, 1, 0, 4 << 20).await;
        slow.recv(16).await;
        for _ in 0..4 {
            sleep(Nanos::from_secs(20)).await; // slower than most, but it goes on
            slow.recv(1 << 20).await;
        }
        assert_eq!((server.stats().connections, server.stats().stalled_total), (1, 1));
        let mut idle = newcomer(&net, listener).await;
        sleep(Nanos::from_secs(3600)).await;
        assert_eq!(idle.ask(cmd::READ, 0, 0, 512).await.0, 0, "who owes nothing may idle");
    });
}

/// A WRITE's head takes memory for its data before they come, if they come.
#[test]
fn a_write_whose_data_do_not_come_is_dropped() {
    with_server(1, Options::default(), disk, |net, listener, server| async move {
        let mut silent = newcomer(&net, listener).await;
        silent.request(cmd::WRITE, 0, 1, 0, 32 << 20).await;
        let mut refused = newcomer(&net, listener).await;
        refused.request(cmd::WRITE, 0, 1, 1, 32 << 20).await; // its data are skipped
        let dripping = newcomer(&net, listener).await;
        dripping.request(cmd::WRITE, 0, 1, 0, 32 << 20).await;
        let mut slow = newcomer(&net, listener).await;
        slow.request(cmd::WRITE, 0, 1, 0, 4 << 20).await;
        for n in 0..64 {
            sleep(SECOND).await;
            dripping.send(&[0]).await;
            if n % 16 == 0 {
                slow.send(&vec![0; 1 << 20]).await;
            }
        }
        assert_eq!(slow.reply(|_| 0).await.1, 0);
        assert!(silent.at_end().await && refused.at_end().await);
        assert_eq!((server.stats().connections, server.stats().stalled_total), (1, 3));
    });
}

/// 256 idle sessions kept everybody else out, for ever, the operator's local socket included.
#[test]
fn idle_sessions_make_room_for_new_ones() {
    let options = Options { connections_max: 5, local_connections: 2, ..Options::default() };
    with_server(1, options, disk, |net, listener, server| async move {
        let mut idle = newcomer(&net, listener).await;
        sleep(MS).await;
        let mut others = Vec::new();
        for _ in 0..2 {
            others.push(newcomer(&net, listener).await);
        }
        let mut refused = net.connect(listener);
        assert!(refused.at_end().await, "nobody has been idle for long");
        let local = listen_local(&net, &server);
        let mut operators = vec![newcomer(&net, local).await, newcomer(&net, local).await];
        assert_eq!(operators[0].ask(cmd::READ, 0, 0, 512).await.0, 0);
        sleep(Nanos::from_secs(200)).await;
        for c in others.iter_mut().chain(&mut operators) {
            assert_eq!(c.ask(cmd::READ, 0, 0, 512).await.0, 0);
        }
        sleep(Nanos::from_secs(101)).await;
        let mut newcomer = newcomer(&net, listener).await;
        assert_eq!(newcomer.ask(cmd::READ, 0, 0, 512).await.0, 0);
        assert!(idle.at_end().await, "the one without requests for 5 minutes");
        for c in others.iter_mut().chain(&mut operators) {
            assert_eq!(c.ask(cmd::READ, 0, 0, 512).await.0, 0);
        }
        let stats = server.stats();
        assert_eq!((stats.connections, stats.displaced_total, stats.refused_total), (5, 1, 1));
    });
}

#[test]
fn handshakes_that_go_nowhere_make_room_for_clients() {
    let options = Options { handshakes_max: 3, ..Options::default() };
    with_server(1, options, disk, |net, listener, server| async move {
        let halfway: Vec<_> = (0..3).map(|_| net.connect(listener)).collect();
        sleep(Nanos::from_secs(2)).await;
        let mut good = newcomer(&net, listener).await;
        assert_eq!(good.ask(cmd::READ, 0, 0, MIB as u32).await.0, 0);
        assert_eq!(server.stats().displaced_total, 1);
        drop(halfway);
    });
}

/// Peers that only connect cut off every session that had been idle for five minutes, as many as
/// they liked. They need no certificate for that.
#[test]
fn a_session_loses_its_place_to_a_session_only() {
    let options = Options {
        connections_max: 3,
        local_connections: 0,
        handshakes_max: 2,
        ..Options::default()
    };
    with_server(1, options, disk, |net, listener, server| async move {
        let mut idle = Vec::new();
        for _ in 0..3 {
            idle.push(newcomer(&net, listener).await);
            sleep(MS).await;
        }
        sleep(Nanos::from_secs(400)).await;
        let mut silent = Vec::new();
        for _ in 0..40 {
            silent.push(net.connect(listener));
            sleep(Nanos::from_millis(700)).await;
        }
        assert_eq!(server.stats().connections, 5, "three sessions, two handshakes");
        let before = server.stats().displaced_total;
        assert!(before > 10, "{before}: they displace each other");
        // A session takes the place of the idlest one, and of no other.
        sleep(SECOND).await;
        let mut good = newcomer(&net, listener).await;
        assert_eq!(good.ask(cmd::READ, 0, 0, 512).await.0, 0);
        assert!(idle.remove(0).at_end().await);
        for client in &mut idle {
            assert_eq!(client.ask(cmd::READ, 0, 0, 512).await.0, 0, "it has its place");
        }
        drop(silent);
    });
}

/// What a device has in hand is no idleness, however long it takes.
#[test]
fn a_session_with_a_request_keeps_its_place() {
    let stuck = || SingleExport::new(&Disk::new(2048, Nanos::from_secs(3600)));
    let options = Options { connections_max: 1, local_connections: 0, ..Options::default() };
    with_server(1, options, stuck, |net, listener, server| async move {
        let mut waits = newcomer(&net, listener).await;
        waits.request(cmd::READ, 0, 1, 0, 512).await;
        sleep(Nanos::from_secs(1000)).await;
        assert!(net.connect(listener).at_end().await);
        assert_eq!(waits.reply(|_| 512).await.1, 0);
        let stats = server.stats();
        assert_eq!((stats.stalled_total, stats.displaced_total), (0, 0));
    });
}

/// What clients had, or waited for, as they went is others' again: data of a WRITE that did not
/// come, and a request that had not been admitted.
#[test]
fn clients_that_go_leave_nothing_behind() {
    const LEN: u32 = 16 << 20;
    // Of which the network may have three such requests.
    let options = Options { bytes_max: 64 * MIB, ..Options::default() };
    with_server(1, options, disk, |net, listener, server| async move {
        for data in [1, 4096] {
            let mut gone = Vec::new();
            // All that the network may have, and as much again that waits for it.
            for _ in 0..6 {
                let client = newcomer(&net, listener).await;
                client.request(cmd::WRITE, 0, 1, 0, LEN).await;
                client.send(&vec![0; data]).await;
                gone.push(client);
            }
            sleep(SECOND).await;
            for client in gone {
                client.close().await;
            }
            sleep(SECOND).await;
            assert_eq!(server.stats().connections, 0);
            let before = now();
            let mut good = newcomer(&net, listener).await;
            assert_eq!(good.ask(cmd::READ, 0, 0, LEN).await.0, 0);
            assert!(now() - before < SECOND);
            good.close().await;
            // Those that are cut off while they wait.
            hoard(&net, listener, 30).await;
            sleep(Nanos::from_secs(600)).await;
        }
        assert_eq!((server.stats().connections, server.stats().stalled_total), (0, 60));
        let mut good = newcomer(&net, listener).await;
        assert_eq!(good.ask(cmd::READ, 0, 0, LEN).await.0, 0);
    });
}

/// A request that waits for its share is no idleness either: others hold the memory.
#[test]
fn a_session_whose_request_waits_keeps_its_place() {
    const LEN: u32 = 32 << 20;
    // Of which the network may have one such request.
    let options = Options {
        connections_max: 2,
        local_connections: 0,
        bytes_max: 64 * MIB,
        stall_time: Nanos::from_secs(1000),
        ..Options::default()
    };
    with_server(1, options, disk, |net, listener, server| async move {
        let holds = newcomer(&net, listener).await;
        holds.request(cmd::WRITE, 0, 1, 0, LEN).await;
        sleep(SECOND).await;
        let mut waits = newcomer(&net, listener).await;
        waits.request(cmd::READ, 0, 1, 0, LEN).await;
        sleep(Nanos::from_secs(400)).await;
        assert!(net.connect(listener).at_end().await, "no place is free");
        holds.close().await;
        assert_eq!(waits.reply(|_| LEN as usize).await.1, 0);
        assert_eq!(server.stats().displaced_total, 0);
    });
}
