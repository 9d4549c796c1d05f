// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a successor asks before it greets: the tables of the daemon before, at its control socket.
//! What this version can't open is refused then. That daemon has stopped nothing yet; when it sends
//! its devices its clients wait, and go on only when the successor has ended.
use std::path::Path;
use std::time::Duration;

use block::{Error, ErrorKind, Sector};
use control::{Failure, api};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;

use crate::rundir::RunDir;

/// How long the daemon before may take to answer. Without an answer the opening of its devices
/// decides, which may be refused too.
const ANSWER: Duration = Duration::from_secs(5);

/// Fails if the arguments of a line, of so many sectors, are not understood.
type Check = fn(&[&str], Sector) -> Result<(), Error>;

/// The checks of what a line alone says, by the type of its target.
const CHECKS: [(&str, Check); 2] = [
    (writecache::MANUAL.name, |args, _| writecache::Config::parse(args).map(drop)),
    (zram::MANUAL.name, |args, len| zram::Config::parse(args, len, &AnyFile).map(drop)),
];

/// Whatever a line names is there: that is asked when the device is opened.
struct AnyFile;

impl zram::Files for AnyFile {
    fn read(&self, _path: &str) -> Result<Vec<u8>, Error> {
        Ok(vec![0; 8])
    }

    fn backing(&self, _device: &str) -> Result<(), Error> {
        Ok(())
    }
}

/// What is read of a configuration file of another version.
#[derive(Debug, Default, Deserialize)]
struct Devices {
    #[serde(default)]
    device: Vec<Device>,
}

#[derive(Debug, Deserialize)]
struct Device {
    name: String,
    table: Option<String>,
}

/// Fails if the daemon of `run_dir` has a device that this version can't open.
pub(crate) async fn refuse_unknown(run_dir: &RunDir) -> Result<(), Failure> {
    let asked = tokio::time::timeout(ANSWER, saved(&run_dir.control())).await;
    let toml = match asked {
        Ok(Ok(saved)) => saved.toml,
        Ok(Err(failure)) => {
            tracing::debug!("the daemon before does not tell its tables: {failure}");
            return Ok(());
        }
        Err(_) => return Ok(()),
    };
    let known = check(&toml);
    if let Err(failure) = &known {
        tracing::error!("refused before anything is taken over: {failure}");
        // That daemon ends this process as soon as it hears of it.
        crate::flush_log();
    }
    known
}

/// Asks for the configuration of the daemon at this socket.
async fn saved(socket: &Path) -> Result<api::SavedConfig, Failure> {
    let failed = |e: &dyn std::fmt::Display| {
        Failure::new(ErrorKind::Io, format!("{}: {e}", socket.display()))
    };
    let stream = UnixStream::connect(socket).await.map_err(|e| failed(&e))?;
    let (mut send, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    // It ends with the exchange; `send_request` returns its errors, too.
    tokio::spawn(connection);
    let request = Request::get("/v1/config").header("host", "millpond").body(Empty::<Bytes>::new());
    let answer = send.send_request(request.map_err(|e| failed(&e))?).await;
    let body = answer.map_err(|e| failed(&e))?.into_body();
    let bytes = body.collect().await.map_err(|e| failed(&e))?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|e| failed(&e))
}

fn check(toml: &str) -> Result<(), Failure> {
    let Ok(Devices { device }) = toml::from_str(toml) else { return Ok(()) };
    for Device { name, table } in device {
        let lines = table.and_then(|table| dm::parse(&table).ok()).unwrap_or_default();
        for line in lines {
            let args: Vec<&str> = line.args.iter().map(String::as_str).collect();
            let check = CHECKS.iter().find(|(kind, _)| *kind == line.kind);
            let len = match line.len {
                dm::Length::Sectors(len) => len,
                // As long as some devices: a length that every target takes.
                dm::Length::Whole => Sector(8),
            };
            let known = check.map_or(Ok(()), |(_, check)| check(&args, len));
            known.map_err(|e| Failure::from(e.within(line.kind)).within(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_not_be_opened_is_refused() {
        let toml = |options: &str| {
            let line = format!("0 8 writecache s o c 4096 {options}");
            format!("cores = 2\n[[device]]\nname = \"w\"\ntable = \"\"\"\n{line}\n8 8 zero\"\"\"\n")
        };
        for known in [&toml("0"), &toml("1 ordered"), "", "no toml", "[[device]]\nname = 'z'\n"] {
            check(known).unwrap();
        }
        let gone = check(&toml("2 parts 2")).unwrap_err().to_string();
        assert!(gone.starts_with("w: writecache: "), "{gone}");
        assert!(gone.contains("parts: millpond 0.2 was the last version"), "{gone}");
        let zram =
            |options: &str| format!("[[device]]\nname = \"z\"\ntable = \"0 8 zram {options}\"");
        check(&zram("zstd 4 backing_dev b algorithm_params dict=/d")).unwrap();
        let gone = check(&zram("zstd 3 backing_dev b persist")).unwrap_err().to_string();
        assert!(gone.starts_with("z: zram: persist: millpond 0.2 was the last"), "{gone}");
    }
}
