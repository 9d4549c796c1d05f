// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed RAM disks: made by a table line, or bare, as one that the kernel has just added, and
//! then set up by attributes.
//!
//! ```text
//!   create NAME --zram ──▶ Unconfigured ── disksize: load, resume ──▶ Zram (a target of dm)
//!                               ▲                                       │
//!                               └────────────── reset ──────────────────┘
//! ```
//!
//! Invariants
//! - HO-Z1 An unconfigured device starts once: setting an attribute meanwhile fails as busy.
//! - HO-Z2 A table is not loaded in place of one whose pages are in memory only.
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::attr::Spec;
use block::value::Value;
use block::{BlockDevice, CoreId, Error, LocalFuture, Target};
use dm::{Context, Dm, MappedDevice, SetupAttributes};
use zram::{Config, Files, Settings, Start, Zram};

use crate::claims::Claims;
use crate::leaf_word::OwnMount;
use crate::leaves::Leaves;
use crate::signed_areas::before_overwrite;

/// Makes compressed RAM disks. Clones are the same.
#[derive(Clone)]
pub(crate) struct ZramFactory {
    dm: Weak<Dm>,
    leaves: Leaves,
    claims: Rc<Claims>,
    /// The cores that its parts may run on, core 0 first.
    cores: Rc<[CoreId]>,
}

impl ZramFactory {
    pub(crate) fn new(
        dm: &Rc<Dm>,
        leaves: Leaves,
        claims: Rc<Claims>,
        cores: &[CoreId],
    ) -> ZramFactory {
        ZramFactory { dm: Rc::downgrade(dm), leaves, claims, cores: cores.into() }
    }

    /// The attributes of a device that has no size yet.
    pub(crate) fn unconfigured(&self) -> Rc<dyn SetupAttributes> {
        Rc::new(Unconfigured {
            factory: self.clone(),
            settings: RefCell::new(Settings::new()),
            starting: Cell::new(false),
        })
    }

    /// Access to files of this machine, and to `word` if that names a mapped device.
    fn machine(&self, word: Option<&str>) -> MachineFiles {
        let dm = self.dm.upgrade();
        let mapped =
            word.map(str::trim).filter(|word| dm.is_some_and(|dm| dm.find(word).is_some()));
        MachineFiles { own: self.leaves.own_mount(), mapped: mapped.map(str::to_owned) }
    }

    fn dm(&self) -> Result<Rc<Dm>, Error> {
        self.dm.upgrade().ok_or_else(|| Error::busy("the device mapper is shutting down"))
    }
}

/// Files of this machine, for a helper thread.
struct MachineFiles {
    own: OwnMount,
    /// The word that names a mapped device.
    mapped: Option<String>,
}

impl Files for MachineFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        self.own.read(path)
    }

    fn backing(&self, device: &str) -> Result<(), Error> {
        if self.mapped.as_deref() == Some(device) {
            Ok(())
        } else {
            self.own.check_openable(device)
        }
    }
}

/// Whether the words of a table name a dictionary.
fn reads_files(words: &[&str]) -> bool {
    words.iter().any(|word| word.contains("dict="))
}

/// Makes one of a table line.
pub(crate) async fn construct(
    factory: ZramFactory,
    ctx: Context,
    args: Vec<String>,
) -> Result<Rc<dyn Target>, Error> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (machine, len) = (factory.machine(None), ctx.len());
    let config = match reads_files(&words) {
        false => Config::parse(&words, len, &machine)?,
        true => {
            let what = format!("zram {}: reading a dictionary", ctx.device());
            let parse = move || {
                let words: Vec<&str> = args.iter().map(String::as_str).collect();
                Config::parse(&words, len, &machine)
            };
            factory.leaves.on_helper(&what, parse).await?
        }
    };
    check_no_page_is_lost(&factory, &factory.claims.owner(&ctx)?)?; // HO-Z2
    let backing = match &config.backing_dev {
        Some(word) => Some(ctx.lookup(word).await?),
        None => None,
    };
    let target = Zram::new(ctx.device(), config, backing, factory.cores.to_vec())?;
    let owner = Rc::downgrade(&factory.claims.owner(&ctx)?);
    let (of_device, device) = (factory.clone(), owner.clone());
    target.set_before_start(Rc::new(move || match device.upgrade() {
        Some(device) => check_no_page_is_lost(&of_device, &device), // HO-Z2
        None => Ok(()),
    }));
    let force = ctx.force().map(str::to_owned);
    let (dm, leaves) = (factory.dm.clone(), factory.leaves.clone());
    target.set_before_overwrite(before_overwrite(dm, leaves, force));
    let device = ctx.device().to_owned();
    target.set_on_failure(Box::new(move |what| tracing::error!(device, "zram: {what}")));
    target.set_on_reset(Rc::new(move || Box::pin(reset(factory.clone(), owner.clone()))));
    Ok(target)
}

