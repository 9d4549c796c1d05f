// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sequence of the daemon that hands over.
//!
//! ```text
//!   greeted ─▶ prepared ─▶ paused ─▶ held ─▶ sent ─▶ opened ─▶ COMMIT ─▶ left
//!      │          │          │        │       │        │
//!      ▼          ▼          ▼        ▼       ▼        ▼
//!      successor ended     ... and devices  ... of which those are opened anew
//!                          and clients go on     that it may have written to
//! ```
//!
//! HO-UP1 to HO-UP3 of `host::upgrade` hold here.
use block::{Error, ErrorKind};

use crate::message::{Greeting, Message};
use crate::planted::{Fault, PlantedFault};
use crate::transport::{Parcel, Transport, receive_one, send_one};

/// What a daemon does when it hands over. [`hand_over`] calls it.
pub trait OldDaemon {
    /// Why a step fails.
    type Failure: From<Error>;
    /// The socket to the successor.
    type Transport: Transport;

    /// The socket to the successor.
    fn transport(&self) -> &Self::Transport;

    /// Makes ready what would lengthen the pause of the clients. They are served meanwhile.
    fn prepare(&self) -> impl Future<Output = Result<(), Self::Failure>>;

    /// Takes back what `prepare` has done, also after an error of it: devices and clients have gone
    /// on.
    fn take_back(&self) -> impl Future<Output = ()>;

    /// Stops the clients: nothing of them is under way then, and nothing is read from them.
    fn pause_clients(&self) -> impl Future<Output = Result<(), Self::Failure>>;

    /// Suspends the devices: nothing of them is under way then.
    fn hold_devices(&self) -> impl Future<Output = Result<(), Self::Failure>>;

    /// What the successor gets, in this version of the hand-over.
    fn load(&self, version: u32) -> impl Future<Output = Result<Load<Self>, Self::Failure>>;

    /// Whether the process of the successor has not ended.
    fn successor_lives(&self) -> bool;

    /// Ends the successor. `has_files`: and returns when the last request of its rings has ended,
    /// too (HO-UP2).
    fn end_successor(&self, has_files: bool) -> impl Future<Output = ()>;

    /// Devices go on. `anew`: media that the successor may have written to are read again.
    fn release_devices(&self, anew: bool) -> impl Future<Output = ()>;

    /// Clients go on.
    fn resume_clients(&self) -> impl Future<Output = ()>;

    /// Gives up devices and clients: the successor has them.
    fn leave(&self) -> impl Future<Output = ()>;
}

/// What is sent: messages with their descriptors.
type Load<D> = Vec<Parcel<<<D as OldDaemon>::Transport as Transport>::Descriptor>>;

/// How far a hand-over came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// Clients are served.
    Serving,
    /// The same, and the devices are prepared, or some of them.
    Preparing,
    /// Clients and devices have stopped, or some of them.
    Stopped,
    /// The successor may have opened the devices.
    Sent,
    /// Nothing can be taken back.
    Committed,
}

/// Hands over to a successor that runs and has got nothing yet. Returns its greeting. Then this
/// process has to exit.
///
/// # Errors
/// Why not. The daemon has gone on as before, and the successor has ended.
pub async fn hand_over<D: OldDaemon>(
    daemon: &D,
    ours: Greeting,
    planted: PlantedFault,
) -> Result<Greeting, D::Failure> {
    let mut progress = Progress::Serving;
    let result = forward(daemon, ours, planted, &mut progress).await;
    if result.is_err() {
        roll_back(daemon, planted, progress).await;
    }
    result
}

