// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Origins of the verbs on images of caches: a device, or the volume on an object store that a URL
//! names.
//!
//! Invariants
//! - CL-V1 A volume that a host has open, or died with, is taken with `--take-over` only, also on
//!   that host: a daemon that has it open loses it.
//! - CL-V2 Nothing of the volume is changed before it is opened; a dry run only looks.
use std::fmt;
use std::path::Path;
use std::rc::Rc;

use block::{
    Bio, BlockDevice, CacheAbove, CacheRecord, Error, ErrorKind, Limits, LocalFuture, Sector,
};
use control::{Failure, plain};
use format::objvol::OwnerState;
use host::open_store;
use objstore::{StoreClient, StoreUrl};
use objvol::{Depth, Health, OpenOptions, RecordedCache, Volume, VolumeReport};
use uring::Files;

use crate::inspect_volume::{look, url_of};
use crate::offline::{self, Access};

/// An origin that was found, and is not open yet if it is a volume.
pub(crate) enum Origin {
    Device(Rc<dyn BlockDevice>),
    Volume(Box<StoredVolume>),
}

/// What a cache compares with its own origin.
pub(crate) struct OriginFacts {
    pub(crate) name: String,
    pub(crate) capacity: Sector,
    pub(crate) identity: Option<String>,
}

/// A volume that nobody else has open, as far as its owner record says.
pub(crate) struct StoredVolume {
    argument: &'static str,
    url: StoreUrl,
    store: Rc<StoreClient>,
    report: VolumeReport,
}

impl Origin {
    /// The origin that an argument names.
    pub(crate) async fn find(
        argument: &Argument,
        files: &Files,
        value: &Path,
        access: Access,
    ) -> Result<Origin, Failure> {
        let Some(url) = url_of(value) else {
            if argument.take_over {
                let text = format!("--take-over: {} is no volume", value.display());
                return Err(Failure::new(ErrorKind::Invalid, text));
            }
            return Ok(Origin::Device(offline::open(files, value, access)?));
        };
        Ok(Origin::Volume(Box::new(StoredVolume::find(argument, files, &url).await?)))
    }

    pub(crate) fn facts(&self) -> OriginFacts {
        match self {
            Origin::Device(device) => OriginFacts {
                name: device.name().to_owned(),
                capacity: device.limits().capacity,
                identity: device.identity(),
            },
            Origin::Volume(volume) => OriginFacts {
                name: volume.url.to_string(),
                capacity: volume.report.sectors,
                identity: Some(volume.report.identity()),
            },
        }
    }

    /// What can be read before it is opened.
    pub(crate) fn device(&self) -> Option<&Rc<dyn BlockDevice>> {
        match self {
            Origin::Device(device) => Some(device),
            Origin::Volume(_) => None,
        }
    }

    pub(crate) async fn open(self) -> Result<OpenOrigin, Failure> {
        match self {
            Origin::Device(device) => Ok(OpenOrigin { device, volume: None }),
            Origin::Volume(stored) => stored.open(offline::volume_options()).await,
        }
    }
}

/// An origin that is open for writing.
pub(crate) struct OpenOrigin {
    pub(crate) device: Rc<dyn BlockDevice>,
    volume: Option<Rc<Volume>>,
}

impl OpenOrigin {
    pub(crate) fn is_volume(&self) -> bool {
        self.volume.is_some()
    }

    /// Ends an opening of a volume in order, whatever came before: `done`, unless that fails.
    pub(crate) async fn close<T>(self, done: Result<T, Failure>) -> Result<T, Failure> {
        let closed = match self.volume {
            Some(volume) => volume.close().await,
            None => Ok(()),
        };
        done.and_then(|done| Ok(closed.map(|()| done)?))
    }
}

/// The argument that names an origin.
pub(crate) struct Argument {
    pub(crate) verb: &'static str,
    /// As `--origin`.
    pub(crate) name: &'static str,
    /// The operator says that nobody else works with the volume.
    pub(crate) take_over: bool,
}

impl StoredVolume {
    /// Looks at the volume.
    pub(crate) async fn find(
        argument: &Argument,
        files: &Files,
        url: &str,
    ) -> Result<StoredVolume, Failure> {
        let Argument { verb, name, take_over } = *argument;
        let within = |e: Failure| e.within(name);
        let url = StoreUrl::parse(url).map_err(|e| within(e.into()))?;
        let store = open_store(files, &url).await.map_err(|e| within(e.into()))?;
        let options = offline::volume_options();
        let report = look(verb, store.clone(), &options, Depth::Metadata).await.map_err(within)?;
        let refused = |kind, why: String| Err(within(Failure::new(kind, format!("{url}: {why}"))));
        if report.health() == Health::Broken {
            let why = format!("it is damaged; `millpond check {url}` shows all");
            return refused(ErrorKind::Io, why);
        }
        let owner = report.owner.as_ref().filter(|owner| owner.state == OwnerState::Attached);
        if let Some(owner) = owner.filter(|_| !take_over) {
            let why = format!(
                "host {} has it open, or died with it; nothing was changed. If no daemon works \
                 with it, `--take-over` takes it",
                plain(&owner.host)
            );
            return refused(ErrorKind::Busy, why); // CL-V1
        }
        Ok(StoredVolume { argument: name, url, store, report })
    }

    /// The cache that it has recorded.
    pub(crate) fn recorded(&self) -> Option<&RecordedCache> {
        self.report.owner.as_ref()?.cache.as_ref()
    }

    pub(crate) async fn open(self, options: OpenOptions) -> Result<OpenOrigin, Failure> {
        let options = OpenOptions { take_over: true, ..options }; // CL-V1 was kept
        let opened = Volume::open(self.store, options).await;
        let volume = opened.map_err(|e| Failure::from(e).within(self.argument))?;
        let device = Rc::new(RecordingVolume(volume.clone()));
        Ok(OpenOrigin { device, volume: Some(volume) })
    }
}

/// A volume that records the cache above it.
struct RecordingVolume(Rc<Volume>);

impl BlockDevice for RecordingVolume {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn identity(&self) -> Option<String> {
        Some(self.0.identity())
    }

    fn cache_record(self: Rc<Self>) -> Option<Rc<dyn CacheRecord>> {
        Some(self)
    }

    fn submit(&self, bio: Bio) {
        self.0.submit(bio);
    }
}

impl CacheRecord for RecordingVolume {
    fn attach(self: Rc<Self>, cache: CacheAbove) -> LocalFuture<Result<(), Error>> {
        let now = (host::volume_environment().clock)();
        Box::pin(async move { self.0.attach(&cache, now).await })
    }

    fn leave(&self, uuid: [u8; 16]) {
        self.0.leave(uuid);
    }

    fn release(self: Rc<Self>, uuid: [u8; 16]) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.0.release(uuid).await })
    }
}

impl fmt::Debug for RecordingVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
