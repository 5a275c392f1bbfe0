//! The client: start runs, signal, cancel, look, wait.

mod ends;
mod resident;

use std::any::Any;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use continuum_bus::{Bus, BusState, Subjects};
use continuum_schema::mailbox::{self, CancelOutcome, PostOutcome, Signal, Wake};
use continuum_schema::run::{self, Filter, Run, Start, StartOutcome};
use continuum_schema::{Database, Key, Name, Payload, PayloadError, TextError, id};
use futures::future::BoxFuture;
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use self::ends::Ends;
use self::resident::Holders;
pub use self::resident::{ResidentError, ResidentHandle, ResidentRequest};
use crate::Payloadable;
use crate::batch::Batcher;
use crate::config::{BusSource, ConfigError, Limits};
use crate::error::RunFailure;
use crate::retry::Backoff;
use crate::workflow::{IntoSignal, Workflow, WorkflowFn};

/// The namespace of runs that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// The most starts that share one commit.
const STARTS_MAX: usize = 128;

/// How long a hint waits for the first link to NATS.
const LINK_MAX: Duration = Duration::from_secs(1);

/// How long a request goes on trying while Postgres is away.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a request failed, sorted by what the caller does next.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no such run.
    #[error("there is no run {0}")]
    NotFound(String),
    /// The run has ended, so it takes no signals and can't be cancelled.
    #[error("run {0} has ended")]
    Ended(Uuid),
    /// The idempotency key names a run with another workflow or input.
    #[error("the key {key:?} names run {run_id}, which has another workflow or input")]
    Conflict {
        /// The key.
        key: String,
        /// The run that has it.
        run_id: Uuid,
    },
    /// The run failed.
    #[error("the run failed: {0}")]
    Failed(RunFailure),
    /// The run was cancelled, for this reason.
    #[error("the run was cancelled: {0}")]
    Cancelled(String),
    /// The run has not ended within the time given.
    #[error("run {run_id} has not ended within {}", humantime::format_duration(*.after))]
    TimedOut {
        /// Which run.
        run_id: Uuid,
        /// The time that was given.
        after: Duration,
    },
    /// What was asked breaks a rule; nothing was stored.
    #[error("{0}")]
    Invalid(String),
    /// A payload is larger than the instance takes; nothing was stored.
    #[error("the {what} has {bytes} bytes; the limit is {max} (CONTINUUM_PAYLOAD_LIMIT)")]
    TooLarge {
        /// What it is.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Postgres or NATS is away.
    #[error("{0}")]
    Unavailable(String),
    /// The database is not at this build's version, or refuses.
    #[error("{0}")]
    Database(continuum_schema::Error),
}

impl ClientError {
    /// The error as a word for programs, as the API on NATS sends it.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "not_found",
            Self::Ended(_) => "run_ended",
            Self::Conflict { .. } => "key_conflict",
            Self::Failed(_) => "run_failed",
            Self::Cancelled(_) => "run_cancelled",
            Self::TimedOut { .. } => "timed_out",
            Self::Invalid(_) => "invalid",
            Self::TooLarge { .. } => "too_large",
            Self::Unavailable(_) => "unavailable",
            Self::Database(_) => "database",
        }
    }
}

impl From<continuum_schema::Error> for ClientError {
    fn from(error: continuum_schema::Error) -> Self {
        use continuum_schema::Error;
        match error {
            Error::NotFound(run) => Self::NotFound(run),
            Error::Ended(run) => Self::Ended(run),
            Error::KeyConflict { key, run_id } => Self::Conflict { key, run_id },
            error if error.is_transient() => Self::Unavailable(error.to_string()),
            error => Self::Database(error),
        }
    }
}