async fn forward<D: OldDaemon>(
    daemon: &D,
    ours: Greeting,
    planted: PlantedFault,
    progress: &mut Progress,
) -> Result<Greeting, D::Failure> {
    let transport = daemon.transport();
    let (theirs, version) = greet(transport, ours).await?;
    *progress = Progress::Preparing;
    daemon.prepare().await?;
    *progress = Progress::Stopped;
    daemon.pause_clients().await?;
    daemon.hold_devices().await?;
    let mut load = daemon.load(version).await?;
    plant_in_load::<D>(planted, &mut load);
    if planted.is(Fault::LocksGivenUp) {
        daemon.leave().await;
    }
    *progress = Progress::Sent;
    transport.send(load).await?;
    send_one(transport, Message::Open).await?;
    if planted.is(Fault::LeaveEarly) {
        daemon.leave().await;
    }
    if !planted.is(Fault::CommitEarly) {
        opened(transport).await?;
    }
    // The socket of a dead process is open, and takes COMMIT, until its last request has ended.
    if !daemon.successor_lives() {
        return Err(Error::io("the successor has ended").into());
    }
    // HO-UP1: whether the successor serves is decided here.
    send_one(transport, Message::Commit).await?;
    *progress = Progress::Committed;
    if planted.is(Fault::GoOnAfterCommit) {
        // As if the end of the successor were an error of this hand-over.
        transport.ended().await;
        return Err(Error::io("hand-over: the successor has ended").into());
    }
    daemon.leave().await;
    Ok(theirs)
}

/// Both sides say what they understand. Returns what the successor does, and the version that both
/// use.
async fn greet<T: Transport>(transport: &T, ours: Greeting) -> Result<(Greeting, u32), Error> {
    let first = receive_one(transport).await;
    let first = first.map_err(|e| e.within("the successor does not come up; its log says why"))?;
    if let Message::Failed { cause } = first {
        return Err(Error::io(format!("the successor: {cause}")));
    }
    let Message::Greeting(theirs) = first else {
        let text = format!("the successor does not greet, but says {first:?}");
        return Err(Error::new(ErrorKind::NotSupported, text));
    };
    let Some(version) = ours.common_version(&theirs) else {
        let text = format!(
            "version {} of the program understands versions {} to {} of the hand-over, this one \
             ({}) {} to {}: stop the daemon and start the other one",
            theirs.program, theirs.oldest, theirs.newest, ours.program, ours.oldest, ours.newest
        );
        return Err(Error::new(ErrorKind::NotSupported, text));
    };
    if let Some(missing) = ours.missing(&theirs) {
        let text = format!(
            "version {} of the program needs {missing} of the hand-over, which this one ({}) does \
             not know: stop the daemon and start the other one",
            theirs.program, ours.program
        );
        return Err(Error::new(ErrorKind::NotSupported, text));
    }
    send_one(transport, Message::Greeting(ours)).await?;
    Ok((theirs, version))
}

/// Waits until the successor has opened the devices.
async fn opened<T: Transport>(transport: &T) -> Result<(), Error> {
    let answer = receive_one(transport).await?;
    if let Message::Failed { cause } = answer {
        return Err(Error::io(format!("the successor: {cause}")));
    }
    if answer != Message::Opened {
        let text = format!("the successor says {answer:?} instead of `opened`");
        return Err(Error::io(text));
    }
    Ok(())
}

/// Goes on as before.
async fn roll_back<D: OldDaemon>(daemon: &D, planted: PlantedFault, progress: Progress) {
    let may_have_opened = progress >= Progress::Sent;
    if !planted.is(Fault::SuccessorLeftAlive) {
        // HO-UP2
        daemon.end_successor(may_have_opened && !planted.is(Fault::GoOnEarly)).await;
    }
    if progress >= Progress::Stopped {
        daemon.release_devices(may_have_opened && !planted.is(Fault::NotOpenedAnew)).await;
        daemon.resume_clients().await;
    }
    if progress >= Progress::Preparing {
        daemon.take_back().await;
    }
}

