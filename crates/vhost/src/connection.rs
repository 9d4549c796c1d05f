// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a front end has set on its connection, with the descriptors that came with it: enough for
//! this process to start the queues again, and for another one to go on with the connection.
//!
//! ```text
//!   thread    message ─▶ note ─▶ ... paused: encode ─▶ bytes and descriptors
//!   next one  decode ─▶ messages: the session handles them, as if the front end had sent them
//! ```
//!
//! The bytes are messages of the protocol, which every version of the program understands. The last
//! one may be half: its rest is still to come on the socket.
//!
//! Invariants
//! - VH-X1 A session that handles [`Connection::messages`] is one in which the front end has set
//!   the same, and whose queues begin where they were stopped.
//! - VH-X2 Bytes that were received are in a message that was handled or in the input that is kept:
//!   no message is lost or handled twice.
//! - VH-X3 What is decoded is checked as what a front end sends.
use std::collections::{BTreeMap, VecDeque};

use block::Error;

use crate::message::{
    HEADER_BYTES, Header, InflightInfo, REGIONS_MAX, RegionInfo, Request, RingAddresses, protocol,
};

/// Bytes that were received and are no whole message yet, and the descriptors that came with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input<D> {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptors.
    pub descriptors: Vec<D>,
}

impl<D> Default for Input<D> {
    fn default() -> Input<D> {
        Input { bytes: Vec::new(), descriptors: Vec::new() }
    }
}

/// What the front end has set of a queue. With a kick it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct QueueSettings<D> {
    size: Option<u32>,
    base: u32,
    addresses: Option<RingAddresses>,
    enabled: Option<bool>,
    call: Option<D>,
    kick: Option<D>,
}

impl<D> Default for QueueSettings<D> {
    fn default() -> QueueSettings<D> {
        let (size, addresses, enabled) = (None, None, None);
        QueueSettings { size, base: 0, addresses, enabled, call: None, kick: None }
    }
}

/// See the module; `D` is a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection<D> {
    features: Option<u64>,
    protocol: Option<u64>,
    channel: Option<D>,
    inflight: Option<(InflightInfo, D)>,
    memory: Option<(Vec<RegionInfo>, Vec<D>)>,
    queues: BTreeMap<u32, QueueSettings<D>>,
    /// What was received of the next message.
    pub input: Input<D>,
}

impl<D> Default for Connection<D> {
    fn default() -> Connection<D> {
        Connection {
            features: None,
            protocol: None,
            channel: None,
            inflight: None,
            memory: None,
            queues: BTreeMap::new(),
            input: Input::default(),
        }
    }
}

impl<D: Clone> Connection<D> {
    fn queue(&mut self, number: u32) -> &mut QueueSettings<D> {
        self.queues.entry(number).or_default()
    }

    /// Notes a message that was handled, and the descriptors that came with it. Returns whether it
    /// is among those that set all anew.
    pub fn note(&mut self, request: &Request, mut descriptors: Vec<D>) -> bool {
        match request {
            Request::SetFeatures(accepted) => self.features = Some(*accepted),
            Request::SetProtocolFeatures(used) => self.protocol = Some(*used),
            Request::SetMemTable(infos) => self.memory = Some((infos.clone(), descriptors)),
            Request::SetInflightFd(info) => {
                self.inflight = descriptors.pop().map(|file| (*info, file));
            }
            Request::SetBackendReqFd => self.channel = descriptors.pop(),
            Request::SetVringNum { queue, size } => self.queue(*queue).size = Some(*size),
            Request::SetVringAddr { queue, addresses } => {
                self.queue(*queue).addresses = Some(*addresses);
            }
            Request::SetVringBase { queue, base } => self.queue(*queue).base = *base,
            Request::SetVringKick { queue, given } => {
                self.queue(*queue).kick = descriptors.pop();
                return *given;
            }
            Request::SetVringCall { queue, given } => {
                self.queue(*queue).call = descriptors.pop();
                return *given;
            }
            Request::SetVringEnable { queue, enabled } => {
                self.queue(*queue).enabled = Some(*enabled);
            }
            Request::ResetOwner | Request::ResetDevice => {
                self.queues.clear();
                (self.features, self.inflight) = (None, None);
                return false;
            }
            // Those that only ask, and those of which nothing is done.
            Request::GetFeatures
            | Request::SetOwner
            | Request::GetVringBase { .. }
            | Request::SetVringErr { .. }
            | Request::GetProtocolFeatures
            | Request::GetQueueNum
            | Request::GetConfig { .. }
            | Request::SetConfig
            | Request::GetInflightFd(_) => return false,
        }
        true
    }

    /// The front end has stopped a queue.
    pub fn note_stop(&mut self, queue: u32, base: u16) {
        let queue = self.queue(queue);
        (queue.base, queue.kick) = (base.into(), None);
    }

