// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Volumes and what comes from outside: variables, token files, stores that refuse, and objects and
//! links that somebody else has put into a store. No other device notices.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::bucket::{Bucket, PAST_EXPIRY};
use e2e::daemon::set_environment;
use e2e::test_bed::TestBed;
use e2e::{clock, pause};
use tempfile::NamedTempFile;

const TABLE: &str = "0 16384 objvol s3://bucket/disks/one";
const RAM: &str = "0 8192 linear mem:8M 0";
const URL: &str = "s3://bucket/disks/one";

/// What a verb says that fails.
fn fails(bed: &TestBed, args: &[&str]) -> String {
    let ended = bed.daemon().try_verb(args).unwrap();
    assert_ne!(ended.code, 0, "{args:?}: {}", ended.stdout);
    ended.stderr
}

/// A device beside the volume is served.
fn others_are_served(bed: &TestBed) {
    bed.connect("ram").write(0, &[7; 4096]).unwrap();
    assert!(bed.daemon().is_running(), "{}", bed.daemon().log());
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = clock() + 50.0;
    while !is_so() {
        assert!(clock() < give_up, "never {what}");
        pause(Duration::from_millis(50));
    }
}

/// Each ended the daemon, or the verb with a backtrace.
#[test]
fn a_wrong_variable_is_named_by_every_verb_and_ends_nothing() {
    for (name, value) in
        [("AWS_ENDPOINT_URL", "storage:9000"), ("AWS_REGION", "eu 1"), ("AWS_SESSION_TOKEN", "")]
    {
        let bed = TestBed::start_in(&[(name, value.into())], "", &[], &[("ram", RAM)]);
        let began = clock();
        for args in [
            &["create", "vol", "--table", TABLE][..],
            &["mkvol", URL, "8M"],
            &["inspect", URL],
            &["check", URL],
        ] {
            let why = fails(&bed, args);
            assert!(why.contains(&format!("the variable {name} ")), "{args:?}: {why}");
            assert!(why.contains("EINVAL") && !why.contains("panicked"), "{args:?}: {why}");
        }
        assert!(clock() - began < 30.0, "nothing is repeated");
        others_are_served(&bed);
        let config = bed.path("other.toml");
        let text = format!("[[device]]\nname = 'vol'\ntable = '{TABLE}'\n");
        std::fs::write(&config, text).unwrap();
        let config = config.display().to_string();
        let why = fails(&bed, &["daemon", "--config", &config, "--check-config"]);
        assert!(why.contains(&format!("the variable {name} ")), "{why}");
    }
}

/// In service: programs end a token's file with a line break, and the daemon ended.
#[test]
fn a_token_that_is_written_anew_ends_nothing() {
    let (bucket, token) = (Bucket::start().unwrap(), NamedTempFile::new().unwrap());
    bucket.offer("first", PAST_EXPIRY); // asked for again each time
    bucket.accept(&["first"]);
    let variables = bucket.variables_of_provider(token.path()).unwrap();
    let devices = [("ram", RAM), ("vol", TABLE)];
    let bed = TestBed::start_in(&variables, "", &[], &devices);
    let mut client = bed.connect("vol");
    for (text, is_right) in [("a token\n", true), ("a\nb", false), ("a token\r\n", true)] {
        std::fs::write(token.path(), text).unwrap();
        if is_right {
            client.write(0, &[7; 4096]).unwrap();
            client.flush().unwrap();
        } else {
            wait_until("refused", || bed.verb(&["get", "vol", "state"]).trim_end() == "refused");
            assert!(bed.verb(&["show", "vol"]).contains("has a line break"));
        }
        others_are_served(&bed);
    }
}

