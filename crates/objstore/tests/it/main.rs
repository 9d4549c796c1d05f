// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client on a real core, with a real directory, and with a server that answers anything.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod directory;
mod outside;

use std::rc::Rc;

use block::CoreId;
use objstore::{CallCore, StoreClient, StoreUrl, UnboundClient, Variables};
use reactor::Reactor;
use uring::Uring;

/// A core, and a client of `url` on it.
fn client(url: &str, variables: &Variables) -> (Reactor, Rc<StoreClient>) {
    let uring = Uring::new().unwrap();
    let files = uring.files();
    let reactor = Reactor::enter(CoreId(0), Box::new(uring));
    let unbound = UnboundClient::open(&StoreUrl::parse(url).unwrap(), variables).unwrap();
    let caller = Rc::new(move || {
        let sender = files.sender();
        let call: CallCore = Box::new(move |f| drop(sender.call(f)));
        call
    });
    (reactor, Rc::new(unbound.on_this_core(caller)))
}
