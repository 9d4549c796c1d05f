// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine of core 0: the device mapper, the leaves, the NBD server; and the verbs on them.
//!
//! Invariants
//! - HO-E1 It is used on the thread of core 0 only, by closures that
//!   [`crate::core_thread::CoreHandle`] sends.
//! - HO-E2 Shutting down settles devices from the top of each stack to its bottom, after the last
//!   client request has ended, so that what a device writes while it settles is settled below it.
mod attributes;
mod crossing;
mod disks;
mod flush_worth;
mod listen;
mod obstacles;
mod recache;
mod removal;
mod report;
mod resize;
mod save;
mod session_crossing;
mod writeback;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use block::{Class, CoreId, Error, ErrorKind, Nanos, Sector};
use control::{Failure, api};
use dm::{DeviceInfo, Dm, Remove};
use nbd::{Options, Server, TlsServer};
use queue::Leaf;
use reactor::{FileId, WaitList, flush, now, sleep, spawn};
use uring::{Files, RemoteEnd};

use crate::claims::Claims;
use crate::config::{DeviceConfig, of_device};
use crate::descriptors::Places;
use crate::exports::DmExports;
use crate::leaves::Leaves;
use crate::secondary::{CorePool, Owner};
use crate::sessions::SessionCores;
use crate::targets;
use crate::tls::ServerCertificates;
use crate::ublk_door::UblkDoor;
use crate::zram_factory::ZramFactory;
use crossing::StuckDevices;
use obstacles::leave_unsaved;
use removal::{unsaved_warnings, word_of};
use report::{device, line};

/// Most time for clients' requests to end at shutdown: nbd's own bound for slow readers, and a
/// little. At most a quarter of all time.
const DRAIN: Nanos = Nanos::from_secs(35);
/// The same when a device is suspended: requests that wait for it can't end.
const DRAIN_SUSPENDED: Nanos = Nanos::from_secs(1);
/// How often shutdown checks whether they have ended.
const DRAIN_POLL: Nanos = Nanos::from_millis(5);
/// The same for the end of a suspend: clients wait for it while a daemon hands over.
const END_POLL: Nanos = Nanos::from_micros(200);
/// How often `wait` reads the event number. A person or a script waits there.
const EVENT_POLL: Nanos = Nanos::from_millis(20);
/// Data of a door's clients in flight: no more than a quarter of what devices may take, but always
/// two of the largest requests. Chosen.
pub(crate) fn door_bytes_max(most: u64, memory: u64) -> u64 {
    most.min((memory / 4).max(64 << 20))
}

pub(crate) use crossing::CrossingDevice;
#[cfg(test)]
pub(crate) use crossing::go_on;
pub(crate) use listen::NbdListener;
pub(crate) use session_crossing::{CrossingClients, CrossingSession};
#[cfg(test)]
pub(crate) use session_crossing::{paused_session, session_of};

pub(crate) struct Engine {
    pub(crate) dm: Rc<Dm>,
    pub(crate) leaves: Leaves,
    pub(crate) server: Server,
    exports: Rc<DmExports>,
    /// Leases devices to the other cores.
    pub(crate) owner: Rc<Owner>,
    /// Which core serves which session.
    pub(crate) places: Rc<SessionCores>,
    /// The engines of all devices.
    pub(crate) claims: Rc<Claims>,
    /// Makes compressed RAM disks without a table.
    zram: ZramFactory,
    files: Files,
    /// Those that parts of devices, sessions and queues may run on, core 0 first.
    cores: Vec<CoreId>,
    /// TLS of the server, if it has any.
    tls: RefCell<Option<Rc<TlsServer>>>,
    /// Block devices of the kernel, where they can be made.
    disks: RefCell<Option<Rc<UblkDoor>>>,
    /// Devices that can't go on after a hand-over that failed.
    stuck: Rc<StuckDevices>,
    ended: Cell<bool>,
}

