// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices in the kernel: calls that may wait, each for a thread of its own (UB-C1).
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use block::{Error, ErrorKind, Sector};
use ublk::{
    Control, Features, Identity, KernelDevice, MAX_IO_BYTES, NewDevice, Params, QueueMemory, State,
    TAG_BUFFER_BYTES, disk_path,
};

use super::links;

/// Tags of a queue. Chosen: what one NVMe queue of the kernel's own takes by default, and more
/// than clients have in flight that are not a benchmark.
pub(super) const DEPTH: u16 = 128;
/// How long it is waited for the last server of a device to end. Chosen: its ring ends when its
/// requests have, and a slow disk may take seconds for one.
const END_TIME: Duration = Duration::from_secs(30);
/// How long a device that is open is asked to stop again: whoever looks at each new device (udev,
/// blkid) has it open for a moment.
const STOP_TIME: Duration = Duration::from_secs(2);
/// How often is asked again.
const AGAIN: Duration = Duration::from_millis(20);

/// What a daemon finds of its own when it starts.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What the driver can.
    pub(super) features: Features,
    /// Devices whose clients wait for a server.
    pub(super) waiting: Vec<KernelDevice>,
    /// The number that each name had.
    pub(super) links: Vec<(String, u32)>,
}

/// A device that has a character device of ours, and no queue yet.
#[derive(Debug)]
pub(super) struct OpenedDevice {
    pub(super) number: u32,
    pub(super) file: OwnedFd,
    /// Of each queue.
    pub(super) memory: Vec<QueueMemory>,
    /// Tags of each queue.
    pub(super) depth: u16,
    /// The kernel copies data, of so many bytes at most; else the queues do.
    pub(super) kernel_copies: Option<u32>,
    /// Tags are taken and committed several at a time.
    pub(super) takes_several: bool,
    /// It was there: its clients wait.
    pub(super) is_recovered: bool,
    /// Its clients wait for the next daemon when this one ends.
    pub(super) recovers: bool,
    pub(super) capacity: Sector,
}

#[expect(clippy::disallowed_methods, reason = "a thread that waits for the kernel, not a core")]
fn pause() {
    std::thread::sleep(AGAIN);
}

/// Repeats `ask` while it answers `EBUSY`, at most for `time`.
fn while_busy(time: Duration, mut ask: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    for _ in 0..time.as_millis() / AGAIN.as_millis() {
        match ask() {
            Err(e) if e.kind() == ErrorKind::Busy => pause(),
            asked => return asked,
        }
    }
    ask()
}

/// Looks at what the daemon of this run directory, which is ours now, has left in the kernel, and
/// deletes what no client waits for.
pub(super) fn find(run_dir: &Path) -> Result<Found, Error> {
    let mut control = Control::open()?;
    let features = control.features()?;
    let ours = Identity::new(run_dir, "");
    let mut waiting = Vec::new();
    for device in control.devices() {
        if !device.identity.is_some_and(|identity| identity.has_run_dir_of(ours)) {
            continue; // UB-C2
        }
        let recovers = device.features.contains(Features::USER_RECOVERY);
        if recovers && device.state != State::Dead {
            waiting.push(device);
        } else if let Err(e) = delete_unserved(&mut control, device.number) {
            // It takes a number and some memory, and nothing else.
            tracing::warn!(
                "{} of an earlier daemon: {}",
                disk_path(device.number).display(),
                e.chain()
            );
        }
    }
    let is_there = |number: u32| waiting.iter().any(|device| device.number == number);
    let links = links::read(run_dir, is_there);
    Ok(Found { features, waiting, links })
}

/// Deletes a device whose server is gone: it waits for that, as the server may be ending. A daemon
/// of another container may have a run directory of the same name; its devices stay.
fn delete_unserved(control: &mut Control, number: u32) -> Result<(), Error> {
    while_busy(END_TIME, || control.open_char(number).map(drop))?;
    control.stop(number)?;
    control.delete(number)
}