#[test]
fn a_store_that_refuses_conditions_says_how_to_do_without() {
    for (status, code) in [(501, "NotImplemented"), (400, "InvalidArgument")] {
        let bucket = Bucket::start().unwrap();
        bucket.refuse_conditions(status, code);
        let bed = TestBed::start_in(&bucket.variables(), "", &[], &[("ram", RAM)]);
        let why = fails(&bed, &["create", "vol", "--table", TABLE]);
        for word in [code, "`single_writer`", "AWS_CONDITIONAL_PUT=disabled"] {
            assert!(why.contains(word), "{why}");
        }
        assert!(!why.contains('<'), "no XML: {why}");
        // The way out.
        let [endpoint, http, key, secret] = bucket.variables();
        let conditional = ("AWS_CONDITIONAL_PUT", "disabled".to_owned());
        let mut bed = bed;
        set_environment(bed.dir(), &[endpoint, http, key, secret, conditional]).unwrap();
        bed.kill();
        bed.start_again();
        let table = format!("{TABLE} 1 single_writer");
        bed.verb(&["create", "vol", "--table", &table]);
        bed.connect("vol").write(0, &[7; 4096]).unwrap();
    }
}

/// It was repeated for a minute, and then "no answer for 64 s:".
#[test]
fn a_conflict_that_stays_is_a_refusal_with_the_stores_words() {
    let bucket = Bucket::start().unwrap();
    bucket.refuse_conditions(409, "ObjectParentIsFile");
    let bed = TestBed::start_in(&bucket.variables(), "", &[], &[("ram", RAM)]);
    let began = clock();
    let why = fails(&bed, &["mkvol", URL, "8M"]);
    assert!(why.contains("ObjectParentIsFile") && why.contains("EACCES"), "{why}");
    assert!(clock() - began < 20.0, "at once");
}

/// A volume in a directory that was written and closed, and a daemon with a device beside it.
fn closed_volume() -> (tempfile::TempDir, TestBed, String) {
    let store = tempfile::Builder::new().prefix("millpond-e2e-store-").tempdir().unwrap();
    let table = format!("0 131072 objvol file://{}", store.path().display());
    let bed = TestBed::start(&[], &[("ram", RAM)]);
    bed.verb(&["create", "vol", "--table", &table]);
    let mut client = bed.connect("vol");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    bed.verb(&["remove", "vol"]);
    (store, bed, table)
}

/// The newest object of a folder.
fn newest(folder: &Path) -> PathBuf {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let last = entries.max().unwrap();
    if last.is_dir() { newest(&last) } else { last }
}

/// A sparse object of 1 TiB aborted the daemon, and one of 512 MiB stopped all devices.
#[test]
fn a_long_object_in_a_store_is_not_read() {
    for folder in ["manifest", "owner", "checkpoint"] {
        let (store, bed, table) = closed_volume();
        let object = newest(&store.path().join(folder));
        File::options().write(true).open(&object).unwrap().set_len(1 << 40).unwrap();
        let ended = bed.daemon().try_verb(&["create", "vol", "--table", &table]).unwrap();
        // What follows a whole record means nothing; a checkpoint has a length.
        assert_eq!(ended.code == 0, folder != "checkpoint", "{folder}: {}", ended.stderr);
        if folder == "checkpoint" {
            assert!(ended.stderr.contains("it has 1099511627776 bytes"), "{}", ended.stderr);
        }
        others_are_served(&bed);
    }
}

/// An opening had no end.
#[test]
fn a_link_that_leads_back_into_a_store_is_not_followed() {
    let (store, bed, table) = closed_volume();
    for folder in ["segment", "owner"] {
        std::os::unix::fs::symlink(".", store.path().join(folder).join("loop")).unwrap();
    }
    let began = clock();
    let ended = bed.daemon().try_verb(&["create", "vol", "--table", &table]).unwrap();
    assert!(clock() - began < 20.0, "{}", ended.stderr);
    others_are_served(&bed);
    // A segment's folder may have strays; the newest owner record must be one.
    assert!(ended.stderr.contains("owner/loop is not an object of a volume"), "{}", ended.stderr);
    std::fs::remove_file(store.path().join("owner/loop")).unwrap();
    bed.verb(&["create", "vol", "--table", &table]);
}
