// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of the control socket, as the vhost-user specification has them: pure functions of
//! bytes.
//!
//! ```text
//!   header   request u32 │ flags u32 │ size u32      flags: version 1, reply, need_reply
//!   payload  `size` bytes, by the request
//! ```
//!
//! The specification leaves the byte order to the machine; millpond serves front ends on
//! little-endian ones.
mod request_bytes;

use block::Error;

const _: () = assert!(cfg!(target_endian = "little"), "messages have the order of the machine");

/// Length of a header, bytes.
pub const HEADER_BYTES: usize = 12;
/// Longest payload that is received, bytes: the specification's longest are those of a memory table
/// of 8 regions and of a configuration space of 256 bytes.
pub const PAYLOAD_BYTES_MAX: usize = 512;
/// Regions of a memory table, and so descriptors of a message.
pub const REGIONS_MAX: usize = 8;
/// Length of a configuration space that front ends may ask for, bytes.
pub const CONFIG_BYTES_MAX: u32 = 256;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;
/// Of the number of a queue with a descriptor: there is no descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;
const QUEUE_MASK: u64 = 0xff;

/// Numbers of requests.
mod number {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_OWNER: u32 = 3;
    pub(super) const RESET_OWNER: u32 = 4;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const GET_QUEUE_NUM: u32 = 17;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(super) const GET_CONFIG: u32 = 24;
    pub(super) const SET_CONFIG: u32 = 25;
    pub(super) const GET_INFLIGHT_FD: u32 = 31;
    pub(super) const SET_INFLIGHT_FD: u32 = 32;
    pub(super) const RESET_DEVICE: u32 = 34;
}

/// To the front end, on its own socket for that: the configuration space has changed.
const BACKEND_CONFIG_CHANGE: u32 = 2;

/// Bits of the protocol's features.
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// A front end may ask for an answer to every request.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The front end gives a socket for requests to it.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The configuration space comes from here.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests in flight are noted in memory that outlives this process.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
}

/// A region of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// First address in the guest.
    pub guest: u64,
    /// Length, bytes.
    pub len: u64,
    /// First address in the front end.
    pub user: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
}

/// Where the parts of a queue are, as addresses of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// The table of descriptors.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
}

/// Memory for the requests in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InflightInfo {
    /// Length, bytes.
    pub len: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
    /// Queues that it is for.
    pub queues: u16,
    /// Entries of each.
    pub queue_size: u16,
}

/// A request of the front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the device's features.
    GetFeatures,
    /// The features that the driver has accepted.
    SetFeatures(u64),
    /// Begins a session.
    SetOwner,
    /// Ends one. Out of use.
    ResetOwner,
    /// The guest's memory, with a descriptor for each region.
    SetMemTable(Vec<RegionInfo>),
    /// The size of a queue.
    SetVringNum {
        /// Its number.
        queue: u32,
        /// Entries.
        size: u32,
    },
    /// Where a queue is.
    SetVringAddr {
        /// Its number.
        queue: u32,
        /// The addresses.
        addresses: RingAddresses,
    },
    /// The index of the next entry to take from a queue.
    SetVringBase {
        /// Its number.
        queue: u32,
        /// The index.
        base: u32,
    },
    /// Stops a queue, and asks for the index of the next entry to take.
    GetVringBase {
        /// Its number.
        queue: u32,
    },
    /// The eventfd by which the guest says that a queue has entries; `given` without one.
    SetVringKick {
        /// Its number.
        queue: u32,
        /// Whether a descriptor is with it.
        given: bool,
    },
    /// The eventfd for used entries.
    SetVringCall {
        /// The queue's number.
        queue: u32,
        /// Whether a descriptor is with it.
        given: bool,
    },
    /// The eventfd for errors, of which nothing is done.
    SetVringErr {
        /// The queue's number.
        queue: u32,
        /// Whether a descriptor is with it.
        given: bool,
    },
    /// Asks for the features of the protocol.
    GetProtocolFeatures,
    /// Those that the front end uses.
    SetProtocolFeatures(u64),
    /// Asks how many queues there may be.
    GetQueueNum,
    /// Enables or disables a queue.
    SetVringEnable {
        /// Its number.
        queue: u32,
        /// Whether it is enabled.
        enabled: bool,
    },
    /// The socket for requests to the front end.
    SetBackendReqFd,
    /// Asks for a part of the configuration space.
    GetConfig {
        /// First byte.
        offset: u32,
        /// Length, bytes.
        len: u32,
    },
    /// Changes a part of the configuration space.
    SetConfig,
    /// Asks for memory for requests in flight.
    GetInflightFd(InflightInfo),
    /// The memory for requests in flight.
    SetInflightFd(InflightInfo),
    /// Stops all and forgets what was negotiated.
    ResetDevice,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    request: u32,
    flags: u32,
    len: u32,
}

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing but, where asked for, that it was done.
    Done,
    /// A number.
    Number(u64),
    /// The index of a queue's next entry.
    Base {
        /// The queue.
        queue: u32,
        /// The index.
        base: u16,
    },
    /// A part of the configuration space.
    Config {
        /// First byte.
        offset: u32,
        /// The part; empty: there is no such part.
        bytes: Vec<u8>,
    },
    /// Memory for requests in flight; its descriptor goes with it.
    Inflight(InflightInfo),
}

