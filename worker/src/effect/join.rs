use std::pin::Pin;
use std::task::{Context, Poll};

use futures::StreamExt;
use futures::future::FusedFuture;
use futures::stream::FuturesOrdered;

/// Many futures of which all must end, made with [`WorkflowContext::join_all`](crate::WorkflowContext::join_all).
///
/// Only those that were woken are polled, so that a join of thousands costs no more for each of them than a join of
/// two.
#[must_use = "a join does nothing until it is awaited"]
pub struct JoinAll<F: Future> {
    running: FuturesOrdered<F>,
    outputs: Vec<F::Output>,
    over: bool,
}

impl<F: Future> JoinAll<F> {
    pub(crate) fn new(futures: impl IntoIterator<Item = F>) -> Self {
        let running: FuturesOrdered<F> = futures.into_iter().collect();
        Self {
            outputs: Vec::with_capacity(running.len()),
            running,
            over: false,
        }
    }
}

/// Nothing in it is pinned by place: the futures lie in boxes of their own.
impl<F: Future> Unpin for JoinAll<F> {}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        assert!(!this.over, "a join is not polled again after it has ended");
        while let Poll::Ready(next) = this.running.poll_next_unpin(cx) {
            match next {
                Some(output) => this.outputs.push(output),
                None => {
                    this.over = true;
                    return Poll::Ready(std::mem::take(&mut this.outputs));
                }
            }
        }
        Poll::Pending
    }
}

impl<F: Future> FusedFuture for JoinAll<F> {
    fn is_terminated(&self) -> bool {
        self.over
    }
}
