// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sender: sends all replies that are ready in one vectored send.
//!
//! ```text
//!   headers  [h1 h2 h3 h4 h5]          one small pooled buffer
//!   send      h1 h2 │ data2 │ h3 h4 │ data4 │ h5        data shared, not copied
//! ```
use std::rc::Rc;

use crate::conn::{Conn, STEP_BYTES};
use crate::request::REPLY_HEAD_BYTES_MAX;
use block::{Buf, Bufs, Status};

/// Replies in one send: two slices each stay below the kernel's 1024.
const REPLIES_PER_SEND_MAX: usize = 128;
/// Data in one send, unless a single reply has more.
const SEND_BYTES_MAX: usize = 4 << 20;
const HEADS_BYTES: usize = REPLIES_PER_SEND_MAX * REPLY_HEAD_BYTES_MAX;

/// Sends replies until the connection has ended.
pub(crate) async fn run(conn: Rc<Conn>) {
    let mut ends = Vec::with_capacity(REPLIES_PER_SEND_MAX);
    loop {
        let waiting = || !conn.replies.borrow().is_empty();
        conn.ready.wait_for(|| waiting() || conn.ended.get()).await;
        if !waiting() {
            return;
        }
        let batch = gather(&conn, &mut ends);
        conn.sending.set(batch.requests);
        if send(&conn, batch.bufs).await != Status::Ok {
            conn.clone().cut_off().await;
            conn.drop_replies();
        }
        conn.sending.set(0);
        conn.release(batch.requests, batch.bytes);
    }
}

/// Sends step by step; each step has a deadline.
async fn send(conn: &Conn, bufs: Bufs) -> Status {
    let end = bufs.len_bytes();
    conn.shared.counters.sends.add(end.div_ceil(STEP_BYTES) as u64);
    if end <= STEP_BYTES {
        return conn.send(bufs).await;
    }
    for from in (0..end).step_by(STEP_BYTES) {
        let sent = conn.send(bufs.slice(from..end.min(from + STEP_BYTES))).await;
        if sent != Status::Ok {
            return sent;
        }
    }
    Status::Ok
}

struct Batch {
    bufs: Bufs,
    requests: usize,
    bytes: u64,
}

/// Takes the ready replies off the queue, which is not empty.
fn gather(conn: &Conn, ends: &mut Vec<usize>) -> Batch {
    let mut replies = conn.replies.borrow_mut();
    let heads = Buf::alloc(HEADS_BYTES);
    ends.clear();
    heads.write(|out| {
        let (mut at, mut data) = (0, 0);
        for reply in replies.iter().take(REPLIES_PER_SEND_MAX) {
            data += reply.data.len_bytes();
            if data > SEND_BYTES_MAX && !ends.is_empty() {
                break;
            }
            at += reply.head.encode(reply.cookie, &mut out[at..]);
            ends.push(at);
        }
    });
    let mut batch = Batch { bufs: Bufs::new(), requests: 0, bytes: 0 };
    let mut from = 0;
    for (&end, reply) in ends.iter().zip(replies.drain(..ends.len())) {
        batch.requests += reply.requests;
        batch.bytes += reply.bytes;
        if !reply.data.is_empty() {
            batch.bufs.push(heads.slice(from..end));
            reply.data.iter().for_each(|s| batch.bufs.push(s.clone()));
            from = end;
        }
    }
    let end = ends[ends.len() - 1];
    if from < end {
        batch.bufs.push(heads.slice(from..end));
    }
    batch
}
