//! Activities: side effects with attempts, queued, run by any worker that serves their queue.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use continuum_schema::event::{ActivityOptions, RetryPolicy};
use continuum_schema::{EffectId, Payload};
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use uuid::Uuid;

use crate::error::{ActivityError, ActivityFailure, kind};

/// The queue of an activity that names none.
pub const DEFAULT_QUEUE: &str = "default";

/// The longest that one attempt of an activity may take, unless its author says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A value that can cross the journal: an input, a result, a signal. Implemented for every owned type that serde can
/// write and read.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't cross the journal",
    label = "must be owned, `Send`, `Serialize` and `Deserialize`",
    note = "add `#[derive(Serialize, Deserialize)]` to `{Self}`"
)]
pub trait Payloadable: Serialize + DeserializeOwned + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send + 'static> Payloadable for T {}

/// An activity, as `#[activity]` implements it for the type of the same name as the function.
pub trait Activity: Send + Sync + Sized + 'static {
    /// What it takes.
    type Input: Payloadable;
    /// What it gives.
    type Output: Payloadable;
    /// How it fails.
    type Error: ActivityFailure;
    /// Its name in the journal.
    const NAME: &'static str;

    /// How it is run where the call says nothing else.
    fn options() -> ActivityOptions;

    /// Runs the author's function.
    fn call(ctx: ActivityContext, input: Self::Input) -> ActivityCall<Self>;
}

/// Something to call as the activity `A`: the function marked `#[activity]`, or a closure in its place.
#[diagnostic::on_unimplemented(
    message = "this is not an activity",
    label = "not the name of a function marked `#[activity]`",
    note = "mark the function `#[activity]` and pass its name without calling it: `ctx.activity(charge_card, input)`"
)]
pub trait ActivityFn<A: Activity>: Fn(ActivityContext, A::Input) -> ActivityCall<A> {}

impl<A: Activity, F: Fn(ActivityContext, A::Input) -> ActivityCall<A>> ActivityFn<A> for F {}

/// One attempt of the activity `A`: the future that calling the function gives.
///
/// Calling an activity like this runs it here and now, without a journal. In a workflow, pass its name to
/// `ctx.activity` instead.
#[must_use = "an activity does nothing until it is awaited"]
pub struct ActivityCall<A: Activity>(BoxFuture<'static, Result<A::Output, A::Error>>);

impl<A: Activity> ActivityCall<A> {
    /// Wraps what the activity does; a closure that stands in for an activity in a test returns this.
    pub fn new(call: impl Future<Output = Result<A::Output, A::Error>> + Send + 'static) -> Self {
        Self(Box::pin(call))
    }
}

impl<A: Activity> Future for ActivityCall<A> {
    type Output = Result<A::Output, A::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

/// What an activity learns about the attempt that it is, and how it reaches shared state. Cheap to clone.
#[derive(Clone)]
pub struct ActivityContext(Arc<Attempt>);

#[derive(Clone)]
struct Attempt {
    run_id: Uuid,
    effect: EffectId,
    attempt: u32,
    name: String,
    cancelled: CancellationToken,
    states: States,
}

impl ActivityContext {
    /// The context of one attempt.
    pub(crate) fn new(
        run_id: Uuid,
        effect: EffectId,
        attempt: u32,
        name: impl Into<String>,
        cancelled: CancellationToken,
        states: States,
    ) -> Self {
        Self(Arc::new(Attempt {
            run_id,
            effect,
            attempt,
            name: name.into(),
            cancelled,
            states,
        }))
    }

    /// A context for calling an activity as a plain function: the first attempt of nobody's run.
    ///
    /// ```
    /// use continuum_worker::ActivityContext;
    ///
    /// let ctx = ActivityContext::for_test().with_state(String::from("postgres://"));
    /// assert_eq!(*ctx.state::<String>(), "postgres://");
    /// assert_eq!(ctx.attempt(), 1);
    /// ```
    #[must_use]
    pub fn for_test() -> Self {
        let cancelled = CancellationToken::new();
        Self::new(Uuid::nil(), 1, 1, "test", cancelled, States::default())
    }

    /// The same context with one more shared value; see [`ActivityContext::for_test`].
    #[must_use]
    pub fn with_state<T: Any + Send + Sync>(mut self, value: T) -> Self {
        Arc::make_mut(&mut self.0).states.insert(value);
        self
    }

    /// The run that asked for the activity.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.0.run_id
    }

    /// The number of the activity among the effects of its run.
    #[must_use]
    pub fn activity_id(&self) -> EffectId {
        self.0.effect
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// The activity's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A key that is the same in every attempt and differs from every other activity's: give it to an outside system
    /// that can recognise a repeated request.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.0.run_id, self.0.effect)
    }

    /// Resolves when nobody wants the result any more: the run was cancelled or dropped the activity, the time is
    /// up, or the worker stops.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.0.cancelled.cancelled()
    }

    /// Whether nobody wants the result any more; see [`ActivityContext::cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.is_cancelled()
    }

    /// The shared value of type `T` that was given to [`Registry::state`](crate::Registry::state).
    ///
    /// # Panics
    /// If there is none, which fails the attempt; see [`ActivityContext::try_state`].
    #[must_use]
    pub fn state<T: Any + Send + Sync>(&self) -> Arc<T> {
        self.try_state().unwrap_or_else(|| {
            panic!(
                "activity `{}` wants the state `{}`, which the registry doesn't hold; add `.state(value)` to it",
                self.0.name,
                std::any::type_name::<T>()
            )
        })
    }

    /// The shared value of type `T`, if the registry holds one.
    #[must_use]
    pub fn try_state<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.states.get()
    }
}

