//! The engine: the services of one worker, and their start and stop.
//!
//! | module | does |
//! | --- | --- |
//! | `session` | opens a session, beats, gives it up in time |
//! | `dispatcher` | claims due runs |
//! | `shard`, `resident` | hold runs in memory, take turns |
//! | `alarms` | the timers of runs in memory |
//! | `journal` | appends, many runs a commit |
//! | `activities` | runs attempts, brings their results home |
//! | `signals` | ingests the signal stream |
//! | `listener` | hears hints on the bus |
//! | `api` | start, signal, cancel, get, await by request over NATS |
//! | `catch_up` | finds wakes whose hint was lost |
//! | `partitions` | makes the journal's months ahead |
//! | `recovery` | closes dead sessions, frees what they owned |

mod activities;
mod alarms;
mod api;
mod catch_up;
mod core;
mod dispatcher;
mod journal;
mod listener;
mod partitions;
mod recovery;
mod resident;
mod service;
mod session;
mod shard;
mod signals;

use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_bus::{Bus, BusState};
use continuum_schema::{Database, DatabaseConfig};
use tokio::sync::{OnceCell, mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::activities::Activities;
use self::core::Core;
use self::shard::{Message, Shard, Shards};
use crate::client::Client;
use crate::config::{BusSource, ConfigError, WorkerConfig};
use crate::registry::Registry;

/// Connections for heartbeats and recovery.
const CONTROL_CONNECTIONS: u32 = 2;

/// Activities get this much longer to end than runs, when a worker stops.
const ACTIVITY_GRACE: Duration = Duration::from_secs(7);

/// Why a worker can never work.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The database is not at this build's version, or refuses this worker.
    #[error("{0}")]
    Database(continuum_schema::Error),
}

/// Where a service says that the worker can never work.
type Fatal = watch::Sender<Option<Arc<WorkerError>>>;

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// It has no session yet.
    Starting,
    /// It works.
    Ready,
    /// It works, but not as it should; see the reasons.
    Degraded,
    /// It gives back what it holds.
    Stopping,
    /// It has stopped.
    Stopped,
}

impl std::fmt::Display for WorkerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        })
    }
}

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// What it is doing.
    pub state: WorkerState,
    /// Why it is not ready, or what it misses.
    pub reasons: Vec<String>,
    /// Its open session.
    pub session: Option<Uuid>,
}

/// What a stop left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Activities that did not end in time and were handed back; the attempts don't count.
    pub activities_handed_back: usize,
    /// Runs that could not be given back; others take them over when this session is found dead.
    pub runs_left: usize,
}

/// A worker: runs the workflows and activities of its registry until it is stopped.
///
/// ```no_run
/// use continuum_worker::{Registry, Worker, WorkerConfig};
/// # async fn example(registry: Registry, config: WorkerConfig) -> Result<(), Box<dyn std::error::Error>> {
/// let worker = Worker::start(registry, config).await?;
/// tokio::signal::ctrl_c().await?;
/// worker.stop().await;
/// # Ok(()) }
/// ```
pub struct Worker {
    core: Arc<Core>,
    client: Client,
    tasks: TaskTracker,
    /// What claims runs; it ends when the worker begins to stop.
    claims: TaskTracker,
    status: watch::Sender<WorkerStatus>,
    fatal: Fatal,
    stopped: OnceCell<Stopped>,
}

impl Worker {
    /// Starts all services and returns. Postgres and NATS may be away: the worker waits for them, says so in
    /// [`Worker::status`], and recovers by itself.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that can't work.
    pub async fn start(registry: Registry, config: WorkerConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let database = open_pool(config.database.clone())?;
        let control = open_pool(control_config(&config))?;
        let bus = open_bus(&config).await?;
        let (shards, inboxes) = Shards::new(config.shards);
        let (activities, posted) =
            Activities::new(&registry, &config.queues, config.activities_max);
        let client = Client::new(
            database.clone(),
            bus.clone(),
            &config.instance,
            config.limits,
        );
        let core = Core::new(config, registry, database, control, bus, shards, activities);
        let worker = Self {
            client,
            tasks: TaskTracker::new(),
            claims: TaskTracker::new(),
            status: watch::Sender::new(starting()),
            fatal: watch::Sender::new(None),
            stopped: OnceCell::new(),
            core,
        };
        worker.spawn_runs(inboxes);
        worker.spawn_services(posted);
        Ok(worker)
    }

