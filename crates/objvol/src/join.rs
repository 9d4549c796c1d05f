// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `join_all`: waits for several futures at once, in the task that waits.
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A future of one core that may borrow.
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all futures beside each other, and returns their outcomes in order.
pub(crate) async fn join_all<T>(futures: Vec<Pending<'_, T>>) -> Vec<T> {
    let mut waiting: Vec<Result<T, Pending<'_, T>>> = futures.into_iter().map(Err).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for entry in &mut waiting {
            let Err(future) = entry else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(outcome) => *entry = Ok(outcome),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    waiting.into_iter().filter_map(Result::ok).collect()
}
