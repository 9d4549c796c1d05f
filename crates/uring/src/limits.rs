// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of files and block devices, as the kernel reports them.
use std::fs;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use block::{Buf, Error, Limits, PAGE, Sector};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, OFlags, SeekFrom, Statx, StatxFlags, fallocate, fcntl_getfl,
    fstatfs, ioctl_blkpbszget, ioctl_blksszget, seek, statx,
};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use crate::os_error::os_error;
use crate::stat::{stat_of_open, type_of};
use crate::table::DirectAlign;

/// Smallest alignment there is: a sector.
const SECTOR_BYTES: u32 = 512;

/// The requirements of O_DIRECT on `fd`; `None` if it does not work there.
pub(crate) fn direct_align(fd: &OwnedFd) -> Option<DirectAlign> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
    let (memory, length) = if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 {
        // Zeroes: it does not work on this file.
        (stat.stx_dio_mem_align, stat.stx_dio_offset_align)
    } else {
        // Before Linux 6.1, or a file system that does not report it.
        let probed = probe_align(fd);
        (probed, probed)
    };
    let page = u32::try_from(PAGE).expect("4096");
    let fits = |align: u32| align.is_power_of_two() && align <= page;
    if !fits(memory) || !fits(length) {
        return None;
    }
    let length = length.max(SECTOR_BYTES) as usize;
    Some(DirectAlign { memory: memory as usize, length })
}

/// Finds out whether a sector can be read into memory that is aligned to a sector only.
fn probe_align(fd: &OwnedFd) -> u32 {
    let refused = Buf::alloc(PAGE).write(|b| pread(fd, &mut b[512..1024], 0)) == Err(Errno::INVAL);
    if refused { u32::try_from(PAGE).expect("4096") } else { SECTOR_BYTES }
}

/// Whether requests may block at submission: the file does not support `RWF_NOWAIT`. io_uring
/// itself would find that out only by a request that waits for the file's server.
pub(crate) fn may_block(fd: &OwnedFd) -> bool {
    // Refused before anything is read. Other errors come from reading: a disk may be bad here.
    let asked = Buf::alloc(PAGE)
        .write(|b| preadv2(fd, &mut [IoSliceMut::new(b)], 0, ReadWriteFlags::NOWAIT));
    asked == Err(Errno::OPNOTSUPP)
}

/// The limits of an open file.
pub(crate) fn of(
    path: &Path,
    fd: &OwnedFd,
    stat: &Statx,
    writable: bool,
    direct: Option<DirectAlign>,
) -> Result<Limits, Error> {
    let direct_bytes = direct.map_or(SECTOR_BYTES, |a| u32::try_from(a.length).expect("a page"));
    let mut limits = if type_of(stat) == FileType::BlockDevice {
        of_block_device(path, fd, stat, direct.is_some())?
    } else {
        of_regular_file(fd, stat)
    };
    limits.logical_block_bytes = limits.logical_block_bytes.max(direct_bytes);
    limits.physical_block_bytes = limits.physical_block_bytes.max(limits.logical_block_bytes);
    if !writable {
        (limits.discard_granularity_bytes, limits.write_zeroes) = (0, false);
    }
    let block = u64::from(limits.logical_block_bytes);
    limits.capacity = Sector::from_bytes(limits.capacity.bytes() / block * block);
    Ok(limits)
}

/// How many sectors an open file or block device has now.
pub(crate) fn capacity(path: &Path, fd: &OwnedFd) -> Result<Sector, Error> {
    let stat = stat_of_open(fd).map_err(|e| os_error(path, "look it up", e))?;
    let bytes = if type_of(&stat) == FileType::BlockDevice {
        bytes_of_block_device(path, fd)?
    } else {
        stat.stx_size
    };
    Ok(Sector::from_bytes(bytes))
}

