// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may connect to the NBD sockets: `--socket-mode` and `--socket-group`.
use block::ErrorKind;
use control::Failure;
use nix::unistd::Group;
use uring::SocketAccess;

use crate::config::ServeArgs;

/// A group that is given means that it may connect.
const GROUP_MODE: u32 = 0o660;

/// Of the options, with a group that this machine has.
pub(crate) fn socket_access(options: &ServeArgs) -> Result<SocketAccess, Failure> {
    let group = options.socket_group.as_deref().map(group).transpose()?;
    let mode = match options.socket_mode.as_deref() {
        Some(text) => mode(text)?,
        None if group.is_some() => GROUP_MODE,
        None => SocketAccess::OWNER.mode,
    };
    Ok(SocketAccess { mode, group, descriptors: false })
}

/// Octal. The daemon's user keeps its own access; a socket has no use for execute and special bits.
fn mode(text: &str) -> Result<u32, Failure> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    mode.filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600).ok_or_else(|| {
        let allowed = "octal, 0600 to 0666 with read and write bits only, is allowed";
        Failure::new(ErrorKind::Invalid, format!("--socket-mode {text}: {allowed}"))
    })
}

fn group(text: &str) -> Result<u32, Failure> {
    if let Some(number) = block::value::digits(text) {
        return Ok(number);
    }
    match Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => {
            let message = format!("--socket-group {text}: there is no such group");
            Err(Failure::new(ErrorKind::NotFound, message))
        }
        Err(e) => Err(Failure::new(ErrorKind::Io, format!("--socket-group {text}: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(mode: Option<&str>, group: Option<&str>) -> Result<SocketAccess, Failure> {
        let [socket_mode, socket_group] = [mode, group].map(|text| text.map(str::to_owned));
        socket_access(&ServeArgs { socket_mode, socket_group, ..ServeArgs::default() })
    }

    #[test]
    fn a_group_may_connect_unless_the_mode_forbids_it() {
        for (mode, group, want) in [
            (None, None, SocketAccess::OWNER),
            (None, Some("0"), SocketAccess { mode: 0o660, group: Some(0), ..SocketAccess::OWNER }),
            (
                Some("0600"),
                Some("7"),
                SocketAccess { mode: 0o600, group: Some(7), ..SocketAccess::OWNER },
            ),
            (Some("666"), None, SocketAccess { mode: 0o666, group: None, ..SocketAccess::OWNER }),
            (
                None,
                Some("root"),
                SocketAccess { mode: 0o660, group: Some(0), ..SocketAccess::OWNER },
            ),
        ] {
            assert_eq!(access(mode, group).unwrap(), want);
        }
    }

    #[test]
    fn other_modes_and_groups_are_refused() {
        for mode in ["", "0060", "0700", "1600", "0680", "+600", "rw", "4294967295600"] {
            let failure = access(Some(mode), None).unwrap_err();
            assert!(failure.message.contains("0600 to 0666"), "{mode}: {failure}");
        }
        let failure = access(None, Some("no such group")).unwrap_err();
        assert_eq!(failure.kind(), Some(ErrorKind::NotFound), "{failure}");
    }
}
