// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The persistent identity of a file or block device: valid also after a restart of the machine.
//!
//! | kind | identity |
//! |---|---|
//! | disk | its world-wide name, else its serial number, from sysfs |
//! | partition | the identity of its disk, and its start sector |
//! | device mapper's device | its UUID |
//! | file | inode number and creation time: a copy has another identity |
//! | others | none |
use std::fs;
use std::path::Path;

use rustix::fs::{FileType, Statx, StatxFlags};

use crate::limits::device_dir;
use crate::stat::type_of;

/// The identity of an open file; `None` if the system does not provide one.
pub(crate) fn identity(stat: &Statx) -> Option<String> {
    let kind = type_of(stat);
    if kind == FileType::BlockDevice {
        return of_block_device(&device_dir(stat.stx_rdev_major, stat.stx_rdev_minor));
    }
    let knows = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    (kind == FileType::RegularFile && knows).then(|| {
        let made = stat.stx_btime;
        format!("inode {} made {}.{:09}", stat.stx_ino, made.tv_sec, made.tv_nsec)
    })
}

/// The identity of the block device whose sysfs directory is `dir`.
fn of_block_device(dir: &Path) -> Option<String> {
    let read = |dir: &Path, name: &str| {
        let text = fs::read_to_string(dir.join(name)).ok()?;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        (!text.is_empty()).then_some(text)
    };
    if let Some(uuid) = read(dir, "dm/uuid") {
        return Some(format!("dm {uuid}"));
    }
    let start = read(dir, "partition").and_then(|_| read(dir, "start"));
    let disk = if start.is_some() { dir.join("..") } else { dir.to_owned() };
    let names = ["wwid", "device/wwid", "serial", "device/serial"];
    let name = names.iter().find_map(|name| read(&disk, name))?;
    Some(start.map_or_else(|| format!("disk {name}"), |at| format!("disk {name} from {at}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::stat_of_open;

    #[test]
    fn sysfs_identifies_disks_partitions_and_mapped_devices() {
        let dir = std::env::temp_dir().join(format!("millpond-device-id-{}", std::process::id()));
        let made = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        made("nvme/wwid", "eui.0025\n");
        made("nvme/device/serial", "S1  \n");
        made("nvme/p1/partition", "1\n");
        made("nvme/p1/start", "2048\n");
        made("sata/device/wwid", "t10.ATA     Disk X\n");
        made("virtio/serial", "vol-1");
        made("dm/dm/uuid", "LVM-abc\n");
        made("loop/serial", "\n");
        for (device, identity) in [
            ("nvme", Some("disk eui.0025")),
            ("nvme/p1", Some("disk eui.0025 from 2048")),
            ("sata", Some("disk t10.ATA Disk X")),
            ("virtio", Some("disk vol-1")),
            ("dm", Some("dm LVM-abc")),
            ("loop", None),
            ("absent", None),
        ] {
            assert_eq!(of_block_device(&dir.join(device)).as_deref(), identity, "{device}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_keeps_its_identity_and_a_copy_has_another() {
        let dir = std::env::temp_dir().join(format!("millpond-inode-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (path, other) = (dir.join("a"), dir.join("b"));
        fs::write(&path, "x").unwrap();
        let of =
            |path: &Path| identity(&stat_of_open(&fs::File::open(path).unwrap().into()).unwrap());
        let first = of(&path);
        fs::write(&path, "more").unwrap();
        fs::copy(&path, &other).unwrap();
        assert_eq!(of(&path), first);
        // Some file systems do not know when a file was made.
        assert!(first.is_none() || of(&other) != first);
        fs::rename(&other, &path).unwrap();
        assert!(first.is_none() || of(&path) != first);
        fs::remove_dir_all(&dir).unwrap();
    }
}
