// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attributes by which a device without a live table is set up.
use std::rc::Rc;

use block::attr::Spec;
use block::value::Value;
use block::{BlockDevice, Error, LocalFuture};

/// The attributes of a device that has no live table: they set it up. Given by the program.
pub trait SetupAttributes {
    /// Its attributes.
    fn attributes(&self) -> Vec<&'static Spec>;

    /// Reads an attribute.
    fn get(self: Rc<Self>, name: String) -> LocalFuture<Result<Value, Error>>;

    /// Writes an attribute; when it asks for that, gives `device` a table and resumes it. The
    /// device may be renamed meanwhile: ask it for its name before each verb.
    fn set(
        self: Rc<Self>,
        device: Rc<dyn BlockDevice>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>>;
}
