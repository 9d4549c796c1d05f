// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon: starts everything in order, and ends it in order.
//!
//! ```text
//!   start   lock · cores · NBD sockets · devices of the config · control socket · FUSE mount ·
//!           serve · ready; `daemon::start` has it, and the start by what a daemon leaves
//!   stop    no new clients · files' requests end, unmount · requests end · devices settle ·
//!           answers leave · cores end
//! ```
mod start;

use std::backtrace::Backtrace;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::{ErrorKind, Nanos};
use control::{EXIT_DONE, EXIT_FAILED, Failure, plain};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use uring::PollLimit;

pub(crate) use self::start::Beginning;
use crate::addr::Addr;
use crate::blocking::start_blocking_thread;
use crate::config::Config;
use crate::config_check;
use crate::core_thread::{CoreHandle, CoreThreads};
use crate::descriptors::raise_descriptor_limit;
use crate::engine::Engine;
use crate::fuse_host::FuseExport;
use crate::http::Connections;
use crate::io_failure::io_failure;
use crate::log_queue::{flush_log, print_error};
use crate::output::print;
use crate::passed::{ListenerRole, ServiceManager};
use crate::routes::State;
use crate::rundir::{Lock, RunDir};
use crate::stop;
use crate::units::time;
use crate::upgrade::Predecessor;
use crate::vhost_user;

/// Exit code of a process that SIGINT has ended, as shells have it.
const EXIT_INTERRUPTED: i32 = 130;

/// Exit code of a process that SIGTERM has ended, as shells have it.
const EXIT_TERMINATED: i32 = 143;

/// How long an orderly end may take by default. Chosen: less than the 90 s after which
/// systemd kills.
const SHUTDOWN: Duration = Duration::from_secs(60);
/// What the option allows.
const SHUTDOWN_ALLOWED: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// Longest `--busy-poll`: whoever waits longer for a request does not notice the wake-up.
const BUSY_POLL_MAX: Nanos = Nanos(1_000_000);

/// Most time for requests to files, and for those of virtual machines, to end at shutdown; at most
/// a quarter of all.
const FILES_DRAIN: Duration = Duration::from_secs(30);
/// The same when a device is suspended: requests that wait for it can't end.
const FILES_DRAIN_SUSPENDED: Duration = Duration::from_secs(1);

/// A daemon at work.
#[derive(Debug)]
pub(crate) struct Daemon {
    run_dir: RunDir,
    /// Where it serves, by name.
    addrs: Vec<(ListenerRole, Addr)>,
    state: Arc<State>,
    closing: watch::Sender<bool>,
    connections: Connections,
    threads: CoreThreads,
    sockets: Vec<PathBuf>,
    fuse: Option<FuseExport>,
    /// How long an orderly end may take.
    shutdown: Duration,
    lock: Lock,
}

impl Daemon {
    /// Where the devices are as files.
    pub(crate) fn fuse_dir(&self) -> Option<&Path> {
        self.fuse.as_ref().map(FuseExport::dir)
    }

    /// Ends clients' requests, settles every device, and ends. Fails when one did not settle. Takes
    /// no longer than the user allows: what has not ended by then ends with the process.
    pub(crate) async fn stop(self) -> Result<(), Failure> {
        let (time, state) = (self.shutdown, self.state.clone());
        let connections = self.connections.clone();
        // Not dropped when it is late: it would join threads that hang.
        let mut orderly = Box::pin(self.stop_orderly());
        let stopped = tokio::time::timeout(time, &mut orderly).await;
        let is_late = stopped.is_err();
        let outcome = stopped.unwrap_or_else(|_| {
            let seconds = time.as_secs();
            let message = format!(
                "shutdown: not all has ended within {seconds} s (--shutdown-timeout): the rest is \
                 left as a power cut leaves it, and what was flushed is safe"
            );
            let failure = Failure::new(ErrorKind::Busy, message);
            print_error(&format!("millpond: {failure}"));
            Err(failure)
        });
        stop::tell(&state.unsettled, outcome.as_ref().err().into_iter());
        connections.drain_ending().await;
        if is_late {
            // Not by returning: the runtime would wait for threads that hang.
            exit(EXIT_FAILED.into());
        }
        outcome
    }