    /// A client over this worker's connections.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What the worker says of itself, now and at each change.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<WorkerStatus> {
        self.status.subscribe()
    }

    /// How many runs are in memory.
    #[must_use]
    pub fn residents(&self) -> usize {
        self.core.residents()
    }

    /// Resolves only if the worker can never work, with the reason.
    pub async fn fatal(&self) -> Arc<WorkerError> {
        let mut fatal = self.fatal.subscribe();
        let failed = match fatal.wait_for(Option::is_some).await {
            Ok(error) => error.clone(),
            Err(_) => None,
        };
        match failed {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// Takes no new work, lets what is under way end within the stop time-out, gives the runs back, and closes the
    /// session, so that others go on at once. May be called again; the answer is the same.
    pub async fn stop(&self) -> Stopped {
        *self.stopped.get_or_init(|| self.drain()).await
    }

    async fn drain(&self) -> Stopped {
        self.core.draining.cancel();
        self.status.send_modify(|s| s.state = WorkerState::Stopping);
        let patience = self.core.config.stop_timeout;
        // A claim that is under way still brings runs, which are to be given back as well.
        self.claims.close();
        drop(tokio::time::timeout(patience, self.claims.wait()).await);
        let runs = self.give_back_runs(patience);
        let attempts = activities::drain(&self.core, patience + ACTIVITY_GRACE);
        let ((), activities_handed_back) = tokio::join!(runs, attempts);
        if let Some(session) = self.core.session() {
            let close =
                continuum_schema::session::close(&self.core.control, session, None, "stopped");
            if !matches!(tokio::time::timeout(patience, close).await, Ok(Ok(_))) {
                tracing::warn!(%session, "the session could not be closed; others will when they miss its heartbeat");
            }
        }
        let runs_left = self.core.residents();
        self.core.ring_ready(1);
        self.core.stop.cancel();
        // What still tries to reach Postgres for this session gives up.
        self.core.session.send_replace(None);
        self.tasks.close();
        drop(tokio::time::timeout(patience, self.tasks.wait()).await);
        if let BusSource::Nats(_) = self.core.config.bus {
            self.core.bus.close().await;
        }
        self.status.send_modify(|s| {
            s.state = WorkerState::Stopped;
            s.session = None;
        });
        Stopped {
            activities_handed_back,
            runs_left,
        }
    }

    /// Runs are given back as they become idle; at the deadline also those that are not.
    async fn give_back_runs(&self, patience: Duration) {
        if tokio::time::timeout(patience, self.drain_shards(false))
            .await
            .is_err()
        {
            drop(tokio::time::timeout(patience, self.drain_shards(true)).await);
        }
    }

    async fn drain_shards(&self, force: bool) {
        if self.core.session().is_none() {
            return;
        }
        let answers = std::sync::Mutex::new(Vec::new());
        self.core.shards.broadcast(|| {
            let (done, answer) = oneshot::channel();
            answers
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push(answer);
            Message::Drain { force, done }
        });
        let answers = answers
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        futures::future::join_all(answers).await;
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a run has at most one append on its way, and runs are bounded"
    )]
    fn spawn_runs(&self, inboxes: Vec<mpsc::UnboundedReceiver<Message>>) {
        for (place, inbox) in inboxes.into_iter().enumerate() {
            let (journal, appends) = mpsc::unbounded_channel();
            let shard = Shard::new(Arc::clone(&self.core), place, inbox, journal);
            self.tasks.spawn(tokio::task::unconstrained(shard.run()));
            let write = journal::write(Arc::clone(&self.core), appends);
            let stop = self.core.stop.clone();
            self.tasks
                .spawn(async move { stop.run_until_cancelled(write).await });
        }
    }

    fn spawn_services(&self, posted: mpsc::UnboundedReceiver<activities::Posted>) {
        let complete = activities::complete(Arc::clone(&self.core), posted);
        let stop = self.core.stop.clone();
        self.tasks
            .spawn(async move { stop.run_until_cancelled(complete).await });

        let fatal = self.fatal.clone();
        self.service("session", move |core| session::keep(core, fatal.clone()));
        let core = Arc::clone(&self.core);
        service::spawn(&self.claims, &self.core.stop, "dispatcher", move || {
            dispatcher::dispatch(Arc::clone(&core))
        });
        self.service("activities", activities::dispatch);
        self.service("held attempts", activities::watch_held);
        self.service("signals", signals::ingest);
        self.service("catch-up", catch_up::keep);
        self.service("recovery", recovery::keep);
        self.service("partitions", partitions::keep);
        let client = self.client.clone();
        self.service("api", move |core| api::serve(core, client.clone()));
        self.service("link", listener::watch_link);
        self.service("ready", listener::hear_ready);
        self.service("catch-up calls", listener::hear_catch_up);
        for queue in self.core.activities.queues() {
            let queue = queue.clone();
            self.service("queue", move |core| {
                listener::hear_queue(core, queue.clone())
            });
        }
        let status = self.status.clone();
        self.service("status", move |core| report(core, status.clone()));
    }

    fn service<F>(&self, name: &'static str, run: impl Fn(Arc<Core>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let core = Arc::clone(&self.core);
        service::spawn(&self.tasks, &self.core.stop, name, move || {
            run(Arc::clone(&core))
        });
    }
}

