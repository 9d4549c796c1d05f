// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of devices by sysfs's paths: what the kernel shows of every disk, as far as it is
//! known here, and what the device's targets add. A target's attribute goes before ours.
use block::{Access, BlockDevice, Error, ErrorKind, Limits, Op};
use fuse::Attribute;
use queue::wbt::Wbt;

use crate::engine::Engine;
use crate::fuse::Shown;

/// What a discard or write zeroes may cover at most: the kernel's largest request, in bytes.
const RANGE_BYTES_MAX: u32 = (u32::MAX >> 9) << 9;

type Show = fn(&Limits) -> String;

/// Attributes that limits tell.
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
        // As the kernel: who asks wants to know whether flushes are of any use.
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
pub(crate) fn attributes(engine: &Engine, shown: &Shown) -> Vec<Attribute> {
    let own = match shown {
        Shown::Mapped(_) => &OF_MAPPED[..],
        Shown::Leaf(_) => &OF_LEAVES[..],
    };
    let of_limits = OF_LIMITS.iter().map(|(path, _)| *path);
    let ours = of_limits.chain(["ro"]).chain(own.iter().copied());
    let targets = of_targets(engine, shown);
    let read_only =
        |path: &str| Attribute { path: path.to_owned(), readable: true, writable: false };
    let mut all: Vec<Attribute> =
        ours.filter(|path| !targets.contains(path)).map(read_only).collect();
    let more = |path: &str, access: Access| {
        let (readable, writable) = (access.reads(), access.writes());
        Attribute { path: path.to_owned(), readable, writable }
    };
    match shown {
        Shown::Mapped(device) => {
            let access = |path| engine.dm.access(device.name(), path).unwrap_or(Access::Read);
            all.extend(targets.iter().map(|path| more(path, access(path))));
        }
        Shown::Leaf(leaf) => {
            let throttle = leaf.wbt().map(|_| Wbt::attributes()).unwrap_or_default();
            all.extend(throttle.iter().map(|path| more(path, Wbt::access(path))));
        }
    }
    all.sort();
    all
}

fn of_targets(engine: &Engine, shown: &Shown) -> Vec<&'static str> {
    match shown {
        Shown::Mapped(device) => engine.dm.attributes(device.name()).unwrap_or_default(),
        Shown::Leaf(_) => Vec::new(),
    }
}

fn unknown(engine: &Engine, shown: &Shown, path: &str) -> Error {
    let name = shown.device().name().to_owned();
    let why = match shown {
        Shown::Leaf(leaf) if leaf.is_in_memory() => ", for it is in memory and has no queue",
        Shown::Mapped(_) | Shown::Leaf(_) => "",
    };
    let known: Vec<String> = attributes(engine, shown).into_iter().map(|a| a.path).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = block::name_hint(path, &known);
    Error::not_found(format!("{name}: no attribute `{path}`{why}: {hint}"))
}

/// Whether an attribute of a leaf has a value of one line: others are told one at a time.
pub(crate) fn is_line(attribute: &Attribute) -> bool {
    let of_throttle = Wbt::attributes().contains(&&*attribute.path);
    attribute.readable && !(of_throttle && Wbt::access(&attribute.path) == Access::ReadMany)
}

/// The throttle of the leaf that has this attribute, if it is one of a throttle.
fn throttle<'a>(shown: &'a Shown, path: &str) -> Option<&'a Wbt> {
    match shown {
        Shown::Mapped(_) => None,
        Shown::Leaf(leaf) => leaf.wbt().filter(|_| Wbt::attributes().contains(&path)),
    }
}

/// Reads an attribute.
pub(crate) async fn get(engine: &Engine, shown: &Shown, path: &str) -> Result<String, Error> {
    if let Shown::Mapped(device) = shown
        && of_targets(engine, shown).contains(&path)
    {
        return engine.dm.get_attribute(device.name(), path).await;
    }
    if let Some((_, show)) = OF_LIMITS.iter().find(|(p, _)| *p == path) {
        return Ok(show(&shown.device().limits()));
    }
    if let Some(wbt) = throttle(shown, path) {
        return wbt.get(path);
    }
    match (shown, path) {
        (_, "ro") => Ok(number(shown.read_only())),
        (Shown::Mapped(device), _) => {
            let info = device.info();
            match path {
                "dev" => Ok(format!("{}:{}", info.major, info.minor)),
                "dm/name" => Ok(info.name),
                "dm/uuid" => Ok(info.uuid.unwrap_or_default()),
                "dm/suspended" => Ok(number(info.suspended)),
                _ => Err(unknown(engine, shown, path)),
            }
        }
        (Shown::Leaf(leaf), "stat") => Ok(stat(leaf)),
        (Shown::Leaf(_), _) => Err(unknown(engine, shown, path)),
    }
}

/// The 17 columns of `/sys/block/NAME/stat`. Requests are never merged here, and times are not
/// taken: those columns are 0.
fn stat(leaf: &crate::leaf::OpenLeaf) -> String {
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
    engine: &Engine,
    shown: &Shown,
    path: &str,
    value: &str,
) -> Result<(), Error> {
    if let Some(wbt) = throttle(shown, path) {
        wbt.set(path, value)?;
        tracing::info!(device = shown.device().name(), attr = path, value, "attribute set");
        return Ok(());
    }
    match shown {
        Shown::Mapped(device) if of_targets(engine, shown).contains(&path) => {
            engine.dm.set_attribute(device.name(), path, value).await?;
            tracing::info!(device = device.name(), attr = path, value, "attribute set");
            Ok(())
        }
        Shown::Mapped(_) | Shown::Leaf(_) => {
            if attributes(engine, shown).iter().all(|a| a.path != path) {
                return Err(unknown(engine, shown, path));
            }
            let name = shown.device().name().to_owned();
            let e = format!("{name}: attribute `{path}` is read-only");
            Err(Error::new(ErrorKind::Denied, e))
        }
    }
}
