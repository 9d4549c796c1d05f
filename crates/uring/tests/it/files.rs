// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver on real files: what is written is read back, and the rest is refused with reasons.

use std::rc::Rc;

use crate::common::{Folder, Loop, Rng, buf, bytes, on_core, open_descriptors, to_vec};
use block::{BlockDevice, Buf, Bufs, Class, ErrorKind, Flags, Nanos, Sector, Status};
use queue::FileLeaf;
use reactor::{discard, flush, read, sleep, write, write_zeroes};
use uring::{Direct, Files, OpenOptions, Opened, ShorterFile};

const CLASS: Class = Class::Normal;

fn new_file(bytes: u64) -> OpenOptions {
    OpenOptions { create_size: Some(bytes), ..OpenOptions::default() }
}

fn open_leaf(files: &Files, folder: &Folder, options: OpenOptions) -> Rc<FileLeaf> {
    let path = folder.path("disk");
    let Opened { file, limits, .. } = files.open_path(&path, options).unwrap();
    Rc::new(FileLeaf::new(path.display().to_string(), file, limits))
}

async fn check_every_operation(dev: Rc<FileLeaf>) {
    let data = buf(64 << 10, 1);
    write(&*dev, Flags::empty(), CLASS, Sector(8), data.clone()).await.unwrap();
    write(&*dev, Flags::FUA, CLASS, Sector(1024), data.clone()).await.unwrap();
    flush(&*dev, CLASS).await.unwrap();
    let back = Bufs::from(Buf::alloc(64 << 10));
    read(&*dev, CLASS, Sector(8), back.clone()).await.unwrap();
    assert_eq!(to_vec(&back), to_vec(&data));

    let mut want = bytes(64 << 10, 1);
    discard(&*dev, CLASS, Sector(16), Sector(8)).await.unwrap();
    want[4096..8192].fill(0);
    write_zeroes(&*dev, Flags::FUA, CLASS, Sector(32), Sector(16)).await.unwrap();
    want[12288..20480].fill(0);
    read(&*dev, CLASS, Sector(8), back.clone()).await.unwrap();
    assert_eq!(to_vec(&back), want);
}

#[test]
fn every_operation_works_on_a_file_with_direct_io() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("disk");
        let opened = files.open_path(&path, new_file(4 << 20)).unwrap();
        assert!(!opened.in_page_cache);
        assert_eq!(opened.limits.capacity, Sector::from_bytes(4 << 20));
        let dev = Rc::new(FileLeaf::new("disk", opened.file, opened.limits));
        check_every_operation(dev).await;
    });
}

#[test]
fn every_operation_works_on_a_file_in_the_page_cache() {
    for folder in [Folder::on_disk(), Folder::in_memory()] {
        on_core(async move |files| {
            let options = OpenOptions { direct: Direct::Never, ..new_file(4 << 20) };
            let opened = files.open_path(&folder.path("disk"), options).unwrap();
            assert!(opened.in_page_cache);
            let dev = FileLeaf::new("disk", opened.file, opened.limits).in_page_cache();
            check_every_operation(Rc::new(dev)).await;
        });
    }
}

#[test]
fn every_operation_works_on_a_block_device_which_is_opened_once() {
    let folder = Folder::on_disk();
    let path = folder.path("backing");
    std::fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let Some(device) = Loop::on(&path) else { return };
    let name = device.0.clone();
    on_core(async move |files| {
        let path = std::path::Path::new(&name);
        let opened = files.open_path(path, OpenOptions::default()).unwrap();
        assert_eq!(opened.limits.capacity, Sector::from_bytes(4 << 20));
        assert_eq!(opened.warning, None);
        assert!(opened.limits.write_zeroes && opened.limits.discard_granularity_bytes > 0);
        let again = files.open_path(path, OpenOptions::default()).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Busy);
        check_every_operation(Rc::new(FileLeaf::new("loop", opened.file, opened.limits))).await;
    });
}

#[test]
fn zeroes_that_keep_their_space_read_as_zeroes() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(1 << 20));
        write(&*dev, Flags::empty(), CLASS, Sector(0), buf(8192, 3)).await.unwrap();
        write_zeroes(&*dev, Flags::NOUNMAP, CLASS, Sector(0), Sector(8)).await.unwrap();
        let back = buf(8192, 4);
        read(&*dev, CLASS, Sector(0), back.clone()).await.unwrap();
        let mut want = bytes(8192, 3);
        want[..4096].fill(0);
        assert_eq!(to_vec(&back), want);
    });
}

