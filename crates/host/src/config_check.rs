// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks a configuration without making its devices: `daemon --check-config`.
//!
//! ```text
//!   options      addresses, memory, times             as at start
//!   [[device]]   table ─▶ constructor of each target over stand-ins of its devices
//!                attributes ─▶ names and values by the target's table
//! ```
//!
//! A stand-in has the size of what it stands for and fails each request. So nothing is opened for
//! writing, locked or changed, and a daemon that is at work on the same files is not disturbed.
//! What only the contents of a device or its owner can show is not found: the superblock of a cache
//! that does not fit, a file in use, a server that does not answer.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;

use block::attr::{self, Manual, Spec};
use block::{BlockDevice, Error, LocalFuture, Sector};
use control::Failure;
use dm::{Dm, Line, Remove, Resolver};
use queue::Null;

use crate::addr::Addr;
use crate::config::{Config, DeviceConfig, of_device};
use crate::core_thread::CoreHandle;
use crate::daemon::{busy_poll_limit, shutdown_time};
use crate::engine::Engine;
use crate::leaf_word::{LeafWord, OwnMount, file_error, parse};
use crate::socket_access::socket_access;
use crate::{memory, targets, tls};

/// Returns all that is wrong with a configuration, in the order of the file.
///
/// # Errors
/// When the check itself can't run.
pub(crate) async fn problems(config: Config) -> Result<Vec<Failure>, Failure> {
    let Config { serve, devices, .. } = config;
    let mut found = Vec::new();
    let certificates = serve.nbd_tls_certs.as_deref().map(tls::server_option).transpose();
    let certificates = certificates.unwrap_or_else(|failure| {
        found.push(failure);
        None
    });
    let nbd_remote = serve.allow_remote || tls::protects(certificates.as_ref());
    let addresses = serve.nbd.iter().map(|text| ("--nbd", text, nbd_remote));
    let http = serve.http.iter().map(|text| ("--http", text, serve.allow_remote));
    let metrics = serve.metrics.iter().map(|text| ("--metrics", text, serve.allow_remote));
    for (option, text, allow_remote) in addresses.chain(http).chain(metrics) {
        found.extend(Addr::parse(option, text, allow_remote).err());
    }
    found.extend(shutdown_time(serve.shutdown_timeout.as_deref()).err());
    found.extend(busy_poll_limit(serve.busy_poll.as_deref()).err());
    found.extend(socket_access(&serve).err());
    found.extend(memory::of_guests(serve.vhost_memory.as_deref()).err());
    found.extend(memory::set(serve.memory.as_deref()).err());
    if let Some(name) = &serve.default_export
        && !devices.iter().any(|device| device.name == *name)
    {
        let text = format!("default_export `{name}`: no device of the file has this name");
        found.push(Error::not_found(text).into());
    }
    let started = CoreHandle::start(None, serve.cores.unwrap_or(1), None).or_else(|failure| {
        found.push(failure);
        CoreHandle::start(None, 1, None)
    });
    let (core, threads) = started?;
    let problems = core.call(async move |engine: Rc<Engine>| check_devices(&engine, devices).await);
    found.extend(problems.await?);
    core.end().await;
    threads.join();
    Ok(found)
}

async fn check_devices(engine: &Engine, devices: Vec<DeviceConfig>) -> Vec<Failure> {
    let sizes = Sizes::default();
    let mut found = Vec::new();
    for device in devices {
        let within = |e: Error| of_device(&device.name, e.into()).within(&device.place);
        let lines = match &device.table {
            Some(table) => match dm::parse(table) {
                Ok(lines) => Some(lines),
                Err(e) => {
                    found.push(within(e));
                    None
                }
            },
            None => Some(Vec::new()),
        };
        let mut size = Sector::ZERO;
        if let (Some(table), Some(_)) = (&device.table, &lines) {
            match construct(engine, &sizes, &device.name, table).await {
                Ok(constructed) => size = constructed,
                Err(e) => found.push(within(e)),
            }
        }
        if let Some(lines) = lines {
            found.extend(check_attributes(&device, &lines).into_iter().map(within));
            sizes.borrow_mut().by_name.insert(device.name.clone(), size);
        }
        sizes.borrow_mut().by_minor.push(device.name);
    }
    found
}

type Sizes = Rc<RefCell<DeviceSizes>>;

