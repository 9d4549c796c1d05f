// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single loads and stores of numbers in memory that others change at any time, and in any size: a
//! guest may lay the rings of two queues, which two cores serve, over each other. Rust defines no
//! atomics of different sizes that race; machine code has no such rule, and the compiler does not
//! look into it. A load is an acquire and a store a release, as on this processor every one is.

macro_rules! accesses {
    ($load:ident, $store:ident, $number:ty, $class:ident, $load_code:literal,
        $store_code:literal) => {
        /// # Safety
        /// The place is mapped as long as this takes, and aligned.
        #[inline]
        pub(crate) unsafe fn $load(place: *const u8) -> $number {
            let found: $number;
            // SAFETY: the caller's promise.
            unsafe {
                std::arch::asm!(
                    $load_code,
                    number = out($class) found,
                    place = in(reg) place,
                    options(nostack, preserves_flags)
                );
            }
            found
        }

        /// # Safety
        /// As for the load; nobody has a reference to the bytes.
        #[inline]
        pub(crate) unsafe fn $store(place: *mut u8, number: $number) {
            // SAFETY: the caller's promise.
            unsafe {
                std::arch::asm!(
                    $store_code,
                    number = in($class) number,
                    place = in(reg) place,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod of_this_cpu {
    accesses!(
        load_u8,
        store_u8,
        u8,
        reg_byte,
        "mov {number}, byte ptr [{place}]",
        "mov byte ptr [{place}], {number}"
    );
    accesses!(
        load_u16,
        store_u16,
        u16,
        reg,
        "mov {number:x}, word ptr [{place}]",
        "mov word ptr [{place}], {number:x}"
    );
    accesses!(
        load_u32,
        store_u32,
        u32,
        reg,
        "mov {number:e}, dword ptr [{place}]",
        "mov dword ptr [{place}], {number:e}"
    );
    accesses!(
        load_u64,
        store_u64,
        u64,
        reg,
        "mov {number}, qword ptr [{place}]",
        "mov qword ptr [{place}], {number}"
    );
}

#[cfg(target_arch = "aarch64")]
mod of_this_cpu {
    accesses!(
        load_u8,
        store_u8,
        u8,
        reg,
        "ldarb {number:w}, [{place}]",
        "stlrb {number:w}, [{place}]"
    );
    accesses!(
        load_u16,
        store_u16,
        u16,
        reg,
        "ldarh {number:w}, [{place}]",
        "stlrh {number:w}, [{place}]"
    );
    accesses!(
        load_u32,
        store_u32,
        u32,
        reg,
        "ldar {number:w}, [{place}]",
        "stlr {number:w}, [{place}]"
    );
    accesses!(
        load_u64,
        store_u64,
        u64,
        reg,
        "ldar {number:x}, [{place}]",
        "stlr {number:x}, [{place}]"
    );
}

pub(crate) use of_this_cpu::{
    load_u8, load_u16, load_u32, load_u64, store_u8, store_u16, store_u32, store_u64,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_loaded_and_stored_alone() {
        let mut memory = [u64::MAX; 3];
        let place = memory.as_mut_ptr().cast::<u8>().wrapping_add(8);
        // SAFETY: the middle word, which is aligned, and only accessed through this pointer.
        unsafe {
            store_u64(place, 0x0102_0304_0506_0708);
            store_u8(place, 0x11);
            store_u16(place.wrapping_add(2), 0x2222);
            store_u32(place.wrapping_add(4), 0x3333_3333);
            assert_eq!(load_u64(place), u64::from_le_bytes([0x11, 7, 0x22, 0x22, 51, 51, 51, 51]));
            assert_eq!((load_u8(place), load_u16(place.wrapping_add(2))), (0x11, 0x2222));
            assert_eq!(load_u32(place.wrapping_add(4)), 0x3333_3333);
        }
        assert_eq!((memory[0], memory[2]), (u64::MAX, u64::MAX));
    }
}
