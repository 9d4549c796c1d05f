// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control: devices in the kernel, made, started, changed and deleted. Each call blocks its thread
//! until the kernel has answered (UB-C1).
//!
//! ```text
//!   add ─▶ set_params ─▶ open the character device, fetch all tags ─▶ start ─▶ clients
//!   stop (or try_stop: not while it is open) ─▶ delete
//!
//!   the server dies: LIVE ─▶ QUIESCED, requests wait
//!   start_recovery ─▶ open, fetch all tags ─▶ end_recovery ─▶ LIVE
//! ```
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use block::{Error, ErrorKind, Sector};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::abi::{
    ANY_NUMBER, CONTROL_PATH, ControlCommand, DeviceInfo, DeviceParams, NO_QUEUE, command,
};
use crate::features::Features;
use crate::identity::Identity;
use crate::kernel::ControlRing;
use crate::params::Params;

/// The state of a device in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has no block device: it was not started, or was stopped.
    Dead,
    /// It has one; its server serves it, or has died just now.
    Live,
    /// Its server is gone: requests wait for another one.
    Quiesced,
    /// Its server is gone: requests fail.
    Failing,
}

/// A device in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDevice {
    /// N of `/dev/ublkbN`.
    pub number: u32,
    /// Its state.
    pub state: State,
    /// The process that serves it, or did last; below zero: none.
    pub pid: i32,
    /// Our sign; `None` of another program's device.
    pub identity: Option<Identity>,
    /// Its flags.
    pub features: Features,
    /// Its queues.
    pub queues: u16,
    /// Tags of each queue.
    pub depth: u16,
    /// Largest request, bytes.
    pub max_io_bytes: u32,
}

/// A device to add.
#[derive(Clone, Copy, Debug)]
pub struct NewDevice {
    /// Our sign.
    pub identity: Identity,
    /// Flags that are wanted; those that the kernel does not know are ignored. With `USER_COPY` the
    /// server copies data, without it the kernel does.
    pub features: Features,
    /// Queues.
    pub queues: u16,
    /// Tags of each queue, 1 to 4096.
    pub depth: u16,
    /// Largest request, bytes.
    pub max_io_bytes: u32,
}

/// A connection to the driver.
#[derive(Debug)]
pub struct Control {
    file: OwnedFd,
    ring: ControlRing,
}

/// The character device of a device, for its server.
pub fn char_path(number: u32) -> PathBuf {
    format!("/dev/ublkc{number}").into()
}

/// The block device of a device, for its clients.
pub fn disk_path(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// The numbers of all devices that are there, ascending; none where nobody can see any.
pub fn numbers() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/sys/class/ublk-char") else { return Vec::new() };
    let number = |entry: io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()
    };
    let mut all: Vec<u32> = entries.filter_map(number).collect();
    all.sort_unstable();
    all
}

fn open_device(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags | libc::O_CLOEXEC).open(path)
}