fn plant_in_load<D: OldDaemon>(planted: PlantedFault, load: &mut Load<D>) {
    if planted.is(Fault::LocksGivenUp) {
        load.retain(|(frame, _)| !matches!(frame.message, Message::Leaf(_)));
    }
    if planted.is(Fault::UnreadDropped) {
        load.iter_mut().for_each(|(frame, _)| frame.bytes.clear());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::frame::Frame;

    /// A socket to a successor that does what is expected of it.
    #[derive(Default)]
    struct WillingSuccessor {
        answers: Cell<u32>,
        needs: Vec<String>,
    }

    impl Transport for WillingSuccessor {
        type Descriptor = ();

        async fn send(&self, _parcels: Vec<Parcel<()>>) -> Result<(), Error> {
            Ok(())
        }

        async fn receive(&self, _is_last: fn(&Message) -> bool) -> Result<Vec<Parcel<()>>, Error> {
            let message = match self.answers.replace(self.answers.get() + 1) {
                0 => Message::Greeting(Greeting {
                    needs: self.needs.clone(),
                    ..Greeting::new("9.0")
                }),
                _ => Message::Opened,
            };
            Ok(vec![(Frame::new(message), None)])
        }

        async fn ended(&self) {}
    }

    /// A daemon of which one step fails.
    struct FailingDaemon {
        successor: WillingSuccessor,
        failing: &'static str,
        steps: RefCell<Vec<&'static str>>,
    }

    impl FailingDaemon {
        fn step(&self, name: &'static str) -> Result<(), Error> {
            self.steps.borrow_mut().push(name);
            if name == self.failing { Err(Error::io(name)) } else { Ok(()) }
        }

        fn steps(failing: &'static str) -> Vec<&'static str> {
            let (successor, steps) = Default::default();
            let daemon = FailingDaemon { successor, failing, steps };
            let ours = Greeting::new("0");
            let done = run(hand_over(&daemon, ours, PlantedFault::NONE));
            assert_eq!(done.is_err(), !failing.is_empty(), "{failing}");
            daemon.steps.take()
        }
    }

    /// Nothing here waits.
    fn run<T>(future: impl Future<Output = T>) -> T {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(done) => done,
            std::task::Poll::Pending => unreachable!("a step waits"),
        }
    }

    impl OldDaemon for FailingDaemon {
        type Failure = Error;
        type Transport = WillingSuccessor;

        fn transport(&self) -> &WillingSuccessor {
            &self.successor
        }

        async fn prepare(&self) -> Result<(), Error> {
            self.step("prepare")
        }

        async fn take_back(&self) {
            self.steps.borrow_mut().push("take back");
        }

        async fn pause_clients(&self) -> Result<(), Error> {
            self.step("pause")
        }

        async fn hold_devices(&self) -> Result<(), Error> {
            self.step("hold")
        }

        async fn load(&self, _version: u32) -> Result<Vec<Parcel<()>>, Error> {
            self.step("load")?;
            Ok(Vec::new())
        }

        fn successor_lives(&self) -> bool {
            self.step("look").is_ok()
        }

        async fn end_successor(&self, _has_files: bool) {
            self.steps.borrow_mut().push("end");
        }

        async fn release_devices(&self, anew: bool) {
            self.steps.borrow_mut().push(if anew { "release anew" } else { "release" });
        }

        async fn resume_clients(&self) {
            self.steps.borrow_mut().push("resume");
        }

        async fn leave(&self) {
            self.steps.borrow_mut().push("leave");
        }
    }

    #[test]
    fn each_failure_takes_back_what_was_done_before_it() {
        let forward = ["prepare", "pause", "hold", "load", "look", "leave"];
        assert_eq!(FailingDaemon::steps(""), forward);
        let prepared = ["prepare", "end", "take back"];
        assert_eq!(FailingDaemon::steps("prepare"), prepared);
        let back = ["end", "release", "resume", "take back"];
        for failing in 1..4 {
            let all = [&forward[..=failing], &back].concat();
            assert_eq!(FailingDaemon::steps(forward[failing]), all);
        }
        let opened = ["end", "release anew", "resume", "take back"];
        assert_eq!(FailingDaemon::steps("look"), [&forward[..5], &opened].concat());
    }

    #[test]
    fn a_successor_that_needs_more_is_refused_before_anything_stops() {
        let (answers, needs) = (Cell::default(), vec!["pool".to_owned()]);
        let (successor, steps) = (WillingSuccessor { answers, needs }, RefCell::default());
        let daemon = FailingDaemon { successor, failing: "", steps };
        let refused = run(hand_over(&daemon, Greeting::new("0.3.0"), PlantedFault::NONE));
        let text = "version 9.0 of the program needs `pool` of the hand-over, which this one \
                    (0.3.0) does not know: stop the daemon and start the other one";
        assert_eq!(refused.unwrap_err().to_string(), text);
        assert_eq!(daemon.steps.take(), ["end"]);
    }
}
