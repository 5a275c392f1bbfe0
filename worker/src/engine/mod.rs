//! The engine: the services of one worker, and their start and stop.
//!
//! | module | does |
//! | --- | --- |
//! | `session` | opens a session, beats, gives it up in time |
//! | `drain` | leaves without dropping work |
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
//! | `reconciler` | closes dead sessions, frees what they owned, reaps engines that lost their lease, revives what nobody woke |
//! | `warden`, `holding` | what the fleet has one of: who holds it, and the life of one that is held here |

mod activities;
mod alarms;
mod api;
mod catch_up;
mod core;
mod dispatcher;
mod drain;
mod holding;
mod journal;
mod listener;
mod partitions;
mod reconciler;
mod resident;
mod service;
mod session;
mod shard;
mod signals;
mod warden;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_bus::{Bus, BusState};
use continuum_schema::{Database, DatabaseConfig};
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::activities::Activities;
pub(crate) use self::core::Core;
pub use self::drain::Drained;
use self::drain::Tasks;
pub(crate) use self::drain::left_by_drain;
use self::shard::{Message, Shard, Shards};
use crate::client::Client;
use crate::config::{BusSource, ConfigError, WorkerConfig};
use crate::http::Port;
use crate::registry::Registry;

/// Connections for heartbeats and residents.
const CONTROL_CONNECTIONS: u32 = 2;

/// The reconciler does one thing after the other.
const RECONCILER_CONNECTIONS: u32 = 1;

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
    /// It takes no new work and gives back what it holds.
    Draining,
    /// It holds nothing any more.
    Drained,
}

impl WorkerState {
    /// All states, in the order in which a worker comes to them.
    pub const ALL: [Self; 5] = [
        Self::Starting,
        Self::Ready,
        Self::Degraded,
        Self::Draining,
        Self::Drained,
    ];

    /// The state as a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }

    /// Whether it drains or has drained; nothing follows on that.
    #[must_use]
    pub const fn is_leaving(self) -> bool {
        matches!(self, Self::Draining | Self::Drained)
    }

    /// Whether it takes up work.
    #[must_use]
    pub const fn is_serving(self) -> bool {
        matches!(self, Self::Ready | Self::Degraded)
    }
}

