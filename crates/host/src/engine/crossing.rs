// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices of a daemon on their way to a successor: what can't cross, and how devices are held
//! and let go.
//!
//! ```text
//!   serving ── hold ──▶ held: no request is under way ── commit ──▶ the successor has them
//!      ▲                  │
//!      └── let go ────────┘ opened anew, if the successor may have opened them
//! ```
//!
//! Invariant
//! - HO-UP6 A device that can't go on after a hand-over that failed, as its disk fails just then,
//!   is tried again until it does: nobody else knows that it has to be resumed.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use block::{BlockDevice, Class, Error, ErrorKind, Nanos, Status};
use control::{Failure, api};
use dm::{Dm, MappedDevice};
use queue::Leaf;
use reactor::{sleep, spawn};
use uring::Files;

use super::{DRAIN_POLL, Engine, ShutdownProgress};
use crate::config::DeviceConfig;
use crate::config::of_device;
use crate::leaf_word::PMEM;

/// What is wrong with a device that is not held in time.
const REQUESTS: &str = "its requests do not end";

/// How often a device is tried again that can't go on after a hand-over. Chosen: as soon as a
/// person notices that its disk is well again.
const GO_ON_RETRY: Nanos = Nanos::from_secs(1);

/// Devices that can't go on after a hand-over that failed, and why.
pub(crate) type StuckDevices = RefCell<BTreeMap<String, String>>;

/// A device on its way.
#[derive(Debug)]
pub(crate) struct CrossingDevice {
    pub(crate) saved: DeviceConfig,
    pub(crate) minor: u32,
    /// The token with which its table was loaded.
    pub(crate) force: Option<String>,
    /// Whether what its clients were told is still there.
    pub(crate) keeps_data: bool,
}

/// A leaf on its way: its name, and another descriptor of its file.
pub(crate) type CrossingLeaf = (String, OwnedFd);

impl Engine {
    /// The devices as a successor makes them, each after those that it stands on.
    pub(crate) async fn crossing_devices(&self) -> Result<Vec<CrossingDevice>, Failure> {
        let (saved, left_out) = self.saved_devices().await?;
        if let Some(first) = left_out.first() {
            let text = format!("{first}: this would not cross to a successor");
            return Err(Failure::new(ErrorKind::Busy, text));
        }
        // Data of some device end with this process: of which ones above it does not matter.
        let loses_data = !self.upgrade_problems().await?.is_empty();
        let mut all = Vec::new();
        for saved in saved {
            let Ok(device) = self.dm.get(&saved.name) else { continue };
            let keeps_data = !loses_data || self.survives_kill(&device).await;
            let (minor, force) = (device.minor(), device.forced_by());
            all.push(CrossingDevice { saved, minor, force, keeps_data });
        }
        Ok(all)
    }

    /// The files and block devices below all tables, with their locks and claims.
    ///
    /// # Errors
    /// When the path of one leads elsewhere by now: a successor would open another file.
    pub(crate) async fn crossing_leaves(&self) -> Result<Vec<CrossingLeaf>, Failure> {
        let mut all = Vec::new();
        for leaf in self.leaves.opened() {
            let Some(file) = leaf.file() else { continue };
            let name = leaf.name().to_owned();
            let copy = self.files.copy_of_file(file).ok_or_else(|| {
                Error::new(ErrorKind::Limit, format!("{name}: no descriptor is free"))
            })?;
            let path = name.strip_prefix(PMEM).unwrap_or(&name).to_owned();
            let look = move || {
                let is_there = Files::is_at(&copy, Path::new(&path));
                Ok((copy, is_there))
            };
            let (copy, is_there) = self.leaves.on_helper(&name, look).await?;
            if !is_there {
                let text = format!(
                    "{name}: its path leads to another file than the one that is open: a successor \
                     would open that one"
                );
                return Err(Failure::new(ErrorKind::Busy, text));
            }
            all.push((name, copy));
        }
        Ok(all)
    }

