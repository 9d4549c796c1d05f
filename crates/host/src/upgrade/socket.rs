// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket between a daemon and its successor, for the sequences of both: threads of their own
//! send and receive, because that blocks.
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use block::Error;
use handover::{Channel, Message, Parcel, Transport};

/// Most messages of one side. Chosen: one for each device, file and client of a large host, and
/// far more.
const PARCELS_MAX: usize = 1 << 20;

/// A socket, and how long a message may take.
#[derive(Clone, Debug)]
pub(super) struct Socket {
    channel: Arc<Channel>,
    step: Duration,
}

impl Socket {
    pub(super) fn new(channel: Channel, step: Duration) -> Socket {
        Socket { channel: Arc::new(channel), step }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Channel, Duration) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let Socket { channel, step } = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&channel, step)).await;
        done.map_err(|e| Error::io(format!("a thread of the upgrade: {e}")))?
    }

    /// Waits at most `time` until nothing of the other process is under way any more; returns
    /// whether that is so.
    pub(super) fn wait_for_end(&self, time: Duration) -> bool {
        self.channel.wait_for_end(time)
    }
}

impl Transport for Socket {
    type Descriptor = OwnedFd;

    async fn send(&self, parcels: Vec<Parcel<OwnedFd>>) -> Result<(), Error> {
        let send = move |channel: &Channel, step| {
            for (frame, descriptor) in parcels {
                channel.send(&frame, descriptor.as_ref().map(AsFd::as_fd), step)?;
            }
            Ok(())
        };
        self.blocking(send).await
    }

    async fn receive(&self, is_last: fn(&Message) -> bool) -> Result<Vec<Parcel<OwnedFd>>, Error> {
        let receive = move |channel: &Channel, step| {
            let mut parcels = Vec::new();
            while parcels.len() < PARCELS_MAX {
                let parcel = channel.receive(step)?;
                let is_over = is_last(&parcel.0.message);
                parcels.push(parcel);
                if is_over {
                    return Ok(parcels);
                }
            }
            Err(Error::invalid(format!("hand-over: more than {PARCELS_MAX} messages")))
        };
        self.blocking(receive).await
    }

    async fn ended(&self) {
        let wait = |channel: &Channel, step| Ok(channel.wait_for_end(step));
        let _ = self.blocking(wait).await;
    }
}