/// Opens the character device of a device that has `capacity`.
fn open(control: &Control, device: &KernelDevice, capacity: Sector) -> Result<OpenedDevice, Error> {
    let KernelDevice { number, depth, queues, features, max_io_bytes, .. } = *device;
    let file = control.open_char(number)?;
    let map = |queue| QueueMemory::map(&file, queue, depth);
    let memory = (0..queues).map(map).collect::<Result<_, _>>().map_err(|e| {
        let path = disk_path(number);
        Error::io(format!("{}: no memory of requests", path.display())).because(e)
    })?;
    let kernel_copies = (!features.contains(Features::USER_COPY)).then_some(max_io_bytes);
    Ok(OpenedDevice {
        number,
        file,
        memory,
        depth,
        kernel_copies,
        takes_several: kernel_copies.is_some() && features.contains(Features::BATCH_IO),
        is_recovered: false,
        recovers: features.contains(Features::USER_RECOVERY),
        capacity,
    })
}

/// Makes a device with at most `queues` queues, and opens it. `kernel_copies`: the kernel is to
/// copy data.
pub(super) fn add(
    identity: Identity,
    queues: u16,
    recovers: bool,
    kernel_copies: bool,
    features: Features,
    params: &Params,
) -> Result<OpenedDevice, Error> {
    let mut control = Control::open()?;
    let recovers = recovers && features.contains(Features::RECOVERY);
    let mut wanted = if recovers { Features::RECOVERY } else { Features::empty() };
    wanted.set(Features::USER_COPY, !kernel_copies);
    // Devices whose data a queue copies keep the commands that all kernels have.
    wanted.set(Features::BATCH_IO, kernel_copies && features.contains(Features::BATCH_IO));
    let max_io_bytes = if kernel_copies { TAG_BUFFER_BYTES } else { MAX_IO_BYTES };
    let params = params.with_max_io(max_io_bytes);
    let new = NewDevice { identity, features: wanted, queues, depth: DEPTH, max_io_bytes };
    // It has no more queues than the machine has processors.
    let added = control.add(&new)?;
    let opened = control
        .set_params(added.number, &params)
        .and_then(|()| open(&control, &added, params.capacity()));
    if opened.is_err() {
        // The first error is the caller's.
        let _ = control.delete(added.number);
    }
    opened
}

/// Takes a device over whose last server is gone, and opens it. It keeps its number of queues.
pub(super) fn recover(device: KernelDevice, params: &Params) -> Result<OpenedDevice, Error> {
    let number = device.number;
    let mut control = Control::open()?;
    let old = control.params(number)?;
    let path = disk_path(number);
    if old.logical_block_bytes() != params.logical_block_bytes() {
        return Err(Error::busy(format!(
            "{} waits for this device with logical blocks of {} bytes, which has {} now: give it \
             up with `millpond ublk --give-up {number}`",
            path.display(),
            old.logical_block_bytes(),
            params.logical_block_bytes()
        )));
    }
    while_busy(END_TIME, || control.start_recovery(number))?;
    let mut opened = None;
    while_busy(END_TIME, || {
        open(&control, &device, old.capacity()).map(|device| opened = Some(device))
    })?;
    let opened = opened.expect("opened without an error");
    Ok(OpenedDevice { is_recovered: true, ..opened })
}

/// Lets clients in: of a new device for the first time, of a device that was taken over again.
pub(super) fn start(number: u32, is_recovered: bool) -> Result<(), Error> {
    let mut control = Control::open()?;
    if is_recovered { control.end_recovery(number) } else { control.start(number) }
}

/// Tells the kernel another size.
///
/// # Errors
/// When its driver can't take one, with the version that can.
pub(super) fn set_size(number: u32, capacity: Sector, features: Features) -> Result<(), Error> {
    if !features.contains(Features::UPDATE_SIZE) {
        let path = disk_path(number);
        return Err(Error::new(
            ErrorKind::NotSupported,
            format!("{} keeps its size: Linux 6.16 brought UPDATE_SIZE", path.display()),
        ));
    }
    Control::open()?.update_size(number, capacity)
}

/// Stops a device unless it is open.
pub(super) fn try_stop(number: u32, features: Features) -> Result<(), Error> {
    let mut control = Control::open()?;
    while_busy(STOP_TIME, || control.try_stop(number, features))
}

/// Stops a device; who has it open gets errors.
pub(super) fn stop(number: u32) -> Result<(), Error> {
    Control::open()?.stop(number)
}

/// Deletes a device that was stopped, and its links.
pub(super) fn forget(run_dir: &Path, number: u32) -> Result<(), Error> {
    links::remove(run_dir, number);
    Control::open()?.delete(number)
}