#[test]
fn requests_of_more_pieces_than_one_transfer_are_whole() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(32 << 20));
        // 3000 pieces: three transfers of at most 1024.
        let mut data = Bufs::new();
        for n in 0..3000 {
            data.push(Buf::copy_of(&bytes(4096, n)));
        }
        write(&*dev, Flags::FUA, CLASS, Sector(8), data.clone()).await.unwrap();
        let mut back = Bufs::new();
        for _ in 0..1500 {
            back.push(Buf::alloc(8192));
        }
        read(&*dev, CLASS, Sector(8), back.clone()).await.unwrap();
        assert!(to_vec(&back) == to_vec(&data));
    });
}

#[test]
fn requests_of_32_mib_are_whole() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(32 << 20));
        let data = buf(32 << 20, 9);
        write(&*dev, Flags::empty(), CLASS, Sector(0), data.clone()).await.unwrap();
        let back = Bufs::from(Buf::alloc(32 << 20));
        read(&*dev, CLASS, Sector(0), back.clone()).await.unwrap();
        assert!(to_vec(&back) == to_vec(&data));
    });
}

#[test]
fn buffers_at_odd_addresses_go_through_direct_io() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(1 << 20));
        // As a server has them: the data follows a header of 28 bytes in one buffer.
        let frame = Buf::copy_of(&bytes(28 + 8192, 5));
        let data = Bufs::from(frame.slice(28..28 + 8192));
        write(&*dev, Flags::empty(), CLASS, Sector(16), data.clone()).await.unwrap();
        let mut back = Bufs::new();
        back.push(Buf::alloc(5000).slice(1..1001));
        back.push(Buf::alloc(8192).slice(3..3 + 7192));
        read(&*dev, CLASS, Sector(16), back.clone()).await.unwrap();
        assert_eq!(to_vec(&back), to_vec(&data));
    });
}

#[test]
fn random_operations_leave_what_a_model_says() {
    const SECTORS: u64 = 2048;
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(SECTORS * 512));
        let unit = u64::from(dev.limits().logical_block_bytes) / 512;
        let mut model = vec![0_u8; (SECTORS * 512) as usize];
        let mut rng = Rng(7);
        for n in 0..10_000 {
            let len = (1 + rng.below(32)) * unit;
            let at = rng.below((SECTORS - len) / unit) * unit;
            let range = (at * 512) as usize..((at + len) * 512) as usize;
            let (at, len) = (Sector(at), Sector(len));
            match rng.below(20) {
                0 => flush(&*dev, CLASS).await.unwrap(),
                1 => {
                    discard(&*dev, CLASS, at, len).await.unwrap();
                    model[range].fill(0);
                }
                2 => {
                    write_zeroes(&*dev, Flags::empty(), CLASS, at, len).await.unwrap();
                    model[range].fill(0);
                }
                3..=10 => {
                    let data = buf(range.len(), n);
                    model[range.clone()].copy_from_slice(&to_vec(&data));
                    // Sometimes in two pieces.
                    let mut bufs = data.slice(0..512);
                    for piece in data.slice(512..range.len()).iter() {
                        bufs.push(piece.clone());
                    }
                    let bufs = if n % 3 == 0 { bufs } else { data };
                    write(&*dev, Flags::empty(), CLASS, at, bufs).await.unwrap();
                }
                _ => {
                    let back = Bufs::from(Buf::alloc(range.len()));
                    read(&*dev, CLASS, at, back.clone()).await.unwrap();
                    assert!(to_vec(&back) == model[range], "operation {n} at {at}+{len}");
                }
            }
        }
    });
}

#[test]
fn a_thousand_requests_at_once_all_end() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(8 << 20));
        let writes: Vec<_> = (0..1000)
            .map(|n| write(&*dev, Flags::empty(), CLASS, Sector(n * 8), buf(4096, n)))
            .collect();
        for w in writes {
            w.await.unwrap();
        }
        let reads: Vec<_> = (0..1000)
            .map(|n| {
                let back = Bufs::from(Buf::alloc(4096));
                (n, back.clone(), read(&*dev, CLASS, Sector(n * 8), back))
            })
            .collect();
        for (n, back, r) in reads {
            r.await.unwrap();
            assert_eq!(to_vec(&back), bytes(4096, n));
        }
    });
}

