// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `StoreModel`: an object store in virtual time. Each request takes a latency, and the bytes of
//! all requests go through one line, in the order in which they were sent.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, LocalFuture, Nanos};
use format::objvol::CHECKPOINTS;
use objvol::{Listing, ObjectStore, StoreError};

/// Names in a page of a listing, as S3 has them.
const PAGE_NAMES: usize = 1000;

/// See the module. Clones are the same store.
#[derive(Clone, Debug)]
pub struct StoreModel {
    state: Rc<State>,
}

#[derive(Debug)]
struct State {
    latency: Nanos,
    bytes_per_s: u64,
    objects: RefCell<BTreeMap<String, Buf>>,
    /// When the line is free.
    free_at: Cell<Nanos>,
    put_bytes: Cell<u64>,
    checkpoint_bytes: Cell<u64>,
    puts: Cell<u64>,
}

impl StoreModel {
    /// An empty store.
    pub fn new(latency: Nanos, bytes_per_s: u64) -> StoreModel {
        let state = State {
            latency,
            bytes_per_s,
            objects: RefCell::default(),
            free_at: Cell::default(),
            put_bytes: Cell::default(),
            checkpoint_bytes: Cell::default(),
            puts: Cell::default(),
        };
        StoreModel { state: Rc::new(state) }
    }

    /// Bytes of all PUTs so far.
    pub fn put_bytes(&self) -> u64 {
        self.state.put_bytes.get()
    }

    /// Those of checkpoints among them.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.state.checkpoint_bytes.get()
    }

    /// PUTs so far.
    pub fn puts(&self) -> u64 {
        self.state.puts.get()
    }

    /// Bytes of all objects.
    pub fn stored_bytes(&self) -> u64 {
        self.state.objects.borrow().values().map(|object| object.len() as u64).sum()
    }
}

impl State {
    /// Waits until a request with so many bytes has been answered.
    async fn transfer(&self, bytes: usize) {
        let line = u128::from(bytes as u64) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let line = Nanos(u64::try_from(line).unwrap_or(u64::MAX));
        let free = self.free_at.get().max(reactor::now()) + line;
        self.free_at.set(free);
        reactor::sleep(free + self.latency - reactor::now()).await;
    }
}

impl ObjectStore for StoreModel {
    fn name(&self) -> &str {
        "model"
    }

    fn put_absent(&self, name: &str, object: Buf) -> LocalFuture<Result<(), StoreError>> {
        let (state, name) = (self.state.clone(), name.to_owned());
        Box::pin(async move {
            state.puts.set(state.puts.get() + 1);
            let bytes = object.len() as u64;
            state.put_bytes.set(state.put_bytes.get() + bytes);
            if name.starts_with(CHECKPOINTS) {
                state.checkpoint_bytes.set(state.checkpoint_bytes.get() + bytes);
            }
            state.transfer(object.len()).await;
            if state.objects.borrow().contains_key(&name) {
                return Err(StoreError::Exists);
            }
            state.objects.borrow_mut().insert(name, object);
            Ok(())
        })
    }

    fn get(&self, name: &str, range: Range<u64>) -> LocalFuture<Result<Buf, StoreError>> {
        let (state, name) = (self.state.clone(), name.to_owned());
        Box::pin(async move {
            let found = state.objects.borrow().get(&name).cloned();
            let data = found.and_then(|object| {
                let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(object.len());
                let (start, end) = (at(range.start), at(range.end));
                (start < end).then(|| object.read(|bytes| Buf::copy_of(&bytes[start..end])))
            });
            state.transfer(data.as_ref().map_or(0, Buf::len)).await;
            data.ok_or(StoreError::NotFound)
        })
    }

    fn list(&self, prefix: &str, after: &str) -> LocalFuture<Result<Listing, StoreError>> {
        let (state, prefix, after) = (self.state.clone(), prefix.to_owned(), after.to_owned());
        Box::pin(async move {
            state.transfer(0).await;
            let all = state.objects.borrow();
            let from = all.range(after.clone().max(prefix.clone())..);
            let found = from.take_while(|(name, _)| name.starts_with(&prefix));
            let found = found.filter(|(name, _)| **name > after);
            let mut objects: Vec<(String, u64)> =
                found.map(|(name, object)| (name.clone(), object.len() as u64)).collect();
            let has_more = objects.len() > PAGE_NAMES;
            objects.truncate(PAGE_NAMES);
            Ok(Listing { objects, has_more })
        })
    }

    fn delete(&self, name: &str) -> LocalFuture<Result<(), StoreError>> {
        let (state, name) = (self.state.clone(), name.to_owned());
        Box::pin(async move {
            state.transfer(0).await;
            state.objects.borrow_mut().remove(&name);
            Ok(())
        })
    }
}
