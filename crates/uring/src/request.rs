// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request from submission to its event: its entries for the ring, and the meaning of
//! the completions.
use std::os::fd::RawFd;

use block::{Buf, Bufs, CoreId, OpKey, Status};
use io_uring::{opcode, squeue, types};
use reactor::{CommandMemory, FileId, OpResult, SentMemory, SqeOp};

use crate::table::DirectAlign;

/// Most pieces of one transfer: the kernel's UIO_MAXIOV. The rest follows in another transfer.
const IOV_MAX: usize = 1024;
/// Most bytes of one transfer; the kernel cuts at 2 GiB less a page, which would misalign the rest.
const TRANSFER_MAX: usize = 1 << 30;
/// Most bytes of requests that are sent as one. Chosen: a disk that does not seek transfers it in a
/// tenth of a millisecond, and what is in it ends together.
const JOINED_MAX: usize = 256 << 10;
/// Retries of a request after EINTR or EAGAIN before it fails.
const TRIES_MAX: u32 = 64;

/// Words of the kernel's `struct statx`, and which of them is the size of the file.
const STAT_WORDS: usize = size_of::<libc::statx>() / size_of::<u64>();
const STAT_SIZE: usize = std::mem::offset_of!(libc::statx, stx_size) / size_of::<u64>();

/// What the kernel reads and writes besides buffers: the arrays of a gathered transfer, or the size
/// of a file. Boxed for a stable address; reused.
pub(crate) struct Vectors(Box<Arrays>);

struct Arrays {
    iov: Vec<libc::iovec>,
    msg: libc::msghdr,
    stat: [u64; STAT_WORDS],
}

impl Vectors {
    fn new() -> Vectors {
        // SAFETY: a msghdr of zeroes is valid: null pointers with lengths of zero.
        let msg = unsafe { std::mem::zeroed() };
        Vectors(Box::new(Arrays { iov: Vec::new(), msg, stat: [0; STAT_WORDS] }))
    }
}

/// One of several requests that are sent as one.
pub(crate) struct Part {
    pub(crate) home: CoreId,
    pub(crate) key: OpKey,
    bytes: usize,
}

/// Neighbours on a file that are sent as one, two and more, the first one included (UR-U13). Their
/// buffers are those of its `what`, in order.
struct Joined(Vec<Part>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum TransferKind {
    Read,
    Write { fua: bool },
}

/// A read or a write.
struct Transfer<'a> {
    kind: TransferKind,
    offset: u64,
    bufs: &'a Bufs,
}

fn transfer(what: &SqeOp) -> Option<Transfer<'_>> {
    if let SqeOp::Read { offset, bufs } = what {
        return Some(Transfer { kind: TransferKind::Read, offset: *offset, bufs });
    }
    if let SqeOp::Write { offset, bufs, fua } = what {
        return Some(Transfer { kind: TransferKind::Write { fua: *fua }, offset: *offset, bufs });
    }
    None
}

pub(crate) struct Request {
    pub(crate) home: CoreId,
    pub(crate) key: OpKey,
    pub(crate) file: FileId,
    /// Few have any: in a box, so that each request is short.
    joined: Option<Box<Joined>>,
    what: SqeOp,
    /// Bytes transferred so far. Of a flush: whether it is done, and the size is looked at.
    done: usize,
    tries: u32,
    /// It is to wait no longer ([`reactor::end_waits`]).
    is_ended: bool,
    vectors: Option<Vectors>,
    /// The client's buffers of a read that goes through an aligned copy.
    unaligned: Option<Bufs>,
}

/// The latest read and write of a batch, by their slots: the next ones may be their neighbours.
#[derive(Default)]
pub(crate) struct Latest {
    read: Option<usize>,
    write: Option<usize>,
}

impl Latest {
    pub(crate) fn of(&mut self, what: &SqeOp) -> Option<&mut Option<usize>> {
        if matches!(what, SqeOp::Read { .. }) {
            return Some(&mut self.read);
        }
        matches!(what, SqeOp::Write { .. }).then_some(&mut self.write)
    }
}

/// The meaning of a completion.
pub(crate) enum Outcome {
    Retry,
    Done(OpResult),
    Accepted(RawFd),
    /// A flush is done; the size of its file may be looked at.
    Flushed,
    /// The file has so many bytes after its flush.
    Size(u64),
}

/// The next piece of a transfer.
enum Piece {
    One(*mut u8, u32),
    Many,
}

