// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond upgrade`: another process of the program takes over from the daemon.
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::ErrorKind;
use clap::Args;
use control::{Failure, api, paths, plain};
use host::Listing;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::process::{Process, is_here};
use crate::requests;

/// How long the successor may take until it answers. It serves the devices before.
const ANSWER: Duration = Duration::from_secs(30);
/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Hand over to another process of the program, while clients stay connected
///
/// Starts the program that is installed now (or that of --binary) with the arguments of the daemon.
/// That process opens the devices and goes on with the clients; the daemon exits. NBD clients and
/// front ends of virtual machines (vhost-user) keep their connections and notice a pause. Clients
/// of block devices of the kernel (ublk) wait until the new process has taken these over, as after
/// `kill -9`. When anything fails before the last step the daemon goes on as before, and says why.
///
/// What can't cross is named, and refused unless its name is given to --force: clients by TLS
/// (their connections end after their replies), compressed RAM disks with pages in memory,
/// `mem:SIZE`, and files below --fuse. Blocks of a write cache that are in memory alone need the
/// token that is named. A device that another daemon has taken over keeps all from crossing: the
/// successor would take it back. The options of the configuration file are those at its
/// present state; its devices are those that the daemon has: `millpond reload` creates new ones.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 the successor serves, 1 failed and the daemon goes on, 2 usage, 4 something does not
cross or is under way.

Examples:
  millpond upgrade --dry-run
  millpond upgrade
  millpond upgrade --if-changed
  millpond upgrade --binary /usr/local/bin/millpond --timeout 10s
  millpond upgrade --force scratch")]
pub struct UpgradeArgs {
    /// The program of the successor, by default the file that the daemon was started from. It runs
    /// as the daemon's user; only root may name another one
    #[arg(long, value_name = "PATH")]
    pub(crate) binary: Option<PathBuf>,
    /// How long each step may take, 100ms to 10m: that the program starts, that requests in flight
    /// end, that the devices are opened. By default 30s
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Leave this behind, a device or client that --dry-run lists, or what its token stands for;
    /// may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) force: Vec<String>,
    /// Report what would cross and what would not, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do nothing when the program is byte for byte the one that runs, as `systemctl reload` asks
    /// for
    #[arg(long)]
    pub(crate) if_changed: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

fn absolute(path: &Path) -> Result<String, Failure> {
    let path = std::path::absolute(path)
        .map_err(|e| Failure::new(ErrorKind::Invalid, format!("--binary: {e}")))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::new(ErrorKind::Invalid, "--binary: its path is no UTF-8"))
}

/// What the daemon answers. With a successor it returns when that one answers, too.
pub(crate) async fn upgrade(client: &Client, a: &UpgradeArgs) -> Result<api::Upgraded, Failure> {
    let binary = a.binary.as_deref().map(absolute).transpose()?;
    if binary.is_some() && !rustix::process::geteuid().is_root() {
        return Err(Failure::new(ErrorKind::Denied, "--binary: only root may name a program"));
    }
    let (timeout, force) = (a.timeout.clone(), a.force.clone());
    let (dry_run, if_changed) = (a.dry_run, a.if_changed);
    let namespace = requests::version(client).await?.pid_namespace;
    let request = api::Upgrade { binary, timeout, force, dry_run, if_changed };
    let upgraded: api::Upgraded = client.post(paths::UPGRADE, &request).await?;
    let Some(successor) = &upgraded.successor else { return Ok(upgraded) };
    let pid = successor.pid;
    let ended = || {
        let text = format!(
            "the successor (pid {pid}) has taken over and has ended since: its log says why. The \
             next daemon finds what it left, as after `kill -9`"
        );
        Failure::new(ErrorKind::Io, text)
    };
    // In a container only its answers tell of it: the daemon before it may take a connection, and
    // ends.
    let process = match is_here(namespace.as_deref()) {
        true => Some(Process::open(client, pid, None).await.map_err(|_| ended())?),
        false => None,
    };
    let give_up = Instant::now() + ANSWER;
    while !requests::version(client).await.is_ok_and(|v| v.pid == pid) {
        if process.as_ref().is_some_and(Process::has_ended) {
            return Err(ended());
        }
        if Instant::now() > give_up {
            let text = format!(
                "the successor (pid {pid}) has taken over and does not answer yet: its log says \
                 what it waits for"
            );
            return Err(Failure::new(ErrorKind::Busy, text));
        }
        sleep(ASK_EVERY).await;
    }
    Ok(upgraded)
}

/// The answer as text. `if_changed`: there was to be a successor only with another program.
pub(crate) fn text(upgraded: &api::Upgraded, if_changed: bool) -> String {
    let api::Upgraded {
        pid,
        version,
        successor,
        program_differs,
        devices,
        sessions,
        listeners,
        problems,
    } = upgraded;
    if if_changed && !program_differs {
        return format!("pid {pid} ({version}) runs the program that is installed\n");
    }
    let program = if *program_differs { "another program" } else { "the program that it runs" };
    let mut out = match successor {
        Some(new) => format!(
            "pid {pid} ({version}) has handed over to pid {} ({}): requests waited for {} ms\n",
            new.pid, new.version, new.pause_ms
        ),
        None => format!("pid {pid} ({version}) would hand over to {program}\n"),
    };
    out += &format!("crosses: devices {devices}, connections {sessions}, listeners {listeners}\n");
    for api::UpgradeProblem { name, why, can_be_forced, token } in problems {
        let hint = match (can_be_forced, token) {
            (false, _) => " (can't be forced)".to_owned(),
            (true, None) => String::new(),
            (true, Some(token)) => format!(" (`--force={token}` accepts that)"),
        };
        out += &plain(&format!("does not cross: {name}: {why}{hint}"));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_what_does_not_cross() {
        let report = api::Upgraded {
            pid: 7,
            version: "1.0".into(),
            successor: None,
            program_differs: true,
            devices: 3,
            sessions: 2,
            listeners: 1,
            problems: vec![api::UpgradeProblem {
                name: "scratch".into(),
                why: "mem:1M is in the memory of this process".into(),
                can_be_forced: true,
                token: None,
            }],
        };
        assert_eq!(
            text(&report, true),
            "pid 7 (1.0) would hand over to another program\n\
             crosses: devices 3, connections 2, listeners 1\n\
             does not cross: scratch: mem:1M is in the memory of this process\n"
        );
        let same = api::Upgraded { program_differs: false, ..report.clone() };
        assert_eq!(text(&same, true), "pid 7 (1.0) runs the program that is installed\n");
        let successor = api::Successor { pid: 8, version: "1.1".into(), pause_ms: 12 };
        let done = api::Upgraded { successor: Some(successor), problems: Vec::new(), ..report };
        assert!(
            text(&done, false)
                .starts_with("pid 7 (1.0) has handed over to pid 8 (1.1): requests waited")
        );
    }
}
