// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback and read-back as a user sees them: what is on the device, in which writes it got
//! there, exact limits, what an error does; and the bugs that zram in Linux has had.
mod lab;

use block::ErrorKind;
use lab::{Lab, drop_pages, expect, fill, get, get_run, noise, numbers, page, put, set, told};
use sim::Faults;

#[test]
fn idle_pages_go_to_the_device_in_writes_of_128_kib_and_come_back() {
    for packed in ["0", "1"] {
        let lab = Lab::new(1024, 2048, &format!("compressed_writeback {packed}"));
        let world = lab.world.clone();
        let disk = lab.disk;
        lab.run(async move |zram| {
            fill(&zram, 0..1024, 1).await;
            set(&zram, "idle", "all").await.unwrap();
            set(&zram, "writeback", "idle").await.unwrap();
            let stats = world.borrow().stats(disk);
            let blocks = if packed == "0" { 1024 } else { stats.write_bytes / 4096 };
            assert!(stats.writes <= 1024 * 4112 / (31 * 4096) + 1, "{stats:?}");
            assert_eq!(numbers(&zram, "bd_stat").await, [blocks, 0, blocks]);
            assert_eq!(numbers(&zram, "mm_stat").await[2], 0, "no memory is used");
            expect(&zram, 0..1024, 1).await;
            assert_eq!(numbers(&zram, "bd_stat").await, [blocks, 1024, blocks]);
        });
    }
}
