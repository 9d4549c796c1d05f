// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time of this process.

/// The kernel counts a process's time in these; the same on every architecture that Linux has.
const TICK_NS: u64 = 10_000_000;

/// CPU time of this process, of all its threads, in user mode and in the kernel; to ten
/// milliseconds. It is read from /proc, as the faster functions of the C library do not work under
/// valgrind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
}

impl Cpu {
    /// So far; nothing where there is no /proc.
    pub(crate) fn now() -> Cpu {
        std::fs::read_to_string("/proc/self/stat").map_or_else(|_| Cpu::default(), |s| Cpu::of(&s))
    }

    pub(crate) fn plus(self, other: Cpu) -> Cpu {
        Cpu { user_ns: self.user_ns + other.user_ns, system_ns: self.system_ns + other.system_ns }
    }

    fn of(stat: &str) -> Cpu {
        // The fields behind the name, which may hold blanks and parentheses.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let mut ticks = fields.skip(11).map(|f| f.parse::<u64>().unwrap_or(0) * TICK_NS);
        Cpu { user_ns: ticks.next().unwrap_or(0), system_ns: ticks.next().unwrap_or(0) }
    }

    pub(crate) fn since(self, before: Cpu) -> Cpu {
        Cpu { user_ns: self.user_ns - before.user_ns, system_ns: self.system_ns - before.system_ns }
    }

    pub(crate) fn ns(self) -> u64 {
        self.user_ns + self.system_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "1 (a (b) c) S 2 3 4 5 6 7 8 9 10 11 250 50 0 0";
        assert_eq!(Cpu::of(stat), Cpu { user_ns: 2_500_000_000, system_ns: 500_000_000 });
        assert_eq!(Cpu::of(""), Cpu::default());
    }
}