impl Engine {
    /// `cores` are those that parts of devices and their doors may run on, core 0 first.
    pub(crate) fn new(
        files: Files,
        default_export: Option<String>,
        pool: Arc<CorePool>,
        cores: &[CoreId],
    ) -> Engine {
        let leaves = Leaves::new(files.clone());
        reactor::spawn(leaves.clone().log_failures());
        let dm = Dm::new(Rc::new(leaves.clone()));
        dm.on_unsaved(|device, unsaved| {
            unsaved_warnings(unsaved).for_each(|warning| tracing::warn!(device, "{warning}"));
        });
        dm.on_kept(|device, e| {
            tracing::error!(device, "it is not removed now that it is closed: {}", e.chain());
        });
        let (zram, claims) = targets::register(&dm, &leaves, cores);
        let owner = Owner::new(pool, &dm, leaves.clone());
        let defaults = Options::default();
        let bytes_max = door_bytes_max(defaults.bytes_max, reactor::memory().limit());
        let Places { nbd: connections_max, nbd_local: local_connections, .. } =
            Places::of_process();
        let options = Options { bytes_max, connections_max, local_connections, ..defaults };
        let places = SessionCores::new(owner.clone(), &options, cores);
        let options = places.options();
        let of_nbd = places.clone();
        let exports = DmExports::new(dm.clone(), default_export, files.clone(), of_nbd);
        let exports = Rc::new(exports);
        let server = Server::new(exports.clone(), options);
        let (tls, disks, ended) = (RefCell::default(), RefCell::default(), Cell::new(false));
        let cores = cores.to_vec();
        Engine {
            dm,
            leaves,
            server,
            exports,
            owner,
            places,
            claims,
            zram,
            files,
            cores,
            tls,
            disks,
            stuck: Rc::default(),
            ended,
        }
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// The other end of a socket of the NBD server.
    pub(crate) fn remote_end(&self, file: FileId) -> Option<RemoteEnd> {
        self.files.remote_end(file)
    }

    /// Whether [`Engine::end`] was called.
    pub(crate) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// Ends the loop of core 0.
    pub(crate) fn end(&self) {
        self.ended.set(true);
    }

    /// Other certificates for connections that come from now on.
    pub(crate) fn set_certificates(&self, certificates: &ServerCertificates) {
        if let Some(tls) = &*self.tls.borrow() {
            tls.set_config(certificates.config.clone());
        }
    }

    /// Creates a device of the configuration file with its attributes; after an error it is gone.
    pub(crate) async fn create_configured(&self, device: DeviceConfig) -> Result<(), Failure> {
        let DeviceConfig { name, uuid, table, force, attributes, ublk, .. } = device;
        let (new, zram) = (name.clone(), table.is_none());
        let _configuring = self.claims.configure(&name);
        let new = api::Create { name: new, uuid, minor: None, table, force, zram, ublk };
        self.make(&new, &|| true).await.map_err(|failure| of_device(&name, failure))?;
        self.leaves.take_warnings(); // the log has them, and nobody else asks
        for (attribute, value) in &attributes {
            if let Err(failure) = self.change_attribute(&name, attribute, value).await {
                let removed = self.remove(&name, Remove::IfUnused, None, &|| true).await;
                if let Err(also) = removed {
                    // The first cause is the caller's.
                    tracing::error!(device = name, "removal after a failed attribute: {also}");
                }
                return Err(of_device(&name, failure));
            }
        }
        self.make_disk(&name, ublk).await.map_err(|failure| of_device(&name, failure))
    }

    /// Makes a device. Nothing is made when `is_wanted` returns false before anything was changed.
    pub(crate) async fn create(
        &self,
        new: api::Create,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Changed, Failure> {
        self.make(&new, is_wanted).await?;
        self.make_disk(&new.name, new.ublk).await?;
        self.changed(&new.name)
    }

    /// Makes a device, without a block device of the kernel.
    async fn make(&self, new: &api::Create, is_wanted: &dyn Fn() -> bool) -> Result<(), Failure> {
        let (uuid, table) = (new.uuid.as_deref(), new.table.as_deref());
        match (new.zram, table) {
            (false, _) => {
                let force = new.force.as_deref();
                let mark = self.files.closes_begun();
                let (name, minor) = (&new.name, new.minor);
                let created = self.dm.create_at(name, uuid, minor, table, force, is_wanted).await;
                if created.is_err() {
                    // The files that it had opened are closed before the caller gets the error.
                    self.files.closed_since(mark).await;
                    // The next verb that succeeds would give them for its own.
                    self.leaves.take_warnings();
                }
                drop(created?);
            }
            (true, None) => {
                let unconfigured = self.zram.unconfigured();
                self.dm.create_unconfigured(&new.name, uuid, new.minor, unconfigured)?;
            }
            (true, Some(_)) => {
                let e = format!("{}: `zram` makes it without a table: give one of them", new.name);
                return Err(Error::invalid(e).into());
            }
        }
        tracing::info!(device = new.name, "device created");
        Ok(())
    }

    /// Loads a table, unless `is_wanted` returns false when it has been constructed.
    pub(crate) async fn load(
        &self,
        name: &str,
        new: &api::Load,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Changed, Failure> {
        let mark = self.files.closes_begun();
        let force = new.force.as_deref();
        let loaded = self.dm.load_forced(name, &new.table, force, is_wanted).await;
        self.files.closed_since(mark).await;
        loaded?;
        tracing::info!(device = name, "table loaded");
        self.changed(name)
    }

    pub(crate) async fn clear(&self, name: &str) -> Result<api::Changed, Failure> {
        let mark = self.files.closes_begun();
        self.dm.clear(name).await?;
        self.files.closed_since(mark).await;
        self.changed(name)
    }

    pub(crate) async fn suspend(&self, name: &str) -> Result<api::Changed, Failure> {
        self.dm.suspend(name).await?;
        tracing::info!(device = name, "device suspended");
        self.changed(name)
    }

    pub(crate) async fn resume(
        &self,
        name: &str,
        how: &api::Resume,
    ) -> Result<api::Changed, Failure> {
        let (mark, before) = (self.files.closes_begun(), self.sectors_of(name));
        let resumed = self.dm.resume_forced(name, how.force.as_deref()).await;
        self.files.closed_since(mark).await;
        resumed?;
        tracing::info!(device = name, "device resumed");
        self.warn_if_shorter(name, before);
        self.update_disk(name).await?;
        self.changed(name)
    }

    pub(crate) async fn remove(
        &self,
        name: &str,
        how: Remove,
        force: Option<&str>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Removed, Failure> {
        let device = self.dm.get(name)?;
        match how {
            Remove::Force => self.stop_disk(name, force).await?,
            Remove::IfUnused | Remove::Deferred | Remove::Drained => {
                self.release_disk(name, how).await?;
            }
        }
        let removed = self.remove_device(name, how, force, is_wanted).await;
        self.end_release(&device, how, removed.is_err()).await;
        removed
    }

    async fn remove_device(
        &self,
        name: &str,
        how: Remove,
        force: Option<&str>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Removed, Failure> {
        if how == Remove::Drained {
            // It may take hours, and the client may have disconnected since.
            self.write_back_unused(name).await?;
            check_wanted(name, is_wanted)?;
        }
        let mark = self.files.closes_begun();
        let removed = self.dm.remove_forced(name, how, force).await;
        self.files.closed_since(mark).await;
        let unsaved = removed?;
        tracing::info!(device = name, how = word_of(how), "device removed");
        let warnings = unsaved.iter().flat_map(unsaved_warnings);
        Ok(api::Removed {
            warnings: warnings.map(|warning| format!("{name}: {warning}")).collect(),
        })
    }

    pub(crate) fn rename(&self, name: &str, to: &api::Rename) -> Result<api::Changed, Failure> {
        match (&to.name, &to.uuid) {
            (Some(new), None) => {
                self.dm.rename(name, new)?;
                tracing::info!(device = name, new, "device renamed");
                self.rename_disk(new);
                self.changed(new)
            }
            (None, Some(uuid)) => {
                self.dm.set_uuid(name, uuid)?;
                self.changed(name)
            }
            _ => Err(Error::invalid("rename takes either `name` or `uuid`").into()),
        }
    }

    pub(crate) async fn message(&self, name: &str, m: api::Message) -> Result<api::Reply, Failure> {
        let sent = async { Ok(self.dm.message(name, Sector(m.sector), m.words).await?) };
        // One of a write cache, `flush`, waits until it has written back.
        let reply = self.while_written_back(name, &|| true, sent).await?;
        Ok(api::Reply { reply })
    }

    /// Waits until no other change of the device is running, so that one that begins then does so
    /// at once. Fails when the client has disconnected; then nothing was changed.
    pub(crate) async fn wait_for_changes(
        &self,
        name: &str,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        loop {
            check_wanted(name, is_wanted)?;
            // The verb reports an unknown device.
            if !self.dm.get(name).is_ok_and(|device| device.is_changing()) {
                return Ok(());
            }
            sleep(EVENT_POLL).await;
        }
    }

    /// Waits until the event number is not `seen` (by default the present one), or until the client
    /// has disconnected. It polls, as the thread that notices the latter can't wake a task here.
    pub(crate) async fn wait(
        &self,
        name: &str,
        seen: Option<u32>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<api::Event, Failure> {
        let device = self.dm.get(name)?;
        let event_nr = || device.info().event_nr;
        let seen = seen.unwrap_or_else(event_nr);
        while event_nr() == seen && is_wanted() {
            sleep(EVENT_POLL).await;
        }
        Ok(api::Event { event_nr: event_nr() })
    }

    pub(crate) fn devices(&self) -> Vec<api::Device> {
        let refusing = self.leaves.refusing();
        self.dm.list().into_iter().map(|info| self.described(info, &refusing)).collect()
    }

    pub(crate) fn device(&self, name: &str) -> Result<api::Device, Failure> {
        let flush = self.flush_worth(&self.dm.get(name)?);
        Ok(api::Device { flush, ..self.described(self.dm.info(name)?, &self.leaves.refusing()) })
    }

    fn described(&self, info: DeviceInfo, refusing: &[Rc<dyn Leaf>]) -> api::Device {
        let owner = self.dm.get(&info.name).ok();
        let problems = owner.map(|owner| self.problems_of(&owner, refusing)).unwrap_or_default();
        let block_device = self.disk_of(&info.name);
        api::Device { problems, block_device, ..device(info) }
    }

    pub(crate) async fn status(&self, name: &str) -> Result<Vec<api::Line>, Failure> {
        Ok(self.dm.status(name)?.into_iter().map(line).collect())
    }

    pub(crate) fn table(
        &self,
        name: &str,
        slot: api::TableSlot,
    ) -> Result<Vec<api::Line>, Failure> {
        let device = self.dm.get(name)?;
        let lines = match slot {
            api::TableSlot::Live => device.table(),
            api::TableSlot::Inactive => device.inactive_table(),
        };
        Ok(lines.into_iter().map(line).collect())
    }

    pub(crate) fn deps(&self, name: &str) -> Result<Vec<api::Dependency>, Failure> {
        let deps = self.dm.deps(name)?.into_iter();
        Ok(deps.map(|d| api::Dependency { name: d.name, number: d.number }).collect())
    }

    pub(crate) fn targets(&self) -> Vec<api::TargetType> {
        let targets = self.dm.targets().into_iter();
        targets.map(|t| api::TargetType { name: t.name.into(), version: t.version }).collect()
    }

    fn changed(&self, name: &str) -> Result<api::Changed, Failure> {
        let warnings = self.leaves.take_warnings();
        Ok(api::Changed { device: self.device(name)?, warnings })
    }

    /// Ends clients' requests, settles every device (HO-E2), and makes the leaves durable, all
    /// within `time`. Returns what failed, and what did not end.
    pub(crate) async fn shutdown(&self, time: Nanos) -> Vec<Failure> {
        let drained = Rc::new(Cell::new(false));
        let (server, done) = (self.server.clone(), drained.clone());
        spawn(async move {
            server.shutdown().await;
            done.set(true);
        });
        let suspended = self.dm.list().iter().any(|d| d.suspended && d.live_table);
        let drain = if suspended { DRAIN_SUSPENDED } else { DRAIN };
        let deadline = now() + drain.min(Nanos(time.0 / 4));
        while !drained.get() && now() < deadline {
            sleep(DRAIN_POLL).await;
        }
        if !drained.get() {
            tracing::warn!("clients' requests did not end in time and are dropped unanswered");
        }
        // No client is left that could resume a suspended device: what waits for it fails.
        self.dm.end_waiting();
        let settling = Rc::new(ShutdownProgress::default());
        self.settle(&settling, true);
        settling.ended_within(Nanos(time.0 / 4)).await;
        // Once for each leaf, so that writes which no client has flushed are durable, too.
        for leaf in self.leaves.opened() {
            let (settling, key) = (settling.clone(), format!("{}: flush", leaf.name()));
            settling.begin(&key);
            spawn(async move {
                let flushed = flush(&*leaf, Class::Foreground).await;
                settling.end(
                    &key,
                    flushed.map_err(|status| {
                        let message = format!("shutdown: {key}: {status}");
                        Failure::new(ErrorKind::Io, message)
                    }),
                );
            });
        }
        settling.ended_within(Nanos(time.0 / 8)).await;
        let mut failures = settling.failures.take();
        for what in settling.left.borrow().iter() {
            let why =
                "has not ended in time: what it holds stays where it is, as after a power cut";
            failures.push(Failure::new(ErrorKind::Busy, format!("shutdown: {what} {why}")));
        }
        failures
    }

    /// Settles every device, each after those that are built on it. `warns`: the log gets what
    /// stays in caches.
    fn settle(&self, settling: &Rc<ShutdownProgress>, warns: bool) {
        let mut above: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let names: Vec<String> = self.dm.list().into_iter().map(|info| info.name).collect();
        for name in &names {
            settling.begin(name);
            for dep in self.dm.deps(name).unwrap_or_default() {
                above.entry(dep.name).or_default().push(name.clone());
            }
        }
        for name in names {
            let (dm, claims, settling) = (self.dm.clone(), self.claims.clone(), settling.clone());
            let above = above.remove(&name).unwrap_or_default();
            spawn(async move {
                settling.wait_for(&above).await;
                if settling.is_cancelled.get() {
                    return;
                }
                let settled = match dm.suspend(&name).await {
                    // It was removed meanwhile, so it has settled.
                    Err(_) if dm.get(&name).is_err() => Ok(()),
                    settled => settled,
                };
                if let Ok(device) = dm.get(&name)
                    && warns
                {
                    let lacking = leave_unsaved(&claims, &device).await;
                    settling.failures.borrow_mut().extend(lacking);
                }
                let place = if warns { "shutdown" } else { "hand-over" };
                let place = format!("{place}: {name}");
                settling.end(&name, settled.map_err(|e| Failure::from(e).within(place)));
            });
        }
    }
}

/// What has to end at shutdown, by name.
#[derive(Default)]
struct ShutdownProgress {
    left: RefCell<BTreeSet<String>>,
    failures: RefCell<Vec<Failure>>,
    ended: WaitList,
    /// What has not begun does not begin.
    is_cancelled: Cell<bool>,
}

impl ShutdownProgress {
    fn begin(&self, name: &str) {
        self.left.borrow_mut().insert(name.to_owned());
    }

    fn end(&self, name: &str, result: Result<(), Failure>) {
        self.left.borrow_mut().remove(name);
        self.failures.borrow_mut().extend(result.err());
        self.ended.wake_all();
    }

    async fn wait_for(&self, names: &[String]) {
        let left = |name: &String| self.left.borrow().contains(name);
        self.ended.wait_for(|| !names.iter().any(left)).await;
    }

    /// Waits until all has ended, at most for `time`.
    async fn ended_within(&self, time: Nanos) {
        let deadline = now() + time;
        while !self.left.borrow().is_empty() && now() < deadline {
            sleep(END_POLL).await;
        }
    }
}

block::debug_as!(Engine, s => "Engine({:?}, {:?}, {:?})", s.dm, s.leaves, s.server);

fn check_wanted(name: &str, is_wanted: &dyn Fn() -> bool) -> Result<(), Error> {
    let gone = || Error::busy(format!("{name}: the client that asked for it has disconnected"));
    if is_wanted() { Ok(()) } else { Err(gone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_in_flight_are_a_share_of_the_memory() {
        for (memory_mib, most_mib) in [(1, 64), (256, 64), (1024, 256), (2048, 512), (1 << 40, 512)]
        {
            assert_eq!(door_bytes_max(512 << 20, memory_mib << 20), most_mib << 20, "{memory_mib}");
        }
    }
}
