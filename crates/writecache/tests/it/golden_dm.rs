// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own cache images, made by Linux 6.1 (`golden/README.md`): each is opened, read,
//! written back, and left so that the kernel opens it again.

use std::io::Read;
use std::rc::Rc;

use crate::common::sha256::sha256_hex;
use crate::common::{self, Fixture, fields, number, say};
use block::{BlockDevice, Buf, Class, ErrorKind, Flags, Sector, Target};
use format::dm::{CacheContents, Entry, HEADER_BYTES, Superblock, entries};
use writecache::WriteCache;

const ORIGIN_BYTES: usize = 4 << 20;

struct Golden {
    name: &'static str,
    cache: Vec<u8>,
    origin: Vec<u8>,
    view: String,
}

fn file(name: &str) -> Option<Vec<u8>> {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).ok()
}

fn image(name: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let packed = file(&format!("{name}.img.gz"))?;
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut out).unwrap();
    Some(out)
}

impl Golden {
    fn new(name: &'static str) -> Golden {
        let view = file(&format!("{name}.view.sha256")).unwrap();
        Golden {
            name,
            cache: image(&format!("{name}.cache")).unwrap(),
            origin: image(&format!("{name}.origin")).unwrap_or_else(|| vec![0; ORIGIN_BYTES]),
            view: String::from_utf8(view).unwrap().trim().to_owned(),
        }
    }

    fn block_size(&self) -> u32 {
        Superblock::decode(&self.cache).unwrap().block_size
    }

    /// A world with these two images on its disks.
    fn fixture(&self, options: &str) -> Fixture {
        let mut fixture =
            Fixture::new(ORIGIN_BYTES as u64 / 4096, self.cache.len() as u64 / 1024, "");
        fixture.config = common::config(self.block_size(), options);
        let mut w = fixture.world.borrow_mut();
        w.poke(fixture.cache, Sector::ZERO, &self.cache);
        w.poke(fixture.origin, Sector::ZERO, &self.origin);
        drop(w);
        fixture
    }
}

/// Watermarks of 100, as the kernel's session had them: nothing is written back by itself.
const CALM: &str = "high_watermark 100 low_watermark 100";

async fn view(dev: &dyn BlockDevice) -> Vec<u8> {
    let buf = Buf::zeroed(ORIGIN_BYTES);
    reactor::read(dev, Class::Foreground, Sector::ZERO, buf.all().into()).await.unwrap();
    buf.read(<[u8]>::to_vec)
}

fn survey(fixture: &Fixture) -> (Superblock, CacheContents) {
    let image = fixture.image();
    let superblock = Superblock::decode(&image).unwrap();
    let mut survey = CacheContents::new(&superblock);
    let n = usize::try_from(superblock.n_blocks).unwrap();
    for entry in entries(&image[HEADER_BYTES..]).take(n) {
        survey.add(entry).unwrap();
    }
    (superblock, survey)
}

/// What each image must read as, and how many blocks are dirty in it. Of the uncommitted sets the
/// media do not know the last 8 blocks, so they must read as the overwritten ones do: their own
/// view was taken from the live device.
fn all() -> Vec<(Golden, String, u64)> {
    let sets = [
        ("ssd-4096-empty", 0),
        ("ssd-4096-committed", 24),
        ("ssd-4096-overwritten", 24),
        ("ssd-4096-uncommitted", 24),
        ("ssd-4096-flushed", 0),
        ("ssd-512-committed", 24),
        ("ssd-512-overwritten", 24),
        ("ssd-512-uncommitted", 24),
        ("pmem-4096-committed", 16),
    ];
    let expected = |name: &'static str| match name {
        "ssd-4096-uncommitted" => Golden::new("ssd-4096-overwritten").view,
        "ssd-512-uncommitted" => Golden::new("ssd-512-overwritten").view,
        _ => Golden::new(name).view,
    };
    sets.map(|(name, dirty)| (Golden::new(name), expected(name), dirty)).into()
}

#[test]
fn every_image_reads_as_it_did_under_the_kernel() {
    for (golden, expected, dirty) in all() {
        let fixture = golden.fixture(CALM);
        let seen = fixture.life(async move |cache| {
            let seen = view(&*cache).await;
            (seen, number(&cache, "dirty_blocks"))
        });
        let (seen, found) = seen.unwrap();
        assert_eq!((sha256_hex(&seen), found), (expected, dirty), "{}", golden.name);
        assert!(fixture.image() == golden.cache, "{}: reading changed the cache", golden.name);
    }
}

