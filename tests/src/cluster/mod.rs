//! A cluster: worker processes on a Postgres and a NATS of their own, each behind a proxy to either and with a clock of
//! its own, so that a test can do to each whatever a data centre does.

mod fault;
pub mod load;
mod plan;
mod soak;
mod traffic;

use std::time::Duration;

use continuum_schema::migration;
use continuum_worker::Client;
use continuum_worker::dev::{NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres};
use tempfile::NamedTempFile;
use tokio::sync::{Mutex, MutexGuard};
use uuid::Uuid;

pub use fault::{Fault, Injected, Link, ServerStop};
pub use plan::{Plan, Step};
pub use soak::{Episode, Report, episode};
pub use traffic::{Tally, Traffic, publish};

use crate::{
    FakeClock, Left, PATIENCE, ProcessSettings, Proxy, WorkerProcess, World, check, port_of,
};

/// What a cluster is made of.
pub struct ClusterOptions {
    /// The full name of the test that calls [`serve`](crate::serve) with [`load::registry`] or more.
    pub process: &'static str,
    /// How many workers there are.
    pub workers: usize,
    /// Whether commits are flushed to the disk.
    pub fsync: bool,
    /// Changes the settings of each worker.
    pub settings: fn(&mut ProcessSettings),
}

impl ClusterOptions {
    /// So many workers with quick settings: a session that is silent for 1.5 s is taken over.
    #[must_use]
    pub fn new(process: &'static str, workers: usize) -> Self {
        Self {
            process,
            workers,
            fsync: false,
            settings: |settings| settings.session_ttl = Duration::from_millis(1_500),
        }
    }
}

/// The cluster. Members and servers are locked one by one, so that several may be mistreated at the same time.
pub struct Cluster {
    /// The instance, which the test reaches past all proxies.
    pub world: World,
    /// A client that reaches both servers past all proxies.
    pub client: Client,
    /// The database server.
    pub postgres: Mutex<PrivatePostgres>,
    /// The message broker.
    pub nats: Mutex<PrivateNats>,
    /// What the workers really did; see [`carried_out`](crate::carried_out).
    pub ledger: NamedTempFile,
    members: Vec<Mutex<Member>>,
}

impl Cluster {
    /// Starts the servers, and no worker yet.
    ///
    /// # Panics
    /// If a server can't be started.
    pub async fn new(options: &ClusterOptions) -> Self {
        let settings = [("max_connections", "200")];
        let postgres = PrivatePostgres::start(PostgresOptions {
            fsync: options.fsync,
            tcp: true,
            settings: settings.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
            ..PostgresOptions::default()
        });
        let nats = PrivateNats::start(NatsOptions::default());
        let (postgres, nats) = tokio::join!(postgres, nats);
        let postgres = postgres.expect("a private Postgres starts");
        let nats = nats.expect("a private nats-server starts");
        let world = World::at(&postgres.url(), nats.url());
        migration::migrate(&world.database)
            .await
            .expect("the instance is migrated");
        let ledger = NamedTempFile::new().expect("a temporary file");
        let mut members = Vec::new();
        for number in 0..options.workers {
            let mut settings = ProcessSettings::new(&world, format!("w{number}"), ledger.path());
            (options.settings)(&mut settings);
            let member = Member::new(options.process, settings, &postgres, &nats).await;
            members.push(Mutex::new(member));
        }
        Self {
            client: world.client().await,
            world,
            postgres: Mutex::new(postgres),
            nats: Mutex::new(nats),
            ledger,
            members,
        }
    }

    /// A cluster whose workers all have their sessions.
    ///
    /// # Panics
    /// If something can't be started.
    pub async fn start(options: &ClusterOptions) -> Self {
        let cluster = Self::new(options).await;
        for number in 0..cluster.size() {
            cluster.member(number).await.boot();
        }
        for number in 0..cluster.size() {
            cluster.member(number).await.session().await;
        }
        cluster
    }

