// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface of the kernel's ublk driver: numbers and structures, as in its header
//! `linux/ublk_cmd.h`.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The device for control commands.
pub(crate) const CONTROL_PATH: &str = "/dev/ublk-control";

/// Largest request that the kernel sends where the server copies data, bytes. Chosen: the largest
/// pooled buffer.
pub const MAX_IO_BYTES: u32 = 1 << 20;

/// The same where the kernel copies data: the size of each tag's buffer. Chosen: a queue of 128
/// tags has 32 MiB at most, and a request more for each 256 KiB costs little beside their copy.
pub const TAG_BUFFER_BYTES: u32 = 256 << 10;

/// Direction bits of a command's number: the kernel reads, writes, or does both.
const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// A command's number as an ioctl has it: direction, size of the argument, type `u`, number.
const fn code(direction: u32, bytes: usize, number: u32) -> u32 {
    (direction << 30) | ((bytes as u32) << 16) | ((b'u' as u32) << 8) | number
}

const fn control(direction: u32, number: u32) -> u32 {
    code(direction, size_of::<ControlCommand>(), number)
}

const fn of_queue(number: u32) -> u32 {
    code(READ_WRITE, size_of::<QueueCommand>(), number)
}

const fn of_several(number: u32) -> u32 {
    code(READ_WRITE, size_of::<BatchCommand>(), number)
}

/// Control commands.
pub(crate) mod command {
    use super::{READ, READ_WRITE, control};

    pub(crate) const ADD: u32 = control(READ_WRITE, 0x04);
    pub(crate) const DELETE: u32 = control(READ_WRITE, 0x05);
    pub(crate) const START: u32 = control(READ_WRITE, 0x06);
    pub(crate) const STOP: u32 = control(READ_WRITE, 0x07);
    pub(crate) const SET_PARAMS: u32 = control(READ_WRITE, 0x08);
    pub(crate) const GET_PARAMS: u32 = control(READ, 0x09);
    pub(crate) const START_RECOVERY: u32 = control(READ_WRITE, 0x10);
    pub(crate) const END_RECOVERY: u32 = control(READ_WRITE, 0x11);
    pub(crate) const GET_INFO_BY_PATH: u32 = control(READ, 0x12);
    pub(crate) const GET_FEATURES: u32 = control(READ, 0x13);
    pub(crate) const DELETE_ASYNC: u32 = control(READ, 0x14);
    pub(crate) const UPDATE_SIZE: u32 = control(READ_WRITE, 0x15);
    pub(crate) const TRY_STOP: u32 = control(READ_WRITE, 0x17);
}

/// Commands of a queue.
pub(crate) const FETCH: u32 = of_queue(0x20);
pub(crate) const COMMIT_AND_FETCH: u32 = of_queue(0x21);

/// Commands of a queue whose tags are taken several at a time (Linux 7.0).
pub(crate) const PREPARE_SEVERAL: u32 = of_several(0x25);
pub(crate) const COMMIT_SEVERAL: u32 = of_several(0x26);
pub(crate) const TAKE_SEVERAL: u32 = of_several(0x27);
/// Elements have addresses of buffers.
pub(crate) const ELEMENTS_HAVE_ADDRESSES: u16 = 1 << 1;

/// Operations of a request, the low eight bits of [`crate::Descriptor::op_flags`].
pub(crate) mod op {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 2;
    pub(crate) const DISCARD: u32 = 3;
    pub(crate) const WRITE_ZEROES: u32 = 5;
    pub(crate) const MASK: u32 = 0xff;
    /// Durable when it ends.
    pub(crate) const FUA: u32 = 1 << 13;
    /// Zeroes, without giving the space back.
    pub(crate) const NOUNMAP: u32 = 1 << 15;
}

/// Bytes of the descriptors of one queue start at this multiple in the character device's mapping:
/// the most tags that a queue has, of 24 bytes each.
pub(crate) const DESCRIPTORS_STRIDE: u64 = 4096 * 24;
/// Where the data of requests begin in the character device; queue, tag and offset are bits above.
const DATA_OFFSET: u64 = 0x8000_0000;
const DATA_TAG_SHIFT: u32 = 25;
const DATA_QUEUE_SHIFT: u32 = 25 + 16;

/// Where the data of a request are in the character device.
pub(crate) fn data_offset(queue: u16, tag: u16) -> u64 {
    DATA_OFFSET + (u64::from(queue) << DATA_QUEUE_SHIFT) + (u64::from(tag) << DATA_TAG_SHIFT)
}

