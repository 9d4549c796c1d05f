// SPDX-License-Identifier: Apache-2.0 OR MIT
//! flakey `<dev> <offset> <up s> <down s> [<#features> <feature>...]`: works for `up` seconds, then
//! misbehaves for `down` seconds, over and over.
//!
//! | feature | while down |
//! |---|---|
//! | none | reads and writes fail: `error_reads error_writes`, as the table shows it |
//! | `error_reads` | reads fail |
//! | `error_writes` | writes fail |
//! | `drop_writes` | writes are dropped and succeed |
//! | `corrupt_bio_byte <nth> <r or w> <value> <flags>` | byte `nth` (from 1) becomes `value` |
//! | `random_read_corrupt <n>` | of `n` in 1,000,000,000 reads some byte becomes some value |
//! | `random_write_corrupt <n>` | the same of writes |
//!
//! Writes are all but reads: flushes and discards too, as in the kernel. Features may be written in
//! any case. `flags` must be 0: the kernel's bits of a bio are not ours.
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
    /// Of [`ODDS`] requests.
    random_read_corrupt: u32,
    random_write_corrupt: u32,
}

/// The kernel's `PROBABILITY_BASE`.
const ODDS: u32 = 1_000_000_000;

pub(crate) struct Flakey {
    area: Area,
    len: Sector,
    up_s: u32,
    down_s: u32,
    began: Nanos,
    features: Features,
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
    let features = features(&args, 4)?;
    let area = Area::open(&ctx, &args, 0, ctx.len()).await?;
    let began = reactor::now();
    Ok(Rc::new(Flakey { area, len: ctx.len(), up_s, down_s, began, features }))
}

fn features(args: &[String], at: usize) -> Result<Features, Error> {
    let features = given_features(args, at)?;
    if features == Features::default() {
        return Ok(Features { error_reads: true, error_writes: true, ..features });
    }
    Ok(features)
}

fn given_features(args: &[String], at: usize) -> Result<Features, Error> {
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
        match word.to_ascii_lowercase().as_str() {
            "error_reads" => once(&mut f.error_reads, word)?,
            "error_writes" => once(&mut f.error_writes, word)?,
            "drop_writes" => once(&mut f.drop_writes, word)?,
            "corrupt_bio_byte" => {
                if f.corrupt.replace(corrupt(args, i)?).is_some() {
                    return Err(duplicated(word));
                }
                i += 4;
            }
            "random_read_corrupt" => {
                odds(&mut f.random_read_corrupt, args, i)?;
                i += 1;
            }
            "random_write_corrupt" => {
                odds(&mut f.random_write_corrupt, args, i)?;
                i += 1;
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
     corrupt_bio_byte <nth> <r|w> <value> <flags>, random_read_corrupt <n>, \
     random_write_corrupt <n>";

fn once(flag: &mut bool, word: &str) -> Result<(), Error> {
    if std::mem::replace(flag, true) { Err(duplicated(word)) } else { Ok(()) }
}

fn duplicated(word: &str) -> Error {
    Error::invalid(format!("Feature {word} duplicated"))
}

/// The argument after the feature's name, which is `args[at]`.
fn odds(feature: &mut u32, args: &[String], at: usize) -> Result<(), Error> {
    const ALLOWED: &str = "from 0 to 1000000000";
    let given: u32 = number(args, at + 1, "Invalid random corrupt argument", ALLOWED)?;
    if given > ODDS {
        return Err(Error::invalid(format!(
            "Invalid random corrupt argument: argument {} is `{given}`, must be {ALLOWED}",
            at + 2
        )));
    }
    if std::mem::replace(feature, given) != 0 {
        return Err(duplicated(&args[at]));
    }
    Ok(())
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
            "Invalid bio flags mask: {flags} is not supported here: must be 0 (every bio)"
        )));
    }
    Ok(Corrupt { nth_byte, reads, value })
}

impl Flakey {
    fn down(&self) -> bool {
        let elapsed_s = reactor::now().saturating_sub(self.began).0 / 1_000_000_000;
        elapsed_s % u64::from(self.up_s + self.down_s) >= u64::from(self.up_s)
    }

    /// Reads, then spoils what came.
    fn read_corrupted(&self, bio: Bio, spoilt: Vec<(usize, u8)>) {
        let area = self.area.clone();
        let Bio { op, flags, class, opener, sector, len, bufs, done } = bio;
        let place = (area.offset + sector, len);
        let device = &*area.device;
        let read = reactor::io_by(opener, device, op, flags, class, place, bufs.clone());
        reactor::spawn(async move {
            let status = read.await.into();
            if status == Status::Ok {
                spoil(&bufs, &spoilt);
            }
            done.complete(status);
        });
    }

