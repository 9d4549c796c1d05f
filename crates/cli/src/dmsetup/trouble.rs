// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What goes wrong, in dmsetup's lines for scripts and in ours for people.
use block::ErrorKind;
use control::Failure;

use crate::dmsetup::usage::USAGE;

/// Why a command ends with 1, and what it says on standard error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trouble(String);

impl Trouble {
    /// The command failed.
    pub(crate) fn failed(why: impl std::fmt::Display) -> Trouble {
        Trouble(format!("{why}\nCommand failed.\n"))
    }

    /// An option was wrong.
    pub(crate) fn command_line(why: impl std::fmt::Display) -> Trouble {
        Trouble(format!("dmsetup: {why}\nCouldn't process command line.\n"))
    }

    /// Too many or too few words.
    pub(crate) fn usage(why: &str) -> Trouble {
        Trouble(format!("{why}\n{USAGE}"))
    }

    /// Something of dmsetup's that millpond does not have.
    pub(crate) fn not_supported(what: &str, instead: &str) -> Trouble {
        Trouble::failed(format!("millpond: {what}: not supported: {instead}"))
    }

    /// A device that is not there, for `info` and `status`, which ask whether it is.
    pub(crate) fn does_not_exist(name: &str) -> Trouble {
        Trouble::failed(format!("Device does not exist.\nDevice {name} not found"))
    }

    /// The daemon refused what dmsetup calls `ioctl` on a device.
    pub(crate) fn ioctl(ioctl: &str, name: &str, f: &Failure) -> Trouble {
        // That nobody answers is about no device.
        let Some(kind) = f.kind() else { return Trouble::from(f.clone()) };
        // The kernel says so of a name that is taken, and of what a table names in vain.
        let errno = if kind == ErrorKind::Exists {
            ErrorKind::Busy.errno()
        } else if matches!(kind, ErrorKind::NotFound | ErrorKind::NoFile) && !is_gone(name, f) {
            ErrorKind::NoDevice.errno()
        } else {
            f.errno
        };
        Trouble::failed(format!(
            "device-mapper: {ioctl} ioctl on {name}  failed: {}\n{}",
            strerror(errno),
            cause(name, f)
        ))
    }

    /// All of it.
    pub(crate) fn text(&self) -> String {
        self.0.clone()
    }
}

/// No more than that: the daemon's own words.
impl From<Failure> for Trouble {
    fn from(f: Failure) -> Trouble {
        Trouble::failed(format!("millpond: {f}"))
    }
}

/// The result of our own verbs, where dmsetup has no line of its own for what fails.
pub(crate) fn said(done: Result<(), Failure>) -> Result<(), Trouble> {
    done.map_err(Trouble::from)
}

fn cause(name: &str, f: &Failure) -> String {
    if is_gone(name, f) {
        return format!("Device {name} not found");
    }
    format!("millpond: {f}")
}

/// Whether the device itself is not there, and not something that it needs.
pub(crate) fn is_gone(name: &str, f: &Failure) -> bool {
    f.kind() == Some(ErrorKind::NotFound)
        && f.message.strip_prefix(name).is_some_and(|m| m.starts_with(": no such device"))
}

/// The C library's words for an errno.
fn strerror(errno: i32) -> String {
    block::without_errno(std::io::Error::from_raw_os_error(errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_find_dmsetups_lines_and_people_the_cause() {
        let gone = Failure::new(ErrorKind::NotFound, "wc: no such device");
        assert_eq!(
            Trouble::ioctl("remove", "wc", &gone).text(),
            "device-mapper: remove ioctl on wc  failed: No such device or address\n\
             Device wc not found\nCommand failed.\n"
        );
        let taken = Failure::new(ErrorKind::Exists, "wc: a device of this name exists already");
        assert_eq!(
            Trouble::ioctl("create", "wc", &taken).text(),
            "device-mapper: create ioctl on wc  failed: Device or resource busy\n\
             millpond: wc: a device of this name exists already (EEXIST)\nCommand failed.\n"
        );
        let lacking = Failure::new(ErrorKind::NoFile, "wc: line 1: linear: no such file");
        assert_eq!(
            Trouble::ioctl("reload", "wc", &lacking).text(),
            "device-mapper: reload ioctl on wc  failed: No such device\n\
             millpond: wc: line 1: linear: no such file (ENOENT)\nCommand failed.\n"
        );
        let silent = Failure::unreachable(111, "no daemon answers");
        assert_eq!(
            Trouble::ioctl("remove", "wc", &silent).text(),
            "millpond: no daemon answers (ECONNREFUSED)\nCommand failed.\n"
        );
    }
}
