// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams of the library.
use futures_core::Stream;

/// The next item of a stream.
pub(crate) async fn next_of<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|cx| std::pin::Pin::new(&mut *stream).poll_next(cx)).await
}
