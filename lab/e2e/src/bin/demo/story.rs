// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The phases of the demo, in order.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::fio::{Fio, Measured, Running};
use e2e::process::{Process, run};
use e2e::stamp::{Found, Stamps, Written};
use e2e::{Result, clock, pause};

use crate::own_client::{self, FillPlan};
use crate::report::{Figures, Flush, Reporter};
use crate::scene::{self, Sizes};

/// Longest run of one fio: slow disks get a smaller part of the job, no longer one.
const FIO_SECONDS: u64 = 40;
/// Longest wait for anything, so that the demo never hangs.
const PATIENCE: Duration = Duration::from_secs(900);
/// Load before the kill.
const BEFORE_KILL: Duration = Duration::from_secs(2);
/// Same places, same data, every time.
const SEED: u64 = 42;

/// Who writes and reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clients {
    /// fio and nbdcopy.
    Others,
    /// This program.
    Own,
}

impl Clients {
    fn name(self) -> &'static str {
        match self {
            Clients::Others => "fio",
            Clients::Own => "own client",
        }
    }
}

/// The load at the time of the kill.
enum Load<'scope> {
    Fio(Running),
    Own(std::thread::ScopedJoinHandle<'scope, Result<()>>),
}

impl Load<'_> {
    fn is_running(&self) -> bool {
        match self {
            Load::Fio(fio) => fio.is_running(),
            Load::Own(own) => !own.is_finished(),
        }
    }

    /// Waits for its end after the server was killed, which has to be a failure: returns its words.
    fn wait_failed(self) -> Result<String> {
        match self {
            Load::Fio(fio) => fio.wait_failed(PATIENCE),
            Load::Own(own) => match own.join().expect("the load does not panic") {
                Ok(()) => Err("the server was killed, but the load did not fail".into()),
                Err(why) => Ok(why),
            },
        }
    }
}

/// What all phases know.
struct Stage<'a> {
    program: &'a Path,
    dir: &'a Path,
    sizes: Sizes,
    clients: Clients,
    reporter: Reporter,
}

