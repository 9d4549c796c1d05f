// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's process, of which the end can be waited for, though it is no child.
use std::os::fd::OwnedFd;

use block::ErrorKind;
use control::Failure;
use host::{io_failure, pid_namespace};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::UnixStream;
use tokio::time::{Duration, sleep};

use crate::client::Client;

/// How often it is asked whether a process has ended.
const LOOK: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug)]
pub(crate) enum Process {
    Here(OwnedFd),
    /// In a container: its number is none here, or another process's. Its end closes a connection.
    Elsewhere(UnixStream),
}

/// Whether the numbers of processes of `namespace` are those of here; a daemon that does not tell
/// is taken for one of here.
pub(crate) fn is_here(namespace: Option<&str>) -> bool {
    namespace.is_none_or(|theirs| pid_namespace().is_none_or(|ours| theirs == ours))
}

impl Process {
    /// The process of the daemon, which has the number `pid` now in its namespace, as it says.
    pub(crate) async fn open(
        client: &Client,
        pid: u32,
        namespace: Option<&str>,
    ) -> Result<Process, Failure> {
        if !is_here(namespace) {
            return client.connect().await.map(Process::Elsewhere);
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| {
            Failure::new(ErrorKind::Invalid, format!("pid {pid}: no such number"))
        })?;
        let opened = pidfd_open(number, PidfdFlags::empty());
        opened.map(Process::Here).map_err(|e| io_failure(&e.into(), format!("pid {pid}")))
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Process::Here(fd) => {
                let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
            }
            Process::Elsewhere(connection) => {
                let is_open = |e: &std::io::Error| e.kind() == std::io::ErrorKind::WouldBlock;
                connection.try_read(&mut [0; 512]).map_or_else(|e| !is_open(&e), |n| n == 0)
            }
        }
    }

    /// Completes when it has ended.
    pub(crate) async fn ended(self) {
        while !self.has_ended() {
            sleep(LOOK).await;
        }
    }
}
