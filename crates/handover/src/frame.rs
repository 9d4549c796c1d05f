// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A message as bytes: a head, JSON, and bytes that are no text.
use block::Error;

use crate::message::Message;

/// What a frame begins with.
pub const HEAD_BYTES: usize = 16;
const MAGIC: [u8; 4] = *b"MPHO";
/// Longest JSON of a frame.
pub const JSON_BYTES_MAX: usize = 16 << 20;
/// Most other bytes of a frame: a request of NBD, and a little.
pub const BYTES_MAX: usize = 40 << 20;
/// Most descriptors of a frame.
const DESCRIPTORS_MAX: usize = 1;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of JSON that follow.
    pub json: usize,
    /// Bytes that follow the JSON.
    pub bytes: usize,
    /// Descriptors that come with the first byte.
    pub descriptors: usize,
}

/// A message, and the bytes that come with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The message.
    pub message: Message,
    /// What a client has sent that is no whole request, or what a front end has set; of a session
    /// only.
    pub bytes: Vec<u8>,
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("hand-over: {why}"))
}

impl Head {
    /// The head that these bytes are.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(head: [u8; HEAD_BYTES]) -> Result<Head, Error> {
        let (magic, rest) = head.split_at(4);
        if magic != MAGIC {
            return Err(refused("these bytes are no message of a hand-over"));
        }
        let mut numbers = rest.as_chunks::<4>().0.iter().map(|n| u32::from_le_bytes(*n) as usize);
        let mut next = || numbers.next().unwrap_or(usize::MAX);
        let head = Head { json: next(), bytes: next(), descriptors: next() };
        let limits = [
            ("of JSON", head.json, JSON_BYTES_MAX),
            ("of data", head.bytes, BYTES_MAX),
            ("descriptors", head.descriptors, DESCRIPTORS_MAX),
        ];
        for (what, found, most) in limits {
            if found > most {
                return Err(refused(format!("{found} {what}, at most {most} are allowed")));
            }
        }
        Ok(head)
    }
}

impl Frame {
    /// A message without other bytes.
    pub fn new(message: Message) -> Frame {
        Frame { message, bytes: Vec::new() }
    }

    /// The frame as bytes; it is sent with so many descriptors.
    ///
    /// # Errors
    /// When it is too long.
    pub fn encode(&self, descriptors: usize) -> Result<Vec<u8>, Error> {
        let json = serde_json::to_vec(&self.message).map_err(refused)?;
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        let numbers = [number(json.len()), number(self.bytes.len()), number(descriptors)];
        let head: Vec<u8> = [MAGIC].into_iter().chain(numbers).flatten().collect();
        Head::decode(head.as_slice().try_into().map_err(refused)?)?;
        Ok([&head[..], &json, &self.bytes].concat())
    }

