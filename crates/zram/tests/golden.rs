// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session with a real kernel's zram, replayed: every write of an attribute gets the kernel's
//! answer, and every row of numbers is the kernel's, but for the differences listed here.
//!
//! `golden/kernel-zram-session.txt` was taken of Linux 6.1. Its lines are the script: writes are
//! done as they stand there, and headings (`-- 100 zero pages`) tell what a client did.
mod lab;

use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, CoreId, Error, ErrorKind, Limits, Sector, Status, Target};
use lab::{PAGE, drop_pages, get, noise, put};
use sim::model::Uniform;
use sim::{DiskSpec, Machine, World};
use zram::{Config, Files, NoFiles, Settings, Zram};

const SESSION: &str = include_str!("golden/kernel-zram-session.txt");

/// Writes that are answered in another way on purpose: attribute, value, the kernel's answer,
/// ours, and why.
const DIFFERENCES: [(&str, &str, &str, &str, &str); 7] = [
    ("backing_dev", "/tmp", "EISDIR", "EINVAL", "a kind of error that nothing else has"),
    ("writeback", "huge", "EIO", "EDQUOT", "a used-up limit is no device error"),
    ("max_comp_streams", "4", "ok", "ENXIO", "did nothing; newer kernels dropped it"),
    ("writeback", "incompressible", "EINVAL", "ok", "newer kernels have it"),
    ("writeback", "type=idle", "EINVAL", "ok", "newer kernels have it"),
    ("recompress", "type=idle", "EACCES", "EINVAL", "newer kernels have it; no algorithm is set"),
    ("comp_algorithm", "lzo", "ok", "EINVAL", "there is no free library for it"),
];

/// What a kernel's error message is.
fn errno(message: &str) -> &'static str {
    match message {
        "ok" => "ok",
        "Invalid argument" => "EINVAL",
        "No such file or directory" => "ENXIO",
        "Is a directory" => "EISDIR",
        "Device or resource busy" => "EBUSY",
        "Input/output error" => "EIO",
        "Permission denied" => "EACCES",
        _ => panic!("no errno known for `{message}`"),
    }
}

fn name_of(answer: &Result<(), Error>) -> &'static str {
    answer.as_ref().map_or_else(|e| e.kind().errno_name(), |()| "ok")
}

/// The files that the session names.
struct Machine61;

impl Files for Machine61 {
    fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        NoFiles.read(path)
    }

    fn backing(&self, device: &str) -> Result<(), Error> {
        match device {
            "/dev/vda" => Ok(()),
            "/tmp" => Err(Error::invalid("/tmp: is a directory")),
            _ => NoFiles.backing(device),
        }
    }
}

/// The device of the session, which has a size or has not.
struct Session {
    backing: Rc<dyn BlockDevice>,
    settings: Settings,
    live: Option<Rc<Zram>>,
    /// A client has it open: it can't be reset.
    open: Rc<Cell<bool>>,
}

