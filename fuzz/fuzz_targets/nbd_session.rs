// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole NBD sessions: the server on sockets in memory and in virtual time, a client that sends
//! arbitrary requests after a good handshake and reads what comes, and one that behaves.
//!
//! What must hold: no panic, nothing asked of a closed socket, the other client is served, the
//! server ends, and the export is given back.
#![no_main]

#[path = "../../crates/nbd/tests/it/common/mod.rs"]
mod common;

use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Nanos};
use common::{Disk, SingleExport, with_server};
use libfuzzer_sys::fuzz_target;
use nbd::Options;
use nbd::request::REQUEST_BYTES;
use nbd::wire::{REQUEST_MAGIC, cmd};
use reactor::{SqeOp, driver_io, spawn};

/// Makes likely requests of most: right magic, low types and flags, offsets and lengths about the
/// size of the disk.
fn repair(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(head) = bytes.get_mut(at..at + REQUEST_BYTES) {
        head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        let free = head[6] % 8 == 7;
        head[4] = 0;
        head[6] = 0;
        head[7] %= 9;
        let write = u16::from(head[7]) == cmd::WRITE;
        if !free {
            head[16..21].fill(0);
            head[24..26].fill(0);
            head[27] = 0;
            head[26] &= !1;
            head[23] = 0;
            head[22] &= !1;
        }
        let len = u32::from_be_bytes([head[24], head[25], head[26], head[27]]);
        at += REQUEST_BYTES + if write { len as usize } else { 0 };
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let (choice, mut bytes) = (*choice, data.to_vec());
    if choice & 3 != 0 {
        repair(&mut bytes);
    }
    let opened = Rc::new(Cell::new(0));
    let count = opened.clone();
    let one = move || {
        let disk = Disk::new(256, Nanos::from_micros(u64::from(choice & 4) * 100));
        let (read_only, dirty) = (choice & 8 != 0, Some(Vec::new()));
        SingleExport { disk, opened: count, read_only, dirty }
    };
    let options = Options { requests_max: 1 + usize::from(choice >> 6), ..Options::default() };
    let seed = u64::from(choice);
    with_server(seed, options, one, move |net, listener, server| async move {
        net.0.borrow_mut().fragment = choice & 16 != 0;
        let mut other = net.connect(listener);
        other.go(true).await;
        let mut wild = net.connect(listener);
        wild.go(choice & 32 != 0).await;
        let file = wild.file;
        spawn(async move {
            let into = Buf::alloc(65536);
            while driver_io(file, SqeOp::Recv { into: into.all() }).await.value > 0 {}
        });
        if !bytes.is_empty() {
            wild.send(&bytes).await;
        }
        net.half_close(file);
        assert_eq!(other.ask(cmd::READ, 0, 0, 4096).await.0, 0);
        server.shutdown().await;
        assert_eq!(server.stats().connections, 0);
    });
    assert_eq!(opened.get(), 0, "the export was not given back");
});