fn is_aligned(bufs: &Bufs, align: DirectAlign) -> bool {
    bufs.iter().all(|s| {
        s.as_ptr().addr().is_multiple_of(align.memory) && s.len().is_multiple_of(align.length)
    })
}

impl Request {
    pub(crate) fn new(
        (home, key): (CoreId, OpKey),
        file: FileId,
        mut what: SqeOp,
        direct: Option<DirectAlign>,
    ) -> Request {
        let mut unaligned = None;
        // UR-U4.
        if let (Some(align), SqeOp::Read { bufs, .. } | SqeOp::Write { bufs, .. }) =
            (direct, &mut what)
            && !is_aligned(bufs, align)
        {
            let aligned = Buf::alloc(bufs.len_bytes());
            let client = std::mem::replace(bufs, aligned.clone().into());
            if matches!(what, SqeOp::Write { .. }) {
                aligned.write(|b| client.copy_to(b));
            } else {
                unaligned = Some(client);
            }
        }
        let (joined, done, tries, is_ended, vectors) = (None, 0, 0, false, None);
        Request { home, key, file, joined, what, done, tries, is_ended, vectors, unaligned }
    }

    /// Whether `next` begins where this one ends, so that both can be sent as one (UR-U13).
    pub(crate) fn is_followed_by(&self, next: &Request) -> bool {
        let is_copied = self.unaligned.is_some() || next.unaligned.is_some();
        let (Some(this), Some(other)) = (transfer(&self.what), transfer(&next.what)) else {
            return false;
        };
        if is_copied || self.file != next.file || this.kind != other.kind {
            return false;
        }
        let bytes = this.bufs.len_bytes();
        this.offset + bytes as u64 == other.offset
            && bytes + other.bufs.len_bytes() <= JOINED_MAX
            && this.bufs.count() + other.bufs.count() <= IOV_MAX
    }

    /// Takes such a neighbour. Neither has been sent yet.
    pub(crate) fn join(&mut self, next: Request) {
        let (SqeOp::Read { bufs, .. } | SqeOp::Write { bufs, .. }) = &mut self.what else { return };
        let (SqeOp::Read { bufs: more, .. } | SqeOp::Write { bufs: more, .. }) = next.what else {
            return;
        };
        let (home, key) = (self.home, self.key);
        let first = || Part { home, key, bytes: bufs.len_bytes() };
        let joined = self.joined.get_or_insert_with(|| Box::new(Joined(vec![first()])));
        joined.0.push(Part { home: next.home, key: next.key, bytes: more.len_bytes() });
        bufs.extend(more.iter().cloned());
    }

    /// The requests that were sent as one.
    pub(crate) fn parts(&self) -> &[Part] {
        self.joined.as_ref().map_or(&[], |joined| &joined.0)
    }

    /// What becomes of requests that were sent as one and failed so: those that were not done are
    /// to be sent by themselves, as the error may be another one's (UR-U13).
    pub(crate) fn split(mut self) -> impl Iterator<Item = (Part, Option<Request>)> {
        let parts = self.joined.take().map_or_else(Vec::new, |joined| joined.0);
        let mut at = 0;
        parts.into_iter().map(move |part| {
            let range = at..at + part.bytes;
            at = range.end;
            if range.end <= self.done {
                return (part, None);
            }
            let all = transfer(&self.what).expect("transfers are joined");
            let (offset, bufs) = (all.offset + range.start as u64, all.bufs.slice(range));
            let what = match all.kind {
                TransferKind::Read => SqeOp::Read { offset, bufs },
                TransferKind::Write { fua } => SqeOp::Write { offset, bufs, fua },
            };
            let alone = Request::new((part.home, part.key), self.file, what, None);
            (part, Some(alone))
        })
    }

    /// Ends the waiting of a Recv or an Accept: it is not retried, and its cancellation is no
    /// error. Returns whether it is one.
    pub(crate) fn end_wait(&mut self) -> bool {
        self.is_ended = matches!(self.what, SqeOp::Recv { .. } | SqeOp::Accept);
        self.is_ended
    }

