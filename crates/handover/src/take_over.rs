// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sequence of the successor.
//!
//! ```text
//!   greet ─▶ receive everything ─▶ (open the devices) ─▶ commit ─▶ (serve) ─▶ ended
//!                  └──────────────────────┴─▶ refuse
//! ```
use block::Error;

use crate::frame::Frame;
use crate::message::{Greeting, Message};
use crate::planted::{Fault, PlantedFault};
use crate::transport::{Parcel, Transport, receive_one, send_one};

/// The way of a process to the place of the daemon that has started it.
#[derive(Debug)]
pub struct Takeover<T> {
    transport: T,
    planted: PlantedFault,
}

/// The proof that the daemon before does not go on: only with it clients may be served (HO-UP3).
#[derive(Debug)]
#[must_use = "clients wait to be served"]
pub struct Committed(());

fn wrong(text: &str) -> Error {
    Error::invalid(format!("hand-over: {text}"))
}

impl<T: Transport> Takeover<T> {
    /// Of the process with this end of the socket.
    pub fn new(transport: T, planted: PlantedFault) -> Takeover<T> {
        Takeover { transport, planted }
    }

    /// Greets the daemon before, and returns its greeting.
    ///
    /// # Errors
    /// When it is gone, or understands other versions only.
    pub async fn greet(&self, ours: Greeting) -> Result<Greeting, Error> {
        send_one(&self.transport, Message::Greeting(ours.clone())).await?;
        let Message::Greeting(theirs) = receive_one(&self.transport).await? else {
            return Err(wrong("it does not begin with a greeting"));
        };
        if ours.common_version(&theirs).is_none() {
            return Err(wrong("the versions do not fit"));
        }
        if let Some(missing) = ours.missing(&theirs) {
            return Err(wrong(&format!("the daemon before needs {missing}, which is not known")));
        }
        Ok(theirs)
    }

    /// Receives what the daemon before leaves: it stops before it sends that.
    ///
    /// # Errors
    /// When it has gone, or goes on.
    pub async fn receive(&self) -> Result<Vec<Parcel<T::Descriptor>>, Error> {
        let mut parcels = self.transport.receive(|message| *message == Message::Open).await?;
        parcels.pop();
        Ok(parcels)
    }

    /// Reports that all devices are open, and waits for COMMIT.
    ///
    /// # Errors
    /// When the daemon before goes on itself: this process has to end.
    pub async fn commit(&self) -> Result<Committed, Error> {
        send_one(&self.transport, Message::Opened).await?;
        if self.planted.is(Fault::ServeBeforeCommit) {
            return Ok(Committed(()));
        }
        let answer = receive_one(&self.transport).await?;
        if answer != Message::Commit {
            return Err(wrong(&format!("{answer:?} instead of COMMIT")));
        }
        Ok(Committed(()))
    }

    /// Reports why this process can't take over; it has to end.
    pub async fn refuse(&self, cause: String) {
        // The daemon before sees the end of this process in any case.
        let failed = Frame::new(Message::Failed { cause });
        let _ = self.transport.send(vec![(failed, None)]).await;
    }

    /// Waits until the process of the daemon before has ended.
    pub async fn ended(&self) {
        self.transport.ended().await;
    }
}
