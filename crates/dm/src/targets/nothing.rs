// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zero and error: targets without a device. Zero reads zeroes and drops writes; error fails all.
//!
//! A flush succeeds on both, as in the kernel: neither holds anything that could be lost.
use std::rc::Rc;

use block::{Bio, BlockDevice, Error, Limits, Op, Sector, Status, Target};

use crate::context::Context;

pub(crate) struct Zero(Sector);

pub(crate) async fn zero(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    if !args.is_empty() {
        let given = args.len();
        return Err(Error::invalid(format!("No arguments required: {given} given, must be 0")));
    }
    Ok(Rc::new(Zero(ctx.len())))
}

impl BlockDevice for Zero {
    fn name(&self) -> &str {
        "zero"
    }

    fn limits(&self) -> Limits {
        Limits {
            discard_granularity_bytes: 512,
            write_zeroes: true,
            volatile_cache: false,
            ..Limits::new(self.0)
        }
    }

    fn submit(&self, bio: Bio) {
        if bio.op == Op::Read {
            bio.bufs.zero();
        }
        bio.complete(Status::Ok);
    }
}

impl Target for Zero {
    fn kind(&self) -> &'static str {
        "zero"
    }
    fn table(&self) -> String {
        String::new()
    }
    fn deps(&self) -> Vec<String> {
        Vec::new()
    }
}

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
        // As if it could everything, so that it narrows nothing beside it in a table.
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