    /// Whether there is nothing to transfer, so that no request is made.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.what {
            SqeOp::Read { bufs, .. } | SqeOp::Write { bufs, .. } | SqeOp::Send { bufs } => {
                bufs.is_empty()
            }
            SqeOp::Flush
            | SqeOp::Discard { .. }
            | SqeOp::WriteZeroes { .. }
            | SqeOp::Command { .. }
            | SqeOp::Accept
            | SqeOp::Recv { .. }
            | SqeOp::Shutdown
            | SqeOp::ShutdownWrite
            | SqeOp::Close => false,
        }
    }

    /// Whether no cancellation ends it.
    pub(crate) fn is_command(&self) -> bool {
        matches!(self.what, SqeOp::Command { .. })
    }

    /// What a command points at.
    fn sent(&self) -> Option<&SentMemory> {
        let SqeOp::Command { memory: CommandMemory::Sent(sent), .. } = &self.what else {
            return None;
        };
        Some(sent)
    }

    /// Whether it ends as it is submitted, and nobody is told if it has done all (`ring::sleep`).
    pub(crate) fn is_prompt(&self) -> bool {
        self.sent().is_some_and(|sent| !sent.wakes)
    }

    /// Whether this is the answer of a command that has done all of what it was sent.
    pub(crate) fn is_done(&self, answer: i32) -> bool {
        self.sent().is_some_and(|sent| u32::try_from(answer) == Ok(sent.whole))
    }

    /// Takes the arrays, to reuse them.
    pub(crate) fn take_vectors(&mut self) -> Option<Vectors> {
        self.vectors.take()
    }

    /// The next entry of a flush that is done asks for the size of the file.
    pub(crate) fn look_at_size(&mut self) {
        self.done = 1;
    }

    /// The request for the ring; it points into its buffers and arrays (UR-U1).
    pub(crate) fn entry(&mut self, fd: RawFd, spare: &mut Vec<Vectors>) -> squeue::Entry {
        let (fd, done) = (types::Fd(fd), self.done);
        let vectors = &mut self.vectors;
        let mut next = |bufs: &Bufs| piece(bufs, done, vectors, spare);
        match &self.what {
            SqeOp::Read { offset, bufs } => {
                let at = offset + done as u64;
                match next(bufs) {
                    Piece::One(ptr, len) => opcode::Read::new(fd, ptr, len).offset(at).build(),
                    Piece::Many => {
                        let (iov, count) = iov(&self.vectors);
                        opcode::Readv::new(fd, iov, count).offset(at).build()
                    }
                }
            }
            SqeOp::Write { offset, bufs, fua } => {
                let at = offset + done as u64;
                let rw = if *fua { libc::RWF_DSYNC } else { 0 };
                match next(bufs) {
                    Piece::One(ptr, len) => {
                        opcode::Write::new(fd, ptr, len).offset(at).rw_flags(rw).build()
                    }
                    Piece::Many => {
                        let (iov, count) = iov(&self.vectors);
                        opcode::Writev::new(fd, iov, count).offset(at).rw_flags(rw).build()
                    }
                }
            }
            SqeOp::Send { bufs } => match next(bufs) {
                Piece::One(ptr, len) => {
                    opcode::Send::new(fd, ptr, len).flags(libc::MSG_NOSIGNAL).build()
                }
                Piece::Many => {
                    let Vectors(vectors) = self.vectors.as_mut().expect("filled by `piece`");
                    vectors.msg.msg_iov = vectors.iov.as_mut_ptr();
                    // Its type differs between C libraries.
                    vectors.msg.msg_iovlen = vectors.iov.len() as _;
                    let flags = libc::MSG_NOSIGNAL.cast_unsigned();
                    opcode::SendMsg::new(fd, &raw const vectors.msg).flags(flags).build()
                }
            },
            SqeOp::Recv { into } => {
                let len = u32::try_from(into.len().min(TRANSFER_MAX)).expect("at most 2^30");
                opcode::Recv::new(fd, into.as_ptr(), len).build()
            }
            SqeOp::Flush if done == 0 => {
                opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
            }
            SqeOp::Flush => {
                let Vectors(vectors) =
                    vectors.get_or_insert_with(|| spare.pop().unwrap_or_else(Vectors::new));
                let (path, stat) = (c"".as_ptr(), vectors.stat.as_mut_ptr().cast());
                // In a kernel thread: the ring never runs it at submission.
                opcode::Statx::new(fd, path, stat)
                    .flags(libc::AT_EMPTY_PATH)
                    .mask(libc::STATX_SIZE)
                    .build()
            }
            SqeOp::Discard { offset, len } => {
                fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE, *offset, *len)
            }
            SqeOp::WriteZeroes { offset, len, unmap: true } => {
                fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE, *offset, *len)
            }
            SqeOp::WriteZeroes { offset, len, unmap: false } => {
                fallocate(fd, libc::FALLOC_FL_ZERO_RANGE, *offset, *len)
            }
            // The kernel copies the arguments when it takes the entry. Its driver knows a buffer
            // from them, or from the entry.
            SqeOp::Command { code, args, memory } => {
                let command = opcode::UringCmd16::new(fd, *code).cmd(*args);
                match memory {
                    CommandMemory::Sent(sent) => {
                        command.addr(Some(sent.data.as_ptr().expose_provenance() as u64)).build()
                    }
                    CommandMemory::None
                    | CommandMemory::Named(_)
                    | CommandMemory::Stream(_)
                    | CommandMemory::OfStream(_) => command.build(),
                }
            }
            SqeOp::Accept => {
                let (addr, len) = (std::ptr::null_mut(), std::ptr::null_mut());
                opcode::Accept::new(fd, addr, len).flags(libc::SOCK_CLOEXEC).build()
            }
            SqeOp::Shutdown => opcode::Shutdown::new(fd, libc::SHUT_RDWR).build(),
            SqeOp::ShutdownWrite => opcode::Shutdown::new(fd, libc::SHUT_WR).build(),
            SqeOp::Close => unreachable!("the table closes files"),
        }
    }

    /// What the ring's answer means: bytes or a descriptor, or an errno below zero.
    pub(crate) fn outcome(&mut self, answer: i32) -> Outcome {
        let Ok(count) = usize::try_from(answer) else { return self.failed(-answer) };
        let ok = OpResult::from(Status::Ok);
        match &mut self.what {
            SqeOp::Read { bufs, .. } | SqeOp::Write { bufs, .. } | SqeOp::Send { bufs } => {
                self.done += count;
                if self.done < bufs.len_bytes() {
                    // UR-U2. Nothing at all is the end of the file: no more will come.
                    return if count == 0 {
                        Outcome::Done(Status::Io.into())
                    } else {
                        Outcome::Retry
                    };
                }
                if let Some(client) = self.unaligned.take() {
                    client.put_from(0, bufs, 0, bufs.len_bytes());
                }
                Outcome::Done(ok)
            }
            SqeOp::Command { memory: CommandMemory::Sent(sent), .. }
                if answer.cast_unsigned() != sent.whole =>
            {
                Outcome::Done(Status::Io.into())
            }
            SqeOp::Recv { .. } | SqeOp::Command { .. } => {
                Outcome::Done(OpResult { value: answer.cast_unsigned(), ..ok })
            }
            SqeOp::Accept => Outcome::Accepted(answer),
            SqeOp::Flush if self.done == 0 => Outcome::Flushed,
            SqeOp::Flush => {
                let Vectors(vectors) = self.vectors.as_ref().expect("filled by `entry`");
                Outcome::Size(vectors.stat[STAT_SIZE])
            }
            SqeOp::Discard { .. }
            | SqeOp::WriteZeroes { .. }
            | SqeOp::Shutdown
            | SqeOp::ShutdownWrite
            | SqeOp::Close => Outcome::Done(ok),
        }
    }

    fn failed(&mut self, errno: i32) -> Outcome {
        let again = matches!(errno, libc::EINTR | libc::EAGAIN);
        let is_nothing = again || matches!(errno, libc::ECANCELED | libc::ECONNABORTED);
        if self.is_ended && is_nothing {
            // It has taken nothing: what came meanwhile is for the next one.
            return Outcome::Done(Status::Again.into());
        }
        let accept = matches!(self.what, SqeOp::Accept);
        if (again || accept && errno == libc::ECONNABORTED) && self.tries < TRIES_MAX {
            self.tries += 1;
            return Outcome::Retry;
        }
        if let (SqeOp::WriteZeroes { unmap: unmap @ true, .. }, libc::EOPNOTSUPP) =
            (&mut self.what, errno)
        {
            // Giving the space back was allowed, not asked for.
            *unmap = false;
            return Outcome::Retry;
        }
        if matches!(self.what, SqeOp::Flush) && self.done > 0 {
            // It was flushed; a file whose size can't be read is not known to be shorter.
            return Outcome::Done(Status::Ok.into());
        }
        let short = matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM);
        let status = if accept && short {
            // Out of descriptors for the moment: the listener lives on.
            Status::Again
        } else if accept && errno == libc::ECANCELED {
            // As after a shutdown of the socket itself.
            Status::Invalid
        } else if matches!(self.what, SqeOp::Shutdown | SqeOp::ShutdownWrite)
            && errno == libc::ENOTCONN
        {
            // The other side was gone first; there is nothing left to end.
            Status::Ok
        } else if matches!(self.what, SqeOp::Recv { .. } | SqeOp::Send { .. })
            && matches!(errno, libc::ECONNRESET | libc::EPIPE)
        {
            Status::NoDevice
        } else {
            Status::from_errno(errno)
        };
        Outcome::Done(status.into())
    }
}

