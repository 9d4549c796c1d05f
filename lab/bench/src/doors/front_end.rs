// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vhost-user front end and the driver of its one queue, without a guest: it costs less than the
//! servers that it drives. While the used ring is empty it sleeps on the eventfd, as a guest's
//! driver does, or polls on, as drivers in user space do: then a busy server calls nobody.
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use block::{ClientRegion, Status};
use e2e::virtual_machine::{
    AVAILABLE, DATA, HEADERS, INDIRECT, QUEUE_SIZE, USED, VirtualMachine, feature, kind,
};
use reproduce::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uring::{GuestBudget, GuestMemory};

use crate::peers::client::{Done, Job};

/// Bytes of a request.
const BLOCK: u32 = 4096;
/// Bytes from the header of a slot to the next one's: no line of the cache has parts of two.
const HEADER_STRIDE: u64 = 256;
/// The status, from the header on: in the same line of the cache, as a guest's driver has it.
const STATUS: u64 = 16;
/// Bytes of the descriptors of a request with one run of data, and from one table to the next.
const TABLE_BYTES: u32 = 48;
const TABLE_STRIDE: u64 = 64;
/// The clock is read once in so many turns: reading it takes as long as a request.
const TURNS_OF_CLOCK: u32 = 16;
/// Longest wait for an answer, in seconds.
const ANSWER_SECONDS: i64 = 10;
/// Where the server writes up to which available entry it wants no kick.
const KICK_EVENT: u64 = USED + 4 + QUEUE_SIZE as u64 * 8;
/// Where the driver writes the used entry after which it wants a call.
const CALL_EVENT: u64 = AVAILABLE + 4 + QUEUE_SIZE as u64 * 2;

/// A disk of a server, with one queue.
#[derive(Debug)]
pub struct FrontEnd {
    machine: VirtualMachine,
    memory: Memory,
    offered: u16,
    published: u16,
    seen: u16,
    random: u64,
    waits: Waits,
}

/// How a front end waits for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Asleep, until it is called.
    Asleep,
    /// It polls.
    Polling,
}

/// The machine's memory, mapped.
struct Memory(GuestMemory);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.0.len_bytes())
    }
}

fn lost(status: Status) -> String {
    format!("memory of the front end: {status}")
}

fn header(slot: u16) -> u64 {
    HEADERS + u64::from(slot) * HEADER_STRIDE
}

impl FrontEnd {
    /// Connects to a server.
    ///
    /// # Errors
    /// When there is none, or it lacks what each has: indirect tables and event indices.
    pub fn connect(socket: &Path, waits: Waits) -> Result<FrontEnd, String> {
        let mut machine = VirtualMachine::new(1)?;
        machine.connect(socket)?;
        let wanted = feature::INDIRECT | feature::EVENT_IDX;
        if machine.features() & wanted != wanted {
            return Err(format!("{}: no event indices", socket.display()));
        }
        let file = machine.memory().try_clone().map_err(|e| e.to_string())?;
        let len = file.metadata().map_err(|e| e.to_string())?.len();
        let memory = GuestMemory::map(&OwnedFd::from(file), 0, len, &GuestBudget::new(len));
        let memory = memory.map_err(|e| e.to_string())?;
        let memory = Memory(memory);
        Ok(FrontEnd { machine, memory, waits, offered: 0, published: 0, seen: 0, random: 1 })
    }

    /// Reads or writes blocks of 4 KiB at random, up to `job.depth` at once, for so many seconds.
    ///
    /// # Errors
    /// When the server does not answer, or fails a request.
    pub fn run(&mut self, job: &Job, bytes: u64, seconds: f64) -> Result<Done, String> {
        let depth = u16::try_from(job.depth).ok().filter(|depth| *depth <= QUEUE_SIZE);
        let depth = depth.ok_or_else(|| format!("depth {}: 1 to {QUEUE_SIZE}", job.depth))?;
        let writes = job.rw.ends_with("write");
        for slot in 0..depth {
            self.prepare(slot, writes)?;
        }
        let blocks = bytes / u64::from(BLOCK);
        let begin = clock();
        let mut ended: Vec<u16> = (0..depth).collect();
        let (mut done, mut in_flight) = (0_u64, 0_usize);
        let (mut end, mut turns) = (begin, 0_u32);
        loop {
            if end - begin < seconds {
                in_flight += ended.len();
                for slot in ended.drain(..) {
                    self.put(slot, blocks).map_err(lost)?;
                }
                self.publish()?;
            }
            ended.clear();
            if in_flight == 0 {
                break;
            }
            self.collect(&mut ended)?;
            (done, in_flight) = (done + ended.len() as u64, in_flight - ended.len());
            turns += 1;
            if turns.is_multiple_of(TURNS_OF_CLOCK) || in_flight == 0 {
                end = clock();
            }
        }
        let ios = done as f64;
        let iops = ios / (end - begin);
        Ok(Done { iops, bytes_per_s: iops * f64::from(BLOCK), ios, p99_ns: f64::NAN })
    }

