// SPDX-License-Identifier: Apache-2.0 OR MIT
//! error: fails every request but a flush, as in the kernel: it holds nothing that could be lost.
use block::{Bio, BlockDevice, Limits, Op, Sector, Status, Target};

pub(crate) struct ErrorTarget(Sector);

impl ErrorTarget {
    pub(crate) fn new(len: Sector) -> ErrorTarget {
        ErrorTarget(len)
    }
}

impl BlockDevice for ErrorTarget {
    fn name(&self) -> &str {
        "error"
    }

    fn limits(&self) -> Limits {
        // Advertises every capability, so that it does not reduce the limits of other lines.
        Limits {
            discard_granularity_bytes: 512,
            write_zeroes: true,
            volatile_cache: false,
            ..Limits::new(self.0)
        }
    }

    fn submit(&self, bio: Bio) {
        let status = if bio.op == Op::Flush { Status::Ok } else { Status::Io };
        bio.complete(status);
    }
}

impl Target for ErrorTarget {
    fn kind(&self) -> &'static str {
        "error"
    }
    fn table(&self) -> String {
        String::new()
    }
    fn deps(&self) -> Vec<String> {
        Vec::new()
    }
}
