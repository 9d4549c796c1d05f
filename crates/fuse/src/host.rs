// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface to the program: the list of devices, their attributes, and their I/O.
use block::Error;

use crate::job::Job;

/// Id of a device; never reused for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId(pub u64);

/// Id of a device that an open file holds open. Less than 2^62.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// A device as an entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its id.
    pub id: DeviceId,
    /// Name of its file: no slash in it.
    pub file_name: String,
    /// Whether it is a mapped device, which is also shown below `dev/mapper`.
    pub mapped: bool,
    /// Size.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// An attribute of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attribute {
    /// Its path below `sys/block/NAME`.
    pub path: String,
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be set.
    pub writable: bool,
}

/// Callback for one attribute operation; called at most once, on any thread, after any time. If it
/// is dropped instead, the request fails.
pub type AttributeReply<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// The process that makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its number.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// The program behind the files. Its methods are called on threads of this crate. Those that return
/// a value may block for a moment. While the program is ending, there are no devices.
pub trait Host: Send + Sync + 'static {
    /// All devices; file names are unique.
    fn devices(&self) -> Vec<Device>;

    /// The device whose file has this name.
    fn find(&self, file_name: &str) -> Option<Device>;

    /// The device, while it exists.
    fn device(&self, id: DeviceId) -> Option<Device>;

    /// Opens a device: it can't be removed until [`Host::close`], which is called once.
    fn open(&self, id: DeviceId, by: Caller) -> Result<OpenId, Error>;

    /// Closes what [`Host::open`] has opened. No job of it is in flight.
    fn close(&self, open: OpenId);

    /// Starts a job on the device ([`Job::serve`]) without waiting for it. Dropping the job fails
    /// it.
    fn run(&self, open: OpenId, job: Job);

    /// All attributes of a device.
    fn attributes(&self, id: DeviceId) -> Vec<Attribute>;

    /// Reads an attribute, without waiting for it.
    fn read_attribute(&self, id: DeviceId, path: &str, answer: AttributeReply<String>);

    /// Sets an attribute, without waiting for it: the operation may take minutes.
    fn write_attribute(&self, id: DeviceId, path: &str, value: &str, answer: AttributeReply<()>);
}
