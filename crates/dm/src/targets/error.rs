// SPDX-License-Identifier: Apache-2.0 OR MIT
//! error, whose arguments are ignored as in the kernel: every request fails but a flush, as no
//! write has succeeded that could be lost.
use std::rc::Rc;

use block::attr::Manual;
use block::{Bio, BlockDevice, Error, Limits, Op, Sector, Status, Target};

use crate::context::Context;

pub(super) static MANUAL: Manual = Manual::new("error", (1, 7, 0), "every request fails", "");

struct ErrorTarget(Sector);

pub(crate) async fn construct(ctx: Context, _args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    Ok(Rc::new(ErrorTarget(ctx.len())))
}

impl BlockDevice for ErrorTarget {
    fn name(&self) -> &str {
        "error"
    }

    fn limits(&self) -> Limits {
        // Advertises every capability so that it does not reduce the limits of the other lines.
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
}