    /// Opens a device of the daemon before, which has handed it over: without a block device of the
    /// kernel.
    pub(crate) async fn create_inherited(&self, device: handover::Device) -> Result<(), Failure> {
        let handover::Device { name, uuid, minor, table, force, attributes, .. } = device;
        let (of_new, zram) = (name.clone(), table.is_none());
        let minor = Some(minor);
        let new = api::Create { name: of_new, uuid, minor, table, force, zram, ublk: false };
        // They lived beside each other in the daemon before.
        self.dm.accept_overlaps(true);
        let made = self.make(&new, &|| true).await;
        self.dm.accept_overlaps(false);
        made.map_err(|failure| of_device(&name, failure))?;
        self.leaves.take_warnings(); // the daemon before has given them
        for (attribute, value) in &attributes {
            let changed = self.change_attribute(&name, attribute, value).await;
            changed.map_err(|failure| of_device(&name, failure))?;
        }
        Ok(())
    }

    /// Writes back what only page caches hold: they are in the memory of this process.
    ///
    /// # Errors
    /// What failed, or did not end within `time`.
    pub(crate) async fn flush_page_caches(&self, time: Nanos) -> Result<(), Failure> {
        let flushing = Rc::new(ShutdownProgress::default());
        for info in self.dm.list() {
            let is_one = |line: &dm::TargetLine| line.kind == pagecache::MANUAL.name;
            if !self.dm.table(&info.name)?.iter().any(is_one) {
                continue;
            }
            let (dm, name, flushing) = (self.dm.clone(), info.name, flushing.clone());
            flushing.begin(&name);
            spawn(async move {
                let flushed = dm.flush(&name).await;
                flushing.end(&name, flushed.map_err(Failure::from));
            });
        }
        all_ended(&flushing, "its page cache is not written back", time).await
    }

    /// Pauses what devices do in the background, so that they are suspended soon. It waits at most
    /// `time` for what is under way.
    pub(crate) async fn pause_background(&self, time: Nanos) {
        let pausing = Rc::new(ShutdownProgress::default());
        for info in self.dm.list() {
            let (dm, name, pausing) = (self.dm.clone(), info.name, pausing.clone());
            pausing.begin(&name);
            spawn(async move {
                // An error: it was removed meanwhile.
                let _ = dm.pause_background(&name, true).await;
                pausing.end(&name, Ok(()));
            });
        }
        pausing.ended_within(time).await;
    }

    /// Lets it go on.
    pub(crate) async fn resume_background(&self) {
        for info in self.dm.list() {
            let _ = self.dm.pause_background(&info.name, false).await;
        }
    }

    /// Suspends all devices, from the top of each stack to its bottom (HO-E2): then nothing of them
    /// is under way, and their media have everything that another process needs to open them.
    ///
    /// # Errors
    /// What failed, or did not end in time. Devices may be suspended then: [`Engine::let_go`].
    pub(crate) async fn hold(&self, time: Nanos) -> Result<(), Failure> {
        let settling = Rc::new(ShutdownProgress::default());
        self.settle(&settling, false);
        all_ended(&settling, REQUESTS, time).await?;
        self.give_up_connections(time).await
    }

    /// Ends our connections to servers below: some take one at a time, and a successor makes its
    /// own.
    async fn give_up_connections(&self, time: Nanos) -> Result<(), Failure> {
        let leaving = Rc::new(ShutdownProgress::default());
        let connected = self.leaves.opened().into_iter().filter(|leaf| leaf.has_connection());
        for leaf in connected {
            let leaving = leaving.clone();
            leaving.begin(leaf.name());
            spawn(async move {
                let left = give_up_connection(&*leaf, &leaving.is_cancelled).await;
                leaving.end(leaf.name(), left);
            });
        }
        all_ended(&leaving, REQUESTS, time).await
    }

    /// Lets all devices go on, from the bottom of each stack to its top. `anew`: another process
    /// may have opened them meanwhile, so their media are read again. Returns what fails: such a
    /// device is tried again until it goes on (HO-UP6).
    pub(crate) async fn let_go(&self, devices: &[CrossingDevice], anew: bool) -> Vec<Failure> {
        let mut failures = Vec::new();
        self.leaves.opened().iter().for_each(|leaf| leaf.connect_again());
        for CrossingDevice { saved, .. } in devices {
            let (dm, name) = (self.dm.clone(), saved.name.clone());
            let Some(table) = saved.table.clone() else { continue };
            // While its requests hang the others do not wait for it.
            if !dm.get(&name).is_ok_and(|device| device.is_changing()) {
                let went_on = go_on(&dm, &name, &table, anew).await;
                let Err(e) = went_on else { continue };
                tracing::error!(device = name, "it stays suspended, and is tried again: {e}");
                self.stuck.borrow_mut().insert(name.clone(), e.chain());
                failures.push(Failure::from(e));
            }
            spawn(go_on_later(dm, self.stuck.clone(), (name, table), anew));
        }
        failures
    }

