// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of commands: dmsetup's lines, which scripts look for, and our cause, for people.
use block::ErrorKind;
use control::Failure;

use crate::dmsetup::usage::USAGE;
use crate::requests::is_missing;

/// The text on standard error of a command that exits with 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandError(String);

impl CommandError {
    /// The command failed.
    pub(crate) fn failed(why: impl std::fmt::Display) -> CommandError {
        CommandError(format!("{why}\nCommand failed.\n"))
    }

    /// An option was wrong.
    pub(crate) fn command_line(why: impl std::fmt::Display) -> CommandError {
        CommandError(format!("dmsetup: {why}\nCouldn't process command line.\n"))
    }

    /// Too many or too few words.
    pub(crate) fn usage(why: &str) -> CommandError {
        CommandError(format!("{why}\n{USAGE}"))
    }

    /// Something of dmsetup's that millpond does not have.
    pub(crate) fn not_supported(what: &str, instead: &str) -> CommandError {
        CommandError::failed(format!("millpond: {what}: not supported: {instead}"))
    }

    /// A missing device, for `info` and `status`, which check for it first.
    pub(crate) fn does_not_exist(name: &str) -> CommandError {
        CommandError::failed(format!("Device does not exist.\nDevice {name} not found"))
    }

    /// The daemon refused what dmsetup calls `ioctl` on a device.
    pub(crate) fn ioctl(ioctl: &str, name: &str, f: &Failure) -> CommandError {
        CommandError::ioctl_with_uuid(ioctl, name, "", f)
    }

    /// The same of an ioctl that has a UUID besides the name.
    pub(crate) fn ioctl_with_uuid(
        ioctl: &str,
        name: &str,
        uuid: &str,
        f: &Failure,
    ) -> CommandError {
        // A failure without a kind is about no device: no daemon answers.
        let Some(kind) = f.kind() else { return CommandError::from(f.clone()) };
        // The kernel's errors for a name that exists, and for a missing device that a table names.
        let errno = if kind == ErrorKind::Exists {
            ErrorKind::Busy.errno()
        } else if matches!(kind, ErrorKind::NotFound | ErrorKind::NoFile) && !is_missing(name, f) {
            ErrorKind::NoFile.errno()
        } else {
            f.errno
        };
        CommandError::failed(format!(
            "device-mapper: {ioctl} ioctl on {name} {uuid} failed: {}\n{}",
            strerror(errno),
            cause(name, f)
        ))
    }

    /// The whole text.
    pub(crate) fn text(&self) -> String {
        self.0.clone()
    }
}

/// The daemon's message, without a line of dmsetup's.
impl From<Failure> for CommandError {
    fn from(f: Failure) -> CommandError {
        CommandError::failed(format!("millpond: {f}"))
    }
}

/// Prints text, of which parts may come from outside.
pub(crate) fn print(text: &str) -> Result<(), CommandError> {
    Ok(host::print(text)?)
}

/// Prints text whose parts from outside are plain already.
pub(crate) fn print_as_is(text: &str) -> Result<(), CommandError> {
    Ok(host::print_as_is(text)?)
}

fn cause(name: &str, f: &Failure) -> String {
    if is_missing(name, f) {
        return format!("Device {name} not found");
    }
    format!("millpond: {f}")
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
            CommandError::ioctl("remove", "wc", &gone).text(),
            "device-mapper: remove ioctl on wc  failed: No such device or address\n\
             Device wc not found\nCommand failed.\n"
        );
        let taken = Failure::new(ErrorKind::Exists, "wc: a device of this name exists already");
        assert_eq!(
            CommandError::ioctl("create", "wc", &taken).text(),
            "device-mapper: create ioctl on wc  failed: Device or resource busy\n\
             millpond: wc: a device of this name exists already (EEXIST)\nCommand failed.\n"
        );
        let lacking = Failure::new(ErrorKind::NoFile, "wc: line 1: linear: no such file");
        assert_eq!(
            CommandError::ioctl("reload", "wc", &lacking).text(),
            "device-mapper: reload ioctl on wc  failed: No such file or directory\n\
             millpond: wc: line 1: linear: no such file (ENOENT)\nCommand failed.\n"
        );
        let silent = Failure::unreachable(111, "no daemon answers");
        assert_eq!(
            CommandError::ioctl("remove", "wc", &silent).text(),
            "millpond: no daemon answers (ECONNREFUSED)\nCommand failed.\n"
        );
    }
}
