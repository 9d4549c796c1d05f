// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client and exports that take no writes, from the first connection on or from a later one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::client::{ALL, NATURE, flush_by, pattern, put, run};
use crate::model::{Connector, ServerTraits};
use block::{Class, Nanos, Sector, Status};
use nbd::client::{Client, LinkEvent, Options};
use nbd::wire::ExportFlags;
use queue::Leaf;
use reactor::{read, sleep, spawn};

#[test]
fn an_export_that_takes_no_writes_is_read() {
    let nature = ServerTraits { flags: ALL | ExportFlags::READ_ONLY, ..NATURE };
    run(nature, |_, server| async move {
        let client = server.clone().open(Options::default()).await;
        assert!(client.is_read_only());
        assert_eq!(put(&client, 0, 1).await, Err(Status::ReadOnly));
        read(&client, Class::Normal, Sector(0), pattern(512, 0)).await.unwrap();
    });
}

/// It failed for ever, reads and all.
#[test]
fn an_export_that_comes_back_read_only_is_read() {
    let nature = ServerTraits { slow_ns: 1_000_000_000, ..NATURE };
    run(nature, |_, server| async move {
        let said: Rc<RefCell<Vec<LinkEvent>>> = Rc::default();
        let (hear, door) = (said.clone(), Rc::new(Connector(server.clone())));
        let tell = move |news: &LinkEvent| hear.borrow_mut().push(news.clone());
        let client = Client::open("nbd", "disk", door, Options::default(), tell).await.unwrap();
        let client = Rc::new(client);
        put(&client, 0, 1).await.unwrap();
        flush_by(&client, 1).await.unwrap();
        let (first, refused) = (client.clone(), Rc::new(Cell::new(None)));
        let note = refused.clone();
        spawn(async move { note.set(Some(put(&first, 8, 1).await)) });
        sleep(Nanos::from_millis(1)).await;
        server.is_read_only.set(true);
        server.restart(false);
        let data = pattern(4096, 0);
        read(&*client, Class::Normal, Sector(0), data.clone()).await.unwrap();
        assert!(data.iter().all(|slice| slice.read(|b| b.iter().all(|byte| *byte == 1))));
        assert_eq!(refused.get(), Some(Err(Status::ReadOnly)), "it was on its way");
        for _ in 0..2 {
            assert_eq!(put(&client, 0, 2).await, Err(Status::ReadOnly));
        }
        assert!(client.is_read_only() && client.has_become_read_only());
        assert_eq!(said.borrow().last(), Some(&LinkEvent::BecameReadOnly));
        // The way out: it takes writes again.
        server.is_read_only.set(false);
        server.restart(false);
        read(&*client, Class::Normal, Sector(0), data).await.unwrap();
        put(&client, 0, 3).await.unwrap();
        assert!(!client.is_read_only() && !client.has_become_read_only());
        assert_eq!(said.borrow().last(), Some(&LinkEvent::Reconnected));
    });
}
