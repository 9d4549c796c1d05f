// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors: how many this process may have, and how many of them clients may take.
//!
//! Invariant
//! - HO-DE1 Clients, however many connect, leave descriptors to the operator: for verbs, and for
//!   the devices that they open.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that no client gets: those of a daemon without devices are about 30, and the
/// operator has the rest. Chosen.
const KEPT: u64 = 64;

/// Places where descriptors are plenty, as by systemd's limit of 524288. Those of NBD are nbd's
/// own; of the control API a waiting request has a task and a socket, and may have work in progress
/// on core 0; of metrics there are more than a flood by one machine has threads.
/// Queues of virtual machines are those of 32 machines of 128 processors.
const MOST: Places =
    Places { nbd: 256, nbd_local: 64, control: 64, waiting: 512, metrics: 128, guest_queues: 4096 };

/// Descriptors that a queue of a virtual machine takes.
const OF_GUEST_QUEUE: u64 = 4;

/// Most places of clients, by the limit of descriptors. Each takes one descriptor, but for queues
/// of virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Connections of NBD, and how many of them are for local sockets only.
    pub(crate) nbd: usize,
    pub(crate) nbd_local: usize,
    /// Connections to the control API, of each kind of listener, and requests that wait.
    pub(crate) control: usize,
    pub(crate) waiting: usize,
    pub(crate) metrics: usize,
    /// Queues of all virtual machines: [`OF_GUEST_QUEUE`] descriptors each.
    pub(crate) guest_queues: usize,
}

impl Places {
    /// Those of this process.
    pub(crate) fn of_process() -> Places {
        Places::by_limit(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn by_limit(limit: u64) -> Places {
        let part = |of: u64, most: usize| {
            let places = usize::try_from(limit.saturating_sub(KEPT) / of).unwrap_or(usize::MAX);
            places.max(4).min(most)
        };
        Places {
            nbd: part(2, MOST.nbd),
            nbd_local: part(8, MOST.nbd_local),
            control: part(16, MOST.control),
            waiting: part(16, MOST.waiting),
            metrics: part(16, MOST.metrics),
            guest_queues: part(6 * OF_GUEST_QUEUE, MOST.guest_queues),
        }
    }
}

/// Lets this process have as many descriptors as the system allows: a queue of a virtual machine
/// takes four, a file, a socket and a client one each.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(e) = raised {
        tracing::warn!(limit = limit.current, "the number of open files stays limited: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_descriptors_is_the_hard_one() {
        raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    /// HO-DE1
    #[test]
    fn clients_leave_descriptors_to_the_operator() {
        for limit in [128, 256, 1024, 4096, 1 << 19] {
            let Places { nbd, nbd_local, control, waiting, metrics, guest_queues } =
                Places::by_limit(limit);
            // Local sockets and TCP have places of their own.
            let clients = nbd + 2 * (control + waiting) + metrics;
            let all = clients as u64 + OF_GUEST_QUEUE * guest_queues as u64;
            assert!(all + KEPT / 2 <= limit, "{limit}: {all}");
            assert!(nbd_local < nbd && control >= 4, "{limit}");
        }
        assert_eq!(Places::by_limit(1 << 19), MOST);
    }
}