    /// Lays out the descriptors of a slot.
    fn prepare(&self, slot: u16, writes: bool) -> Result<(), String> {
        let (table, header) = (INDIRECT + u64::from(slot) * TABLE_STRIDE, header(slot));
        let data = DATA + u64::from(slot) * u64::from(BLOCK);
        let machine = &self.machine;
        machine.descriptor(0, slot, (table, TABLE_BYTES), 4, 0)?;
        machine.descriptor(table, 0, (header, 16), 1, 1)?;
        machine.descriptor(table, 1, (data, BLOCK), if writes { 1 } else { 3 }, 2)?;
        machine.descriptor(table, 2, (header + STATUS, 1), 2, 0)?;
        let what = if writes { kind::WRITE } else { kind::READ };
        machine.store(header, &u64::from(what).to_le_bytes())?;
        machine.store(header + STATUS, &[0xff])
    }

    /// Offers a slot with another block.
    fn put(&mut self, slot: u16, blocks: u64) -> Result<(), Status> {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let sector = self.random % blocks * u64::from(BLOCK / 512);
        let memory = &self.memory.0;
        memory.write(header(slot) + 8, &sector.to_le_bytes())?;
        memory.store_u16(AVAILABLE + 4 + u64::from(self.offered % QUEUE_SIZE) * 2, slot)?;
        self.offered = self.offered.wrapping_add(1);
        Ok(())
    }

    /// Shows the server what was offered, and kicks it if it sleeps.
    fn publish(&mut self) -> Result<(), String> {
        let memory = &self.memory.0;
        memory.store_u16(AVAILABLE + 2, self.offered).map_err(lost)?;
        let old = std::mem::replace(&mut self.published, self.offered);
        // The server sets its event, and then looks for entries once more.
        fence(Ordering::SeqCst);
        let event = memory.load_u16(KICK_EVENT).map_err(lost)?;
        let beyond = self.offered.wrapping_sub(event).wrapping_sub(1);
        if beyond < self.offered.wrapping_sub(old) {
            self.machine.kick(0)?;
        }
        Ok(())
    }

    /// Adds the slots of all completed requests to `ended`: of one at least.
    fn collect(&mut self, ended: &mut Vec<u16>) -> Result<(), String> {
        let memory = &self.memory.0;
        let mut used = memory.load_u16(USED + 2).map_err(lost)?;
        while used == self.seen && self.waits == Waits::Polling {
            std::hint::spin_loop();
            used = memory.load_u16(USED + 2).map_err(lost)?;
        }
        while used == self.seen {
            memory.store_u16(CALL_EVENT, self.seen).map_err(lost)?;
            fence(Ordering::SeqCst);
            used = memory.load_u16(USED + 2).map_err(lost)?;
            if used == self.seen {
                self.wait_for_call()?;
                used = memory.load_u16(USED + 2).map_err(lost)?;
            }
        }
        while self.seen != used {
            let entry = USED + 4 + u64::from(self.seen % QUEUE_SIZE) * 8;
            let slot = memory.load_u16(entry).map_err(lost)?;
            let mut status = [0xff];
            memory.read(header(slot) + STATUS, &mut status).map_err(lost)?;
            if status != [0] {
                return Err(format!("a request failed with status {}", status[0]));
            }
            ended.push(slot);
            self.seen = self.seen.wrapping_add(1);
        }
        Ok(())
    }

    fn wait_for_call(&self) -> Result<(), String> {
        let (_, call) = self.machine.events(0);
        let mut fds = [PollFd::new(call, PollFlags::IN)];
        let time = Timespec { tv_sec: ANSWER_SECONDS, tv_nsec: 0 };
        match poll(&mut fds, Some(&time)) {
            Ok(0) => Err(format!("no answer within {ANSWER_SECONDS} s")),
            Ok(_) => rustix::io::read(call, &mut [0; 8]).map(drop).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        }
    }
}
