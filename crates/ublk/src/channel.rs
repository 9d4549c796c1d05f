// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Channels: how a queue speaks to the kernel. A queue knows no descriptor and no ring, so that
//! tests can take the kernel's part.
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use block::{Buf, Completion, Slice, Status};
use reactor::{CommandMemory, FileId, KeptOp, SentMemory, SqeOp, StreamMemory, push_bio};
use rustix::io::{pread, pwrite};
use zerocopy::IntoBytes;

use crate::abi::{
    BatchCommand, BatchElement, COMMIT_AND_FETCH, COMMIT_SEVERAL, ELEMENTS_HAVE_ADDRESSES, FETCH,
    PREPARE_SEVERAL, QueueCommand, TAKE_SEVERAL, data_offset,
};
use crate::kernel::{Descriptor, QueueMemory};
use crate::tag_buffers::TagBuffers;

/// What became of the request of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagResult {
    /// The tag.
    pub tag: u16,
    /// Bytes, or an errno below zero.
    pub result: i32,
}

/// The kernel's side of one queue. All of it is for the core that fetched the tags.
pub trait Channel: 'static {
    /// Offers a tag, once. Finishes `done` when it has a request, with `Ok`; with `NoDevice` when
    /// the device is stopped. `buf`: where the kernel puts the data of a write before that; none
    /// where the server copies data.
    fn fetch(&self, tag: u16, buf: Option<&Buf>, done: Completion);

    /// Ends the request of a tag, with bytes or an errno below zero, and offers the tag again.
    /// Finishes `done` as [`Channel::fetch`]. `buf`: where the kernel takes the data of a read
    /// from, and puts those of the next write.
    fn commit_and_fetch(&self, tag: u16, result: i32, buf: Option<&Buf>, done: Completion);

    /// Whether tags are taken and committed several at a time, by the next four methods, and not by
    /// the two above.
    fn takes_several(&self) -> bool {
        false
    }

    /// Offers all tags, once, each with its buffer. Finishes `done` when they are the kernel's.
    fn prepare(&self, _buffers: &Rc<TagBuffers>, _done: Completion) {
        unreachable!("each tag has commands of its own");
    }

    /// Tells from now on which offered tags have a request. Ends at `place` with `Ok` when there
    /// are some ([`Channel::taken`]), with `NoDevice` when the device is stopped and with other
    /// errors when the kernel refuses: both for the last time.
    fn take(&self, _buffers: &Rc<TagBuffers>, _place: &Rc<KeptOp>) {
        unreachable!("each tag has commands of its own");
    }

    /// Calls `each` with the tags that have a request and were not taken yet.
    fn taken(&self, _each: &mut dyn FnMut(u16)) {
        unreachable!("each tag has commands of its own");
    }

    /// Ends the requests of these tags, and offers each again with its buffer, out of which the
    /// kernel takes the data of reads. Ends at `place` with an error if the kernel refuses; with
    /// `Ok` only if `tells`.
    fn commit(
        &self,
        _results: &[TagResult],
        _buffers: &Rc<TagBuffers>,
        _tells: bool,
        _place: &Rc<KeptOp>,
    ) {
        unreachable!("each tag has commands of its own");
    }

    /// The request of a tag, after a fetch has ended with `Ok`.
    fn descriptor(&self, tag: u16) -> Descriptor;

    /// Fills `buf` with the data of a tag's write, where the server copies data.
    fn copy_in(&self, tag: u16, buf: &Slice) -> Result<(), Status>;

    /// Puts `buf` into a tag's read, where the server copies data.
    fn copy_out(&self, tag: u16, buf: &Slice) -> Result<(), Status>;
}