impl Drop for Worker {
    /// A worker that is dropped without a stop ends like a killed process: others take over when they miss its
    /// heartbeat.
    fn drop(&mut self) {
        self.core.stop.cancel();
    }
}

fn open_pool(config: DatabaseConfig) -> Result<Database, ConfigError> {
    Database::new(config).map_err(|e| ConfigError {
        setting: "database",
        rule: e.to_string(),
    })
}

/// What keeps the session alive waits neither for the work's connections nor as long.
fn control_config(config: &WorkerConfig) -> DatabaseConfig {
    DatabaseConfig {
        connections: CONTROL_CONNECTIONS,
        statement_timeout: Duration::from_secs(5),
        lock_timeout: Duration::from_secs(2),
        acquire_timeout: Duration::from_secs(3),
        ..config.database.clone()
    }
}

async fn open_bus(config: &WorkerConfig) -> Result<Bus, ConfigError> {
    match &config.bus {
        BusSource::Shared(bus) => Ok(bus.clone()),
        BusSource::Nats(nats) => Bus::connect((**nats).clone())
            .await
            .map_err(|e| ConfigError {
                setting: "bus",
                rule: e.to_string(),
            }),
    }
}

fn starting() -> WorkerStatus {
    WorkerStatus {
        state: WorkerState::Starting,
        reasons: vec!["no session in Postgres yet".into()],
        session: None,
    }
}

/// Keeps the status true.
async fn report(core: Arc<Core>, status: watch::Sender<WorkerStatus>) {
    let mut sessions = core.session.subscribe();
    let mut link = core.bus.status();
    let since = Instant::now();
    loop {
        let session = *sessions.borrow_and_update();
        let bus = link.borrow_and_update().state.clone();
        let next = describe(session, &bus);
        status.send_if_modified(|current| {
            let frozen = matches!(current.state, WorkerState::Stopping | WorkerState::Stopped);
            let changed = !frozen && *current != next;
            if changed {
                tracing::info!(state = %next.state, reasons = ?next.reasons, after = ?since.elapsed(), "worker.state");
                *current = next.clone();
            }
            changed
        });
        tokio::select! {
            _ = sessions.changed() => {}
            _ = link.changed() => {}
        }
    }
}

fn describe(session: Option<Uuid>, bus: &BusState) -> WorkerStatus {
    let mut reasons = Vec::new();
    if session.is_none() {
        reasons.push("no session in Postgres".to_owned());
    }
    match bus {
        BusState::Connected => {}
        BusState::Disconnected { reason } => {
            reasons.push(format!("{reason}; work goes on by polling"))
        }
        BusState::Connecting | BusState::Closed => {
            reasons.push("NATS is not connected; work goes on by polling".to_owned());
        }
    }
    let state = match (session, reasons.is_empty()) {
        (None, _) => WorkerState::Starting,
        (Some(_), true) => WorkerState::Ready,
        (Some(_), false) => WorkerState::Degraded,
    };
    WorkerStatus {
        state,
        reasons,
        session,
    }
}
