// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrows of a buffer that are refused, thousands of them, by threads whose panics are silent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::Buf;

/// The name of the threads whose panics are not printed.
const SILENT: &str = "silent";

/// From now on a panic of a thread of that name is not printed; of all others it is, as before.
fn silence_threads() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(SILENT) {
            usual(panic);
        }
    }));
}

/// Found by an attack from outside: a reader counted itself before it looked, and until its panic
/// had unwound a second writer got in.
#[test]
fn a_refused_reader_lets_no_second_writer_in() {
    const WRITES: u32 = 200;
    const TRIES_MAX: u32 = 20_000;
    let (buf, inside, done) = (Buf::zeroed(64), AtomicU32::new(0), AtomicBool::new(false));
    let quiet = |f: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(f)).is_err();
    silence_threads();
    let (twice, refused) = std::thread::scope(|threads| {
        let silent = || std::thread::Builder::new().name(SILENT.to_owned());
        for _ in 0..2 {
            let reader = silent().spawn_scoped(threads, || {
                while !done.load(Ordering::Relaxed) {
                    quiet(&mut || buf.read(|b| assert_eq!(b.len(), 64)));
                }
            });
            reader.expect("a thread");
        }
        let writer = || {
            let (mut twice, mut refused) = (0, 0);
            let tries = if cfg!(miri) { 20 } else { TRIES_MAX };
            for nth in 0..tries {
                if nth - refused == WRITES {
                    break;
                }
                refused += u32::from(quiet(&mut || {
                    buf.write(|_| {
                        twice += inside.fetch_add(1, Ordering::SeqCst);
                        (0..20).for_each(|_| std::thread::yield_now());
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                }));
            }
            (twice, refused)
        };
        let writers = [(); 2].map(|()| silent().spawn_scoped(threads, writer).expect("a thread"));
        let ends = writers.map(|writer| writer.join().expect("it catches its panics"));
        done.store(true, Ordering::Relaxed);
        (ends[0].0 + ends[1].0, ends[0].1 + ends[1].1)
    });
    assert_eq!(twice, 0, "writers that had another one inside; {refused} were refused");
    buf.write(|_| ());
}