fn wrong(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("message of the front end: {why}"))
}

/// Reads a payload from the front.
struct Payload<'a>(&'a [u8]);

impl Payload<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(|| wrong("it is too short"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Error> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.take().map(u64::from_le_bytes)
    }

    fn region(&mut self) -> Result<RegionInfo, Error> {
        let (guest, len, user, offset) = (self.u64()?, self.u64()?, self.u64()?, self.u64()?);
        Ok(RegionInfo { guest, len, user, offset })
    }

    fn inflight(&mut self) -> Result<InflightInfo, Error> {
        let (len, offset) = (self.u64()?, self.u64()?);
        Ok(InflightInfo { len, offset, queues: self.u16()?, queue_size: self.u16()? })
    }

    /// A queue and whether a descriptor is given for it.
    fn queue_event(&mut self) -> Result<(u32, bool), Error> {
        let word = self.u64()?;
        let queue = u32::try_from(word & QUEUE_MASK).expect("eight bits");
        Ok((queue, word & NO_DESCRIPTOR == 0))
    }

    fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(wrong("it is too long")) }
    }
}

impl Header {
    /// Decodes a header and checks it.
    ///
    /// # Errors
    /// When it is none of a request of version 1, or the payload is too long.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Error> {
        let mut fields = Payload(bytes);
        let (request, flags, len) = (fields.u32()?, fields.u32()?, fields.u32()?);
        if flags & VERSION_MASK != VERSION {
            return Err(wrong(format_args!("version {}: must be 1", flags & VERSION_MASK)));
        }
        if flags & FLAG_REPLY != 0 {
            return Err(wrong("a reply: nothing was asked"));
        }
        if len as usize > PAYLOAD_BYTES_MAX {
            let most = PAYLOAD_BYTES_MAX;
            return Err(wrong(format_args!("{len} bytes of payload: at most {most} are allowed")));
        }
        Ok(Header { request, flags, len })
    }

    /// Length of the payload that follows, bytes; at most [`PAYLOAD_BYTES_MAX`].
    pub fn payload_bytes(&self) -> usize {
        self.len as usize
    }

    /// Whether the front end waits for an answer, if that was negotiated.
    pub fn needs_reply(&self) -> bool {
        self.flags & FLAG_NEED_REPLY != 0
    }
}

