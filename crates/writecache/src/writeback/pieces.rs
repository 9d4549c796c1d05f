// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pieces of long work: between two of them the core serves its clients.
use reactor::yield_now;

/// Blocks of a piece. Chosen: looking at one, or changing its state, takes 0.1 to 0.7 microseconds
/// (measured: neither index nor slot is in the processor's cache), and a client's read of a fast
/// disk takes 50.
pub(super) const PIECE_BLOCKS: usize = 256;

/// Counts work, and yields whenever a piece of it is done. Less than a piece does not yield.
pub(super) struct Pieces {
    done: usize,
    size: usize,
}

impl Pieces {
    pub(super) fn of_blocks() -> Pieces {
        Pieces::of(PIECE_BLOCKS)
    }

    pub(super) fn of(size: usize) -> Pieces {
        Pieces { done: 0, size }
    }

    /// So much more is done.
    pub(super) async fn done(&mut self, more: usize) {
        self.done += more;
        if self.done >= self.size {
            self.done = 0;
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// Whether it ends without a yield.
    async fn ends_at_once(work: impl Future<Output = ()>) -> bool {
        let mut work = pin!(work);
        let at_once = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await;
        if !at_once {
            work.await;
        }
        at_once
    }

    #[test]
    fn only_a_whole_piece_yields() {
        let machine = sim::Machine::boot(&sim::World::new(1), 1);
        let yields = machine.block_on(async {
            let mut pieces = Pieces::of(100);
            let mut yields = Vec::new();
            for more in [10, 89, 1, 99, 99, 300, 99] {
                yields.push(!ends_at_once(pieces.done(more)).await);
            }
            yields
        });
        assert_eq!(yields.unwrap(), [false, false, true, false, true, true, false]);
    }
}
