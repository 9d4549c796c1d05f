// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a table line: suspend and resume, attributes, and what dm asks.
use std::rc::Rc;

use block::attr::Spec;
use block::value::Value;
use block::{BlockDevice, Component, Error, LocalFuture, MakeDevice, Role, Sector, Target};

use crate::attributes;
use crate::device::Zram;

impl Target for Zram {
    fn kind(&self) -> &'static str {
        "zram"
    }

    fn on_every_core(&self) -> Option<MakeDevice> {
        self.parts()?.on_every_core(self.name(), &self.limits())
    }

    fn table(&self) -> String {
        self.config.borrow().table()
    }

    fn status(&self) -> String {
        crate::stats::line(self)
    }

    fn components(&self) -> Vec<Component> {
        let all = |device: &Rc<dyn BlockDevice>| {
            let len = device.limits().capacity;
            Component { device: device.clone(), start: Sector::ZERO, len, role: Role::Backing }
        };
        self.backing().into_iter().map(all).collect()
    }

    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.stop().await })
    }

    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.start().await })
    }

    fn attributes(&self) -> Vec<&'static Spec> {
        attributes::specs()
    }

    fn problems(&self) -> Vec<String> {
        self.shared.failures.problems(reactor::now(), self.auto.totals().state)
    }

    fn metrics(&self) -> Vec<(&'static Spec, u64)> {
        crate::figures::metrics(&self.totals(), &self.auto.totals())
    }

    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<Value, Error>> {
        Box::pin(async move { self.get(&name).await })
    }

    fn set_attribute(
        self: Rc<Self>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.set(&name, &value).await })
    }
}
