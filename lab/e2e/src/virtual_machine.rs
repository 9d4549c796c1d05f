// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtual machine with one vhost-user disk: the front end and the guest's driver, without a
//! guest. It outlives the daemon and connects to the next one, as qemu does with `reconnect`.
//!
//! ```text
//!   memory (a memfd)   queue q at q * 64 KiB: descriptors, available, used, headers and statuses
//!                      data of slot s of queue q at DATA + (q * SLOTS + s) * 64 KiB
//!   slot s             the last 64 descriptors, from 3s on: header, data, status
//! ```
//!
//! It reads and writes the memory by system calls on the memfd, and shares no code with the daemon.
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::{Result, clock, pause};

mod numbers;

pub use numbers::{feature, kind, message};

/// Entries of a queue, unless a test wants more.
pub const QUEUE_SIZE: u16 = 64;
/// Requests of a queue at a time.
pub const SLOTS: u16 = 21;
/// Most data of a request, bytes.
pub const DATA_BYTES: u64 = 64 << 10;

const QUEUE_BYTES: u64 = 64 << 10;
/// The available ring of a queue, from its [`VirtualMachine::place`] on.
pub const AVAILABLE: u64 = 0x4000;
/// The used ring.
pub const USED: u64 = 0x5000;
/// Headers and statuses of the slots.
pub const HEADERS: u64 = 0x8000;
const RANGES: u64 = 16;
/// The status, from the header on.
pub const STATUS: u64 = 40;
/// Bytes of a header with its status, and of an indirect table.
pub const SLOT_BYTES: u64 = 48;
/// The indirect tables of the slots.
pub const INDIRECT: u64 = 0xa000;
/// The data of the first slot, from the start of the memory on.
pub const DATA: u64 = 1 << 20;
/// Addresses of the front end are those of the guest and this.
const USER: u64 = 0x7f00_0000_0000;
/// Guest addresses begin here.
const GUEST: u64 = 0x10_0000;

/// Longest wait for an answer (EE-E2).
const ANSWER: Duration = Duration::from_secs(20);

fn io<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> String {
    move |e| format!("{what}: {e}")
}

/// A queue of the driver with its eventfds.
#[derive(Debug)]
struct DriverQueue {
    kick: OwnedFd,
    call: OwnedFd,
    offered: u16,
    seen: u16,
    /// Free slots.
    free: Vec<u16>,
    /// Times that each slot's request was found in the used ring.
    used: BTreeMap<u16, u32>,
}

/// What is kept while no daemon is there.
#[derive(Debug)]
pub struct VirtualMachine {
    memory: File,
    queues: Vec<DriverQueue>,
    /// Whether it is to use event indices and indirect tables.
    pub fancy: bool,
    /// Entries of each queue: a power of two from [`QUEUE_SIZE`] to 1024.
    pub queue_size: u16,
    /// The size of queues for which it asks for notes of requests in flight.
    pub inflight_size: u16,
    inflight: Option<(OwnedFd, Vec<u8>)>,
    socket: Option<UnixStream>,
    channel: Option<UnixStream>,
    features: u64,
    protocol: u64,
}

fn words(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn halves(all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Sends a message with descriptors.
pub fn send(
    socket: &UnixStream,
    request: u32,
    flags: u32,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<()> {
    let len = u32::try_from(payload.len()).map_err(io("length"))?;
    send_bytes(socket, &[halves(&[request, flags, len]), payload.to_vec()].concat(), fds)
}

/// Sends a part of one.
pub fn send_bytes(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err("too many descriptors".into());
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    match sent.map_err(io("send"))? {
        n if n == bytes.len() => Ok(()),
        n => Err(format!("{n} of {} bytes were sent", bytes.len())),
    }
}

/// Receives an answer: its payload, and a descriptor.
pub fn receive(socket: &UnixStream, request: u32) -> Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut head = [0; 12];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut head)];
    let flags = RecvFlags::WAITALL | RecvFlags::CMSG_CLOEXEC; // no daemon is to inherit it
    let got = recvmsg(socket, &mut parts, &mut control, flags).map_err(io("receive"))?;
    if got.bytes != head.len() {
        return Err("the daemon has ended the connection".into());
    }
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            fd = fds.next();
        }
    }
    let word = |at: usize| {
        let bytes = [head[at], head[at + 1], head[at + 2], head[at + 3]];
        u32::from_le_bytes(bytes)
    };
    // The bit of one who wants an acknowledgement may be there, too.
    if word(0) != request || word(4) & 7 != 5 {
        return Err(format!("answer to {} with flags {}, not to {request}", word(0), word(4)));
    }
    let mut payload = vec![0; word(8) as usize];
    (&*socket).read_exact(&mut payload).map_err(io("payload"))?;
    Ok((payload, fd))
}

