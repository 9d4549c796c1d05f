// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands to kernel drivers that nothing is kept of. A socket takes some, too.
use std::cell::RefCell;
use std::net::UdpSocket;
use std::rc::Rc;

use block::{Buf, Nanos, Status};
use reactor::{CommandMemory, FileId, KeptOp, OnDone, SqeOp, driver_io, push_bio, sleep};

use crate::common::on_core;

/// `SOCKET_URING_OP_SIOCINQ`: how much there is to receive.
const BYTES_TO_RECEIVE: u32 = 0;
const NO_SUCH_COMMAND: u32 = 77;

#[derive(Default)]
struct StatusList(RefCell<Vec<Status>>);

impl OnDone for StatusList {
    fn on_done(&self, status: Status, _tag: u64) {
        self.0.borrow_mut().push(status);
    }
}

#[test]
fn commands_of_a_stream_tell_of_errors_only() {
    on_core(async |files| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let file = files.adopt_device(socket.into());
        let ends = Rc::new(StatusList::default());
        let place = KeptOp::new(ends.clone(), 0);
        let send = async |file: FileId, code: u32| {
            let memory = CommandMemory::OfStream(0);
            push_bio(place.repeated(), file, SqeOp::Command { code, args: [0; 16], memory });
            sleep(Nanos::from_millis(10)).await; // it has ended
            ends.0.take()
        };
        assert_eq!(send(file, BYTES_TO_RECEIVE).await, [Status::NoDevice], "nothing is under way");
        let into = Buf::alloc(16).into();
        let received = driver_io(file, SqeOp::Recv { into });
        assert_eq!(send(file, BYTES_TO_RECEIVE).await, [], "it was done");
        assert_eq!(send(file, NO_SUCH_COMMAND).await, [Status::NotSupported]);
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[7], address).unwrap();
        assert_eq!(received.await.status, Status::Ok);
        assert_eq!(send(file, BYTES_TO_RECEIVE).await, [Status::NoDevice]);
    });
}

/// More than the submission ring has room for.
#[test]
fn commands_of_a_stream_wait_for_room() {
    const COMMANDS: usize = 1000;
    on_core(async |files| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let file = files.adopt_device(socket.into());
        let ends = Rc::new(StatusList::default());
        let place = KeptOp::new(ends.clone(), 0);
        let into = Buf::alloc(16).into();
        let received = driver_io(file, SqeOp::Recv { into });
        for _ in 0..COMMANDS {
            let (code, memory) = (NO_SUCH_COMMAND, CommandMemory::OfStream(0));
            push_bio(place.repeated(), file, SqeOp::Command { code, args: [0; 16], memory });
        }
        sleep(Nanos::from_millis(50)).await;
        assert_eq!(ends.0.take(), [Status::NotSupported; COMMANDS]);
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[7], address).unwrap();
        assert_eq!(received.await.status, Status::Ok);
    });
}
