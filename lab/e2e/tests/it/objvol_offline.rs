// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs on images of caches whose origin is a volume on an object store: `recover` and `wipe`,
//! after the death of the daemon.
use std::path::Path;

use e2e::process::Ended;
use e2e::test_bed::TestBed;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const SECTORS: u64 = 8 * MIB / 512;
const BLOCK: u64 = 4096;

/// A killed daemon that had a volume in a directory and a cache before it, which holds data that
/// the volume does not have; and another one, the verbs of which find no journal.
struct Scene {
    store: tempfile::TempDir,
    bed: TestBed,
    desk: TestBed,
}

impl Scene {
    fn new() -> Scene {
        let store = tempfile::Builder::new().prefix("millpond-e2e-store-").tempdir().unwrap();
        let table =
            format!("0 {SECTORS} objvol file://{} 2 segment_size 256K", store.path().display());
        let cached = format!(
            "0 {SECTORS} writecache s vol ./cache.img 4096 4 high_watermark 100 low_watermark 100"
        );
        let images = [("cache.img", 32 * MIB)];
        let mut bed = TestBed::start(&images, &[("vol", &table), ("wc", &cached)]);
        let mut client = bed.connect("wc");
        for block in 0..64 {
            client.write(2 * block * BLOCK, &[7; BLOCK as usize]).unwrap();
        }
        client.flush().unwrap();
        bed.kill();
        Scene { store, bed, desk: TestBed::start(&[], &[]) }
    }

    fn url(&self) -> String {
        format!("file://{}", self.store.path().display())
    }

    fn try_verb(&self, args: &[&str]) -> Ended {
        self.desk.daemon().try_verb(args).unwrap()
    }

    /// What it says on standard error, with this exit code.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let ended = self.try_verb(args);
        assert_eq!(ended.code, code, "{args:?}: {}\n{}", ended.stderr, ended.stdout);
        ended.stderr
    }

    fn inspect(&self) -> Value {
        serde_json::from_str(&self.desk.verb(&["inspect", &self.url(), "-o", "json"])).unwrap()
    }

    /// The volume takes writes without the cache, and has this in the first block.
    fn volume_is_free(&self, first: u8) {
        let table = format!("0 {SECTORS} objvol {}", self.url());
        self.desk.verb(&["create", "alone", "--table", &table]);
        let mut client = self.desk.connect("alone");
        let mut back = [1; BLOCK as usize];
        client.read(0, &mut back).unwrap();
        assert_eq!(back, [first; BLOCK as usize]);
        client.write(0, &[9; BLOCK as usize]).unwrap();
    }
}

fn manifests(store: &Path) -> usize {
    std::fs::read_dir(store.join("manifest")).unwrap().count()
}

#[test]
fn recover_writes_to_a_volume_and_ends_its_record() {
    let scene = Scene::new();
    let (cache, url) = (scene.bed.path("cache.img").display().to_string(), scene.url());
    let recover = ["recover", "--cache", &cache, "--origin", &url];
    let text = scene.fails(4, &recover);
    assert!(text.contains("--origin: ") && text.contains("`--take-over` takes it"), "{text}");
    let text = scene.fails(1, &["recover", "--cache", &cache, "--origin", "ftp://a/b"]);
    assert!(text.contains("--origin: ") && text.contains("ftp://a/b"), "{text}");
    let text = scene.fails(1, &["recover", "--cache", &cache, "--origin", &cache, "--take-over"]);
    assert!(text.contains("--take-over: ") && text.contains("is no volume"), "{text}");
    let text = scene.fails(1, &["recover", "--without-cache", &cache, "--take-over"]);
    assert!(text.contains("--take-over: ") && text.contains("is no volume"), "{text}");

    let take_over = [&recover[..], &["--take-over"]].concat();
    let before = manifests(scene.store.path());
    let text = scene.desk.verb(&[&take_over[..], &["--dry-run"]].concat());
    assert!(text.starts_with("64 blocks (256.0 KiB)"), "{text}");
    assert_eq!(manifests(scene.store.path()), before, "a dry run changes nothing");
    let text = scene.desk.verb(&take_over);
    assert!(text.starts_with("64 blocks (256.0 KiB)") && text.contains("written back"), "{text}");
    let owner = &scene.inspect()["owner"];
    assert_eq!((&owner["cache"], &owner["attached"]), (&Value::Null, &false.into()));
    assert!(scene.desk.verb(&recover).starts_with("0 blocks"), "again");
    scene.volume_is_free(7);
}

