// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of devices by sysfs's paths: those that the kernel shows of every disk, as far as
//! they apply, and those of the device's targets, which take precedence.
use block::{Access, BlockDevice, Error, ErrorKind, Limits, Op};
use dm::Dm;
use fuse::Attribute;
use queue::Leaf;
use queue::wbt::Wbt;

use crate::exported::ExportedDevice;

/// What a discard or write zeroes may cover at most: the kernel's largest request, in bytes.
const RANGE_BYTES_MAX: u32 = (u32::MAX >> 9) << 9;

type Show = fn(&Limits) -> String;

/// Attributes that the limits of a device hold.
const OF_LIMITS: [(&str, Show); 17] = [
    ("size", |l| l.capacity.0.to_string()),
    ("queue/logical_block_size", |l| l.logical_block_bytes.to_string()),
    ("queue/hw_sector_size", |l| l.logical_block_bytes.to_string()),
    ("queue/physical_block_size", |l| l.physical_block_bytes.to_string()),
    ("queue/minimum_io_size", |l| l.io_min_bytes.to_string()),
    ("queue/optimal_io_size", |l| l.io_opt_bytes.to_string()),
    ("queue/max_sectors_kb", |l| (l.max_io_bytes >> 10).to_string()),
    ("queue/max_hw_sectors_kb", |l| (l.max_io_bytes >> 10).to_string()),
    ("queue/discard_granularity", |l| l.discard_granularity_bytes.to_string()),
    ("queue/discard_max_bytes", |l| range_max(l.discard_granularity_bytes > 0)),
    ("queue/discard_max_hw_bytes", |l| range_max(l.discard_granularity_bytes > 0)),
    ("queue/write_zeroes_max_bytes", |l| range_max(l.write_zeroes)),
    ("queue/atomic_write_unit_min_bytes", |l| l.atomic_write_unit_bytes.to_string()),
    ("queue/rotational", |l| number(l.rotational)),
    ("queue/write_cache", |l| {
        // As the kernel: whether flushes have an effect.
        if l.volatile_cache && l.keeps { "write back" } else { "write through" }.to_owned()
    }),
    ("queue/fua", |l| number(l.keeps)),
    ("removable", |_| number(false)),
];

fn number(yes: bool) -> String {
    u8::from(yes).to_string()
}

fn range_max(can: bool) -> String {
    if can { RANGE_BYTES_MAX } else { 0 }.to_string()
}

/// Attributes that only mapped devices have.
const OF_MAPPED: [&str; 4] = ["dev", "dm/name", "dm/suspended", "dm/uuid"];
/// Attributes that only leaves have: they count.
const OF_LEAVES: [&str; 1] = ["stat"];

/// All attributes of a device.
pub(crate) fn attributes(dm: &Dm, exported: &ExportedDevice) -> Vec<Attribute> {
    let own = match exported {
        ExportedDevice::Mapped(_) => &OF_MAPPED[..],
        ExportedDevice::Leaf(_) => &OF_LEAVES[..],
    };
    let of_limits = OF_LIMITS.iter().map(|(path, _)| *path);
    let ours = of_limits.chain(["ro"]).chain(own.iter().copied());
    let targets = of_targets(dm, exported);
    let read_only =
        |path: &str| Attribute { path: path.to_owned(), readable: true, writable: false };
    let mut all: Vec<Attribute> =
        ours.filter(|path| !targets.contains(path)).map(read_only).collect();
    let more = |path: &str, access: Access| {
        let (readable, writable) = (access.reads(), access.writes());
        Attribute { path: path.to_owned(), readable, writable }
    };
    match exported {
        ExportedDevice::Mapped(device) => {
            let access = |path| dm.access(device.name(), path).unwrap_or(Access::Read);
            all.extend(targets.iter().map(|path| more(path, access(path))));
        }
        ExportedDevice::Leaf(leaf) => {
            let throttle = leaf.wbt().map(|_| Wbt::attributes()).unwrap_or_default();
            all.extend(throttle.iter().map(|path| more(path, Wbt::access(path))));
        }
    }
    all.sort();
    all
}

fn of_targets(dm: &Dm, exported: &ExportedDevice) -> Vec<&'static str> {
    match exported {
        ExportedDevice::Mapped(device) => dm.attributes(device.name()).unwrap_or_default(),
        ExportedDevice::Leaf(_) => Vec::new(),
    }
}

fn unknown(dm: &Dm, exported: &ExportedDevice, path: &str) -> Error {
    let name = exported.device().name().to_owned();
    let why = match exported {
        ExportedDevice::Leaf(leaf) if leaf.is_in_memory() => {
            ", for it is in memory and has no queue"
        }
        ExportedDevice::Mapped(_) | ExportedDevice::Leaf(_) => "",
    };
    let known: Vec<String> = attributes(dm, exported).into_iter().map(|a| a.path).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = block::name_hint(path, &known);
    Error::not_found(format!("{name}: no attribute `{path}`{why}: {hint}"))
}

/// Whether an attribute of a leaf has a value of one line. Others are read one at a time only.
pub(crate) fn is_line(attribute: &Attribute) -> bool {
    let of_throttle = Wbt::attributes().contains(&&*attribute.path);
    attribute.readable && !(of_throttle && Wbt::access(&attribute.path) == Access::ReadMany)
}

/// The throttle of the leaf that has this attribute, if it is one of a throttle.
fn throttle<'a>(exported: &'a ExportedDevice, path: &str) -> Option<&'a Wbt> {
    match exported {
        ExportedDevice::Mapped(_) => None,
        ExportedDevice::Leaf(leaf) => leaf.wbt().filter(|_| Wbt::attributes().contains(&path)),
    }
}

/// Reads an attribute.
pub(crate) async fn get(dm: &Dm, exported: &ExportedDevice, path: &str) -> Result<String, Error> {
    if let ExportedDevice::Mapped(device) = exported
        && of_targets(dm, exported).contains(&path)
    {
        return dm.get_attribute(device.name(), path).await;
    }
    if let Some((_, show)) = OF_LIMITS.iter().find(|(p, _)| *p == path) {
        return Ok(show(&exported.device().limits()));
    }
    if let Some(wbt) = throttle(exported, path) {
        return wbt.get(path);
    }
    match (exported, path) {
        (_, "ro") => Ok(number(exported.read_only())),
        (ExportedDevice::Mapped(device), _) => {
            let info = device.info();
            match path {
                "dev" => Ok(format!("{}:{}", info.major, info.minor)),
                "dm/name" => Ok(info.name),
                "dm/uuid" => Ok(info.uuid.unwrap_or_default()),
                "dm/suspended" => Ok(number(info.suspended)),
                _ => Err(unknown(dm, exported, path)),
            }
        }
        (ExportedDevice::Leaf(leaf), "stat") => Ok(stat(&**leaf)),
        (ExportedDevice::Leaf(_), _) => Err(unknown(dm, exported, path)),
    }
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
        ExportedDevice::Mapped(device) if of_targets(dm, exported).contains(&path) => {
            dm.set_attribute(device.name(), path, value).await?;
            tracing::info!(device = device.name(), attr = path, value, "attribute set");
            Ok(())
        }
        ExportedDevice::Mapped(_) | ExportedDevice::Leaf(_) => {
            if attributes(dm, exported).iter().all(|a| a.path != path) {
                return Err(unknown(dm, exported, path));
            }
            let name = exported.device().name().to_owned();
            let e = format!("{name}: attribute `{path}` is read-only");
            Err(Error::new(ErrorKind::Denied, e))
        }
    }
}
