// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of the cache share: a simulated world with disks, mapped devices over them, and
//! a cache over those, all named by tables.

pub(crate) mod idle_driver;
pub(crate) mod stability_check;

use std::cell::RefCell;
use std::rc::Rc;

use block::{BlockDevice, Error, LocalFuture, Sector, Target};
use dm::{Dm, MappedDevice, Resolver, TargetType};
use pagecache::{Config, Fault, PageCache};
use queue::FileLeaf;
use reactor::FileId;
use sim::{Machine, WorldRef};
use stability_check::StabilityCheck;

/// How the device under the cache is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A disk.
    Plain,
    /// A disk that checks that what it is writing does not change.
    Watched,
    /// Two halves of a disk, the second one first.
    Linear,
    /// As many disks, chunks of so many sectors.
    Striped(u64, u64),
    /// Linear over striped over linear.
    Stack,
}

pub(crate) const SHAPES: [Shape; 6] = [
    Shape::Plain,
    Shape::Watched,
    Shape::Linear,
    Shape::Striped(2, 8),
    Shape::Striped(3, 24),
    Shape::Stack,
];

impl Shape {
    fn disks(self) -> u64 {
        match self {
            Shape::Plain | Shape::Watched | Shape::Linear => 1,
            Shape::Striped(n, _) => n,
            Shape::Stack => 2,
        }
    }

    /// Sectors of each disk for a device of `sectors`, and of the device that comes out.
    pub(crate) fn sizes(self, sectors: u64) -> (u64, u64) {
        match self {
            Shape::Plain | Shape::Watched => (sectors, sectors),
            Shape::Linear => (sectors.next_multiple_of(16), sectors.next_multiple_of(16)),
            Shape::Striped(n, chunk) => {
                let rows = sectors.div_ceil(n * chunk);
                (rows * chunk, rows * chunk * n)
            }
            Shape::Stack => {
                let rows = sectors.div_ceil(32);
                (rows * 16 + 8, rows * 32)
            }
        }
    }

    /// The table of the device over disks `set`0, `set`1 and so on.
    fn table(self, set: &str, sectors: u64) -> String {
        let half = sectors / 2;
        match self {
            Shape::Plain | Shape::Watched => format!("0 {sectors} linear {set}0 0"),
            Shape::Linear => {
                format!("0 {half} linear {set}0 {half}\n{half} {half} linear {set}0 0")
            }
            Shape::Striped(n, chunk) => {
                let disks: Vec<String> = (0..n).map(|i| format!("{set}{i} 0")).collect();
                format!("0 {sectors} striped {n} {chunk} {}", disks.join(" "))
            }
            Shape::Stack => format!("0 {sectors} striped 2 16 {set}0 8 {set}1 0"),
        }
    }
}

/// What a test runs on. Two sets of disks, of which one is in use.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) world: WorldRef,
    pub(crate) shape: Shape,
    pub(crate) sectors: u64,
    pub(crate) sets: [Vec<FileId>; 2],
    pub(crate) config: Config,
}

impl Fixture {
    /// A device of `sectors` or a little more, on disks that `add` makes.
    pub(crate) fn new(
        world: WorldRef,
        shape: Shape,
        sectors: u64,
        config: Config,
        mut add: impl FnMut(&WorldRef, &str, Sector) -> FileId,
    ) -> Fixture {
        let (disk, sectors) = shape.sizes(sectors);
        let sets = ["a", "b"].map(|set| {
            let name = |i| format!("{set}{i}");
            (0..shape.disks()).map(|i| add(&world, &name(i), Sector(disk))).collect()
        });
        Fixture { world, shape, sectors, sets, config }
    }