pub(crate) fn tell(program: &Path, dir: &Path, sizes: Sizes, clients: Clients) -> Result<()> {
    let mut stage = Stage { program, dir, sizes, clients, reporter: Reporter::new() };
    stage.make_files()?;
    let daemon = stage.serve("cache.img", "sorted")?;
    let fill = stage.fill(&daemon)?;
    let mut stamps = stage.kill_in_the_middle(daemon)?;
    let daemon = stage.recover()?;
    stage.verify(&daemon, &mut stamps)?;
    let daemon = stage.keep_a_copy(daemon)?;
    let sorted = stage.flush(&daemon, "sorted")?;
    let sum = stage.compare(&daemon)?;
    stage.verify_origin(&mut stamps)?;
    stage.end(daemon)?;
    let lru = stage.flush_again_in_lru_order(sorted.dirty_blocks, &sum)?;
    let alone = stage.origin_alone()?;
    let figures =
        Figures { cache_iops: fill.write_iops, origin_iops: alone.write_iops, sorted, lru };
    figures.print();
    println!("demo: PASSED in {:.0} s: nothing was lost", stage.reporter.seconds());
    Ok(())
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

impl Stage<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn make_files(&mut self) -> Result<()> {
        let (origin, cache) = (self.sizes.origin_bytes, self.sizes.cache_bytes());
        let dir = self.dir.display();
        let what = format!("{} MiB origin and {} MiB cache in {dir}", mib(origin), mib(cache));
        self.reporter.phase(&what);
        scene::make_origin(&self.path("origin.img"), self.sizes)?;
        scene::make_cache(&self.path("cache.img"), self.sizes)?;
        self.reporter.done("every block of the origin says its number");
        Ok(())
    }

    /// A daemon with a write cache on this cache file. No watermark starts writeback, so that what
    /// is written stays in the cache until the flush.
    fn serve(&self, cache: &str, order: &str) -> Result<Daemon> {
        let table = format!(
            "0 {} writecache s ./origin.img ./{cache} 4096 6 high_watermark 100 \
             low_watermark 100 writeback_order {order}",
            self.sizes.origin_bytes / 512
        );
        Daemon::start(self.program, self.dir, &[("wc", &table)])
    }

    /// The fill of a device, and its verification.
    fn write_fill(&self, daemon: &Daemon, device: &str) -> Result<Measured> {
        match self.clients {
            // Its own verification follows the writes.
            Clients::Others => self.fio(&daemon.uri(device)).run(PATIENCE),
            Clients::Own => {
                let plan = self.fill_plan();
                let mut client = daemon.connect(device)?;
                let written = plan.write(&mut client, FIO_SECONDS).map_err(|e| e.to_string())?;
                if written.writes < self.sizes.fill_bytes() / 4096 {
                    return Ok(written); // a slow disk: there is no more to check
                }
                Ok(Measured { reads: plan.check(reads(&mut client))?, ..written })
            }
        }
    }

    fn fill_plan(&self) -> FillPlan {
        FillPlan::new(self.sizes.fill_area_bytes(), self.sizes.fill_bytes(), SEED)
    }

    fn fio(&self, uri: &str) -> Fio {
        self.filling(Fio::new(self.dir, uri))
    }

    fn filling(&self, fio: Fio) -> Fio {
        let (area, bytes) = (self.sizes.fill_area_bytes(), self.sizes.fill_bytes());
        fio.with(["--rw=randwrite", "--iodepth=32", "--verify=crc32c", "--end_fsync=1"])
            .with([&format!("--size={area}"), &format!("--io_size={bytes}")])
            .with([&format!("--runtime={FIO_SECONDS}"), &format!("--randseed={SEED}")])
    }

    fn fill(&mut self, daemon: &Daemon) -> Result<Measured> {
        let what = format!(
            "{}: {} MiB of random 4 KiB writes to the cache, flush, verify",
            self.clients.name(),
            mib(self.sizes.fill_bytes())
        );
        self.reporter.phase(&what);
        let fill = self.write_fill(daemon, "wc")?;
        let dirty = daemon.attribute("wc", "dirty_blocks")?;
        self.reporter.done(&format!(
            "{} writes at {:.0} IOPS, {} reads verified, {dirty} blocks dirty",
            fill.writes, fill.write_iops, fill.reads
        ));
        if fill.writes < self.sizes.fill_bytes() / 4096 {
            return Err(format!(
                "this disk took only {} writes in {FIO_SECONDS} s: choose a smaller --size",
                fill.writes
            ));
        }
        Ok(fill)
    }

    /// Kills the daemon while a load writes, and beside it a writer that keeps books about what was
    /// answered and what was flushed.
    fn kill_in_the_middle(&mut self, daemon: Daemon) -> Result<Stamps> {
        let name = self.clients.name();
        self.reporter
            .phase(&format!("kill -9 in the middle of writes of {name}, and stamped ones"));
        let mut stamps = Stamps::new(self.sizes.stamps(), SEED);
        let mut client = daemon.connect("wc")?;
        let mut of_load = daemon.connect("wc")?;
        let mut written = Written::default();
        let stop_at = clock() + PATIENCE.as_secs_f64();
        let load = self.sizes.load();
        let (busy, broken, load) = std::thread::scope(|scope| {
            let load = match self.clients {
                Clients::Others => Load::Fio(self.fio_load(&daemon).start()?),
                Clients::Own => Load::Own(
                    scope.spawn(|| own_client::overwrite(&mut of_load, load, SEED, stop_at)),
                ),
            };
            let writer = scope
                .spawn(|| stamps.write(&mut client, &mut written, |_| clock() > stop_at).err());
            pause(BEFORE_KILL);
            let busy = load.is_running() && !writer.is_finished();
            daemon.kill()?;
            let broken = writer.join().expect("the writer does not panic");
            Ok::<_, String>((busy, broken, load.wait_failed()?))
        })?;
        let broken = broken.map_or_else(|| "no error".to_owned(), |e| e.to_string());
        if !busy {
            let what = "load or stamps ended before the kill";
            return Err(format!("{what}: stamps: {broken}; load: {load}"));
        }
        self.reporter.done(&format!(
            "killed; {} stamped writes and {} flushes had been answered",
            written.writes, written.flushes
        ));
        Ok(stamps)
    }

    fn fio_load(&self, daemon: &Daemon) -> Fio {
        let load = self.sizes.load();
        Fio::new(self.dir, &daemon.uri("wc"))
            .with(["--rw=randwrite", "--iodepth=32"])
            .with(["--verify=pattern", "--verify_pattern=%o", "--do_verify=0"])
            .with(["--time_based", "--runtime=600", "--fsync=256"])
            .with([&format!("--offset={}", load.start)])
            .with([&format!("--size={}", load.end - load.start)])
    }

    fn recover(&mut self) -> Result<Daemon> {
        self.reporter.phase("start again on what is on the disk");
        let daemon = Daemon::restart(self.program, self.dir)?;
        let dirty = daemon.attribute("wc", "dirty_blocks")?;
        self.reporter.done(&format!("recovered with {dirty} dirty blocks"));
        Ok(daemon)
    }

    fn verify(&mut self, daemon: &Daemon, stamps: &mut Stamps) -> Result<()> {
        self.reporter.phase("verify through the cache: all of the fill, load, stamps");
        let mut client = daemon.connect("wc")?;
        let fill = match self.clients {
            Clients::Others => {
                self.fio(&daemon.uri("wc")).with(["--verify_only"]).run(PATIENCE)?.reads
            }
            Clients::Own => self.fill_plan().check(reads(&mut client))?,
        };
        if fill < self.sizes.fill_bytes() / 4096 {
            return Err(format!("only {fill} blocks of the fill were verified"));
        }
        let new = scene::check_load(self.sizes.load(), reads(&mut client))
            .map_err(|e| format!("load: {e}"))?;
        let found = stamps.check(reads(&mut client)).map_err(|e| format!("stamps: {e}"))?;
        let Found { newest, older, owed } = found;
        self.reporter.done(&format!("{fill} blocks of the fill are intact"));
        self.reporter.done(&format!("load: {new} new blocks, the others are old, none is torn"));
        self.reporter.done(&format!(
            "stamps: {newest} blocks as last answered, {older} older as they may be (not flushed); \
             {owed} owed by a flush are all there"
        ));
        Ok(())
    }

    /// A restart in order, and a copy of the cache on the way: the same dirty set for both flushes.
    fn keep_a_copy(&mut self, daemon: Daemon) -> Result<Daemon> {
        self.reporter.phase("SIGTERM; copy the cache file for the second flush; start again");
        let dirty = daemon.attribute("wc", "dirty_blocks")?;
        daemon.terminate()?;
        scene::copy(&self.path("cache.img"), &self.path("copy.img"))?;
        let daemon = self.serve("cache.img", "sorted")?;
        let after = daemon.attribute("wc", "dirty_blocks")?;
        if dirty != after {
            return Err(format!("{dirty} blocks were dirty before the restart, {after} after it"));
        }
        self.reporter.done(&format!("{after} dirty blocks are still there"));
        Ok(daemon)
    }

    fn flush(&mut self, daemon: &Daemon, order: &str) -> Result<Flush> {
        self.reporter.phase(&format!("millpond message wc 0 flush, {order} order"));
        let count = |name: &str| daemon.attribute("wc", name);
        let dirty_blocks = count("dirty_blocks")?;
        let (writes, bytes) = (count("origin_writes")?, count("origin_write_bytes")?);
        let began = clock();
        // Its progress goes to the standard error that we have.
        let message = Process::start(&mut daemon.command(&["message", "wc", "0", "flush"]))?;
        let code = message.wait(PATIENCE)?;
        let seconds = clock() - began;
        if code != 0 {
            return Err(format!("flush: exit code {code}:\n{}", daemon.log()));
        }
        if count("dirty_blocks")? != 0 {
            return Err("blocks are dirty after the flush, though nobody writes".into());
        }
        let flush = Flush {
            seconds,
            dirty_blocks,
            origin_writes: count("origin_writes")? - writes,
            origin_write_bytes: count("origin_write_bytes")? - bytes,
        };
        let Flush { origin_writes, origin_write_bytes, .. } = flush;
        self.reporter.done(&format!(
            "{dirty_blocks} blocks in {origin_writes} writes, {} MiB",
            mib(origin_write_bytes)
        ));
        Ok(flush)
    }

    /// The origin has to hold what is served. Returns its sum.
    fn compare(&mut self, daemon: &Daemon) -> Result<String> {
        let origin = match self.clients {
            Clients::Others => self.compare_sums(daemon)?,
            Clients::Own => {
                self.reporter.phase("the origin file and the served device, byte by byte");
                let mut client = daemon.connect("wc")?;
                let origin = self.path("origin.img");
                let file = scene::reader(&origin)?;
                own_client::compare(self.sizes.origin_bytes, file, reads(&mut client))?;
                self.sum_of_origin()?
            }
        };
        self.reporter.done(&format!("equal: {origin}"));
        Ok(origin)
    }

    fn compare_sums(&mut self, daemon: &Daemon) -> Result<String> {
        self.reporter.phase("sha256 of the origin file and of the served device");
        let mut copy = Command::new("nbdcopy");
        copy.arg(daemon.uri("wc")).arg("-").stdout(Stdio::piped());
        let (copy, served) = Process::start_piped(&mut copy)?;
        let mut sum = Command::new("sha256sum");
        let served = e2e::process::Job::start_with(sum.arg("-"), served.into())?;
        let origin = self.sum_of_origin()?;
        let served = first_word(&served.wait(PATIENCE)?.ok()?);
        let code = copy.wait(PATIENCE)?;
        if code != 0 {
            return Err(format!("nbdcopy: exit code {code}"));
        }
        if origin != served {
            return Err(format!("the origin is {origin}, but served is {served}"));
        }
        Ok(origin)
    }

    fn sum_of_origin(&self) -> Result<String> {
        let mut sum = Command::new("sha256sum");
        Ok(first_word(&run(sum.arg(self.path("origin.img")), PATIENCE)?.ok()?))
    }

    /// What clients wrote is in the origin itself, seen without any of our code on the way.
    fn verify_origin(&mut self, stamps: &mut Stamps) -> Result<()> {
        self.reporter.phase("verify the origin file itself");
        let origin = self.path("origin.img");
        let fill = match self.clients {
            Clients::Others => {
                let fio = self.filling(Fio::on_file(self.dir, &origin));
                fio.with(["--verify_only"]).run(PATIENCE)?.reads
            }
            Clients::Own => self.fill_plan().check(scene::reader(&origin)?)?,
        };
        scene::check_load(self.sizes.load(), scene::reader(&origin)?)
            .map_err(|e| format!("load: {e}"))?;
        stamps.check(scene::reader(&origin)?).map_err(|e| format!("stamps: {e}"))?;
        self.reporter.done(&format!("{fill} blocks of the fill, load and stamps are there"));
        Ok(())
    }

    fn end(&mut self, daemon: Daemon) -> Result<()> {
        self.reporter.phase("SIGTERM");
        daemon.terminate()?;
        self.reporter.done("exit code 0");
        Ok(())
    }

    fn flush_again_in_lru_order(&mut self, dirty: u64, sum: &str) -> Result<Flush> {
        let daemon = self.serve("copy.img", "lru")?;
        let flush = self.flush(&daemon, "lru")?;
        daemon.terminate()?;
        if flush.dirty_blocks != dirty {
            return Err(format!("sorted {dirty} blocks, lru {}: not the same", flush.dirty_blocks));
        }
        self.reporter.phase("sha256 of the origin file");
        let again = self.sum_of_origin()?;
        if again != sum {
            return Err(format!("the origin is {again} after the flush in LRU order"));
        }
        self.reporter.done("the same");
        Ok(flush)
    }

    fn origin_alone(&mut self) -> Result<Measured> {
        let name = self.clients.name();
        self.reporter.phase(&format!("{name}: the same writes to the origin alone (linear)"));
        let sectors = self.sizes.origin_bytes / 512;
        let table = format!("0 {sectors} linear ./origin.img 0");
        let daemon = Daemon::start(self.program, self.dir, &[("origin", &table)])?;
        let alone = self.write_fill(&daemon, "origin")?;
        daemon.terminate()?;
        self.reporter.done(&format!("{} writes at {:.0} IOPS", alone.writes, alone.write_iops));
        Ok(alone)
    }
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

fn reads(client: &mut Client) -> impl FnMut(u64, &mut [u8]) -> std::io::Result<()> {
    |offset, data| client.read(offset, data)
}