/// Refuses a new table while the present one has pages that are nowhere else.
fn check_no_page_is_lost(factory: &ZramFactory, owner: &Rc<MappedDevice>) -> Result<(), Error> {
    if !owner.info().live_table {
        return Ok(()); // the engine of an earlier table may live on while requests read from it
    }
    for engine in factory.claims.of(owner) {
        let engine: Rc<dyn Any> = engine;
        if engine.downcast_ref::<Zram>().is_some_and(Zram::would_lose_pages) {
            return Err(Error::busy(
                "the device has pages that are in its present table only: reset or remove it first",
            ));
        }
    }
    Ok(())
}

/// Takes the table of a device away, so that it is unconfigured again.
async fn reset(factory: ZramFactory, owner: Weak<MappedDevice>) -> Result<(), Error> {
    let (dm, device) = (factory.dm()?, owner.upgrade());
    let device = device.ok_or_else(|| Error::not_found("the device is gone"))?;
    let lines = device.info().targets;
    if lines != 1 {
        return Err(Error::busy(format!(
            "reset: the device's table has {lines} lines: it would take the others along"
        )));
    }
    dm.unconfigure(device.name(), factory.unconfigured()).await
}

/// A device that has no size yet.
struct Unconfigured {
    factory: ZramFactory,
    settings: RefCell<Settings>,
    starting: Cell<bool>,
}

impl Unconfigured {
    /// Sets an attribute that names a file, which a helper thread examines.
    async fn set_on_helper(
        &self,
        device: &dyn BlockDevice,
        name: String,
        value: String,
        machine: MachineFiles,
    ) -> Result<Option<Start>, Error> {
        let mut settings = self.settings.borrow().clone();
        let what = format!("zram {}: {name}", device.name());
        let set = move || {
            let start = settings.set(&name, &value, &machine)?;
            Ok((settings, start))
        };
        let (settings, start) = self.factory.leaves.on_helper(&what, set).await?;
        self.settings.replace(settings);
        Ok(start)
    }

    async fn start(&self, device: &dyn BlockDevice, start: Start) -> Result<(), Error> {
        let dm = self.factory.dm()?;
        let words: Vec<String> = start.args.iter().map(|word| block::quote(word)).collect();
        let table = format!("0 {} zram {}", start.len, words.join(" "));
        dm.load_and_resume(device.name(), &table).await
    }
}