/// The devices of the file so far.
#[derive(Default)]
struct DeviceSizes {
    by_name: BTreeMap<String, Sector>,
    /// Names, in the order in which the devices get their numbers.
    by_minor: Vec<String>,
}

impl DeviceSizes {
    /// The size of the device that a table's word means, as `Dm::find` has it.
    fn find(&self, word: &str) -> Option<Sector> {
        let name = word.strip_prefix("/dev/mapper/").unwrap_or(word);
        let major = format!("{}:", dm::MAJOR);
        let by_minor = || {
            let word = word.strip_prefix("/dev/").unwrap_or(word);
            let minor = word.strip_prefix("dm-").or_else(|| word.strip_prefix(&major))?;
            self.by_minor.get(minor.parse::<usize>().ok()?)
        };
        let found = self.by_name.get(name).or_else(|| self.by_name.get(&dm::unmangle(name)));
        found.or_else(|| self.by_name.get(by_minor()?)).copied()
    }
}

/// Has each target of a table constructed, in a device mapper of its own. Returns its size.
async fn construct(
    engine: &Engine,
    sizes: &Sizes,
    name: &str,
    table: &str,
) -> Result<Sector, Error> {
    let dm = Dm::new(Rc::new(StandIns(sizes.clone())));
    targets::register_targets(&dm, &engine.leaves, &[block::CoreId(0)]);
    let minor = u32::try_from(sizes.borrow().by_minor.len()).ok();
    let device = dm.create_at(name, None, minor, None, None, &|| true).await?;
    let loaded = dm.load(name, table).await;
    let size = device.inactive_table().last().map_or(0, |line| line.start + line.len);
    drop(device);
    dm.remove(name, Remove::IfUnused).await?;
    loaded.map(|()| Sector(size))
}

/// Checks names and values of attributes by the tables of the targets that the device has.
fn check_attributes(device: &DeviceConfig, lines: &[Line]) -> Vec<Error> {
    let is_of = |manual: &&'static Manual| match device.table {
        Some(_) => lines.iter().any(|line| line.kind == manual.name),
        None => manual.name == zram::MANUAL.name,
    };
    let mut specs: Vec<&'static Spec> =
        targets::manuals().into_iter().filter(is_of).flat_map(|manual| (manual.specs)()).collect();
    specs.extend(dm::attributes_of_all());
    if device.table.is_some() {
        specs.extend(dm::attributes_of_tables());
    }
    let check = |(name, value): &(String, String)| {
        let Some(spec) = specs.iter().find(|spec| spec.name == name) else {
            return Some(attr::unknown("attributes", name, &attr::names(&specs)));
        };
        if !spec.access.writes() {
            return Some(attr::read_only(name));
        }
        spec.parse(value).err()
    };
    device.attributes.iter().filter_map(check).collect()
}

/// Finds a stand-in for each word of a table.
struct StandIns(Sizes);

impl Resolver for StandIns {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        // No request is sent to it.
        let stand_in = |capacity| Rc::new(Null::new(word, capacity)) as Rc<dyn BlockDevice>;
        let opened = self.find(word).map(stand_in);
        Box::pin(async move { opened })
    }
}

impl StandIns {
    /// Size of what `word` names.
    fn find(&self, word: &str) -> Result<Sector, Error> {
        if let Some(size) = self.0.borrow().find(word) {
            return Ok(size);
        }
        match parse(word)? {
            LeafWord::Path(path) | LeafWord::Pmem(path) => {
                OwnMount::default().check_openable(word)?;
                length(&path).map_err(|e| file_error(&e, word))
            }
            LeafWord::Mem(size) | LeafWord::Null(size) => Ok(size),
            // Only its server knows.
            LeafWord::Nbd(_) => Ok(UNKNOWN_SIZE),
        }
    }
}

/// Stands for a size that is not known: more than any device has, and yet a thousand of them fit
/// into a table.
const UNKNOWN_SIZE: Sector = Sector(dm::SECTORS_MAX.0 >> 10);

/// Of a file or a block device. A DAX device does not report it before it is mapped.
fn length(path: &Path) -> std::io::Result<Sector> {
    let mut file = std::fs::File::open(path)?;
    if file.metadata()?.file_type().is_char_device() {
        return Ok(UNKNOWN_SIZE);
    }
    file.seek(SeekFrom::End(0)).map(Sector::from_bytes)
}
