//! Residents: pieces of in-memory state of which the whole fleet holds one each. [`Resident`] says what is promised.
//!
//! # Two things are called resident
//!
//! A *resident run* is a run whose engine is in some worker's memory; there are thousands of them, each worker has its
//! own, and `residents_max` and `Worker::residents` count them. A *resident* of this module is a cluster singleton that a
//! program registers by name. Inside of this crate the word for it is *singleton*; the names that users see (the trait,
//! `resident(…)`, the table `continuum_residents`, the subjects) say *resident*.
//!
//! `engine/warden.rs` decides what a worker holds, `engine/holding.rs` is the life of one that it holds,
//! `client/resident.rs` is the side that asks.

pub(crate) mod wire;

use std::any::{Any, type_name};
use std::fmt;
use std::sync::{Arc, OnceLock};

use continuum_schema::{Format, Name, Payload};
use futures::future::BoxFuture;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::activity::{Payloadable, States};

/// What names of the engine's own residents begin with.
pub(crate) const RESERVED: &str = "continuum-";

/// Any error, as residents return them: `?` turns every error into it, and so do texts.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A long-lived piece of in-memory state of which the whole fleet holds one: a cluster singleton.
///
/// It is registered by name with [`Registry::resident`](crate::Registry::resident). One of the workers that registered
/// the name holds it: it builds the state from its source of truth, and answers the requests that any
/// [`Client`](crate::Client) sends to the name. When that worker leaves, dies or loses its session, another one builds the
/// state anew; it is never moved.
///
/// # Life
///
/// The `build` that it was registered with, [`on_ready`](Resident::on_ready), then
/// [`work`](Resident::work) and any number of [`handle`](Resident::handle) at once, then either
/// [`on_stop`](Resident::on_stop), if its worker leaves in order, or no word at all, if its worker lost it. A panic in any
/// of them ends it too: it is built anew, since nobody knows what the panic left half done.
///
/// # What is promised
///
/// - **Postgres picks the holder.** A worker builds only after it has the row of the name, and the row goes to one
///   session at a time. However many workers boot at once, one builds.
/// - **The token only grows.** Each time that a resident is taken it is under a higher token
///   ([`ResidentContext::token`]).
/// - **Who lost it stops.** A worker that loses its session drops what it holds before others may take it, by its own
///   monotonic clock. One that was halted meanwhile drops it as soon as it runs again; each look at the row (every
///   `resident_interval`) finds the rest.
/// - **A request reaches one holder**, whose token the client knows; a client never goes back to a lower token. A request
///   is sent again only if it was certainly not served, or if its sender says that it may be served twice
///   ([`ResidentRequest::repeatable`](crate::ResidentRequest::repeatable)).
///
/// # What is not
///
/// Nothing can keep a halted process from believing for a moment, when it wakes, that it still holds what another one
/// holds by now. What it computes in that moment harms nobody; what it *writes* must be fenced: hand the token to whatever
/// the resident writes to, and let that refuse a lower one than it has seen. Raise the fence in `build`, with one
/// committed write of the token, and load after it: from then on no earlier holder can write, so what is loaded is all
/// there is. The `also_bought` example does it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use continuum_worker::{BoxError, Registry, Resident, ResidentContext};
///
/// struct Counter(AtomicU64);
///
/// impl Resident for Counter {
///     type Request = u64;
///     type Response = u64;
///
///     async fn handle(&self, more: u64) -> Result<u64, BoxError> {
///         Ok(self.0.fetch_add(more, Ordering::Relaxed) + more)
///     }
/// }
///
/// async fn load(_ctx: ResidentContext) -> Result<Counter, BoxError> {
///     Ok(Counter(AtomicU64::new(0)))
/// }
///
/// let registry = Registry::new().resident("counter", load);
/// ```
///
/// and elsewhere in the fleet:
///
/// ```no_run
/// # async fn example(client: continuum_worker::Client) -> Result<(), continuum_worker::ResidentError> {
/// let sum: u64 = client.resident("counter").request(&5_u64).await?;
/// # Ok(()) }
/// ```
pub trait Resident: Send + Sync + 'static {
    /// What it is asked.
    type Request: Payloadable;
    /// What it answers.
    type Response: Payloadable;

    /// Runs once when the state is built and before the first request. An error is as one of `build`.
    fn on_ready(&self) -> impl Future<Output = Result<(), BoxError>> + Send {
        std::future::ready(Ok(()))
    }

    /// What it does by itself, beside answering; by default nothing. Dropped at an await when the resident ends. After
    /// `Ok` it goes on answering, after an error it is built anew.
    fn work(&self) -> impl Future<Output = Result<(), BoxError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Answers one request. Many run at once. Dropped at an await only when the resident ends, and its state with it.
    /// The sender gets an error's text.
    fn handle(
        &self,
        request: Self::Request,
    ) -> impl Future<Output = Result<Self::Response, BoxError>> + Send;

    /// Runs once when the worker leaves in order or the resident [resigned](ResidentContext::resign), after the last
    /// request and before anybody else may take it. Bounded to some seconds. Not called on a worker that lost it: there
    /// may be another holder already.
    fn on_stop(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What a resident learns about the term for which its worker holds it. Cheap to clone.
#[derive(Clone)]
pub struct ResidentContext(Arc<Term>);

struct Term {
    name: Name,
    token: i64,
    over: CancellationToken,
    resigned: CancellationToken,
    reason: OnceLock<String>,
    states: States,
}

impl ResidentContext {
    pub(crate) fn new(name: Name, token: i64, states: States) -> Self {
        Self(Arc::new(Term {
            name,
            token,
            over: CancellationToken::new(),
            resigned: CancellationToken::new(),
            reason: OnceLock::new(),
            states,
        }))
    }

    /// A context for building a resident in a test, outside of any worker.
    ///
    /// # Panics
    /// If `name` can't be the name of a resident.
    #[must_use]
    pub fn for_test(name: &str, token: i64) -> Self {
        let name = Name::of("resident", name).unwrap_or_else(|e| panic!("{e}"));
        Self::new(name, token, States::default())
    }

    /// The resident's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// The fencing token of this term: higher than that of every earlier one. Whatever the resident writes to should
    /// refuse a lower token than it has seen.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.0.token
    }

    /// Resolves when the term is over: the worker leaves, or lost the resident.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.0.over.cancelled()
    }

    /// Whether the term is over; see [`ResidentContext::cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.over.is_cancelled()
    }

    /// Gives the resident up, for example because a write was refused for its token, or because its outcome is unknown
    /// and the state may not be what the source of truth says. It ends here as in an orderly leave, and whoever takes it
    /// next, which may be this worker, builds it anew. `reason` is for the log.
    pub fn resign(&self, reason: impl Into<String>) {
        // The first reason counts.
        drop(self.0.reason.set(reason.into()));
        self.0.resigned.cancel();
    }

    /// The shared value of type `T` that was given to [`Registry::state`](crate::Registry::state).
    ///
    /// # Panics
    /// If there is none, which fails the build.
    #[must_use]
    pub fn state<T: Any + Send + Sync>(&self) -> Arc<T> {
        self.0.states.get().unwrap_or_else(|| {
            panic!(
                "resident `{}` wants the state `{}`, which the registry doesn't hold; add `.state(value)` to it",
                self.0.name,
                type_name::<T>()
            )
        })
    }

    /// Ends the term.
    pub(crate) fn end(&self) {
        self.0.over.cancel();
    }

    /// Resolves when the resident gives itself up, with its reason.
    pub(crate) async fn resigned(&self) -> String {
        self.0.resigned.cancelled().await;
        self.0.reason.get().cloned().unwrap_or_default()
    }
}