impl fmt::Debug for ActivityContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivityContext")
            .field("name", &self.0.name)
            .field("run_id", &self.0.run_id)
            .field("activity_id", &self.0.effect)
            .field("attempt", &self.0.attempt)
            .finish_non_exhaustive()
    }
}

/// Values that activities share (pools, clients, settings), one of each type.
#[derive(Clone, Default)]
pub(crate) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    /// Adds a value; `false` if one of its type was there already, which it replaces.
    pub(crate) fn insert<T: Any + Send + Sync>(&mut self, value: T) -> bool {
        self.0.insert(TypeId::of::<T>(), Arc::new(value)).is_none()
    }

    /// Takes over all of `other`; `false` if some type was there already.
    pub(crate) fn merge(&mut self, other: Self) -> bool {
        let expected = self.0.len() + other.0.len();
        self.0.extend(other.0);
        self.0.len() == expected
    }

    pub(crate) fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let value = self.0.get(&TypeId::of::<T>())?;
        Arc::clone(value).downcast().ok()
    }
}

/// What the engine runs one attempt of an activity with.
pub(crate) type RunActivity = Arc<
    dyn Fn(ActivityContext, Payload) -> BoxFuture<'static, Result<Payload, ActivityError>>
        + Send
        + Sync,
>;

/// An activity without its types, as a registry holds it.
#[derive(Clone)]
pub struct ActivityDefinition {
    pub(crate) name: &'static str,
    /// The Rust path, for messages.
    pub(crate) path: &'static str,
    pub(crate) options: fn() -> ActivityOptions,
    pub(crate) run: RunActivity,
}

impl ActivityDefinition {
    /// The activity `A`, run by `call`: the author's function, or a closure in its place.
    #[must_use]
    pub fn new<A: Activity>(call: impl ActivityFn<A> + Send + Sync + 'static) -> Self {
        Self {
            name: A::NAME,
            path: std::any::type_name::<A>(),
            options: A::options,
            run: Arc::new(move |ctx, input| match decode::<A::Input>(&ctx, &input) {
                Ok(input) => Box::pin(encoded(call(ctx, input))),
                Err(error) => Box::pin(std::future::ready(Err(error))),
            }),
        }
    }

    /// Its name in the journal.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How it is run where the call says nothing else.
    #[must_use]
    pub fn options(&self) -> ActivityOptions {
        (self.options)()
    }

    /// Runs one attempt.
    pub fn run(
        &self,
        ctx: ActivityContext,
        input: Payload,
    ) -> BoxFuture<'static, Result<Payload, ActivityError>> {
        (self.run)(ctx, input)
    }
}

impl fmt::Debug for ActivityDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivityDefinition")
            .field("name", &self.name)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// An input that doesn't decode is a fault of the code on one of the two sides; no attempt can mend it.
fn decode<T: Payloadable>(ctx: &ActivityContext, input: &Payload) -> Result<T, ActivityError> {
    input.decode().map_err(|e| {
        let message = format!("the input of activity `{}`: {e}", ctx.name());
        ActivityError::permanent(kind::DECODE, message)
    })
}

async fn encoded<A: Activity>(call: ActivityCall<A>) -> Result<Payload, ActivityError> {
    let output = call.await.map_err(ActivityFailure::into_error)?;
    Payload::encode(&output).map_err(|e| {
        let message = format!("the result of activity `{}`: {e}", A::NAME);
        ActivityError::permanent(kind::ENCODE, message)
    })
}

/// When and how often a failed attempt is tried again: exponential back-off with jitter, bounded.
///
/// ```
/// use std::time::Duration;
/// use continuum_worker::Retry;
///
/// let retry = Retry::attempts(5).initial(Duration::from_millis(200)).factor(2.0).max(Duration::from_secs(30));
/// assert_eq!(retry.policy().max_attempts, 5);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Retry(RetryPolicy);

impl Retry {
    /// At most so many attempts in all, the first included; 0 counts as 1.
    pub fn attempts(attempts: u32) -> Self {
        Self(RetryPolicy {
            max_attempts: attempts.max(1),
            ..RetryPolicy::default()
        })
    }

    /// One attempt and no other: the activity never runs twice, and a lost worker fails it.
    pub fn none() -> Self {
        Self::attempts(1)
    }

    /// As many attempts as it takes.
    pub fn unlimited() -> Self {
        Self(RetryPolicy {
            max_attempts: 0,
            ..RetryPolicy::default()
        })
    }

    /// The wait after the first failure.
    pub fn initial(mut self, wait: Duration) -> Self {
        self.0.initial_ms = millis(wait);
        self
    }

    /// How much longer each wait is than the one before; at least 1.
    pub fn factor(mut self, factor: f64) -> Self {
        self.0.factor = factor;
        self
    }

    /// The longest wait.
    pub fn max(mut self, wait: Duration) -> Self {
        self.0.max_ms = millis(wait);
        self
    }

    /// The policy as it is stored.
    #[must_use]
    pub fn policy(&self) -> &RetryPolicy {
        &self.0
    }
}

impl From<Retry> for RetryPolicy {
    fn from(retry: Retry) -> Self {
        retry.0
    }
}

/// Whole milliseconds, rounded up: a wait or a limit that was asked for is never taken as none.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
