// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond ublk`: block devices of millpond in the kernel, and their end when their daemon is
//! gone for good. It asks the kernel, not a daemon.
use std::path::Path;

use block::{Error, ErrorKind};
use clap::Args;
use control::Failure;
use host::{Disks, Format, Listing, RunDir, print};
use serde::Serialize;
use ublk::{Control, Features, Identity, KernelDevice, State, disk_path};

use crate::columns;

/// List the block devices of millpond in the kernel, or give one up
///
/// These are /dev/ublkbN, also those of other daemons. While a daemon is gone, the clients of one
/// that waits get no errors: their requests wait until a daemon of the same run directory has a
/// device of this name again. When none will come, give it up.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond ublk
  millpond ublk -o json
  millpond ublk --give-up wc
  millpond ublk --give-up 3

Exit codes: 0 done; 1 failed; 2 usage; 3 there is no such block device; 4 a daemon serves it.")]
pub struct UblkArgs {
    /// Take a block device whose daemon is gone out of the kernel: N of /dev/ublkbN, or the name
    /// that it has below RUN_DIR/dev. Requests that wait fail, and what clients have not flushed is
    /// lost to them; the daemon's disks keep what they have
    #[arg(long, value_name = "NAME|N")]
    give_up: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

/// A block device, as it is printed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    path: String,
    /// The name of its device, of the daemons of this run directory.
    device: Option<String>,
    state: &'static str,
    /// The process that serves it.
    pid: Option<i32>,
    /// Its queues: how many cores can serve it at a time.
    queues: u16,
    /// Whether clients wait when its daemon ends.
    recovers: bool,
}

fn word(state: State) -> &'static str {
    match state {
        State::Dead => "stopped",
        State::Live => "live",
        State::Quiesced => "waits",
        State::Failing => "fails",
    }
}

/// Whether a process of this number is there.
fn is_alive(pid: i32) -> bool {
    pid > 0 && Path::new("/proc").join(pid.to_string()).exists()
}

impl Row {
    fn new(device: &KernelDevice, disks: &Disks) -> Row {
        Row {
            path: disk_path(device.number).display().to_string(),
            device: disks.name_of(device.number),
            state: word(device.state),
            pid: Some(device.pid).filter(|pid| device.state == State::Live && is_alive(*pid)),
            queues: device.queues,
            recovers: device.features.contains(Features::USER_RECOVERY),
        }
    }
}

fn table(rows: &[Row]) -> String {
    let head = ["PATH", "DEVICE", "STATE", "PID", "QUEUES", "RECOVERS"];
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let cells = |row: &Row| {
        let recovers = if row.recovers { "yes" } else { "no" };
        [
            row.path.clone(),
            or_dash(row.device.clone()),
            row.state.to_owned(),
            or_dash(row.pid.map(|pid| pid.to_string())),
            row.queues.to_string(),
            recovers.to_owned(),
        ]
    };
    columns::table(head, rows.iter().map(cells), "No block devices\n")
}

/// Runs the verb.
pub(crate) fn run(args: &UblkArgs, run_dir: Option<&Path>) -> Result<(), Failure> {
    let run_dir = RunDir::choose(run_dir)?;
    let disks = Disks::of(&run_dir);
    let mut control = Control::open()?;
    if let Some(wanted) = &args.give_up {
        return give_up(&mut control, wanted, &disks);
    }
    let rows: Vec<Row> = control.devices().iter().map(|d| Row::new(d, &disks)).collect();
    match args.listing.format {
        Format::Text => print(&table(&rows)),
        Format::Json => {
            let json = serde_json::to_string(&rows);
            let json = json.map_err(|e| Failure::new(ErrorKind::Io, e.to_string()))?;
            print(&format!("{json}\n"))
        }
    }
}

fn give_up(control: &mut Control, wanted: &str, disks: &Disks) -> Result<(), Failure> {
    let all = control.devices();
    let identity = Identity::new(disks.run_dir(), wanted);
    let number = wanted.parse().ok().or_else(|| disks.number_of(wanted));
    let is_it = |device: &&KernelDevice| match number {
        Some(number) => device.number == number,
        None => device.identity == Some(identity),
    };
    let found: Vec<&KernelDevice> = all.iter().filter(is_it).collect();
    let [device] = found.as_slice() else {
        let many = "several block devices had this name: give the number";
        let none =
            "no block device of millpond has this number or name: `millpond ublk` lists them";
        let (kind, why) =
            if found.is_empty() { (ErrorKind::NotFound, none) } else { (ErrorKind::Busy, many) };
        return Err(Failure::new(kind, format!("{wanted}: {why}")));
    };
    let path = disk_path(device.number);
    let path = path.display();
    // Its server has this open; the number of a process may be one of another container.
    if device.state == State::Live
        && let Err(e) = control.open_char(device.number)
    {
        let why = format!("process {} serves it: `millpond remove` takes it away", device.pid);
        let refusal = Error::new(ErrorKind::Busy, format!("{path}: {why}"));
        return Err(refusal.because(e).into());
    }
    disks.forget(control, device.number)?;
    print(&format!("{path}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_device_is_a_row() {
        let row = |number: u32, device: Option<&str>, pid| Row {
            path: format!("/dev/ublkb{number}"),
            device: device.map(str::to_owned),
            state: if pid == Some(7) { "live" } else { "waits" },
            pid,
            queues: 2,
            recovers: device.is_some(),
        };
        let want = "\
PATH         DEVICE  STATE  PID  QUEUES  RECOVERS
/dev/ublkb0  wc      live   7    2       yes
/dev/ublkb1  -       waits  -    2       no
";
        assert_eq!(table(&[row(0, Some("wc"), Some(7)), row(1, None, None)]), want);
        assert_eq!(table(&[]), "No block devices\n");
        assert!(is_alive(i32::try_from(std::process::id()).unwrap()) && !is_alive(-1));
    }
}
