// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests to the daemon that the verbs of both command lines make: ours and dmsetup's. Each
//! command line has its own grammar and its own way to report errors; the requests are here.
use block::ErrorKind;
use control::{Failure, api, paths, plain};
use host::print_error;
use serde::Serialize;

use crate::client::Client;
use crate::progress::{LongOp, show_while};

/// Whether the device `name` itself is missing, and not something that it needs.
pub(crate) fn is_missing(name: &str, failure: &Failure) -> bool {
    failure.kind() == Some(ErrorKind::NotFound)
        && failure.message.strip_prefix(name).is_some_and(|m| m.starts_with(": no such device"))
}

/// The answer to a request about `name`; none when the device is missing. For verbs that go
/// through a list of devices, of which one may be removed meanwhile.
pub(crate) fn unless_missing<T>(
    name: &str,
    answer: Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    match answer {
        Err(failure) if is_missing(name, &failure) => Ok(None),
        answer => answer.map(Some),
    }
}

/// All devices, in the order in which they were made.
pub(crate) async fn devices(client: &Client) -> Result<Vec<api::Device>, Failure> {
    client.get(paths::DEVICES).await
}

pub(crate) async fn device(client: &Client, name: &str) -> Result<api::Device, Failure> {
    client.get(&paths::device(name)).await
}

pub(crate) async fn targets(client: &Client) -> Result<Vec<api::TargetType>, Failure> {
    client.get(paths::TARGETS).await
}

pub(crate) async fn version(client: &Client) -> Result<api::Version, Failure> {
    client.get(paths::VERSION).await
}

/// Which lines of a device are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lines {
    Status { noflush: bool },
    LiveTable,
    InactiveTable,
}

impl Lines {
    fn path(self) -> &'static str {
        match self {
            Lines::Status { noflush: false } => "status",
            Lines::Status { noflush: true } => "status?noflush=true",
            Lines::LiveTable => "table",
            Lines::InactiveTable => "table?inactive=true",
        }
    }
}

/// The lines of a device, of one target type if that is given.
pub(crate) async fn lines(
    client: &Client,
    name: &str,
    what: Lines,
    target: Option<&str>,
) -> Result<Vec<api::Line>, Failure> {
    let mut lines: Vec<api::Line> = client.get(&paths::of_device(name, what.path())).await?;
    lines.retain(|line| target.is_none_or(|target| target == line.target));
    Ok(lines)
}

/// The same of one in a list of devices: none when the device is missing, or has no line of the
/// target type that is given.
pub(crate) async fn lines_in_list(
    client: &Client,
    name: &str,
    what: Lines,
    target: Option<&str>,
) -> Result<Option<Vec<api::Line>>, Failure> {
    let lines = unless_missing(name, lines(client, name, what, target).await)?;
    Ok(lines.filter(|lines| !lines.is_empty() || target.is_none()))
}

/// The devices that have a line of this target type.
pub(crate) async fn devices_with(
    client: &Client,
    target: &str,
) -> Result<Vec<api::Device>, Failure> {
    let mut found = Vec::new();
    for device in devices(client).await? {
        let lines = lines_in_list(client, &device.name, Lines::LiveTable, Some(target));
        if lines.await?.is_some() {
            found.push(device);
        }
    }
    Ok(found)
}

/// What the device is built on.
pub(crate) async fn deps(client: &Client, name: &str) -> Result<Vec<api::Dependency>, Failure> {
    client.get(&paths::of_device(name, "deps")).await
}

/// The same of each in a list of devices: nothing for one that is missing.
pub(crate) async fn deps_of_all(
    client: &Client,
    devices: &[api::Device],
) -> Result<Vec<Vec<api::Dependency>>, Failure> {
    let mut all = Vec::new();
    for device in devices {
        let deps = unless_missing(&device.name, deps(client, &device.name).await)?;
        all.push(deps.unwrap_or_default());
    }
    Ok(all)
}

/// Waits until the device's event number differs from `seen`; returns the new one.
pub(crate) async fn wait(client: &Client, name: &str, seen: u64) -> Result<api::Event, Failure> {
    client.get(&paths::of_device(name, &format!("wait?event={seen}"))).await
}

pub(crate) async fn create(client: &Client, new: &api::Create) -> Result<(), Failure> {
    let changed: api::Changed = client.post(paths::DEVICES, new).await?;
    warn(&changed.warnings);
    Ok(())
}

/// `load`, `clear`, `suspend`, `resume` or `rename`, which the last part of the path names.
pub(crate) async fn change(
    client: &Client,
    name: &str,
    verb: &str,
    body: &impl Serialize,
) -> Result<(), Failure> {
    let changed: api::Changed = client.post(&paths::of_device(name, verb), body).await?;
    warn(&changed.warnings);
    Ok(())
}

/// How a device is removed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Removal<'a> {
    IfUnused,
    /// When the last client closes it.
    Deferred,
    /// After its cache was written back.
    Drained,
    /// With the token of a refusal, if there is one.
    Forced(Option<&'a str>),
}