/// Whether an open file takes no writes: it is open for reads only, or is a disk that is read-only.
pub(crate) fn is_read_only(fd: &OwnedFd, stat: &Statx) -> bool {
    let is_for_reads = fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDONLY);
    let is_disk = type_of(stat) == FileType::BlockDevice;
    let disk = device_dir(stat.stx_rdev_major, stat.stx_rdev_minor);
    let ro = || fs::read_to_string(disk.join("ro"));
    is_for_reads || (is_disk && ro().is_ok_and(|ro| ro.trim() == "1"))
}

/// How many bytes of a regular file lie behind the last sector that is served.
pub(crate) fn unserved_bytes(stat: &Statx, served: Sector) -> u64 {
    let is_regular = type_of(stat) == FileType::RegularFile;
    if is_regular { stat.stx_size.saturating_sub(served.bytes()) } else { 0 }
}

fn bytes_of_block_device(path: &Path, fd: &OwnedFd) -> Result<u64, Error> {
    seek(fd, SeekFrom::End(0)).map_err(|e| os_error(path, "ask for its size", e))
}

fn of_regular_file(fd: &OwnedFd, stat: &Statx) -> Limits {
    let block = stat.stx_blksize.clamp(SECTOR_BYTES, 1 << 20);
    // A hole beyond the end changes nothing, but shows whether holes can be made.
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let beyond = stat.stx_size.next_multiple_of(u64::from(block));
    let holes = fallocate(fd, hole, beyond, block.into()).is_ok();
    Limits {
        physical_block_bytes: block,
        io_min_bytes: block,
        discard_granularity_bytes: if holes { block } else { 0 },
        write_zeroes: holes,
        rotational: queue_number(stat.stx_dev_major, stat.stx_dev_minor, "rotational") == Some(1),
        queue_depth: queue_depth(&device_dir(stat.stx_dev_major, stat.stx_dev_minor)),
        ..Limits::new(Sector::from_bytes(stat.stx_size))
    }
}

fn of_block_device(path: &Path, fd: &OwnedFd, stat: &Statx, direct: bool) -> Result<Limits, Error> {
    let failed = |e| os_error(path, "ask for its size", e);
    let bytes = bytes_of_block_device(path, fd)?;
    let logical = ioctl_blksszget(fd).map_err(failed)?;
    let physical = ioctl_blkpbszget(fd).map_err(failed)?;
    let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
    let number = |name| queue_number(major, minor, name).and_then(|n| u32::try_from(n).ok());
    let nonzero = |name| queue_number(major, minor, name).is_some_and(|n| n > 0);
    // Holes in a block device are made by its own write zeroes, so that one must be there too.
    let holes = nonzero("discard_max_bytes") && nonzero("write_zeroes_max_bytes");
    let granularity = number("discard_granularity").unwrap_or(logical).max(logical);
    let write_through = queue_text(major, minor, "write_cache").as_deref() == Some("write through");
    Ok(Limits {
        logical_block_bytes: logical,
        physical_block_bytes: physical,
        io_min_bytes: number("minimum_io_size").unwrap_or(physical).max(logical),
        io_opt_bytes: number("optimal_io_size").unwrap_or(0),
        atomic_write_unit_bytes: logical,
        discard_granularity_bytes: if holes { granularity } else { 0 },
        // The kernel writes zeroes itself where the device can't.
        write_zeroes: true,
        // The page cache is volatile whatever lies below.
        volatile_cache: !(direct && write_through),
        rotational: number("rotational") == Some(1),
        queue_depth: queue_depth(&device_dir(major, minor)),
        ..Limits::new(Sector::from_bytes(bytes))
    })
}