/// UR-U13: neighbours are sent as one, and an error is that of the requests that it concerns.
#[test]
fn an_error_of_one_request_is_not_its_neighbours() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(1 << 20));
        let at = |n: u64| Sector(n * 8);
        let writes = (0..64).map(|n| {
            let flags = if n % 16 < 8 { Flags::empty() } else { Flags::FUA };
            write(&*dev, flags, CLASS, at(n), buf(4096, n))
        });
        for written in writes.collect::<Vec<_>>() {
            written.await.unwrap();
        }
        let file = std::fs::OpenOptions::new().write(true).open(folder.path("disk")).unwrap();
        // Ten of sixteen neighbours are there, and the half of another one.
        file.set_len(10 * 4096 + 2048).unwrap();
        let back: Vec<_> = (0..16).map(|_| Bufs::from(Buf::alloc(4096))).collect();
        let reads: Vec<_> =
            (0..16).zip(&back).map(|(n, back)| read(&*dev, CLASS, at(n), back.clone())).collect();
        for ((n, read), back) in (0..16).zip(reads).zip(&back) {
            let outcome = read.await;
            if n < 10 {
                assert_eq!(outcome, Ok(()), "block {n}");
                assert!(to_vec(back) == bytes(4096, n), "block {n} has other data");
            } else {
                assert_eq!(outcome, Err(Status::Io), "block {n}");
            }
        }
    });
}

#[test]
fn a_file_that_shrank_gives_an_error_not_old_data() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(1 << 20));
        let file = std::fs::OpenOptions::new().write(true).open(folder.path("disk")).unwrap();
        file.set_len(6144).unwrap();
        let result = read(&*dev, CLASS, Sector(8), buf(8192, 0)).await;
        assert_eq!(result, Err(Status::Io));
        assert_eq!(dev.stats().last_error().unwrap().sector, Sector(8));
    });
}

#[test]
fn a_read_only_file_refuses_writes_and_offers_no_discard() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        std::fs::write(folder.path("disk"), bytes(8192, 1)).unwrap();
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let dev = open_leaf(&files, &folder, options);
        assert_eq!(dev.limits().discard_granularity_bytes, 0);
        let back = buf(8192, 0);
        read(&*dev, CLASS, Sector(0), back.clone()).await.unwrap();
        assert_eq!(to_vec(&back), bytes(8192, 1));
        let result = write(&*dev, Flags::empty(), CLASS, Sector(0), back).await;
        assert_eq!(result, Err(Status::Io));
    });
}

#[test]
fn an_exclusive_file_is_opened_once_until_it_is_closed() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("disk");
        let first = files.open_path(&path, new_file(1 << 20)).unwrap();
        let second = files.open_path(&path, OpenOptions::default()).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::Busy);
        let said = format!("{}: is in use, by this process", path.display());
        assert_eq!(second.to_string(), said);
        assert_eq!(Files::identity(&path).unwrap(), first.identity);
        files.close(first.file);
        // A child that another test has just made holds the file until it executes its program.
        let mut tries = 0;
        while let Err(e) = files.open_path(&path, OpenOptions::default()) {
            assert!(e.kind() == ErrorKind::Busy && tries < 1000, "{e}");
            tries += 1;
            sleep(Nanos::from_millis(5)).await;
        }
    });
}

/// The descriptors of this process that lead to `path`, and whether each is close-on-exec.
fn descriptors_of(path: &std::path::Path) -> Vec<bool> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let ours = all.filter(|link| std::fs::read_link(link).is_ok_and(|to| to == path));
    let closes = |link: std::path::PathBuf| {
        let number = link.file_name().unwrap().to_str().unwrap().to_owned();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        i32::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0
    };
    ours.map(closes).collect()
}

