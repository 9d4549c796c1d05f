// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serves one device over NBD: the shortest program that does, and what the server is measured by.
//!
//! `nbd_mem SOCKET mem:BYTES|null:BYTES|PATH` serves until its standard input ends, then prints
//! what the server has done.
use std::error::Error as StdError;
use std::io::{Read, Write, stderr, stdin};
use std::path::Path;
use std::rc::Rc;

use block::{BlockDevice, CoreId, Error, Sector};
use nbd::{Export, Exports, Options, Peer, Server};
use queue::{FileLeaf, Mem, Null};
use reactor::{Reactor, spawn};
use uring::{OpenOptions, Uring};

#[derive(Clone)]
struct SingleExport(Rc<dyn BlockDevice>);

impl Exports for SingleExport {
    fn list(&self) -> Vec<String> {
        vec!["only".into()]
    }

    fn open(&self, name: &str) -> Result<Box<dyn Export>, Error> {
        match name {
            "" | "only" => Ok(Box::new(self.clone())),
            _ => Err(Error::not_found(format!("no export `{name}`: there is `only`"))),
        }
    }
}

impl Export for SingleExport {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.0.clone()
    }

    fn name(&self) -> String {
        "only".into()
    }
}

fn device(spec: &str, driver: &Uring) -> Result<Rc<dyn BlockDevice>, Box<dyn StdError>> {
    Ok(match spec.split_once(':') {
        Some(("mem", bytes)) => Rc::new(Mem::new(spec, Sector::from_bytes(bytes.parse()?))?),
        Some(("null", bytes)) => Rc::new(Null::new(spec, Sector::from_bytes(bytes.parse()?))),
        _ => {
            let opened = driver.files().open_path(Path::new(spec), OpenOptions::default())?;
            if let Some(warning) = &opened.warning {
                writeln!(stderr(), "{spec}: {warning}")?;
            }
            Rc::new(FileLeaf::new(spec, opened.file, opened.limits))
        }
    })
}

fn main() -> Result<(), Box<dyn StdError>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, socket, spec] = &args[..] else {
        return Err("usage: nbd_mem SOCKET mem:BYTES|null:BYTES|PATH".into());
    };
    let driver = Uring::new()?;
    let device = device(spec, &driver)?;
    let (files, sender) = (driver.files(), driver.sender());
    let reactor = Reactor::enter(CoreId(0), Box::new(driver));
    let server = Server::new(Rc::new(SingleExport(device)), Options::default());
    let listener = files.listen_unix(Path::new(socket), uring::SocketAccess::OWNER)?;
    reactor.on(|| server.serve(listener, Peer::Network));

    let (end, ended) = std::sync::mpsc::channel();
    #[expect(clippy::disallowed_methods, reason = "a program; the core itself stays one thread")]
    std::thread::spawn(move || {
        let _ = stdin().read_to_end(&mut Vec::new());
        let tell = move || end.send(()).unwrap_or_default();
        let _ = sender.call(tell);
    });
    reactor.run(|| ended.try_recv().is_ok());
    let done = Rc::new(std::cell::Cell::new(false));
    let (stats, set, stop) = (server.stats(), done.clone(), server);
    reactor.on(|| {
        spawn(async move {
            stop.shutdown().await;
            set.set(true);
        });
    });
    reactor.run(|| done.get());
    writeln!(stderr(), "{stats:?}")?;
    Ok(())
}