impl VirtualMachine {
    /// A machine with so many queues, not connected.
    pub fn new(queues: u16) -> Result<VirtualMachine> {
        let memory = memfd_create(c"guest", MemfdFlags::CLOEXEC).map_err(io("memfd"))?;
        let memory = File::from(memory);
        let slots = u64::from(queues) * u64::from(SLOTS);
        memory.set_len(DATA + slots * DATA_BYTES).map_err(io("memfd"))?;
        // As those of qemu and cloud-hypervisor: io_uring needs no thread to write to them.
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = || eventfd(0, flags).map_err(io("eventfd"));
        let queues = (0..queues).map(|_| {
            Ok(DriverQueue {
                kick: event()?,
                call: event()?,
                offered: 0,
                seen: 0,
                free: (0..SLOTS).collect(),
                used: BTreeMap::new(),
            })
        });
        Ok(VirtualMachine {
            memory,
            queues: queues.collect::<Result<_>>()?,
            fancy: true,
            queue_size: QUEUE_SIZE,
            inflight_size: QUEUE_SIZE,
            inflight: None,
            socket: None,
            channel: None,
            features: 0,
            protocol: 0,
        })
    }

    /// The memory.
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// The eventfds of a queue: the one that the driver kicks, and the one that the daemon calls.
    pub fn events(&self, queue: u16) -> (&OwnedFd, &OwnedFd) {
        let queue = &self.queues[usize::from(queue)];
        (&queue.kick, &queue.call)
    }

    /// The control socket.
    pub fn socket(&self) -> Result<&UnixStream> {
        self.socket.as_ref().ok_or_else(|| "not connected".to_owned())
    }

    /// The features that the daemon offers.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Whether the daemon keeps notes of requests in flight here.
    pub fn has_inflight(&self) -> bool {
        self.protocol & feature::INFLIGHT != 0
    }

    /// Keeps notes of requests in flight in memory as an earlier version of the program made it:
    /// with room for queues of `size` entries.
    pub fn keep_small_notes(&mut self, size: u16) -> Result<()> {
        let file = memfd_create(c"notes", MemfdFlags::CLOEXEC).map_err(io("memfd"))?;
        let queues = u16::try_from(self.queues.len()).map_err(io("queues"))?;
        let len = u64::from(queues) * (16 + 16 * u64::from(size));
        rustix::fs::ftruncate(&file, len).map_err(io("memfd"))?;
        let mut info = words(&[len, 0]);
        info.extend([queues, size].iter().flat_map(|n| n.to_le_bytes()));
        info.extend([0; 4]);
        self.inflight = Some((file, info));
        Ok(())
    }

    /// Asks something that has an answer.
    pub fn ask(&self, request: u32, payload: &[u8]) -> Result<Vec<u8>> {
        let socket = self.socket()?;
        send(socket, request, 1, payload, &[])?;
        receive(socket, request).map(|(payload, _)| payload)
    }

