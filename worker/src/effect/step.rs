use std::borrow::Cow;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use continuum_schema::event::Outcome;
use continuum_schema::{Name, Payload};
use futures::future::FusedFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Handle, INVALID, What};
use crate::error::{ActivityError, Cancelled, kind};
use crate::replay::{Delivery, EffectKind, Request, StepRun};

/// A step, made with [`WorkflowContext::step`](crate::WorkflowContext::step): a side effect that runs in the worker
/// that holds the run, once, unless that worker is lost before the result has committed.
#[must_use = "a step does nothing until it is awaited or started"]
pub struct StepEffect<'ctx, T> {
    handle: Handle<'ctx>,
    name: Cow<'static, str>,
    /// Taken when it is issued.
    run: Option<StepRun>,
    value: PhantomData<fn() -> T>,
}

impl<'ctx, T: Serialize + DeserializeOwned> StepEffect<'ctx, T> {
    pub(crate) fn new<F, Fut>(handle: Handle<'ctx>, name: Cow<'static, str>, step: F) -> Self
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, ActivityError>> + Send + 'static,
    {
        let run: StepRun = Box::pin(async move {
            let value = step().await?;
            Payload::encode(&value).map_err(|e| {
                ActivityError::permanent(kind::ENCODE, format!("the result of a step: {e}"))
            })
        });
        Self {
            handle,
            name,
            run: Some(run),
            value: PhantomData,
        }
    }

    /// Runs the step now, not at the first poll.
    pub fn start(mut self) -> Self {
        if self.run.is_some() && Name::of("step name", &*self.name).is_ok() {
            let (name, run) = (&self.name, &mut self.run);
            self.handle
                .start(What(EffectKind::Step, name), || request(name.clone(), run));
        }
        self
    }

    fn outcome(&self, outcome: Outcome) -> Poll<Result<T, ActivityError>> {
        match outcome {
            Outcome::Ok(payload) => match payload.decode() {
                Ok(value) => Poll::Ready(Ok(value)),
                Err(e) => {
                    let what = What(EffectKind::Step, &self.name);
                    self.handle.undecodable(what, &e)
                }
            },
            Outcome::Err(failure) => Poll::Ready(Err(ActivityError::from_failure(failure))),
        }
    }
}

impl<T: Serialize + DeserializeOwned> Future for StepEffect<'_, T> {
    type Output = Result<T, ActivityError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.run.is_some()
            && let Err(e) = Name::of("step name", &*this.name)
        {
            this.run = None;
            this.handle.refuse();
            let error = ActivityError::permanent(INVALID, e.to_string());
            return Poll::Ready(Err(error));
        }
        let (name, run) = (&this.name, &mut this.run);
        let what = What(EffectKind::Step, name);
        match this.handle.poll(what, cx, || request(name.clone(), run)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Delivery::Outcome(outcome)) => this.outcome(outcome),
            Poll::Ready(_) => Poll::Ready(Err(Cancelled.into())),
        }
    }
}

impl<T: Serialize + DeserializeOwned> FusedFuture for StepEffect<'_, T> {
    fn is_terminated(&self) -> bool {
        self.handle.is_over()
    }
}

fn request(name: Cow<'static, str>, run: &mut Option<StepRun>) -> Request {
    Request::Step {
        name,
        run: run.take().expect("an effect is issued only once"),
    }
}
