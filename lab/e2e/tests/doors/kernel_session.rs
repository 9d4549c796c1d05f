// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal session of a machine with the kernel's own writecache (Linux 6.1), done again with
//! this program: the same tables, requests and messages, and line by line the same answers.
//!
//! The cache devices have the kernel's format, so that as many blocks fit.

use std::fs;
use std::path::Path;

use e2e::client::Client;
use e2e::test_bed::TestBed;

const MIB: u64 = 1 << 20;
const ORIGIN_BYTES: u64 = 4 * MIB;

/// What the kernel showed in a section of the session.
struct Section {
    /// Words after the cache device: block size and options.
    tables: Vec<String>,
    status: Vec<String>,
}

fn section(title: &str) -> Section {
    let path = "../../crates/writecache/tests/golden/kernel-session.txt";
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (_, rest) = text.split_once(&format!("== {title}\n")).unwrap();
    let lines = rest.split("\n== ").next().unwrap().lines();
    let table = |line: &str| {
        let words = line.strip_prefix("table: ")?.splitn(7, ' ').last()?;
        Some(words.to_owned())
    };
    Section {
        tables: lines.clone().filter_map(table).collect(),
        status: lines.filter(|l| l.starts_with("0 8192 writecache ")).map(str::to_owned).collect(),
    }
}

/// A daemon with an origin of 4 MiB.
struct Session {
    bed: TestBed,
    mode: &'static str,
    shown: Vec<String>,
}

impl Session {
    fn new(mode: &'static str) -> Session {
        let bed = TestBed::start(&[("origin.img", ORIGIN_BYTES)], &[]);
        Session { bed, mode, shown: Vec::new() }
    }

    fn line(&self, cache: &str, words: &str) -> String {
        let path = |name: &str| self.bed.path(name).display().to_string();
        let (origin, cache) = (path("origin.img"), path(cache));
        format!("0 8192 writecache {} {origin} {cache} {words}", self.mode)
    }

    /// Makes `wc` by the session's words over a new cache in the kernel's format; its table line is
    /// what it was given.
    fn create(&self, cache: &str, cache_bytes: u64, words: &str) {
        self.bed.make_file(cache, cache_bytes);
        let block_size = words.split(' ').next().unwrap();
        let start = words.split(' ').skip_while(|w| *w != "start_sector").nth(1).unwrap_or("0");
        let new = format!("{block_size} 4 format dm start_sector {start}");
        self.bed.verb(&["create", "new", "--table", &self.line(cache, &new)]);
        self.bed.verb(&["remove", "new"]);
        let line = self.line(cache, words);
        self.bed.verb(&["create", "wc", "--table", &line]);
        self.assert_table(&line);
    }

    fn assert_table(&self, line: &str) {
        assert_eq!(self.bed.verb(&["table", "wc"]).trim_end(), line);
    }

    fn status(&mut self) {
        self.shown.push(self.bed.verb(&["status", "wc"]).trim_end().to_owned());
    }

    fn message(&self, word: &str) {
        assert_eq!(self.bed.verb(&["message", "wc", "0", word]), "");
    }

    fn connect(&self) -> Client {
        self.bed.connect("wc")
    }
}

/// Reads all of it, as the session did to take its checksum.
fn view(client: &mut Client) {
    let mut data = vec![0; MIB as usize];
    for at in (0..ORIGIN_BYTES).step_by(data.len()) {
        client.read(at, &mut data).unwrap();
    }
}

fn write(client: &mut Client, block_size: u64, blocks: std::ops::Range<u64>) {
    for block in blocks {
        client.write(block * block_size, &vec![7; block_size as usize]).unwrap();
    }
}

/// With the FLUSH behind it.
fn write_and_flush(client: &mut Client, block_size: u64, blocks: std::ops::Range<u64>) {
    write(client, block_size, blocks);
    client.flush().unwrap();
}

#[test]
fn writes_flushes_and_messages_act_as_in_the_kernel() {
    for block_size in [4096, 512] {
        let kernel = section(&format!("ssd mode, block size {block_size}"));
        let mut session = Session::new("s");
        session.create("cache.img", 2 * MIB, &kernel.tables[0]);
        let mut client = session.connect();
        session.status();
        view(&mut client);
        write_and_flush(&mut client, block_size, 0..16);
        write_and_flush(&mut client, block_size, 16..24);
        session.status();
        view(&mut client);
        write_and_flush(&mut client, block_size, 4..8);
        session.status();
        view(&mut client);
        write(&mut client, block_size, 500..508);
        session.status();
        view(&mut client);
        session.message("flush");
        session.status();
        view(&mut client);
        session.message("CLEAR_STATS");
        session.status();
        assert_eq!(session.shown, kernel.status, "block size {block_size}");
        let bogus = session.bed.daemon().try_verb(&["message", "wc", "0", "bogus"]).unwrap();
        assert_eq!(bogus.code, 1);
        assert!(bogus.stderr.contains("EINVAL") && bogus.stderr.contains("grow are allowed"));
        let bogus = session.bed.daemon().try_verb(&["message", "wc", "0", "flush", "now"]).unwrap();
        assert_eq!(bogus.code, 1, "{}", bogus.stderr);
    }
}

#[test]
fn mode_p_shows_what_the_kernel_showed() {
    let kernel = section("pmem mode");
    let mut session = Session::new("p");
    session.create("cache.img", 64 * MIB, &kernel.tables[0]);
    let mut client = session.connect();
    write_and_flush(&mut client, 4096, 0..16);
    write_and_flush(&mut client, 4096, 4..8);
    session.status();
    assert_eq!(session.shown, kernel.status);
}

#[test]
fn flush_on_suspend_cleaner_and_options_act_as_in_the_kernel() {
    let title = "flush_on_suspend, cleaner, metadata_only, pause_writeback, start_sector, \
                 fua/nofua, autocommit, writeback_jobs, max_age";
    let kernel = section(title);
    let mut session = Session::new("s");
    session.create("cache.img", 2 * MIB, &kernel.tables[0]);
    let mut client = session.connect();
    write_and_flush(&mut client, 4096, 0..16);
    view(&mut client);
    session.message("flush_on_suspend");
    session.bed.verb(&["suspend", "wc"]);
    session.status();
    // The kernel's word for it is EBUSY.
    let suspended = session.bed.daemon().try_verb(&["message", "wc", "0", "flush"]).unwrap();
    assert_eq!(suspended.code, 4, "{}", suspended.stderr);
    session.bed.verb(&["resume", "wc"]);
    session.status();
    session.message("cleaner");
    write_and_flush(&mut client, 4096, 100..104);
    session.status();
    session.assert_table(&session.line("cache.img", &kernel.tables[1]));
    assert_eq!(kernel.tables[1], kernel.tables[0], "the message does not show");
    drop(client);
    for (cache, words) in [("c2.img", &kernel.tables[2]), ("c3.img", &kernel.tables[3])] {
        while session.bed.daemon().try_verb(&["remove", "wc"]).unwrap().code == 4 {
            e2e::pause(std::time::Duration::from_millis(5)); // the client has just gone
        }
        session.create(cache, 2 * MIB, words);
        session.status();
    }
    // Of the last table the kernel's session shows no status.
    assert_eq!(session.shown[..4], kernel.status[..]);
    let origin = fs::read(session.bed.path("origin.img")).unwrap();
    let (flushed, around) = (&origin[..16 * 4096], &origin[100 * 4096..104 * 4096]);
    assert!(flushed.iter().chain(around).all(|byte| *byte == 7));
}
