use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::FusedFuture;

use crate::replay::Shared;

/// A future that a cancel of the run does not reach, made with
/// [`WorkflowContext::shield`](crate::WorkflowContext::shield).
///
/// What is shielded is whatever the future first polls while it is itself polled: an effect that was issued outside
/// stays outside.
#[must_use = "a shield does nothing until it is awaited"]
pub struct Shield<'ctx, F> {
    shared: &'ctx Shared,
    /// `None` once it is over.
    future: Option<Pin<Box<F>>>,
}

impl<'ctx, F> Shield<'ctx, F> {
    pub(crate) fn new(shared: &'ctx Shared, future: F) -> Self {
        Self {
            shared,
            future: Some(Box::pin(future)),
        }
    }
}

impl<F: Future> Future for Shield<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.shared;
        let future = self
            .future
            .as_mut()
            .expect("a shield is not polled again after it has ended");
        let output = {
            let _raised = Raised::new(shared);
            future.as_mut().poll(cx)
        };
        if output.is_ready() {
            self.future = None;
        }
        output
    }
}

impl<F: Future> FusedFuture for Shield<'_, F> {
    fn is_terminated(&self) -> bool {
        self.future.is_none()
    }
}

/// A shield for as long as one poll lasts, even if that poll panics.
struct Raised<'a>(&'a Shared);

impl<'a> Raised<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.check_current("ctx.shield(..)");
        shared.lock().enter_shield();
        Self(shared)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.lock().leave_shield();
    }
}
