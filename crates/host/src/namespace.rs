// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the number of a process is its number: a container has a namespace of its own.

/// The namespace of process numbers that this process is in, as the kernel names it:
/// `pid:[4026531836]`. None without `/proc`.
pub fn pid_namespace() -> Option<String> {
    std::fs::read_link("/proc/self/ns/pid").ok()?.into_os_string().into_string().ok()
}
