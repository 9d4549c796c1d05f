// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel's driver can, and what we need of it.
use bitflags::bitflags;

bitflags! {
    /// Features of the driver, and flags of a device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// A device outlives its server; requests wait for the next one.
        const USER_RECOVERY = 1 << 3;
        /// The next server gets the requests that the last one had.
        const USER_RECOVERY_REISSUE = 1 << 4;
        /// Numbers of commands are those of ioctls.
        const CMD_IOCTL_ENCODE = 1 << 6;
        /// The server reads and writes the data of requests in the character device; without it
        /// the kernel copies them between pages of clients and addresses of the server.
        const USER_COPY = 1 << 7;
        /// A device in use can have another size.
        const UPDATE_SIZE = 1 << 10;
        /// Tags are offered, taken and committed several at a time.
        const BATCH_IO = 1 << 15;
        /// A device that is open is not stopped unless that is forced.
        const SAFE_STOP_DEV = 1 << 17;
    }
}

/// What we do not work without, and the version of Linux that has it first.
const NEEDED: [(Features, &str, &str); 2] = [
    (Features::CMD_IOCTL_ENCODE, "CMD_IOCTL_ENCODE", "6.4"),
    (Features::USER_COPY, "USER_COPY", "6.5"),
];

impl Features {
    /// Flags of a device that outlives its server.
    pub const RECOVERY: Features = Features::USER_RECOVERY.union(Features::USER_RECOVERY_REISSUE);

    /// What is missing, as a sentence; `None` when all that is needed is there.
    pub fn missing(self) -> Option<String> {
        let (_, name, since) = NEEDED.iter().find(|(feature, ..)| !self.contains(*feature))?;
        Some(format!("the kernel's ublk driver has no {name}, which Linux {since} brought"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_told_what_it_lacks() {
        let old = Features::CMD_IOCTL_ENCODE;
        assert!(old.missing().unwrap().contains("USER_COPY, which Linux 6.5"));
        assert!(Features::empty().missing().unwrap().contains("CMD_IOCTL_ENCODE"));
        assert_eq!((old | Features::USER_COPY).missing(), None);
    }
}
