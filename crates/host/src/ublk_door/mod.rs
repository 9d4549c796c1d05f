// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapped devices as block devices of the kernel (ublk). Whatever may wait in the kernel runs on
//! threads of its own.
//!
//! ```text
//!   engine (verbs) ──▶ UblkDoor ──── thread: add, start, stop, recover, links
//!                        │ one UblkDisk a device
//!                        ├ core 0: Queue ── bios ──▶ the mapped device
//!                        └ core 1: Queue ── bios ──▶ its replica there
//! ```
//!
//! A device that every core has itself is made with a queue for each core; others with one, on core
//! 0. The number of queues stays, also when the next daemon takes the device over: its cores get
//! them by turns, or core 0 gets all, of a device that it alone has. What a queue's core has of the
//! device may change with its table (`secondary`), and the queue stays where it is.
//!
//! Invariants
//! - HO-U1 A disk holds its mapped device open for as long as its queue runs. So a device is
//!   removed only after its disk was stopped.
//! - HO-U2 A device in the kernel is taken over only for a device that is there, with its leaves
//!   open: their locks are ours, so no request of the last daemon is under way any more.
//! - HO-U3 Only a disk whose device survives a kill is made so that the kernel hides one.
//! - HO-U4 Changes of one device's disk come one after the other.
//! - HO-U5 The replicas of a disk's device end after its queues have ended, or commit nothing more.
mod cores;
mod disk;
mod disks;
mod kernel_devices;
mod links;
pub(crate) mod memory_pressure;
mod waiting;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use block::{BlockDevice, CoreId, Error, ErrorKind, Nanos, Reservation, Sector};
use dm::MappedDevice;
use reactor::{WaitList, sleep, spawn};
use ublk::{Features, Identity, Params, Stats, disk_path};
use uring::Files;

use cores::QueueCores;
pub(crate) use disk::DiskClient;
use disk::UblkDisk;
pub use disks::Disks;
use kernel_devices::OpenedDevice;
use waiting::WaitingDevices;

use crate::secondary::Owner;

/// Name of the threads that wait for the kernel.
const THREAD: &str = "ublk-control";
/// How often it is looked whether a device to be removed later is still open.
const DEFERRED_LOOK: Nanos = Nanos::from_secs(1);
/// How long a stop by force waits for the device before its table is taken away. Chosen: what a
/// removal by force waits for requests.
const STOP_WAIT: Nanos = Nanos::from_secs(3);

/// What of a device in the kernel a verb shows.
#[derive(Clone, Debug)]
pub(crate) struct DiskInfo {
    /// Its path, `/dev/ublkbN`.
    pub(crate) path: PathBuf,
}

/// Figures of a door.
#[derive(Clone, Debug, Default)]
pub(crate) struct DoorStats {
    /// Block devices that are there.
    pub(crate) disks: u64,
    /// Requests in flight.
    pub(crate) in_flight: u64,
    /// Of all block devices since the daemon began.
    pub(crate) total: Stats,
    /// The same, by the core that has served them.
    pub(crate) by_core: BTreeMap<CoreId, Stats>,
}

/// The cores that serve block devices.
#[derive(Debug)]
pub(crate) struct DoorCores {
    pub(crate) owner: Rc<Owner>,
    /// Core 0 first.
    pub(crate) cores: Vec<CoreId>,
    /// Data in flight of all.
    pub(crate) bytes_max: u64,
}

/// What there is once the kernel's driver was found.
struct DriverConnection {
    features: Features,
    cores: QueueCores,
}

/// The door of a daemon.
pub(crate) struct UblkDoor {
    files: Files,
    run_dir: PathBuf,
    /// All devices have a disk, not only those for which one was asked.
    serves_all: bool,
    driver: OnceCell<DriverConnection>,
    /// By the numbers of their mapped devices, which names change.
    disks: RefCell<BTreeMap<u32, Rc<UblkDisk>>>,
    /// Devices for which a disk was asked by name.
    chosen: RefCell<Vec<Weak<MappedDevice>>>,
    /// Devices in the kernel whose clients wait.
    waiting: RefCell<WaitingDevices>,
    cores: DoorCores,
    /// Devices whose disk is being changed (HO-U4).
    changing: RefCell<BTreeSet<u32>>,
    changed: WaitList,
    /// Figures of disks that have ended, by core.
    ended: RefCell<BTreeMap<CoreId, Stats>>,
    is_ending: Cell<bool>,
}

