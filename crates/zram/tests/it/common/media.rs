// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device on one disk whose media a test can look at, and pages of every kind to put there.

use std::rc::Rc;

use block::{BlockDevice, Buf, Class, CoreId, Error, Flags, Sector, Status, Target};
use format::zram::{Geometry, Superblock, decode_unit};
use reactor::FileId;
use sim::model::Uniform;
use sim::{DiskSpec, DiskStats, Machine, World, WorldRef};
use zram::{Config, NoFiles, Zram};

use super::{PAGE, PAGE_SECTORS};

pub(crate) const BLOCK: usize = 4096;

/// A world with one disk, and the table of a device on it.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) world: WorldRef,
    pub(crate) disk: FileId,
    pub(crate) slots: u64,
    pub(crate) table: String,
    pub(crate) cores: u16,
}

impl Fixture {
    pub(crate) fn new(slots: u64, blocks: u64) -> Fixture {
        Fixture::seeded(1, slots, blocks)
    }

    pub(crate) fn seeded(seed: u64, slots: u64, blocks: u64) -> Fixture {
        let world = World::calm(seed);
        let model = Uniform::new(seed, 20_000, 60_000);
        let spec = DiskSpec::new("disk", Sector(blocks * PAGE_SECTORS), Box::new(model));
        let disk = world.borrow_mut().add_disk(spec);
        Fixture {
            world,
            disk,
            slots,
            table: "lz4 5 backing_dev disk persist shards 1".into(),
            cores: 1,
        }
    }

    pub(crate) fn with(&self, table: &str) -> Fixture {
        Fixture { table: table.to_owned(), ..self.clone() }
    }

    pub(crate) fn target(&self) -> Rc<Zram> {
        let disk = self.world.borrow().leaf(self.disk);
        self.target_over(disk)
    }

    /// With a device before its disk.
    pub(crate) fn target_over(&self, backing: Rc<dyn BlockDevice>) -> Rc<Zram> {
        let words: Vec<&str> = self.table.split_whitespace().collect();
        let len = Sector(self.slots * PAGE_SECTORS);
        let config = Config::parse(&words, len, &NoFiles).expect("a good table");
        let cores = (0..self.cores).map(CoreId).collect();
        Zram::new("zram0", config, Some(backing), cores).expect("a device that fits")
    }

    /// Opens the device and works, until the process is killed.
    pub(crate) fn life<T: 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<Zram>) -> T + 'static,
    ) -> Result<T, Error> {
        let machine = Machine::boot(&self.world, self.cores);
        let lab = self.clone();
        let done = machine.block_on(async move {
            let target = lab.target();
            target.clone().resume().await?;
            Ok(work(target).await)
        });
        machine.kill();
        done.expect("no power cut was planned")
    }

    pub(crate) fn refusal(&self) -> Error {
        self.life(async |_| ()).expect_err("it was opened")
    }

    pub(crate) fn stats(&self) -> DiskStats {
        self.world.borrow().stats(self.disk)
    }

    pub(crate) fn peek(&self, block: u32, blocks: usize) -> Vec<u8> {
        let mut bytes = vec![0; blocks * BLOCK];
        self.world.borrow().peek(self.disk, sector(block), &mut bytes);
        bytes
    }

    pub(crate) fn poke(&self, block: u32, bytes: &[u8]) {
        self.world.borrow_mut().poke(self.disk, sector(block), bytes);
    }

    pub(crate) fn flip(&self, block: u32, byte: u64) {
        let at = u64::from(block) * BLOCK as u64 + byte;
        self.world.borrow_mut().flip_bit(self.disk, at, 3);
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        let bytes = self.world.borrow().leaf(self.disk).limits().capacity.bytes();
        self.peek(0, usize::try_from(bytes).expect("fits in memory") / BLOCK)
    }

    pub(crate) fn superblock(&self) -> Superblock {
        Superblock::decode(0, &self.peek(0, 1)).expect("copy 0")
    }

    pub(crate) fn copies_agree(&self) -> bool {
        let copies = (0u8..4)
            .map(|copy| Superblock::decode(copy, &self.peek(Geometry::superblock(copy), 1)));
        copies.into_iter().all(|copy| copy == Ok(self.superblock()))
    }

    /// Where the units of the chain are, in their order, by their headers alone.
    pub(crate) fn units(&self) -> Vec<u32> {
        let superblock = self.superblock();
        let (mut at, mut sequence) = (superblock.chain.next, superblock.chain.sequence);
        let mut units = Vec::new();
        while let Ok(unit) = decode_unit(&self.peek(at, 1), &superblock.uuid) {
            if unit.header.sequence != sequence || unit.header.incarnation != superblock.incarnation
            {
                break;
            }
            units.push(at);
            (at, sequence) = (unit.header.next, sequence + 1);
        }
        units
    }
}