    /// Exits: a successor has everything (HO-UP1). Answers leave before.
    async fn leave(&self) -> ! {
        let _ = self.closing.send(true); // the state holds a receiver
        self.connections.drain().await;
        exit(EXIT_DONE.into())
    }

    async fn stop_orderly(mut self) -> Result<(), Failure> {
        let _ = self.closing.send(true); // the state holds a receiver
        if let Some(fuse) = self.fuse.take() {
            self.unmount(fuse).await?;
        }
        let time = Nanos(u64::try_from(self.shutdown.as_nanos()).unwrap_or(u64::MAX));
        let disks = Nanos(time.0 / 4);
        self.state.core.call(async move |e: Rc<Engine>| e.shut_down_disks(disks).await).await?;
        let suspended = self.has_suspended_device().await?;
        let of_machines = machines_drain(time, suspended);
        let core = &self.state.core;
        core.call(async move |_: Rc<Engine>| vhost_user::shutdown(of_machines).await).await?;
        let failures = self.state.core.call(async move |e: Rc<Engine>| e.shutdown(time).await);
        let failures = failures.await?;
        for failure in &failures {
            tracing::error!(error = %failure, "a device did not settle");
        }
        if !failures.is_empty() {
            stop::tell(&self.state.unsettled, failures.iter());
        }
        self.connections.drain().await;
        self.state.core.end().await;
        // On another thread, as this one enforces the time limit.
        let (threads, sockets) = (self.threads, self.sockets);
        let ended = tokio::task::spawn_blocking(move || {
            threads.join();
            for path in &sockets {
                let _ = std::fs::remove_file(path); // it may not exist any more
            }
        });
        ended.await.map_err(|e| Failure::new(ErrorKind::Io, format!("the end: {e}")))?;
        match failures.into_iter().next() {
            Some(failure) => Err(failure),
            None => {
                self.lock.end_in_order();
                Ok(())
            }
        }
    }

    /// Whether requests may wait for a resume that does not come any more.
    async fn has_suspended_device(&self) -> Result<bool, Failure> {
        let devices = self.state.core.call(async |e: Rc<Engine>| e.devices()).await?;
        Ok(devices.iter().any(|d| d.suspended && d.live_table))
    }

    async fn unmount(&self, fuse: FuseExport) -> Result<(), Failure> {
        let suspended = self.has_suspended_device().await?;
        let drain_time = if suspended { FILES_DRAIN_SUSPENDED } else { FILES_DRAIN };
        let drain_time = drain_time.min(self.shutdown / 4);
        // On another thread, as it waits for threads.
        let stopped = tokio::task::spawn_blocking(move || fuse.stop(drain_time)).await;
        stopped.map_err(|e| Failure::new(ErrorKind::Io, format!("unmounting: {e}")))
    }

    /// Warns when the default export is no device, as after a misspelt name.
    async fn warn_of_default_export(&self) -> Result<(), Failure> {
        let Some(name) = self.state.version.default_export.clone() else { return Ok(()) };
        let word = name.clone();
        let is_there = async move |e: Rc<Engine>| e.dm.get(&word).is_ok();
        if !self.state.core.call(is_there).await? {
            tracing::warn!(
                "default export `{name}`: no device has this name: clients that name no export \
                 are refused until one is created"
            );
        }
        Ok(())
    }

    /// The line that reports that it is ready, and where it serves.
    fn ready_line(&self) -> String {
        let addrs: String =
            self.addrs.iter().map(|(role, addr)| format!(" {role}={addr}")).collect();
        let fuse = self.fuse_dir().map(|dir| format!(" fuse={}", dir.display()));
        format!(
            "millpond: ready pid={} run_dir={}{addrs}{}",
            std::process::id(),
            self.run_dir.path().display(),
            fuse.unwrap_or_default()
        )
    }
}

