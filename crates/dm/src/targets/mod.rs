// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The targets that every table knows. Sectors are relative to the target's own line.
pub(crate) mod constant_target;
pub(crate) mod delay;
pub(crate) mod flakey;
pub(crate) mod linear;
pub(crate) mod striped;

use std::any::Any;
use std::rc::Rc;

use block::Target;

use crate::context::TargetType;
use crate::whole::Whole;

/// A target that is nothing but a mapping.
#[derive(Clone)]
pub(crate) enum Pure {
    Linear(Rc<linear::Linear>),
    Striped(Rc<striped::Striped>),
}

impl Pure {
    /// `target` as one, if it is.
    pub(crate) fn of(target: &Rc<dyn Target>) -> Option<Pure> {
        let any: Rc<dyn Any> = target.clone();
        match any.downcast::<linear::Linear>() {
            Ok(linear) => Some(Pure::Linear(linear)),
            Err(any) => any.downcast::<striped::Striped>().ok().map(Pure::Striped),
        }
    }
}

/// The built-in target types, by name. The versions are the kernel's.
pub fn built_in() -> Vec<TargetType> {
    vec![
        TargetType::new(&delay::MANUAL, |ctx, args| Box::pin(delay::construct(ctx, args)))
            .with_whole(delay::whole),
        TargetType::new(&constant_target::ERROR, |ctx, args| {
            Box::pin(constant_target::error(ctx, args))
        }),
        TargetType::new(&flakey::MANUAL, |ctx, args| Box::pin(flakey::construct(ctx, args)))
            .with_whole(|args| Whole::of_area(args, 0)),
        TargetType::new(&linear::MANUAL, |ctx, args| Box::pin(linear::construct(ctx, args)))
            .with_whole(|args| Whole::of_area(args, 0)),
        TargetType::new(&striped::MANUAL, |ctx, args| Box::pin(striped::construct(ctx, args)))
            .with_whole(striped::whole),
        TargetType::new(&constant_target::ZERO, |ctx, args| {
            Box::pin(constant_target::zero(ctx, args))
        }),
    ]
}
