use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::FusedFuture;

use super::TimerEffect;
use crate::error::Cancelled;

/// A future with a durable time limit, made with [`WorkflowContext::timeout`](crate::WorkflowContext::timeout).
///
/// The future is polled first, so it wins a tie. Whichever side loses is dropped at once.
#[must_use = "a future does nothing until it is awaited"]
pub struct Timeout<'ctx, F> {
    /// `None` once it is over.
    parts: Option<(Pin<Box<F>>, TimerEffect<'ctx>)>,
}

impl<'ctx, F> Timeout<'ctx, F> {
    pub(crate) fn new(timer: TimerEffect<'ctx>, future: F) -> Self {
        Self {
            parts: Some((Box::pin(future), timer)),
        }
    }
}

impl<F: Future> Future for Timeout<'_, F> {
    type Output = Result<Option<F::Output>, Cancelled>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (future, timer) = self
            .parts
            .as_mut()
            .expect("a timeout is not polled again after it has ended");
        let output = match future.as_mut().poll(cx) {
            Poll::Ready(output) => Ok(Some(output)),
            Poll::Pending => match Pin::new(timer).poll(cx) {
                Poll::Ready(fired) => fired.map(|()| None),
                Poll::Pending => return Poll::Pending,
            },
        };
        self.parts = None;
        Poll::Ready(output)
    }
}

impl<F: Future> FusedFuture for Timeout<'_, F> {
    fn is_terminated(&self) -> bool {
        self.parts.is_none()
    }
}