impl SetupAttributes for Unconfigured {
    fn attributes(&self) -> Vec<&'static Spec> {
        self.settings.borrow().attributes()
    }

    fn get(self: Rc<Self>, name: String) -> LocalFuture<Result<Value, Error>> {
        let value = self.settings.borrow().get(&name);
        Box::pin(async move { value })
    }

    fn set(
        self: Rc<Self>,
        device: Rc<dyn BlockDevice>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            if self.starting.get() {
                return Err(Error::busy(format!("{name}: the device is being started"))); // HO-Z1
            }
            let machine = self.factory.machine(Some(&value));
            let start = if matches!(&*name, "backing_dev" | "algorithm_params") {
                self.starting.set(true); // HO-Z1
                let set = self.set_on_helper(&*device, name.clone(), value, machine).await;
                self.starting.set(false);
                set?
            } else {
                self.settings.borrow_mut().set(&name, &value, &machine)?
            };
            let Some(start) = start else { return Ok(()) };
            self.starting.set(true);
            let started = self.start(&*device, start).await;
            self.starting.set(false);
            started.map_err(|e| e.within(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ::zram::DICTIONARY_BYTES_MAX;
    use block::{Buf, Class, ErrorKind, Flags, Nanos, Sector};
    use dm::{NoLeaves, Remove};
    use reactor::{Reactor, write};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use uring::Uring;

    #[test]
    fn a_reset_device_starts_while_the_old_one_is_still_read() {
        let core = Reactor::enter(CoreId(0), Box::new(Uring::new().unwrap()));
        core.block_on(async {
            let leaves = Leaves::in_memory();
            let dm = Dm::new(Rc::new(leaves.clone()));
            let (factory, _) = crate::targets::register(&dm, &leaves, &[CoreId(0)]);
            let device = dm.create("z", None, Some("0 64 zram lz4")).await.unwrap();
            let page = Buf::copy_of(&[7; 4096]);
            let (flags, class) = (Flags::empty(), Class::Foreground);
            write(&*device, flags, class, Sector::ZERO, page.all().into()).await.unwrap();
            let before: Rc<dyn Any> = factory.claims.of(&device).remove(0);
            let e = dm.load("z", "0 64 zram lz4").await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Busy, "HO-Z2: {e}");
            dm.set_attribute("z", "reset", "1").await.unwrap();
            assert!(before.downcast_ref::<Zram>().unwrap().would_lose_pages());
            dm.set_attribute("z", "disksize", "1M").await.unwrap();
            assert_eq!(dm.get_attribute("z", "disksize").await.unwrap(), "1048576");
        });
    }

    /// Found by reading: a `disksize` that failed dropped the inactive table of the name, although
    /// another device had the name by then, or an operator had loaded the table meanwhile.
    #[test]
    fn a_failed_start_drops_no_table_of_others() {
        for by_force in [true, false] {
            let core = Reactor::enter(CoreId(0), Box::new(Uring::new().unwrap()));
            core.block_on(async move {
                let leaves = Leaves::in_memory();
                let dm = Dm::new(Rc::new(leaves.clone()));
                let (factory, _) = crate::targets::register(&dm, &leaves, &[CoreId(0)]);
                let below = dm.create("below", None, Some("0 65536 linear mem:32M 0")).await;
                // It holds what went with `persist`, so the start fails once it can be read.
                let page = Buf::copy_of(&[&b"MPZRSUPR\x01\0"[..], &[7; 4086]].concat());
                let (flags, class) = (Flags::empty(), Class::Foreground);
                let data = page.all().into();
                write(&*below.unwrap(), flags, class, Sector::ZERO, data).await.unwrap();
                dm.create_unconfigured("z", None, None, factory.unconfigured()).unwrap();
                dm.set_attribute("z", "backing_dev", "below").await.unwrap();
                dm.suspend("below").await.unwrap();
                let (starting, started) = (dm.clone(), Rc::new(Cell::new(None)));
                let ended = started.clone();
                reactor::spawn(async move {
                    let set = starting.set_attribute("z", "disksize", "1M").await;
                    ended.set(Some(set.is_ok()));
                });
                reactor::yield_now().await;
                let other = "0 64 linear mem:32K 0";
                if by_force {
                    dm.remove("z", Remove::Force).await.unwrap();
                    dm.create("z", None, None).await.unwrap();
                    dm.load("z", other).await.unwrap();
                    dm.resume("below").await.unwrap();
                } else {
                    let loading = dm.clone();
                    reactor::spawn(async move { loading.load("z", other).await.unwrap() });
                    reactor::yield_now().await;
                    dm.resume("below").await.unwrap();
                }
                for _ in 0..500 {
                    reactor::sleep(Nanos(10_000_000)).await;
                    if started.get().is_some() && dm.info("z").unwrap().inactive_table {
                        break;
                    }
                }
                let kept = dm.info("z").unwrap().inactive_table;
                assert_eq!((started.get(), kept), (Some(false), true), "{by_force}");
            });
        }
    }

    #[test]
    fn dictionaries_and_backing_devices_are_checked_before_use() {
        let _core = Reactor::enter(CoreId(0), Box::new(Uring::new().unwrap()));
        let tmp = tempfile::tempdir().unwrap();
        let path = |name: &str| tmp.path().join(name).display().to_string();
        let file = |name: &str, bytes: usize| std::fs::write(path(name), vec![7; bytes]).unwrap();
        file("empty", 0);
        file("dict", 9);
        file("most", DICTIONARY_BYTES_MAX);
        file("long", DICTIONARY_BYTES_MAX + 1);
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let dm = Dm::new(Rc::new(NoLeaves));
        let (factory, _) = crate::targets::register(&dm, &Leaves::in_memory(), &[CoreId(0)]);

        assert_eq!(factory.machine(None).read(&path("dict")).unwrap(), [7; 9]);
        assert_eq!(factory.machine(None).read(&path("most")).unwrap().len(), DICTIONARY_BYTES_MAX);
        for (name, kind) in [
            (path("long"), ErrorKind::Invalid),
            (path("pipe"), ErrorKind::Invalid),
            (path(""), ErrorKind::Invalid),
            (path("missing"), ErrorKind::NoFile),
            ("dict".into(), ErrorKind::Invalid),
        ] {
            let e = factory.machine(None).read(&name).unwrap_err();
            assert!(e.kind() == kind && e.to_string().contains(&name), "{name}: {e}");
        }
        for word in [path("dict"), "mem:64M".into(), "null:1G".into()] {
            factory.machine(Some(&word)).backing(&word).unwrap();
        }
        for (word, kind) in [
            (path("empty"), ErrorKind::Invalid),
            (path("pipe"), ErrorKind::Invalid),
            (path(""), ErrorKind::Invalid),
            (path("missing"), ErrorKind::NoFile),
            (path("dict/below"), ErrorKind::NoFile),
            ("./dict".into(), ErrorKind::Invalid),
            ("nothing".into(), ErrorKind::NotFound),
            ("mem:x".into(), ErrorKind::Invalid),
        ] {
            assert_eq!(
                factory.machine(Some(&word)).backing(&word).unwrap_err().kind(),
                kind,
                "{word}"
            );
        }
        let unconfigured = factory.unconfigured();
        dm.create_unconfigured("z", None, None, unconfigured).unwrap();
        factory.machine(Some("/dev/mapper/z")).backing("/dev/mapper/z").unwrap();
    }
}
