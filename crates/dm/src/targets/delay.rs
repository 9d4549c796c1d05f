// SPDX-License-Identifier: Apache-2.0 OR MIT
//! delay `<dev> <offset> <ms> [<write_dev> <write_offset> <write_ms> [<flush_...>{3}]]`: every
//! request waits before it goes on. Three arguments serve all requests; with six, the second
//! three serve writes and flushes; with nine, the third three serve flushes.
use std::cell::Cell;
use std::rc::Rc;

use block::attr::Manual;
use block::{Bio, BlockDevice, Component, Error, Limits, Nanos, Op, Sector, Target};

use crate::area::{Area, number, stack};
use crate::context::Context;
use crate::whole::Whole;

pub(super) static MANUAL: Manual = Manual::new(
    "delay",
    (1, 5, 0),
    "every request waits before it goes on",
    "<dev> <offset> <ms> [<write_dev> <offset> <ms> [<flush_dev> <offset> <ms>]]",
);

struct Class {
    area: Area,
    delay_ms: u32,
    /// Requests that wait now.
    waiting: Rc<Cell<u32>>,
}

pub(crate) struct Delay {
    read: Class,
    write: Option<Class>,
    flush: Option<Class>,
    len: Sector,
}

pub(crate) async fn construct(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    if ![3, 6, 9].contains(&args.len()) {
        return Err(Error::invalid(format!(
            "Requires exactly 3, 6 or 9 arguments, {} given: <dev> <offset> <ms> for reads, then \
             for writes, then for flushes",
            args.len()
        )));
    }
    let read = class(&ctx, &args, 0).await?.expect("there are three arguments at least");
    let write = class(&ctx, &args, 3).await?;
    let flush = class(&ctx, &args, 6).await?;
    Ok(Rc::new(Delay { read, write, flush, len: ctx.len() }))
}

/// As long as all classes' devices are.
pub(super) fn whole(args: &[String]) -> Option<Whole> {
    let devices = (0..args.len() / 3).map(|class| (3 * class, Some(3 * class + 1))).collect();
    [3, 6, 9].contains(&args.len()).then_some(Whole { devices, times: 1, unit: Sector(1) })
}

async fn class(ctx: &Context, args: &[String], at: usize) -> Result<Option<Class>, Error> {
    if args.len() <= at {
        return Ok(None);
    }
    let delay_ms = number(args, at + 2, "Invalid delay", "milliseconds from 0 to 4294967295")?;
    let area = Area::open(ctx, args, at, ctx.len()).await?;
    Ok(Some(Class { area, delay_ms, waiting: Rc::default() }))
}

impl Delay {
    fn classes(&self) -> impl Iterator<Item = &Class> {
        std::iter::once(&self.read).chain(&self.write).chain(&self.flush)
    }

    fn writes(&self) -> &Class {
        self.write.as_ref().unwrap_or(&self.read)
    }

    fn flushes(&self) -> &Class {
        self.flush.as_ref().unwrap_or_else(|| self.writes())
    }
}

impl BlockDevice for Delay {
    fn name(&self) -> &str {
        "delay"
    }

    fn limits(&self) -> Limits {
        let mut limits = self.read.area.limits(self.len);
        for class in self.classes().skip(1) {
            stack(&mut limits, &class.area.limits(self.len));
        }
        limits
    }

    fn submit(&self, bio: Bio) {
        let class = match bio.op {
            Op::Read => &self.read,
            Op::Write | Op::Discard | Op::WriteZeroes => self.writes(),
            Op::Flush => self.flushes(),
        };
        if class.delay_ms == 0 {
            return class.area.submit(bio);
        }
        let (area, waiting) = (class.area.clone(), class.waiting.clone());
        let time = Nanos::from_millis(class.delay_ms.into());
        waiting.set(waiting.get() + 1);
        // The clock runs from here, not from the task's first turn; equal delays keep their order.
        let sleep = reactor::sleep(time);
        reactor::spawn(async move {
            sleep.await;
            waiting.set(waiting.get() - 1);
            area.submit(bio);
        });
    }
}

impl Target for Delay {
    fn kind(&self) -> &'static str {
        "delay"
    }

    fn table(&self) -> String {
        let words: Vec<_> = self.classes().map(|c| format!("{} {}", c.area, c.delay_ms)).collect();
        words.join(" ")
    }

    /// Requests that wait now: reads, writes, flushes. A class that others share counts for all.
    fn status(&self) -> String {
        let [r, w, f] = [&self.read, self.writes(), self.flushes()].map(|c| c.waiting.get());
        format!("{r} {w} {f}")
    }

    fn components(&self) -> Vec<Component> {
        self.classes().map(|class| class.area.component(self.len)).collect()
    }
}