impl Request {
    /// Decodes the payload of a message.
    ///
    /// # Errors
    /// For a request that is not known, and a payload of another length.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Request, Error> {
        let mut fields = Payload(payload);
        let request = match header.request {
            number::GET_FEATURES => Request::GetFeatures,
            number::SET_FEATURES => Request::SetFeatures(fields.u64()?),
            number::SET_OWNER => Request::SetOwner,
            number::RESET_OWNER => Request::ResetOwner,
            number::SET_MEM_TABLE => {
                let (count, _padding) = (fields.u32()? as usize, fields.u32()?);
                if count == 0 || count > REGIONS_MAX {
                    let allowed = format!("{count} regions: 1 to {REGIONS_MAX} are allowed");
                    return Err(wrong(allowed));
                }
                let regions = (0..count).map(|_| fields.region());
                Request::SetMemTable(regions.collect::<Result<_, Error>>()?)
            }
            number::SET_VRING_NUM => {
                Request::SetVringNum { queue: fields.u32()?, size: fields.u32()? }
            }
            number::SET_VRING_ADDR => {
                let (queue, _flags) = (fields.u32()?, fields.u32()?);
                let (descriptors, used, available) = (fields.u64()?, fields.u64()?, fields.u64()?);
                fields.u64()?; // of a log of dirty pages, which is not offered
                let addresses = RingAddresses { descriptors, used, available };
                Request::SetVringAddr { queue, addresses }
            }
            number::SET_VRING_BASE => {
                Request::SetVringBase { queue: fields.u32()?, base: fields.u32()? }
            }
            number::GET_VRING_BASE => {
                let (queue, _) = (fields.u32()?, fields.u32()?);
                Request::GetVringBase { queue }
            }
            number::SET_VRING_KICK => {
                let (queue, given) = fields.queue_event()?;
                Request::SetVringKick { queue, given }
            }
            number::SET_VRING_CALL => {
                let (queue, given) = fields.queue_event()?;
                Request::SetVringCall { queue, given }
            }
            number::SET_VRING_ERR => {
                let (queue, given) = fields.queue_event()?;
                Request::SetVringErr { queue, given }
            }
            number::GET_PROTOCOL_FEATURES => Request::GetProtocolFeatures,
            number::SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(fields.u64()?),
            number::GET_QUEUE_NUM => Request::GetQueueNum,
            number::SET_VRING_ENABLE => {
                Request::SetVringEnable { queue: fields.u32()?, enabled: fields.u32()? != 0 }
            }
            number::SET_BACKEND_REQ_FD => {
                fields.0 = &[]; // some front ends send a number that means nothing
                Request::SetBackendReqFd
            }
            number::GET_CONFIG => {
                let (offset, len, _flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
                let room = fields.0.len();
                fields.0 = &[]; // room for the answer
                if offset.checked_add(len).is_none_or(|end| end > CONFIG_BYTES_MAX)
                    || room != len as usize
                {
                    return Err(wrong("a part of the configuration space that there is not"));
                }
                Request::GetConfig { offset, len }
            }
            number::SET_CONFIG => {
                fields.0 = &[];
                Request::SetConfig
            }
            number::GET_INFLIGHT_FD => {
                let info = fields.inflight()?;
                fields.0 = &[]; // padding of the front end's structure
                Request::GetInflightFd(info)
            }
            number::SET_INFLIGHT_FD => {
                let info = fields.inflight()?;
                fields.0 = &[];
                Request::SetInflightFd(info)
            }
            number::RESET_DEVICE => Request::ResetDevice,
            other => return Err(wrong(format_args!("request {other} is not known"))),
        };
        fields.end()?;
        Ok(request)
    }

    /// How many descriptors come with it.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::SetMemTable(regions) => regions.len(),
            Request::SetVringKick { given, .. }
            | Request::SetVringCall { given, .. }
            | Request::SetVringErr { given, .. } => usize::from(*given),
            Request::SetBackendReqFd | Request::SetInflightFd(_) => 1,
            Request::GetFeatures
            | Request::SetFeatures(_)
            | Request::SetOwner
            | Request::ResetOwner
            | Request::SetVringNum { .. }
            | Request::SetVringAddr { .. }
            | Request::SetVringBase { .. }
            | Request::GetVringBase { .. }
            | Request::GetProtocolFeatures
            | Request::SetProtocolFeatures(_)
            | Request::GetQueueNum
            | Request::SetVringEnable { .. }
            | Request::GetConfig { .. }
            | Request::SetConfig
            | Request::GetInflightFd(_)
            | Request::ResetDevice => 0,
        }
    }
}

impl Answer {
    /// The message that answers a request with this header.
    pub fn encode(&self, to: &Header) -> Vec<u8> {
        let mut payload = Vec::new();
        match self {
            Answer::Done => payload.extend(0_u64.to_le_bytes()),
            Answer::Number(number) => payload.extend(number.to_le_bytes()),
            Answer::Base { queue, base } => {
                payload.extend(queue.to_le_bytes());
                payload.extend(u32::from(*base).to_le_bytes());
            }
            Answer::Config { offset, bytes } => {
                if !bytes.is_empty() {
                    let len = u32::try_from(bytes.len()).expect("at most 256");
                    payload.extend(offset.to_le_bytes());
                    payload.extend(len.to_le_bytes());
                    payload.extend(0_u32.to_le_bytes());
                    payload.extend(bytes);
                }
            }
            Answer::Inflight(info) => {
                payload.extend(info.len.to_le_bytes());
                payload.extend(info.offset.to_le_bytes());
                payload.extend(info.queues.to_le_bytes());
                payload.extend(info.queue_size.to_le_bytes());
                // As long as the front end's structure, which has padding.
                payload.resize((to.len as usize).clamp(payload.len(), PAYLOAD_BYTES_MAX), 0);
            }
        }
        encode(to.request, VERSION | FLAG_REPLY, &payload)
    }
}

