// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of a control socket: it is paused anywhere in a message, and another one goes on.
use std::cell::RefCell;
use std::thread;

use rustix::io::ioctl_fionread;
use rustix::net::{AddressFamily, SocketFlags, socketpair};

use super::*;
use crate::message::{RegionInfo, protocol};

/// Notes what it has to handle.
#[derive(Default)]
struct TestCore(RefCell<Vec<Request>>);

impl Core for TestCore {
    type Region = ();

    fn check_memory(&self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }

    fn map(&self, _file: &OwnedFd, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }

    fn is_eventfd(&self, _fd: &OwnedFd) -> bool {
        true
    }

    fn handle(&self, request: Request, given: Descriptors<()>) -> Result<Answer, Error> {
        let found = given.regions.len() + given.event.iter().chain(&given.channel).count();
        assert_eq!(found, request.descriptors(), "{request:?}");
        self.0.borrow_mut().push(request.clone());
        let asks = request == Request::GetFeatures;
        Ok(if asks { Answer::Number(5) } else { Answer::Done })
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    socketpair(family, SocketType::STREAM, flags, None).unwrap()
}

/// Sends bytes with descriptors.
fn send_with(socket: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.unwrap(), bytes.len());
}

/// Serves until it is paused, which is as soon as all that was sent is received.
fn serve_all_sent(
    socket: &OwnedFd,
    core: TestCore,
    connection: Connection,
) -> (TestCore, Connection) {
    let (pause, of_thread) = (PauseSignal::new().unwrap(), socket.try_clone().unwrap());
    let signal = pause.clone();
    let served = thread::Builder::new().spawn(move || {
        let end = serve(&of_thread, &signal, &core, connection, Vec::new()).unwrap();
        (core, end)
    });
    let served = served.unwrap();
    while ioctl_fionread(socket).unwrap() > 0 {
        thread::yield_now();
    }
    pause.give();
    let (core, end) = served.join().unwrap();
    let ServiceEnd::Paused(connection) = end else { panic!("{end:?}") };
    (core, connection)
}

/// As it crosses to another process.
fn crossed(connection: &Connection) -> Connection {
    let (bytes, fds) = connection.encode();
    Connection::decode(&bytes, fds).unwrap()
}

/// VH-X2.
#[test]
fn a_pause_at_any_byte_of_a_message_keeps_it() {
    let region = |guest| RegionInfo { guest, len: 4096, user: guest, offset: 0 };
    let messages = [
        Request::SetProtocolFeatures(protocol::REPLY_ACK),
        Request::SetMemTable(vec![region(0), region(8192), region(1 << 20)]),
        Request::SetVringCall { queue: 3, given: true },
        Request::GetFeatures,
        Request::SetVringErr { queue: 3, given: false },
    ];
    let len: usize = messages.iter().map(|request| request.encode().len()).sum();
    for cut in 0..=len {
        let (front_end, socket) = pair();
        let (mut core, mut connection) = (TestCore::default(), Connection::default());
        let mut left = cut;
        for request in &messages {
            let bytes = request.encode();
            let fds: Vec<OwnedFd> = (0..request.descriptors()).map(|_| pair().0).collect();
            let first = left.min(bytes.len());
            left -= first;
            if first > 0 {
                send_with(&front_end, &bytes[..first], &fds);
            }
            if left == 0 && first < bytes.len() {
                (core, connection) = serve_all_sent(&socket, core, connection);
                connection = crossed(&connection);
                let fds = if first == 0 { &fds[..] } else { &[] };
                send_with(&front_end, &bytes[first..], fds);
                left = usize::MAX;
            }
        }
        let (core, connection) = serve_all_sent(&socket, core, connection);
        assert_eq!(*core.0.borrow(), messages, "cut at {cut}");
        let Input { bytes, descriptors } = &connection.input;
        assert!(bytes.is_empty() && descriptors.is_empty(), "cut at {cut}");
        assert!(connection.acknowledges());
        assert_eq!(connection.messages().len(), 4, "the base of the queue is one");
        // One answer, and nothing else, was sent.
        assert_eq!(ioctl_fionread(&front_end).unwrap(), 20, "cut at {cut}");
    }
}

