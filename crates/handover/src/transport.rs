// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket between a daemon and its successor, as the sequences of both see it.
use block::Error;

use crate::frame::Frame;
use crate::message::Message;

/// A message, and the descriptor that comes with it.
pub type Parcel<D> = (Frame, Option<D>);

/// One end of the socket between a daemon and its successor. [`crate::Channel`] is the real one.
pub trait Transport {
    /// A file that is passed, with its lock.
    type Descriptor;

    /// Sends messages, in this order.
    ///
    /// # Errors
    /// When the other side has gone, or does not receive in time.
    fn send(
        &self,
        parcels: Vec<Parcel<Self::Descriptor>>,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Receives messages, up to and with the first one that `is_last` accepts.
    ///
    /// # Errors
    /// When the other side has gone, or sends nothing in time.
    fn receive(
        &self,
        is_last: fn(&Message) -> bool,
    ) -> impl Future<Output = Result<Vec<Parcel<Self::Descriptor>>, Error>>;

    /// Waits until the other process has ended.
    fn ended(&self) -> impl Future<Output = ()>;
}

/// Receives one message.
pub(crate) async fn receive_one<T: Transport>(transport: &T) -> Result<Message, Error> {
    let mut parcels = transport.receive(|_| true).await?;
    let (frame, _) = parcels.pop().ok_or_else(|| Error::io("hand-over: no message"))?;
    Ok(frame.message)
}

/// Sends a message that is nothing else.
pub(crate) async fn send_one<T: Transport>(transport: &T, message: Message) -> Result<(), Error> {
    transport.send(vec![(Frame::new(message), None)]).await
}
