// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The targets that every table knows. Sectors are relative to the target's own line.
pub(crate) mod delay;
pub(crate) mod flakey;
pub(crate) mod linear;
pub(crate) mod nothing;
pub(crate) mod striped;

use std::rc::Rc;

use crate::context::TargetType;

/// The built-in target types, with the kernel's versions of them.
pub(crate) fn built_in() -> Vec<TargetType> {
    vec![
        TargetType::new("delay", (1, 4, 0), |ctx, args| Box::pin(delay::construct(ctx, args))),
        TargetType::new("error", (1, 7, 0), |ctx, _| {
            Box::pin(async move { Ok(Rc::new(nothing::ErrorTarget::new(ctx.len())) as _) })
        }),
        TargetType::new("flakey", (1, 5, 0), |ctx, args| Box::pin(flakey::construct(ctx, args))),
        TargetType::new("linear", (1, 5, 0), |ctx, args| Box::pin(linear::construct(ctx, args))),
        TargetType::new("striped", (1, 7, 0), |ctx, args| Box::pin(striped::construct(ctx, args))),
        TargetType::new("zero", (1, 2, 0), |ctx, args| Box::pin(nothing::zero(ctx, args))),
    ]
}
