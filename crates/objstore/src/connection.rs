// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Connection`: a client of the library, and another one after a refusal.
//!
//! The library keeps temporary credentials until shortly before they expire. A provider may take
//! them back before; then the store refuses every request until that time. A new client asks the
//! provider again.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use block::Error;
use object_store::ObjectStore as Library;
use object_store::aws::AmazonS3;
use object_store::local::LocalFileSystem;
use tokio::time::Instant;

/// Least time between two clients. Chosen: half of the time after which a volume sends a request
/// again that was refused.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(5);

type Make = dyn Fn() -> Result<Client, Error> + Send + Sync;

/// A store of the library: its kinds list differently.
#[derive(Clone, Debug)]
pub(crate) enum Client {
    Bucket(Arc<AmazonS3>),
    Directory(Arc<LocalFileSystem>),
}

impl Client {
    /// What all kinds can do.
    pub(crate) fn library(&self) -> &dyn Library {
        match self {
            Client::Bucket(bucket) => bucket.as_ref(),
            Client::Directory(directory) => directory.as_ref(),
        }
    }
}

struct Current {
    client: Client,
    renewed_at: Option<Instant>,
}

/// A store of the library. Clones are the same.
#[derive(Clone)]
pub(crate) struct Connection {
    current: Arc<Mutex<Current>>,
    /// None: a client that has no credentials.
    make: Option<Arc<Make>>,
}

impl Connection {
    /// A client that stays.
    pub(crate) fn fixed(client: Client) -> Connection {
        Connection {
            current: Arc::new(Mutex::new(Current { client, renewed_at: None })),
            make: None,
        }
    }

    /// A client that is made anew after refusals.
    pub(crate) fn renewable(
        make: impl Fn() -> Result<Client, Error> + Send + Sync + 'static,
    ) -> Result<Connection, Error> {
        let connection = Connection::fixed(make()?);
        Ok(Connection { make: Some(Arc::new(make)), ..connection })
    }

    /// The client of the next request.
    pub(crate) fn client(&self) -> Client {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).client.clone()
    }

    /// The store has refused a request. It waits for no server.
    pub(crate) fn renew(&self) {
        let Some(make) = &self.make else { return };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_early = |at| now.duration_since(at) < RENEWAL_INTERVAL;
        if current.renewed_at.is_some_and(is_early) {
            return;
        }
        current.renewed_at = Some(now);
        // It was possible with the same variables before.
        if let Ok(client) = make() {
            current.client = client;
        }
    }
}

block::debug_as!(Connection, s => "Connection({})", s.client().library());
