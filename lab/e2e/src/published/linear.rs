// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mapping that does nothing but move sectors, beside the memory below it.
//!
//! ```text
//!   dmsetup create linear --table '0 2097152 linear mem:1G 0'
//!   fio --ioengine=psync --iodepth=1 --rw=read --bs=512 --direct=1 --numjobs=12 --time_based
//!       --group_reporting --filename=DIR/dev/mem:1G, then DIR/dev/mapper/linear, and again
//! ```
use std::path::Path;

use super::PATIENCE;
use super::site::Site;
use crate::Result;
use crate::fio::Fio;

/// Size and times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// The memory, in MiB.
    pub mib: u64,
    /// Runs on each file.
    pub rounds: usize,
    /// Milliseconds of a run.
    pub run_ms: u64,
}

impl Sizes {
    /// 1 GiB as published; runs as long as it takes to compare.
    pub const FULL: Sizes = Sizes { mib: 1024, rounds: 15, run_ms: 1000 };
}

/// What came of it: a figure for each round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reads {
    /// Reads a second of the memory.
    pub raw_iops: Vec<f64>,
    /// And of linear on it.
    pub linear_iops: Vec<f64>,
}

impl Reads {
    /// Linear to raw, round by round.
    pub fn ratios(&self) -> Vec<f64> {
        self.linear_iops.iter().zip(&self.raw_iops).map(|(linear, raw)| linear / raw).collect()
    }
}

/// Runs the procedure.
pub fn run(site: &Site, sizes: Sizes) -> Result<Reads> {
    // As published, where it can be said so.
    let memory = match sizes.mib {
        1024 => "mem:1G".to_owned(),
        mib => format!("mem:{mib}M"),
    };
    site.create("linear", &format!("0 {} linear {memory} 0", sizes.mib * 2048))?;
    let (raw, linear) = (site.leaf(&memory), site.mapped("linear"));

    // EE-P1: what is written to either is what the other reads, before anything is timed.
    // Every sector says where it is; the second kind of sum tells new ones from those before.
    for (to, from, sum) in [(&raw, &linear, "crc32c"), (&linear, &raw, "xxhash")] {
        let job = |file: &Path| {
            Fio::on_file(site.dir(), file)
                .with(["--bs=256k", "--verify_interval=512", "--direct=1"])
                .with([&format!("--size={}m", sizes.mib), &format!("--verify={sum}")])
        };
        job(to).with(["--rw=write", "--do_verify=0"]).run(PATIENCE)?;
        let verified = job(from).with(["--rw=read", "--verify_fatal=1"]).run(PATIENCE)?;
        if verified.reads != sizes.mib * 4 {
            return Err(format!("fio has verified {} pieces only", verified.reads));
        }
    }

    let mut reads = Reads::default();
    let published = |file: &Path| {
        let fio = Fio::on_file(site.dir(), file)
            .with(["--ioengine=psync", "--iodepth=1", "--rw=read", "--bs=512", "--direct=1"])
            .with(["--numjobs=12", "--time_based", &format!("--runtime={}ms", sizes.run_ms)])
            .with([&format!("--size={}m", sizes.mib)]);
        Ok::<f64, String>(fio.run(PATIENCE)?.read_iops)
    };
    for round in 0..sizes.rounds {
        // In turns who is first: the machine warms up, or gets tired.
        if round % 2 == 0 {
            reads.raw_iops.push(published(&raw)?);
            reads.linear_iops.push(published(&linear)?);
        } else {
            reads.linear_iops.push(published(&linear)?);
            reads.raw_iops.push(published(&raw)?);
        }
    }
    site.remove("linear")?;
    Ok(reads)
}