    /// The frame with this head.
    ///
    /// # Errors
    /// What is wrong with `json`; the lengths are the head's.
    pub fn decode(json: &[u8], bytes: Vec<u8>) -> Result<Frame, Error> {
        Ok(Frame { message: serde_json::from_slice(json).map_err(refused)?, bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::{
        Device, Greeting, Listener, ListenerRole, Peer, RefusedWrite, Session, VhostSession,
    };

    fn message() -> impl Strategy<Value = Message> {
        let text = || "[ -~\u{e4}\u{4e00}]{0,12}";
        let hello = (any::<u32>(), any::<u32>(), text(), any::<u32>());
        let attributes = proptest::collection::vec((text(), text()), 0..3);
        let device = (text(), any::<Option<u32>>(), any::<u32>(), attributes, any::<bool>());
        let session = (text(), any::<u16>(), any::<bool>(), any::<u64>());
        prop_oneof![
            hello.prop_map(|(oldest, newest, program, pid)| {
                let (knows, needs) = (vec![program.clone()], vec![program.clone(); 2]);
                Message::Greeting(Greeting { oldest, newest, program, pid, knows, needs })
            }),
            any::<bool>().prop_map(|of_unit| {
                let (role, stored) = (ListenerRole::Nbd, (!of_unit).then(|| "stored-nbd-0".into()));
                Message::Listener(Listener { role, stored, of_unit })
            }),
            device.prop_map(|(name, uuid, minor, attributes, ublk)| {
                let uuid = uuid.map(|n| n.to_string());
                let table = Some(format!("0 8 linear {name} 0\n"));
                let (used_by_guest, force) = (!ublk, ublk.then(|| "1a2b3c4d".to_owned()));
                Message::Device(Device {
                    name,
                    uuid,
                    minor,
                    table,
                    force,
                    attributes,
                    ublk,
                    used_by_guest,
                })
            }),
            session.prop_map(|(device, flags, structured, size_sectors)| {
                let refused = RefusedWrite { cookie: size_sectors, error: 22, left: 1 };
                Message::Session(Session {
                    id: 7,
                    device,
                    peer: Peer::Network,
                    flags,
                    structured,
                    contexts: vec!["base:allocation".into()],
                    size_sectors,
                    block_bytes: 512,
                    present_size_sectors: size_sectors,
                    read_only: structured,
                    refused: structured.then_some(refused),
                    has_lost_writes: !structured,
                    age_ms: 5,
                    requests: size_sectors,
                    read_bytes: 1,
                    write_bytes: 2,
                    errors: 3,
                })
            }),
            (text(), any::<u64>()).prop_map(|(device, id)| {
                Message::VhostSession(VhostSession {
                    id,
                    device,
                    age_ms: 5,
                    requests: id,
                    read_bytes: 1,
                    write_bytes: 2,
                    errors: 3,
                })
            }),
            Just(Message::VhostDescriptor),
            text().prop_map(|cause| Message::Failed { cause }),
            Just(Message::Commit),
        ]
    }

    fn decode(all: &[u8]) -> Result<Frame, Error> {
        let (head, rest) = all.split_first_chunk::<HEAD_BYTES>().ok_or_else(|| refused("short"))?;
        let head = Head::decode(*head)?;
        let (json, bytes) = rest.split_at_checked(head.json).ok_or_else(|| refused("short"))?;
        Frame::decode(json, bytes.to_vec())
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(
            message in message(), bytes in proptest::collection::vec(any::<u8>(), 0..64)
        ) {
            let frame = Frame { message, bytes };
            prop_assert_eq!(decode(&frame.encode(1).unwrap()).unwrap(), frame);
        }

        #[test]
        fn other_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(decode(&bytes).is_err());
        }
    }

    /// HV-F2.
    #[test]
    fn members_of_a_newer_program_are_ignored() {
        let json = br#"{"message":"device","name":"a","minor":1,"colour":"blue"}"#;
        let device = Frame::decode(json, Vec::new()).unwrap().message;
        let Message::Device(device) = device else { panic!("{device:?}") };
        assert_eq!((&*device.name, device.minor, device.table), ("a", 1, None));
        for wrong in [&br#"{"message":"device","name":"a"}"#[..], br#"{"message":"paint"}"#, b"{"] {
            Frame::decode(wrong, Vec::new()).unwrap_err();
        }
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused() {
        let frame = Frame { message: Message::Commit, bytes: vec![0; BYTES_MAX + 1] };
        assert!(frame.encode(0).unwrap_err().to_string().contains("41943041 of data"));
        frame.encode(0).unwrap_err();
        Frame::new(Message::Commit).encode(2).unwrap_err();
        let text = "x".repeat(JSON_BYTES_MAX);
        Frame::new(Message::Failed { cause: text }).encode(0).unwrap_err();
    }

    #[test]
    fn the_newest_version_that_both_know_is_used() {
        let of = |oldest, newest| Greeting { oldest, newest, ..Greeting::new("") };
        for (ours, theirs, common) in [
            ((1, 1), (1, 1), Some(1)),
            ((1, 2), (1, 1), Some(1)),
            ((2, 3), (1, 1), None),
            ((1, 2), (2, 4), Some(2)),
            ((1, 1), (3, 4), None),
        ] {
            let (ours, theirs) = (of(ours.0, ours.1), of(theirs.0, theirs.1));
            assert_eq!(ours.common_version(&theirs), common);
            assert_eq!(theirs.common_version(&ours), common);
        }
    }

    #[test]
    fn what_is_needed_and_not_known_is_named() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let ours = Greeting::new("");
        let theirs = |needs: &[&str]| Greeting { needs: names(needs), ..Greeting::new("") };
        assert_eq!(ours.missing(&theirs(&[])), None);
        assert_eq!(ours.missing(&theirs(&["vhost"])), None);
        assert_eq!(ours.missing(&theirs(&["pool", "vhost", "x"])), Some("`pool`, `x`".into()));
        // As a program says it that knows nothing of names.
        let json = br#"{"message":"greeting","oldest":1,"newest":2,"program":"0.2.0","pid":7}"#;
        let old = Frame::decode(json, Vec::new()).unwrap().message;
        let Message::Greeting(old) = old else { panic!("{old:?}") };
        assert_eq!((old.knows.len(), ours.missing(&old)), (0, None));
        assert_eq!(old.missing(&theirs(&["vhost"])), Some("`vhost`".into()));
    }
}
