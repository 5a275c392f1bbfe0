use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use continuum_schema::event::{ActivityOptions, Outcome};
use continuum_schema::{Key, Payload};
use futures::future::FusedFuture;

use super::{Handle, What};
use crate::activity::{Activity, Retry, millis};
use crate::error::{ActivityError, ActivityFailure, Cancelled, kind};
use crate::registry::check_options;
use crate::replay::{Delivery, EffectKind, Request};

/// The kind of the error that a call gives whose name, queue, key or time limit makes no sense. Nothing was run then.
pub const INVALID: &str = "Invalid";

/// A call of the activity `A`, made with [`WorkflowContext::activity`](crate::WorkflowContext::activity).
///
/// Its options are those of `#[activity(..)]` unless a method here changes them. Dropping it once it was issued
/// cancels the activity.
#[must_use = "an activity does nothing until it is awaited or started"]
pub struct ActivityEffect<'ctx, A: Activity> {
    handle: Handle<'ctx>,
    /// Taken when it is issued.
    call: Option<Call>,
    /// Why the call can't be made.
    refused: Option<ActivityError>,
    activity: PhantomData<fn() -> A>,
}

struct Call {
    input: Payload,
    options: ActivityOptions,
}

impl<'ctx, A: Activity> ActivityEffect<'ctx, A> {
    pub(crate) fn new(handle: Handle<'ctx>, input: &A::Input) -> Self {
        let (call, refused) = match Payload::encode(input) {
            Ok(input) => {
                let options = A::options();
                (Some(Call { input, options }), None)
            }
            Err(e) => {
                let message = format!("the input of activity `{}`: {e}", A::NAME);
                let error = ActivityError::permanent(kind::ENCODE, message);
                (None, Some(error))
            }
        };
        Self {
            handle,
            call,
            refused,
            activity: PhantomData,
        }
    }

    /// The queue whose workers run it.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        self.with(|options| options.queue = queue.into())
    }

    /// When and how often it is tried again.
    pub fn retry(self, retry: Retry) -> Self {
        self.with(|options| options.retry = retry.into())
    }

    /// The longest that one attempt may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.timeout_ms = millis(timeout))
    }

    /// A key under which the first committed result answers every later call in the namespace.
    pub fn idempotency_key(self, key: impl ToString) -> Self {
        self.with(|options| options.idempotency_key = Some(key.to_string()))
    }

    /// Asks for the activity now, not at the first poll.
    pub fn start(mut self) -> Self {
        self.check();
        if self.refused.is_none() {
            let call = &mut self.call;
            self.handle.start(what::<A>(), || request::<A>(call));
        }
        self
    }

    fn with(mut self, change: impl FnOnce(&mut ActivityOptions)) -> Self {
        if let Some(call) = &mut self.call {
            change(&mut call.options);
        }
        self
    }

    /// Refuses a call that is about to be made with options that make no sense.
    fn check(&mut self) {
        let Some(call) = &self.call else { return };
        if let Err(reason) = check(&call.options) {
            let message = format!("the call of activity `{}`: {reason}", A::NAME);
            self.refused = Some(ActivityError::permanent(INVALID, message));
        }
    }

    fn outcome(&self, outcome: Outcome) -> Poll<<Self as Future>::Output> {
        match outcome {
            Outcome::Ok(payload) => match payload.decode() {
                Ok(output) => Poll::Ready(Ok(output)),
                Err(e) => self.handle.undecodable(what::<A>(), &e),
            },
            Outcome::Err(failure) => failed::<A>(ActivityError::from_failure(failure)),
        }
    }
}

impl<A: Activity> Future for ActivityEffect<'_, A> {
    type Output = Result<A::Output, <A::Error as ActivityFailure>::Seen>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.check();
        if let Some(error) = this.refused.take() {
            this.handle.refuse();
            this.call = None;
            return failed::<A>(error);
        }
        let call = &mut this.call;
        match this.handle.poll(what::<A>(), cx, || request::<A>(call)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Delivery::Outcome(outcome)) => this.outcome(outcome),
            Poll::Ready(_) => failed::<A>(Cancelled.into()),
        }
    }
}

impl<A: Activity> FusedFuture for ActivityEffect<'_, A> {
    fn is_terminated(&self) -> bool {
        self.handle.is_over()
    }
}

fn what<A: Activity>() -> What<'static> {
    What(EffectKind::Activity, A::NAME)
}

fn request<A: Activity>(call: &mut Option<Call>) -> Request {
    let call = call.take().expect("an effect is issued only once");
    Request::Activity {
        name: A::NAME,
        input: call.input,
        options: call.options,
    }
}

fn check(options: &ActivityOptions) -> Result<(), String> {
    check_options(options)?;
    if let Some(key) = &options.idempotency_key {
        Key::of("idempotency key", key.as_str()).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn failed<A: Activity>(
    error: ActivityError,
) -> Poll<Result<A::Output, <A::Error as ActivityFailure>::Seen>> {
    Poll::Ready(Err(A::Error::seen(error)))
}
