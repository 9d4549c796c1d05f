// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The buffers of a queue's tags. The kernel copies between them and the pages of clients: the data
//! of a write before a fetch ends, those of a read when it is told that the read has ended.
//!
//! ```text
//!   offered with its buffer ─▶ a write: the kernel fills it ─▶ the request uses it
//!       ▲                                                          │
//!       └── the same buffer, or another one if the device still has this one (UB-Q6) ◀─┘
//! ```
use std::cell::{Ref, RefCell};

use block::{Buf, Bufs, Slice};

/// The buffers of a queue, each as large as a request can be. Pages that no request has used take
/// no memory.
pub struct TagBuffers {
    bytes: usize,
    all: RefCell<Vec<Buf>>,
}

impl TagBuffers {
    pub(crate) fn new(depth: u16, max_io_bytes: u32) -> TagBuffers {
        let bytes = max_io_bytes as usize;
        let all = (0..depth).map(|_| Buf::alloc(bytes)).collect();
        TagBuffers { bytes, all: RefCell::new(all) }
    }

    /// The buffers, by tag.
    pub(crate) fn all(&self) -> Ref<'_, Vec<Buf>> {
        self.all.borrow()
    }

    /// Where the data of a tag's request are, or will be.
    pub fn data(&self, tag: u16, bytes: usize) -> Slice {
        self.all.borrow()[usize::from(tag)].slice(0..bytes)
    }

    /// Calls `offer` with the buffer of a tag, whose first `read_bytes` are the data of a read that
    /// has ended. From then on the kernel may change it.
    pub(crate) fn offer<R>(&self, tag: u16, read_bytes: usize, offer: impl FnOnce(&Buf) -> R) -> R {
        let buf = &mut self.all.borrow_mut()[usize::from(tag)];
        if buf.is_shared() {
            let used = std::mem::replace(buf, Buf::alloc(self.bytes));
            if read_bytes > 0 {
                let data = Bufs::from(used.slice(0..read_bytes));
                Bufs::from(buf.slice(0..read_bytes)).put_from(0, &data, 0, read_bytes);
            }
        }
        offer(buf)
    }
}

block::debug_as!(TagBuffers, s => "TagBuffers({} of {} bytes)", s.all.borrow().len(), s.bytes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_somebody_has_is_not_offered_again() {
        let buffers = TagBuffers::new(2, 4096);
        buffers.offer(1, 0, |buf| buf.write(|bytes| bytes.fill(1)));
        let kept = buffers.data(1, 512);
        buffers.offer(1, 256, |buf| {
            buf.read(|bytes| assert!(bytes[..256].iter().all(|byte| *byte == 1), "data of a read"));
            buf.write(|bytes| bytes.fill(2));
        });
        kept.read(|bytes| assert!(bytes.iter().all(|byte| *byte == 1)));
    }

    #[test]
    fn one_that_nobody_has_is() {
        let buffers = TagBuffers::new(1, 4096);
        let first = buffers.offer(0, 0, Buf::as_ptr);
        drop(buffers.data(0, 4096));
        assert_eq!(buffers.offer(0, 0, Buf::as_ptr), first);
    }
}