/// The argument of a control command.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ControlCommand {
    pub(crate) device: u32,
    pub(crate) queue: u16,
    /// Bytes of the buffer.
    pub(crate) len: u16,
    /// Where the buffer is.
    pub(crate) addr: u64,
    pub(crate) data: u64,
    /// Bytes of a path at the begin of the buffer.
    pub(crate) path_len: u16,
    pub(crate) pad: u16,
    pub(crate) reserved: u32,
}

/// No queue, and a device that is to be numbered.
pub(crate) const NO_QUEUE: u16 = u16::MAX;
pub(crate) const ANY_NUMBER: u32 = u32::MAX;

/// What a device is, as ADD takes it and GET_DEV_INFO returns it.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) state: u16,
    pub(crate) pad0: u16,
    pub(crate) max_io_bytes: u32,
    pub(crate) number: u32,
    pub(crate) pid: i32,
    pub(crate) pad1: u32,
    pub(crate) flags: u64,
    /// For the server: our sign, and hashes of run directory and name.
    pub(crate) server_flags: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) reserved: [u64; 2],
}

/// The argument of a queue's command.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QueueCommand {
    pub(crate) queue: u16,
    pub(crate) tag: u16,
    /// Of a commit: bytes done, or an errno below zero.
    pub(crate) result: i32,
    /// The tag's buffer; zero with user copy.
    pub(crate) addr: u64,
}

/// The argument of a command for several tags.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct BatchCommand {
    pub(crate) queue: u16,
    pub(crate) flags: u16,
    /// Elements where the command points at.
    pub(crate) elements: u16,
    pub(crate) element_bytes: u8,
    pub(crate) pad: u8,
    pub(crate) reserved: u64,
}

/// One tag of such a command.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct BatchElement {
    pub(crate) tag: u16,
    pub(crate) buffer_index: u16,
    /// Of a commit: bytes done, or an errno below zero.
    pub(crate) result: i32,
    /// The tag's buffer.
    pub(crate) addr: u64,
}

/// Kinds of parameters in [`DeviceParams`].
pub(crate) const PARAMS_BASIC: u32 = 1;
pub(crate) const PARAMS_DISCARD: u32 = 1 << 1;

/// Attributes in [`BasicParams`].
pub(crate) mod attribute {
    pub(crate) const READ_ONLY: u32 = 1;
    pub(crate) const ROTATIONAL: u32 = 1 << 1;
    pub(crate) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(crate) const FUA: u32 = 1 << 3;
}

/// Sizes and blocks; shifts are powers of two of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct BasicParams {
    pub(crate) attributes: u32,
    pub(crate) logical_shift: u8,
    pub(crate) physical_shift: u8,
    pub(crate) io_opt_shift: u8,
    pub(crate) io_min_shift: u8,
    pub(crate) max_sectors: u32,
    pub(crate) chunk_sectors: u32,
    pub(crate) sectors: u64,
    pub(crate) virt_boundary_mask: u64,
}

/// Discards and zeroes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct DiscardParams {
    pub(crate) alignment: u32,
    pub(crate) granularity: u32,
    pub(crate) max_discard_sectors: u32,
    pub(crate) max_write_zeroes_sectors: u32,
    pub(crate) max_discard_segments: u16,
    pub(crate) reserved: u16,
}

/// The head of the driver's parameters. It takes any length: what comes after is not set.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct DeviceParams {
    pub(crate) len: u32,
    pub(crate) types: u32,
    pub(crate) basic: BasicParams,
    pub(crate) discard: DiscardParams,
    pub(crate) pad: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that the kernel's header makes of the same fields, by hand.
    #[test]
    fn numbers_are_those_of_the_kernel() {
        assert_eq!(size_of::<ControlCommand>(), 32);
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(size_of::<QueueCommand>(), 16);
        assert_eq!(std::mem::offset_of!(DeviceInfo, server_flags), 32);
        assert_eq!(std::mem::offset_of!(DeviceParams, discard), 40);
        assert_eq!(command::ADD, 0xc020_7504);
        assert_eq!(command::GET_FEATURES, 0x8020_7513);
        assert_eq!(FETCH, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH, 0xc010_7521);
        assert_eq!([PREPARE_SEVERAL, TAKE_SEVERAL], [0xc010_7525, 0xc010_7527]);
        assert_eq!(size_of::<BatchElement>(), 16);
        assert_eq!(data_offset(0, 0), 0x8000_0000);
        assert_eq!(data_offset(1, 3), 0x8000_0000 + (1 << 41) + (3 << 25));
    }
}
