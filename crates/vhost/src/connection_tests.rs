// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a front end has set, as bytes and back; by random messages.
use proptest::prelude::*;

use super::*;

type TestConnection = Connection<u32>;

fn request() -> impl Strategy<Value = Request> {
    let queue = || 0..4_u32;
    let region = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let region =
        region.prop_map(|(guest, len, user, offset)| RegionInfo { guest, len, user, offset });
    let info = (any::<u64>(), any::<u64>(), any::<u16>(), any::<u16>());
    let info = info.prop_map(|(len, offset, queues, queue_size)| InflightInfo {
        len,
        offset,
        queues,
        queue_size,
    });
    let addresses = (queue(), any::<u64>(), any::<u64>(), any::<u64>());
    let words = || (queue(), any::<u32>());
    let event = || (queue(), any::<bool>());
    prop_oneof![
        Just(Request::GetFeatures),
        any::<u64>().prop_map(Request::SetFeatures),
        Just(Request::SetOwner),
        Just(Request::ResetOwner),
        proptest::collection::vec(region, 1..=REGIONS_MAX).prop_map(Request::SetMemTable),
        words().prop_map(|(queue, size)| Request::SetVringNum { queue, size }),
        addresses.prop_map(|(queue, descriptors, used, available)| {
            let addresses = RingAddresses { descriptors, used, available };
            Request::SetVringAddr { queue, addresses }
        }),
        words().prop_map(|(queue, base)| Request::SetVringBase { queue, base }),
        queue().prop_map(|queue| Request::GetVringBase { queue }),
        event().prop_map(|(queue, given)| Request::SetVringKick { queue, given }),
        event().prop_map(|(queue, given)| Request::SetVringCall { queue, given }),
        event().prop_map(|(queue, given)| Request::SetVringErr { queue, given }),
        Just(Request::GetProtocolFeatures),
        any::<u64>().prop_map(Request::SetProtocolFeatures),
        Just(Request::GetQueueNum),
        event().prop_map(|(queue, enabled)| Request::SetVringEnable { queue, enabled }),
        Just(Request::SetBackendReqFd),
        (0..200_u32, 0..50_u32).prop_map(|(offset, len)| Request::GetConfig { offset, len }),
        Just(Request::SetConfig),
        info.clone().prop_map(Request::GetInflightFd),
        info.prop_map(Request::SetInflightFd),
        Just(Request::ResetDevice),
    ]
}

fn decoded(bytes: &[u8]) -> Result<Request, Error> {
    let (head, payload) = bytes.split_first_chunk().expect("a header");
    let header = Header::decode(head)?;
    assert_eq!(header.payload_bytes(), payload.len());
    Request::decode(&header, payload)
}

/// A connection on which these messages were handled, and a part of one more was received.
fn connection(requests: &[Request], half: Option<(&Request, usize)>) -> TestConnection {
    let (mut connection, mut next) = (Connection::default(), 0);
    let mut give = |request: &Request| {
        let descriptors: Vec<u32> = (next..).take(request.descriptors()).collect();
        next += 100;
        descriptors
    };
    for request in requests {
        let descriptors = give(request);
        connection.note(request, descriptors);
        if let Request::GetVringBase { queue } = request {
            connection.note_stop(*queue, 77);
        }
    }
    if let Some((request, cut)) = half {
        let bytes = request.encode();
        let bytes = bytes[..1 + cut % (bytes.len() - 1)].to_vec();
        connection.input = Input { bytes, descriptors: give(request) };
    }
    connection
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written(request in request()) {
        prop_assert_eq!(decoded(&request.encode()).unwrap(), request);
    }

    /// VH-X1: what another process decodes, and has handled, is what this one has.
    #[test]
    fn a_connection_crosses_whole(
        requests in proptest::collection::vec(request(), 0..24),
        half in proptest::option::of((request(), any::<usize>())),
    ) {
        let half = half.as_ref().map(|(request, cut)| (request, *cut));
        let connection = connection(&requests, half);
        let (bytes, descriptors) = connection.encode();
        let crossed: TestConnection = Connection::decode(&bytes, descriptors).unwrap();
        prop_assert_eq!(&crossed, &connection);
        let (mut again, messages) = crossed.begin_again();
        for (request, descriptors) in messages {
            again.note(&request, descriptors);
        }
        prop_assert_eq!(again, connection);
    }

    /// VH-X3.
    #[test]
    fn what_a_front_end_does_not_send_is_refused(
        bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES..64),
        count in 0..4_usize,
    ) {
        prop_assert!(TestConnection::decode(&bytes, vec![0; count]).is_err());
    }
}

#[test]
fn messages_that_set_nothing_and_wrong_descriptors_are_refused() {
    let kick = Request::SetVringKick { queue: 0, given: true };
    let stop = Request::GetVringBase { queue: 0 };
    for (request, descriptors) in [(&stop, 0), (&kick, 0), (&kick, 2), (&Request::SetOwner, 0)] {
        let decoded = TestConnection::decode(&request.encode(), vec![0; descriptors]);
        assert!(decoded.is_err(), "{request:?} with {descriptors}");
    }
    let half = &kick.encode()[..7];
    assert!(TestConnection::decode(half, vec![0; REGIONS_MAX + 1]).is_err());
    assert_eq!(TestConnection::decode(half, vec![5]).unwrap().input.descriptors, [5]);
}

#[test]
fn a_paused_queue_begins_where_it_was_stopped() {
    let given = true;
    let mut paused = connection(
        &[
            Request::SetVringBase { queue: 1, base: 3 },
            Request::SetVringKick { queue: 1, given },
            Request::SetVringBase { queue: 2, base: 9 },
        ],
        None,
    );
    paused.note_pause(1, 0xffff);
    let kicks = [(Request::SetVringKick { queue: 1, given }, vec![100])];
    assert_eq!(paused.kicks(), kicks, "the other one does not run");
    let base = |(request, _): (Request, Vec<u32>)| {
        let Request::SetVringBase { queue, base } = request else { return None };
        Some((queue, base))
    };
    let bases = paused.messages().into_iter().filter_map(base);
    assert_eq!(bases.collect::<Vec<_>>(), [(1, 0xffff), (2, 9)]);
    // One that the front end has stopped does not run either.
    paused.note_stop(1, 4);
    assert_eq!(paused.kicks(), []);
}