/// The refusal of a command on a device.
fn refused(what: &str, number: u32, e: io::Error) -> Error {
    let kind = match e.raw_os_error() {
        Some(libc::EBUSY) => ErrorKind::Busy,
        Some(libc::ENODEV) => ErrorKind::NotFound,
        Some(libc::EPERM | libc::EACCES) => ErrorKind::Denied,
        Some(libc::EOPNOTSUPP) => ErrorKind::NotSupported,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{}: {what}", disk_path(number).display())).because(e)
}

impl Control {
    /// Connects to the driver.
    ///
    /// # Errors
    /// With what to do: the module is not loaded, the right is missing, or io_uring is.
    pub fn open() -> Result<Control, Error> {
        let file = open_device(Path::new(CONTROL_PATH), 0).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
                let hint = "the kernel's ublk driver is not loaded: `modprobe ublk_drv` (Linux 6.5 \
                            or later with CONFIG_BLK_DEV_UBLK)";
                Error::new(ErrorKind::NotSupported, format!("{CONTROL_PATH}: {hint}"))
            }
            Some(libc::EACCES | libc::EPERM) => {
                let hint = "block devices of the kernel are root's: run the daemon as root, or \
                            with CAP_SYS_ADMIN and access to this file";
                Error::new(ErrorKind::Denied, format!("{CONTROL_PATH}: {hint}"))
            }
            _ => Error::new(ErrorKind::Io, CONTROL_PATH).because(e),
        })?;
        let ring = ControlRing::new().map_err(|e| {
            let hint = "ublk: no ring for control commands: needs io_uring with long entries \
                        (Linux 5.19), sysctl kernel.io_uring_disabled = 0";
            Error::new(ErrorKind::NotSupported, hint).because(e)
        })?;
        Ok(Control { file: file.into(), ring })
    }

    fn send(
        &mut self,
        code: u32,
        number: u32,
        data: u64,
        path_len: u16,
        buf: &mut [u8],
    ) -> io::Result<u32> {
        let command = ControlCommand {
            device: number,
            queue: NO_QUEUE,
            data,
            path_len,
            ..Default::default()
        };
        self.ring.send(&self.file, code, command, buf)
    }

    fn send_simple(&mut self, what: &str, code: u32, number: u32, data: u64) -> Result<(), Error> {
        let sent = self.send(code, number, data, 0, &mut []);
        sent.map(drop).map_err(|e| refused(what, number, e))
    }

    /// What the driver can.
    ///
    /// # Errors
    /// When it lacks something that is needed, with the version of Linux that has it.
    pub fn features(&mut self) -> Result<Features, Error> {
        let mut bits = 0u64;
        match self.send(command::GET_FEATURES, 0, 0, 0, bits.as_mut_bytes()) {
            Ok(_) => {}
            // The right is checked by the commands that need it.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                let hint = "ublk: needs root, or CAP_SYS_ADMIN";
                return Err(Error::new(ErrorKind::Denied, hint).because(e));
            }
            Err(e) => {
                let hint = "ublk: the kernel's driver does not say what it can (GET_FEATURES), \
                            which Linux 6.5 brought";
                return Err(Error::new(ErrorKind::NotSupported, hint).because(e));
            }
        }
        let features = Features::from_bits_truncate(bits);
        match features.missing() {
            Some(what) => Err(Error::new(ErrorKind::NotSupported, format!("ublk: {what}"))),
            None => Ok(features),
        }
    }

    /// Adds a device. The kernel chooses its number.
    pub fn add(&mut self, new: &NewDevice) -> Result<KernelDevice, Error> {
        let mut info = DeviceInfo {
            queues: new.queues,
            depth: new.depth,
            max_io_bytes: new.max_io_bytes,
            number: ANY_NUMBER,
            flags: (new.features | Features::CMD_IOCTL_ENCODE).bits(),
            server_flags: new.identity.flags(),
            ..Default::default()
        };
        let added = self.send(command::ADD, ANY_NUMBER, 0, 0, info.as_mut_bytes());
        added.map_err(|e| {
            let denied = matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES));
            let kind = if denied { ErrorKind::Denied } else { ErrorKind::Io };
            let hint = if denied { "needs root, or CAP_SYS_ADMIN" } else { "no device was added" };
            Error::new(kind, format!("ublk: {hint}")).because(e)
        })?;
        Ok(device(&info))
    }

    /// Tells the kernel what a device is, before it is started.
    pub fn set_params(&mut self, number: u32, params: &Params) -> Result<(), Error> {
        let Params(mut params) = *params;
        let set = self.send(command::SET_PARAMS, number, 0, 0, params.as_mut_bytes());
        set.map(drop).map_err(|e| refused("its limits were refused", number, e))
    }

    /// What the kernel was told.
    pub fn params(&mut self, number: u32) -> Result<Params, Error> {
        let mut params = DeviceParams::new_zeroed();
        params.len = u32::try_from(size_of::<DeviceParams>()).expect("a small structure");
        let read = self.send(command::GET_PARAMS, number, 0, 0, params.as_mut_bytes());
        read.map_err(|e| refused("its limits can't be read", number, e))?;
        Ok(Params(params))
    }

    /// Opens the character device of a device, for its queues.
    ///
    /// # Errors
    /// `EBUSY` while a process has it open: only one can.
    pub fn open_char(&self, number: u32) -> Result<OwnedFd, Error> {
        let path = char_path(number);
        // Without O_NONBLOCK io_uring would send each copy of data to a thread of its own.
        let file = open_device(&path, libc::O_NONBLOCK);
        file.map(OwnedFd::from).map_err(|e| {
            let is_served = e.raw_os_error() == Some(libc::EBUSY);
            let kind = if is_served { ErrorKind::Busy } else { ErrorKind::Io };
            Error::new(kind, path.display().to_string()).because(e)
        })
    }

    /// Makes the block device. Waits until all tags were fetched, and for what the kernel reads of
    /// the device meanwhile (partitions).
    pub fn start(&mut self, number: u32) -> Result<(), Error> {
        let pid = u64::from(std::process::id());
        self.send_simple("it could not be started", command::START, number, pid)
    }

    /// Takes the block device away. What the kernel's page cache holds of it is written first; who
    /// has it open gets errors from then on. Ends what waits on the queues.
    pub fn stop(&mut self, number: u32) -> Result<(), Error> {
        self.send_simple("it could not be stopped", command::STOP, number, 0)
    }

    /// As [`Control::stop`], unless it is open. `features` are the driver's.
    ///
    /// # Errors
    /// `EBUSY` when it is open; before Linux 7.0 only a mount, or who else opens it exclusively,
    /// counts.
    pub fn try_stop(&mut self, number: u32, features: Features) -> Result<(), Error> {
        let in_use = || {
            let path = disk_path(number);
            Error::busy(format!("{} is open: unmount or close it first", path.display()))
        };
        if features.contains(Features::SAFE_STOP_DEV) {
            return match self.send(command::TRY_STOP, number, 0, 0, &mut []) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Err(in_use()),
                sent => sent.map(drop).map_err(|e| refused("it could not be stopped", number, e)),
            };
        }
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
            .open(disk_path(number));
        match opened {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Err(in_use()),
            // Without a path there is nobody who could have opened it by one.
            Err(_) => {}
            Ok(file) => drop(file),
        }
        self.stop(number)
    }

    /// Deletes a device that was stopped. Its number is free when nobody has it open any more.
    pub fn delete(&mut self, number: u32) -> Result<(), Error> {
        match self.send(command::DELETE_ASYNC, number, 0, 0, &mut []) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                self.send_simple("it could not be deleted", command::DELETE, number, 0)
            }
            sent => sent.map(drop).map_err(|e| refused("it could not be deleted", number, e)),
        }
    }

    /// A device. `None`: there is none of this number, or it is another user's.
    pub fn device(&mut self, number: u32) -> Option<KernelDevice> {
        // The kernel checks the right at the path, and then writes what comes after it.
        let mut path = char_path(number).into_os_string().into_encoded_bytes();
        path.push(0);
        // The structure has to be aligned as the kernel's own copy does not ask for; any place is.
        let path_len = u16::try_from(path.len()).expect("a short path");
        let mut buf = path;
        buf.resize(usize::from(path_len) + size_of::<DeviceInfo>(), 0);
        self.send(command::GET_INFO_BY_PATH, number, 0, path_len, &mut buf).ok()?;
        let info = DeviceInfo::read_from_bytes(&buf[usize::from(path_len)..]).ok()?;
        Some(device(&info))
    }

    /// All devices of millpond, of any daemon.
    pub fn devices(&mut self) -> Vec<KernelDevice> {
        let all = numbers().into_iter().filter_map(|number| self.device(number));
        let mut all: Vec<_> = all.collect();
        all.retain(|device| device.identity.is_some());
        all
    }

    /// Gives a device in use another size.
    pub fn update_size(&mut self, number: u32, capacity: Sector) -> Result<(), Error> {
        self.send_simple("its size could not be set", command::UPDATE_SIZE, number, capacity.0)
    }

    /// Prepares a device whose server is gone for another one.
    ///
    /// # Errors
    /// `EBUSY` while the last server has not ended completely.
    pub fn start_recovery(&mut self, number: u32) -> Result<(), Error> {
        match self.send(command::START_RECOVERY, number, 0, 0, &mut []) {
            // Older kernels say so when it is prepared already: by a server that died then.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            sent => sent.map(drop).map_err(|e| refused("it can't be taken over", number, e)),
        }
    }

    /// Sends the requests that wait to this process, once all tags were fetched.
    pub fn end_recovery(&mut self, number: u32) -> Result<(), Error> {
        let pid = u64::from(std::process::id());
        self.send_simple("it could not be taken over", command::END_RECOVERY, number, pid)
    }
}

fn device(info: &DeviceInfo) -> KernelDevice {
    KernelDevice {
        number: info.number,
        state: match info.state {
            0 => State::Dead,
            2 => State::Quiesced,
            3 => State::Failing,
            _ => State::Live,
        },
        pid: info.pid,
        identity: Identity::of_flags(info.server_flags),
        features: Features::from_bits_truncate(info.flags),
        queues: info.queues,
        depth: info.depth,
        max_io_bytes: info.max_io_bytes,
    }
}
