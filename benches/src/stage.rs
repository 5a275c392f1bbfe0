//! Where a measurement takes place: private servers, an instance of its own, and a worker in another process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use continuum_bus::BusConfig;
use continuum_schema::{Database, DatabaseConfig, Name, migration};
use continuum_worker::dev::{NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres};
use continuum_worker::{BusSource, Client, Limits, Worker, WorkerConfig, WorkerState};

use crate::flows;

/// How long a worker may take until it is ready.
const READY_PATIENCE: Duration = Duration::from_secs(20);

/// What a worker process prints when it is ready.
const READY: &str = "ready";

/// The servers of all measurements. They end with this process.
pub(crate) struct Servers {
    pub(crate) postgres: PrivatePostgres,
    pub(crate) nats: PrivateNats,
}

impl Servers {
    /// Starts both as production would have them: at their defaults, every commit flushed to the disk.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let (postgres, nats) = tokio::join!(
            PrivatePostgres::start(PostgresOptions::default()),
            PrivateNats::start(NatsOptions::default())
        );
        Ok(Self {
            postgres: postgres?,
            nats: nats?,
        })
    }

    /// A new instance, so that no measurement sees the tables of another.
    pub(crate) async fn stage(&self, instance: &str) -> anyhow::Result<Stage> {
        let place = Place {
            postgres: self.postgres.url(),
            nats: self.nats.url().to_owned(),
            instance: Name::new(instance)?,
        };
        let database = place.database(1)?;
        migration::migrate(&database).await?;
        Ok(Stage { place, database })
    }
}

/// One instance on the servers.
pub(crate) struct Stage {
    pub(crate) place: Place,
    /// One connection, for looking at the instance and for floors.
    pub(crate) database: Database,
}

/// How a process finds the instance; also the arguments of the worker process.
#[derive(Args, Clone, Debug)]
pub(crate) struct Place {
    /// Postgres's URL.
    #[arg(long)]
    postgres: String,
    /// The address of NATS.
    #[arg(long)]
    nats: String,
    /// The instance.
    #[arg(long)]
    instance: Name,
}

impl Place {
    /// The instance's name.
    pub(crate) fn instance(&self) -> &str {
        self.instance.as_str()
    }

    /// A pool of so many connections.
    pub(crate) fn database(&self, connections: u32) -> anyhow::Result<Database> {
        let config = DatabaseConfig {
            connections,
            ..self.database_config()
        };
        Ok(Database::new(config)?)
    }

    fn database_config(&self) -> DatabaseConfig {
        DatabaseConfig::new(self.postgres.clone(), &self.instance)
    }

    fn bus(&self) -> BusSource {
        BusSource::Nats(Box::new(BusConfig::new([self.nats.clone()])))
    }

    /// A client with connections of its own.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let client = Client::connect(
            &self.instance,
            self.database_config(),
            self.bus(),
            Limits::default(),
        )
        .await?;
        client.check().await?;
        Ok(client)
    }
}

/// What differs from a worker's defaults; also arguments of the worker process.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct WorkerSettings {
    /// The most runs in memory.
    #[arg(long)]
    pub(crate) residents_max: Option<usize>,
    /// How long a run that waits stays in memory, in milliseconds.
    #[arg(long)]
    pub(crate) idle_max_ms: Option<u64>,
}

impl WorkerSettings {
    fn arguments(self) -> Vec<String> {
        let residents_max = self
            .residents_max
            .map(|n| ["--residents-max".to_owned(), n.to_string()]);
        let idle_max = self
            .idle_max_ms
            .map(|n| ["--idle-max-ms".to_owned(), n.to_string()]);
        residents_max
            .into_iter()
            .chain(idle_max)
            .flatten()
            .collect()
    }

    fn apply(self, config: &mut WorkerConfig) {
        if let Some(count) = self.residents_max {
            config.residents_max = count;
        }
        if let Some(millis) = self.idle_max_ms {
            config.idle_max = Duration::from_millis(millis);
        }
    }
}

/// A worker in a process of its own, with its settings at their defaults unless it is told otherwise. It stops when this
/// is dropped, and when this process dies.
pub(crate) struct WorkerProcess {
    child: Child,
}

impl WorkerProcess {
    /// Starts this program again as a worker and waits until it is ready.
    pub(crate) fn start(place: &Place) -> anyhow::Result<Self> {
        Self::start_with(place, WorkerSettings::default())
    }

    /// Starts one with other settings.
    pub(crate) fn start_with(place: &Place, settings: WorkerSettings) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .args(["--postgres", &place.postgres])
            .args(["--nats", &place.nats])
            .args(["--instance", place.instance.as_str()])
            .args(settings.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the worker process could not be started")?;
        let output = child
            .stdout
            .take()
            .context("the worker's output is piped")?;
        let worker = Self { child };
        match BufReader::new(output).lines().next() {
            Some(Ok(line)) if line == READY => Ok(worker),
            _ => bail!("the worker process ended before it was ready; it says why above"),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a crash does: `kill -9`.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill()?)
    }

    /// Asks it to stop and doesn't wait for it.
    pub(crate) fn ask_to_stop(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            eprintln!("bench: the worker process could not be awaited: {error}");
        }
    }
}

/// What the worker process does: works until its input ends.
pub(crate) fn work(place: &Place, settings: WorkerSettings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut config =
        WorkerConfig::new(place.instance.clone(), place.database_config(), place.bus());
    settings.apply(&mut config);
    let worker = runtime.block_on(ready_worker(config))?;
    println!("{READY}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(worker.stop());
    Ok(())
}

async fn ready_worker(config: WorkerConfig) -> anyhow::Result<Worker> {
    let worker = Worker::start(flows::registry(), config).await?;
    let mut status = worker.status();
    let ready = status.wait_for(|s| s.state == WorkerState::Ready);
    tokio::time::timeout(READY_PATIENCE, ready)
        .await
        .context("the worker did not become ready")??;
    Ok(worker)
}