pub(crate) fn shutdown_time(text: Option<&str>) -> Result<Duration, Failure> {
    let Some(text) = text else { return Ok(SHUTDOWN) };
    let invalid = |e: &str| {
        let message = format!("--shutdown-timeout {text}: {e}");
        Failure::new(ErrorKind::Invalid, message)
    };
    let time = Duration::from_nanos(time(text).map_err(|e| invalid(&e))?.0);
    if SHUTDOWN_ALLOWED.contains(&time) { Ok(time) } else { Err(invalid("1s to 1h is allowed")) }
}

/// The limit of `--busy-poll`.
pub(crate) fn busy_poll_limit(text: Option<&str>) -> Result<PollLimit, Failure> {
    let text = match text.unwrap_or("auto") {
        "auto" => return Ok(PollLimit::Auto),
        "0" => return Ok(PollLimit::Time(Nanos::ZERO)),
        text => text,
    };
    let invalid = |e: &str| Failure::new(ErrorKind::Invalid, format!("--busy-poll {text}: {e}"));
    let time = time(text).map_err(|e| invalid(&e))?;
    match time <= BUSY_POLL_MAX {
        true => Ok(PollLimit::Time(time)),
        false => Err(invalid("auto, and 0 to 1ms are allowed")),
    }
}

/// Most time for requests of virtual machines to end at shutdown, of `time` for all.
fn machines_drain(time: Nanos, suspended: bool) -> Nanos {
    let most = if suspended { FILES_DRAIN_SUSPENDED } else { FILES_DRAIN };
    Nanos(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX)).min(Nanos(time.0 / 4))
}

/// Makes a panic end the process at once, like a power cut: the data on the media are
/// consistent.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        // Not by the hook of before: it would wait for who reads standard error.
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        print_error(&format!("thread '{name}' {info}\n{}", Backtrace::capture()));
        flush_log();
        std::process::abort();
    }));
}

/// The signals that end the daemon, with their names and exit codes.
struct TerminationSignals {
    term: Signal,
    int: Signal,
}

impl TerminationSignals {
    fn new() -> Result<TerminationSignals, Failure> {
        let (term, int) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(TerminationSignals { term: handler(term)?, int: handler(int)? })
    }

    async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.term.recv() => ("SIGTERM", EXIT_TERMINATED),
            _ = self.int.recv() => ("SIGINT", EXIT_INTERRUPTED),
        }
    }
}

fn handler(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|e| io_failure(&e, "signal handler"))
}

/// Sends systemd a sign of life as long as core 0 answers, if the service asks for it
/// (`WatchdogSec`): three in the time after which the service counts as hung. `takes_over`: the
/// variables are those of the daemon before, and hold for this one.
async fn feed_watchdog(core: CoreHandle, takes_over: bool) {
    let mut limit_us = 0;
    let is_asked = sd_notify::watchdog_enabled(false, &mut limit_us);
    if takes_over {
        let text = std::env::var("WATCHDOG_USEC").unwrap_or_default();
        limit_us = text.parse().unwrap_or_default();
    }
    if limit_us == 0 || !(is_asked || takes_over) {
        return;
    }
    let mut tick = tokio::time::interval(Duration::from_micros((limit_us / 3).max(1)));
    loop {
        tick.tick().await;
        if core.call(async |_: Rc<Engine>| ()).await.is_ok() {
            let _ = sd_notify::notify(false, &[NotifyState::Watchdog]);
        }
    }
}

/// `millpond daemon --check-config`: prints all that is wrong with a configuration, or that it is
/// right. Returns the exit code.
///
/// # Errors
/// When the check itself can't run.
pub async fn check(config: Config, file: &Path) -> Result<u8, Failure> {
    let devices = config.devices.len();
    let problems = config_check::problems(config).await?;
    for problem in &problems {
        print_error(&format!("millpond: {}", plain(&problem.to_string())));
    }
    if let Some(first) = problems.first() {
        return Ok(first.exit_code());
    }
    let counted = if devices == 1 { "1 device".to_owned() } else { format!("{devices} devices") };
    print(&format!("{}: {counted}, no error found\n", file.display()))?;
    Ok(EXIT_DONE)
}

