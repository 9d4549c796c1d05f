// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `sequential_write_cutoff`: long streams of writes go around the cache, and nothing else does.
use block::{Buf, Class, Flags, Op, Opener, Sector, Target};
use sim::Machine;
use writecache::{Config, WriteCache};

use crate::common::{BLOCK, Fixture, at, expect, fill, flush, number, pattern, put, put_with, say};

/// Nothing is written back unless it is asked for. A stream is long from 64 blocks on.
const CUTOFF: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000 \
                      sequential_write_cutoff 262144";

fn around(cache: &WriteCache) -> u64 {
    number(cache, "writes_around")
}

/// A write of one block by a client of this number.
fn put_as(cache: &WriteCache, opener: u32, block: u64) -> reactor::BioFuture {
    let data = Buf::copy_of(&pattern(block, 1)).into();
    let (flags, class) = (Flags::empty(), Class::Normal);
    let place = (at(block), Sector::from_bytes(BLOCK as u64));
    reactor::io_by(Opener(opener), cache, Op::Write, flags, class, place, data)
}

#[test]
fn a_stream_goes_around_from_the_cutoff_on() {
    let fixture = Fixture::new(4096, 4 << 10, CUTOFF);
    let inner = fixture.clone();
    fixture
        .life(async move |cache| {
            fill(&*cache, 0..300, 1).await;
            assert_eq!((number(&cache, "dirty_blocks"), around(&cache)), (64, 236));
            assert!((64..300).all(|b| inner.origin_block(b) == pattern(b, 1)));
            expect(&*cache, 0..300, 1).await;
            let flushes = number(&cache, "origin_flushes");
            flush(&*cache).await;
            assert_eq!(number(&cache, "origin_flushes"), flushes + 1, "WC-A1");
            // One by one, from the end to the beginning: no stream.
            for block in (1000..1200).rev() {
                put(&*cache, block, 1).await.unwrap();
            }
            assert_eq!(around(&cache), 236);
            cache
                .clone()
                .set_attribute("sequential_write_cutoff".into(), "0".into())
                .await
                .unwrap();
            fill(&*cache, 2000..2300, 1).await;
            assert_eq!(around(&cache), 236, "never at 0");
        })
        .unwrap();
}

#[test]
fn blocks_of_the_cache_stay_there_where_a_stream_comes() {
    let fixture = Fixture::new(4096, 4 << 10, CUTOFF);
    let inner = fixture.clone();
    fixture
        .life(async move |cache| {
            put(&*cache, 100, 1).await.unwrap();
            put(&*cache, 200, 1).await.unwrap();
            fill(&*cache, 0..300, 2).await;
            assert_eq!((number(&cache, "dirty_blocks"), around(&cache)), (66, 234));
            assert_ne!(inner.origin_block(100), pattern(100, 2), "it is dirty in the cache");
            expect(&*cache, 0..300, 2).await;
            say(&cache, "flush").await.unwrap();
            assert!((0..300).all(|b| inner.origin_block(b) == pattern(b, 2)));
        })
        .unwrap();
}

#[test]
fn clients_have_streams_of_their_own() {
    let fixture = Fixture::new(8192, 8 << 10, CUTOFF);
    fixture
        .life(async |cache| {
            for n in 0..100 {
                for client in 1..=3 {
                    put_as(&cache, client, u64::from(client) * 1000 + n).await.unwrap();
                }
            }
            assert_eq!(around(&cache), 3 * 36, "each goes around from its 65th block on");
        })
        .unwrap();
}

#[test]
fn a_stream_with_fua_is_durable_without_a_flush() {
    let fixture = Fixture::new(4096, 4 << 10, CUTOFF);
    let machine = Machine::boot(&fixture.world, 1);
    let cache = fixture.target();
    let writes = async move {
        cache.clone().resume().await.unwrap();
        for block in 0..200 {
            put_with(&*cache, Flags::FUA, block, 1).await.unwrap();
        }
        assert_eq!(around(&cache), 136);
    };
    machine.block_on(writes).unwrap();
    machine.power_cut();
    fixture.life(async |cache| expect(&*cache, 0..200, 1).await).unwrap();
}

#[test]
fn ordered_and_a_cutoff_exclude_each_other() {
    let line = "s o c 4096 3 ordered sequential_write_cutoff 1M";
    let refused = Config::parse(&line.split(' ').collect::<Vec<_>>()).unwrap_err().to_string();
    assert!(refused.contains("sequential_write_cutoff and ordered exclude"), "{refused}");
}
