// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session with a real kernel's zram, replayed through the files of a device: `write(2)` to an
//! attribute gets the kernel's errno, and what is read are its numbers, but for listed differences.

#[path = "../../../../crates/zram/tests/it/session/mod.rs"]
mod session;

use std::fs::{File, OpenOptions};
use std::io::{Error, Result, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use e2e::mounted::{file, fuse};
use e2e::stamp::fill_words;
use e2e::test_bed::TestBed;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use session::{DIFFERENT, INTO_LIMIT, Step, check, compare, numbers, steps, text};

const PAGE: usize = 4096;
const NAME: &str = "zram0";

/// A page that nothing compresses.
fn noise(nth: u64) -> Vec<u8> {
    let mut x = (nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let mut page = vec![0; PAGE];
    fill_words(&mut page, next);
    page
}

/// `ok`, or what has no other name than its errno.
fn name_of(answer: &Result<()>) -> &'static str {
    let Err(e) = answer else { return "ok" };
    match Errno::from_io_error(e) {
        // A device or attribute that is not there, as a file's error.
        Some(Errno::NOENT) => "ENXIO",
        Some(Errno::INVAL) => "EINVAL",
        Some(Errno::BUSY) => "EBUSY",
        Some(Errno::IO) => "EIO",
        Some(Errno::DQUOT) => "EDQUOT",
        Some(Errno::ACCESS) => "EACCES",
        Some(_) | None => panic!("unexpected: {e}"),
    }
}

struct Client<'a> {
    bed: &'a TestBed,
    backing: String,
    /// Open from when it has a size to the first reset, which that refuses.
    device: Option<File>,
}

impl Client<'_> {
    fn path(&self, attribute: &str) -> PathBuf {
        self.bed.mount().join("sys/block").join(NAME).join(attribute)
    }

    fn write(&self, attribute: &str, value: &str) -> Result<()> {
        let value = if value == "/dev/vda" { &self.backing } else { value };
        let mut file = OpenOptions::new().write(true).open(self.path(attribute))?;
        file.write_all(format!("{value}\n").as_bytes())
    }

    fn read(&self, attribute: &str) -> String {
        let path = self.path(attribute);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn device(&self) -> &File {
        self.device.as_ref().unwrap()
    }

    fn put(&self, slot: u64, page: &[u8]) -> Result<()> {
        self.device().write_all_at(page, slot * PAGE as u64)
    }

    fn fill(&self, slots: std::ops::Range<u64>, page: impl Fn(u64) -> Vec<u8>) {
        for slot in slots {
            self.put(slot, &page(slot)).unwrap();
        }
    }

    /// What was done before a heading. Pages: 0 zero, 100 same-filled, 200 text, 400 random.
    fn act(&self, heading: &str) {
        match heading {
            "100 zero pages" => self.fill(0..100, |_| vec![0; PAGE]),
            "+100 same-filled (0xa5)" => self.fill(100..200, |_| vec![0xa5; PAGE]),
            "+200 text pages" => self.fill(200..400, text),
            "+200 random pages" => self.fill(400..600, noise),
            "50 written-back pages read again" => {
                let mut found = vec![0; PAGE];
                for slot in 500..550 {
                    self.device().read_exact_at(&mut found, slot * PAGE as u64).unwrap();
                    assert!(found == noise(slot), "page {slot}");
                }
            }
            "discard of the 200 text pages" => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let page = PAGE as u64;
                fallocate(self.device(), hole, 200 * page, 200 * page).unwrap();
            }
            INTO_LIMIT => {
                let failed =
                    (0..3000).find_map(|slot| Some((slot, self.put(slot, &noise(slot)).err()?)));
                let (slot, e) = failed.expect("the memory has a limit");
                let of = |e: &Error| Errno::from_io_error(e);
                assert_eq!((slot, of(&e)), (2048, Some(Errno::IO)));
            }
            _ => {}
        }
    }

    fn limits(&self) -> String {
        // The kernel refuses less than a page; here it is merged.
        assert_eq!(self.read("queue/hw_sector_size").trim(), "512");
        let [hw, physical, discard, most, zeroes, io_min, cache] = [
            "physical_block_size",
            "physical_block_size",
            "discard_granularity",
            "discard_max_bytes",
            "write_zeroes_max_bytes",
            "minimum_io_size",
            "write_cache",
        ]
        .map(|name| self.read(&format!("queue/{name}")).trim().to_owned());
        format!(
            "limits: hw_sector {hw} physical {physical} discard_gran {discard} discard_max {most} \
             wz {zeroes} io_min {io_min} cache {cache}"
        )
    }
}

#[test]
fn the_session_of_a_kernel_is_repeated_through_files() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[("back.img", 32 << 20)], &[]);
    bed.verb(&["create", NAME, "--zram"]);
    let backing = bed.path("back.img").display().to_string();
    let mut client = Client { bed: &bed, backing, device: None };
    let mut different = Vec::new();
    let mut of_text = [0; 2];
    for step in steps() {
        match step {
            Step::Write { name, value, kernel } => {
                let answer = client.write(name, value);
                different.extend(check(name, value, kernel, name_of(&answer)));
                match name {
                    "disksize" if answer.is_ok() => {
                        let flags = OFlags::DIRECT.bits().cast_signed();
                        let mut options = OpenOptions::new();
                        let options = options.read(true).write(true).custom_flags(flags);
                        client.device = Some(options.open(file(&bed, NAME)).unwrap());
                    }
                    "reset" => client.device = None,
                    _ => {}
                }
            }
            Step::Act(heading) => {
                client.act(heading);
                if heading == "+200 text pages" {
                    let mm = numbers(&client.read("mm_stat"));
                    of_text = [mm[1], mm[2]];
                }
                if heading == INTO_LIMIT {
                    client.device = None;
                }
            }
            Step::Row { heading, name, kernel } => {
                compare(heading, name, &kernel, &numbers(&client.read(name)), of_text);
            }
            Step::Shown { name, kernel } => {
                let kernel = if name == "backing_dev" { &client.backing } else { kernel };
                let ours = client.read(name);
                assert!(ours.split_whitespace().eq(kernel.split_whitespace()), "{name}: {ours}");
            }
            Step::Limits(line) => assert_eq!(client.limits(), line),
        }
    }
    assert_eq!(different, DIFFERENT);
}
