// SPDX-License-Identifier: Apache-2.0 OR MIT
//! linear `<dev> <offset>`: a run of sectors of one device.
use std::rc::Rc;

use block::attr::Manual;
use block::{Bio, BlockDevice, CacheRecord, Component, Error, Limits, Sector, Target, ZeroRuns};

use crate::area::Area;
use crate::context::Context;

pub(super) static MANUAL: Manual =
    Manual::new("linear", (1, 5, 0), "a range of sectors of another device", "<dev> <offset>");

pub(crate) struct Linear {
    pub(crate) area: Area,
    len: Sector,
}

pub(crate) async fn construct(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    if args.len() != 2 {
        return Err(Error::invalid(format!(
            "Invalid argument count: {} given, must be 2: <dev> <offset>",
            args.len()
        )));
    }
    let area = Area::open(&ctx, &args, 0, ctx.len()).await?;
    Ok(Rc::new(Linear { area, len: ctx.len() }))
}

impl Linear {
    fn is_whole(&self) -> bool {
        self.area.offset == Sector::ZERO && self.len == self.area.device.limits().capacity
    }
}

impl BlockDevice for Linear {
    fn name(&self) -> &str {
        self.area.device.name()
    }

    fn limits(&self) -> Limits {
        self.area.limits(self.len)
    }

    fn submit(&self, bio: Bio) {
        self.area.submit(bio);
    }

    /// That of the device, if the line is all of it.
    fn identity(&self) -> Option<String> {
        if self.is_whole() { self.area.device.identity() } else { None }
    }

    fn cache_record(self: Rc<Self>) -> Option<Rc<dyn CacheRecord>> {
        if self.is_whole() { self.area.device.clone().cache_record() } else { None }
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        self.area.zero_runs(at, len)
    }
}

impl Target for Linear {
    fn kind(&self) -> &'static str {
        "linear"
    }

    fn table(&self) -> String {
        self.area.to_string()
    }

    fn components(&self) -> Vec<Component> {
        vec![self.area.component(self.len)]
    }
}