impl From<TextError> for ClientError {
    fn from(error: TextError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<PayloadError> for ClientError {
    fn from(error: PayloadError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<ConfigError> for ClientError {
    fn from(error: ConfigError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// A client of one instance. Cheap to clone; clones share their connections, and starts that are made at the same time
/// share commits.
///
/// ```no_run
/// # use continuum_worker::{Client, prelude::*};
/// # #[workflow(version = 1)]
/// # async fn greet(_ctx: &WorkflowContext, name: String) -> Result<String, WorkflowError> { Ok(name) }
/// # async fn example(client: Client) -> Result<(), continuum_worker::ClientError> {
/// let run = client.start(greet, "Ada".to_owned()).key("greet-ada").await?;
/// let greeting: String = run.result().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    database: Database,
    bus: Bus,
    subjects: Subjects,
    limits: Limits,
    starts: Batcher<Start, StartOutcome>,
    ends: Ends,
    holders: Holders,
}

impl Client {
    /// A client over connections that exist already. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(database: Database, bus: Bus, instance: &Name, limits: Limits) -> Self {
        let subjects = Subjects::new(instance);
        let starts = starts(&database, &bus, &subjects);
        let ends = Ends::new(&database, &bus, &subjects);
        Self {
            database,
            bus,
            subjects,
            limits,
            starts,
            ends,
            holders: Holders::default(),
        }
    }

    /// A client with connections of its own.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] if a setting can't work. Servers that are away are no error: requests wait for them.
    pub async fn connect(
        instance: &Name,
        database: continuum_schema::DatabaseConfig,
        bus: BusSource,
        limits: Limits,
    ) -> Result<Self, ClientError> {
        let database = Database::new(database)?;
        let bus = match bus {
            BusSource::Shared(bus) => bus,
            BusSource::Nats(config) => Bus::connect(*config)
                .await
                .map_err(|e| ClientError::Invalid(e.to_string()))?,
        };
        Ok(Self::new(database, bus, instance, limits))
    }

    /// Refuses a database that is not at this build's version.
    ///
    /// # Errors
    /// [`ClientError::Database`] names the command to run.
    pub async fn check(&self) -> Result<(), ClientError> {
        continuum_schema::migration::check(&self.database).await?;
        Ok(())
    }

    /// Starts a run of a workflow that this program knows. Await it, or call [`StartRequest::within`].
    #[must_use = "nothing is started until the request is awaited"]
    pub fn start<W: Workflow>(
        &self,
        workflow: impl WorkflowFn<W>,
        input: W::Input,
    ) -> StartRequest<W::Output> {
        // The function only names the workflow.
        let _ = workflow;
        self.start_request(W::NAME, Payload::encode(&input).map_err(ClientError::from))
    }

    /// Starts a run by the workflow's name. Whether any worker knows it shows when one claims it: until then the run is
    /// `unserved`.
    #[must_use = "nothing is started until the request is awaited"]
    pub fn start_named(&self, workflow: &str, input: Payload) -> StartRequest<Payload> {
        self.start_request(workflow, Ok(input))
    }

    fn start_request<T>(
        &self,
        workflow: &str,
        input: Result<Payload, ClientError>,
    ) -> StartRequest<T> {
        StartRequest {
            client: self.clone(),
            workflow: workflow.to_owned(),
            input,
            namespace: DEFAULT_NAMESPACE.to_owned(),
            key: None,
            trace_context: None,
            output: PhantomData,
        }
    }

    /// A signal for a run. Await it, or call [`SignalRequest::within`].
    #[must_use = "nothing is sent until the request is awaited"]
    pub fn signal<T: Serialize>(
        &self,
        run_id: Uuid,
        name: impl IntoSignal<T>,
        value: &T,
    ) -> SignalRequest {
        let name = name.into_signal();
        let payload = Payload::encode(value).map_err(ClientError::from);
        self.signal_request(run_id, name.as_str(), payload)
    }

    /// A signal with an encoded payload.
    #[must_use = "nothing is sent until the request is awaited"]
    pub fn signal_named(&self, run_id: Uuid, name: &str, payload: Payload) -> SignalRequest {
        self.signal_request(run_id, name, Ok(payload))
    }

    fn signal_request(
        &self,
        run_id: Uuid,
        name: &str,
        payload: Result<Payload, ClientError>,
    ) -> SignalRequest {
        SignalRequest {
            client: self.clone(),
            run_id,
            name: name.to_owned(),
            payload,
            delivery_id: None,
        }
    }

    /// Asks a run to stop, and says whether it has stopped already: a run that nobody has begun ends at once.
    ///
    /// # Errors
    /// [`ClientError::NotFound`], [`ClientError::Ended`], [`ClientError::Invalid`], [`ClientError::TooLarge`],
    /// [`ClientError::Unavailable`].
    pub async fn cancel(&self, run_id: Uuid, reason: &str) -> Result<bool, ClientError> {
        refuse_nul("reason", reason)?;
        self.check_size("reason", reason.len())?;
        match mailbox::cancel(&self.database, run_id, reason).await? {
            CancelOutcome::Requested(wake) => {
                self.wake(&wake).await;
                Ok(false)
            }
            CancelOutcome::Cancelled(run) => {
                self.bus.hint(&self.subjects.closed(run), Bytes::new());
                Ok(true)
            }
            CancelOutcome::NotFound => Err(ClientError::NotFound(run_id.to_string())),
            CancelOutcome::Ended => Err(ClientError::Ended(run_id)),
        }
    }

    /// All that is known of a run.
    ///
    /// # Errors
    /// [`ClientError::NotFound`], [`ClientError::Unavailable`].
    pub async fn get(&self, run_id: Uuid) -> Result<Run, ClientError> {
        Ok(run::get(&self.database, run_id).await?)
    }

    /// The run that a key names.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] if they can't be a namespace and a key, [`ClientError::Unavailable`].
    pub async fn find(&self, namespace: &str, key: &str) -> Result<Option<Uuid>, ClientError> {
        let namespace = Name::of("namespace", namespace)?;
        let key = Key::of("key", key)?;
        Ok(run::find(&self.database, namespace.as_str(), key.as_str()).await?)
    }

    /// A page of runs, newest first.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`].
    pub async fn list(&self, filter: &Filter, limit: i64) -> Result<Vec<Run>, ClientError> {
        Ok(run::list(&self.database, filter, limit).await?)
    }

    /// The handle of a run whose id is known.
    #[must_use]
    pub fn run<T>(&self, run_id: Uuid) -> RunHandle<T> {
        RunHandle {
            client: self.clone(),
            run_id,
            output: PhantomData,
        }
    }

    /// Waits until a run has ended and gives its value. Follows the notices on NATS, and looks by itself once a second
    /// in case one is lost.
    ///
    /// # Errors
    /// [`ClientError::Failed`] and [`ClientError::Cancelled`] when the run ended so, [`ClientError::TimedOut`] when
    /// `timeout` passed first, [`ClientError::NotFound`] if there is no such run.
    pub async fn wait(
        &self,
        run_id: Uuid,
        timeout: Option<Duration>,
    ) -> Result<Payload, ClientError> {
        let waiting = self.ends.wait(run_id);
        let Some(after) = timeout else {
            return waiting.await;
        };
        tokio::time::timeout(after, waiting)
            .await
            .unwrap_or(Err(ClientError::TimedOut { run_id, after }))
    }

    /// Tells the fleet of a start or a signal that was made within a transaction which has now committed. Without it
    /// the next poll finds them.
    pub async fn notify(&self, run_id: Uuid) {
        match run::owner(&self.database, run_id).await {
            Ok(Some(wake)) => self.wake(&wake).await,
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%run_id, %error, "nobody could be told; the next poll finds it")
            }
        }
    }

    async fn wake(&self, wake: &Wake) {
        until_linked(&self.bus).await;
        send_wake(&self.bus, &self.subjects, wake);
    }

    /// Sends what is still on its way to NATS and closes the link. A program that exits right after a request calls
    /// this, or the hint that makes the request quick may be lost.
    pub async fn close(&self) {
        self.bus.close().await;
        self.database.close().await;
    }

    fn check_size(&self, what: &'static str, bytes: usize) -> Result<(), ClientError> {
        let max = self.limits.payload_bytes_max;
        if bytes <= max {
            return Ok(());
        }
        Err(ClientError::TooLarge { what, bytes, max })
    }

    /// Only a start with a key may be sent again when its answer was lost.
    async fn try_start(&self, start: Start) -> Result<StartOutcome, ClientError> {
        let since = Instant::now();
        let mut backoff = Backoff::new(Duration::from_secs(2));
        loop {
            match self.starts.ask(start.clone()).await {
                Ok(outcome) => return Ok(outcome),
                Err(continuum_schema::Error::Unavailable(e)) if start.key.is_none() => {
                    return Err(ClientError::Unavailable(format!(
                        "Postgres is unavailable: {e}; whether the run was started is unknown. With an idempotency key \
                         the start could be sent again safely"
                    )));
                }
                Err(error) if error.is_transient() && since.elapsed() < PATIENCE => {
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A hint is dropped while there is no link, so a client that has just begun to connect waits a moment for it.
async fn until_linked(bus: &Bus) {
    let mut status = bus.status();
    if matches!(status.borrow().state, BusState::Connecting) {
        let settled = status.wait_for(|s| !matches!(s.state, BusState::Connecting));
        // The bound is what matters: without a link the next poll finds what the hint would have told.
        drop(tokio::time::timeout(LINK_MAX, settled).await);
    }
}

/// Postgres can't store a NUL in text.
fn refuse_nul(what: &str, text: &str) -> Result<(), ClientError> {
    if text.contains('\0') {
        return Err(ClientError::Invalid(format!(
            "the {what} holds a NUL character, which can't be stored"
        )));
    }
    Ok(())
}

/// Tells the owner of a run, or whoever claims it next.
pub(crate) fn send_wake(bus: &Bus, subjects: &Subjects, wake: &Wake) {
    match wake.owner {
        Some(session) => bus.hint(&subjects.wake(session, wake.run_id), Bytes::new()),
        None => bus.hint(&subjects.ready(), Bytes::new()),
    }
}

/// What commits starts that are made at the same time together.
fn starts(database: &Database, bus: &Bus, subjects: &Subjects) -> Batcher<Start, StartOutcome> {
    let (database, bus, ready) = (database.clone(), bus.clone(), subjects.ready());
    Batcher::new(STARTS_MAX, move |starts: Arc<Vec<Start>>| {
        let (database, bus, ready) = (database.clone(), bus.clone(), ready.clone());
        async move {
            let outcomes = run::start(&database, &starts).await?;
            until_linked(&bus).await;
            bus.hint(&ready, Bytes::new());
            Ok(outcomes)
        }
    })
}

/// A start that is being prepared; await it to send it.
#[must_use = "nothing is started until the request is awaited"]
pub struct StartRequest<T> {
    client: Client,
    workflow: String,
    input: Result<Payload, ClientError>,
    namespace: String,
    key: Option<String>,
    trace_context: Option<String>,
    output: PhantomData<fn() -> T>,
}

impl<T> StartRequest<T> {
    /// Names the run: a second start with the same key, workflow and input gives the same run, a start with another
    /// input is a [`ClientError::Conflict`]. Also makes the start safe to repeat.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The soft tenant; `default` without.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The W3C trace context that the run belongs to.
    pub fn trace_context(mut self, context: impl Into<String>) -> Self {
        self.trace_context = Some(context.into());
        self
    }

    /// Starts the run inside the caller's own transaction: it exists when that commits, and never if it rolls back.
    /// Call [`Client::notify`] after the commit.
    ///
    /// # Errors
    /// [`ClientError::Conflict`], [`ClientError::Invalid`], [`ClientError::TooLarge`].
    pub async fn within(
        self,
        connection: &mut sqlx::PgConnection,
    ) -> Result<RunHandle<T>, ClientError> {
        let (client, start) = self.prepare()?;
        let outcome = run::start_in(connection, client.database.schema(), &start).await?;
        handle(client, start.key, outcome)
    }

    async fn send(self) -> Result<RunHandle<T>, ClientError> {
        let (client, start) = self.prepare()?;
        let key = start.key.clone();
        let outcome = client.try_start(start).await?;
        handle(client, key, outcome)
    }

    fn prepare(self) -> Result<(Client, Start), ClientError> {
        let input = self.input?;
        input.format()?;
        self.client.check_size("input", input.len())?;
        refuse_nul(
            "trace context",
            self.trace_context.as_deref().unwrap_or_default(),
        )?;
        let start = Start {
            namespace: Name::of("namespace", self.namespace)?.into(),
            workflow: Name::of("workflow name", self.workflow)?.into(),
            key: self
                .key
                .map(|key| Key::of("key", key))
                .transpose()?
                .map(String::from),
            input,
            trace_context: self.trace_context,
        };
        Ok((self.client, start))
    }
}

fn handle<T>(
    client: Client,
    key: Option<String>,
    outcome: StartOutcome,
) -> Result<RunHandle<T>, ClientError> {
    match outcome {
        StartOutcome::Started(run_id) | StartOutcome::Existing(run_id) => Ok(client.run(run_id)),
        StartOutcome::Conflict(run_id) => Err(ClientError::Conflict {
            key: key.unwrap_or_default(),
            run_id,
        }),
    }
}

impl<T: Send + 'static> IntoFuture for StartRequest<T> {
    type Output = Result<RunHandle<T>, ClientError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A signal that is being prepared; await it to send it.
#[must_use = "nothing is sent until the request is awaited"]
pub struct SignalRequest {
    client: Client,
    run_id: Uuid,
    name: String,
    payload: Result<Payload, ClientError>,
    delivery_id: Option<String>,
}

/// What became of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// The run will read it.
    Accepted,
    /// A signal with this delivery id had been accepted before; it counts once.
    Duplicate,
}

impl SignalRequest {
    /// The sender's own id of this signal: sent again with the same id, it counts once.
    pub fn delivery_id(mut self, id: impl Into<String>) -> Self {
        self.delivery_id = Some(id.into());
        self
    }

    /// Sends the signal when the caller's own transaction commits. If the run has ended by then, the commit fails with
    /// SQLSTATE `CTM02`. Call [`Client::notify`] after the commit.
    ///
    /// # Errors
    /// [`ClientError::NotFound`], [`ClientError::Invalid`], [`ClientError::TooLarge`].
    pub async fn within(self, connection: &mut sqlx::PgConnection) -> Result<(), ClientError> {
        let (client, signal) = self.prepare()?;
        Ok(mailbox::signal_in(connection, client.database.schema(), &signal).await?)
    }

    fn prepare(self) -> Result<(Client, Signal), ClientError> {
        let payload = self.payload?;
        payload.format()?;
        self.client.check_size("signal", payload.len())?;
        let signal = Signal {
            run_id: self.run_id,
            name: Name::of("signal name", self.name)?.into(),
            payload,
            delivery_id: self
                .delivery_id
                .map(|id| Key::of("delivery id", id))
                .transpose()?
                .map(String::from),
        };
        Ok((self.client, signal))
    }

    /// A fresh delivery id makes it safe to send again when an answer is lost.
    async fn send(self) -> Result<Signalled, ClientError> {
        let (client, mut signal) = self.prepare()?;
        signal.delivery_id.get_or_insert_with(id::fresh_delivery_id);
        let since = Instant::now();
        let mut backoff = Backoff::new(Duration::from_secs(2));
        let run_id = signal.run_id;
        let signals = [signal];
        let outcome = loop {
            match mailbox::signal(&client.database, &signals).await {
                Ok(outcomes) => break outcomes[0],
                Err(error) if error.is_transient() && since.elapsed() < PATIENCE => {
                    tokio::time::sleep(backoff.next()).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        match outcome {
            PostOutcome::Posted(wake) => {
                client.wake(&wake).await;
                Ok(Signalled::Accepted)
            }
            PostOutcome::Duplicate => Ok(Signalled::Duplicate),
            PostOutcome::NotFound => Err(ClientError::NotFound(run_id.to_string())),
            PostOutcome::Ended => Err(ClientError::Ended(run_id)),
            PostOutcome::Busy => Err(ClientError::Unavailable(
                "the run's row is held by somebody".into(),
            )),
        }
    }
}

impl IntoFuture for SignalRequest {
    type Output = Result<Signalled, ClientError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A run, and the type of what it gives.
pub struct RunHandle<T> {
    client: Client,
    run_id: Uuid,
    output: PhantomData<fn() -> T>,
}

impl<T> Clone for RunHandle<T> {
    fn clone(&self) -> Self {
        self.client.run(self.run_id)
    }
}

impl<T> RunHandle<T> {
    /// The run's id.
    #[must_use]
    pub fn run_id(&self) -> Uuid {
        self.run_id
    }

    /// A signal for this run; see [`Client::signal`].
    #[must_use = "nothing is sent until the request is awaited"]
    pub fn signal<S: Serialize>(&self, name: impl IntoSignal<S>, value: &S) -> SignalRequest {
        self.client.signal(self.run_id, name, value)
    }

    /// Asks the run to stop; see [`Client::cancel`].
    ///
    /// # Errors
    /// As [`Client::cancel`].
    pub async fn cancel(&self, reason: &str) -> Result<bool, ClientError> {
        self.client.cancel(self.run_id, reason).await
    }

    /// All that is known of the run.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get(&self) -> Result<Run, ClientError> {
        self.client.get(self.run_id).await
    }
}

impl<T: Payloadable> RunHandle<T> {
    /// Waits until the run has ended and gives its value; of a run that was started by name, encoded as it is.
    ///
    /// # Errors
    /// As [`Client::wait`].
    pub async fn result(&self) -> Result<T, ClientError> {
        decode(self.client.wait(self.run_id, None).await?)
    }

    /// Like [`RunHandle::result`], for `timeout` at the longest.
    ///
    /// # Errors
    /// As [`Client::wait`].
    pub async fn result_within(&self, timeout: Duration) -> Result<T, ClientError> {
        decode(self.client.wait(self.run_id, Some(timeout)).await?)
    }
}

/// The value in a payload, or the payload itself where that is what is wanted: the value of a run that was started by
/// name is not another payload inside of it.
fn decode<T: Payloadable>(payload: Payload) -> Result<T, ClientError> {
    let mut payload = Some(payload);
    let wanted: Option<T> = match (&mut payload as &mut dyn Any).downcast_mut::<Option<T>>() {
        Some(same) => same.take(),
        None => None,
    };
    match (wanted, payload) {
        (Some(payload), _) => Ok(payload),
        (None, payload) => Ok(payload.unwrap_or_else(Payload::unit).decode()?),
    }
}
