// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of devices by sysfs's paths: those that the kernel shows of every disk, as far as
//! they apply, and those of the device's targets, which take precedence.
use std::rc::Rc;

use block::attr::{self, Attr, Kind, Spec, figure, text};
use block::value::Value;
use block::{Access, BlockDevice, Error, Limits, Op};
use dm::{Dm, MappedDevice};
use queue::Leaf;
use queue::wbt::Wbt;

use crate::exported::ExportedDevice;

/// What a discard or write zeroes may cover at most, in bytes: 2^32 - 1 sectors, as Linux 7.3 shows
/// of its devices that have no bound of their own (zram, zero, error).
const RANGE_BYTES_MAX: u64 = (u32::MAX as u64) << 9;

/// A flag that can only be read.
const BIT: Spec = Spec::new("", Kind::Flag, "");

block::attrs! {
    /// Attributes that the limits of a device hold.
    static OF_LIMITS: [Attr<Limits>];

    size: figure("sectors"), "size", get |l| l.capacity.0;
    "queue/logical_block_size": figure("bytes"), "smallest request",
        get |l| l.logical_block_bytes;
    "queue/hw_sector_size": figure("bytes"), "the same", get |l| l.logical_block_bytes;
    "queue/physical_block_size": figure("bytes"), "what the device writes as a whole",
        get |l| l.physical_block_bytes;
    "queue/minimum_io_size": figure("bytes"), "smallest request that is fast",
        get |l| l.io_min_bytes;
    "queue/optimal_io_size": figure("bytes"), "best request; 0 when not known",
        get |l| l.io_opt_bytes;
    "queue/max_sectors_kb": figure("KiB"), "largest request", get |l| l.max_io_bytes >> 10;
    "queue/max_hw_sectors_kb": figure("KiB"), "the same", get |l| l.max_io_bytes >> 10;
    "queue/discard_granularity": figure("bytes"), "unit of a discard; 0 when it has none",
        get |l| l.discard_granularity_bytes;
    "queue/discard_max_bytes": figure("bytes"), "largest discard",
        get |l| range_max(l.discard_granularity_bytes > 0);
    "queue/discard_max_hw_bytes": figure("bytes"), "the same",
        get |l| range_max(l.discard_granularity_bytes > 0);
    "queue/write_zeroes_max_bytes": figure("bytes"), "largest write of zeroes",
        get |l| range_max(l.write_zeroes);
    "queue/atomic_write_unit_min_bytes": figure("bytes"), "0: no file takes RWF_ATOMIC",
        get |_l| 0_u64;
    "queue/rotational": BIT, "1: a disk with a moving head", get |l| l.rotational;
    "queue/write_cache": text("write back, or write through"), "whether a FLUSH is of use",
        get |l| if is_write_back(l) { "write back" } else { "write through" };
    // As in the kernel, where a device without a volatile cache has no use for it.
    "queue/fua": BIT, "1: FUA makes a write durable", get |l| is_write_back(l);
    removable: BIT, "always 0", get |_l| false;
}

fn is_write_back(limits: &Limits) -> bool {
    limits.volatile_cache && limits.keeps
}

fn range_max(can: bool) -> u64 {
    if can { RANGE_BYTES_MAX } else { 0 }
}

block::attrs! {
    /// Attributes of every device.
    static OF_ALL: [Attr<ExportedDevice>];

    ro: BIT, "1: it is read-only", get |exported| exported.read_only();
}

block::attrs! {
    /// Attributes that only mapped devices have.
    static OF_MAPPED: [Attr<MappedDevice>];

    dev: text("MAJOR:MINOR"), "its number", get |device| {
        let info = device.info();
        format!("{}:{}", info.major, info.minor)
    };
    "dm/name": text("a name"), "its name", get |device| device.info().name;
    "dm/suspended": BIT, "1: its requests wait", get |device| device.info().suspended;
    "dm/uuid": text("a UUID"), "its UUID", get |device| device.info().uuid.unwrap_or_default();
}

block::attrs! {
    /// Attributes that only leaves have: they count.
    static OF_LEAVES: [Attr<Rc<dyn Leaf>>];

    stat: text("17 numbers"), "requests and sectors so far", get |leaf| stat(&**leaf);
}

/// The attributes that do not belong to a target type, by those who have them.
pub(crate) fn tables() -> Vec<(&'static str, Vec<&'static Spec>)> {
    let mut of_leaves = Wbt::attributes();
    of_leaves.extend(attr::specs(&OF_LEAVES));
    let mut of_files = attr::specs(&OF_LIMITS);
    of_files.extend(attr::specs(&OF_ALL));
    of_files.extend(attr::specs(&OF_MAPPED));
    let mut of_mapped = dm::attributes_of_all();
    of_mapped.extend(dm::attributes_of_tables());
    vec![
        ("mapped devices", of_mapped),
        ("leaves", of_leaves),
        ("devices as files (FUSE), and leaves", of_files),
    ]
}

