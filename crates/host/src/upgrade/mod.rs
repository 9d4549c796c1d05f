// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live upgrade: this daemon hands its devices and clients over to a successor, another process of
//! the program, which it starts. `handover` has the messages and the sequences of both sides; here
//! is what they do in a process.
//!
//! ```text
//!   checked ─▶ successor started ─▶ greeted ─▶ paused ─▶ held ─▶ sent ─▶ opened ─▶ COMMIT ─▶ exit
//!                                                 │        │       │        │
//!       serves as before ◀────────────────────────┴────────┴───────┴────────┘ any failure
//! ```
//!
//! Invariants
//! - HO-UP1 Until COMMIT is sent any failure leaves this daemon serving as before; from then on it
//!   touches no device, no client and no listener, whatever happens.
//! - HO-UP2 Before this daemon goes on after a failure, nothing of the successor is under way any
//!   more: its process has ended, and so has the last request of its rings (the lifeline, UR-U12).
//!   What it may have opened is then opened anew.
//! - HO-UP3 The successor reads no request of a client before COMMIT, and gets the lock of each
//!   leaf with its description: nobody else gets one in between.
//! - HO-UP4 No verb changes anything between the check and the end: changes that are under way end
//!   first, later ones are refused. Verbs that only wait (`changes`) go on at the successor.
mod predecessor;
mod program;
mod sender;
#[cfg(test)]
mod simulation;
mod socket;
mod tables;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::ErrorKind;
use control::{Failure, api};
use handover::{Channel, Greeting, PlantedFault};

pub(crate) use predecessor::{Predecessor, PredecessorState};
pub(crate) use tables::refuse_unknown;

use self::sender::Sender;
use crate::engine::{CrossingDevice, Engine};
use crate::io_failure::io_failure;
use crate::routes::State;
use crate::units::time;

/// Variable by which a process knows that it is to take over from the one at its standard input.
const SUCCESSOR: &str = "MILLPOND_SUCCESSOR";
/// How long each step may take by default.
const STEP: Duration = Duration::from_secs(30);
/// What the option allows.
const STEP_ALLOWED: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);

/// What a daemon needs to start a successor and to give it.
#[derive(Debug)]
pub(crate) struct HandoverSource {
    /// The file of the program, and the arguments of this process.
    program: PathBuf,
    arguments: Vec<OsString>,
    /// The lock of the run directory.
    lock: OwnedFd,
    /// Listeners, of which the doors have descriptors of their own.
    listeners: Vec<(handover::Listener, OwnedFd)>,
}

impl HandoverSource {
    pub(crate) fn new(
        lock: OwnedFd,
        listeners: Vec<(handover::Listener, OwnedFd)>,
    ) -> Result<HandoverSource, Failure> {
        let program = std::env::current_exe().map_err(|e| io_failure(&e, "own program"))?;
        let arguments = std::env::args_os().skip(1).collect();
        Ok(HandoverSource { program, arguments, lock, listeners })
    }
}

fn step_time(text: Option<&str>) -> Result<Duration, Failure> {
    let Some(text) = text else { return Ok(STEP) };
    let invalid = |e: &str| {
        let message = format!("--timeout {text}: {e}");
        Failure::new(ErrorKind::Invalid, message)
    };
    let step = Duration::from_nanos(time(text).map_err(|e| invalid(&e))?.0);
    let allowed = STEP_ALLOWED.contains(&step);
    if allowed { Ok(step) } else { Err(invalid("100ms to 10m is allowed")) }
}