    fn ask_number(&self, request: u32) -> Result<u64> {
        let payload = self.ask(request, &[])?;
        let bytes = payload.try_into().map_err(|_| "an answer that is no number")?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Says something, and waits until the daemon has done it.
    pub fn tell(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let socket = self.socket()?;
        if self.protocol & feature::REPLY_ACK == 0 {
            return send(socket, request, 1, payload, fds);
        }
        send(socket, request, 9, payload, fds)?;
        let (payload, _) = receive(socket, request)?;
        if payload == 0_u64.to_le_bytes() { Ok(()) } else { Err(format!("{request}: refused")) }
    }

    /// Connects, and negotiates, without memory and queues.
    pub fn greet(&mut self, path: &Path) -> Result<()> {
        let give_up = clock() + ANSWER.as_secs_f64();
        let socket = loop {
            match UnixStream::connect(path) {
                Ok(socket) => break socket,
                Err(e) if clock() > give_up => return Err(format!("{}: {e}", path.display())),
                Err(_) => pause(Duration::from_millis(5)),
            }
        };
        socket.set_read_timeout(Some(ANSWER)).map_err(io("timeout"))?;
        self.socket = Some(socket);
        self.protocol = 0;
        self.features = self.ask_number(message::GET_FEATURES)?;
        let offered = self.ask_number(message::GET_PROTOCOL_FEATURES)? & feature::PROTOCOL_ALL;
        self.tell(message::SET_PROTOCOL_FEATURES, &words(&[offered]), &[])?;
        self.protocol = offered;
        self.tell(message::SET_OWNER, &[], &[])?;
        let (ours, theirs) = UnixStream::pair().map_err(io("pair"))?;
        if offered & feature::BACKEND_REQUESTS != 0 {
            self.tell(message::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        }
        ours.set_read_timeout(Some(ANSWER)).map_err(io("timeout"))?;
        self.channel = Some(ours);
        let optional = if self.fancy { feature::INDIRECT | feature::EVENT_IDX } else { 0 };
        let blk = feature::FLUSH | feature::DISCARD | feature::WRITE_ZEROES;
        let wanted = feature::VERSION_1 | feature::PROTOCOL | optional | blk;
        self.tell(message::SET_FEATURES, &words(&[self.features & wanted]), &[])
    }

    /// Sends the memory.
    pub fn give_memory(&self) -> Result<()> {
        let len = self.memory.metadata().map_err(io("memory"))?.len();
        let table = words(&[1, GUEST, len, USER, 0]);
        self.tell(message::SET_MEM_TABLE, &table, &[self.memory.as_fd()])
    }

    /// Connects and starts all queues: after a death of the daemon from where the used rings are.
    pub fn connect(&mut self, path: &Path) -> Result<()> {
        self.greet(path)?;
        let queues = u16::try_from(self.queues.len()).map_err(io("queues"))?;
        if self.ask_number(message::GET_QUEUE_NUM)? < u64::from(queues) {
            return Err("too few queues".into());
        }
        if self.has_inflight() {
            if self.inflight.is_none() {
                let mut asked = words(&[0, 0]);
                asked.extend([queues, self.inflight_size].iter().flat_map(|n| n.to_le_bytes()));
                asked.extend([0; 4]);
                let socket = self.socket()?;
                send(socket, message::GET_INFLIGHT_FD, 1, &asked, &[])?;
                let (info, fd) = receive(socket, message::GET_INFLIGHT_FD)?;
                self.inflight = Some((fd.ok_or("no descriptor")?, info));
            }
            if let Some((fd, info)) = &self.inflight {
                self.tell(message::SET_INFLIGHT_FD, info, &[fd.as_fd()])?;
            }
        }
        self.give_memory()?;
        (0..queues).try_for_each(|number| self.start(number))
    }

    /// Starts a queue.
    pub fn start(&self, number: u16) -> Result<()> {
        let queue = &self.queues[usize::from(number)];
        let (index, at) = (u32::from(number), USER + self.place(number));
        self.tell(message::SET_VRING_NUM, &halves(&[index, self.queue_size.into()]), &[])?;
        let base = self.load(number, USED + 2)?;
        self.tell(message::SET_VRING_BASE, &halves(&[index, base.into()]), &[])?;
        let mut addresses = halves(&[index, 0]);
        addresses.extend(words(&[at, at + USED, at + AVAILABLE, 0]));
        self.tell(message::SET_VRING_ADDR, &addresses, &[])?;
        let index_word = words(&[number.into()]);
        self.tell(message::SET_VRING_CALL, &index_word, &[queue.call.as_fd()])?;
        self.tell(message::SET_VRING_KICK, &index_word, &[queue.kick.as_fd()])?;
        self.tell(message::SET_VRING_ENABLE, &halves(&[index, 1]), &[])
    }

    /// Stops a queue; returns the index of the entry that would be taken next.
    pub fn stop(&self, number: u16) -> Result<u32> {
        let answer = self.ask(message::GET_VRING_BASE, &halves(&[number.into(), 0]))?;
        let base = answer.get(4..8).and_then(|bytes| bytes.try_into().ok());
        base.map(u32::from_le_bytes).ok_or_else(|| "an answer that is no base".to_owned())
    }

    /// Leaves the daemon.
    pub fn disconnect(&mut self) {
        self.socket = None;
        self.channel = None;
    }

    /// Whether the daemon ends the connection in time.
    pub fn is_cut_off(&self) -> bool {
        let Ok(mut socket) = self.socket() else { return true };
        let end = std::io::copy(&mut socket, &mut std::io::sink());
        !end.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// The capacity of the disk, in sectors.
    pub fn capacity(&self) -> Result<u64> {
        let payload = halves(&[0, 8, 0, 0, 0]);
        let answer = self.ask(message::GET_CONFIG, &payload)?;
        let bytes = answer.get(12..20).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or_else(|| "a short configuration space".to_owned())
    }

    /// Waits until the daemon says that the configuration space has changed.
    pub fn wait_for_config_change(&mut self) -> Result<()> {
        let mut head = [0; 12];
        let channel = self.channel.as_mut().ok_or("no channel")?;
        channel.read_exact(&mut head).map_err(io("configuration change"))?;
        if head[..4] == 2_u32.to_le_bytes() { Ok(()) } else { Err("another message".into()) }
    }

    /// First byte of a queue in the memory.
    pub fn place(&self, queue: u16) -> u64 {
        u64::from(queue) * QUEUE_BYTES
    }

    /// Stores bytes in the memory.
    pub fn store(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write_all_at(bytes, at).map_err(io("memory"))
    }

    fn load(&self, queue: u16, at: u64) -> Result<u16> {
        let mut bytes = [0; 2];
        let place = self.place(queue) + at;
        self.memory.read_exact_at(&mut bytes, place).map_err(io("memory"))?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// The first descriptor of a slot: the highest ones are in use.
    fn head_of(&self, slot: u16) -> u16 {
        self.queue_size - QUEUE_SIZE + slot * 3
    }

    fn data_at(queue: u16, slot: u16) -> u64 {
        DATA + (u64::from(queue) * u64::from(SLOTS) + u64::from(slot)) * DATA_BYTES
    }

    /// Writes a descriptor: its address is one of the memory's.
    pub fn descriptor(
        &self,
        table: u64,
        n: u16,
        (address, len): (u64, u32),
        flags: u16,
        next: u16,
    ) -> Result<()> {
        let mut bytes = words(&[GUEST.wrapping_add(address)]);
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.store(table + u64::from(n) * 16, &bytes)
    }

    /// Makes a head available, without a kick.
    pub fn offer(&mut self, queue: u16, head: u16) -> Result<()> {
        let idx = self.queues[usize::from(queue)].offered;
        let at = self.place(queue) + AVAILABLE;
        self.store(at + 4 + u64::from(idx % self.queue_size) * 2, &head.to_le_bytes())?;
        self.set_offered(queue, idx.wrapping_add(1))
    }

    /// Sets the available index.
    pub fn set_offered(&mut self, queue: u16, idx: u16) -> Result<()> {
        self.queues[usize::from(queue)].offered = idx;
        self.store(self.place(queue) + AVAILABLE + 2, &idx.to_le_bytes())
    }

    /// Kicks, always: whether the daemon wants it or not.
    pub fn kick(&self, queue: u16) -> Result<()> {
        let kick = &self.queues[usize::from(queue)].kick;
        rustix::io::write(kick, &1_u64.to_le_bytes()).map(drop).map_err(io("kick"))
    }

    /// Kicks if the daemon wants it, as guests do: it does not while it looks by itself.
    pub fn kick_if_wanted(&self, queue: u16) -> Result<bool> {
        // The daemon says what it wants, and looks for requests after that.
        fence(Ordering::SeqCst);
        let wants = match self.fancy {
            true => {
                let event = self.load(queue, USED + 4 + u64::from(self.queue_size) * 8)?;
                event == self.queues[usize::from(queue)].offered.wrapping_sub(1)
            }
            false => self.load(queue, USED)? == 0,
        };
        if wants {
            self.kick(queue)?;
        }
        Ok(wants)
    }

    /// Begins a request and returns its slot. The data are written to the disk, or have the length
    /// of what is read; of a range they are `sectors`.
    pub fn begin(
        &mut self,
        queue: u16,
        (kind, sector): (u32, u64),
        data: &[u8],
        kick: bool,
    ) -> Result<u16> {
        let slot = self.queues[usize::from(queue)].free.pop().ok_or("no free slot")?;
        let at = self.place(queue);
        let header = at + HEADERS + u64::from(slot) * SLOT_BYTES;
        let mut bytes = halves(&[kind, 0]);
        bytes.extend(sector.to_le_bytes());
        self.store(header, &bytes)?;
        self.store(header + STATUS, &[0xff])?;
        let is_range = matches!(kind, kind::DISCARD | kind::WRITE_ZEROES);
        let place = if is_range { header + RANGES } else { Self::data_at(queue, slot) };
        self.store(place, data)?;
        let writable = if matches!(kind, kind::READ | kind::GET_ID) { 2 } else { 0 };
        let len = u32::try_from(data.len()).map_err(io("length"))?;
        let (table, first) = match self.fancy {
            true => (at + INDIRECT + u64::from(slot) * 48, 0),
            false => (at, self.head_of(slot)),
        };
        let after_header = if len > 0 { first + 1 } else { first + 2 };
        self.descriptor(table, first, (header, 16), 1, after_header)?;
        self.descriptor(table, first + 1, (place, len.max(1)), writable | 1, first + 2)?;
        self.descriptor(table, first + 2, (header + STATUS, 1), 2, 0)?;
        if self.fancy {
            self.descriptor(at, self.head_of(slot), (table, 48), 4, 0)?;
        }
        self.queues[usize::from(queue)].used.insert(slot, 0);
        self.offer(queue, self.head_of(slot))?;
        (if kick { self.kick(queue) } else { Ok(()) }).map(|()| slot)
    }

    /// Takes what is in the used ring; waits for a call if there is nothing new.
    pub fn collect(&mut self, queue: u16) -> Result<()> {
        if self.fancy {
            // Asks to be called for the next one.
            let event = self.place(queue) + AVAILABLE + 4 + u64::from(self.queue_size) * 2;
            self.store(event, &self.queues[usize::from(queue)].seen.to_le_bytes())?;
        }
        if self.take_used(queue)? {
            return Ok(());
        }
        let state = &self.queues[usize::from(queue)];
        let is_called = || {
            let mut fds = [PollFd::new(&state.call, PollFlags::IN)];
            let time = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut fds, Some(&time)).map(|ready| ready > 0).map_err(io("poll"))
        };
        if is_called()? {
            return rustix::io::read(&state.call, &mut [0; 8]).map(drop).map_err(io("call"));
        }
        // The call comes after the index.
        match self.load(queue, USED + 2)? == state.seen || is_called()? {
            true => Err("no call within a second".into()),
            false => Err(format!("queue {queue}: used, and not called")),
        }
    }

    /// Takes what is in the used ring; false when there is nothing new.
    pub fn take_used(&mut self, queue: u16) -> Result<bool> {
        let used = self.load(queue, USED + 2)?;
        let is_new = self.queues[usize::from(queue)].seen != used;
        while self.queues[usize::from(queue)].seen != used {
            let seen = self.queues[usize::from(queue)].seen;
            let entry = USED + 4 + u64::from(seen % self.queue_size) * 8;
            let slot = self.load(queue, entry)?.wrapping_sub(self.head_of(0)) / 3;
            let state = &mut self.queues[usize::from(queue)];
            let times = state.used.get_mut(&slot).ok_or("a request that was not made")?;
            *times += 1;
            if *times != 1 {
                return Err(format!("queue {queue}: slot {slot} was completed {times} times"));
            }
            state.seen = seen.wrapping_add(1);
        }
        Ok(is_new)
    }

    /// Whether a request has been completed, as far as was collected.
    pub fn is_complete(&self, queue: u16, slot: u16) -> bool {
        self.queues[usize::from(queue)].used.get(&slot) == Some(&1)
    }

    /// Waits for a request; returns its status and frees its slot.
    pub fn finish(&mut self, queue: u16, slot: u16) -> Result<u8> {
        let give_up = clock() + ANSWER.as_secs_f64();
        while !self.is_complete(queue, slot) {
            match self.collect(queue) {
                Err(e) if clock() > give_up => return Err(e),
                Err(e) if !e.starts_with("no call") => return Err(e),
                _ => {}
            }
        }
        let state = &mut self.queues[usize::from(queue)];
        state.used.remove(&slot);
        state.free.push(slot);
        let mut status = [0];
        let at = self.place(queue) + HEADERS + u64::from(slot) * SLOT_BYTES + STATUS;
        self.memory.read_exact_at(&mut status, at).map_err(io("memory"))?;
        Ok(status[0])
    }

    /// The data of a slot.
    pub fn data(&self, queue: u16, slot: u16, out: &mut [u8]) -> Result<()> {
        self.memory.read_exact_at(out, Self::data_at(queue, slot)).map_err(io("memory"))
    }

    /// Does one request and returns its status.
    pub fn request(&mut self, queue: u16, kind: u32, sector: u64, data: &[u8]) -> Result<u8> {
        let slot = self.begin(queue, (kind, sector), data, true)?;
        self.finish(queue, slot)
    }

    /// Reads.
    pub fn read(&mut self, queue: u16, sector: u64, out: &mut [u8]) -> Result<()> {
        let blank = vec![0xee; out.len()];
        let slot = self.begin(queue, (kind::READ, sector), &blank, true)?;
        match self.finish(queue, slot)? {
            0 => self.data(queue, slot, out),
            status => Err(format!("read: status {status}")),
        }
    }

    /// Writes.
    pub fn write(&mut self, queue: u16, sector: u64, data: &[u8]) -> Result<()> {
        match self.request(queue, kind::WRITE, sector, data)? {
            0 => Ok(()),
            status => Err(format!("write: status {status}")),
        }
    }
}

/// A range of a discard or of a write of zeroes.
pub fn range(sector: u64, len: u32, flags: u32) -> Vec<u8> {
    [words(&[sector]), halves(&[len, flags])].concat()
}