/// UR-U10: a second one would hold the lock after the last request of the first.
#[test]
fn a_file_has_one_descriptor_that_no_child_gets() {
    for folder in [Folder::on_disk(), Folder::in_memory()] {
        on_core(async move |files| {
            let path = folder.path(".").canonicalize().unwrap().join("disk");
            for mapped in [false, true] {
                let options = OpenOptions { mapped, ..new_file(1 << 20) };
                let opened = files.open_path(&path, options).unwrap();
                assert_eq!(descriptors_of(&path), [true], "mapped: {mapped}");
                let shared = files.share(opened.file);
                let adopted = shared.as_ref().map(|shared| files.adopt(shared));
                assert_eq!(adopted.is_some(), !mapped);
                assert_eq!(descriptors_of(&path), [true], "another core has the same one");
                assert!(files.copy_of_socket(opened.file).is_none());
                adopted.into_iter().for_each(|file| files.close(file));
                drop(shared);
                let mark = files.closes_begun();
                files.close(opened.file);
                files.closed_since(mark).await;
                assert_eq!(descriptors_of(&path), []);
            }
        });
    }
}

#[test]
fn what_cannot_be_a_device_is_refused_with_the_reason() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let missing = folder.path("missing");
        let error = files.open_path(&missing, OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoFile);
        assert_eq!(error.to_string(), format!("{}: no such file or device", missing.display()));

        let error = files.open_path(&folder.path("."), OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().ends_with("is neither a regular file nor a block device"));

        let null = std::path::Path::new("/dev/null");
        let error = files.open_path(null, OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn create_size_leaves_a_file_that_is_there_as_it_is() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("disk");
        std::fs::write(&path, bytes(8192 + 100, 1)).unwrap();
        let opened = files.open_path(&path, new_file(1 << 20)).unwrap();
        assert_eq!(opened.limits.capacity, Sector(16));
    });
}

#[test]
fn closing_twice_and_using_a_closed_file_do_no_harm() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let dev = open_leaf(&files, &folder, new_file(1 << 20));
        files.close(dev.file());
        files.close(dev.file());
        let result = read(&*dev, CLASS, Sector(0), buf(4096, 0)).await;
        assert_eq!(result, Err(Status::NoDevice));
    });
}

#[test]
fn a_core_that_ends_leaves_no_descriptor_open() {
    // Other tests of this process open files meanwhile, so count in a child that runs this alone.
    if std::env::var_os("URING_TEST_ALONE").is_none() {
        let exe = std::env::current_exe().unwrap();
        let alone = std::thread::current();
        let output = std::process::Command::new(exe)
            .args(["--exact", alone.name().unwrap(), "--test-threads=1"])
            .env("URING_TEST_ALONE", "1")
            .output()
            .unwrap();
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{report}");
        assert!(report.contains("1 passed"), "{report}");
        return;
    }
    let before = open_descriptors();
    for _ in 0..3 {
        let folder = Folder::on_disk();
        on_core(async move |files| {
            let dev = open_leaf(&files, &folder, new_file(1 << 20));
            // In flight when the core ends.
            drop(write(&*dev, Flags::empty(), CLASS, Sector(0), buf(1 << 20, 1)));
            assert!(open_descriptors() > 3);
        });
    }
    assert_eq!(open_descriptors(), before);
}

#[test]
fn a_shared_file_serves_other_cores_until_its_owner_closes() {
    let folder = Folder::on_disk();
    let path = folder.path("disk");
    on_core(async move |files| {
        let opened = files.open_path(&path, new_file(1 << 20)).unwrap();
        let here = FileLeaf::new("here", opened.file, opened.limits.clone());
        let shared = files.share(opened.file).unwrap();
        let (closed, wait_closed) = std::sync::mpsc::channel();
        let (written, wait_written) = std::sync::mpsc::channel();
        let limits = opened.limits;
        let thread = std::thread::Builder::new();
        let there = thread.spawn(move || {
            on_core(async move |files| {
                let there = FileLeaf::new("there", files.adopt(&shared), limits);
                let data = buf(8192, 7);
                write(&there, Flags::FUA, CLASS, Sector(16), data).await.unwrap();
                written.send(()).unwrap();
                wait_closed.recv().unwrap();
                let late = write(&there, Flags::empty(), CLASS, Sector(0), buf(512, 1)).await;
                assert_eq!(late, Err(Status::Io));
                files.close(there.file());
            });
        });
        let there = there.unwrap();
        wait_written.recv().unwrap();
        let back = Bufs::from(Buf::alloc(8192));
        read(&here, CLASS, Sector(16), back.clone()).await.unwrap();
        assert_eq!(to_vec(&back), bytes(8192, 7));
        files.close(here.file());
        assert!(files.share(here.file()).is_none());
        // The other core has its descriptor still, but the lock is free.
        let again = files.open_path(&path, OpenOptions::default()).unwrap();
        closed.send(()).unwrap();
        there.join().unwrap();
        files.close(again.file);
    });
}