impl fmt::Debug for ResidentContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResidentContext")
            .field("name", &self.0.name)
            .field("token", &self.0.token)
            .finish_non_exhaustive()
    }
}

/// Why a request was not answered by the resident's own code.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// It does not decode.
    Invalid(String),
    /// The resident's code says so, or its answer has no encoding.
    Failed(String),
}

/// A built resident without its types. The names differ from those of [`Resident`], which the same types implement.
pub(crate) trait Singleton: Send + Sync {
    fn make_ready(self: Arc<Self>) -> BoxFuture<'static, Result<(), BoxError>>;
    fn do_work(self: Arc<Self>) -> BoxFuture<'static, Result<(), BoxError>>;
    fn answer(self: Arc<Self>, request: Payload)
    -> BoxFuture<'static, Result<Payload, Unanswered>>;
    fn make_stop(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

impl<R: Resident> Singleton for R {
    fn make_ready(self: Arc<Self>) -> BoxFuture<'static, Result<(), BoxError>> {
        Box::pin(async move { self.on_ready().await })
    }

    fn do_work(self: Arc<Self>) -> BoxFuture<'static, Result<(), BoxError>> {
        Box::pin(async move { self.work().await })
    }

    /// The answer is encoded as the request was.
    fn answer(
        self: Arc<Self>,
        request: Payload,
    ) -> BoxFuture<'static, Result<Payload, Unanswered>> {
        Box::pin(async move {
            let invalid = |e: continuum_schema::PayloadError| Unanswered::Invalid(e.to_string());
            let format = request.format().map_err(invalid)?;
            let asked: R::Request = request.decode().map_err(invalid)?;
            let answer = self.handle(asked).await;
            let answer = answer.map_err(|e| Unanswered::Failed(chain(&*e)))?;
            encode(&answer, format).map_err(|e| Unanswered::Failed(e.to_string()))
        })
    }

    fn make_stop(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.on_stop().await })
    }
}

