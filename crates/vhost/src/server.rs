// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all sessions share: the budget for data in flight, and the tasks that wait for devices.
use std::rc::Rc;
use std::sync::Arc;

use reactor::{Budget, TaskPool, ZeroBuffer};

use crate::export::Export;
use crate::queue_places::QueuePlaces;
use crate::remote::Place;
use crate::request::DATA_BYTES_MAX;
use crate::session::Session;
use crate::work::{self, Job};

/// Requests that wait for their device at once. Beyond that they wait for a task.
const JOBS_MAX: usize = 1 << 16;
/// Data of one session in flight.
const SHARE_BYTES_MAX: u64 = 64 << 20;

pub(crate) struct ServerShared {
    pub(crate) budget: Budget,
    pub(crate) jobs: TaskPool<Job>,
    /// Source of zeroes for devices that can't make them.
    pub(crate) zeroes: ZeroBuffer,
    pub(crate) queue_places: Rc<QueuePlaces>,
}

impl ServerShared {
    /// Queues that one front end may have.
    pub(crate) fn queues_max(&self) -> u16 {
        self.queue_places.queues_max()
    }
}

/// The sessions of one core. Clones are the same server.
#[derive(Clone)]
pub struct Server(pub(crate) Rc<ServerShared>);

impl Server {
    /// A server without sessions; `bytes_max`, at least 32 MiB, is the data of all of them in
    /// flight, apart from each one's reserve of 1 MiB.
    pub fn new(bytes_max: u64) -> Server {
        Server::with_queue_places(bytes_max, usize::MAX)
    }

    /// The same, whose front ends may have so many queues together, and each fewer by two, but one
    /// at least. A queue takes four descriptors.
    pub fn with_queue_places(bytes_max: u64, queues: usize) -> Server {
        assert!(bytes_max >= u64::from(DATA_BYTES_MAX), "a server must hold one request");
        let budget = Budget::new(bytes_max, bytes_max, SHARE_BYTES_MAX);
        let zeroes = ZeroBuffer::default();
        let jobs = TaskPool::new(JOBS_MAX, work::wait);
        let queue_places = Rc::new(QueuePlaces::new(queues));
        Server(Rc::new(ServerShared { budget, jobs, zeroes, queue_places }))
    }

    /// Begins a session, on all cores that serve its queues: queue `n` is served at number
    /// `n % len` of `places`, where `None` is this core. `cut_off` ends the control socket; it must
    /// not block, and is called any number of times, on any of these cores. A front end that an
    /// earlier process has served has accepted `features` there, which this process takes where it
    /// knows them, and the messages of its [`Connection`](crate::connection::Connection) come next.
    pub async fn begin(
        &self,
        export: Box<dyn Export>,
        places: Vec<Option<Place>>,
        cut_off: Arc<dyn Fn() + Send + Sync>,
        features: u64,
    ) -> Session {
        Session::begin(self, export, places, cut_off, features).await
    }
}

block::debug_as!(Server, _s => "Server");
