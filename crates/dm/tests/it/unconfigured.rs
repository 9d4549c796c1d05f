// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device without a table that is set up by attributes, and becomes one again.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use crate::common::{Bench, read, write};
use block::attr::{Kind, Spec, names};
use block::value::Value;
use block::{Access, BlockDevice, Error, ErrorKind, LocalFuture, Nanos, Status};
use dm::{Dm, Remove, SetupAttributes};

/// `size` makes it a linear device of so many sectors of a RAM disk.
struct Sized {
    dm: Weak<Dm>,
    note: RefCell<String>,
}

impl Sized {
    fn new(dm: &Rc<Dm>) -> Rc<Sized> {
        Rc::new(Sized { dm: Rc::downgrade(dm), note: RefCell::default() })
    }
}

impl SetupAttributes for Sized {
    fn attributes(&self) -> Vec<&'static Spec> {
        const SIZE: Spec = Spec::new("size", Kind::Text("SECTORS"), "makes it a device");
        const NOTE: Spec = Spec::new("note", Kind::Text("words"), "kept");
        static SPECS: [Spec; 2] = [SIZE.access(Access::Write), NOTE.access(Access::ReadWrite)];
        SPECS.iter().collect()
    }

    fn get(self: Rc<Self>, _name: String) -> LocalFuture<Result<Value, Error>> {
        Box::pin(async move { Ok(self.note.borrow().clone().into()) })
    }

    fn set(
        self: Rc<Self>,
        device: Rc<dyn BlockDevice>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            if name == "note" {
                *self.note.borrow_mut() = value;
                return Ok(());
            }
            let dm = self.dm.upgrade().expect("it runs");
            let name = device.name();
            dm.load(name, &format!("0 {value} linear /ram/a/1024 0")).await?;
            dm.resume(name).await
        })
    }
}

#[test]
fn attributes_set_up_an_unconfigured_device_and_reset_it() {
    Bench::new(1).run(|dm, _| async move {
        let device = dm.create_unconfigured("d", None, Some(7), Sized::new(&dm)).unwrap();
        let info = device.info();
        assert!(!info.suspended && !info.live_table && info.size_sectors == 0);
        assert_eq!(read(&*device, 0, 1).await, Err(Status::Io), "nothing there, nothing waits");
        assert_eq!(names(&dm.attributes("d").unwrap()), ["doors", "note", "ro", "size"]);
        assert_eq!(dm.access("d", "size").unwrap(), Access::Write);
        dm.set_attribute("d", "note", "hello").await.unwrap();
        assert_eq!(dm.get_attribute("d", "note").await.unwrap(), "hello");
        let e = dm.get_attribute("d", "stat").await.unwrap_err();
        assert_eq!(e.to_string(), "d: no attribute `stat`: there are doors, note, ro, size");
        // Too large for the disk: it stays unconfigured, with what was set.
        let e = dm.set_attribute("d", "size", "2048").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert_eq!(dm.get_attribute("d", "note").await.unwrap(), "hello");

        dm.rename("d", "e").unwrap();
        dm.set_attribute("e", "size", "1024").await.unwrap();
        let all = ["doors", "mapping", "queue/iostats", "ro", "stat"];
        assert_eq!(names(&dm.attributes("e").unwrap()), all);
        write(&*device, 5, 0, 8).await.unwrap();

        let events = device.info().event_nr;
        dm.unconfigure("e", Sized::new(&dm)).await.unwrap();
        let info = device.info();
        assert!(!info.suspended && !info.live_table && info.size_sectors == 0 && info.minor == 7);
        assert_ne!(info.event_nr, events);
        assert_eq!(read(&*device, 0, 1).await, Err(Status::Io));
        assert_eq!(dm.get_attribute("e", "note").await.unwrap(), "", "a new face");
        dm.set_attribute("e", "size", "8").await.unwrap();
        assert_eq!(read(&*device, 0, 8).await.unwrap(), [5; 8 * 512]);
        dm.remove("e", Remove::IfUnused).await.unwrap();
        let e = dm.unconfigure("e", Sized::new(&dm)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_device_in_use_keeps_its_table() {
    Bench::new(1).run(|dm, _| async move {
        let device = dm.create("d", None, Some("0 8 linear /ram/a/1024 0")).await.unwrap();
        let opened = dm.open("d").unwrap();
        let e = dm.unconfigure("d", Sized::new(&dm)).await.unwrap_err();
        assert_eq!(e.to_string(), "d: device is in use: opened 1 times");
        assert_eq!(e.kind(), ErrorKind::Busy);
        write(&*device, 5, 0, 8).await.unwrap();
        drop(opened);
        dm.unconfigure("d", Sized::new(&dm)).await.unwrap();
        assert_eq!(write(&*device, 5, 0, 8).await, Err(Status::Io));
    });
}

#[test]
fn bios_in_flight_end_before_the_table_is_dropped() {
    Bench::new(1).run(|dm, state| async move {
        let device = dm.create("d", None, Some("0 8 delay /ram/a/1024 0 5")).await.unwrap();
        let (dev, ended) = (device.clone(), Rc::new(Cell::new(0)));
        let count = ended.clone();
        let submit = move |byte| {
            let (dev, count) = (dev.clone(), count.clone());
            reactor::spawn(async move {
                write(&*dev, byte, 0, 8).await.unwrap();
                count.set(count.get() + 1);
            });
        };
        submit(1);
        reactor::sleep(Nanos(1)).await;
        let (other, late) = (dm.clone(), Rc::new(RefCell::new(None)));
        let slot = late.clone();
        reactor::spawn(async move {
            reactor::sleep(Nanos::from_millis(1)).await;
            *slot.borrow_mut() = Some(other.open("d").unwrap());
        });
        let e = dm.unconfigure("d", Sized::new(&dm)).await.unwrap_err();
        reactor::sleep(Nanos(1)).await; // for the task that wrote
        assert_eq!((e.kind(), ended.get()), (ErrorKind::Busy, 1));
        assert!(!device.is_suspended());
        submit(2);
        drop(late.take());
        reactor::sleep(Nanos(1)).await;
        dm.unconfigure("d", Sized::new(&dm)).await.unwrap();
        reactor::sleep(Nanos(1)).await;
        assert_eq!((ended.get(), state.borrow().in_flight()), (2, 0));
    });
}
