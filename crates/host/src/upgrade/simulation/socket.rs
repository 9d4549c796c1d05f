// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket between a daemon and its successor, in simulation: a stream of the world has the
//! bytes, and a queue beside it the descriptors.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use block::{Buf, CoreId, Error, Nanos, Status};
use handover::{Frame, HEAD_BYTES, Head, Message, Parcel, Transport};
use reactor::{FileId, SqeOp, driver_io, end_waits, sleep, spawn};
use sim::WorldRef;

use super::locks::LockedFile;

/// A descriptor: of a disk with its lock, or of a socket.
pub(super) enum Descriptor {
    Disk(Rc<LockedFile>),
    Socket(SocketDescriptor),
}

/// A descriptor of a socket: closed when nobody has taken it.
pub(super) struct SocketDescriptor {
    world: WorldRef,
    file: Option<FileId>,
}

impl SocketDescriptor {
    /// Another descriptor of `file`.
    pub(super) fn copy_of(world: &WorldRef, file: FileId) -> SocketDescriptor {
        let file = world.borrow_mut().copy_stream(file);
        SocketDescriptor { world: world.clone(), file: Some(file) }
    }

    /// The file, which is of a process from now on.
    pub(super) fn take(mut self, process: u16) -> FileId {
        let file = self.file.take().expect("it is taken once, by value");
        self.world.borrow_mut().give_stream(file, CoreId(process));
        file
    }
}

impl Drop for SocketDescriptor {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            self.world.borrow_mut().close_stream(file);
        }
    }
}

/// Descriptors on their way to one end.
pub(super) type Queue = Rc<RefCell<VecDeque<Descriptor>>>;

/// One end.
#[derive(Clone)]
pub(super) struct Socket {
    pub(super) file: FileId,
    pub(super) arriving: Queue,
    pub(super) leaving: Queue,
}

impl Socket {
    /// Two ends.
    pub(super) fn pair(world: &WorldRef) -> [Socket; 2] {
        let (a, b) = world.borrow_mut().stream_pair();
        let [there, here] = [Queue::default(), Queue::default()];
        [
            Socket { file: a, arriving: here.clone(), leaving: there.clone() },
            Socket { file: b, arriving: there, leaving: here },
        ]
    }
}

/// An end in use.
pub(super) struct SocketInUse {
    socket: Socket,
    step: Nanos,
    bytes: RefCell<Vec<u8>>,
    /// Number of the wait that is under way: a timer of an earlier one has no effect.
    wait: Rc<Cell<u64>>,
    /// Called before COMMIT is sent.
    on_commit: Box<dyn Fn()>,
}

impl SocketInUse {
    pub(super) fn new(socket: Socket, step: Nanos, on_commit: impl Fn() + 'static) -> SocketInUse {
        let (bytes, wait, on_commit) = (RefCell::default(), Rc::default(), Box::new(on_commit));
        SocketInUse { socket, step, bytes, wait, on_commit }
    }

    /// Receives until there are so many bytes.
    async fn fill(&self, len: usize) -> Result<(), Error> {
        while self.bytes.borrow().len() < len {
            let into = Buf::alloc(16 << 10);
            let received = driver_io(self.socket.file, SqeOp::Recv { into: into.all() }).await;
            match (received.status, received.value as usize) {
                (Status::Ok, 0) => return Err(Error::io("hand-over: the other side has gone")),
                (Status::Ok, n) => into.read(|b| self.bytes.borrow_mut().extend(&b[..n])),
                (Status::Again, _) => return Err(Error::busy("hand-over: no answer in time")),
                (status, _) => return Err(Error::io(format!("hand-over: receive: {status}"))),
            }
        }
        Ok(())
    }

    fn take(&self, len: usize) -> Vec<u8> {
        self.bytes.borrow_mut().drain(..len).collect()
    }

    async fn receive_one(&self) -> Result<Parcel<Descriptor>, Error> {
        self.fill(HEAD_BYTES).await?;
        let head = Head::decode(self.take(HEAD_BYTES).try_into().expect("as many as it takes"))?;
        self.fill(head.json + head.bytes).await?;
        let (json, bytes) = (self.take(head.json), self.take(head.bytes));
        let mut arriving = self.socket.arriving.borrow_mut();
        let descriptor = if head.descriptors > 0 { arriving.pop_front() } else { None };
        Ok((Frame::decode(&json, bytes)?, descriptor))
    }
}

impl Transport for SocketInUse {
    type Descriptor = Descriptor;

    async fn send(&self, parcels: Vec<Parcel<Descriptor>>) -> Result<(), Error> {
        for (frame, descriptor) in parcels {
            if frame.message == Message::Commit {
                (self.on_commit)();
            }
            let bytes = frame.encode(descriptor.iter().len())?;
            self.socket.leaving.borrow_mut().extend(descriptor);
            let bufs = Buf::copy_of(&bytes).into();
            let sent = driver_io(self.socket.file, SqeOp::Send { bufs }).await;
            if sent.status != Status::Ok {
                return Err(Error::io(format!("hand-over: send: {}", sent.status)));
            }
        }
        Ok(())
    }

    async fn receive(
        &self,
        is_last: fn(&Message) -> bool,
    ) -> Result<Vec<Parcel<Descriptor>>, Error> {
        let (mut parcels, mut is_over) = (Vec::new(), false);
        while !is_over {
            self.wait.set(self.wait.get() + 1);
            let (wait, number, step, file) =
                (self.wait.clone(), self.wait.get(), self.step, self.socket.file);
            spawn(async move {
                sleep(step).await;
                if wait.get() == number {
                    end_waits(file);
                }
            });
            let received = self.receive_one().await;
            self.wait.set(self.wait.get() + 1);
            let parcel = received?;
            is_over = is_last(&parcel.0.message);
            parcels.push(parcel);
        }
        Ok(parcels)
    }

    async fn ended(&self) {
        // What is still received does not matter.
        while self.fill(1).await.is_ok() {
            self.bytes.borrow_mut().clear();
        }
    }
}
