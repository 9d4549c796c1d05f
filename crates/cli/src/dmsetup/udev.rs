// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commands for udev's rules. Nothing waits for udev here, so there are no cookies.
use crate::dmsetup::command_error::{CommandError, print};

/// Names of the flags in a cookie's upper half; the eight behind them are the subsystem's.
const FLAGS: [&str; 8] = [
    "DM_UDEV_DISABLE_DM_RULES_FLAG",
    "DM_UDEV_DISABLE_SUBSYSTEM_RULES_FLAG",
    "DM_UDEV_DISABLE_DISK_RULES_FLAG",
    "DM_UDEV_DISABLE_OTHER_RULES_FLAG",
    "DM_UDEV_LOW_PRIORITY_FLAG",
    "DM_UDEV_DISABLE_LIBRARY_FALLBACK_FLAG",
    "DM_UDEV_PRIMARY_SOURCE_FLAG",
    "DM_UDEV_FLAG7",
];

pub(crate) fn run(verb: &str, words: &[String]) -> Result<(), CommandError> {
    match (verb, words) {
        ("udevflags", [cookie]) => print(&flags(parse(cookie)?)),
        ("udevcomplete", [cookie]) => {
            let shown = format!("{:x}", parse(cookie)?);
            print(&format!("DM_COOKIE_COMPLETED=0x{shown:<10}\n"))
        }
        ("udevcomplete_all", _) => {
            print("0 semaphores with keys prefixed by 3405 (0xd4d) destroyed. 0 skipped.\n")
        }
        ("udevcookies", _) => {
            print("Cookie       Semid      Value      Last semop time           Last change time\n")
        }
        ("udevreleasecookie", []) => Err(CommandError::failed("No udev transaction cookie given.")),
        ("udevreleasecookie", [cookie, ..]) => parse(cookie).map(|_| ()),
        // `udevcreatecookie` prints none, as on a system without udev.
        _ => Ok(()),
    }
}

fn parse(word: &str) -> Result<u32, CommandError> {
    let number = match word.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => word.parse(),
    };
    let number = number.ok().filter(|n| *n != 0);
    number.ok_or_else(|| CommandError::failed("Incorrect cookie value."))
}

fn flags(cookie: u32) -> String {
    let set = |nth: &usize| cookie >> (16 + nth) & 1 == 1;
    (0..16).filter(set).fold(String::new(), |out, nth| match FLAGS.get(nth) {
        Some(name) => format!("{out}{name}='1'\n"),
        None => format!("{out}DM_SUBSYSTEM_UDEV_FLAG{}='1'\n", nth - FLAGS.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What dmsetup 1.02.185 printed.
    #[test]
    fn flags_of_a_cookie_are_dmsetups() {
        assert_eq!(
            flags(0x00d4_0d00),
            "DM_UDEV_DISABLE_DISK_RULES_FLAG='1'\nDM_UDEV_LOW_PRIORITY_FLAG='1'\n\
             DM_UDEV_PRIMARY_SOURCE_FLAG='1'\nDM_UDEV_FLAG7='1'\n"
        );
        assert_eq!(flags(0x20ff_ffff).lines().last(), Some("DM_SUBSYSTEM_UDEV_FLAG5='1'"));
        assert_eq!(parse("0xd4d1234"), Ok(0x0d4d_1234));
        for bad in ["x", "0", "0x", "-1", "0x123456789", ""] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