pub(crate) fn sector(block: u32) -> Sector {
    Sector(u64::from(block) * PAGE_SECTORS)
}

/// A page of a slot and version: every third incompressible, every fifth of one word.
pub(crate) fn page(slot: u64, version: u64) -> Vec<u8> {
    let mut x = (slot << 20 | version).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut words = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    });
    let first = words.next().expect("it never ends");
    match slot % 15 {
        0 | 3 | 6 | 9 | 12 => words.take(PAGE / 8).flat_map(u64::to_le_bytes).collect(),
        5 | 10 => first.to_le_bytes().repeat(PAGE / 8),
        _ => {
            let mut page: Vec<u8> = words.take(PAGE / 16).flat_map(u64::to_le_bytes).collect();
            page.resize(PAGE, 7);
            page
        }
    }
}

pub(crate) async fn put(
    dev: &dyn BlockDevice,
    slot: u64,
    version: u64,
    flags: Flags,
) -> Result<(), Status> {
    let data = Buf::copy_of(&page(slot, version));
    let at = Sector(slot * PAGE_SECTORS);
    reactor::write(dev, flags, Class::Normal, at, data.all().into()).await
}

pub(crate) async fn fill(dev: &dyn BlockDevice, slots: std::ops::Range<u64>, version: u64) {
    for slot in slots {
        put(dev, slot, version, Flags::empty()).await.expect("a write");
    }
}

pub(crate) async fn discard(dev: &dyn BlockDevice, slots: std::ops::Range<u64>) {
    let (at, len) = (slots.start * PAGE_SECTORS, (slots.end - slots.start) * PAGE_SECTORS);
    reactor::discard(dev, Class::Normal, Sector(at), Sector(len)).await.expect("a discard");
}

pub(crate) async fn flush(dev: &dyn BlockDevice) -> Result<(), Status> {
    reactor::flush(dev, Class::Foreground).await
}

pub(crate) async fn read(dev: &dyn BlockDevice, slot: u64) -> Result<Vec<u8>, Status> {
    let buf = Buf::zeroed(PAGE);
    let at = Sector(slot * PAGE_SECTORS);
    reactor::read(dev, Class::Foreground, at, buf.all().into()).await?;
    Ok(buf.read(<[u8]>::to_vec))
}

pub(crate) async fn expect(dev: &dyn BlockDevice, slots: std::ops::Range<u64>, version: u64) {
    for slot in slots {
        let found = read(dev, slot).await;
        assert!(found == Ok(page(slot, version)), "slot {slot} is not version {version}");
    }
}

pub(crate) async fn expect_zeroes(dev: &dyn BlockDevice, slots: std::ops::Range<u64>) {
    for slot in slots {
        assert!(read(dev, slot).await == Ok(vec![0; PAGE]), "slot {slot} is not empty");
    }
}

pub(crate) async fn suspend(target: &Rc<Zram>) {
    target.clone().suspend().await.expect("suspend");
}

pub(crate) async fn writeback_all(target: &Rc<Zram>) {
    let set =
        |name: &str, value: &str| target.clone().set_attribute(name.to_owned(), value.to_owned());
    set("idle", "all").await.expect("idle");
    set("writeback", "idle").await.expect("writeback");
}

pub(crate) async fn numbers(target: &Rc<Zram>, name: &str) -> Vec<u64> {
    let text = target.clone().get_attribute(name.to_owned()).await.expect("an attribute");
    text.to_string().split_whitespace().map(|n| n.parse().expect("a number")).collect()
}
