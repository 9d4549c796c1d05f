// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Offline: parts that the verbs on images share. They use no daemon: each has a core of its own on
//! this thread.
//!
//! Invariants
//! - CL-O1 A device is opened exclusively, even for reading: in the middle of another process's
//!   writes its content is not consistent.
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use block::{BlockDevice, CoreId, Error, ErrorKind, Nanos, Sector};
use control::{Failure, api};
use host::{PMEM, RunDir, print_error};
use queue::FileLeaf;
use reactor::{Reactor, set_memory, set_shared_memory};
use uring::{Direct, Files, LockOwner, MemoryFiles, OpenOptions, Opened, Uring};
use writecache::{Contents, ProbeReport};

use crate::client::{Client, runtime};
use crate::requests;

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Longest wait of a tool for its files to be closed before it ends.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// How long a tool waits for the last requests of a process that has ended, as a daemon that starts
/// does: the kernel keeps the lock of a file for them.
const LAST_REQUESTS_TIME: Duration = Duration::from_secs(60);
/// After so long it says what it waits for.
const SAY_AFTER: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a daemon may take to name the device that uses an image.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// How long a request to an object store is repeated. Chosen: a name that does not resolve shows
/// at once, and a store that is being started is waited for.
const STORE_TIME: Nanos = Nanos::from_secs(30);

/// What a tool opens a volume on an object store with.
pub(crate) fn volume_options() -> objvol::OpenOptions {
    let environment = host::volume_environment();
    objvol::OpenOptions {
        patience: Some(STORE_TIME),
        map_memory: u64::MAX, // of whoever wrote it
        ..objvol::OpenOptions::new(&environment.host, (environment.clock)())
    }
}

/// Runs a tool, and returns when its files are closed.
pub(crate) fn run<T>(tool: impl FnOnce() -> T) -> T {
    let done = tool();
    uring::wait_for_closes(CLOSE_TIME);
    done
}

/// A core on this thread and the files of its driver. It finds the journals of write caches in the
/// run directory of a daemon, and makes none.
pub(crate) fn core(run_dir: Option<&Path>) -> Result<(Reactor, Files), Failure> {
    let uring = Uring::new()?;
    let files = uring.files();
    let reactor = Reactor::enter(CoreId(0), Box::new(uring));
    host::set_memory_budget_for_tools();
    reactor.on(|| set_memory(host::memory_budget()));
    let run_dir = RunDir::choose(run_dir)?;
    if run_dir.path().is_dir() {
        let store = MemoryFiles::existing(files.clone(), run_dir.path())?;
        reactor.on(|| set_shared_memory(Rc::new(store)));
    }
    Ok((reactor, files))
}

/// Opens a file or block device; a DAX device as memory. The page cache is no harm here, and takes
/// every alignment.
pub(crate) fn open(
    files: &Files,
    path: &Path,
    access: Access,
) -> Result<Rc<dyn BlockDevice>, Failure> {
    let is_dax = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device());
    let options = OpenOptions {
        read_only: access == Access::Read,
        direct: Direct::Never,
        mapped: is_dax,
        ..OpenOptions::default()
    };
    let opened = open_path(files, path, options)?;
    let leaf = FileLeaf::new(path.to_string_lossy(), opened.file, opened.limits);
    Ok(Rc::new(leaf.with_identity(opened.persistent_identity)))
}

/// Opens a path. The last requests of a process that has ended are waited for.
#[expect(clippy::disallowed_methods, reason = "the thread of a tool waits for nothing else")]
fn open_path(files: &Files, path: &Path, options: OpenOptions) -> Result<Opened, Error> {
    let (begun, mut is_said, mut is_last) = (Instant::now(), false, false);
    loop {
        let refusal = match files.open_path(path, options) {
            Err(e) if e.kind() == ErrorKind::Busy && !is_last => e,
            opened => return opened,
        };
        match LockOwner::of(path) {
            LockOwner::Running => return Err(refusal),
            // Its last requests may have ended just now.
            LockOwner::Unknown => is_last = true,
            LockOwner::Ended => is_last = begun.elapsed() >= LAST_REQUESTS_TIME,
        }
        if begun.elapsed() >= SAY_AFTER && !std::mem::replace(&mut is_said, true) {
            let seconds = LAST_REQUESTS_TIME.as_secs();
            print_error(&format!("millpond: {refusal}: waiting for them, {seconds} s at most"));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Adds to a refusal which device uses the image, if the daemon of `run_dir` has it and answers.
pub(crate) fn name_user(mut failure: Failure, images: &[&Path], run_dir: Option<&Path>) -> Failure {
    let is_in_use = |image: &&&Path| {
        failure.message.starts_with(&format!("{}: is in use, by process", image.display()))
    };
    if let Some(image) = images.iter().find(is_in_use)
        && let Some(user) = user_of(image, run_dir)
    {
        failure.message.push_str(&format!(", for its device {user}"));
    }
    failure
}

fn user_of(image: &Path, run_dir: Option<&Path>) -> Option<String> {
    let client = Client::new(&RunDir::choose(run_dir).ok()?);
    // The daemon's other files are not examined: one may be on a file system that hangs.
    let names: Vec<String> = [std::path::absolute(image), image.canonicalize()]
        .into_iter()
        .filter_map(|path| Some(path.ok()?.to_string_lossy().into_owned()))
        .collect();
    let ask = async {
        let devices = requests::devices(&client).await.ok()?;
        for device in devices {
            let deps = requests::deps(&client, &device.name).await.unwrap_or_default();
            let is_it = |d: &api::Dependency| {
                let path = d.name.strip_prefix(PMEM).unwrap_or(&d.name);
                names.iter().any(|name| name == path)
            };
            if deps.iter().any(is_it) {
                return Some(device.name);
            }
        }
        None
    };
    let asked = async { tokio::time::timeout(ANSWER_TIME, ask).await.ok().flatten() };
    runtime().ok()?.block_on(asked)
}

/// The refusal of something that needs `--force`.
pub(crate) fn refusal(why: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Denied, why)
}

/// The kind of contents that a probe found.
pub(crate) fn kind(report: &ProbeReport) -> &'static str {
    match &report.contents {
        Contents::Blank => "blank",
        Contents::Unknown => "unknown",
        Contents::Ruined => "ruined",
        Contents::Replaced(_) => "replaced",
        Contents::Native(_) => "native",
        Contents::Gone(_) => "gone",
        Contents::Later(_) => "later",
        Contents::Dm(_) => "dm",
    }
}

/// Path and start of an area, for messages.
pub(crate) fn place(path: &Path, start: Sector) -> String {
    let path = path.display();
    if start == Sector::ZERO { path.to_string() } else { format!("{path} from sector {start}") }
}
