// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that outlives the process, of a simulated machine: a kill leaves it, a power cut ends it.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use block::{Error, LocalFuture, Status};
use reactor::{SharedMemory, SharedMemoryStore};

use crate::rng::Rng;

type Bytes = Rc<RefCell<Vec<u8>>>;

/// A directory of the shared memory of one machine, for [`reactor::set_shared_memory`].
#[derive(Clone, Default)]
pub struct Memories {
    state: Rc<RefCell<State>>,
    directory: u32,
}

#[derive(Default)]
struct State {
    boots: u64,
    by_name: BTreeMap<(u32, String), Bytes>,
}

struct Memory(Bytes);

impl Memories {
    /// Another directory of the same machine.
    pub fn directory(&self, directory: u32) -> Memories {
        Memories { directory, ..self.clone() }
    }

    fn key(&self, name: &str) -> (u32, String) {
        (self.directory, name.to_owned())
    }

    /// The machine stops, and starts again: half of the memories of all directories are blank, as
    /// in a new directory; the others have what they had, as files on a disk may.
    pub fn power_cut(&self, rng: &mut Rng) {
        let mut state = self.state.borrow_mut();
        state.boots += 1;
        for bytes in state.by_name.values() {
            if rng.below(2) == 0 {
                bytes.borrow_mut().fill(0);
            }
        }
    }

    /// Contents of the memory with this name, for tests that change it; nothing if there is none.
    pub fn contents(&self, name: &str) -> Option<Rc<RefCell<Vec<u8>>>> {
        self.state.borrow().by_name.get(&self.key(name)).cloned()
    }

    /// Stores the contents of a memory, which a process of before has left.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let bytes = Rc::new(RefCell::new(contents.to_vec()));
        self.state.borrow_mut().by_name.insert(self.key(name), bytes);
    }

    /// All names in this directory.
    pub fn names(&self) -> Vec<String> {
        let state = self.state.borrow();
        let here = state.by_name.keys().filter(|(directory, _)| *directory == self.directory);
        here.map(|(_, name)| name.clone()).collect()
    }
}

impl SharedMemoryStore for Memories {
    fn open(&self, name: &str, len_bytes: u64) -> LocalFuture<Result<Rc<dyn SharedMemory>, Error>> {
        let len = usize::try_from(len_bytes).expect("fits in memory");
        let bytes = self.state.borrow_mut().by_name.entry(self.key(name)).or_default().clone();
        if bytes.borrow().len() < len {
            bytes.borrow_mut().resize(len, 0);
        }
        Box::pin(async move { Ok(Rc::new(Memory(bytes)) as Rc<dyn SharedMemory>) })
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
        self.0.borrow().len()
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), Status> {
        out.copy_from_slice(&self.0.borrow()[at..at + out.len()]);
        Ok(())
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Status> {
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.0.borrow().len())
    }
}

impl fmt::Debug for Memories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memories({}, {:?})", self.directory, self.names())
    }
}