#[test]
fn wipe_ends_the_record_of_a_volume_first() {
    let scene = Scene::new();
    let (cache, url) = (scene.bed.path("cache.img").display().to_string(), scene.url());
    let before = scene.inspect();
    let uuid = before["owner"]["cache"]["uuid"].as_str().unwrap().to_owned();
    // What would be lost is refused before the volume is asked for anything.
    let wipe = ["wipe", &cache, "--origin", &url, "--take-over"];
    let refusal = scene.fails(1, &wipe);
    let token = refusal.split("`--force ").nth(1).unwrap().split('`').next().unwrap();
    let forced = ["wipe", &cache, "--origin", &url, "--force", token];
    assert!(scene.fails(4, &forced).contains("`--take-over` takes it"));
    assert_eq!(scene.inspect()["owner"], before["owner"]);
    let said = scene.desk.verb(&[&forced[..], &["--take-over"]].concat());
    assert!(said.contains(&format!("records the cache {uuid} no more")), "{said}");
    assert!(said.ends_with("is blank\n"), "{said}");
    let after = scene.inspect();
    assert_eq!(after["owner"]["cache"], Value::Null);
    assert_ne!(after["lineage"], before["lineage"], "what the cache held is never applied");
    let text = scene.fails(1, &["wipe", &cache, "--origin", &url]);
    assert!(text.contains("is no cache that a volume records"), "{text}");
    // The cache has guarded the volume.
    assert!(said.contains(&format!("`millpond recover --without-cache {url}`")), "{said}");
    let text = scene.desk.verb(&["recover", "--without-cache", &url]);
    assert!(text.contains("is used without the cache"), "{text}");
    let text = scene.fails(1, &["recover", "--without-cache", &url]);
    assert!(
        text.contains("--without-cache: ") && text.contains("records no write cache"),
        "{text}"
    );
    scene.volume_is_free(0);
}

/// The same in one step, where the cache itself is lost.
#[test]
fn a_volume_goes_on_without_a_lost_cache() {
    let scene = Scene::new();
    let url = scene.url();
    let recover = ["recover", "--without-cache", &url];
    assert!(scene.fails(4, &recover).contains("--without-cache: "));
    let text = scene.desk.verb(&[&recover[..], &["--take-over"]].concat());
    assert!(text.contains("is used without the cache"), "{text}");
    // It turns up again: as after a wipe that was cut off.
    let cache = scene.bed.path("cache.img").display().to_string();
    let wipe = ["wipe", &cache, "--origin", &url];
    let refusal = scene.fails(1, &wipe);
    let token = refusal.split("`--force ").nth(1).unwrap().split('`').next().unwrap();
    let said = scene.desk.verb(&[&wipe[..], &["--force", token]].concat());
    assert!(said.contains("records no cache") && said.ends_with("is blank\n"), "{said}");
    scene.volume_is_free(0);
}

#[test]
fn wipe_leaves_the_record_of_another_cache() {
    let scene = Scene::new();
    let (other, url) = (scene.desk.path("other.img").display().to_string(), scene.url());
    std::fs::File::create(&other).unwrap().set_len(32 * MIB).unwrap();
    let table = format!("0 {SECTORS} writecache s null:8M {other} 4096 0");
    scene.desk.verb(&["create", "other", "--table", &table]);
    scene.desk.verb(&["remove", "other"]);
    let text = scene.fails(4, &["wipe", &other, "--origin", &url, "--take-over"]);
    assert!(text.contains("has recorded another cache") && text.contains("cache.img"), "{text}");
    assert_ne!(scene.inspect()["owner"]["cache"], Value::Null);
    assert!(scene.desk.verb(&["inspect", &other]).contains("uuid"), "it was not wiped");
}
