// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Check: whether slots, images and blocks agree, for tests.
use std::rc::Rc;

use super::image::Image;
use crate::device::Zram;
use crate::part::Part;
use crate::slot::Flags;

impl Zram {
    /// Panics unless slots, images and blocks of a persistent device that is suspended agree.
    #[doc(hidden)]
    pub async fn check(self: &Rc<Self>) {
        let parts = self.parts().expect("it was resumed");
        parts.ask(|part| async move { part.check_persist() }).await;
    }
}

impl Part {
    fn check_persist(&self) {
        let persist = self.persist();
        let space = self.space();
        let chain = persist.chain.borrow();
        let mut lies_in = vec![0u8; persist.geometry.region_blocks as usize];
        let mut count = |blocks: std::ops::Range<u32>| {
            blocks.for_each(|block| lies_in[block as usize] += 1);
        };
        let images = persist.images.borrow();
        (0..images.len()).for_each(|nth| count(images.get(nth).blocks()));
        chain.replay.iter().for_each(|unit| count(unit.blocks.clone()));
        chain.pending.iter().flat_map(|unit| &unit.superseded).for_each(|old| count(old.blocks()));
        let blocks = space.blocks();
        for (block, lies_in) in (0..).zip(&lies_in) {
            assert_eq!(blocks.lie_in(block), *lies_in, "objects and units in block {block}");
        }
        let reserved = chain.next.as_ref().map_or(0, |run| run.end - run.start);
        let taken = persist.geometry.data().start + reserved + blocks.in_use();
        assert_eq!(blocks.free() + taken, blocks.count(), "blocks without an owner");
        assert_eq!(self.counters.bd_count.get(), u64::from(blocks.in_use()));
        let dirty = persist.dirty.borrow();
        for nth in (0..images.len()).filter(|nth| !dirty.has(*nth)) {
            let (slot, image) = (self.slot(nth), images.get(nth));
            let agrees = if slot.is_empty() {
                image.is_none()
            } else if slot.has(Flags::SAME) {
                image == Image::same(slot.place)
            } else {
                let at = if slot.has(Flags::BACKED) { slot.place } else { image.address().0 };
                let same = (image.size(), image.priority()) == (slot.size(), slot.priority());
                image.is_page() && same && image.address().0 == at
            };
            assert!(agrees, "slot {nth}: {slot:?} is not as {image:?}");
        }
    }
}
