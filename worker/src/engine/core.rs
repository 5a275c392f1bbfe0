//! What all services of one worker share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use continuum_bus::{Bus, SignalSettings, Subjects};
use continuum_schema::Database;
use continuum_schema::clock::Clock;
use continuum_schema::lease::ClaimKey;
use continuum_schema::mailbox::Wake;
use time::OffsetDateTime;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::activities::Activities;
use super::shard::{Message, Shards};
use crate::config::{BusSource, WorkerConfig};
use crate::registry::Registry;

/// What all services of one worker share.
pub(crate) struct Core {
    pub(crate) config: WorkerConfig,
    pub(crate) registry: Registry,
    /// The pool of the work itself.
    pub(crate) database: Database,
    /// A small pool of its own for heartbeats and recovery, so that work can't starve what keeps it alive.
    pub(crate) control: Database,
    pub(crate) bus: Bus,
    pub(crate) subjects: Subjects,
    pub(crate) clock: Clock,
    /// The open session, if there is one. Whatever was begun under another one is void.
    pub(crate) session: watch::Sender<Option<Uuid>>,
    /// Cancelled first: take no new work.
    pub(crate) draining: CancellationToken,
    /// Cancelled last: end every service.
    pub(crate) stop: CancellationToken,
    /// Somebody may have left a run to claim.
    pub(crate) runs_due: Notify,
    /// A catch-up pass is wanted.
    pub(crate) catch_up: Notify,
    pub(crate) activities: Activities,
    pub(crate) shards: Shards,
    residents: AtomicUsize,
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
            session: watch::Sender::new(None),
            draining: CancellationToken::new(),
            stop: CancellationToken::new(),
            runs_due: Notify::new(),
            catch_up: Notify::new(),
            activities,
            shards,
            residents: AtomicUsize::new(0),
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

    /// Tells the owner of a run of new mail; when nobody owns it, asks somebody to claim it.
    pub(crate) fn wake(&self, wake: &Wake) {
        match wake.owner {
            Some(session) if self.is_current(session) => {
                self.shards.send(wake.run_id, Message::Wake(wake.run_id))
            }
            Some(session) => {
                tracing::trace!(run_id = %wake.run_id, to = %session, "run.forwarded");
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

    /// Whether this worker can take one more run.
    pub(crate) fn can_claim(&self) -> bool {
        !self.draining.is_cancelled()
            && self.session().is_some()
            && self.residents() < self.config.residents_max
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
