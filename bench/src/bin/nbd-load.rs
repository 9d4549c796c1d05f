// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lean load generator alone: `nbd-load SOCKET EXPORT randread|randwrite DEPTH SECONDS`.
use std::error::Error as StdError;
use std::io::{Write, stdout};
use std::path::Path;

use bench::load::{Client, Kind};

fn main() -> Result<(), Box<dyn StdError>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, socket, export, kind, depth, seconds] = &args[..] else {
        return Err("usage: nbd-load SOCKET EXPORT randread|randwrite DEPTH SECONDS".into());
    };
    let kind = match &kind[..] {
        "randread" => Kind::RandRead,
        "randwrite" => Kind::RandWrite,
        other => return Err(format!("{other}: neither randread nor randwrite").into()),
    };
    let mut client = Client::connect(Path::new(socket), export)?;
    let done = client.run(kind, depth.parse()?, seconds.parse()?)?;
    let us = |q| done.latency_ns.value_at_quantile(q) as f64 / 1e3;
    writeln!(
        stdout(),
        "{} {depth} deep: {:.0} IOPS, latency us p50 {:.1} p99 {:.1} p99.9 {:.1}",
        kind.name(),
        done.iops,
        us(0.5),
        us(0.99),
        us(0.999)
    )?;
    Ok(())
}