impl std::fmt::Display for WorkerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
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
    tasks: Tasks,
    fatal: Fatal,
    drained: watch::Receiver<Option<Drained>>,
    http: Option<SocketAddr>,
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
        let control = open_pool(control_config(&config, CONTROL_CONNECTIONS))?;
        let port = match config.http {
            Some(address) => Some(Port::take(address).await?),
            None => None,
        };
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
        let (drained, outcome) = watch::channel(None);
        let worker = Self {
            client,
            tasks: Tasks::default(),
            fatal: watch::Sender::new(None),
            drained: outcome,
            http: port.as_ref().map(Port::address),
            core,
        };
        worker.spawn_runs(inboxes);
        worker.spawn_services(posted);
        worker.spawn_ends(port, drained);
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
        self.core.status.subscribe()
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

    /// Drains: takes no new work, lets what is under way end within the stop time-out, gives back the rest, and closes
    /// the session, so that others go on at once. May be called again and beside other ways to ask for a drain; the
    /// answer is the same.
    ///
    /// Runs have the stop time-out to reach a wait, activities seven seconds more, and giving back what did not end a
    /// few seconds; so it comes to an end also while Postgres can't be reached.
    pub async fn stop(&self) -> Drained {
        self.core.begin_drain("the program");
        self.drained().await
    }

    /// Resolves when a drain has ended that anybody asked for: this program, an operator over NATS or HTTP.
    pub async fn drained(&self) -> Drained {
        let mut drained = self.drained.clone();
        let outcome = match drained.wait_for(Option::is_some).await {
            Ok(outcome) => *outcome,
            Err(_) => None,
        };
        // Without an outcome the drain itself has ended with the runtime, and nothing was given back.
        outcome.unwrap_or_else(|| Drained {
            runs_left: self.core.residents(),
            activities_left: self.core.activities.running(),
            session_left: self.core.session().is_some(),
            ..Drained::default()
        })
    }

    /// Where the HTTP port listens, if it has one.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The metrics, in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.core.metrics_text()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a run has at most one append on its way, and runs are bounded"
    )]
    fn spawn_runs(&self, inboxes: Vec<mpsc::UnboundedReceiver<Message>>) {
        for (place, inbox) in inboxes.into_iter().enumerate() {
            let (journal, appends) = mpsc::unbounded_channel();
            let shard = Shard::new(Arc::clone(&self.core), place, inbox, journal);
            let services = &self.tasks.services;
            services.spawn(tokio::task::unconstrained(shard.run()));
            let write = journal::write(Arc::clone(&self.core), appends);
            let stop = self.core.stop.clone();
            services.spawn(async move { stop.run_until_cancelled(write).await });
        }
    }

    /// What goes on when the services have ended.
    fn spawn_ends(&self, port: Option<Port>, drained: watch::Sender<Option<Drained>>) {
        let closed = self.core.closed.clone();
        let drain = drain::keep(Arc::clone(&self.core), self.tasks.clone(), drained);
        tokio::spawn(closed.run_until_cancelled_owned(drain));
        if let Some(port) = port {
            tokio::spawn(port.serve(Arc::clone(&self.core)));
        }
    }

    fn spawn_services(&self, posted: mpsc::UnboundedReceiver<activities::Posted>) {
        let complete = activities::complete(Arc::clone(&self.core), posted);
        let stop = self.core.stop.clone();
        self.tasks
            .services
            .spawn(async move { stop.run_until_cancelled(complete).await });

        let fatal = self.fatal.clone();
        self.service("session", move |core| session::keep(core, fatal.clone()));
        self.claim("dispatcher", dispatcher::dispatch);
        self.claim("activities", activities::dispatch);
        self.claim("signals", signals::ingest);
        self.service("held attempts", activities::watch_held);
        self.service("catch-up", catch_up::keep);
        let config = control_config(&self.core.config, RECONCILER_CONNECTIONS);
        reconciler::spawn(Arc::clone(&self.core), &self.tasks.services, config);
        self.spawn_warden();
        let client = self.client.clone();
        self.service("api", move |core| api::serve(core, client.clone()));
        self.service("link", listener::watch_link);
        self.service("ready", listener::hear_ready);
        self.service("catch-up calls", listener::hear_catch_up);
        self.service("free residents", listener::hear_residents);
        for queue in self.core.activities.queues() {
            let queue = queue.clone();
            self.service("queue", move |core| {
                listener::hear_queue(core, queue.clone())
            });
        }
        self.service("status", report);
    }

    /// The warden leaves when the worker drains; the drain waits for it.
    fn spawn_warden(&self) {
        let mut definitions: Vec<_> = self.core.registry.residents().cloned().collect();
        definitions.push(partitions::care(&self.core));
        let core = Arc::clone(&self.core);
        service::spawn(
            &self.tasks.wardens,
            &self.core.stop,
            "residents",
            move || warden::keep(Arc::clone(&core), definitions.clone()),
        );
    }

    fn service<F>(&self, name: &'static str, run: impl Fn(Arc<Core>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_in(&self.tasks.services, name, run);
    }

    /// A service that takes up work: it ends when the worker drains.
    fn claim<F>(&self, name: &'static str, run: impl Fn(Arc<Core>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_in(&self.tasks.claims, name, run);
    }

    fn spawn_in<F>(
        &self,
        tasks: &TaskTracker,
        name: &'static str,
        run: impl Fn(Arc<Core>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let core = Arc::clone(&self.core);
        service::spawn(tasks, &self.core.stop, name, move || run(Arc::clone(&core)));
    }
}

impl Drop for Worker {
    /// A worker that is dropped without a stop ends like a killed process: others take over when they miss its
    /// heartbeat.
    fn drop(&mut self) {
        self.core.stop.cancel();
        self.core.closed.cancel();
    }
}

fn open_pool(config: DatabaseConfig) -> Result<Database, ConfigError> {
    Database::new(config).map_err(|e| ConfigError {
        setting: "database",
        rule: e.to_string(),
    })
}

/// What keeps the session alive waits neither for the work's connections nor as long.
fn control_config(config: &WorkerConfig, connections: u32) -> DatabaseConfig {
    DatabaseConfig {
        connections,
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

/// Keeps the status true.
async fn report(core: Arc<Core>) {
    let mut sessions = core.session.subscribe();
    let mut link = core.bus.status();
    let mut signals = core.signal_fault.subscribe();
    let since = Instant::now();
    loop {
        let session = *sessions.borrow_and_update();
        let bus = link.borrow_and_update().state.clone();
        let signal_fault = signals.borrow_and_update().clone();
        let next = describe(session, &bus, signal_fault);
        core.status.send_if_modified(|current| {
            let changed = !current.state.is_leaving() && *current != next;
            if changed {
                tracing::info!(state = %next.state, reasons = ?next.reasons, after = ?since.elapsed(), "worker.state");
                *current = next.clone();
            }
            changed
        });
        tokio::select! {
            _ = sessions.changed() => {}
            _ = link.changed() => {}
            _ = signals.changed() => {}
        }
    }
}

/// A worker without the signal stream is degraded: its runs go on, and who publishes a signal is told that it can't be
/// stored.
fn describe(session: Option<Uuid>, bus: &BusState, signal_fault: Option<String>) -> WorkerStatus {
    let mut reasons = Vec::new();
    if session.is_none() {
        reasons.push("no session in Postgres".to_owned());
    }
    match bus {
        BusState::Connected => reasons.extend(signal_fault),
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
