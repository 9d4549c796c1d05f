// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Losses: a cache of a new table takes over what clients have not been told by the one before it.
use std::any::Any;
use std::rc::Rc;

use block::Target;

use super::WriteCache;
use crate::config::Mutation;
use crate::losses::Lost;
use crate::trouble::Trouble;

impl WriteCache {
    /// Clients are told from now on of what `before` has lost (LO1). Parts take over from those of
    /// the same number: another number of parts is another cache.
    pub(super) async fn take_losses_of(self: Rc<Self>, before: Rc<dyn Target>) {
        let before: Rc<dyn Any> = before;
        let Ok(before) = before.downcast::<WriteCache>() else { return };
        if self.config.borrow().mutation == Mutation::LossesForgotten {
            return;
        }
        let lost = match before.parts() {
            Some(parts) => parts.ask(|part| async move { part.take_losses() }).await,
            None => vec![before.take_losses()],
        };
        let lost: Vec<Lost> = lost.into_iter().flatten().collect();
        let requests = lost.iter().map(|lost| lost.requests).sum();
        match self.parts() {
            Some(parts) => parts.give(lost, |part, lost| part.go_on_with(lost)).await,
            None => lost.into_iter().take(1).for_each(|lost| self.go_on_with(lost)),
        }
        let tell = self.on_trouble.borrow().clone();
        if let Some(tell) = tell.filter(|_| requests > 0) {
            tell(Trouble::Lost { requests });
        }
    }

    fn take_losses(&self) -> Option<Lost> {
        self.cache().map(|cache| cache.losses.take(cache.failure().is_some()))
    }

    fn go_on_with(&self, lost: Lost) {
        if let Some(cache) = self.cache() {
            cache.losses.go_on(lost);
        }
    }
}
