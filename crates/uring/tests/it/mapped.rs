// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that are read and written by memory copies: plain ones, which stand in for persistent
//! memory wherever there is none.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;

use crate::common::{self, Folder, Rng, buf, bytes, on_core, to_vec};
use block::{Buf, Bufs, Class, ErrorKind, Flags, Sector, Status};
use queue::FileLeaf;
use reactor::{discard, flush, read, write, write_zeroes};
use uring::{Files, OpenOptions, Opened};

const CLASS: Class = Class::Normal;
const SIZE: u64 = 4 << 20;

fn mapped() -> OpenOptions {
    OpenOptions { create_size: Some(SIZE), mapped: true, ..OpenOptions::default() }
}

fn open_leaf(files: &Files, path: &Path) -> Rc<FileLeaf> {
    let Opened { file, limits, .. } = files.open_path(path, mapped()).unwrap();
    Rc::new(FileLeaf::new(path.display().to_string(), file, limits))
}

#[test]
fn copied_data_are_in_the_file_and_file_data_in_the_mapping() {
    for folder in [Folder::on_disk(), Folder::in_memory()] {
        on_core(async move |files| {
            let path = folder.path("disk");
            let dev = open_leaf(&files, &path);
            let mut want = vec![0; SIZE as usize];
            let mut rng = Rng(1);
            for n in 0..300 {
                let sectors = 1 + rng.below(64);
                let at = rng.below(SIZE / 512 - sectors);
                let data = bytes(sectors as usize * 512, n);
                want[at as usize * 512..][..data.len()].copy_from_slice(&data);
                let cut = rng.below(data.len() as u64 - 1) as usize + 1;
                let mut pieces = Bufs::from(Buf::copy_of(&data[..cut]));
                pieces.push(Buf::copy_of(&data[cut..]));
                let flags = if n % 5 == 0 { Flags::FUA } else { Flags::empty() };
                write(&*dev, flags, CLASS, Sector(at), pieces).await.unwrap();
                if n % 50 == 0 {
                    flush(&*dev, CLASS).await.unwrap();
                }
            }
            let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            let mut found = vec![0; SIZE as usize];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == want, "by read(2)");
            file.write_all_at(&[7; 1024], 8192).unwrap();
            want[8192..9216].fill(7);
            let back = buf(SIZE as usize, 9);
            read(&*dev, CLASS, Sector(0), back.clone()).await.unwrap();
            assert!(to_vec(&back) == want, "by copies");
        });
    }
}

/// Bytes of the mapping of `path` that wait for writeback.
fn dirty_bytes(path: &Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|l| !l.ends_with(&path.display().to_string()));
    assert!(lines.next().is_some(), "{} is not mapped", path.display());
    let of_this = lines.take_while(|l| !l.starts_with("VmFlags"));
    let dirty =
        of_this.filter(|l| l.starts_with("Shared_Dirty:") || l.starts_with("Private_Dirty:"));
    dirty.map(|l| l.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10).sum()
}

#[test]
fn a_flush_of_a_plain_file_writes_back_what_copies_have_dirtied() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("disk");
        let dev = open_leaf(&files, &path);
        for at in [0, 1024, 4096] {
            write(&*dev, Flags::empty(), CLASS, Sector(at), buf(64 << 10, at)).await.unwrap();
        }
        assert_eq!(dirty_bytes(&path), 192 << 10);
        flush(&*dev, CLASS).await.unwrap();
        assert_eq!(dirty_bytes(&path), 0);
        // Of a page that the mapping has dirtied, too.
        write(&*dev, Flags::empty(), CLASS, Sector(8), buf(512, 1)).await.unwrap();
        assert_eq!(dirty_bytes(&path), 4096);
        write(&*dev, Flags::FUA, CLASS, Sector(9), buf(512, 2)).await.unwrap();
        assert_eq!(dirty_bytes(&path), 0);
    });
}