/// Ends the process, and has the log written before.
fn exit(code: i32) -> ! {
    flush_log();
    std::process::exit(code)
}

/// Reads the configuration file again at each SIGHUP. A terminal that closes sends one, too: what
/// is there stays (HO-RL1).
async fn reload_at_hangups(mut hangups: Signal, state: Arc<State>) {
    while hangups.recv().await.is_some() {
        tracing::info!("SIGHUP: reading the configuration file again");
        let _change = state.changes.begin_later().await; // HO-UP4
        state.config.reload_and_log(&state.core).await;
    }
}

/// `millpond daemon`: runs until SIGTERM or SIGINT. Its exit code says only whether all devices
/// have settled, not what kind of failure there was.
pub async fn run(run_dir: &RunDir, config: Config) -> Result<u8, Failure> {
    raise_descriptor_limit();
    start_blocking_thread().await?;
    // From now on SIGHUP does not end the process; one that comes before clients are served waits.
    let hangups = handler(SignalKind::hangup())?;
    let mut signals = TerminationSignals::new()?;
    let predecessor = Predecessor::of_process()?;
    let takes_over = predecessor.is_some();
    let beginning = match predecessor {
        Some(from) => Beginning::TakeOver(from),
        None => Beginning::Start(ServiceManager::of_process()?),
    };
    // Neither is dropped at a second signal: it would join threads that hang.
    let mut start = Box::pin(Daemon::start(run_dir, config, beginning));
    let daemon = tokio::select! {
        daemon = &mut start => daemon?,
        (name, code) = signals.next() => {
            // No client was served yet, so nothing was acknowledged.
            tracing::warn!(signal = name, "told to end while it starts: exits at once");
            exit(code);
        }
    };
    print_error(&plain(&daemon.ready_line()));
    daemon.warn_of_default_export().await?;
    // An error means that systemd has not started it.
    let _ = sd_notify::notify(false, &[NotifyState::Ready]);
    let watchdog = tokio::spawn(feed_watchdog(daemon.state.core.clone(), takes_over));
    let reloads = tokio::spawn(reload_at_hangups(hangups, daemon.state.clone()));
    tokio::select! {
        (name, _) = signals.next() => tracing::info!(signal = name, "shutting down"),
        () = daemon.state.stop.notified() => tracing::info!("shutting down, by request"),
        () = daemon.state.handed_over.notified() => daemon.leave().await,
    }
    reloads.abort();
    // Devices may take their time to settle; the shutdown timeout bounds it.
    watchdog.abort();
    let _ = sd_notify::notify(false, &[NotifyState::Stopping]);
    let mut stop = Box::pin(daemon.stop());
    let stopped = tokio::select! {
        stopped = &mut stop => stopped,
        (name, code) = signals.next() => {
            tracing::warn!(signal = name, "told to end again: exits at once");
            exit(code);
        }
    };
    if let Err(failure) = stopped {
        print_error(&format!("millpond: {}", failure.within("daemon")));
        return Ok(EXIT_FAILED);
    }
    tracing::info!("all devices are settled");
    Ok(EXIT_DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_takes_a_millisecond_at_most() {
        for (text, us) in [("0", 0), ("50us", 50), ("1ms", 1000)] {
            let limit = PollLimit::Time(Nanos(us * 1000));
            assert_eq!(busy_poll_limit(Some(text)).unwrap(), limit, "{text}");
        }
        for text in [None, Some("auto")] {
            assert_eq!(busy_poll_limit(text).unwrap(), PollLimit::Auto, "{text:?}");
        }
        for text in ["2ms", "50", "-1us", "fast"] {
            let why = busy_poll_limit(Some(text)).unwrap_err().to_string();
            assert!(why.contains(&format!("--busy-poll {text}: ")), "{why}");
        }
    }
}