/// What the kernel shows of a block device.
pub(crate) fn device_dir(major: u32, minor: u32) -> PathBuf {
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// File systems that are in memory: tmpfs and ramfs, by the numbers of the kernel's
/// `include/uapi/linux/magic.h`.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether an open file is in memory. A device is not, although its node in `/dev` is.
pub(crate) fn is_in_memory(fd: &OwnedFd, stat: &Statx) -> bool {
    if !matches!(type_of(stat), FileType::RegularFile | FileType::Directory) {
        return false;
    }
    let kind = fstatfs(fd).map(|stat| u64::try_from(stat.f_type).unwrap_or(0));
    kind.is_ok_and(|kind| IN_MEMORY.contains(&kind))
}

/// The name of the disk that an open file lies on, or is, or is a partition of.
pub(crate) fn disk(stat: &Statx) -> Option<String> {
    let (major, minor) = match type_of(stat) == FileType::BlockDevice {
        true => (stat.stx_rdev_major, stat.stx_rdev_minor),
        false => (stat.stx_dev_major, stat.stx_dev_minor),
    };
    disk_name(&device_dir(major, minor))
}

fn disk_name(device: &Path) -> Option<String> {
    let device = fs::canonicalize(device).ok()?;
    let disk = if device.join("partition").exists() { device.parent()? } else { &device };
    Some(disk.file_name()?.to_str()?.to_owned())
}

/// An attribute of a block device, or of the disk that a partition lies on.
fn attribute(device: &Path, name: &str) -> Option<String> {
    let text = [device.join(name), device.join("..").join(name)]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())?;
    Some(text.trim().to_owned())
}

/// How many requests a disk takes at once: what its queue holds, or less where its driver reports
/// that the device takes less. 0 when neither is known.
fn queue_depth(device: &Path) -> u32 {
    let number = |name| attribute(device, name)?.parse::<u32>().ok().filter(|n| *n > 0);
    let (queue, driver) = (number("queue/nr_requests"), number("device/queue_depth"));
    queue.into_iter().chain(driver).min().unwrap_or(0)
}

fn queue_text(major: u32, minor: u32, name: &str) -> Option<String> {
    attribute(&device_dir(major, minor), &format!("queue/{name}"))
}

fn queue_number(major: u32, minor: u32, name: &str) -> Option<u64> {
    queue_text(major, minor, name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_not_in_memory_though_its_node_is() {
        let open = |path: &str| OwnedFd::from(fs::File::open(path).unwrap());
        assert!(fstatfs(open("/dev")).is_ok_and(|stat| IN_MEMORY.contains(&(stat.f_type as u64))));
        let is_in_memory = |fd: OwnedFd| is_in_memory(&fd, &stat_of_open(&fd).unwrap());
        assert!(is_in_memory(open("/dev")));
        assert!(!is_in_memory(open("/dev/null")));
    }

    #[test]
    fn the_depth_is_the_minimum_of_queue_and_driver() {
        let dir = std::env::temp_dir().join(format!("millpond-limits-{}", std::process::id()));
        let cases: [(&str, Option<&str>, Option<&str>, u32); 6] = [
            ("sata", Some("256\n"), Some("32\n"), 32),
            ("slow", Some("4\n"), Some("254\n"), 4),
            ("nvme", Some("1023\n"), None, 1023),
            ("loop", None, None, 0),
            ("none", Some("0\n"), None, 0),
            ("odd", Some("many\n"), Some("1\n"), 1),
        ];
        for (disk, queue, driver, depth) in cases {
            let disk_dir = dir.join(disk);
            fs::create_dir_all(disk_dir.join("part1")).unwrap();
            for (folder, name, text) in
                [("queue", "nr_requests", queue), ("device", "queue_depth", driver)]
            {
                let Some(text) = text else { continue };
                fs::create_dir_all(disk_dir.join(folder)).unwrap();
                fs::write(disk_dir.join(folder).join(name), text).unwrap();
            }
            assert_eq!(queue_depth(&disk_dir), depth, "{disk}");
            assert_eq!(queue_depth(&disk_dir.join("part1")), depth, "a partition of {disk}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_partition_has_its_disk_and_unknown_devices_have_none() {
        let dir = std::env::temp_dir().join(format!("millpond-disks-{}", std::process::id()));
        let partition = dir.join("sda/sda1");
        fs::create_dir_all(&partition).unwrap();
        fs::write(partition.join("partition"), "1\n").unwrap();
        assert_eq!(disk_name(&partition).as_deref(), Some("sda"));
        assert_eq!(disk_name(&dir.join("sda")).as_deref(), Some("sda"));
        assert_eq!(disk_name(&dir.join("sdb")), None);
        fs::remove_dir_all(&dir).unwrap();
    }
}