fn encode(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("at most PAYLOAD_BYTES_MAX");
    let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
    for word in [request, flags, len] {
        message.extend(word.to_le_bytes());
    }
    message.extend(payload);
    message
}

/// The message by which the front end learns that the configuration space has changed.
pub fn config_change() -> Vec<u8> {
    encode(BACKEND_CONFIG_CHANGE, VERSION, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(request: u32, flags: u32, len: u32) -> [u8; HEADER_BYTES] {
        let bytes = encode(request, flags, &[]);
        let mut header: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
        header[8..].copy_from_slice(&len.to_le_bytes());
        header
    }

    fn decode(request: u32, payload: &[u8]) -> Result<Request, Error> {
        let len = u32::try_from(payload.len()).unwrap();
        let header = Header::decode(&header(request, VERSION, len)).unwrap();
        assert_eq!(header.payload_bytes(), payload.len());
        Request::decode(&header, payload)
    }

    fn words(all: &[u64]) -> Vec<u8> {
        all.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn headers_of_another_version_or_length_are_refused() {
        for (flags, len) in [(0, 0), (2, 0), (VERSION | FLAG_REPLY, 0), (VERSION, 513)] {
            assert!(Header::decode(&header(1, flags, len)).is_err(), "{flags} {len}");
        }
        let asked = Header::decode(&header(1, VERSION | FLAG_NEED_REPLY, 512)).unwrap();
        assert!(asked.needs_reply());
    }

    #[test]
    fn a_memory_table_has_a_descriptor_for_each_region() {
        let payload = words(&[2, 1, 2, 3, 4, 5, 6, 7, 8]);
        let table = decode(number::SET_MEM_TABLE, &payload).unwrap();
        let first = RegionInfo { guest: 1, len: 2, user: 3, offset: 4 };
        let second = RegionInfo { guest: 5, len: 6, user: 7, offset: 8 };
        assert_eq!(table, Request::SetMemTable(vec![first, second]));
        assert_eq!(table.descriptors(), 2);
        for payload in [words(&[0]), words(&[9]), words(&[2, 1, 2, 3, 4]), words(&[u64::MAX])] {
            assert!(decode(number::SET_MEM_TABLE, &payload).is_err());
        }
    }

    #[test]
    fn a_queue_event_may_come_without_a_descriptor() {
        let with = decode(number::SET_VRING_KICK, &words(&[3])).unwrap();
        assert_eq!(
            (with.descriptors(), with),
            (1, Request::SetVringKick { queue: 3, given: true })
        );
        let without = decode(number::SET_VRING_CALL, &words(&[0x103])).unwrap();
        assert_eq!(without, Request::SetVringCall { queue: 3, given: false });
        assert_eq!(without.descriptors(), 0);
    }

    #[test]
    fn payloads_of_another_length_are_refused() {
        for (request, len) in [
            (number::GET_FEATURES, 8),
            (number::SET_FEATURES, 4),
            (number::SET_VRING_NUM, 12),
            (number::SET_VRING_ADDR, 32),
            (number::GET_CONFIG, 8),
            (number::SET_INFLIGHT_FD, 16),
            (99, 0),
        ] {
            assert!(decode(request, &vec![0; len]).is_err(), "{request}: {len} bytes");
        }
    }

    #[test]
    fn a_part_of_the_configuration_space_lies_in_256_bytes() {
        let ask = |offset: u32, len: u32, room: usize| {
            let mut payload: Vec<u8> =
                [offset, len, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
            payload.resize(payload.len() + room, 0);
            decode(number::GET_CONFIG, &payload)
        };
        assert_eq!(ask(8, 60, 60).unwrap(), Request::GetConfig { offset: 8, len: 60 });
        assert!(ask(200, 57, 57).is_err() && ask(u32::MAX, 2, 2).is_err());
        assert!(ask(0, 60, 59).is_err());
    }

    #[test]
    fn answers_have_the_request_and_the_reply_flag() {
        let to = Header::decode(&header(number::GET_VRING_BASE, VERSION, 8)).unwrap();
        let bytes = Answer::Base { queue: 1, base: 0xffff }.encode(&to);
        let want = [11, 5, 8, 1, 0xffff].map(u32::to_le_bytes).concat();
        assert_eq!(bytes, want);
        let to = Header::decode(&header(number::GET_CONFIG, VERSION, 72)).unwrap();
        let none = Answer::Config { offset: 0, bytes: Vec::new() }.encode(&to);
        assert_eq!(none.len(), HEADER_BYTES, "an empty payload: there is no such part");
        assert_eq!(config_change(), [2, 1, 0].map(u32::to_le_bytes).concat());
    }
}
