// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An export: a mount, the threads that serve it, and its shutdown.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use block::Error;
use fuser::{BackgroundSession, Config, Session, SessionACL};

use crate::budget::Budget;
use crate::fs::{Fs, Shared};
use crate::host::Host;
use crate::mount::{self, Mounted, UnmountMode};

/// Bounds of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Longest read or write, bytes. Kernels allow 1 MiB (`fs.fuse.max_pages_limit`) and split
    /// longer requests.
    pub request_bytes_max: u32,
    /// Requests in flight; at this number no more are taken from the kernel.
    pub requests_max: usize,
    /// Data of all requests in flight, bytes.
    pub bytes_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { threads: 4, request_bytes_max: 1 << 20, requests_max: 1024, bytes_max: 256 << 20 }
    }
}

/// The result of stopping an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Devices that were still open: their users get errors from now on.
    pub open_files: usize,
    /// Requests that did not end in time; they are never answered.
    pub requests: usize,
    /// Whether it was unmounted while in use.
    pub lazily: bool,
}

/// A mounted tree of devices. A drop unmounts it at once; [`Export::stop`] waits for requests.
pub struct Export {
    dir: PathBuf,
    /// None before it is served and after it was stopped.
    session: Option<BackgroundSession>,
    /// None after it was stopped.
    mounted: Option<Mounted>,
    cleared: usize,
    shared: Arc<Shared>,
}

impl Export {
    /// Mounts at `dir` and serves. Only the caller's user may use it.
    pub fn start(dir: &Path, host: Arc<dyn Host>, options: Options) -> Result<Export, Error> {
        let (dir, cleared) = mount::prepare(dir)?;
        let shared = Arc::new(Shared {
            budget: Budget::new(options.requests_max, options.bytes_max),
            open_files: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let fs = Fs::new(host, shared.clone(), options.request_bytes_max);
        let mut config = Config::default();
        config.n_threads = Some(options.threads);
        config.acl = SessionACL::Owner;
        config.clone_fd = true; // each thread has a queue of its own
        let (device, mounted) = mount::mount(&dir)?;
        // From here on dropping it unmounts.
        let mounted = Some(mounted);
        let mut export = Export { dir, session: None, mounted, cleared, shared };
        let served = Session::from_fd(fs, device, config.acl, config).and_then(Session::spawn);
        let failed = |e| mount::refused(&e, format!("--fuse {}", export.dir.display()));
        export.session = Some(served.map_err(failed)?);
        Ok(export)
    }

    /// Where it is mounted: absolute, without links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removed mounts of killed daemons.
    pub fn cleared(&self) -> usize {
        self.cleared
    }

    /// Refuses new requests, waits for those in flight (at most for `patience`), and unmounts.
    /// Blocks; the threads that serve devices have to run meanwhile.
    pub fn stop(mut self, patience: Duration) -> Stopped {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.budget.close();
        let requests = self.shared.budget.drained(patience);
        let open_files = self.shared.open_files.load(Ordering::Acquire);
        let mut stopped = Stopped { open_files, requests, lazily: false };
        let session = self.session.take().expect("an export that has started has one");
        let mounted = self.mounted.take().expect("set as long as there is a session");
        if session.guard.is_finished() {
            return stopped; // it was unmounted from outside
        }
        stopped.lazily = mounted.unmount(UnmountMode::IfUnused).is_err();
        if stopped.lazily {
            // As long as a file is open the threads go on, until the process ends. It fails when
            // It was unmounted from outside, or another mount covers it: that stays.
            let _ = mounted.unmount(UnmountMode::Lazily);
        } else {
            let _ = session.join(); // nothing is mounted any more: nothing can be done about it
        }
        stopped
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // When the threads have ended, it was unmounted from outside.
        let ended = self.session.as_ref().is_some_and(|s| s.guard.is_finished());
        if let Some(mounted) = self.mounted.take().filter(|_| !ended) {
            let _ = mounted.unmount(UnmountMode::Lazily);
        }
    }
}

block::debug_as!(Export, s => "Export({})", s.dir.display());
