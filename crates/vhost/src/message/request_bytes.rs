// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests as bytes, as a front end sends them: so a session crosses to another process.
use super::{
    InflightInfo, NO_DESCRIPTOR, QUEUE_MASK, REGIONS_MAX, Request, VERSION, encode, number,
};

fn words(all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn numbers(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn queue_event(queue: u32, given: bool) -> Vec<u8> {
    let flag = if given { 0 } else { NO_DESCRIPTOR };
    numbers(&[u64::from(queue) & QUEUE_MASK | flag])
}

fn inflight(info: &InflightInfo) -> Vec<u8> {
    let mut payload = numbers(&[info.len, info.offset]);
    payload.extend([info.queues, info.queue_size].iter().flat_map(|n| n.to_le_bytes()));
    payload
}

impl Request {
    /// The message, without a wish for an answer.
    pub fn encode(&self) -> Vec<u8> {
        let (request, payload) = self.parts();
        encode(request, VERSION, &payload)
    }

    fn parts(&self) -> (u32, Vec<u8>) {
        match self {
            Request::GetFeatures => (number::GET_FEATURES, Vec::new()),
            Request::SetFeatures(accepted) => (number::SET_FEATURES, numbers(&[*accepted])),
            Request::SetOwner => (number::SET_OWNER, Vec::new()),
            Request::ResetOwner => (number::RESET_OWNER, Vec::new()),
            Request::SetMemTable(regions) => {
                assert!(regions.len() <= REGIONS_MAX, "as it was decoded");
                let count = u32::try_from(regions.len()).expect("few");
                let mut payload = words(&[count, 0]);
                for region in regions {
                    payload.extend(numbers(&[
                        region.guest,
                        region.len,
                        region.user,
                        region.offset,
                    ]));
                }
                (number::SET_MEM_TABLE, payload)
            }
            Request::SetVringNum { queue, size } => {
                (number::SET_VRING_NUM, words(&[*queue, *size]))
            }
            Request::SetVringAddr { queue, addresses } => {
                let mut payload = words(&[*queue, 0]);
                let of_log = 0;
                let places = [addresses.descriptors, addresses.used, addresses.available, of_log];
                payload.extend(numbers(&places));
                (number::SET_VRING_ADDR, payload)
            }
            Request::SetVringBase { queue, base } => {
                (number::SET_VRING_BASE, words(&[*queue, *base]))
            }
            Request::GetVringBase { queue } => (number::GET_VRING_BASE, words(&[*queue, 0])),
            Request::SetVringKick { queue, given } => {
                (number::SET_VRING_KICK, queue_event(*queue, *given))
            }
            Request::SetVringCall { queue, given } => {
                (number::SET_VRING_CALL, queue_event(*queue, *given))
            }
            Request::SetVringErr { queue, given } => {
                (number::SET_VRING_ERR, queue_event(*queue, *given))
            }
            Request::GetProtocolFeatures => (number::GET_PROTOCOL_FEATURES, Vec::new()),
            Request::SetProtocolFeatures(used) => {
                (number::SET_PROTOCOL_FEATURES, numbers(&[*used]))
            }
            Request::GetQueueNum => (number::GET_QUEUE_NUM, Vec::new()),
            Request::SetVringEnable { queue, enabled } => {
                (number::SET_VRING_ENABLE, words(&[*queue, u32::from(*enabled)]))
            }
            Request::SetBackendReqFd => (number::SET_BACKEND_REQ_FD, Vec::new()),
            Request::GetConfig { offset, len } => {
                let mut payload = words(&[*offset, *len, 0]);
                payload.resize(payload.len() + *len as usize, 0);
                (number::GET_CONFIG, payload)
            }
            Request::SetConfig => (number::SET_CONFIG, Vec::new()),
            Request::GetInflightFd(info) => (number::GET_INFLIGHT_FD, inflight(info)),
            Request::SetInflightFd(info) => (number::SET_INFLIGHT_FD, inflight(info)),
            Request::ResetDevice => (number::RESET_DEVICE, Vec::new()),
        }
    }
}