fn encode<T: serde::Serialize>(value: &T, format: Format) -> Result<Payload, BoxError> {
    Ok(match format {
        Format::MessagePack => Payload::encode(value)?,
        Format::Json => Payload::from_json(&serde_json::to_vec(value)?)?,
    })
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

type Build = Arc<
    dyn Fn(ResidentContext) -> BoxFuture<'static, Result<Arc<dyn Singleton>, BoxError>>
        + Send
        + Sync,
>;

/// A resident without its types, as a registry holds it.
#[derive(Clone)]
pub(crate) struct ResidentDefinition {
    pub(crate) name: Name,
    /// The Rust type, for messages.
    pub(crate) path: &'static str,
    build: Build,
}

impl ResidentDefinition {
    pub(crate) fn new<R, F, B, E>(name: Name, build: B) -> Self
    where
        R: Resident,
        F: Future<Output = Result<R, E>> + Send + 'static,
        B: Fn(ResidentContext) -> F + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        let build: Build = Arc::new(move |ctx| {
            let building = build(ctx);
            Box::pin(async move {
                let built: Arc<dyn Singleton> = Arc::new(building.await.map_err(Into::into)?);
                Ok(built)
            })
        });
        Self {
            name,
            path: type_name::<R>(),
            build,
        }
    }

    /// Begins to build.
    pub(crate) fn build(
        &self,
        ctx: ResidentContext,
    ) -> BoxFuture<'static, Result<Arc<dyn Singleton>, BoxError>> {
        let build = Arc::clone(&self.build);
        // Also what the closure does before its first await belongs to the build.
        Box::pin(async move { build(ctx).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Ask {
        number: u64,
    }

    struct Doubler;

    impl Resident for Doubler {
        type Request = Ask;
        type Response = u64;

        async fn handle(&self, ask: Ask) -> Result<u64, BoxError> {
            ask.number.checked_mul(2).ok_or_else(|| "too large".into())
        }
    }

    async fn ask(request: Payload) -> Result<Payload, Unanswered> {
        let definition =
            ResidentDefinition::new(Name::new("doubler").unwrap(), async |_: ResidentContext| {
                Ok::<_, BoxError>(Doubler)
            });
        let built = definition.build(ResidentContext::for_test("doubler", 1));
        built.await.unwrap().answer(request).await
    }

    #[tokio::test]
    async fn an_answer_is_encoded_as_its_request_was() {
        let packed = ask(Payload::encode(&Ask { number: 4 }).unwrap()).await;
        assert_eq!(packed.unwrap(), Payload::encode(&8_u64).unwrap());
        let json = ask(Payload::from_json(br#"{"number": 4}"#).unwrap()).await;
        assert_eq!(json.unwrap(), Payload::from_json(b"8").unwrap());
    }

    #[tokio::test]
    async fn what_does_not_decode_is_told_from_what_fails() {
        let invalid = ask(Payload::from_json(b"[]").unwrap()).await;
        assert!(matches!(invalid, Err(Unanswered::Invalid(_))));
        let failed = ask(Payload::encode(&Ask { number: u64::MAX }).unwrap()).await;
        assert!(matches!(failed, Err(Unanswered::Failed(text)) if text == "too large"));
    }

    #[tokio::test]
    async fn a_resident_that_resigns_says_why_once() {
        let ctx = ResidentContext::for_test("doubler", 1);
        ctx.resign("the first reason");
        ctx.clone().resign("the second");
        assert_eq!(ctx.resigned().await, "the first reason");
        assert!(!ctx.is_cancelled());
    }
}