impl Session {
    async fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let Some(live) = self.live.clone() else {
            let start = self.settings.set(name, value, &Machine61)?;
            if let Some(start) = start {
                let args: Vec<&str> = start.args.iter().map(String::as_str).collect();
                let config = Config::parse(&args, start.len, &Machine61)?;
                let backing = config.backing_dev.as_ref().map(|_| self.backing.clone());
                let zram = Zram::new("zram0", config, backing, vec![CoreId(0)])?;
                let open = self.open.clone();
                zram.set_on_reset(Rc::new(move || {
                    let open = open.get();
                    let busy = || Error::busy("zram0: it is open");
                    Box::pin(async move { if open { Err(busy()) } else { Ok(()) } })
                }));
                zram.clone().resume().await?;
                self.live = Some(zram);
            }
            return Ok(());
        };
        live.clone().set_attribute(name.to_owned(), value.to_owned()).await?;
        if name == "reset" {
            live.suspend().await?;
            self.live = None;
            self.settings.reset();
        }
        Ok(())
    }

    async fn get(&self, name: &str) -> String {
        match &self.live {
            Some(live) => live.clone().get_attribute(name.to_owned()).await.expect("there is one"),
            None => self.settings.get(name).expect("there is one"),
        }
    }

    fn device(&self) -> &Zram {
        self.live.as_deref().expect("the session gave it a size")
    }

    async fn write(&self, slots: std::ops::Range<u64>, page: impl Fn(u64) -> Vec<u8>) {
        for slot in slots {
            put(self.device(), slot, &page(slot)).await.expect("a write");
        }
    }

    /// What the client did before a heading. Pages: 0 zero, 100 same-filled, 200 text, 400 random.
    async fn act(&self, heading: &str) {
        match heading {
            "100 zero pages" => self.write(0..100, |_| vec![0; PAGE]).await,
            "+100 same-filled (0xa5)" => self.write(100..200, |_| vec![0xa5; PAGE]).await,
            "+200 text pages" => self.write(200..400, text).await,
            "+200 random pages" => self.write(400..600, |slot| noise(slot, 1)).await,
            "50 written-back pages read again" => {
                for slot in 500..550 {
                    assert_eq!(get(self.device(), slot).await, Ok(noise(slot, 1)), "{slot}");
                }
            }
            "discard of the 200 text pages" => drop_pages(self.device(), 200, 200).await,
            INTO_LIMIT => {
                let mut failed = None;
                for slot in 0..3000 {
                    if let Err(status) = put(self.device(), slot, &noise(slot, 2)).await {
                        failed = Some((slot, status));
                        break;
                    }
                }
                assert_eq!(failed, Some((2048, Status::Io)), "EIO, as the kernel");
                self.open.set(false);
            }
            "fresh"
            | "writeback huge with limit 100 (4 KiB units)"
            | "writeback huge, no limit"
            | "idle all + writeback idle"
            | "compact"
            | "mem_used_max 0"
            | "reset" => {}
            _ => panic!("unknown heading `{heading}`"),
        }
    }
}

/// A page that compresses well.
fn text(slot: u64) -> Vec<u8> {
    let line = format!("page {slot} of a text that says the same again and again\n");
    line.bytes().cycle().take(PAGE).collect()
}

/// The numbers of a row of the session, or of ours.
fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|n| n.parse().expect("a number")).collect()
}

/// What the kernel's compressor made of the text pages: bytes, and bytes of memory.
const KERNEL_TEXT: [u64; 2] = [10389, 16384];
/// The rows in which the text pages are in memory.
const WITH_TEXT: [&str; 4] = [
    "+200 text pages",
    "+200 random pages",
    "writeback huge with limit 100 (4 KiB units)",
    "writeback huge, no limit",
];
const INTO_LIMIT: &str = "3000 random pages into mem_limit 8M";

/// Compares a row with the kernel's. `text` is what our compressor made of the text pages.
fn compare(heading: &str, row: &str, kernel: &[u64], ours: &[u64], text: [u64; 2]) {
    let mut wanted = kernel.to_vec();
    if row == "mm_stat" && WITH_TEXT.contains(&heading) {
        wanted[1] = wanted[1] - KERNEL_TEXT[0] + text[0];
        wanted[2] = wanted[2] - KERNEL_TEXT[1] + text[1];
    }
    if row == "mm_stat" && wanted[4] > 0 {
        // The most that was used. The limit is never exceeded here, not even for a moment.
        let limit = wanted[3];
        let most = wanted[4] - KERNEL_TEXT[1] + text[1];
        wanted[4] = if heading == INTO_LIMIT { limit } else { most };
    }
    // Two reads of the kernel's own, which failed, came with the discard.
    if heading_after_discard(heading) {
        match row {
            "bd_stat" => wanted[1] -= 2,
            "io_stat" => wanted[0] -= 2,
            _ => {}
        }
    }
    assert_eq!(ours, wanted, "-- {heading}: {row} (kernel: {kernel:?})");
}

fn heading_after_discard(heading: &str) -> bool {
    ["discard of the 200 text pages", "compact", "mem_used_max 0"].contains(&heading)
}

