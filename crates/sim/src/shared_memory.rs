// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that outlives the process, of a simulated machine: a kill leaves it, a power cut ends it.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{CoreId, Error, LocalFuture, Status};
use reactor::{SharedMemory, SharedMemoryStore};

use crate::rng::Rng;

type Bytes = Rc<RefCell<Vec<u8>>>;

/// A directory of the shared memory of one machine, for [`reactor::set_shared_memory`].
#[derive(Clone, Default)]
pub struct Memories {
    state: Rc<RefCell<State>>,
    directory: u32,
    /// No power cut will come: no memory keeps older contents, which costs a copy now and then.
    has_power: bool,
}

#[derive(Default)]
struct State {
    boots: u64,
    by_name: BTreeMap<(u32, String), MemoryFile>,
}

/// What a machine keeps under one name.
#[derive(Clone, Default)]
struct MemoryFile {
    bytes: Bytes,
    /// What a disk may still have of it after a power cut: contents of some time before.
    older: Bytes,
    stores: Rc<Cell<u64>>,
    /// Who has it locked, and the core of its process.
    owner: Rc<RefCell<Option<(String, CoreId)>>>,
}

/// How many stores lie between two moments that a disk may have. Chosen: a few in each life.
const STORES_UNSAVED: u64 = 29;

struct Memory {
    file: MemoryFile,
    has_power: bool,
    /// The core by which this one has the lock.
    locked_by: Cell<Option<CoreId>>,
}

impl Memories {
    /// Memory of a machine whose power never goes: a store costs a copy of its bytes alone, for
    /// benches.
    pub fn with_power() -> Memories {
        Memories { has_power: true, ..Memories::default() }
    }

    /// Another directory of the same machine.
    pub fn directory(&self, directory: u32) -> Memories {
        Memories { directory, ..self.clone() }
    }

    fn key(&self, name: &str) -> (u32, String) {
        (self.directory, name.to_owned())
    }

    /// The power goes, one time in four for the disks alone: then all memories stay. Else the
    /// machine stops, and starts again: half of the memories of all directories are blank, as in a
    /// new directory; the others have what they had then or before, as files on a disk may.
    pub fn power_cut(&self, rng: &mut Rng) {
        if rng.below(4) == 0 {
            return;
        }
        let mut state = self.state.borrow_mut();
        state.boots += 1;
        for MemoryFile { bytes, older, .. } in state.by_name.values() {
            match rng.below(4) {
                0 | 1 => bytes.borrow_mut().fill(0),
                2 if !older.borrow().is_empty() => bytes.borrow_mut().clone_from(&older.borrow()),
                _ => {}
            }
        }
    }

    /// Contents of the memory with this name, for tests that change it; nothing if there is none.
    pub fn contents(&self, name: &str) -> Option<Rc<RefCell<Vec<u8>>>> {
        self.state.borrow().by_name.get(&self.key(name)).map(|kept| kept.bytes.clone())
    }

    /// Stores the contents of a memory, which a process of before has left.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let bytes = Rc::new(RefCell::new(contents.to_vec()));
        let kept = MemoryFile { bytes, ..MemoryFile::default() };
        self.state.borrow_mut().by_name.insert(self.key(name), kept);
    }

    /// How many stores there were to the memories of this directory: a number that changes whenever
    /// their contents do.
    pub fn stores(&self) -> u64 {
        let state = self.state.borrow();
        let here = state.by_name.iter().filter(|((directory, _), _)| *directory == self.directory);
        here.map(|(_, kept)| kept.stores.get()).sum()
    }

    /// All names in this directory.
    pub fn names(&self) -> Vec<String> {
        let state = self.state.borrow();
        let here = state.by_name.keys().filter(|(directory, _)| *directory == self.directory);
        here.map(|(_, name)| name.clone()).collect()
    }
}

impl Memories {
    /// The process of this core has ended: its locks are free, as those of any process are.
    pub fn end_process(&self, core: CoreId) {
        for file in self.state.borrow().by_name.values() {
            let mut owner = file.owner.borrow_mut();
            if owner.as_ref().is_some_and(|(_, of)| *of == core) {
                *owner = None;
            }
        }
    }
}

impl SharedMemoryStore for Memories {
    fn open(&self, name: &str, len_bytes: u64) -> LocalFuture<Result<Rc<dyn SharedMemory>, Error>> {
        let len = usize::try_from(len_bytes).expect("fits in memory");
        let kept = self.state.borrow_mut().by_name.entry(self.key(name)).or_default().clone();
        if kept.bytes.borrow().len() < len {
            kept.bytes.borrow_mut().resize(len, 0);
        }
        let has_power = self.has_power;
        let memory = Memory { file: kept, has_power, locked_by: Cell::new(None) };
        Box::pin(async move { Ok(Rc::new(memory) as Rc<dyn SharedMemory>) })
    }

    fn rename(&self, name: &str, to: &str) -> LocalFuture<Result<(), Error>> {
        let mut state = self.state.borrow_mut();
        if let Some(file) = state.by_name.remove(&self.key(name)) {
            state.by_name.insert(self.key(to), file);
        }
        Box::pin(async { Ok(()) })
    }

    fn boot_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.state.borrow().boots.to_le_bytes());
        id
    }

    fn place_of(&self, name: &str) -> String {
        format!("memory {name} of directory {}", self.directory)
    }
}

impl SharedMemory for Memory {
    fn len_bytes(&self) -> usize {
        self.file.bytes.borrow().len()
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), Status> {
        out.copy_from_slice(&self.file.bytes.borrow()[at..at + out.len()]);
        Ok(())
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Status> {
        let MemoryFile { bytes: now, older, stores, .. } = &self.file;
        stores.set(stores.get() + 1);
        if !self.has_power && stores.get().is_multiple_of(STORES_UNSAVED) {
            older.borrow_mut().clone_from(&now.borrow());
        }
        now.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn lock(&self, owner: &str) -> Result<(), String> {
        let mut now = self.file.owner.borrow_mut();
        match &*now {
            Some((other, _)) if self.locked_by.get().is_none() => Err(other.clone()),
            _ => {
                let core = reactor::core_id();
                *now = Some((owner.to_owned(), core));
                self.locked_by.set(Some(core));
                Ok(())
            }
        }
    }

    fn unlock(&self) {
        let Some(core) = self.locked_by.take() else { return };
        let is_own = self.file.owner.borrow().as_ref().is_some_and(|(_, of)| *of == core);
        if is_own {
            self.file.owner.take();
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unlock();
    }
}

block::debug_as!(Memory, s => "Memory({} bytes)", s.file.bytes.borrow().len());

block::debug_as!(Memories, s => "Memories({}, {:?})", s.directory, s.names());
