// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write beyond the limit of file sizes (`ulimit -f`, `LimitFSIZE=`) is an error of that write,
//! EFBIG, and not the end of the process by SIGXFSZ.

/// Has SIGXFSZ ignored, in this process and those that it starts.
pub fn ignore_file_size_signal() {
    // SAFETY: the signal and the disposition are valid, and no handler is involved.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    debug_assert_ne!(before, libc::SIG_ERR, "a signal that can be ignored");
}