/// Keeps others from changing the disk of a device.
struct ChangeGuard<'a> {
    door: &'a UblkDoor,
    minor: u32,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.door.changing.borrow_mut().remove(&self.minor);
        self.door.changed.wake_all();
    }
}

/// Adds the figures of a disk.
fn add_to(by_core: &mut BTreeMap<CoreId, Stats>, disk: &UblkDisk) {
    for (core, stats) in disk.queues().stats() {
        *by_core.entry(core).or_default() += stats;
    }
}

impl UblkDoor {
    pub(crate) fn new(
        files: Files,
        run_dir: PathBuf,
        serves_all: bool,
        cores: DoorCores,
    ) -> Rc<UblkDoor> {
        Rc::new(UblkDoor {
            files,
            run_dir,
            serves_all,
            driver: OnceCell::new(),
            disks: RefCell::default(),
            chosen: RefCell::default(),
            waiting: RefCell::default(),
            cores,
            changing: RefCell::default(),
            changed: WaitList::new(),
            ended: RefCell::default(),
            is_ending: Cell::new(false),
        })
    }

    /// Connects to the driver, once, and looks at what the last daemon has left there.
    ///
    /// # Errors
    /// When the driver is not there, is too old, or the right is missing; with what to do.
    pub(crate) async fn open(&self) -> Result<(), Error> {
        if self.driver.get().is_some() {
            return Ok(());
        }
        let dir = self.run_dir.clone();
        let found = self.files.apart(THREAD, move || kernel_devices::find(&dir)).await?;
        let DoorCores { owner, cores, bytes_max } = &self.cores;
        let cores = QueueCores::new(owner.clone(), cores, *bytes_max).await;
        if self.driver.set(DriverConnection { features: found.features, cores }).is_ok() {
            *self.waiting.borrow_mut() = WaitingDevices::new(found.waiting, found.links);
        }
        Ok(())
    }

    fn features(&self) -> Features {
        self.driver.get().map(|driver| driver.features).unwrap_or_default()
    }

    /// Devices in the kernel whose clients wait for a device that has not come.
    pub(crate) fn waiting(&self) -> Vec<PathBuf> {
        self.waiting.borrow().paths()
    }

    /// From now on this device has a disk, also when others have none.
    pub(crate) fn choose(&self, device: &Rc<MappedDevice>) {
        let mut chosen = self.chosen.borrow_mut();
        chosen.retain(|other| other.strong_count() > 0);
        chosen.push(Rc::downgrade(device));
    }

    /// Whether a disk was asked for this very device.
    pub(crate) fn is_chosen(&self, device: &MappedDevice) -> bool {
        let is_it = |other: &Weak<MappedDevice>| std::ptr::eq(other.as_ptr(), device);
        self.chosen.borrow().iter().any(is_it)
    }

    /// Whether the device is shown here: by its attribute `doors`, or because a disk was asked for
    /// it by name.
    fn is_shown(&self, device: &MappedDevice) -> bool {
        self.serves_all && device.doors().has_ublk() || self.is_chosen(device)
    }

    /// Whether the device is to have a disk, and can have one now.
    fn is_wanted(&self, device: &MappedDevice) -> bool {
        self.is_shown(device) && device.info().live_table && !self.is_ending.get()
    }

    /// The disks as clients of their devices, by number of those.
    pub(crate) fn clients(&self) -> Vec<DiskClient> {
        self.disks.borrow().values().filter_map(|disk| disk.client()).collect()
    }

    /// The disks that end with this process, with the names of their devices.
    pub(crate) fn ending_disks(&self) -> Vec<(String, PathBuf)> {
        let disks = self.disks.borrow();
        let ending = disks.values().filter(|disk| !disk.recovers).filter_map(|disk| disk.client());
        ending.map(|client| (client.device, disk_path(client.number))).collect()
    }

    /// The figures of all disks, those that have ended too; none until there was one.
    pub(crate) fn stats(&self) -> Option<DoorStats> {
        self.driver.get()?;
        let by_core = self.ended.borrow().clone();
        let mut stats = DoorStats { by_core, ..DoorStats::default() };
        for disk in self.disks.borrow().values() {
            stats.disks += 1;
            stats.in_flight += disk.queues().in_flight();
            add_to(&mut stats.by_core, disk);
        }
        stats.by_core.values().for_each(|of_core| stats.total += *of_core);
        Some(stats)
    }