    /// How many workers there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// One of the workers, for the caller alone.
    pub async fn member(&self, number: usize) -> MutexGuard<'_, Member> {
        self.members[number].lock().await
    }

    /// Waits until the test's own connections lead to the Postgres that runs now.
    ///
    /// # Panics
    /// If they never do.
    pub async fn renew_connections(&self) {
        self.world.database.renew_connections();
        let reached = async {
            while self.world.database.ping().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.expect("Postgres answers");
    }

    /// Lets all workers leave, and checks that every invariant holds and that no connection is left.
    ///
    /// # Panics
    /// If one does not, or if a worker left something behind.
    pub async fn finish(self) {
        for member in self.members {
            let mut member = member.into_inner();
            member.heal();
            if member.is_up() {
                let left = member.leave_early().await;
                let is_clean = left.is_none_or(|left| left.is_clean);
                assert!(is_clean, "{}: {left:?}", member.settings.name);
            }
        }
        self.client.close().await;
        check(&self.world.database).await;
        self.world.database.close().await;
        self.world.until_unconnected().await;
    }
}

/// One worker: a process, its two links and its clock.
pub struct Member {
    /// What its next process is told.
    pub settings: ProcessSettings,
    /// Its link to Postgres.
    pub postgres: Proxy,
    /// Its link to NATS.
    pub nats: Proxy,
    /// Its wall clock.
    pub clock: FakeClock,
    process: Option<WorkerProcess>,
    program: &'static str,
    name: String,
    lives: u32,
}

impl Member {
    async fn new(
        program: &'static str,
        settings: ProcessSettings,
        postgres: &PrivatePostgres,
        nats: &PrivateNats,
    ) -> Self {
        let port = nats.url().rsplit(':').next().and_then(|p| p.parse().ok());
        let (postgres, nats) = (
            Proxy::to(port_of(postgres)).await,
            Proxy::to(port.expect("the URL names a port")).await,
        );
        let clock = FakeClock::new();
        let settings = ProcessSettings {
            postgres_url: postgres.postgres_url(),
            nats_url: nats.nats_url(),
            environment: clock.environment(),
            ..settings
        };
        Self {
            name: settings.name.clone(),
            settings,
            postgres,
            nats,
            clock,
            process: None,
            program,
            lives: 0,
        }
    }

    /// Starts a process. Each life has a name of its own.
    pub fn boot(&mut self) {
        self.boot_with(None);
    }

    /// As [`boot`](Self::boot), with one more environment variable.
    pub fn boot_with(&mut self, variable: Option<(&str, &str)>) {
        self.lives += 1;
        self.settings.name = format!("{}.{}", self.name, self.lives);
        let process = WorkerProcess::start_with(self.program, &self.settings, variable);
        self.process = Some(process);
    }

    /// Whether there is a process that has not ended.
    #[must_use]
    pub fn is_up(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| !process.is_gone())
    }

    /// The process.
    ///
    /// # Panics
    /// If there is none.
    pub fn process(&mut self) -> &mut WorkerProcess {
        self.process.as_mut().expect("it was started")
    }

    /// Waits for the process's next session.
    pub async fn session(&mut self) -> Uuid {
        self.process().session().await
    }

    /// Kills the process.
    ///
    /// # Panics
    /// If there is none.
    pub async fn kill(&mut self) {
        self.process.take().expect("it was started").kill().await;
    }

    /// Lets the process leave in order.
    ///
    /// # Panics
    /// If there is none that serves, or if it does not.
    pub async fn leave(&mut self) -> Left {
        let left = self.leave_early().await;
        left.expect("it says what it left before it ends")
    }

    /// Lets the process leave, which may not have begun to serve.
    ///
    /// # Panics
    /// If there is none, or if it does not.
    pub async fn leave_early(&mut self) -> Option<Left> {
        self.process.take().expect("it was started").leave().await
    }

    /// Mends its links and its clock, and lets its process go on.
    pub fn heal(&mut self) {
        self.postgres.forward();
        self.nats.forward();
        self.clock.set(0);
        if self.is_up() {
            self.process().resume();
        }
    }
}
