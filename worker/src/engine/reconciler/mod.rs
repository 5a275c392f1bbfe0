//! The reconciler: compares what should be with what is, and mends the difference.
//!
//! | module | compares |
//! | --- | --- |
//! | `sessions` | open sessions with their heartbeats; what closed ones still own |
//! | `engines` | the engines in this worker's memory with their lease rows |
//! | `overdue` | what is due with what is taken up |
//!
//! Every worker has one and none leads: each step is a compare-and-set or looks at what is, so any number may do it at
//! once. Nothing is moved: a run whose owner died becomes claimable, and whoever claims it rebuilds its state from the
//! journal.
//!
//! It has a thread and a connection of its own, for what it mends may be what takes up all others.

mod engines;
mod overdue;
mod sessions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::{Database, DatabaseConfig, Error};
use tokio_util::task::TaskTracker;

use self::engines::Engines;
use self::overdue::Overdue;
use self::sessions::Sessions;
use super::core::Core;
use super::service;
use crate::retry::jittered;

/// How long closing its connection may take.
const CLOSE_MAX: Duration = Duration::from_millis(200);

/// Starts the thread; it ends when the worker stops.
pub(super) fn spawn(core: Arc<Core>, services: &TaskTracker, config: DatabaseConfig) {
    // The drain waits for services, and for this as for one.
    let token = services.token();
    let thread = std::thread::Builder::new().name("continuum-reconciler".into());
    let spawned = thread.spawn(move || {
        let _token = token;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => runtime.block_on(keep(core, config)),
            Err(error) => no_thread(&error),
        }
    });
    if let Err(error) = spawned {
        no_thread(&error);
    }
}

fn no_thread(error: &std::io::Error) {
    tracing::error!(%error, "the reconciler has no thread; other workers must do its part");
}

async fn keep(core: Arc<Core>, config: DatabaseConfig) {
    // Made here, since a connection belongs to the runtime that made it.
    let database = match Database::new(config) {
        Ok(database) => database,
        Err(error) => unreachable!("the worker's own pools took the same settings: {error}"),
    };
    let tasks = TaskTracker::new();
    let (shared, connection) = (Arc::clone(&core), database.clone());
    service::spawn(&tasks, &core.stop, "reconciler", move || {
        Reconciler::new(Arc::clone(&shared), connection.clone()).keep()
    });
    tasks.close();
    tasks.wait().await;
    // Not beyond the bound that a drain sets for services.
    drop(tokio::time::timeout(CLOSE_MAX, database.close()).await);
}

struct Reconciler {
    core: Arc<Core>,
    database: Database,
    sessions: Sessions,
    engines: Engines,
    overdue: Overdue,
    /// When everything but the sessions is looked at next.
    next_look: Instant,
}

impl Reconciler {
    fn new(core: Arc<Core>, database: Database) -> Self {
        Self {
            next_look: Instant::now() + jittered(core.config.reconcile_interval),
            core,
            database,
            sessions: Sessions::default(),
            engines: Engines::default(),
            overdue: Overdue::default(),
        }
    }

    async fn keep(mut self) {
        loop {
            tokio::time::sleep(jittered(self.core.config.beat_interval)).await;
            let passed = self.pass().await;
            let metrics = &self.core.metrics.reconciler;
            match passed {
                Ok(()) => metrics.passes.inc(),
                Err(error) => {
                    tracing::debug!(%error, "a pass of the reconciler failed");
                    self.sessions.forget();
                    metrics.passes_failed.inc()
                }
            };
        }
    }

    async fn pass(&mut self) -> Result<(), Error> {
        let (core, database) = (&self.core, &self.database);
        let Some(session) = core.session() else {
            self.sessions.forget();
            return Ok(());
        };
        self.sessions.watch(core, database).await?;
        sessions::sweep(core, database).await?;
        if Instant::now() < self.next_look {
            return Ok(());
        }
        self.next_look = Instant::now() + jittered(core.config.reconcile_interval);
        self.engines.compare(core, database, session).await?;
        self.overdue.look(core, database).await
    }
}