#[test]
fn what_was_set_is_handled_before_the_socket_is_read() {
    let (front_end, socket) = pair();
    let mut before = Connection::default();
    let kick = Arc::new(pair().0);
    before.note(&Request::SetFeatures(3), Vec::new());
    before.note(&Request::SetVringKick { queue: 0, given: true }, vec![kick]);
    send_with(&front_end, &Request::SetOwner.encode(), &[]);
    drop(front_end);
    let (connection, first) = before.begin_again();
    let (core, pause) = (TestCore::default(), PauseSignal::new().unwrap());
    let end = serve(&socket, &pause, &core, connection, first).unwrap();
    assert!(matches!(end, ServiceEnd::Closed), "{end:?}");
    let want = [
        Request::SetFeatures(3),
        Request::SetVringBase { queue: 0, base: 0 },
        Request::SetVringKick { queue: 0, given: true },
        Request::SetOwner,
    ];
    assert_eq!(*core.0.borrow(), want);
}

#[test]
fn a_pause_that_is_taken_back_is_none() {
    let (front_end, socket) = pair();
    let (core, pause) = (TestCore::default(), PauseSignal::new().unwrap());
    pause.take_back();
    pause.give();
    pause.give();
    pause.take_back();
    send_with(&front_end, &Request::GetFeatures.encode(), &[]);
    rustix::net::shutdown(&front_end, rustix::net::Shutdown::Write).unwrap();
    let end = serve(&socket, &pause, &core, Connection::default(), Vec::new()).unwrap();
    assert!(matches!(end, ServiceEnd::Closed), "{end:?}");
    assert_eq!(*core.0.borrow(), [Request::GetFeatures]);
}

/// VH-C1: what the core closes later has nothing that may wait.
#[test]
fn descriptors_that_nobody_takes_are_closed_by_the_thread() {
    let (front_end, socket) = pair();
    let (of_front_end, channel) = pair();
    let watched = channel.try_clone().unwrap();
    send_with(&of_front_end, b"early", &[pair().0]);
    send_with(&front_end, &Request::SetBackendReqFd.encode(), &[channel]);
    let (core, _) = serve_all_sent(&socket, TestCore::default(), Connection::default());
    assert_eq!(*core.0.borrow(), [Request::SetBackendReqFd]);
    assert_eq!(ioctl_fionread(&watched), Ok(0));
    let late = rustix::net::send(&of_front_end, b"late", SendFlags::NOSIGNAL);
    assert_eq!(late, Err(Errno::PIPE));
    assert!(rustix::net::send(&watched, b"to the front end", SendFlags::NOSIGNAL).is_ok());
    send_with(&front_end, b"more", &[pair().0]);
    shutdown(&socket, Shutdown::Both).unwrap();
    drain(&socket);
    assert_eq!(ioctl_fionread(&socket), Ok(0));
}

/// Serves a front end that has sent requests until no more fit, and takes no answers. The thread is
/// told to pause; then the front end does what `then` does.
fn paused_while_it_sends(then: impl FnOnce(&OwnedFd)) -> Result<ServiceEnd, Error> {
    let (front_end, socket) = pair();
    let pause = PauseSignal::new().unwrap();
    let signal = pause.clone();
    let served = thread::Builder::new().spawn(move || {
        serve(&socket, &signal, &TestCore::default(), Connection::default(), Vec::new())
    });
    let request = Request::GetFeatures.encode();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut full = 0;
    while full < 100 {
        match rustix::net::send(&front_end, &request, flags) {
            Ok(sent) => assert_eq!(sent, request.len()),
            Err(Errno::AGAIN) => {
                full += 1;
                let time = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
                poll(&mut [PollFd::new(&front_end, PollFlags::OUT)], Some(&time)).unwrap();
            }
            failed => panic!("{failed:?}"),
        }
    }
    pause.give();
    then(&front_end);
    served.unwrap().join().unwrap()
}

/// It waited for ever for a front end that never takes an answer, and held all clients up with it.
#[test]
fn a_front_end_without_answers_delays_a_pause_for_a_second() {
    let refused = paused_while_it_sends(|_| ()).unwrap_err();
    assert!(refused.chain().contains("the front end takes no answers"), "{}", refused.chain());
    let paused = paused_while_it_sends(|front_end| {
        let mut bytes = vec![0; 1 << 20];
        while recv(front_end, &mut bytes[..20], RecvFlags::empty()).unwrap().0 > 0
            && ioctl_fionread(front_end).unwrap() > 0
        {}
    });
    assert!(matches!(paused, Ok(ServiceEnd::Paused(_))), "{paused:?}");
}
