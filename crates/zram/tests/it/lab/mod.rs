// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of writeback share: a world with a backing disk and a device on it, pages that
//! contain their slot and version, and attributes in one word.

pub(crate) mod dress;

use std::rc::Rc;

use block::{BlockDevice, Buf, Class, CoreId, Error, Flags, Sector, Status, Target};
use reactor::FileId;
use sim::model::Uniform;
use sim::{DiskSpec, Machine, World, WorldRef};
use zram::{Config, NoFiles, Zram};

pub(crate) const PAGE: usize = 4096;
const PAGE_SECTORS: u64 = 8;

/// A world with a backing disk, and the device that is made on it.
#[derive(Clone)]
pub(crate) struct Lab {
    pub(crate) world: WorldRef,
    pub(crate) disk: FileId,
    pub(crate) slots: u64,
    pub(crate) options: String,
    pub(crate) cores: u16,
}

impl Lab {
    /// `slots` pages, `blocks` blocks of backing, and the options of the table.
    pub(crate) fn new(slots: u64, blocks: u64, options: &str) -> Lab {
        Lab::within(World::calm(1), slots, blocks, options)
    }

    pub(crate) fn within(world: WorldRef, slots: u64, blocks: u64, options: &str) -> Lab {
        let model = Uniform::new(1, 20_000, 60_000);
        let spec = DiskSpec::new("disk", Sector(blocks * PAGE_SECTORS), Box::new(model));
        let disk = world.borrow_mut().add_disk(spec);
        Lab { world, disk, slots, options: options.to_owned(), cores: 1 }
    }

    pub(crate) fn config(&self) -> Config {
        let words: Vec<&str> = self.options.split_whitespace().collect();
        let count = (words.len() + 2).to_string();
        let args = [&["lz4", &count, "backing_dev", "disk"], &words[..]].concat();
        Config::parse(&args, Sector(self.slots * PAGE_SECTORS), &NoFiles).expect("good options")
    }

    pub(crate) fn target(&self) -> Rc<Zram> {
        self.target_over(self.world.borrow().leaf(self.disk))
    }

    pub(crate) fn target_over(&self, backing: Rc<dyn BlockDevice>) -> Rc<Zram> {
        let cores = (0..self.cores).map(CoreId).collect();
        Zram::new("zram0", self.config(), Some(backing), cores).expect("a good device")
    }

    /// Runs `work` on a resumed device, on a machine of its own.
    pub(crate) fn run<T: 'static>(&self, work: impl AsyncFnOnce(Rc<Zram>) -> T + 'static) -> T {
        let machine = Machine::boot(&self.world, self.cores);
        let lab = self.clone();
        let done = machine.block_on(async move {
            let target = lab.target();
            target.clone().resume().await.expect("resume");
            let value = work(target.clone()).await;
            target.suspend().await.expect("suspend");
            value
        });
        machine.shut_down();
        done.expect("no power cut was planned")
    }
}

/// A page that does not compress and that no other slot or version has.
pub(crate) fn noise(slot: u64, version: u64) -> Vec<u8> {
    let mut x = slot.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version.wrapping_mul(0xD1B5_4A32_D192);
    let mut word = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        x ^ x >> 29
    };
    (0..PAGE / 8).flat_map(|_| word().to_le_bytes()).collect()
}

/// A page of which `per_mille` does not compress.
pub(crate) fn page(slot: u64, version: u64, per_mille: usize) -> Vec<u8> {
    let mut page = noise(slot, version);
    page[PAGE * per_mille / 1000..].fill(version as u8);
    page
}

pub(crate) fn at(slot: u64) -> Sector {
    Sector(slot * PAGE_SECTORS)
}

pub(crate) async fn put(dev: &dyn BlockDevice, slot: u64, data: &[u8]) -> Result<(), Status> {
    let data = Buf::copy_of(data);
    reactor::write(dev, Flags::empty(), Class::Normal, at(slot), data.into()).await
}

/// Reads `pages` pages.
pub(crate) async fn get_run(
    dev: &dyn BlockDevice,
    slot: u64,
    pages: usize,
) -> Result<Vec<u8>, Status> {
    let buf = Buf::zeroed(pages * PAGE);
    let read = reactor::read(dev, Class::Foreground, at(slot), buf.all().into()).await;
    read.map(|()| buf.read(<[u8]>::to_vec))
}

pub(crate) async fn get(dev: &dyn BlockDevice, slot: u64) -> Result<Vec<u8>, Status> {
    get_run(dev, slot, 1).await
}

pub(crate) async fn drop_pages(dev: &dyn BlockDevice, slot: u64, pages: u64) {
    let len = Sector(pages * PAGE_SECTORS);
    reactor::discard(dev, Class::Normal, at(slot), len).await.expect("a discard");
}

pub(crate) async fn set(target: &Rc<Zram>, name: &str, value: &str) -> Result<(), Error> {
    target.clone().set_attribute(name.to_owned(), value.to_owned()).await
}

pub(crate) async fn told(target: &Rc<Zram>, name: &str) -> String {
    target.clone().get_attribute(name.to_owned()).await.expect("an attribute").to_string()
}

/// The numbers of an attribute.
pub(crate) async fn numbers(target: &Rc<Zram>, name: &str) -> Vec<u64> {
    let text = told(target, name).await;
    text.split_whitespace().map(|n| n.parse().expect("a number")).collect()
}

/// Writes pages that do not compress, one after the other.
pub(crate) async fn fill(target: &Rc<Zram>, slots: std::ops::Range<u64>, version: u64) {
    for slot in slots {
        put(&**target, slot, &noise(slot, version)).await.expect("a write");
    }
}

pub(crate) async fn expect(target: &Rc<Zram>, slots: std::ops::Range<u64>, version: u64) {
    for slot in slots {
        let found = get(&**target, slot).await;
        assert!(found == Ok(noise(slot, version)), "slot {slot} is not version {version}");
    }
}