    /// A queue was paused: it begins here when it is started again.
    pub fn note_pause(&mut self, queue: u32, base: u16) {
        self.queue(queue).base = base.into();
    }

    /// Whether the front end may ask for an answer to every request.
    pub fn acknowledges(&self) -> bool {
        self.protocol.is_some_and(|used| used & protocol::REPLY_ACK != 0)
    }

    /// Features that the front end has accepted: an earlier process has offered them.
    pub fn features(&self) -> u64 {
        self.features.unwrap_or(0)
    }

    /// The messages that start the queues again which were paused.
    pub fn kicks(&self) -> Vec<(Request, Vec<D>)> {
        let kick = |(queue, settings): (&u32, &QueueSettings<D>)| {
            let kick = settings.kick.clone()?;
            Some((Request::SetVringKick { queue: *queue, given: true }, vec![kick]))
        };
        self.queues.iter().filter_map(kick).collect()
    }

    /// For a session that is made anew: the messages that set all, and a connection that has
    /// handled none of them.
    pub fn begin_again(self) -> (Connection<D>, Vec<(Request, Vec<D>)>) {
        let messages = self.messages();
        (Connection { input: self.input, ..Connection::default() }, messages)
    }

    /// The messages that set all anew (VH-X1).
    pub fn messages(&self) -> Vec<(Request, Vec<D>)> {
        let mut all: Vec<(Request, Vec<D>)> = Vec::new();
        let mut set = |request: Option<Request>| all.extend(request.map(|it| (it, Vec::new())));
        set(self.features.map(Request::SetFeatures));
        set(self.protocol.map(Request::SetProtocolFeatures));
        let with = |descriptor: &D| vec![descriptor.clone()];
        all.extend(self.channel.as_ref().map(|one| (Request::SetBackendReqFd, with(one))));
        let inflight = self.inflight.as_ref();
        all.extend(inflight.map(|(info, file)| (Request::SetInflightFd(*info), with(file))));
        let memory = self.memory.clone();
        all.extend(memory.map(|(infos, files)| (Request::SetMemTable(infos), files)));
        for (&queue, settings) in &self.queues {
            let QueueSettings { size, base, addresses, enabled, call, kick } = settings;
            let mut set = |request: Option<Request>| all.extend(request.map(|it| (it, Vec::new())));
            set(size.map(|size| Request::SetVringNum { queue, size }));
            set(Some(Request::SetVringBase { queue, base: *base }));
            set(addresses.map(|addresses| Request::SetVringAddr { queue, addresses }));
            set(enabled.map(|enabled| Request::SetVringEnable { queue, enabled }));
            let given = true;
            let call = call.as_ref();
            all.extend(call.map(|call| (Request::SetVringCall { queue, given }, with(call))));
            // It starts the queue.
            let kick = kick.as_ref();
            all.extend(kick.map(|kick| (Request::SetVringKick { queue, given }, with(kick))));
        }
        all
    }

    /// All of it: bytes, and the descriptors that come with them, in order.
    pub fn encode(&self) -> (Vec<u8>, Vec<D>) {
        let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
        for (request, with) in self.messages() {
            bytes.extend(request.encode());
            descriptors.extend(with);
        }
        bytes.extend(&self.input.bytes);
        descriptors.extend(self.input.descriptors.iter().cloned());
        (bytes, descriptors)
    }

    /// The connection that was encoded.
    ///
    /// # Errors
    /// When it has another message than [`Connection::messages`] has, another number of
    /// descriptors, or one that can't be (VH-X3).
    pub fn decode(bytes: &[u8], descriptors: Vec<D>) -> Result<Connection<D>, Error> {
        let wrong = |why: &str| Error::invalid(format!("connection of a front end: {why}"));
        let (mut connection, mut rest) = (Connection::default(), bytes);
        let mut descriptors = VecDeque::from(descriptors);
        while let Some((head, payload)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let header = Header::decode(head)?;
            let Some((payload, after)) = payload.split_at_checked(header.payload_bytes()) else {
                break;
            };
            let request = Request::decode(&header, payload)?;
            let count = request.descriptors();
            if count > descriptors.len() {
                return Err(wrong("descriptors are missing"));
            }
            let given = descriptors.drain(..count).collect();
            if !connection.note(&request, given) || header.needs_reply() {
                return Err(wrong("a message that sets nothing"));
            }
            rest = after;
        }
        if descriptors.len() > REGIONS_MAX || rest.is_empty() && !descriptors.is_empty() {
            return Err(wrong("too many descriptors"));
        }
        connection.input = Input { bytes: rest.to_vec(), descriptors: descriptors.into() };
        Ok(connection)
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