    /// What an operator should look at. `refusing` are the leaves that have become read-only.
    pub(crate) fn problems_of(
        &self,
        device: &Rc<MappedDevice>,
        refusing: &[Rc<dyn Leaf>],
    ) -> Vec<String> {
        let stuck = self.stuck.borrow().get(device.name()).map(|why| {
            format!(
                "it is suspended since an upgrade failed, and is tried again each second: {why}"
            )
        });
        // Nearly always there are none, and then no stack is looked through.
        let leaves = if refusing.is_empty() { Vec::new() } else { device.leaves_below() };
        let read_only = refusing
            .iter()
            .filter(|refusing| leaves.iter().any(|leaf| block::same_device(leaf, *refusing)))
            .map(|leaf| format!("{} has become read-only, and refuses writes", leaf.name()));
        let engines = self.claims.of(device);
        let of_engines = engines.iter().flat_map(|engine| engine.problems());
        stuck.into_iter().chain(read_only).chain(of_engines).collect()
    }
}

/// Lets a device go on as soon as it can. Ends also when a verb has resumed or removed it, or has
/// loaded another table.
async fn go_on_later(
    dm: Rc<Dm>,
    stuck: Rc<StuckDevices>,
    (name, table): (String, String),
    anew: bool,
) {
    while let Ok(device) = dm.get(&name) {
        if device.is_changing() {
            sleep(DRAIN_POLL).await;
            continue;
        }
        let info = device.info();
        if !info.suspended || (info.inactive_table && device.inactive_table() != device.table()) {
            break;
        }
        match go_on(&dm, &name, &table, anew).await {
            Ok(()) => {
                tracing::info!(device = name, "it goes on now");
                break;
            }
            Err(e) => drop(stuck.borrow_mut().insert(name.clone(), e.chain())),
        }
        sleep(GO_ON_RETRY).await;
    }
    stuck.borrow_mut().remove(&name);
}

/// Waits until all has ended, at most for `time`; after that nothing begins. `what` of a device is
/// waited for.
async fn all_ended(progress: &ShutdownProgress, what: &str, time: Nanos) -> Result<(), Failure> {
    progress.ended_within(time).await;
    progress.is_cancelled.set(true);
    if let Some(failure) = progress.failures.take().into_iter().next() {
        return Err(failure);
    }
    match progress.left.borrow().iter().next() {
        None => Ok(()),
        Some(name) => {
            let text = format!("{name}: {what} in time");
            Err(Failure::new(ErrorKind::Busy, text))
        }
    }
}

/// Ends the connection to one server, unless it `is_late`.
async fn give_up_connection(leaf: &dyn Leaf, is_late: &Cell<bool>) -> Result<(), Failure> {
    if let Some(problem) = leaf.problem() {
        // A successor could not open it, either.
        return Err(Failure::new(ErrorKind::Busy, format!("{}: {problem}", leaf.name())));
    }
    // A server may lose with a connection what was not flushed.
    let flushed = reactor::flush(leaf, Class::Foreground).await;
    if let Err(status) = flushed
        && status != Status::NotSupported
    {
        let text = format!("{}: flush before the hand-over: {status}", leaf.name());
        return Err(Failure::new(ErrorKind::Io, text));
    }
    if !is_late.get() {
        leaf.disconnect().await;
    }
    Ok(())
}

/// Resumes a device. `anew`: what another process may have written to its media is read again.
pub(crate) async fn go_on(dm: &Rc<Dm>, name: &str, table: &str, anew: bool) -> Result<(), Error> {
    let is_on_media = |line: &dm::TargetLine| line.kind == writecache::MANUAL.name;
    if anew && dm.table(name)?.iter().any(is_on_media) {
        // What was permitted when it was loaded is so still.
        let force = dm.get(name)?.forced_by();
        dm.load_forced(name, table, force.as_deref(), &|| true).await?;
    }
    dm.resume(name).await
}