#[test]
fn after_a_flush_the_kernel_finds_no_dirty_block() {
    for (golden, expected, _) in all() {
        let fixture = golden.fixture(CALM);
        let status = fixture.life(async move |cache| {
            say(&cache, "flush").await.unwrap();
            fields(&cache)
        });
        let status = status.unwrap();
        assert_eq!((status[0], status[2]), (0, status[1]), "{}: free is total", golden.name);
        let origin = fixture.peek(fixture.origin, 0, ORIGIN_BYTES);
        assert_eq!(sha256_hex(&origin), expected, "{}", golden.name);
        let (superblock, survey) = survey(&fixture);
        assert_eq!(superblock, Superblock::decode(&golden.cache).unwrap(), "{}", golden.name);
        assert!(survey.live.is_empty() && survey.leftovers.is_empty(), "{survey:?}");
    }
}

#[test]
fn blocks_written_to_an_image_join_those_that_were_there() {
    for (golden, _, dirty) in all() {
        let fixture = golden.fixture(CALM);
        let size = golden.block_size() as usize;
        // The first cached block, the second, and one that is not cached.
        let put = [0, 1, 1000].map(|block: u64| block * size as u64);
        let (before, after) = fixture
            .life(async move |cache| {
                let before = view(&*cache).await;
                for at in put {
                    let data = Buf::copy_of(&vec![0xa5; size]);
                    let at = Sector::from_bytes(at);
                    let io = reactor::write(&*cache, Flags::FUA, Class::Normal, at, data.into());
                    io.await.unwrap();
                }
                let after = view(&*cache).await;
                cache.clone().suspend().await.unwrap();
                (before, after)
            })
            .unwrap();
        // What a reader that knows only the format finds, laid over the origin.
        let (superblock, found) = survey(&fixture);
        assert!(found.leftovers.is_empty() && found.superseded.is_empty(), "{found:?}");
        let old = Superblock::decode(&golden.cache).unwrap();
        assert_eq!(superblock, Superblock { seq_count: old.seq_count + 3, ..old });
        let mut seen = fixture.peek(fixture.origin, 0, ORIGIN_BYTES);
        for (&sector, live) in &found.live {
            let at = usize::try_from(sector * 512).unwrap();
            let data = fixture.area(superblock.geometry().block_offset(live.index), size);
            seen[at..at + size].copy_from_slice(&data);
        }
        assert!(seen == after, "{}", golden.name);
        let mut expected = before;
        for at in put {
            let at = usize::try_from(at).unwrap();
            expected[at..at + size].fill(0xa5);
        }
        assert!(after == expected, "{}", golden.name);
        let more = if dirty == 0 { 3 } else { 1 };
        assert_eq!(found.live.len() as u64, dirty + more, "{}", golden.name);
        // And once more by the engine.
        let again = fixture.life(async move |cache| view(&*cache).await).unwrap();
        assert!(again == expected, "{}: opened again", golden.name);
    }
}

#[test]
fn leftovers_of_an_unfinished_commit_are_erased_at_open() {
    let golden = Golden::new("ssd-4096-committed");
    let fixture = golden.fixture(CALM);
    let old = Superblock::decode(&golden.cache).unwrap();
    // Of a batch that the kernel had begun to commit; in a part of the metadata that the next
    // commit has no reason to write.
    let stray = Entry { original_sector: 4000, seq_count: old.seq_count };
    let offset = old.geometry().entry_offset(300) & !511;
    let mut sector = fixture.area(offset, 512);
    let at = usize::try_from(old.geometry().entry_offset(300) - offset).unwrap();
    sector[at..at + 16].copy_from_slice(&stray.encode());
    fixture.poke_area(offset, &sector);
    assert_eq!(survey(&fixture).1.leftovers, [300]);
    let seen = fixture.life(async move |cache| {
        let seen = view(&*cache).await;
        common::fill(&*cache, 900..901, 1).await;
        common::flush(&*cache).await;
        seen
    });
    assert_eq!(sha256_hex(&seen.unwrap()), golden.view);
    let (superblock, found) = survey(&fixture);
    assert_eq!(superblock.seq_count, old.seq_count + 1);
    assert!(found.leftovers.is_empty() && !found.live.contains_key(&4000));
    assert_eq!(found.live.len(), 25);
}

/// Writes `blocks` of a golden cache's data through the engine, and flushes.
async fn write_and_flush(dev: &dyn BlockDevice, golden: &Golden, blocks: std::ops::Range<u64>) {
    let superblock = Superblock::decode(&golden.cache).unwrap();
    let geometry = superblock.geometry();
    let all: Vec<Entry> = entries(&golden.cache[HEADER_BYTES..]).take(100).collect();
    for index in blocks {
        let from = usize::try_from(geometry.block_offset(index)).unwrap();
        let data = &golden.cache[from..from + superblock.block_size as usize];
        let at = Sector(all[usize::try_from(index).unwrap()].original_sector);
        let io = reactor::write(dev, Flags::empty(), Class::Normal, at, Buf::copy_of(data).into());
        io.await.unwrap();
    }
    common::flush(dev).await;
}

