// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zero, without arguments: reads return zeroes, writes are dropped.
use std::rc::Rc;

use block::attr::Manual;
use block::{Bio, BlockDevice, Error, Limits, Op, Sector, Status, Target, ZeroRuns};

use crate::context::Context;

pub(super) static MANUAL: Manual =
    Manual::new("zero", (1, 2, 0), "reads are zeroes, writes are dropped", "");

struct Zero(Sector);

pub(crate) async fn construct(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
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

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        Box::pin(async move { vec![(at, len)] })
    }
}

impl Target for Zero {
    fn kind(&self) -> &'static str {
        "zero"
    }
    fn table(&self) -> String {
        String::new()
    }
}
