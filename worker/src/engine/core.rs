//! What all services of one worker share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_bus::{Bus, SignalSettings, Subjects};
use continuum_schema::Database;
use continuum_schema::clock::Clock;
use continuum_schema::lease::ClaimKey;
use continuum_schema::mailbox::Wake;
use continuum_schema::session::Report;
use time::OffsetDateTime;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::activities::Activities;
use super::shard::{Message, Shards};
use super::{WorkerState, WorkerStatus};
use crate::config::{BusSource, WorkerConfig};
use crate::metrics::{Metrics, level};
use crate::registry::Registry;

/// What all services of one worker share.
pub(crate) struct Core {
    pub(crate) config: WorkerConfig,
    pub(crate) registry: Registry,
    /// The pool of the work itself.
    pub(crate) database: Database,
    /// A small pool of its own for heartbeats and residents, so that work can't starve what keeps it alive.
    pub(crate) control: Database,
    pub(crate) bus: Bus,
    pub(crate) subjects: Subjects,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// The open session, if there is one. Whatever was begun under another one is void.
    pub(crate) session: watch::Sender<Option<Uuid>>,
    /// What the worker says of itself.
    pub(crate) status: watch::Sender<WorkerStatus>,
    /// What keeps signals from being published to the stream or read from it; `None` while all is well.
    pub(crate) signal_fault: watch::Sender<Option<String>>,
    /// Cancelled first: take no new work.
    pub(crate) draining: CancellationToken,
    /// Cancelled when everything has been given back: no more heartbeats.
    pub(crate) leaving: CancellationToken,
    /// Cancelled then: end every service.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the worker is dropped: nobody can ask it anything any more.
    pub(crate) closed: CancellationToken,
    /// Somebody may have left a run to claim.
    pub(crate) runs_due: Notify,
    /// A catch-up pass is wanted.
    pub(crate) catch_up: Notify,
    /// A singleton may be free.
    pub(crate) residents_free: Notify,
    pub(crate) activities: Activities,
    pub(crate) shards: Shards,
    residents: AtomicUsize,
    /// Runs that are being advanced here; see [`Advancing`].
    advancing: AtomicUsize,
    /// Leases that are on their way back to Postgres; no engine holds them any more.
    releasing: AtomicUsize,
}

impl Core {
    pub(crate) fn new(
        config: WorkerConfig,
        registry: Registry,
        database: Database,
        control: Database,
        bus: Bus,
        shards: Shards,
        activities: Activities,
    ) -> Arc<Self> {
        let subjects = Subjects::new(&config.instance);
        Arc::new(Self {
            registry,
            database,
            control,
            bus,
            subjects,
            clock: Clock::new(OffsetDateTime::UNIX_EPOCH, Instant::now()),
            metrics: Metrics::new(&config),
            session: watch::Sender::new(None),
            status: watch::Sender::new(WorkerStatus {
                state: WorkerState::Starting,
                reasons: vec!["no session in Postgres yet".into()],
                session: None,
            }),
            signal_fault: watch::Sender::new(Some("the signal stream is not there yet".into())),
            draining: CancellationToken::new(),
            leaving: CancellationToken::new(),
            stop: CancellationToken::new(),
            closed: CancellationToken::new(),
            runs_due: Notify::new(),
            catch_up: Notify::new(),
            residents_free: Notify::new(),
            activities,
            shards,
            residents: AtomicUsize::new(0),
            advancing: AtomicUsize::new(0),
            releasing: AtomicUsize::new(0),
            config,
        })
    }

    /// The open session.
    pub(crate) fn session(&self) -> Option<Uuid> {
        *self.session.borrow()
    }

    /// Whether what was begun under `session` still counts.
    pub(crate) fn is_current(&self, session: Uuid) -> bool {
        self.session() == Some(session)
    }

    /// Resolves when `session` is not the open one any more.
    pub(crate) async fn session_ended(&self, session: Uuid) {
        let mut sessions = self.session.subscribe();
        // The sender lives in `self`, so waiting can't fail.
        drop(sessions.wait_for(|current| *current != Some(session)).await);
    }

    /// Waits, but not beyond the begin of a drain.
    pub(crate) async fn pause(&self, wait: Duration) {
        self.draining
            .run_until_cancelled(tokio::time::sleep(wait))
            .await;
    }

    pub(crate) fn residents(&self) -> usize {
        self.residents.load(Ordering::Relaxed)
    }

    pub(crate) fn residents_changed(&self, by: isize) {
        if by >= 0 {
            self.residents
                .fetch_add(by.unsigned_abs(), Ordering::Relaxed);
        } else {
            self.residents
                .fetch_sub(by.unsigned_abs(), Ordering::Relaxed);
        }
    }

    /// Runs that are being advanced here.
    pub(crate) fn advancing(&self) -> usize {
        self.advancing.load(Ordering::Relaxed)
    }

    /// Counts a run as being advanced until the guard is dropped.
    pub(crate) fn advance(self: &Arc<Self>) -> Advancing {
        self.advancing.fetch_add(1, Ordering::Relaxed);
        Advancing(Arc::clone(self))
    }

    /// How many runs this worker may claim now: none while it has its hands full, so that others of the fleet get them.
    /// Then it waits until an eighth of its hands are free, for claims of one run each would cost more than they bring.
    pub(crate) fn claim_room(&self) -> usize {
        let advancing = self.advancing();
        let free = if advancing > self.claim_again() {
            0
        } else {
            self.config.advancing_max - advancing
        };
        let room = self.config.residents_max.saturating_sub(self.residents());
        free.min(room)
    }

