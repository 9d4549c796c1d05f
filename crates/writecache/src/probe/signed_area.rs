// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a device holds that must not be overwritten by accident: write caches, what only earlier
//! versions can open, the origin of a guarded cache. Whatever formats a device by itself, or
//! overwrites it, asks first.
use std::ops::Range;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, Sector};
use format::{Geometry, SUPERBLOCK_COPIES, Signature};

use super::{Contents, Depth, ProbeReport, probe};
use crate::recovery::contents::contents_of;

/// So far from the beginning of a device something may begin: the usual start of a partition, and
/// the copies of a superblock behind it.
const SCAN_BYTES: u64 = (1 << 20) + super::HEAD_BYTES;
/// What one read asks for.
const READ_BYTES: u64 = 256 << 10;
/// Where file systems, swap space and partition tables of others are looked for.
const FOREIGN_BYTES: u64 = 4096;

/// Something of ours on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedArea {
    /// Which format it is of.
    pub signature: Signature,
    /// The sectors that it may have.
    pub sectors: Range<u64>,
    /// What is lost if they are overwritten, in words that follow the name of the device; `None` if
    /// nothing is.
    pub loss: Option<String>,
    /// Stands for what is there now.
    pub token: String,
}

/// What `device` holds, by the signatures in its first MiB. Nothing is written.
///
/// # Errors
/// `EIO` if it can't be read, and those of [`probe`].
pub async fn find_signed_areas(device: &Rc<dyn BlockDevice>) -> Result<Vec<SignedArea>, Error> {
    let end = device.limits().capacity.0;
    let mut found = Vec::new();
    let mut at = 0;
    while at < end.min(SCAN_BYTES / 512) {
        let len = READ_BYTES.min((end - at) * 512);
        let bytes = read(device, at, len).await?;
        for (sector, bytes) in (at..).zip(bytes.chunks(512)) {
            let Some(signature) = Signature::of(bytes) else { continue };
            if let Some(held) = look(device, signature, sector, bytes).await? {
                // The rest is a part of it.
                let is_all = held.sectors.end >= end;
                found.push(held);
                if is_all {
                    return Ok(found);
                }
                break;
            }
        }
        at += len / 512;
    }
    Ok(found)
}

/// What of others `device` begins with, such as `an XFS file system`.
///
/// # Errors
/// `EIO` if it can't be read.
pub async fn foreign_contents(device: &Rc<dyn BlockDevice>) -> Result<Option<&'static str>, Error> {
    let len = FOREIGN_BYTES.min(device.limits().capacity.bytes());
    Ok(contents_of(&read(device, 0, len).await?))
}

async fn read(device: &Rc<dyn BlockDevice>, at: u64, len: u64) -> Result<Vec<u8>, Error> {
    let buf = Buf::alloc(usize::try_from(len).expect("at most 256 KiB"));
    let read = reactor::read(&**device, Class::Foreground, Sector(at), buf.all().into()).await;
    read.map_err(|status| Error::io(format!("{}: read: {status}", device.name())))?;
    Ok(buf.read(<[u8]>::to_vec))
}

/// What the signature in `sector` is of; `None` if that is only a remainder.
async fn look(
    device: &Rc<dyn BlockDevice>,
    signature: Signature,
    sector: u64,
    bytes: &[u8],
) -> Result<Option<SignedArea>, Error> {
    match signature {
        Signature::WriteCache | Signature::KernelWriteCache | Signature::Gone(_) => {
            cache_of(device, signature, sector).await
        }
        // A slot elsewhere is the rest of a guard.
        Signature::Guard if sector == 0 => {
            let loss =
                "is the origin of a write cache, which guards it; `millpond inspect` names it";
            let (sectors, token) = (0..device.limits().capacity.0, format::token(bytes));
            Ok(Some(SignedArea { signature, sectors, loss: Some(loss.to_owned()), token }))
        }
        Signature::Guard => Ok(None),
    }
}

/// The cache of which a superblock was found; it may be a later copy.
async fn cache_of(
    device: &Rc<dyn BlockDevice>,
    signature: Signature,
    sector: u64,
) -> Result<Option<SignedArea>, Error> {
    for copy in 0..SUPERBLOCK_COPIES {
        let before = Geometry::superblock_offset(copy) / 512;
        let Some(start) = sector.checked_sub(before) else { continue };
        let report = probe(device.clone(), Sector(start), Depth::Metadata).await?;
        if is_cache(&report, start) {
            let sectors = start..start + report.end_bytes().div_ceil(512);
            let (loss, token) = (report.loss(), report.token("overwrite"));
            return Ok(Some(SignedArea { signature, sectors, loss, token }));
        }
    }
    Ok(None)
}

/// Away from the beginning of a device, where a copy of anything may lie, only a cache that can be
/// read is one.
fn is_cache(report: &ProbeReport, start: u64) -> bool {
    match &report.contents {
        Contents::Native(_) | Contents::Dm(_) => start == 0 || report.occupancy().is_some(),
        Contents::Gone(_) | Contents::Later(_) => true,
        Contents::Ruined => start == 0,
        Contents::Blank | Contents::Unknown | Contents::Replaced(_) => false,
    }
}
