// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write cache above a target, which comes and goes, while the volume is opened and closed
//! (OV-TG9).
use std::any::Any;
use std::rc::Rc;

use block::{CacheAbove, CacheRecord, Error, LocalFuture, Target};

use super::{VolumeEvent, VolumeTarget};
use crate::volume::Volume;

impl VolumeTarget {
    /// Attaches the cache that was there when the volume was closed. The volume is closed again if
    /// it has become another one.
    pub(super) async fn go_on_with_cache(&self, volume: &Rc<Volume>) -> Result<(), Error> {
        let above = self.above.borrow().clone();
        let Some(above) = above else { return Ok(()) };
        let Err(e) = volume.attach(&above, (self.environment.clock)()).await else { return Ok(()) };
        match volume.close().await {
            Ok(()) => Err(e),
            Err(also) => Err(e.because(also)),
        }
    }

    /// Goes on with the cache above the target of the table before.
    pub(super) async fn take_over_cache(self: Rc<Self>, before: Rc<dyn Target>) {
        let before: Rc<dyn Any> = before;
        let Ok(before) = before.downcast::<VolumeTarget>() else { return };
        let (Some(above), Some(volume)) = (before.above.take(), self.volume()) else { return };
        *self.above.borrow_mut() = Some(above.clone());
        if let Err(e) = volume.attach(&above, (self.environment.clock)()).await {
            volume.refuse_changes(e.to_string());
            self.notify(&VolumeEvent::CacheRefused(e.to_string()));
        }
    }
}

impl CacheRecord for VolumeTarget {
    fn attach(self: Rc<Self>, cache: CacheAbove) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            let volume = self.volume().ok_or_else(|| {
                Error::busy(format!(
                    "{}: it is not open, so it can't record the write cache above it: resume it \
                     first",
                    self.name
                ))
            })?;
            volume.attach(&cache, (self.environment.clock)()).await?;
            *self.above.borrow_mut() = Some(cache);
            Ok(())
        })
    }

    fn leave(&self, uuid: [u8; 16]) {
        self.above.borrow_mut().take_if(|above| above.uuid == uuid);
        if let Some(volume) = self.volume() {
            volume.leave(uuid);
        }
    }

    fn release(self: Rc<Self>, uuid: [u8; 16]) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            let volume = self.volume().ok_or_else(|| {
                Error::busy(format!(
                    "{}: it is not open, so the write cache above it stays recorded: resume it \
                     first",
                    self.name
                ))
            })?;
            volume.release(uuid).await?;
            self.above.borrow_mut().take_if(|above| above.uuid == uuid);
            Ok(())
        })
    }
}