    fn claim_again(&self) -> usize {
        let max = self.config.advancing_max;
        max - max.div_ceil(8)
    }

    /// Leases that are on their way back to Postgres.
    pub(crate) fn releasing(&self) -> usize {
        self.releasing.load(Ordering::Relaxed)
    }

    /// Counts leases as on their way back until the guard is dropped.
    pub(crate) fn release_begins(self: &Arc<Self>, count: usize) -> Releasing {
        self.releasing.fetch_add(count, Ordering::Relaxed);
        Releasing {
            core: Arc::clone(self),
            count,
        }
    }

    /// Begins a drain unless there is one. Readiness turns false before anything else does.
    pub(crate) fn begin_drain(&self, by: &str) {
        let begins = self.status.send_if_modified(|status| {
            let begins = !status.state.is_leaving();
            if begins {
                status.state = WorkerState::Draining;
                status.reasons = vec![format!("a drain was asked for by {by}")];
            }
            begins
        });
        if begins {
            tracing::info!(
                by,
                resident_runs = self.residents(),
                running_activities = self.activities.running(),
                "worker.draining"
            );
            self.draining.cancel();
        }
    }

    /// How the worker is, for the row of its session.
    pub(crate) fn report(&self) -> Report {
        Report {
            // A session that opens makes the worker ready.
            state: match self.status.borrow().state {
                WorkerState::Starting => WorkerState::Ready.name(),
                state => state.name(),
            },
            resident: level(self.residents()),
            activities: level(self.activities.running()),
        }
    }

    /// All metrics as text; what can be looked up is looked up now.
    pub(crate) fn metrics_text(&self) -> String {
        let metrics = &self.metrics;
        metrics.worker.set_state(self.status.borrow().state);
        let connected = self.bus.status().borrow().is_connected();
        metrics.worker.nats_connected.set(connected.into());
        metrics.runs.resident.set(level(self.residents()));
        metrics.runs.advancing.set(level(self.advancing()));
        metrics
            .activities
            .running
            .set(level(self.activities.running()));
        metrics.database.work.set(&self.database);
        metrics.database.control.set(&self.control);
        metrics.text()
    }

    /// Tells the owner of a run of new mail; when nobody owns it, asks somebody to claim it.
    pub(crate) fn wake(&self, wake: &Wake) {
        match wake.owner {
            Some(session) if self.is_current(session) => {
                self.shards.send(wake.run_id, Message::Wake(wake.run_id))
            }
            Some(session) => {
                self.metrics.wakes.forwarded.inc();
                let from = self.session();
                tracing::trace!(run_id = %wake.run_id, ?from, to = %session, "run.forwarded");
                self.bus
                    .hint(&self.subjects.wake(session, wake.run_id), Bytes::new());
            }
            None => self.ring_ready(0),
        }
    }

    /// Asks some worker to claim what is due. `hops` counts how often the ring was passed on.
    pub(crate) fn ring_ready(&self, hops: u8) {
        if hops == 0 && self.can_claim() {
            self.runs_due.notify_one();
        }
        self.bus
            .hint(&self.subjects.ready(), Bytes::from(vec![hops]));
    }

    /// Tells all workers that a singleton may be free.
    pub(crate) fn ring_residents(&self) {
        self.residents_free.notify_one();
        self.bus.hint(&self.subjects.residents(), Bytes::new());
    }

    /// Whether this worker can take one more run.
    pub(crate) fn can_claim(&self) -> bool {
        !self.draining.is_cancelled() && self.session().is_some() && self.claim_room() > 0
    }

    /// The settings of the signal stream.
    pub(crate) fn signal_settings(&self) -> SignalSettings {
        match &self.config.bus {
            BusSource::Nats(nats) => nats.signals.clone(),
            BusSource::Shared(_) => SignalSettings::default(),
        }
    }

    /// What this worker can take up, and what each is pinned to.
    pub(crate) fn claim_keys(&self) -> Vec<ClaimKey> {
        let mut keys: Vec<ClaimKey> = Vec::new();
        for definition in self.registry.workflows() {
            let name = definition.name();
            if let Some(latest) = self
                .registry
                .latest(name)
                .filter(|l| l.hash() == definition.hash())
            {
                keys.push(ClaimKey {
                    key: name.to_owned(),
                    pin: ClaimKey::pinned(name, latest.hash()),
                });
            }
            for hash in std::iter::once(&definition.hash()).chain(definition.compatible()) {
                let pinned = ClaimKey::pinned(name, hash);
                keys.push(ClaimKey {
                    key: pinned.clone(),
                    pin: pinned,
                });
            }
        }
        keys.sort_by(|a, b| a.key.cmp(&b.key));
        keys.dedup();
        keys
    }
}

/// A run that is being advanced here: it is loaded, in a turn, or has a step, an activity or an append under way.
pub(crate) struct Advancing(Arc<Core>);

impl Drop for Advancing {
    fn drop(&mut self) {
        let before = self.0.advancing.fetch_sub(1, Ordering::Relaxed);
        if before == self.0.claim_again() + 1 {
            self.0.runs_due.notify_one();
        }
    }
}

/// Leases on their way back to Postgres. Dropped, those that are left count no more.
pub(crate) struct Releasing {
    core: Arc<Core>,
    count: usize,
}

impl Releasing {
    /// So many are left.
    pub(crate) fn left(&mut self, count: usize) {
        let given_back = self.count.saturating_sub(count);
        self.core.releasing.fetch_sub(given_back, Ordering::Relaxed);
        self.count -= given_back;
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.left(0);
    }
}
