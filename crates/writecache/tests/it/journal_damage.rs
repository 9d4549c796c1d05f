// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A journal in memory with a damaged header.
use format::{JOURNAL_PREFIX, UNIT};
use writecache::{Fault, IgnoredJournal};

use crate::common::{expect, put};
use crate::journal::{applied, ignored, killed, life_with_events};

/// WC-JR5: whatever of the header is damaged. Returns whether the cache has said so and has kept
/// journal and buffer.
fn damaged(fault: Option<Fault>, at: usize) -> bool {
    let mut fixture = killed("write_buffer 1M");
    fixture.config.plant(fault);
    let memories = fixture.world.borrow().memories().unwrap();
    let names = memories.names();
    let name = names.iter().find(|name| name.starts_with(JOURNAL_PREFIX)).unwrap();
    let mut kept = Vec::new();
    // A second one takes the place of the first.
    for value in [0x11, 0x22] {
        let contents = memories.contents(name).unwrap();
        let uuid: [u8; 16] = contents.borrow()[16..32].try_into().unwrap();
        contents.borrow_mut()[at] ^= value;
        kept = contents.borrow().clone();
        let (opened, events) = life_with_events(&fixture, async |cache| {
            put(&*cache, 7, 3).await.unwrap();
        });
        opened.unwrap();
        let why = IgnoredJournal::Damaged { uuid };
        if events != ignored(0, why) {
            return false;
        }
        let text = events[0].to_string();
        assert!(text.contains("damaged-journal-") && text.contains("damaged-buffer-"), "{text}");
    }
    let damaged = memories.contents(&format!("damaged-{name}")).unwrap();
    assert!(*damaged.borrow() == kept, "as it was");
    assert_eq!(memories.names().len(), 2 * names.len());
    // The new journal is one.
    let (opened, events) = life_with_events(&fixture, async |cache| expect(&*cache, 7..8, 3).await);
    opened.unwrap();
    assert_eq!(events, applied(1));
    true
}

#[test]
fn a_journal_with_a_damaged_header_is_set_aside_and_named() {
    for at in [0, 13, 50, UNIT - 1] {
        assert!(damaged(None, at), "byte {at}");
    }
    assert!(!damaged(Some(Fault::DamagedJournalLost), 50));
}
