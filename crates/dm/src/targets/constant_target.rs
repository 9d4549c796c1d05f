// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zero and error, which answer at once and keep nothing: reads of zero, which has no arguments,
//! are zeroes, and its writes are dropped; every request to error, whose arguments are ignored as
//! in the kernel, fails but a flush, as no write has succeeded that could be lost.
use std::rc::Rc;

use block::attr::Manual;
use block::{Bio, BlockDevice, Error, Limits, Op, Sector, Status, Target, ZeroRuns};

use crate::context::Context;

pub(super) static ZERO: Manual =
    Manual::new("zero", (1, 2, 0), "reads are zeroes, writes are dropped", "");
pub(super) static ERROR: Manual = Manual::new("error", (1, 7, 0), "every request fails", "");

struct ConstantTarget {
    kind: &'static str,
    len: Sector,
    fails: bool,
}

pub(crate) async fn zero(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    if !args.is_empty() {
        let given = args.len();
        return Err(Error::invalid(format!("No arguments required: {given} given, must be 0")));
    }
    Ok(Rc::new(ConstantTarget { kind: "zero", len: ctx.len(), fails: false }))
}

pub(crate) async fn error(ctx: Context, _args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    Ok(Rc::new(ConstantTarget { kind: "error", len: ctx.len(), fails: true }))
}

impl BlockDevice for ConstantTarget {
    fn name(&self) -> &str {
        self.kind
    }

    fn limits(&self) -> Limits {
        // All that the other lines of a table may have, so that it does not reduce theirs.
        Limits::of_memory(self.len)
    }

    fn submit(&self, bio: Bio) {
        if self.fails && bio.op != Op::Flush {
            return bio.complete(Status::Io);
        }
        if bio.op == Op::Read {
            bio.bufs.zero();
        }
        bio.complete(Status::Ok);
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let runs = if self.fails { Vec::new() } else { vec![(at, len)] };
        Box::pin(async move { runs })
    }
}

impl Target for ConstantTarget {
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn table(&self) -> String {
        String::new()
    }
}