/// Hands over to a successor, or reports what would cross. After it has returned without an error
/// and with a successor, this process has to exit, and nothing else (HO-UP1).
///
/// # Errors
/// Why this daemon goes on.
pub(crate) async fn upgrade(
    state: &Arc<State>,
    request: api::Upgrade,
) -> Result<api::Upgraded, Failure> {
    let source = state.source.as_ref().ok_or_else(|| {
        let text = "this daemon belongs to a command (`millpond run`): it ends with that";
        Failure::new(ErrorKind::NotSupported, text)
    })?;
    let step = step_time(request.timeout.as_deref())?;
    let program = match &request.binary {
        Some(path) if !path.starts_with('/') => {
            let text = format!("--binary {path}: an absolute path is needed");
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        Some(path) => path.into(),
        None => source.program.clone(),
    };
    let installed = program.clone();
    let program_differs = blocking(move || program::differs(&installed)).await?;
    if request.if_changed && !program_differs {
        return Ok(api::Upgraded { program_differs, ..report(state, source, &[]).await? });
    }
    // HO-UP4
    let alone = state.changes.hand_over(step).await?;
    let mut report = report(state, source, &request.force).await?;
    report.program_differs = program_differs;
    if request.dry_run {
        return Ok(report);
    }
    refuse_unaccepted(&report.problems, &request.force)?;
    let handed_over =
        hand_over(state, (&program, &source.arguments), step, &request, &mut report).await;
    match handed_over {
        Ok(successor) => {
            report.successor = Some(successor);
            alone.done();
            Ok(report)
        }
        Err(failure) => {
            tracing::error!(error = %failure, "no hand-over: this daemon goes on");
            Err(failure)
        }
    }
}

/// Fails with the first problem that no word of `force` accepts.
fn refuse_unaccepted(problems: &[api::UpgradeProblem], force: &[String]) -> Result<(), Failure> {
    let is_accepted = |one: &api::UpgradeProblem| {
        one.can_be_forced && force.iter().any(|word| one.is_named_by(word))
    };
    let Some(first) = problems.iter().find(|one| !is_accepted(one)) else { return Ok(()) };
    let hint = match (first.can_be_forced, &first.token) {
        (false, _) => String::new(),
        (true, None) => format!(" (`--force {}` accepts that)", first.name),
        (true, Some(token)) => format!(" (`--force={token}` accepts that)"),
    };
    let more = problems.len() - 1;
    let more = if more == 0 { String::new() } else { format!("; and {more} more: --dry-run") };
    let text = format!("{}: {}{hint}{more}", first.name, first.why);
    Err(Failure::new(ErrorKind::Busy, text))
}

/// What would cross now.
async fn report(
    state: &State,
    source: &HandoverSource,
    force: &[String],
) -> Result<api::Upgraded, Failure> {
    let (problems, devices, sessions) = state
        .core
        .call(async |e: Rc<Engine>| {
            let mut problems = e.upgrade_problems().await?;
            problems.extend(e.session_problems());
            problems.extend(e.disk_problems());
            Ok::<_, Failure>((problems, e.dm.list().len(), e.count_sessions()))
        })
        .await??;
    let mut problems = problems;
    if let Some(dir) = &state.options.fuse {
        let why =
            format!("files below {} can't stay open: the directory is mounted anew", dir.display());
        problems.push(api::UpgradeProblem::new("fuse", why, true));
    }
    let unknown = force.iter().find(|word| !problems.iter().any(|one| one.is_named_by(word)));
    if let Some(word) = unknown {
        let text = format!("--force {word}: nothing that it stands for would be left behind");
        return Err(Failure::new(ErrorKind::NotFound, text));
    }
    Ok(api::Upgraded {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        successor: None,
        program_differs: false,
        devices: devices as u64,
        sessions,
        listeners: source.listeners.len() as u64,
        problems,
    })
}

/// Runs work that blocks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| Failure::new(ErrorKind::Io, format!("a thread of the upgrade: {e}")))?
}

/// Starts a successor; returns it and the socket to it.
fn start(program: &Path, arguments: &[OsString]) -> Result<(Child, Channel), Failure> {
    let (channel, theirs) = Channel::pair()?;
    let mut command = Command::new(program);
    command.args(arguments).env(SUCCESSOR, "1").stdin(Stdio::from(theirs));
    // Listeners come by the hand-over; and systemd's numbers are those of this process.
    for name in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        command.env_remove(name);
    }
    let child = command.spawn().map_err(|e| io_failure(&e, program.display()))?;
    Ok((child, channel))
}

/// From the start of a successor to COMMIT.
async fn hand_over(
    state: &Arc<State>,
    (program, arguments): (&Path, &[OsString]),
    step: Duration,
    request: &api::Upgrade,
    report: &mut api::Upgraded,
) -> Result<api::Successor, Failure> {
    let (program, arguments) = (program.to_owned(), arguments.to_vec());
    let (child, channel) = blocking(move || start(&program, &arguments)).await?;
    let pid = child.id();
    tracing::info!(pid, "successor started");
    let sender = Sender::new(state.clone(), child, channel, step, request.force.clone());
    let ours = Greeting::new(env!("CARGO_PKG_VERSION"));
    let theirs = handover::hand_over(&sender, ours, PlantedFault::NONE).await;
    let theirs = theirs.map_err(|failure| sender.with_stuck(failure))?;
    report.sessions = sender.sessions();
    let (version, pause_ms) = (theirs.program, sender.pause_ms());
    tracing::info!(pid, version, pause_ms, "handed over to the successor: this process exits");
    let main = format!("MAINPID={pid}");
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Custom(&main)]);
    Ok(api::Successor { pid, version, pause_ms })
}

/// Devices as messages.
fn device(crossing: &CrossingDevice, used_by_guests: &[String]) -> handover::Device {
    let saved = crossing.saved.clone();
    let used_by_guest = crossing.keeps_data && used_by_guests.contains(&saved.name);
    handover::Device {
        name: saved.name,
        uuid: saved.uuid,
        minor: crossing.minor,
        table: saved.table,
        force: crossing.force.clone(),
        attributes: saved.attributes,
        ublk: saved.ublk,
        used_by_guest,
    }
}