async fn replay(backing: Rc<dyn BlockDevice>) -> Vec<String> {
    let open = Rc::new(Cell::new(false));
    let mut session = Session { backing, settings: Settings::new(), live: None, open };
    let mut different = Vec::new();
    let mut heading = "";
    let mut text = [0; 2];
    let mut limits_seen = false;
    for line in SESSION.lines() {
        if let Some(write) = line.strip_prefix("write ") {
            let (name, rest) = write.split_once(" <- '").expect("write A <- 'V': result");
            let (value, result) = rest.split_once("': ").expect("write A <- 'V': result");
            let kernel = errno(result);
            let answer = session.set(name, value).await;
            let ours = name_of(&answer);
            if ours != kernel {
                let known = DIFFERENCES.iter().find(|d| (d.0, d.1, d.2) == (name, value, kernel));
                let known = known.unwrap_or_else(|| panic!("{line}, and not {answer:?}"));
                assert_eq!(ours, known.3, "{line}: {answer:?}");
                different.push(format!("{name} {value}"));
            }
            match name {
                "disksize" if answer.is_ok() => session.open.set(true),
                // The client closes it when it learns that it is in the way.
                "reset" => session.open.set(false),
                _ => {}
            }
        } else if let Some(next) = line.strip_prefix("-- ") {
            heading = next;
            session.act(heading).await;
            if heading == "+200 text pages" {
                let mm = numbers(&session.get("mm_stat").await);
                text = [mm[1], mm[2]];
                assert!(text[0] < 200 * 200 && text[1] <= 5 * PAGE as u64 * 4, "{text:?}");
            }
        } else if let Some((row, kernel)) = line.trim_start().split_once(":  ") {
            let ours = numbers(&session.get(row).await);
            compare(heading, row, &numbers(kernel), &ours, text);
        } else if let Some(path) = line.strip_prefix("backing_dev: ") {
            assert_eq!(session.get("backing_dev").await, path);
        } else if let Some(left) = line.strip_prefix("writeback_limit: ") {
            assert_eq!(session.get("writeback_limit").await, left);
        } else if let Some(kernel) = line.strip_prefix("debug_stat: ") {
            let ours = session.get("debug_stat").await;
            assert!(ours.split_whitespace().eq(kernel.split_whitespace()), "{ours}");
        } else if line.starts_with("limits: ") {
            limits_are_the_kernels(line, &session.device().limits());
            limits_seen = true;
        }
    }
    assert!(limits_seen);
    different
}

fn limits_are_the_kernels(line: &str, limits: &Limits) {
    let text = format!(
        "limits: hw_sector {} physical {} discard_gran {} discard_max {} wz {} io_min {} cache {}",
        limits.logical_block_bytes,
        limits.physical_block_bytes,
        limits.discard_granularity_bytes,
        // The kernel's words for no limit.
        2_199_023_255_040_u64,
        if limits.write_zeroes { 2_199_023_255_040_u64 } else { 0 },
        limits.io_min_bytes,
        if limits.volatile_cache { "write back" } else { "write through" },
    );
    assert_eq!(text, line);
}

#[test]
fn the_session_of_a_kernel_is_repeated_but_for_the_listed_differences() {
    let world = World::calm(1);
    let spec =
        DiskSpec::new("/dev/vda", Sector(8192 * 8), Box::new(Uniform::new(1, 20_000, 60_000)));
    let disk = world.borrow_mut().add_disk(spec);
    let machine = Machine::boot(&world, 1);
    let backing: Rc<dyn BlockDevice> = world.borrow().leaf(disk);
    let different = machine.block_on(replay(backing)).expect("no power cut was planned");
    machine.shut_down();
    assert_eq!(
        different,
        [
            "backing_dev /tmp",
            "max_comp_streams 4",
            "writeback huge",
            "writeback huge",
            "writeback incompressible",
            "writeback type=idle",
            "recompress type=idle",
        ],
        "in this order, and no other"
    );
}

/// What the session shows of algorithms is theirs: lzo is refused, with a way out.
#[test]
fn algorithms_that_are_not_there_are_refused_and_others_named() {
    for (name, value, kernel, ours, _) in DIFFERENCES {
        if name == "comp_algorithm" {
            let refused = Settings::new().set(name, value, &NoFiles).unwrap_err();
            assert_eq!((kernel, refused.kind().errno_name()), ("ok", ours));
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert!(refused.to_string().contains("lz4"), "{refused}");
        }
    }
}
