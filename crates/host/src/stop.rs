// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request to stop: answered soon, or at the end with what is not settled. A client that waits
//! can't see the exit code of the daemon, which is not its child.
use std::rc::Rc;
use std::time::Duration;

use block::ErrorKind;
use control::{Failure, api, paths};
use hyper::Uri;
use tokio::sync::{Notify, watch};

use crate::core_thread::CoreHandle;
use crate::engine::Engine;

/// How long a stop looks for blocks that are in memory alone. Chosen: an answer of a core takes
/// less than a millisecond.
const LOOK: Duration = Duration::from_secs(1);
/// The query of a request that is answered at the end.
const WAITS: &str = "wait=true";

/// What is not settled; nothing before the end.
pub(crate) type Unsettled = Option<Vec<String>>;

/// When a request to stop is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Soon,
    AtTheEnd,
}

/// Reads the query.
pub(crate) fn when(query: &str) -> Result<When, Failure> {
    match query {
        "" => Ok(When::Soon),
        WAITS => Ok(When::AtTheEnd),
        _ => {
            let message = format!("query `{query}`: allowed is {WAITS}");
            Err(Failure::new(ErrorKind::Invalid, message))
        }
    }
}

/// Whether it is a request to stop that is answered at the end.
pub(crate) fn waits_for_end(uri: &Uri) -> bool {
    uri.path() == paths::STOP && uri.query() == Some(WAITS)
}

/// Has the daemon end.
pub(crate) async fn perform(
    core: &CoreHandle,
    stop: &Notify,
    unsettled: &watch::Sender<Unsettled>,
    when: When,
) -> api::Stopping {
    let alone = core.call(async |e: Rc<Engine>| e.in_memory_alone().await);
    // A device that hangs keeps nobody from the end.
    let alone = tokio::time::timeout(LOOK, alone).await.ok().and_then(Result::ok);
    stop.notify_one();
    let unsettled = match when {
        When::Soon => None,
        When::AtTheEnd => {
            let mut unsettled = unsettled.subscribe();
            let told = unsettled.wait_for(Option::is_some).await;
            told.ok().and_then(|told| told.clone())
        }
    };
    api::Stopping { in_memory_alone: alone.unwrap_or_default(), unsettled }
}

/// Tells who waits for the end what is not settled, once.
pub(crate) fn tell<'a>(
    unsettled: &watch::Sender<Unsettled>,
    failures: impl Iterator<Item = &'a Failure>,
) {
    let texts = failures.map(Failure::to_string).collect();
    unsettled.send_if_modified(|told| {
        let is_first = told.is_none();
        told.get_or_insert(texts);
        is_first
    });
}