/// The kernel's, by the character device of a device.
#[derive(Debug)]
pub struct KernelChannel {
    file: FileId,
    queue: u16,
    memory: QueueMemory,
    /// The kernel says which of several tags have a request.
    takes_several: bool,
    /// Where it says so.
    taken: OnceCell<Rc<StreamMemory>>,
    /// What the last commit of several tags pointed at.
    sent: RefCell<Option<Rc<SentMemory>>>,
    /// An element of each tag, for commits of it alone.
    elements: OnceCell<Buf>,
}

impl KernelChannel {
    /// The channel of queue number `queue` by `file`, the character device in the driver of this
    /// core. `takes_several`: the device was made so that tags are taken several at a time.
    pub fn new(
        file: FileId,
        queue: u16,
        memory: QueueMemory,
        takes_several: bool,
    ) -> KernelChannel {
        let (taken, sent, elements) = (OnceCell::new(), RefCell::default(), OnceCell::new());
        KernelChannel { file, queue, memory, takes_several, taken, sent, elements }
    }

    /// The character device.
    pub fn file(&self) -> FileId {
        self.file
    }

    fn command(&self, code: u32, tag: u16, result: i32, buf: Option<&Buf>, done: Completion) {
        let mut args = [0; 16];
        let addr = buf.map_or(0, |buf| buf.as_ptr().expose_provenance() as u64);
        let command = QueueCommand { queue: self.queue, tag, result, addr };
        args.copy_from_slice(command.as_bytes());
        let memory = buf.cloned().map_or(CommandMemory::None, CommandMemory::Named);
        push_bio(done, self.file, SqeOp::Command { code, args, memory });
    }

    /// Sends a command on several tags.
    fn send_elements(
        &self,
        code: u32,
        results: impl ExactSizeIterator<Item = TagResult>,
        mut sent: Rc<SentMemory>,
        done: Completion,
    ) -> Rc<SentMemory> {
        let count = u16::try_from(results.len()).expect("at most all tags");
        let memory = Rc::get_mut(&mut sent).expect("no command has it");
        let buffers = memory.keep.downcast_ref::<TagBuffers>().expect("the buffers of the tags");
        memory.data.write(|bytes| {
            let places = bytes.chunks_exact_mut(size_of::<BatchElement>());
            for (place, result) in places.zip(results) {
                place.copy_from_slice(element(result, buffers).as_bytes());
            }
        });
        let command = self.on_elements(count);
        self.send_batch(code, command, CommandMemory::Sent(sent.clone()), done);
        sent
    }

    /// Commits one tag. Its element is written again only after the kernel has given the tag out
    /// again, and so has taken this commit (UB-B1).
    fn commit_alone(&self, result: TagResult, buffers: &TagBuffers, done: Completion) {
        let elements = self.elements.get().expect("made as the first tags were taken");
        let at = usize::from(result.tag) * size_of::<BatchElement>();
        let element = element(result, buffers);
        let bytes = at..at + size_of::<BatchElement>();
        elements.write(|all| all[bytes].copy_from_slice(element.as_bytes()));
        let address = elements.as_ptr().wrapping_add(at).expose_provenance() as u64;
        let memory = CommandMemory::OfStream(address);
        self.send_batch(COMMIT_SEVERAL, self.on_elements(1), memory, done);
    }

    /// The arguments of a command on so many elements.
    fn on_elements(&self, elements: u16) -> BatchCommand {
        BatchCommand {
            queue: self.queue,
            flags: ELEMENTS_HAVE_ADDRESSES,
            elements,
            element_bytes: u8::try_from(size_of::<BatchElement>()).expect("few bytes"),
            ..Default::default()
        }
    }

    /// Memory for elements of all tags.
    fn new_sent(&self, buffers: &Rc<TagBuffers>) -> Rc<SentMemory> {
        let data = Buf::alloc(usize::from(self.memory.depth()) * size_of::<BatchElement>());
        Rc::new(SentMemory { data, whole: 0, wakes: true, keep: buffers.clone() })
    }