/// The kernel had formatted the device, written 16 blocks and flushed, written 8 more and flushed.
/// The same done here must leave the same device, to the last byte.
#[test]
fn what_millpond_writes_is_byte_for_byte_what_the_kernel_wrote() {
    for (empty, written) in
        [(Some("ssd-4096-empty"), "ssd-4096-committed"), (None, "ssd-512-committed")]
    {
        let golden = Golden::new(written);
        let mut fixture = golden.fixture(&format!("{CALM} format dm"));
        fixture.world.borrow_mut().poke(fixture.cache, Sector::ZERO, &vec![0; golden.cache.len()]);
        fixture.life(async |_| ()).unwrap();
        if let Some(name) = empty {
            assert!(fixture.image() == Golden::new(name).cache, "a new cache differs");
        }
        // From now on the format is found on the media.
        fixture.config = common::config(golden.block_size(), CALM);
        let want = golden.cache.clone();
        fixture
            .life(async move |cache| {
                write_and_flush(&*cache, &golden, 0..16).await;
                write_and_flush(&*cache, &golden, 16..24).await;
            })
            .unwrap();
        let found = fixture.image();
        let differs = found.iter().zip(&want).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{written}");
    }
}

/// The status lines of a section of the kernel's session.
fn session(section: &str) -> Vec<Vec<u64>> {
    let text = String::from_utf8(file("kernel-session.txt").unwrap()).unwrap();
    let start = text.find(section).unwrap();
    let rest = &text[start + section.len()..];
    let rest = &rest[..rest.find("\n== ").unwrap()];
    let lines = rest.lines().filter_map(|line| line.split_once(" writecache "));
    let numbers = lines.filter(|(start, _)| start.starts_with("0 "));
    numbers.map(|(_, fields)| fields.split(' ').map(|f| f.parse().unwrap()).collect()).collect()
}

/// What the kernel's session did, and the status after each of its steps.
async fn replay(cache: Rc<WriteCache>, golden: Rc<Golden>) -> Vec<Vec<u64>> {
    let mut seen = vec![fields(&cache)];
    view(&*cache).await;
    write_and_flush(&*cache, &golden, 0..16).await;
    write_and_flush(&*cache, &golden, 16..24).await;
    seen.push(fields(&cache));
    view(&*cache).await;
    write_and_flush(&*cache, &golden, 4..8).await;
    seen.push(fields(&cache));
    view(&*cache).await;
    for n in 0..8u64 {
        let size = golden.block_size() as usize;
        let data = Buf::copy_of(&vec![7; size]);
        let at = Sector::from_bytes((500 + n) * size as u64);
        let io = reactor::write(&*cache, Flags::empty(), Class::Normal, at, data.into());
        io.await.unwrap();
    }
    seen.push(fields(&cache));
    view(&*cache).await;
    say(&cache, "flush").await.unwrap();
    seen.push(fields(&cache));
    view(&*cache).await;
    say(&cache, "clear_stats").await.unwrap();
    seen.push(fields(&cache));
    assert_eq!(say(&cache, "bogus").await.unwrap_err().kind(), ErrorKind::Invalid);
    seen
}

#[test]
fn the_status_lines_are_those_of_the_kernels_session() {
    for (section, name) in [
        ("== ssd mode, block size 4096", "ssd-4096-committed"),
        ("== ssd mode, block size 512", "ssd-512-committed"),
    ] {
        let kernel = session(section);
        assert_eq!(kernel.len(), 6, "{section}");
        for format in ["dm", "native"] {
            let golden = Rc::new(Golden::new(name));
            let fixture =
                golden.fixture(&format!("{CALM} format {format} autocommit_time 3600000"));
            fixture.world.borrow_mut().poke(
                fixture.cache,
                Sector::ZERO,
                &vec![0; golden.cache.len()],
            );
            let mut ours = fixture.life(async move |cache| replay(cache, golden).await).unwrap();
            let mut kernel = kernel.clone();
            if format == "native" {
                // The native metadata take more of so small a device: fewer blocks in all and
                // free, and as many in use.
                for (ours, kernel) in ours.iter_mut().zip(&mut kernel) {
                    assert_eq!(ours[1] - ours[2], kernel[1] - kernel[2], "{section} {format}");
                    for line in [ours, kernel] {
                        line[1..3].fill(0);
                    }
                }
            }
            // An overwritten block goes to another slot here and stays in its own in the kernel:
            // both count it as a write hit, and the superseded slot is free again after the flush.
            assert_eq!(ours, kernel, "{section} {format}");
        }
    }
}

#[test]
fn sha256_is_that_of_the_standard() {
    for (text, sum) in [
        ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
    ] {
        assert_eq!(sha256_hex(text.as_bytes()), sum);
    }
}