    /// All disks.
    pub(crate) fn disks(&self) -> impl Iterator<Item = FileId> + '_ {
        self.sets.iter().flatten().copied()
    }

    /// Makes the devices of one life, over the disks of set `set`, on the core that runs.
    pub(crate) async fn make(&self, set: usize) -> Result<Rig, Error> {
        let spoilt = Rc::new(RefCell::new(None));
        let dm = Dm::new(Rc::new(Disks { lab: self.clone(), spoilt: spoilt.clone() }));
        let made: Rc<RefCell<Option<Rc<PageCache>>>> = Rc::default();
        let (config, keep) = (self.config.clone(), made.clone());
        dm.register(TargetType::new(&pagecache::MANUAL, move |ctx, args| {
            let (config, keep) = (config.clone(), keep.clone());
            Box::pin(async move {
                let below = ctx.lookup(&args[0]).await?;
                let cache = PageCache::new(ctx.device(), config, below, ctx.len())?;
                keep.replace(Some(cache.clone()));
                Ok(cache as Rc<dyn Target>)
            })
        }));
        let is_mapped = !matches!(self.shape, Shape::Plain | Shape::Watched);
        if is_mapped {
            dm.create("below", None, Some(&self.table(set))).await?;
        }
        let under = if is_mapped { "below".to_owned() } else { format!("{}0", name_of(set)) };
        let table = format!("0 {} buffered {under}", self.sectors);
        let device = dm.create("cached", None, Some(&table)).await?;
        let cache = made.borrow_mut().take().expect("the table made one");
        Ok(Rig { dm, device, cache, spoilt, is_mapped })
    }

    pub(crate) fn table(&self, set: usize) -> String {
        self.shape.table(name_of(set), self.sectors)
    }

    /// Runs `work` on the devices of a life of its own, and ends it in order.
    pub(crate) fn run<T: 'static>(&self, work: impl AsyncFnOnce(Rig) -> T + 'static) -> T {
        let machine = Machine::boot(&self.world, 1);
        let lab = self.clone();
        let done = machine.block_on(async move {
            let rig = lab.make(0).await.expect("devices");
            let value = work(rig.clone()).await;
            rig.dm.suspend("cached").await.expect("suspend");
            value
        });
        machine.kill();
        done.expect("no power cut was planned")
    }
}

fn name_of(set: usize) -> &'static str {
    ["a", "b"][set]
}

/// The devices of one life.
#[derive(Clone)]
pub(crate) struct Rig {
    pub(crate) dm: Rc<Dm>,
    /// The cache as clients see it.
    pub(crate) device: Rc<MappedDevice>,
    pub(crate) cache: Rc<PageCache>,
    /// What a watched disk has to complain about.
    pub(crate) spoilt: Rc<RefCell<Option<String>>>,
    pub(crate) is_mapped: bool,
}

impl Rig {
    pub(crate) async fn get(&self, name: &str) -> String {
        self.cache.clone().get_attribute(name.to_owned()).await.expect("an attribute").to_string()
    }

    pub(crate) async fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        self.cache.clone().set_attribute(name.to_owned(), value.to_owned()).await
    }

    /// A number of an attribute of `name value` lines.
    pub(crate) async fn number(&self, attribute: &str, name: &str) -> u64 {
        let text = self.get(attribute).await;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    }
}

struct Disks {
    lab: Fixture,
    spoilt: Rc<RefCell<Option<String>>>,
}

impl Resolver for Disks {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let lab = &self.lab;
        let found = lab.disks().find_map(|file| {
            let disk = lab.world.borrow().leaf(file);
            (disk.name() == word).then_some((file, disk))
        });
        let opened: Result<Rc<dyn BlockDevice>, Error> = match (found, lab.shape) {
            (None, _) => Err(Error::not_found(format!("no disk {word}"))),
            (Some((_, disk)), Shape::Watched) => {
                Ok(Rc::new(StabilityCheck::new(disk, self.spoilt.clone())))
            }
            (Some((file, disk)), _) => Ok(Rc::new(FileLeaf::new(word, file, disk.limits()))),
        };
        Box::pin(async move { opened })
    }
}

/// A config with `memory_bytes` smaller than a table line allows.
pub(crate) fn config(options: &str, memory_bytes: u64, fault: Option<Fault>) -> Config {
    let words: Vec<&str> = options.split_whitespace().collect();
    let count = words.len().to_string();
    let args: Vec<&str> = [count.as_str()].into_iter().chain(words).collect();
    let mut config = Config::parse(&args).expect("good options");
    config.memory_bytes = memory_bytes;
    config.plant(fault);
    config
}