    /// The disk of a device.
    pub(crate) fn disk(&self, device: &MappedDevice) -> Option<DiskInfo> {
        let disks = self.disks.borrow();
        disks.get(&device.minor()).map(|disk| DiskInfo { path: disk_path(disk.number) })
    }

    async fn lock(&self, minor: u32) -> ChangeGuard<'_> {
        self.changed.wait_for(|| !self.changing.borrow().contains(&minor)).await;
        self.changing.borrow_mut().insert(minor);
        ChangeGuard { door: self, minor }
    }

    /// Makes the disk of a device as the device is now: makes it if it is wanted and not there,
    /// tells the kernel a size that has changed, and takes away what is not shown any more, as soon
    /// as nobody has it open. `survives_kill`: the kernel may hide a kill.
    pub(crate) async fn update(
        self: &Rc<Self>,
        device: &Rc<MappedDevice>,
        survives_kill: bool,
    ) -> Result<(), Error> {
        if self.disk(device).is_some() && !self.is_shown(device) {
            return self.hide(device).await;
        }
        let _guard = self.lock(device.minor()).await;
        let disk = self.disks.borrow().get(&device.minor()).cloned();
        match disk {
            Some(disk) => self.update_size(&disk, device.limits().capacity).await,
            None if self.is_wanted(device) => self.serve(device, survives_kill).await,
            None => Ok(()),
        }
    }

    async fn hide(self: &Rc<Self>, device: &Rc<MappedDevice>) -> Result<(), Error> {
        match self.release(device).await {
            Err(e) if e.kind() == ErrorKind::Busy => {
                tracing::info!("{}: it is taken away when it is closed", e.chain());
                self.release_later(device, |door, device| !door.is_shown(device));
                Ok(())
            }
            released => released,
        }
    }

    async fn update_size(&self, disk: &UblkDisk, capacity: Sector) -> Result<(), Error> {
        if disk.capacity.get() == capacity || capacity == Sector::ZERO {
            return Ok(());
        }
        // Every core knows the size before the kernel does.
        disk.queues().reach().await;
        let (number, features) = (disk.number, self.features());
        let set = move || kernel_devices::set_size(number, capacity, features);
        self.files.apart(THREAD, set).await?;
        disk.capacity.set(capacity);
        tracing::info!(disk = %disk_path(number).display(), sectors = capacity.0, "size told");
        Ok(())
    }

    /// The queues that a device is made with.
    fn queues_of(&self, device: &MappedDevice) -> u16 {
        let cores = self.driver.get().map_or(1, |driver| driver.cores.of(device).len());
        u16::try_from(cores).expect("at most 16")
    }

    async fn serve(
        self: &Rc<Self>,
        device: &Rc<MappedDevice>,
        survives_kill: bool,
    ) -> Result<(), Error> {
        self.open().await?;
        let limits = device.limits();
        let name = dm::mangle(device.name());
        let params = Params::new(&limits, device.read_only().get()).map_err(Error::invalid)?;
        let identity = Identity::new(&self.run_dir, device.name());
        let found = self.waiting.borrow_mut().take(&name, identity)?;
        let reserve = |queues| self.driver.get()?.cores.reserve_tags(queues);
        let (opened, tags) = match found {
            Some(found) if !survives_kill => {
                self.waiting.borrow_mut().put_back(found);
                return Err(Error::busy(format!(
                    "clients of {0} wait for it, but what the last daemon told them may be lost: \
                     give them up with `millpond ublk --give-up {1}`",
                    disk_path(found.number).display(),
                    found.number
                )));
            }
            Some(found) => {
                let recover = move || kernel_devices::recover(found, &params);
                let recovered = self.files.apart(THREAD, recover).await;
                let opened =
                    recovered.inspect_err(|_| self.waiting.borrow_mut().put_back(found))?;
                // It is served as it was made, also where there is no room for its buffers now.
                let tags = opened.kernel_copies.and_then(|_| reserve(found.queues));
                (opened, tags)
            }
            None => {
                let (features, queues) = (self.features(), self.queues_of(device));
                let tags = reserve(queues);
                let (recovers, copies) = (survives_kill, tags.is_some());
                let add = move || {
                    kernel_devices::add(identity, queues, recovers, copies, features, &params)
                };
                (self.files.apart(THREAD, add).await?, tags)
            }
        };
        let (number, is_recovered) = (opened.number, opened.is_recovered);
        let (kernel_copies, several_at_once) =
            (opened.kernel_copies.is_some(), opened.takes_several);
        let (disk, path) = self.start(device, opened, tags).await?;
        let (path, queues, name) = (path.display(), disk.queues().count(), device.name());
        if is_recovered {
            tracing::info!(
                device = name, %path, number, queues, several_at_once, "block device taken over"
            );
            // What its clients were told is what they have; a change since then is news.
            self.update_size(&disk, limits.capacity).await?;
        } else {
            let recovers = survives_kill && self.features().contains(Features::RECOVERY);
            tracing::info!(
                device = name, %path, number, queues, recovers, kernel_copies, several_at_once,
                "block device made"
            );
        }
        Ok(())
    }

    /// Starts the queues of a device that was opened, and lets clients in. Returns where they find
    /// it.
    async fn start(
        self: &Rc<Self>,
        device: &Rc<MappedDevice>,
        opened: OpenedDevice,
        tags: Option<Reservation>,
    ) -> Result<(Rc<UblkDisk>, PathBuf), Error> {
        let (number, is_recovered) = (opened.number, opened.is_recovered);
        let driver = self.driver.get().expect("a device in the kernel was opened");
        let made = UblkDisk::new(device, opened, &self.files, &driver.cores, tags).await;
        let disk = match made {
            Ok(disk) => disk,
            Err(e) if is_recovered => return Err(e),
            Err(e) => {
                let dir = self.run_dir.clone();
                let forget = move || kernel_devices::forget(&dir, number);
                let _ = self.files.apart(THREAD, forget).await; // the first error is the caller's
                return Err(e);
            }
        };
        let (door, watched, minor) = (self.clone(), disk.clone(), device.minor());
        self.disks.borrow_mut().insert(minor, disk.clone());
        spawn(async move { door.end_when_stopped(minor, &watched).await });
        // Before the kernel tells udev of it.
        let path = self.link(&disk, &dm::mangle(device.name())).await;
        let offered = disk.queues().offered().await;
        let started = match offered {
            Ok(()) => {
                let start = move || kernel_devices::start(number, is_recovered);
                self.files.apart(THREAD, start).await
            }
            Err(status) => {
                let path = disk_path(number);
                Err(Error::io(format!("{}: no request can be fetched: {status}", path.display())))
            }
        };
        if let Err(e) = started {
            if !is_recovered {
                // The first error is the caller's.
                let _ = self.files.apart(THREAD, move || kernel_devices::stop(number)).await;
            }
            return Err(e);
        }
        Ok((disk, path))
    }

    /// Makes the links of a disk; returns where clients find it.
    async fn link(&self, disk: &UblkDisk, name: &str) -> PathBuf {
        let (dir, number) = (self.run_dir.clone(), disk.number);
        let of_thread = name.to_owned();
        let make = move || {
            links::make(&dir, &of_thread, number).map_err(|e| Error::io("links").because(e))
        };
        match self.files.apart(THREAD, make).await {
            Ok(path) => path,
            Err(e) => {
                // The device itself is there.
                tracing::warn!(device = name, "no link to it: {}", e.chain());
                disk_path(number)
            }
        }
    }

    /// Waits for the end of a disk, whoever has stopped it, and clears up after it.
    async fn end_when_stopped(self: Rc<Self>, minor: u32, disk: &Rc<UblkDisk>) {
        let ended = disk.queues().ended_or_failed().await;
        let (path, number) = (disk_path(disk.number), disk.number);
        let path = path.display();
        match ended {
            ublk::Ended::Stopped => tracing::info!(%path, "block device stopped"),
            ublk::Ended::Failed(status) => {
                tracing::error!(%path, "the kernel has refused a queue: {status}");
                // Others may go on.
                let stopped = self.files.apart(THREAD, move || kernel_devices::stop(number)).await;
                if let Err(e) = stopped {
                    tracing::warn!(%path, "{}", e.chain());
                }
                disk.queues().ended().await;
            }
        }
        disk.close(&self.files).await;
        let dir = self.run_dir.clone();
        let forgotten =
            self.files.apart(THREAD, move || kernel_devices::forget(&dir, number)).await;
        if let Err(e) = forgotten {
            tracing::warn!(%path, "{}", e.chain());
        }
        self.disks.borrow_mut().remove(&minor);
        add_to(&mut self.ended.borrow_mut(), disk);
        disk.end();
    }

    /// Stops the disk of a device that is to be removed, unless it is open. Without a disk there is
    /// nothing to do.
    ///
    /// # Errors
    /// `EBUSY` when it is open.
    pub(crate) async fn release(&self, device: &MappedDevice) -> Result<(), Error> {
        let _guard = self.lock(device.minor()).await;
        let Some(disk) = self.disks.borrow().get(&device.minor()).cloned() else { return Ok(()) };
        let (number, features) = (disk.number, self.features());
        let stop = move || kernel_devices::try_stop(number, features);
        let stopped = self.files.apart(THREAD, stop).await;
        stopped.map_err(|e| e.within(device.name()))?;
        disk.ended().await;
        Ok(())
    }

    /// Stops the disk of a device, though it is open: begins to, and returns when it has stopped or
    /// after some time; then its requests wait for the device.
    pub(crate) async fn stop(&self, device: &MappedDevice) {
        let Some(disk) = self.disks.borrow().get(&device.minor()).cloned() else { return };
        let (number, files, end) = (disk.number, self.files.clone(), reactor::now() + STOP_WAIT);
        spawn(async move {
            if let Err(e) = files.apart(THREAD, move || kernel_devices::stop(number)).await {
                tracing::warn!(disk = %disk_path(number).display(), "{}", e.chain());
            }
        });
        while !disk.has_ended() && reactor::now() < end {
            sleep(Nanos::from_millis(5)).await;
        }
    }

    /// Waits until the disk of a device has ended, at most for `time`.
    pub(crate) async fn stopped_within(&self, device: &MappedDevice, time: Nanos) {
        let Some(disk) = self.disks.borrow().get(&device.minor()).cloned() else { return };
        let end = reactor::now() + time;
        while !disk.has_ended() && reactor::now() < end {
            sleep(Nanos::from_millis(5)).await;
        }
    }

    /// Stops the disk of a device as soon as nobody has it open, if `is_due` still holds then.
    pub(crate) fn release_later(
        self: &Rc<Self>,
        device: &Rc<MappedDevice>,
        is_due: impl Fn(&UblkDoor, &MappedDevice) -> bool + 'static,
    ) {
        let (door, device) = (self.clone(), device.clone());
        spawn(async move {
            while is_due(&door, &device) && door.disk(&device).is_some() {
                if door.release(&device).await.is_ok() {
                    return;
                }
                sleep(DEFERRED_LOOK).await;
            }
        });
    }

    /// The device has another name.
    pub(crate) fn renamed(self: &Rc<Self>, device: &Rc<MappedDevice>) {
        let Some(disk) = self.disks.borrow().get(&device.minor()).cloned() else { return };
        let (door, device) = (self.clone(), device.clone());
        spawn(async move {
            let _guard = door.lock(device.minor()).await;
            door.link(&disk, &dm::mangle(device.name())).await;
            let number = disk.number;
            let announce = move || {
                links::announce(number);
                Ok(())
            };
            let _ = door.files.apart(THREAD, announce).await;
        });
    }

    /// Ends the door: disks that nobody has open are stopped. Of the others, those whose clients
    /// the kernel lets wait stay for the next daemon, and the rest fail. At most for `time`.
    pub(crate) async fn shut_down(self: &Rc<Self>, time: Nanos) {
        self.is_ending.set(true);
        let end = reactor::now() + time;
        let disks: Vec<Rc<UblkDisk>> = self.disks.borrow().values().cloned().collect();
        for disk in &disks {
            let (files, disk, features) = (self.files.clone(), disk.clone(), self.features());
            spawn(async move {
                let number = disk.number;
                let stop = move || kernel_devices::try_stop(number, features);
                let Err(e) = files.apart(THREAD, stop).await else { return };
                let path = disk_path(number);
                let path = path.display();
                if disk.recovers {
                    tracing::info!(%path, "its clients wait for the next daemon: {}", e.chain());
                    disk.queues().leave().await; // HO-U5
                    return disk.end();
                }
                tracing::warn!(%path, "its clients get errors: {}", e.chain());
                if let Err(e) = files.apart(THREAD, move || kernel_devices::stop(number)).await {
                    tracing::warn!(%path, "{}", e.chain());
                }
            });
        }
        while disks.iter().any(|disk| !disk.has_ended()) && reactor::now() < end {
            sleep(Nanos::from_millis(5)).await;
        }
        for disk in disks.iter().filter(|disk| !disk.has_ended()) {
            tracing::warn!(disk = %disk_path(disk.number).display(), "did not stop in time");
            disk.queues().leave().await;
        }
    }
}

block::debug_as!(UblkDoor, s => "UblkDoor({} disks)", s.disks.borrow().len());
