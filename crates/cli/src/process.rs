// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process of which the end can be waited for, though it is no child.
use std::os::fd::OwnedFd;

use block::ErrorKind;
use control::Failure;
use host::io_failure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::time::{Duration, sleep};

/// How often it is asked whether a process has ended.
const LOOK: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Process(OwnedFd);

impl Process {
    /// The process that has the number `pid` now.
    pub(crate) fn open(pid: u32) -> Result<Process, Failure> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| {
            Failure::new(ErrorKind::Invalid, format!("pid {pid}: no such number"))
        })?;
        let opened = pidfd_open(number, PidfdFlags::empty());
        opened.map(Process).map_err(|e| io_failure(&e.into(), format!("pid {pid}")))
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Completes when it has ended.
    pub(crate) async fn ended(self) {
        while !self.has_ended() {
            sleep(LOOK).await;
        }
    }
}
