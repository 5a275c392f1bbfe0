//! A world: one instance on the shared servers, its workers and its client.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use continuum_bus::BusConfig;
use continuum_schema::{Database, DatabaseConfig, Name, migration};
use continuum_worker::{BusSource, Client, Limits, Registry, Worker, WorkerConfig, WorkerState};

use crate::{check, servers};

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// The longest that a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One instance of its own.
pub struct World {
    /// Its name, which is also its schema.
    pub instance: Name,
    /// A pool for looking behind the scenes.
    pub database: Database,
    schema: String,
    nats_url: String,
    postgres_url: String,
}

impl World {
    /// A new, migrated instance.
    ///
    /// # Panics
    /// If it can't be made.
    pub async fn new() -> Self {
        let world = Self::unmigrated().await;
        migration::migrate(&world.database)
            .await
            .expect("the instance is migrated");
        world
    }

    /// A new instance on an empty schema.
    ///
    /// # Panics
    /// If its settings can't be used.
    pub async fn unmigrated() -> Self {
        let servers = servers().await;
        Self::at(&servers.postgres.url(), servers.nats.url())
    }

    /// A new instance on servers of the test's own, on an empty schema.
    ///
    /// # Panics
    /// If its settings can't be used.
    #[must_use]
    pub fn at(postgres_url: &str, nats_url: &str) -> Self {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let instance =
            Name::new(format!("t{}_{number}", std::process::id())).expect("a valid name");
        let config = DatabaseConfig::new(postgres_url, &instance);
        Self {
            schema: config.schema.clone(),
            database: Database::new(config).expect("a usable URL"),
            instance,
            nats_url: nats_url.to_owned(),
            postgres_url: postgres_url.to_owned(),
        }
    }

    /// The same instance in another schema.
    ///
    /// # Panics
    /// If its settings can't be used.
    #[must_use]
    pub fn in_schema(mut self, schema: &str) -> Self {
        schema.clone_into(&mut self.schema);
        self.database = Database::new(self.database_config()).expect("a usable URL");
        self
    }

    /// Where this instance is in Postgres.
    #[must_use]
    pub fn database_config(&self) -> DatabaseConfig {
        DatabaseConfig {
            schema: self.schema.clone(),
            ..DatabaseConfig::new(self.postgres_url.clone(), &self.instance)
        }
    }

    /// The NATS server's address.
    #[must_use]
    pub fn nats_url(&self) -> &str {
        &self.nats_url
    }

    /// A NATS link for this instance.
    #[must_use]
    pub fn bus(&self) -> BusSource {
        BusSource::Nats(Box::new(BusConfig::new([self.nats_url.clone()])))
    }

    /// Settings for a worker: everything fast.
    #[must_use]
    pub fn worker_config(&self) -> WorkerConfig {
        WorkerConfig {
            poll_interval: Duration::from_millis(200),
            beat_interval: Duration::from_millis(250),
            session_ttl: Duration::from_millis(1_500),
            catch_up_interval: Duration::from_secs(2),
            database: DatabaseConfig {
                connections: 6,
                ..self.database_config()
            },
            ..WorkerConfig::new(self.instance.clone(), self.database_config(), self.bus())
        }
    }

    /// A worker that is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn worker(&self, registry: Registry) -> Worker {
        self.worker_with(registry, self.worker_config()).await
    }

    /// A worker with these settings that is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn worker_with(&self, registry: Registry, config: WorkerConfig) -> Worker {
        let worker = Worker::start(registry, config)
            .await
            .expect("usable settings");
        until_ready(&worker).await;
        worker
    }

    /// A pool of a program that knows nothing of Continuum's settings: for a caller's own transactions.
    ///
    /// # Panics
    /// If Postgres can't be reached.
    pub async fn foreign_pool(&self) -> sqlx::PgPool {
        sqlx::PgPool::connect(&self.postgres_url)
            .await
            .expect("Postgres answers")
    }

    /// A client in another "process": its own pool and link.
    ///
    /// # Panics
    /// If its settings can't be used.
    pub async fn client(&self) -> Client {
        Client::connect(
            &self.instance,
            self.database_config(),
            self.bus(),
            Limits::default(),
        )
        .await
        .expect("usable settings")
    }

    /// Stops the workers and checks that every invariant holds.
    ///
    /// # Panics
    /// If one does not.
    pub async fn finish(self, workers: impl IntoIterator<Item = Worker>) {
        for worker in workers {
            worker.stop().await;
        }
        check(&self.database).await;
    }
}

/// Waits until a worker says that it is ready.
///
/// # Panics
/// If it does not within the patience of a test.
pub async fn until_ready(worker: &Worker) {
    let mut status = worker.status();
    let ready = status.wait_for(|s| s.state == WorkerState::Ready);
    tokio::time::timeout(PATIENCE, ready)
        .await
        .expect("the worker becomes ready in time")
        .expect("the worker lives");
}
