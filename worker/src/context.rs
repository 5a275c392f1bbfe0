//! What a workflow gets: the one door to everything that its code can't know by itself.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::activity::{Activity, ActivityFn, Payloadable};
use crate::effect::{
    ActivityEffect, Handle, JoinAll, Race, Shield, SignalEffect, StepEffect, Timeout, TimerEffect,
};
use crate::error::ActivityError;
use crate::replay::{RunInfo, Shared};
use crate::workflow::IntoSignal;

/// The context of one run.
///
/// Its effects (`activity`, `step`, `signal`, `sleep`) are futures that are journaled; they are lazy, and dropping one
/// that was polled cancels it. Its values (`now`, `random`, `uuid`) are the same in every replay and are not journaled.
///
/// Await nothing else in a workflow. Ordinary combinators over effects are fine (`futures::join!`, `join_all`,
/// `FuturesUnordered`, `buffer_unordered`), except those that begin at a random or rotating branch
/// (`tokio::select!`, `futures::select!`, `tokio::join!`): use [`select!`](crate::select) instead.
///
/// ```
/// use std::time::Duration;
/// use continuum_worker::{WorkflowContext, WorkflowError};
///
/// async fn remind(ctx: &WorkflowContext, days: u32) -> Result<bool, WorkflowError> {
///     for _ in 0..days {
///         let paid = ctx.signal::<u64>("paid").timeout(Duration::from_secs(86_400)).await?;
///         if paid.is_some() {
///             return Ok(true);
///         }
///         let key = ctx.uuid();
///         ctx.step("remind", move || async move { Ok(key) }).await?;
///     }
///     Ok(false)
/// }
/// ```
pub struct WorkflowContext {
    shared: Arc<Shared>,
}

impl WorkflowContext {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Calls an activity: pass the name of its function and its input.
    #[track_caller]
    pub fn activity<A: Activity>(
        &self,
        activity: impl ActivityFn<A>,
        input: A::Input,
    ) -> ActivityEffect<'_, A> {
        drop(activity);
        ActivityEffect::new(self.handle(), &input)
    }

    /// Runs a side effect in the worker that holds the run, and journals its value.
    ///
    /// It is cheaper than an activity (no queue, one event) but has no retries and no worker of its own choice. It may
    /// run more than once, if the worker is lost before its value has committed.
    #[track_caller]
    pub fn step<T, F, Fut>(&self, name: impl Into<Cow<'static, str>>, step: F) -> StepEffect<'_, T>
    where
        T: Payloadable,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, ActivityError>> + Send + 'static,
    {
        StepEffect::new(self.handle(), name.into(), step)
    }

    /// Waits for a signal, named by its constant (`order_flow::fraud_review`) or by its text.
    #[track_caller]
    pub fn signal<T: DeserializeOwned>(&self, signal: impl IntoSignal<T>) -> SignalEffect<'_, T> {
        SignalEffect::new(self.handle(), signal.into_signal())
    }

    /// Sleeps, over any number of restarts, for so long from the time of the last event on.
    #[track_caller]
    pub fn sleep(&self, duration: Duration) -> TimerEffect<'_> {
        TimerEffect::new(self.handle(), duration)
    }

    /// Gives `future` so long to end; `None` if it doesn't. Whichever side loses is dropped at once.
    #[track_caller]
    pub fn timeout<F: Future>(&self, duration: Duration, future: F) -> Timeout<'_, F> {
        Timeout::new(self.sleep(duration), future)
    }

    /// Awaits all of `futures` and gives their values in the same order. Its cost grows with their number only.
    pub fn join_all<I>(&self, futures: I) -> JoinAll<I::Item>
    where
        I: IntoIterator,
        I::Item: Future,
    {
        JoinAll::new(futures)
    }

    /// Awaits whichever of the two ends first, and drops the other at once.
    pub fn race<A: Future, B: Future>(&self, a: A, b: B) -> Race<A, B> {
        Race::new(a, b)
    }

    /// Keeps a cancel of the run away from what `future` does: for clean-up and for what must not stop half way.
    pub fn shield<F: Future>(&self, future: F) -> Shield<'_, F> {
        Shield::new(&self.shared, future)
    }

    /// Whether the run was asked to stop. Effects outside a shield give an error from then on.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.lock().is_cancelled()
    }

    /// The time of the last event that the code has seen; at first, the time at which the run was created.
    ///
    /// # Panics
    /// If the database's clock is set to a year beyond 9999.
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        let micros = self.shared.lock().now();
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000)
            .expect("the database's clock shows a year before 10000")
    }

    /// The next number of the run's own random stream.
    ///
    /// # Panics
    /// If it is called outside the run, for example on another thread.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.shared.random()
    }

    /// The next id of the run's own stream of ids, a UUID of version 4.
    ///
    /// # Panics
    /// If it is called outside the run, for example on another thread.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.shared.uuid()
    }

    /// Which run this is.
    #[must_use]
    pub fn info(&self) -> &RunInfo {
        &self.shared.info
    }

    #[track_caller]
    fn handle(&self) -> Handle<'_> {
        Handle::new(&self.shared, Location::caller())
    }
}

impl fmt::Debug for WorkflowContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkflowContext")
            .field(&self.shared.info.run_id)
            .finish()
    }
}