#[test]
fn holes_are_what_was_never_written() {
    for folder in [Folder::on_disk(), Folder::in_memory()] {
        on_core(async move |files| {
            let path = folder.path("disk");
            let opened = files.open_path(&path, new_file(64 << 20)).unwrap();
            let file = opened.file;
            let dev = Rc::new(FileLeaf::new("disk", file, opened.limits));
            let holes = async |range| -> Vec<(u64, u64)> {
                let found = files.holes(file, "disk", range).await.unwrap();
                found.into_iter().map(|hole| (hole.start, hole.end)).collect()
            };
            assert_eq!(holes(0..64 << 20).await, [(0, 64 << 20)]);
            for at in [8 << 20, 32 << 20] {
                let (at, data) = (Sector::from_bytes(at), buf(1 << 20, 1));
                write(&*dev, Flags::empty(), CLASS, at, data).await.unwrap();
            }
            let all = [(0, 8 << 20), (9 << 20, 32 << 20), (33 << 20, 64 << 20)];
            assert_eq!(holes(0..64 << 20).await, all);
            let part = 4096..(8 << 20) + 4096;
            assert_eq!(holes(part).await, [(4096, 8 << 20)]);
            assert_eq!(holes(8 << 20..9 << 20).await, []);
            let zeroes = Sector::from_bytes(8 << 20);
            discard(&*dev, CLASS, zeroes, Sector::from_bytes(1 << 20)).await.unwrap();
            assert_eq!(holes(0..64 << 20).await, [(0, 32 << 20), (33 << 20, 64 << 20)]);
            files.close(file);
            assert_eq!(files.holes(file, "disk", 0..4096).await.unwrap(), []);
        });
    }
}

/// What a file had beyond a cut reads as zeroes after a write there has made it longer again.
#[test]
fn a_file_that_was_cut_fails_its_flushes() {
    for (folder, direct) in [(Folder::on_disk(), Direct::Try), (Folder::in_memory(), Direct::Never)]
    {
        on_core(async move |files| {
            let dev = open_leaf(&files, &folder, OpenOptions { direct, ..new_file(4 << 20) });
            let file = std::fs::File::options().write(true).open(folder.path("disk")).unwrap();
            let put = async |sector| {
                write(&*dev, Flags::empty(), CLASS, Sector(sector), buf(4096, 1)).await.unwrap();
            };
            put(8000).await;
            flush(&*dev, CLASS).await.unwrap();
            assert_eq!(files.shorter(dev.file()), None);
            file.set_len(1 << 20).unwrap();
            put(4096).await;
            for _ in 0..2 {
                assert_eq!(flush(&*dev, CLASS).await, Err(Status::Io));
                let (found, wanted) = ((2 << 20) + 4096, 4 << 20);
                assert_eq!(files.shorter(dev.file()), Some(ShorterFile { found, wanted }));
            }
            // With its size it goes on, also with another one that its users know.
            file.set_len(4 << 20).unwrap();
            flush(&*dev, CLASS).await.unwrap();
            file.set_len(1 << 20).unwrap();
            assert_eq!(flush(&*dev, CLASS).await, Err(Status::Io));
            files.keep_capacity(dev.file(), Sector(2048));
            flush(&*dev, CLASS).await.unwrap();
            assert_eq!(files.shorter(dev.file()), None);
        });
    }
}

/// The leaves of all cores on a file see that it was cut.
#[test]
fn a_file_that_was_cut_is_seen_by_all_cores() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let opened = files.open_path(&folder.path("disk"), new_file(4 << 20)).unwrap();
        let there = files.adopt(&files.share(opened.file).unwrap());
        let dev = FileLeaf::new("disk", there, opened.limits);
        flush(&dev, CLASS).await.unwrap();
        let file = std::fs::File::options().write(true).open(folder.path("disk")).unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(flush(&dev, CLASS).await, Err(Status::Io));
        let expected = ShorterFile { found: 1 << 20, wanted: 4 << 20 };
        assert_eq!(files.shorter(opened.file), Some(expected));
    });
}