    fn send_batch(
        &self,
        code: u32,
        command: BatchCommand,
        memory: CommandMemory,
        done: Completion,
    ) {
        let mut args = [0; 16];
        args.copy_from_slice(command.as_bytes());
        push_bio(done, self.file, SqeOp::Command { code, args, memory });
    }
}

/// What the kernel is told of a tag, and where its data are next.
fn element(TagResult { tag, result }: TagResult, buffers: &TagBuffers) -> BatchElement {
    let addr = buffers.all()[usize::from(tag)].as_ptr().expose_provenance() as u64;
    BatchElement { tag, buffer_index: 0, result, addr }
}

impl Channel for KernelChannel {
    fn fetch(&self, tag: u16, buf: Option<&Buf>, done: Completion) {
        self.command(FETCH, tag, 0, buf, done);
    }

    fn commit_and_fetch(&self, tag: u16, result: i32, buf: Option<&Buf>, done: Completion) {
        self.command(COMMIT_AND_FETCH, tag, result, buf, done);
    }

    fn takes_several(&self) -> bool {
        self.takes_several
    }

    fn prepare(&self, buffers: &Rc<TagBuffers>, done: Completion) {
        let all = (0..self.memory.depth()).map(|tag| TagResult { tag, result: 0 });
        self.send_elements(PREPARE_SEVERAL, all, self.new_sent(buffers), done);
    }

    fn take(&self, buffers: &Rc<TagBuffers>, place: &Rc<KeptOp>) {
        let element_bytes = u8::try_from(size_of::<u16>()).expect("two bytes");
        let command = BatchCommand { queue: self.queue, element_bytes, ..Default::default() };
        let bytes = usize::from(self.memory.depth()) * size_of::<BatchElement>();
        let elements = self.elements.get_or_init(|| Buf::alloc(bytes)).clone();
        let keep = || Rc::new((buffers.clone(), elements));
        let memory = self.taken.get_or_init(|| Rc::new(StreamMemory::new(keep())));
        let memory = CommandMemory::Stream(memory.clone());
        self.send_batch(TAKE_SEVERAL, command, memory, place.repeated());
    }

    fn taken(&self, each: &mut dyn FnMut(u16)) {
        let Some(taken) = self.taken.get() else { return };
        taken.take(|bytes| {
            #[expect(clippy::host_endian_bytes, reason = "as the kernel of this machine has it")]
            let tags = bytes.as_chunks().0.iter().map(|tag| u16::from_ne_bytes(*tag));
            tags.for_each(each);
        });
    }

    fn commit(
        &self,
        results: &[TagResult],
        buffers: &Rc<TagBuffers>,
        tells: bool,
        place: &Rc<KeptOp>,
    ) {
        if let ([result], false) = (results, tells) {
            return self.commit_alone(*result, buffers, place.repeated());
        }
        // That of the commit before, if the kernel has taken it.
        let old = self.sent.take().filter(|sent| Rc::strong_count(sent) == 1);
        let mut sent = old.unwrap_or_else(|| self.new_sent(buffers));
        let memory = Rc::get_mut(&mut sent).expect("no command has it");
        let bytes = results.len() * size_of::<BatchElement>();
        memory.whole = u32::try_from(bytes).expect("at most all tags");
        memory.wakes = tells;
        let results = results.iter().copied();
        let sent = self.send_elements(COMMIT_SEVERAL, results, sent, place.repeated());
        self.sent.replace(Some(sent));
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        self.memory.descriptor(tag)
    }

    fn copy_in(&self, tag: u16, buf: &Slice) -> Result<(), Status> {
        let offset = data_offset(self.queue, tag);
        self.memory.copy(buf.len(), |file| buf.write(|bytes| pread(file, bytes, offset)))
    }

    fn copy_out(&self, tag: u16, buf: &Slice) -> Result<(), Status> {
        let offset = data_offset(self.queue, tag);
        self.memory.copy(buf.len(), |file| buf.read(|bytes| pwrite(file, bytes, offset)))
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