/// All attributes of a device, by path.
pub(crate) fn attributes(dm: &Dm, exported: &ExportedDevice) -> Vec<&'static Spec> {
    // Of one path the first counts: a target's goes before ours.
    let mut all = match exported {
        ExportedDevice::Mapped(device) => dm.attributes(device.name()).unwrap_or_default(),
        ExportedDevice::Leaf(leaf) => leaf.wbt().map(|_| Wbt::attributes()).unwrap_or_default(),
    };
    all.extend(attr::specs(&OF_LIMITS));
    all.extend(attr::specs(&OF_ALL));
    all.extend(match exported {
        ExportedDevice::Mapped(_) => attr::specs(&OF_MAPPED),
        ExportedDevice::Leaf(_) => attr::specs(&OF_LEAVES),
    });
    all.sort_by_key(|spec| spec.name);
    all.dedup_by_key(|spec| spec.name);
    all
}

fn is_of_targets(dm: &Dm, device: &MappedDevice, path: &str) -> bool {
    let known = dm.attributes(device.name()).unwrap_or_default();
    known.iter().any(|spec| spec.name == path)
}

fn unknown(dm: &Dm, exported: &ExportedDevice, path: &str) -> Error {
    let name = exported.device().name().to_owned();
    let why = match exported {
        ExportedDevice::Leaf(leaf) if leaf.is_in_memory() => {
            ", for it is in memory and has no queue"
        }
        ExportedDevice::Mapped(_) | ExportedDevice::Leaf(_) => "",
    };
    let hint = block::name_hint(path, &attr::names(&attributes(dm, exported)));
    Error::not_found(format!("{name}: no attribute `{path}`{why}: {hint}"))
}

/// Whether an attribute has a value of one line: others are shown one at a time.
pub(crate) fn is_line(spec: &Spec) -> bool {
    matches!(spec.access, Access::Read | Access::ReadWrite)
}

/// The throttle of the leaf that has this attribute, if it is one of a throttle.
fn throttle<'a>(exported: &'a ExportedDevice, path: &str) -> Option<&'a Wbt> {
    let has = || Wbt::attributes().iter().any(|spec| spec.name == path);
    match exported {
        ExportedDevice::Mapped(_) => None,
        ExportedDevice::Leaf(leaf) => leaf.wbt().filter(|_| has()),
    }
}

/// Reads an attribute.
pub(crate) async fn get(dm: &Dm, exported: &ExportedDevice, path: &str) -> Result<Value, Error> {
    if let ExportedDevice::Mapped(device) = exported
        && is_of_targets(dm, device, path)
    {
        return dm.get_attribute(device.name(), path).await;
    }
    if let Some(wbt) = throttle(exported, path) {
        return wbt.get(path);
    }
    let value = attr::get(&OF_LIMITS, path, &exported.device().limits());
    let value = value.or_else(|| attr::get(&OF_ALL, path, exported));
    let value = value.or_else(|| match exported {
        ExportedDevice::Mapped(device) => attr::get(&OF_MAPPED, path, device),
        ExportedDevice::Leaf(leaf) => attr::get(&OF_LEAVES, path, leaf),
    });
    value.ok_or_else(|| unknown(dm, exported, path))
}

/// The 17 columns of `/sys/block/NAME/stat`. Requests are never merged here, and times are not
/// taken: those columns are 0.
fn stat(leaf: &dyn Leaf) -> String {
    let of = |op| {
        let counts = leaf.stats().of(op);
        [counts.ios, 0, counts.bytes >> 9, 0]
    };
    let (read, write, discard) = (of(Op::Read), of(Op::Write), of(Op::Discard));
    let flush = leaf.stats().of(Op::Flush).ios;
    let middle = [leaf.stats().in_flight(), 0, 0];
    let columns = read.into_iter().chain(write).chain(middle).chain(discard).chain([flush, 0]);
    columns.map(|n| format!("{n:8}")).collect::<Vec<_>>().join(" ")
}

/// Sets an attribute.
pub(crate) async fn set(
    dm: &Dm,
    exported: &ExportedDevice,
    path: &str,
    value: &str,
) -> Result<(), Error> {
    if let Some(wbt) = throttle(exported, path) {
        wbt.set(path, value)?;
        tracing::info!(device = exported.device().name(), attr = path, value, "attribute set");
        return Ok(());
    }
    match exported {
        ExportedDevice::Mapped(device) if is_of_targets(dm, device, path) => {
            dm.set_attribute(device.name(), path, value).await?;
            tracing::info!(device = device.name(), attr = path, value, "attribute set");
            Ok(())
        }
        ExportedDevice::Mapped(_) | ExportedDevice::Leaf(_) => {
            if attributes(dm, exported).iter().all(|spec| spec.name != path) {
                return Err(unknown(dm, exported, path));
            }
            Err(attr::read_only(path).within(exported.device().name()))
        }
    }
}
