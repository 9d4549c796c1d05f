// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the device tells the guest of itself: features, and the configuration space of virtio-blk.
use block::{Limits, Sector};

use crate::message::protocol;
use crate::request::{DATA_BYTES_MAX, RANGES_MAX};

/// Feature bits of virtio and of virtio-blk.
pub(crate) mod feature {
    pub(crate) const SIZE_MAX: u64 = 1 << 1;
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    /// Of vhost-user, not of the device: there are protocol features.
    pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// Queues that a device may have: as many as a virtual machine has processors.
pub(crate) const QUEUES_MAX: u16 = 128;

/// Segments of a request: what fits into a queue of 128 beside header and status, as drivers expect
/// it.
const SEGMENTS_MAX: u32 = 126;
/// Length of a segment. So a request has less than [`DATA_BYTES_MAX`].
const SEGMENT_BYTES_MAX: u32 = 256 << 10;
const _: () = assert!(SEGMENTS_MAX * SEGMENT_BYTES_MAX <= DATA_BYTES_MAX);
/// Longest discard: 2 GiB. Chosen: one request does not occupy the device for long.
const DISCARD_SECTORS_MAX: u32 = 4 << 20;
/// Longest write of zeroes where the device has none and zeroes are written: 32 MiB.
const WRITTEN_ZEROES_SECTORS_MAX: u32 = 64 << 10;

/// The best request where the device names none. Linux reads ahead by twice that, 256 KiB, and by
/// twice its largest request, 8 MiB, where a disk names none and seems to rotate, as all virtio
/// disks do: a read of 1 MiB in order took 3328 KiB from the disk (measured, Linux 7.3.4).
const IO_OPT_BYTES: u32 = 128 << 10;

/// Length of the configuration space that is filled; beyond it are zeroes.
const CONFIG_BYTES: usize = 60;

/// The features of a device with these limits.
pub(crate) fn features(limits: &Limits, read_only: bool) -> u64 {
    let mut all = feature::SIZE_MAX
        | feature::SEG_MAX
        | feature::BLK_SIZE
        | feature::TOPOLOGY
        | feature::MQ
        | feature::INDIRECT_DESC
        | feature::EVENT_IDX
        | feature::PROTOCOL_FEATURES
        | feature::VERSION_1;
    if limits.keeps {
        all |= feature::FLUSH;
    }
    if read_only {
        return all | feature::RO;
    }
    if limits.discard_granularity_bytes > 0 {
        all |= feature::DISCARD;
    }
    all | feature::WRITE_ZEROES
}

/// All features that this program knows.
pub(crate) fn features_known() -> u64 {
    let able = Limits { discard_granularity_bytes: 512, ..Limits::new(Sector(8)) };
    features(&able, false) | feature::FLUSH | feature::RO
}

/// The protocol features for a device.
pub(crate) fn protocol_features(outlives_process: bool) -> u64 {
    let all = protocol::MQ
        | protocol::REPLY_ACK
        | protocol::BACKEND_REQ
        | protocol::CONFIG
        | protocol::RESET_DEVICE;
    if outlives_process { all | protocol::INFLIGHT_SHMFD } else { all }
}

/// The part of the configuration space from `offset` on, `len` bytes, of a device with so many
/// queues.
pub(crate) fn config_space(
    limits: &Limits,
    queues: u16,
    read_only: bool,
    (offset, len): (u32, u32),
) -> Vec<u8> {
    let mut all = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| all[at..at + bytes.len()].copy_from_slice(bytes);
    let block = limits.logical_block_bytes;
    let in_blocks = |bytes: u32| bytes / block;
    put(0, &limits.capacity.0.to_le_bytes());
    put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &block.to_le_bytes());
    let exponent = in_blocks(limits.physical_block_bytes).max(1).ilog2();
    put(24, &[u8::try_from(exponent).expect("below 32")]);
    let io_min = u16::try_from(in_blocks(limits.io_min_bytes)).unwrap_or(u16::MAX);
    put(26, &io_min.to_le_bytes());
    let io_opt = match limits.io_opt_bytes {
        0 => IO_OPT_BYTES.next_multiple_of(limits.io_min_bytes.max(block)),
        named => named,
    };
    put(28, &in_blocks(io_opt).to_le_bytes());
    put(34, &queues.to_le_bytes());
    if !read_only {
        if limits.discard_granularity_bytes > 0 {
            put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
            put(40, &RANGES_MAX.to_le_bytes());
            put(44, &(limits.discard_granularity_bytes / 512).max(1).to_le_bytes());
        }
        let zeroes = match limits.write_zeroes {
            true => DISCARD_SECTORS_MAX,
            false => WRITTEN_ZEROES_SECTORS_MAX,
        };
        put(48, &zeroes.to_le_bytes());
        put(52, &1_u32.to_le_bytes());
        put(56, &[u8::from(limits.discard_granularity_bytes > 0)]);
    }
    let at = |n: u32| all.get(n as usize).copied().unwrap_or(0);
    (offset..offset + len).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn limits_are_told_in_the_units_of_virtio() {
        let limits = Limits {
            physical_block_bytes: 4096,
            io_min_bytes: 4096,
            io_opt_bytes: 1 << 20,
            discard_granularity_bytes: 65536,
            ..Limits::new(Sector(0x1_0000_0001))
        };
        let space = config_space(&limits, 6, false, (0, 64));
        assert_eq!(space.len(), 64);
        assert_eq!(space[..8], 0x1_0000_0001_u64.to_le_bytes());
        assert_eq!(
            (number(&space, 20), space[24], space[26], number(&space, 28)),
            (512, 3, 8, 2048)
        );
        assert_eq!((space[34], number(&space, 44), space[56]), (6, 128, 1));
        assert_eq!(number(&space, 48), WRITTEN_ZEROES_SECTORS_MAX);
        assert_eq!(config_space(&limits, 6, false, (20, 4)), space[20..24]);
        assert_eq!(config_space(&limits, 6, true, (36, 24)), [0; 24]);
        assert_eq!(config_space(&limits, 6, false, (250, 6)), [0; 6]);
    }

    #[test]
    fn a_best_request_is_told_where_the_device_names_none() {
        for (io_min_bytes, blocks) in [(512, 256), (4096, 256), (96 << 10, 384), (1 << 20, 2048)] {
            let limits = Limits { io_min_bytes, io_opt_bytes: 0, ..Limits::new(Sector(1 << 20)) };
            let space = config_space(&limits, 1, false, (0, 60));
            assert_eq!(number(&space, 28), blocks, "{io_min_bytes}");
        }
    }

    #[test]
    fn only_what_the_device_can_do_is_offered() {
        let plain = Limits { keeps: false, ..Limits::new(Sector(8)) };
        let all = features(&plain, false);
        assert_eq!(all & (feature::FLUSH | feature::DISCARD | feature::RO), 0);
        assert_ne!(all & feature::WRITE_ZEROES, 0);
        let able = Limits { discard_granularity_bytes: 512, ..Limits::new(Sector(8)) };
        assert_eq!(features(&able, false) & (feature::FLUSH | feature::DISCARD), 1 << 9 | 1 << 13);
        let writes = feature::DISCARD | feature::WRITE_ZEROES;
        assert_eq!(features(&able, true) & (writes | feature::RO), feature::RO);
        assert_eq!(protocol_features(false) & protocol::INFLIGHT_SHMFD, 0);
        assert_ne!(protocol_features(true) & protocol::INFLIGHT_SHMFD, 0);
    }
}
