// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The option phase of the NBD server, fed arbitrary bytes in pieces of arbitrary size.
//!
//! What must hold: no panic; what a step uses up is there; what it asks for is bounded; pieces
//! make no difference to the answers. All but every fourth input begins with a right magic after
//! each option, so that the payload parsers are reached.
#![no_main]

use std::rc::Rc;

use block::{Bio, BlockDevice, Error, Limits, LocalFuture, Sector, Status};
use libfuzzer_sys::fuzz_target;
use nbd::option::HEADER_BYTES;
use nbd::wire::{OPTION_BYTES_MAX, OPTION_MAGIC};
use nbd::{Context, Export, Exports, Handshake, Run, Step};

struct FailingDevice;

impl BlockDevice for FailingDevice {
    fn name(&self) -> &str {
        "nothing"
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector(2048))
    }
    fn submit(&self, bio: Bio) {
        bio.complete(Status::Io);
    }
}

struct TwoExports;

impl Exports for TwoExports {
    fn list(&self) -> Vec<String> {
        vec!["a".into(), "bc".into(), "x".repeat(5000)]
    }
    fn open(&self, name: &str) -> Result<Box<dyn Export>, Error> {
        match name {
            "" | "a" => Ok(Box::new(TwoExports)),
            "bc" => Err(Error::busy("ä".repeat(4000))),
            _ => Err(Error::not_found(format!("no export `{name}`"))),
        }
    }
}

impl Export for TwoExports {
    fn device(&self) -> Rc<dyn BlockDevice> {
        Rc::new(FailingDevice)
    }
    fn name(&self) -> String {
        "a".into()
    }
    fn description(&self) -> String {
        "ü".repeat(3000)
    }
    fn block_status(
        &self,
        _context: Context,
        _at: Sector,
        _len: Sector,
    ) -> LocalFuture<Option<Vec<Run>>> {
        Box::pin(async { Some(Vec::new()) })
    }
}

/// Puts the magic wherever an option begins, as long as the lengths lead to further options.
fn repair(bytes: &mut [u8]) {
    let mut at = 4;
    while let Some(head) = bytes.get_mut(at..at + HEADER_BYTES) {
        head[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        head[8..11].fill(0);
        head[12..14].fill(0);
        let len = usize::from(head[14]) << 8 | usize::from(head[15]);
        at += HEADER_BYTES + len;
    }
}

/// All that is answered, and whether the session began.
fn talk(bytes: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut handshake = Handshake::new();
    let mut out = Vec::new();
    let (mut start, mut end) = (0, 0);
    loop {
        match handshake.step(&bytes[start..end], &TwoExports, &mut out) {
            Step::Consumed(n) => {
                assert!(n > 0 && n <= end - start);
                start += n;
            }
            Step::More(total) => {
                assert!(total > end - start && total <= HEADER_BYTES + OPTION_BYTES_MAX);
                if end == bytes.len() {
                    return (out, false);
                }
                end = (end + piece).min(bytes.len());
            }
            Step::Ready(n, _session) => {
                assert!(n <= end - start);
                return (out, true);
            }
            Step::StartTls(_) => unreachable!("not at an address without TLS"),
            Step::End => return (out, false),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut bytes = data.to_vec();
    if choice % 4 != 0 && bytes.len() >= 4 {
        bytes[..4].copy_from_slice(&[0, 0, 0, choice >> 6 | 1]);
        repair(&mut bytes);
    }
    let whole = talk(&bytes, bytes.len().max(1));
    let pieces = talk(&bytes, 1 + usize::from(choice >> 2 & 7));
    assert!(whole == pieces);
});
