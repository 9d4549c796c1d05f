// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends and receives messages with descriptors.
use std::io::{ErrorKind as IoKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use block::Error;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::frame::{Frame, HEAD_BYTES, Head};
use crate::message::Message;

/// One end of the socket between a daemon and its successor. Its calls block, within a time.
#[derive(Debug)]
pub struct Channel(UnixStream);

fn failed(doing: &str, e: impl Into<std::io::Error>) -> Error {
    let e = e.into();
    if matches!(e.kind(), IoKind::WouldBlock | IoKind::TimedOut) {
        return Error::busy(format!("hand-over: {doing}: no answer in time"));
    }
    Error::io(format!("hand-over: {doing}: {e}"))
}

impl Channel {
    /// Two ends.
    ///
    /// # Errors
    /// Without a free descriptor.
    pub fn pair() -> Result<(Channel, OwnedFd), Error> {
        let (ours, theirs) = UnixStream::pair().map_err(|e| failed("a pair of sockets", e))?;
        Ok((Channel(ours), theirs.into()))
    }

    /// The end that this process was given.
    pub fn of(socket: OwnedFd) -> Channel {
        Channel(socket.into())
    }

    /// Another descriptor of this end.
    ///
    /// # Errors
    /// Without a free descriptor.
    pub fn descriptor(&self) -> Result<OwnedFd, Error> {
        self.0.as_fd().try_clone_to_owned().map_err(|e| failed("the socket", e))
    }

    /// Sends a message, with a descriptor, within a time.
    ///
    /// # Errors
    /// When the other side has gone, or does not receive in time: then nobody knows whether it has
    /// got the message.
    pub fn send(
        &self,
        frame: &Frame,
        descriptor: Option<BorrowedFd<'_>>,
        time: Duration,
    ) -> Result<(), Error> {
        let doing = "send";
        let bytes = frame.encode(descriptor.iter().len())?;
        self.0.set_write_timeout(Some(at_least(time))).map_err(|e| failed(doing, e))?;
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        // HV-F3: with the first bytes.
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, flags);
        let sent = sent.map_err(|e| failed(doing, e))?;
        (&self.0).write_all(&bytes[sent..]).map_err(|e| failed(doing, e))
    }

    /// Sends a message that is nothing else.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_message(&self, message: Message, time: Duration) -> Result<(), Error> {
        self.send(&Frame::new(message), None, time)
    }

    /// Receives a message, and its descriptor, within a time.
    ///
    /// # Errors
    /// When the other side has gone, sends something else, or nothing in time.
    pub fn receive(&self, time: Duration) -> Result<(Frame, Option<OwnedFd>), Error> {
        let doing = "receive";
        self.0.set_read_timeout(Some(at_least(time))).map_err(|e| failed(doing, e))?;
        let mut head = [0; HEAD_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = {
            let mut parts = [IoSliceMut::new(&mut head)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            recvmsg(&self.0, &mut parts, &mut control, flags).map_err(|e| failed(doing, e))?
        };
        if got.bytes == 0 {
            return Err(Error::io("hand-over: the other side has gone"));
        }
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            RecvAncillaryMessage::ScmCredentials(_) | _ => None,
        });
        let mut descriptors: Vec<OwnedFd> = rights.flatten().collect();
        let fill = |to: &mut [u8]| (&self.0).read_exact(to).map_err(|e| failed(doing, e));
        fill(&mut head[got.bytes..])?;
        let head = Head::decode(head)?;
        if descriptors.len() != head.descriptors {
            let (found, wanted) = (descriptors.len(), head.descriptors);
            let text = format!("hand-over: {found} descriptors came, and {wanted} were announced");
            return Err(Error::io(text)); // HV-F3
        }
        let (mut json, mut bytes) = (vec![0; head.json], vec![0; head.bytes]);
        fill(&mut json)?;
        fill(&mut bytes)?;
        Ok((Frame::decode(&json, bytes)?, descriptors.pop()))
    }

    /// Waits until nothing of the other process is under way any more: its end has closed, and so
    /// have its rings that hold it. Returns whether that was within the time.
    pub fn wait_for_end(&self, time: Duration) -> bool {
        if self.0.set_read_timeout(Some(at_least(time))).is_err() {
            return false;
        }
        let mut rest = [0; 4096];
        loop {
            match (&self.0).read(&mut rest) {
                Ok(0) => return true,
                // What it had sent before.
                Ok(_) => {}
                Err(e) if e.kind() == IoKind::Interrupted => {}
                Err(e) => return e.kind() == IoKind::ConnectionReset,
            }
        }
    }
}

/// A time-out of zero means none.
fn at_least(time: Duration) -> Duration {
    time.max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::message::{Greeting, Leaf};

    const SOON: Duration = Duration::from_secs(10);

    fn pair() -> (Channel, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        (ours, Channel::of(theirs))
    }

    #[test]
    fn messages_arrive_with_their_descriptors() {
        let (ours, theirs) = pair();
        let file = File::open("/proc/self/exe").unwrap();
        let leaf = Message::Leaf(Leaf { name: "/a".into() });
        let large = Frame { message: leaf, bytes: vec![7; 1 << 20] };
        let sent = large.clone();
        let sender = std::thread::Builder::new().spawn(move || {
            ours.send(&sent, Some(file.as_fd()), SOON).unwrap();
            ours.send_message(Message::Greeting(Greeting::new("1.0")), SOON).unwrap();
            ours.send(&sent, Some(file.as_fd()), SOON).unwrap();
            file.metadata().unwrap().ino()
        });
        let first = theirs.receive(SOON).unwrap();
        let second = theirs.receive(SOON).unwrap();
        let third = theirs.receive(SOON).unwrap();
        let ino = sender.unwrap().join().unwrap();
        for (frame, descriptor) in [first, third] {
            assert!(frame == large);
            assert_eq!(File::from(descriptor.unwrap()).metadata().unwrap().ino(), ino);
        }
        assert_eq!(second.0.message, Message::Greeting(Greeting::new("1.0")));
        assert!(second.1.is_none());
    }

    #[test]
    fn the_end_and_silence_are_errors() {
        let (ours, theirs) = pair();
        let late = theirs.receive(Duration::from_millis(5)).unwrap_err();
        assert_eq!(late.kind(), block::ErrorKind::Busy, "{late}");
        assert!(!theirs.wait_for_end(Duration::from_millis(5)));
        ours.send_message(Message::Commit, SOON).unwrap();
        drop(ours);
        assert!(theirs.wait_for_end(SOON), "what is unread does not matter");
        assert_eq!(
            theirs.receive(SOON).unwrap_err().to_string(),
            "hand-over: the other side has gone"
        );
    }
}
