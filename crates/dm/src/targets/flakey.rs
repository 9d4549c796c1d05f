// SPDX-License-Identifier: Apache-2.0 OR MIT
//! flakey `<dev> <offset> <up s> <down s> [<#features> <feature>...]`: works for `up` seconds, then
//! misbehaves for `down` seconds, over and over.
//!
//! | feature | while down |
//! |---|---|
//! | none | reads and writes fail |
//! | `error_reads` | reads fail |
//! | `error_writes` | writes fail |
//! | `drop_writes` | writes are dropped and succeed |
//! | `corrupt_bio_byte <nth> <r or w> <value> <flags>` | byte `nth` (from 1) becomes `value` |
//!
//! Writes are all but reads: flushes and discards too, as in the kernel.
use std::rc::Rc;

use block::attr::Manual;
use block::{
    Bio, BlockDevice, Buf, Bufs, Component, Error, Limits, Nanos, Op, Sector, Status, Target,
};

use crate::area::{Area, number};
use crate::context::Context;

pub(super) static MANUAL: Manual = Manual::new(
    "flakey",
    (1, 5, 0),
    "a device that fails for some seconds of each interval",
    "<dev> <offset> <up> <down> [<#features> <feature>...]",
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Corrupt {
    /// From 1.
    nth_byte: u32,
    reads: bool,
    value: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Features {
    error_reads: bool,
    error_writes: bool,
    drop_writes: bool,
    corrupt: Option<Corrupt>,
}

pub(crate) struct Flakey {
    area: Area,
    len: Sector,
    up_s: u32,
    down_s: u32,
    began: Nanos,
    /// As the table line has them.
    given: Features,
}

pub(crate) async fn construct(ctx: Context, args: Vec<String>) -> Result<Rc<dyn Target>, Error> {
    if args.len() < 4 {
        return Err(Error::invalid(format!(
            "Invalid argument count: {} given, must be <dev> <offset> <up> <down> [<#features> \
             <feature>...]",
            args.len()
        )));
    }
    let up_s: u32 = number(&args, 2, "Invalid up interval", "seconds")?;
    let down_s: u32 = number(&args, 3, "Invalid down interval", "seconds")?;
    if up_s == 0 && down_s == 0 {
        return Err(Error::invalid("Total (up + down) interval is zero: must be at least 1 s"));
    }
    if up_s.checked_add(down_s).is_none() {
        return Err(Error::invalid("Interval overflow: up + down must be below 2^32 s"));
    }
    let given = features(&args, 4)?;
    let area = Area::open(&ctx, &args, 0, ctx.len()).await?;
    let began = reactor::now();
    Ok(Rc::new(Flakey { area, len: ctx.len(), up_s, down_s, began, given }))
}

fn features(args: &[String], at: usize) -> Result<Features, Error> {
    let mut f = Features::default();
    if args.len() == at {
        return Ok(f);
    }
    let count: usize = number(args, at, "Invalid number of feature args", "a decimal number")?;
    let given = args.len() - at - 1;
    if count != given {
        return Err(Error::invalid(format!(
            "Invalid number of feature args: argument {} says {count}, {given} follow",
            at + 1
        )));
    }
    let mut i = at + 1;
    while let Some(word) = args.get(i) {
        match word.as_str() {
            "error_reads" => once(&mut f.error_reads, word)?,
            "error_writes" => once(&mut f.error_writes, word)?,
            "drop_writes" => once(&mut f.drop_writes, word)?,
            "corrupt_bio_byte" => {
                if f.corrupt.replace(corrupt(args, i)?).is_some() {
                    return Err(duplicated(word));
                }
                i += 4;
            }
            "random_read_corrupt" | "random_write_corrupt" => {
                return Err(Error::invalid(format!(
                    "feature {word} is not supported here; {KNOWN_FEATURES}"
                )));
            }
            _ => {
                return Err(Error::invalid(format!(
                    "Unrecognised flakey feature requested: argument {} is `{word}`; \
                     {KNOWN_FEATURES}",
                    i + 1
                )));
            }
        }
        i += 1;
    }
    if f.drop_writes && f.error_writes {
        return Err(Error::invalid("Feature drop_writes conflicts with feature error_writes"));
    }
    if f.corrupt.is_some_and(|c| !c.reads) && (f.drop_writes || f.error_writes) {
        let feature = if f.drop_writes { "drop_writes" } else { "error_writes" };
        return Err(Error::invalid(format!(
            "{feature} is incompatible with corrupt_bio_byte with the WRITE flag set"
        )));
    }
    Ok(f)
}

const KNOWN_FEATURES: &str = "known are error_reads, error_writes, drop_writes, \
     corrupt_bio_byte <nth> <r|w> <value> <flags>";

fn once(flag: &mut bool, word: &str) -> Result<(), Error> {
    if std::mem::replace(flag, true) { Err(duplicated(word)) } else { Ok(()) }
}

fn duplicated(word: &str) -> Error {
    Error::invalid(format!("Feature {word} duplicated"))
}

/// The four arguments after the feature's name, which is `args[at]`.
fn corrupt(args: &[String], at: usize) -> Result<Corrupt, Error> {
    if args.len() < at + 5 {
        return Err(Error::invalid(
            "Feature corrupt_bio_byte requires parameters: <nth byte> <r|w> <value> <flags>",
        ));
    }
    let nth_byte = number(args, at + 1, "Invalid Nth byte", "a number from 1")?;
    if nth_byte == 0 {
        return Err(Error::invalid("Invalid Nth byte: must be a number from 1"));
    }
    let reads = match args[at + 2].as_str() {
        "r" | "R" => true,
        "w" | "W" => false,
        other => {
            return Err(Error::invalid(format!(
                "Invalid corrupt bio direction (r or w): argument {} is `{other}`",
                at + 3
            )));
        }
    };
    let value = number(args, at + 3, "Invalid value of corrupt byte", "from 0 to 255")?;
    let flags: u32 = number(args, at + 4, "Invalid bio flags mask", "a decimal number")?;
    if flags != 0 {
        return Err(Error::invalid(format!(
            "bio flags mask {flags} is not supported here: must be 0 (every bio)"
        )));
    }
    Ok(Corrupt { nth_byte, reads, value })
}

impl Flakey {
    fn down(&self) -> bool {
        let elapsed_s = reactor::now().saturating_sub(self.began).0 / 1_000_000_000;
        elapsed_s % u64::from(self.up_s + self.down_s) >= u64::from(self.up_s)
    }

    /// What holds while down: nothing given means that everything fails.
    fn features(&self) -> Features {
        if self.given == Features::default() {
            return Features { error_reads: true, error_writes: true, ..self.given };
        }
        self.given
    }

    /// Reads, then spoils what came.
    fn read_corrupted(&self, bio: Bio, corrupt: Corrupt) {
        let area = self.area.clone();
        let Bio { op, flags, class, opener, sector, len, bufs, done } = bio;
        let place = (area.offset + sector, len);
        let device = &*area.device;
        let read = reactor::io_by(opener, device, op, flags, class, place, bufs.clone());
        reactor::spawn(async move {
            let status = read.await.into();
            if status == Status::Ok {
                set_byte(&bufs, corrupt);
            }
            done.complete(status);
        });
    }
}

/// Sets the byte, if the data reaches as far.
fn set_byte(bufs: &Bufs, corrupt: Corrupt) {
    let nth = corrupt.nth_byte as usize;
    if nth <= bufs.len_bytes() {
        bufs.slice(nth - 1..nth).copy_from(&[corrupt.value]);
    }
}

/// A copy of the data with one byte spoiled; the client's own buffers stay as they are.
fn spoiled_copy(bufs: &Bufs, corrupt: Corrupt) -> Bufs {
    let copy = Buf::alloc(bufs.len_bytes());
    copy.write(|b| bufs.copy_to(b));
    let copy = Bufs::from(copy);
    set_byte(&copy, corrupt);
    copy
}

impl BlockDevice for Flakey {
    fn name(&self) -> &str {
        "flakey"
    }

    fn limits(&self) -> Limits {
        self.area.limits(self.len)
    }

    fn submit(&self, mut bio: Bio) {
        if !self.down() {
            return self.area.submit(bio);
        }
        let features = self.features();
        match bio.op {
            Op::Read if features.error_reads => bio.complete(Status::Io),
            Op::Read => match features.corrupt {
                Some(c) if c.reads => self.read_corrupted(bio, c),
                _ => self.area.submit(bio),
            },
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                if features.drop_writes {
                    return bio.complete(Status::Ok);
                }
                if features.error_writes {
                    return bio.complete(Status::Io);
                }
                if let Some(c) = features.corrupt.filter(|c| !c.reads && bio.op == Op::Write) {
                    bio.bufs = spoiled_copy(&bio.bufs, c);
                }
                self.area.submit(bio);
            }
        }
    }
}

impl Target for Flakey {
    fn kind(&self) -> &'static str {
        "flakey"
    }

    fn table(&self) -> String {
        let mut words = Vec::new();
        let flags = [
            (self.given.error_reads, "error_reads"),
            (self.given.drop_writes, "drop_writes"),
            (self.given.error_writes, "error_writes"),
        ];
        words.extend(flags.iter().filter(|f| f.0).map(|f| f.1.to_owned()));
        if let Some(c) = self.given.corrupt {
            let direction = if c.reads { "r" } else { "w" };
            words.push("corrupt_bio_byte".to_owned());
            words.extend([c.nth_byte.to_string(), direction.to_owned(), c.value.to_string()]);
            words.push("0".to_owned());
        }
        let head = format!("{} {} {} {}", self.area, self.up_s, self.down_s, words.len());
        if words.is_empty() { head } else { format!("{head} {}", words.join(" ")) }
    }

    fn components(&self) -> Vec<Component> {
        vec![self.area.component(self.len)]
    }

    fn deps(&self) -> Vec<String> {
        vec![self.area.device.name().to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Features, String> {
        let args: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        features(&args, 0).map_err(|e| e.to_string())
    }

    #[test]
    fn features_are_counted_named_and_checked() {
        assert_eq!(parse("").unwrap(), Features::default());
        let all = parse("6 corrupt_bio_byte 32 r 255 0 drop_writes").unwrap();
        assert!(all.drop_writes);
        assert_eq!(all.corrupt, Some(Corrupt { nth_byte: 32, reads: true, value: 255 }));
        for (words, want) in [
            ("2 drop_writes", "argument 1 says 2, 1 follow"),
            ("1 nonsense", "argument 2 is `nonsense`; known are error_reads"),
            ("2 drop_writes drop_writes", "Feature drop_writes duplicated"),
            ("2 drop_writes error_writes", "conflicts with feature error_writes"),
            ("6 corrupt_bio_byte 1 w 0 0 drop_writes", "drop_writes is incompatible"),
            ("5 corrupt_bio_byte 0 w 0 0", "Invalid Nth byte"),
            ("5 corrupt_bio_byte 1 x 0 0", "direction (r or w): argument 4 is `x`"),
            ("5 corrupt_bio_byte 1 r 256 0", "Invalid value of corrupt byte"),
            ("5 corrupt_bio_byte 1 r 1 32", "bio flags mask 32 is not supported here"),
            ("2 random_read_corrupt 5", "random_read_corrupt is not supported here"),
        ] {
            let e = parse(words).unwrap_err();
            assert!(e.contains(want), "{words}: {e}");
        }
    }
}