    /// The bytes of a request that become another value, as (index, value).
    fn spoilt(&self, op: Op, bufs: &Bufs) -> Vec<(usize, u8)> {
        let is_read = match op {
            Op::Read => true,
            Op::Write => false,
            Op::Flush | Op::Discard | Op::WriteZeroes => return Vec::new(),
        };
        let features = &self.features;
        let fixed = features.corrupt.filter(|c| c.reads == is_read);
        let fixed = fixed.map(|c| (c.nth_byte as usize - 1, c.value));
        let odds =
            if is_read { features.random_read_corrupt } else { features.random_write_corrupt };
        let is_hit = odds > 0 && reactor::random() % u64::from(ODDS) < u64::from(odds);
        let random = is_hit.then(|| {
            let [value, ..] = reactor::random().to_le_bytes();
            let at = reactor::random() % bufs.len_bytes() as u64;
            (usize::try_from(at).expect("it is below a usize"), value)
        });
        let reached = |(at, _): &(usize, u8)| *at < bufs.len_bytes();
        fixed.into_iter().chain(random).filter(reached).collect()
    }
}

fn spoil(bufs: &Bufs, spoilt: &[(usize, u8)]) {
    for (at, value) in spoilt {
        bufs.slice(*at..at + 1).copy_from(&[*value]);
    }
}

/// A copy of the data with some bytes spoiled; the client's own buffers stay as they are.
fn spoiled_copy(bufs: &Bufs, spoilt: &[(usize, u8)]) -> Bufs {
    let copy = Buf::alloc(bufs.len_bytes());
    copy.write(|b| bufs.copy_to(b));
    let copy = Bufs::from(copy);
    spoil(&copy, spoilt);
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
        let features = &self.features;
        match bio.op {
            Op::Read if features.error_reads => bio.complete(Status::Io),
            Op::Read => match self.spoilt(bio.op, &bio.bufs) {
                spoilt if spoilt.is_empty() => self.area.submit(bio),
                spoilt => self.read_corrupted(bio, spoilt),
            },
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                if features.drop_writes {
                    return bio.complete(Status::Ok);
                }
                if features.error_writes {
                    return bio.complete(Status::Io);
                }
                let spoilt = self.spoilt(bio.op, &bio.bufs);
                if !spoilt.is_empty() {
                    bio.bufs = spoiled_copy(&bio.bufs, &spoilt);
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
            (self.features.error_reads, "error_reads"),
            (self.features.drop_writes, "drop_writes"),
            (self.features.error_writes, "error_writes"),
        ];
        words.extend(flags.iter().filter(|f| f.0).map(|f| f.1.to_owned()));
        if let Some(c) = self.features.corrupt {
            let direction = if c.reads { "r" } else { "w" };
            words.push("corrupt_bio_byte".to_owned());
            words.extend([c.nth_byte.to_string(), direction.to_owned(), c.value.to_string()]);
            words.push("0".to_owned());
        }
        for (odds, feature) in [
            (self.features.random_read_corrupt, "random_read_corrupt"),
            (self.features.random_write_corrupt, "random_write_corrupt"),
        ] {
            if odds > 0 {
                words.extend([feature.to_owned(), odds.to_string()]);
            }
        }
        let head = format!("{} {} {} {}", self.area, self.up_s, self.down_s, words.len());
        format!("{head} {}", words.join(" "))
    }

    fn components(&self) -> Vec<Component> {
        vec![self.area.component(self.len)]
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
        let all_fails = Features { error_reads: true, error_writes: true, ..Features::default() };
        for none in ["", "0", "2 random_read_corrupt 0", "2 Error_Reads ERROR_WRITES"] {
            assert_eq!(parse(none).unwrap(), all_fails, "{none}");
        }
        let random = parse("4 random_read_corrupt 5 Random_Write_Corrupt 1000000000").unwrap();
        assert_eq!((random.random_read_corrupt, random.random_write_corrupt), (5, ODDS));
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
            ("5 corrupt_bio_byte 1 r 1 32", "Invalid bio flags mask: 32 is not supported here"),
            ("1 random_read_corrupt", "Invalid random corrupt argument: argument 3 is missing"),
            ("2 random_write_corrupt 1000000001", "must be from 0 to 1000000000"),
            ("4 random_read_corrupt 5 random_read_corrupt 5", "random_read_corrupt duplicated"),
        ] {
            let e = parse(words).unwrap_err();
            assert!(e.contains(want), "{words}: {e}");
        }
    }
}
