// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session with a real kernel's zram, replayed on the engine: every write of an attribute gets
//! the kernel's answer, and every row of numbers is the kernel's, but for listed differences.

use std::cell::Cell;
use std::rc::Rc;

use crate::fixture::{PAGE, drop_pages, get, noise, put};
use crate::session::{DIFFERENT, INTO_LIMIT, Step, check, compare, numbers, steps, text};
use block::{BlockDevice, CoreId, Error, ErrorKind, Limits, Sector, Status, Target};
use sim::model::Uniform;
use sim::{DiskSpec, Machine, World};
use zram::{Config, Files, NoFiles, Settings, Zram};

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
            Some(live) => {
                live.clone().get_attribute(name.to_owned()).await.expect("there is one").to_string()
            }
            None => self.settings.get(name).expect("there is one").to_string(),
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

async fn replay(backing: Rc<dyn BlockDevice>) -> Vec<String> {
    let open = Rc::new(Cell::new(false));
    let mut session = Session { backing, settings: Settings::new(), live: None, open };
    let mut different = Vec::new();
    let mut of_text = [0; 2];
    for step in steps() {
        match step {
            Step::Write { name, value, kernel } => {
                let answer = session.set(name, value).await;
                different.extend(check(name, value, kernel, name_of(&answer)));
                match name {
                    "disksize" if answer.is_ok() => session.open.set(true),
                    // The client closes it when it learns that it is in the way.
                    "reset" => session.open.set(false),
                    _ => {}
                }
            }
            Step::Act(heading) => {
                session.act(heading).await;
                if heading == "+200 text pages" {
                    let mm = numbers(&session.get("mm_stat").await);
                    of_text = [mm[1], mm[2]];
                    assert!(of_text[0] < 200 * 200 && of_text[1] <= 20 * 4096, "{of_text:?}");
                }
            }
            Step::Row { heading, name, kernel } => {
                let ours = numbers(&session.get(name).await);
                compare(heading, name, &kernel, &ours, of_text);
            }
            Step::Shown { name, kernel } => {
                let ours = session.get(name).await;
                assert!(ours.split_whitespace().eq(kernel.split_whitespace()), "{name}: {ours}");
            }
            Step::Limits(line) => limits_are_the_kernels(line, &session.device().limits()),
        }
    }
    different
}

fn limits_are_the_kernels(line: &str, limits: &Limits) {
    let text = format!(
        "limits: hw_sector {} physical {} discard_gran {} discard_max {} wz {} io_min {} cache {}",
        // The kernel refuses less than a page; here it is merged.
        limits.physical_block_bytes,
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
fn a_session_of_the_kernel_is_repeated_with_listed_differences() {
    let world = World::calm(1);
    let spec =
        DiskSpec::new("/dev/vda", Sector(8192 * 8), Box::new(Uniform::new(1, 20_000, 60_000)));
    let disk = world.borrow_mut().add_disk(spec);
    let machine = Machine::boot(&world, 1);
    let backing: Rc<dyn BlockDevice> = world.borrow().leaf(disk);
    let different = machine.block_on(replay(backing)).expect("no power cut was planned");
    machine.shut_down();
    assert_eq!(different, DIFFERENT);
}

/// The session's algorithms are others: lzo is refused, with a way out.
#[test]
fn unknown_algorithms_are_refused_and_known_ones_named() {
    for name in ["lzo", "lzo-rle", "842"] {
        let refused = Settings::new().set("comp_algorithm", name, &NoFiles).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains("lz4"), "{refused}");
    }
}
