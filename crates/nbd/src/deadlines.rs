// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deadlines: connections that miss theirs are cut off.
use std::rc::Rc;

use block::Nanos;
use reactor::{now, sleep, spawn};

use crate::conn::Conn;
use crate::shared::Shared;

/// How late a deadline may be noticed, so that deadlines of different length need no order.
const REAPER_STEP: Nanos = Nanos::from_secs(1);

/// Cuts off connections whose deadline has passed.
pub(crate) async fn watch(shared: Rc<Shared>) {
    let first = || shared.conns.borrow().iter().filter_map(|(_, c)| c.due()).min();
    let ended = || shared.stopping.get() && shared.conns.borrow().is_empty();
    loop {
        shared.reaper_waits.set(true);
        shared.changed.wait_for(|| first().is_some() || ended()).await;
        shared.reaper_waits.set(false);
        let Some(due) = first() else { return };
        sleep(due.saturating_sub(now()).min(REAPER_STEP)).await;
        let late = |c: &Conn| c.due().is_some_and(|due| due <= now());
        let conns = shared.conns.borrow();
        for (_, conn) in conns.iter().filter(|(_, c)| late(c)) {
            if conn.clear_deadlines() {
                shared.counters.stalled.add(1);
            }
            spawn(conn.clone().cut_off());
        }
    }
}
