// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cores that serve block devices, and which of them serve the queues of one.
use std::rc::Rc;
use std::sync::Arc;

use block::{Budget, CoreId, Reservation};
use dm::MappedDevice;
use reactor::{CoreLocal, call};
use ublk::{ByteBudget, TAG_BUFFER_BYTES};

use super::kernel_devices::DEPTH;
use super::memory_pressure;
use crate::secondary::Owner;

/// A core, and the bytes that requests of its queues may have in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueCore {
    pub(super) core: CoreId,
    /// A [`ByteBudget`] of that core.
    pub(super) budget: CoreLocal,
}

/// All cores, core 0 first.
pub(super) struct QueueCores {
    pub(super) owner: Rc<Owner>,
    all: Vec<QueueCore>,
    /// For buffers of tags.
    tags: Arc<Budget>,
}

impl QueueCores {
    /// Prepares `cores`, which have `bytes_max` in memory together: half of it is for devices whose
    /// data the kernel copies.
    pub(super) async fn new(owner: Rc<Owner>, cores: &[CoreId], bytes_max: u64) -> QueueCores {
        let count = u64::try_from(cores.len()).expect("at most 16");
        // A request that is larger than the share of a core goes alone.
        let share = bytes_max / 2 / count;
        let mut all = Vec::new();
        for core in cores {
            let prepare = move || {
                // For a daemon that was not started for block devices.
                memory_pressure::prepare_thread();
                std::future::ready(CoreLocal::keep(ByteBudget::new(share)))
            };
            all.push(QueueCore { core: *core, budget: call(*core, prepare).await });
        }
        let tags = Arc::new(Budget::new(bytes_max / 2, "half of what block devices may take"));
        QueueCores { owner, all, tags }
    }

    /// The cores that serve a device: all, if each has it itself; else core 0. The device in the
    /// kernel is made with a queue for each.
    pub(super) fn of(&self, device: &MappedDevice) -> &[QueueCore] {
        let is_on_all = self.owner.can_be_on_every_core(device);
        if is_on_all { &self.all } else { &self.all[..1] }
    }

    /// Memory for the buffers of all tags of a device with so many queues; none when too many
    /// devices have such: then its queues copy data (user copy), in memory that all share.
    pub(super) fn reserve_tags(&self, queues: u16) -> Option<Reservation> {
        let bytes = u64::from(queues) * u64::from(DEPTH) * u64::from(TAG_BUFFER_BYTES);
        self.tags.reserve(bytes, "a block device").ok()
    }
}

block::debug_as!(QueueCores, s => "QueueCores({:?})", s.all);
