use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::{Either, FusedFuture};

/// Two futures of which the first to end counts, made with [`WorkflowContext::race`](crate::WorkflowContext::race).
///
/// They are polled in the order in which they are written, so the left one wins a tie. The loser is dropped at once.
#[must_use = "a race does nothing until it is awaited"]
pub struct Race<A, B> {
    /// `None` once it is over.
    sides: Option<Sides<A, B>>,
}

type Sides<A, B> = (Pin<Box<A>>, Pin<Box<B>>);

impl<A, B> Race<A, B> {
    pub(crate) fn new(a: A, b: B) -> Self {
        Self {
            sides: Some((Box::pin(a), Box::pin(b))),
        }
    }
}

impl<A: Future, B: Future> Future for Race<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (a, b) = self
            .sides
            .as_mut()
            .expect("a race is not polled again after it has ended");
        let winner = match a.as_mut().poll(cx) {
            Poll::Ready(output) => Either::Left(output),
            Poll::Pending => match b.as_mut().poll(cx) {
                Poll::Ready(output) => Either::Right(output),
                Poll::Pending => return Poll::Pending,
            },
        };
        self.sides = None;
        Poll::Ready(winner)
    }
}

impl<A: Future, B: Future> FusedFuture for Race<A, B> {
    fn is_terminated(&self) -> bool {
        self.sides.is_none()
    }
}
