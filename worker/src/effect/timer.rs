use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::FusedFuture;

use super::{Handle, What};
use crate::error::Cancelled;
use crate::replay::{Delivery, EffectKind, Request};

const WHAT: What<'static> = What(EffectKind::Timer, "");

/// A durable sleep, made with [`WorkflowContext::sleep`](crate::WorkflowContext::sleep). It outlives every worker and
/// costs nothing while it waits.
#[must_use = "a timer does nothing until it is awaited or started"]
pub struct TimerEffect<'ctx> {
    handle: Handle<'ctx>,
    after: Duration,
}

impl<'ctx> TimerEffect<'ctx> {
    pub(crate) fn new(handle: Handle<'ctx>, after: Duration) -> Self {
        Self { handle, after }
    }

    /// Sets the timer now, not at the first poll.
    pub fn start(mut self) -> Self {
        let after = self.after;
        self.handle.start(WHAT, || Request::Timer { after });
        self
    }
}

impl Future for TimerEffect<'_> {
    type Output = Result<(), Cancelled>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let after = self.after;
        let polled = self.handle.poll(WHAT, cx, || Request::Timer { after });
        polled.map(|delivery| match delivery {
            Delivery::Fired => Ok(()),
            _ => Err(Cancelled),
        })
    }
}

impl FusedFuture for TimerEffect<'_> {
    fn is_terminated(&self) -> bool {
        self.handle.is_over()
    }
}