#[test]
fn a_plain_file_comes_with_a_warning_and_the_limits_of_memory() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("disk");
        let opened = files.open_path(&path, mapped()).unwrap();
        let warning = opened.warning.unwrap();
        assert!(warning.contains("only msync makes it durable"), "{warning}");
        assert_eq!(opened.limits.atomic_write_unit_bytes, 8);
        assert_eq!(opened.limits.capacity, Sector::from_bytes(SIZE));
        assert!(opened.limits.volatile_cache);
        assert!(files.share(opened.file).is_none(), "it is one core's");
        assert_eq!(path.metadata().unwrap().blocks() * 512, SIZE, "all its space is there");
        let dev = FileLeaf::new("disk", opened.file, opened.limits);
        let no = discard(&dev, CLASS, Sector(0), Sector(8)).await;
        assert_eq!(no, Err(Status::NotSupported));
        let no = write_zeroes(&dev, Flags::empty(), CLASS, Sector(0), Sector(8)).await;
        assert_eq!(no, Err(Status::NotSupported));
    });
}

#[test]
fn a_file_is_mapped_by_one_and_free_when_it_is_closed() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("disk");
        let opened = files.open_path(&path, mapped()).unwrap();
        for options in [mapped(), OpenOptions::default()] {
            assert_eq!(files.open_path(&path, options).unwrap_err().kind(), ErrorKind::Busy);
        }
        files.close(opened.file);
        let ordinary = files.open_path(&path, OpenOptions::default()).unwrap();
        let busy = files.open_path(&path, mapped()).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        files.close(ordinary.file);
        files.open_path(&path, mapped()).unwrap();
    });
}

#[test]
fn only_the_missing_part_of_a_truncated_file_fails() {
    for folder in [Folder::on_disk(), Folder::in_memory()] {
        on_core(async move |files| {
            let path = folder.path("disk");
            let dev = open_leaf(&files, &path);
            write(&*dev, Flags::empty(), CLASS, Sector(0), buf(65536, 1)).await.unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            let gone = Sector::from_bytes(2 << 20);
            let back = buf(65536, 2);
            assert_eq!(read(&*dev, CLASS, gone, back.clone()).await, Err(Status::Io));
            let lost = write(&*dev, Flags::empty(), CLASS, gone, buf(4096, 1)).await;
            assert_eq!(lost, Err(Status::Io));
            // It stays so when the file is as long as before again.
            file.set_len(SIZE).unwrap();
            assert_eq!(read(&*dev, CLASS, gone, back.clone()).await, Err(Status::Io));
            // Far more pages than are remembered one by one.
            read(&*dev, CLASS, Sector(0), back.clone()).await.unwrap();
            assert_eq!(to_vec(&back), bytes(65536, 1));
            flush(&*dev, CLASS).await.unwrap();
            file.set_len(1 << 20).unwrap();
            let most = read(&*dev, CLASS, Sector::from_bytes(1 << 20), buf(3 << 20, 0)).await;
            assert_eq!(most, Err(Status::Io));
            assert_eq!(read(&*dev, CLASS, Sector(0), back.clone()).await, Err(Status::Io));
        });
    }
}

#[test]
fn what_can_not_be_mapped_says_why() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let empty = OpenOptions { create_size: Some(0), ..mapped() };
        let e = files.open_path(&folder.path("empty"), empty).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        let e = files.open_path(Path::new("/dev/null"), mapped()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotSupported);
        assert!(e.chain().contains("is no DAX device"), "{}", e.chain());
        let e = files.open_path(Path::new("/dev/null"), OpenOptions::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn a_block_device_without_dax_can_not_be_mapped() {
    let folder = Folder::on_disk();
    let path = folder.path("backing");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let Some(device) = common::Loop::on(&path) else { return };
    on_core(async move |files| {
        let e = files.open_path(Path::new(&device.0), mapped()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotSupported);
        let text = e.chain();
        assert!(text.starts_with("Persistent memory or DAX not supported"), "{text}");
    });
}
