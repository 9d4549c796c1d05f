// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where sequences start, and what they are made of: a cache of some format on some devices, blank
//! or used before, and the operations.
use std::cell::RefCell;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Sector, Target};
use sim::model::Uniform;
use sim::{Change, DiskSpec, Machine, Oracle, World, WorldRef, WriteToken};
use writecache::{Config, Fault, Mode, WriteCache};

use crate::explore::{Explorer, Pace, Samples, judge_view};
use crate::survive::{Devices, State};

/// Room of the journals: enough for `CHANGES_AT_ONCE_MAX`.
const JOURNAL_CAPACITY: u64 = 70;

/// An operation. The three blocks are the first of the device, where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sym {
    /// Writes block 0.
    Write,
    /// Writes block 2.
    Other,
    /// Writes block 0 as metadata.
    Meta,
    /// Writes the last block.
    Last,
    /// Writes block 1 with FUA.
    Fua,
    Flush,
    /// The message `flush`: writes everything back.
    Message,
    /// Discards blocks 0 and 1, on an origin where what is discarded reads as zeroes.
    Discard,
    /// The message `grow`: the cache takes the rest of its device.
    Grow,
    /// What is cached is written back, and the origin gets rid of its guard.
    Release,
    /// The origin gets its guard again.
    Claim,
}

pub(crate) type Alphabet = &'static [Sym];

pub(crate) const ALPHABET: Alphabet =
    &[Sym::Write, Sym::Fua, Sym::Flush, Sym::Message, Sym::Discard];

/// The `nth` of all sequences of `len` operations.
pub(crate) fn sequence(alphabet: Alphabet, mut nth: u64, len: u32) -> Vec<Sym> {
    let base = alphabet.len() as u64;
    let mut digit = || {
        let digit = nth % base;
        nth /= base;
        alphabet[index(digit)]
    };
    (0..len).map(|_| digit()).collect()
}

pub(crate) fn sequences(alphabet: Alphabet, len: u32) -> u64 {
    (alphabet.len() as u64).pow(len)
}

pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).expect("few")
}

/// Where sequences start.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) config: Config,
    /// What the sequences are made of.
    pub(crate) alphabet: Alphabet,
    pub(crate) blocks: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) state: State,
    pub(crate) oracle: Oracle,
    /// What is gone through are kills, on a machine with memory that outlives the process.
    pub(crate) is_kill: bool,
    /// The table of every second recovery, where it is another one.
    pub(crate) other: Option<Config>,
    /// Which recoveries those are: of images with an even hash, or with an odd one.
    pub(crate) other_parity: u64,
}

/// A machine with both devices, and the cache on them, not yet opened.
pub(crate) struct Life {
    pub(crate) world: WorldRef,
    pub(crate) machine: Machine,
    pub(crate) devices: Devices,
    pub(crate) target: Rc<WriteCache>,
}

impl Start {
    /// A blank device for a cache of the native format, as small as it may be, before an origin of
    /// zeroes. `line` has mode and options: `s`, `p`, `s fua`.
    pub(crate) fn native(line: &str, block_size: u32, blocks: u64) -> Start {
        let smallest = match format::Geometry::compute(0, block_size) {
            Err(format::GeometryError::TooSmall { needed_bytes, .. }) => needed_bytes,
            other => panic!("{other:?}"),
        };
        Start::blank(line, block_size, blocks, smallest)
    }

    /// A blank device for a cache of the kernel's format with so many slots.
    pub(crate) fn dm(mode: &str, block_size: u32, blocks: u64, slots: u64) -> Start {
        let geometry = format::dm::Geometry::of(block_size, slots).expect("a few slots");
        Start::blank(&format!("{mode} format dm"), block_size, blocks, geometry.end_bytes())
    }