impl<'a> Removal<'a> {
    /// By the value of `--force`, which may be empty, and by `--deferred`.
    pub(crate) fn of(force: Option<&'a str>, deferred: bool) -> Removal<'a> {
        match (force, deferred) {
            (Some(token), _) => Removal::Forced(Some(token).filter(|token| !token.is_empty())),
            (None, true) => Removal::Deferred,
            (None, false) => Removal::IfUnused,
        }
    }

    fn query(self) -> String {
        match self {
            Removal::IfUnused => String::new(),
            Removal::Deferred => "?deferred=true".to_owned(),
            Removal::Drained => "?drain=true".to_owned(),
            Removal::Forced(None) => "?force=true".to_owned(),
            Removal::Forced(Some(token)) => format!("?force={}", paths::encode(token)),
        }
    }
}

/// Removes a device. While it is drained, the progress is shown.
pub(crate) async fn remove(
    client: &Client,
    name: &str,
    removal: Removal<'_>,
) -> Result<(), Failure> {
    let path = format!("{}{}", paths::device(name), removal.query());
    let answer = client.delete::<api::Removed>(&path);
    let removed = match removal {
        Removal::Drained => show_while(client, LongOp::Flush, name, answer).await?,
        Removal::IfUnused | Removal::Deferred | Removal::Forced(_) => answer.await?,
    };
    warn(&removed.warnings);
    Ok(())
}

/// Removes what nothing uses until a round removes nothing; then the rest is busy.
pub(crate) async fn remove_all(client: &Client, removal: Removal<'_>) -> Result<(), Failure> {
    loop {
        let (mut removed, mut last) = (false, Ok(()));
        // A device was made after those that it is built on.
        for device in devices(client).await?.iter().rev() {
            match remove(client, &device.name, removal).await {
                Ok(()) => removed = true,
                Err(f) if f.kind() == Some(ErrorKind::NotFound) => {}
                Err(f) => last = Err(f.within(format!("remove {}", device.name))),
            }
        }
        if last.is_ok() || !removed {
            return last;
        }
    }
}

/// Sends a message; returns the reply. Shows the progress of one that takes long.
pub(crate) async fn message(
    client: &Client,
    name: &str,
    sector: u64,
    words: Vec<String>,
) -> Result<String, Failure> {
    let path = paths::of_device(name, "message");
    let body = api::Message { sector, words };
    let answer = client.post::<_, api::Reply>(&path, &body);
    Ok(show_while(client, LongOp::Flush, name, answer).await?.reply)
}

/// Writes back and flushes a device. Shows the progress of one that takes long.
pub(crate) async fn flush(client: &Client, name: &str) -> Result<(), Failure> {
    let path = paths::of_device(name, "flush");
    let answer = client.post::<_, api::Empty>(&path, &api::Empty {});
    show_while(client, LongOp::Flush, name, answer).await.map(|api::Empty {}| ())
}

/// Reads the configuration file again. Prints warnings.
pub(crate) async fn reload(client: &Client) -> Result<api::Reloaded, Failure> {
    let report: api::Reloaded = client.post(paths::RELOAD, &api::Empty {}).await?;
    warn(&report.warnings);
    Ok(report)
}

/// Asks the daemon to end; it has not ended yet when this returns.
/// Asks the daemon to end. An older one answers before its end, though it is waited for.
pub(crate) async fn stop(client: &Client, waits: bool) -> Result<api::Stopping, Failure> {
    let path = if waits { paths::STOP_AND_WAIT } else { paths::STOP };
    client.post(path, &api::Empty {}).await
}

/// Prints the warnings of an answer on standard error.
pub(crate) fn warn(warnings: &[String]) {
    for warning in warnings {
        print_error(&format!("millpond: warning: {}", plain(warning)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_itself_counts_as_missing() {
        let failure = |kind, message: &str| Failure::new(kind, message);
        let missing = failure(ErrorKind::NotFound, "wc: no such device");
        assert_eq!(unless_missing::<()>("wc", Err(missing.clone())).unwrap(), None);
        assert_eq!(unless_missing("wc", Ok(7)).unwrap(), Some(7));
        assert!(unless_missing::<()>("w", Err(missing)).is_err());
        for other in [
            failure(ErrorKind::NoFile, "wc: line 1: linear: no such file"),
            failure(ErrorKind::NotFound, "wc: no attribute `x`"),
            failure(ErrorKind::Busy, "wc: no such device"),
        ] {
            assert!(!is_missing("wc", &other), "{other}");
        }
    }

    #[test]
    fn a_removal_is_the_query_of_the_api() {
        for (force, deferred, query) in [
            (None, false, ""),
            (None, true, "?deferred=true"),
            (Some(""), false, "?force=true"),
            (Some("1a2b3c4d"), true, "?force=1a2b3c4d"),
        ] {
            assert_eq!(Removal::of(force, deferred).query(), query);
        }
        assert_eq!(Removal::Drained.query(), "?drain=true");
    }
}
