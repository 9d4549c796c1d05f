// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of devices by sysfs's paths: those that the kernel shows of every disk, as far as
//! they apply, and those of the device's targets, which take precedence.
use std::rc::Rc;

use block::attr::{self, Attr, Kind, Spec};
use block::value::Value;
use block::{Access, BlockDevice, Error, Limits, Op};
use dm::{Dm, MappedDevice};
use queue::Leaf;
use queue::wbt::Wbt;

use crate::exported::ExportedDevice;

/// What a discard or write zeroes may cover at most, in bytes: 2^32 - 1 sectors, as Linux 7.3 shows
/// of its devices that have no bound of their own (zram, zero, error).
const RANGE_BYTES_MAX: u64 = (u32::MAX as u64) << 9;

const fn number<T>(
    path: &'static str,
    unit: &'static str,
    help: &'static str,
    get: fn(&T) -> Value,
) -> Attr<T> {
    Attr::read(Spec::new(path, Kind::Number { min: 0, max: u64::MAX, unit }, help), get)
}

const fn flag<T>(path: &'static str, help: &'static str, get: fn(&T) -> Value) -> Attr<T> {
    Attr::read(Spec::new(path, Kind::Flag, help), get)
}

const fn text<T>(
    path: &'static str,
    form: &'static str,
    help: &'static str,
    get: fn(&T) -> Value,
) -> Attr<T> {
    Attr::read(Spec::new(path, Kind::Text(form), help), get)
}

/// Attributes that the limits of a device hold.
static OF_LIMITS: [Attr<Limits>; 17] = [
    number("size", "sectors", "size", |l| l.capacity.0.into()),
    number("queue/logical_block_size", "bytes", "smallest request", |l| {
        l.logical_block_bytes.into()
    }),
    number("queue/hw_sector_size", "bytes", "the same", |l| l.logical_block_bytes.into()),
    number("queue/physical_block_size", "bytes", "what the device writes as a whole", |l| {
        l.physical_block_bytes.into()
    }),
    number("queue/minimum_io_size", "bytes", "smallest request that is fast", |l| {
        l.io_min_bytes.into()
    }),
    number("queue/optimal_io_size", "bytes", "best request; 0 when not known", |l| {
        l.io_opt_bytes.into()
    }),
    number("queue/max_sectors_kb", "KiB", "largest request", |l| (l.max_io_bytes >> 10).into()),
    number("queue/max_hw_sectors_kb", "KiB", "the same", |l| (l.max_io_bytes >> 10).into()),
    number("queue/discard_granularity", "bytes", "unit of a discard; 0 when it has none", |l| {
        l.discard_granularity_bytes.into()
    }),
    number("queue/discard_max_bytes", "bytes", "largest discard", |l| {
        range_max(l.discard_granularity_bytes > 0)
    }),
    number("queue/discard_max_hw_bytes", "bytes", "the same", |l| {
        range_max(l.discard_granularity_bytes > 0)
    }),
    number("queue/write_zeroes_max_bytes", "bytes", "largest write of zeroes", |l| {
        range_max(l.write_zeroes)
    }),
    number("queue/atomic_write_unit_min_bytes", "bytes", "0: no file takes RWF_ATOMIC", |_| {
        0_u64.into()
    }),
    flag("queue/rotational", "1: a disk with a moving head", |l| l.rotational.into()),
    text("queue/write_cache", "write back, or write through", "whether a FLUSH is of use", |l| {
        if is_write_back(l) { "write back" } else { "write through" }.into()
    }),
    // As in the kernel, where a device without a volatile cache has no use for it.
    flag("queue/fua", "1: FUA makes a write durable", |l| is_write_back(l).into()),
    flag("removable", "always 0", |_| false.into()),
];

fn is_write_back(limits: &Limits) -> bool {
    limits.volatile_cache && limits.keeps
}

fn range_max(can: bool) -> Value {
    if can { RANGE_BYTES_MAX } else { 0_u64 }.into()
}

/// Attributes of every device.
static OF_ALL: [Attr<ExportedDevice>; 1] =
    [flag("ro", "1: it is read-only", |exported| exported.read_only().into())];

/// Attributes that only mapped devices have.
static OF_MAPPED: [Attr<MappedDevice>; 4] = [
    text("dev", "MAJOR:MINOR", "its number", |device| {
        let info = device.info();
        format!("{}:{}", info.major, info.minor).into()
    }),
    text("dm/name", "a name", "its name", |device| device.info().name.into()),
    flag("dm/suspended", "1: its requests wait", |device| device.info().suspended.into()),
    text("dm/uuid", "a UUID", "its UUID", |device| device.info().uuid.unwrap_or_default().into()),
];

/// Attributes that only leaves have: they count.
static OF_LEAVES: [Attr<Rc<dyn Leaf>>; 1] =
    [text("stat", "17 numbers", "requests and sectors so far", |leaf| stat(&**leaf).into())];

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

/// The value of `path`, if `table` has it.
fn of<T>(table: &'static [Attr<T>], path: &str, it: &T) -> Option<Value> {
    Some(attr::find(table, path)?.get?(it))
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
    let value =
        of(&OF_LIMITS, path, &exported.device().limits()).or_else(|| of(&OF_ALL, path, exported));
    let value = value.or_else(|| match exported {
        ExportedDevice::Mapped(device) => of(&OF_MAPPED, path, device),
        ExportedDevice::Leaf(leaf) => of(&OF_LEAVES, path, leaf),
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