    fn blank(line: &str, block_size: u32, blocks: u64, cache_bytes: u64) -> Start {
        let (mode, options) = line.split_once(' ').unwrap_or((line, ""));
        let count = options.split_whitespace().count();
        let line = format!("{mode} origin cache {block_size} {count} {options}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut config = Config::parse(&words).expect("a good line");
        if !options.contains("write_buffer") {
            config.write_buffer = 0;
        }
        Start {
            config,
            alphabet: ALPHABET,
            blocks,
            cache_bytes: cache_bytes.next_multiple_of(512),
            state: State::default(),
            oracle: Oracle::new(blocks, block_size as usize, 1),
            is_kill: false,
            other: None,
            other_parity: 0,
        }
    }

    /// From now on with a planted fault.
    pub(crate) fn with(mut self, fault: Option<Fault>) -> Start {
        self.config.plant(fault);
        if let Some(other) = &mut self.other {
            other.plant(fault);
        }
        self
    }

    /// Sequences of other operations, whose tables guard the origin or do not, and of whose
    /// recoveries every second one has the other table.
    pub(crate) fn with_guard(mut self, is_guarded: bool, alphabet: Alphabet) -> Start {
        let mut other = self.config.clone();
        self.config.guard.asked = Some(is_guarded);
        other.guard.asked = Some(!is_guarded);
        (self.other, self.alphabet) = (Some(other), alphabet);
        self
    }

    /// From now on processes are killed, and have a journal.
    pub(crate) fn with_kills(mut self) -> Start {
        self.config.set_journal_capacity(JOURNAL_CAPACITY);
        self.is_kill = true;
        self
    }

    /// From now on with a write buffer for so many blocks, and sequences of other operations.
    pub(crate) fn with_buffer(mut self, blocks: u32, alphabet: Alphabet) -> Start {
        self.config.set_buffer_blocks(blocks);
        self.alphabet = alphabet;
        self
    }

    /// From now on the cache device is so much larger that a cache of before may grow.
    pub(crate) fn on_larger_device(mut self, alphabet: Alphabet) -> Start {
        let geometry = format::Geometry::compute(self.cache_bytes, self.config.block_size);
        let grown = geometry.expect("it was formatted").grown(self.cache_bytes);
        let Err(format::GeometryError::TooSmall { needed_bytes, .. }) = grown else {
            panic!("{grown:?}")
        };
        self.cache_bytes = needed_bytes;
        self.alphabet = alphabet;
        self
    }

    /// After the operations, and a power cut that loses all it may.
    pub(crate) fn after(self, lives: &[&[Sym]]) -> Start {
        let mut start = self;
        for ops in lives {
            let life = start.boot(&start.state, 7);
            let oracle = Rc::new(RefCell::new(start.oracle.clone()));
            let (target, judge, ops) = (life.target.clone(), oracle.clone(), ops.to_vec());
            let work = async move {
                target.clone().resume().await.expect("it opens");
                let device: Rc<dyn BlockDevice> = target.clone();
                for op in ops {
                    perform(op, &target, &device, &judge).await.expect("nothing fails");
                }
            };
            life.machine.block_on(work).expect("no cut is planned");
            start.state = life.end();
            start.oracle = oracle.borrow().clone();
            start.oracle.crash();
            let mut view = Explorer::new(&start, Pace::OneByOne, Samples::default());
            let view = view.recover(&start.state, 0);
            judge_view(&mut start.oracle, &view.expect("it recovers")).expect("a good start");
        }
        start
    }

    /// Fills the whole device once, before anything else.
    pub(crate) fn filled(mut self) -> Start {
        let life = self.boot(&self.state, 5);
        let oracle = Rc::new(RefCell::new(self.oracle.clone()));
        let (target, judge, blocks) = (life.target.clone(), oracle.clone(), self.blocks);
        let work = async move {
            target.clone().resume().await.expect("it opens");
            let device: Rc<dyn BlockDevice> = target.clone();
            for block in 0..blocks {
                write(block..block + 1, Flags::empty(), &device, &judge).await.expect("written");
            }
            perform(Sym::Flush, &target, &device, &judge).await.expect("flushed");
        };
        life.machine.block_on(work).expect("no cut is planned");
        self.state = life.end();
        self.oracle = oracle.borrow().clone();
        self
    }

    pub(crate) fn boot(&self, state: &State, seed: u64) -> Life {
        self.boot_with(&self.config, state, seed)
    }

    /// The table of a recovery.
    fn table_of(&self, state: &State) -> &Config {
        match &self.other {
            Some(other) if state.hash() % 2 == self.other_parity => other,
            Some(_) | None => &self.config,
        }
    }

    /// A machine whose cache recovers.
    pub(crate) fn boot_again(&self, state: &State, seed: u64) -> Life {
        self.boot_with(self.table_of(state), state, seed)
    }

    fn boot_with(&self, config: &Config, state: &State, seed: u64) -> Life {
        let world = World::calm(seed);
        let block_sectors = Sector::from_bytes(u64::from(self.config.block_size)).0;
        let sectors = Sector(self.blocks * block_sectors);
        let is_memory = self.config.mode == Mode::Pmem;
        let model = |seed| Box::new(Uniform::new(seed, 20_000, 60_000));
        let capacity = Sector::from_bytes(self.cache_bytes);
        let cache = match is_memory {
            true => DiskSpec::memory("cache", capacity, model(seed + 1)),
            false => DiskSpec::new("cache", capacity, model(seed + 1)),
        };
        let origin = world.borrow_mut().add_disk(DiskSpec::new("origin", sectors, model(seed)));
        let cache = world.borrow_mut().add_disk(cache);
        world.borrow_mut().put_image(origin, &state.origin);
        world.borrow_mut().put_image(cache, &state.cache);
        let block_bytes = self.config.block_size as usize;
        let devices = Devices { cache, origin, is_memory, block_bytes, is_kill: self.is_kill };
        if self.is_kill {
            world.borrow_mut().show_requests();
            let memories = world.borrow_mut().share_memory();
            state.memory.iter().for_each(|(name, contents)| memories.put(name, contents));
        }
        let (below, device) = (world.borrow().leaf(origin), world.borrow().leaf(cache));
        let target = WriteCache::new("wc", config.clone(), below, device, sectors);
        let machine = Machine::boot(&world, 1);
        Life { world, machine, devices, target: target.expect("devices that fit") }
    }
}

impl Life {
    /// Ends without a cut that anybody looks at; returns what is durable.
    pub(crate) fn end(self) -> State {
        let durable = self.devices.durable(&self.world);
        drop(self.target);
        self.machine.kill();
        durable
    }
}

/// Writes `blocks` as the oracle wants them.
async fn write(
    blocks: std::ops::Range<u64>,
    flags: Flags,
    device: &Rc<dyn BlockDevice>,
    oracle: &Rc<RefCell<Oracle>>,
) -> Result<(), String> {
    let bytes = oracle.borrow().block_bytes();
    let count = index(blocks.end - blocks.start);
    let at = Sector::from_bytes(blocks.start * bytes as u64);
    let token = oracle.borrow_mut().begin_write(blocks, flags.contains(Flags::FUA));
    let mut data = vec![0; count * bytes];
    oracle.borrow().fill(&token, &mut data);
    let data = Buf::copy_of(&data);
    let outcome = reactor::write(&**device, flags, Class::Normal, at, data.into()).await;
    end_change(token, outcome.is_ok(), oracle);
    outcome.map_err(|status| format!("a write ended in {status}"))
}

/// A kill undoes no change that has ended; a power cut may, whatever was kept.
fn end_change(token: WriteToken, ok: bool, oracle: &Rc<RefCell<Oracle>>) {
    let mut oracle = oracle.borrow_mut();
    if ok {
        oracle.keep_over_kill(&token);
    }
    oracle.end_write(token, ok);
}

/// Requests go to `device`, which is the target, or passes them on to it.
pub(crate) async fn perform(
    op: Sym,
    target: &Rc<WriteCache>,
    device: &Rc<dyn BlockDevice>,
    oracle: &Rc<RefCell<Oracle>>,
) -> Result<(), String> {
    let failed = |status: block::Status| format!("{op:?} ended in {status}");
    match op {
        Sym::Write => write(0..1, Flags::empty(), device, oracle).await,
        Sym::Other => write(2..3, Flags::empty(), device, oracle).await,
        Sym::Last => {
            let last = oracle.borrow().block_count() - 1;
            write(last..last + 1, Flags::empty(), device, oracle).await
        }
        Sym::Meta => write(0..1, Flags::META, device, oracle).await,
        Sym::Fua => write(1..2, Flags::FUA, device, oracle).await,
        Sym::Flush => {
            let token = oracle.borrow_mut().begin_flush();
            let outcome = reactor::flush(&**device, Class::Foreground).await;
            oracle.borrow_mut().end_flush(token, outcome.is_ok());
            outcome.map_err(failed)
        }
        Sym::Message => {
            let token = oracle.borrow_mut().begin_flush();
            let outcome = target.clone().message(vec!["flush".to_owned()]).await;
            oracle.borrow_mut().end_flush(token, outcome.is_ok());
            outcome.map(drop).map_err(|e| e.chain())
        }
        Sym::Grow => match target.clone().message(vec!["grow".to_owned()]).await {
            Err(e) if e.kind() != block::ErrorKind::Busy => Err(e.chain()),
            Ok(_) | Err(_) => Ok(()),
        },
        Sym::Release => match target.clone().release_origin().await {
            // A write beside it is in the cache again.
            Err(e) if e.kind() != block::ErrorKind::Busy => Err(e.chain()),
            Ok(()) | Err(_) => Ok(()),
        },
        Sym::Claim => {
            target.clone().claim_origin().await;
            Ok(())
        }
        Sym::Discard => {
            let len = Sector::from_bytes(2 * oracle.borrow().block_bytes() as u64);
            let token = oracle.borrow_mut().begin_change(0..2, Change::WriteZeroes, false);
            let outcome = reactor::discard(&**device, Class::Normal, Sector(0), len).await;
            end_change(token, outcome.is_ok(), oracle);
            outcome.map_err(failed)
        }
    }
}
