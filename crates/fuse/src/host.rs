// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this room asks of the program: which devices there are, their attributes, and their I/O.
use block::Error;

use crate::job::Job;

/// A device for as long as it lives; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId(pub u64);

/// A device held open by one open file. Less than 2^62.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// A device as a directory shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Which device it is.
    pub id: DeviceId,
    /// Name of its file: no slash in it.
    pub file_name: String,
    /// Whether it is a mapped device, and shown below `dev/mapper` too.
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

/// What is to be told once of an attribute's read or write, on any thread, however long it takes.
/// Dropped untold, the request fails.
pub type Answer<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// The program behind the files. Called on threads of this room; what returns something may block
/// for a moment. When the program is ending, nothing is there any more.
pub trait Host: Send + Sync + 'static {
    /// All devices, by file name, each name once.
    fn devices(&self) -> Vec<Device>;

    /// The device whose file has this name.
    fn find(&self, file_name: &str) -> Option<Device>;

    /// The device, while it is there.
    fn device(&self, id: DeviceId) -> Option<Device>;

    /// Holds a device open: it can't be removed until [`Host::close`], which is called once.
    fn open(&self, id: DeviceId) -> Result<OpenId, Error>;

    /// Ends what [`Host::open`] began. No job of it is in flight.
    fn close(&self, open: OpenId);

    /// Has a job served by the device ([`Job::serve`]) without waiting for it. A job that is
    /// dropped has failed.
    fn run(&self, open: OpenId, job: Job);

    /// All attributes of a device.
    fn attributes(&self, id: DeviceId) -> Vec<Attribute>;

    /// Reads an attribute, without waiting for it.
    fn read_attribute(&self, id: DeviceId, path: &str, answer: Answer<String>);

    /// Sets an attribute, without waiting for it: what it asks for may take minutes.
    fn write_attribute(&self, id: DeviceId, path: &str, value: &str, answer: Answer<()>);
}