fn fallocate(fd: types::Fd, mode: i32, offset: u64, len: u64) -> squeue::Entry {
    let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
    opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
}

fn iov(vectors: &Option<Vectors>) -> (*const libc::iovec, u32) {
    let iov = &vectors.as_ref().expect("filled by `piece`").0.iov;
    (iov.as_ptr(), u32::try_from(iov.len()).expect("at most IOV_MAX"))
}

/// What is left of `bufs` after `done` bytes, as far as one transfer reaches.
fn piece(
    bufs: &Bufs,
    done: usize,
    vectors: &mut Option<Vectors>,
    spare: &mut Vec<Vectors>,
) -> Piece {
    if bufs.count() == 1 {
        let only = bufs.iter().next().expect("counted");
        let len = u32::try_from((only.len() - done).min(TRANSFER_MAX)).expect("at most 2^30");
        return Piece::One(only.as_ptr().wrapping_add(done), len);
    }
    let Vectors(vectors) = vectors.get_or_insert_with(|| spare.pop().unwrap_or_else(Vectors::new));
    vectors.iov.clear();
    let (mut skip, mut room) = (done, TRANSFER_MAX);
    for slice in bufs.iter() {
        if skip >= slice.len() {
            skip -= slice.len();
            continue;
        }
        let len = (slice.len() - skip).min(room);
        if len == 0 || vectors.iov.len() == IOV_MAX {
            break;
        }
        let base = slice.as_ptr().wrapping_add(skip).cast();
        vectors.iov.push(libc::iovec { iov_base: base, iov_len: len });
        (skip, room) = (0, room - len);
    }
    Piece::Many
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(key: u32, block: u64, fua: bool) -> Request {
        let bufs = Buf::alloc(4096).into();
        let what = SqeOp::Write { offset: block * 4096, bufs, fua };
        Request::new((CoreId(0), OpKey(key)), FileId(7), what, None)
    }

    fn read(key: u32, block: u64) -> Request {
        let what = SqeOp::Read { offset: block * 4096, bufs: Buf::alloc(4096).into() };
        Request::new((CoreId(0), OpKey(key)), FileId(7), what, None)
    }

    #[test]
    fn only_neighbours_of_one_kind_and_file_are_joined() {
        let first = write(1, 4, false);
        assert!(first.is_followed_by(&write(2, 5, false)));
        assert!(write(1, 4, true).is_followed_by(&write(2, 5, true)));
        assert!(!first.is_followed_by(&write(2, 5, true)), "one with FUA");
        assert!(!first.is_followed_by(&read(2, 5)), "a read");
        assert!(!first.is_followed_by(&write(2, 6, false)), "a gap");
        assert!(!first.is_followed_by(&write(2, 4, false)), "the same block");
        assert!(!first.is_followed_by(&write(2, 3, false)), "the one before");
        let elsewhere = Request { file: FileId(8), ..write(2, 5, false) };
        assert!(!first.is_followed_by(&elsewhere), "another file");
    }

    #[test]
    fn joined_requests_have_a_limit() {
        let mut all = read(0, 0);
        let mut joined = 1;
        while all.is_followed_by(&read(0, joined)) {
            all.join(read(0, joined));
            joined += 1;
        }
        assert_eq!(joined as usize, JOINED_MAX / 4096);
    }

    #[test]
    fn after_an_error_what_is_not_done_is_sent_alone() {
        let mut all = read(0, 10);
        for nth in 1..4 {
            all.join(read(nth, 10 + u64::from(nth)));
        }
        assert_eq!(all.parts().len(), 4);
        // One and a half are read, then the disk reports an error.
        assert!(matches!(all.outcome(6144), Outcome::Retry));
        assert!(matches!(all.outcome(-libc::EIO), Outcome::Done(_)));
        let after: Vec<_> = all.split().collect();
        assert!(after[0].1.is_none(), "the first is done");
        for (nth, (part, alone)) in (0..).zip(&after).skip(1) {
            let alone = alone.as_ref().expect("it is not done");
            let sent = transfer(&alone.what).expect("a read");
            assert_eq!((part.key, alone.key), (OpKey(nth), OpKey(nth)));
            assert_eq!((sent.offset, sent.bufs.len_bytes()), ((10 + u64::from(nth)) * 4096, 4096));
            assert_eq!((alone.done, alone.parts().len()), (0, 0));
        }
    }
}
