//! Workers in processes of their own: what is needed to kill one with a signal that nobody can catch, or to stop its
//! clock for a while.
//!
//! The program is the test binary itself, told to run one test, which is [`serve`]. A process ends with the test that
//! started it, however that ends: its standard input is a pipe that closes.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use continuum_bus::BusConfig;
use continuum_schema::{DatabaseConfig, Name};
use continuum_worker::{BusSource, Registry, Worker, WorkerConfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{PATIENCE, World};

/// Where a process finds its settings.
const SETTINGS: &str = "CONTINUUM_TEST_WORKER";

/// What a process writes before the id of each session that it opens.
const SESSION: &str = "opened-session ";

/// What a worker process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessSettings {
    /// The instance that it serves.
    pub instance: String,
    /// Where Postgres is.
    pub postgres_url: String,
    /// Where NATS is.
    pub nats_url: String,
    /// Its name, unique among the processes of a test.
    pub name: String,
    /// Where its code notes what it does.
    pub log: PathBuf,
    /// The time between two heartbeats.
    pub beat_interval: Duration,
    /// The silence after which others may take over.
    pub session_ttl: Duration,
    /// How long a run that waits stays in memory.
    pub idle_max: Duration,
    /// The time between two looks at who holds the residents.
    pub resident_interval: Duration,
}

impl ProcessSettings {
    /// The settings of a worker for `world`: everything fast, and dead sessions are found by their time-out late.
    #[must_use]
    pub fn new(world: &World, name: impl Into<String>, log: impl Into<PathBuf>) -> Self {
        Self {
            instance: world.instance.to_string(),
            postgres_url: world.database_config().url,
            nats_url: world.nats_url().to_owned(),
            name: name.into(),
            log: log.into(),
            beat_interval: Duration::from_millis(200),
            session_ttl: Duration::from_secs(20),
            idle_max: Duration::from_secs(60),
            resident_interval: Duration::from_millis(200),
        }
    }

    /// The settings that this process was started with; `None` where it is no worker process.
    ///
    /// # Panics
    /// If they can't be read.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let settings = std::env::var(SETTINGS).ok()?;
        Some(serde_json::from_str(&settings).expect("the parent wrote readable settings"))
    }

    fn worker_config(&self) -> WorkerConfig {
        let instance = Name::new(&self.instance).expect("the parent wrote a valid name");
        let database = DatabaseConfig {
            connections: 4,
            ..DatabaseConfig::new(&self.postgres_url, &instance)
        };
        let bus = BusSource::Nats(Box::new(BusConfig::new([self.nats_url.clone()])));
        WorkerConfig {
            name: self.name.clone(),
            poll_interval: Duration::from_millis(200),
            catch_up_interval: Duration::from_secs(1),
            beat_interval: self.beat_interval,
            session_ttl: self.session_ttl,
            idle_max: self.idle_max,
            resident_interval: self.resident_interval,
            ..WorkerConfig::new(instance, database, bus)
        }
    }
}

/// A worker in a process of its own. Dropping it kills it.
pub struct WorkerProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    _stdin: ChildStdin,
}

impl WorkerProcess {
    /// Starts the test binary again as a worker. `test` is the full name of the test that calls [`serve`].
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start(test: &str, settings: &ProcessSettings) -> Self {
        Self::start_with(test, settings, None)
    }

    /// Like [`WorkerProcess::start`], with one more environment variable.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start_with(
        test: &str,
        settings: &ProcessSettings,
        variable: Option<(&str, &str)>,
    ) -> Self {
        let program = std::env::current_exe().expect("a running program has a path");
        let settings = serde_json::to_string(settings).expect("plain data");
        let mut child = Command::new(program)
            .args([test, "--exact", "--nocapture"])
            .env(SETTINGS, settings)
            .envs(variable)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the test binary can be started again");
        let stdout = child.stdout.take().expect("it was piped");
        Self {
            lines: BufReader::new(stdout).lines(),
            _stdin: child.stdin.take().expect("it was piped"),
            child,
        }
    }

    /// Waits for the process's next session.
    ///
    /// # Panics
    /// If none opens within the patience of a test.
    pub async fn session(&mut self) -> Uuid {
        let found = async {
            loop {
                let line = self.lines.next_line().await.expect("its output is text");
                let line = line.expect("the process lives");
                if let Some((_, id)) = line.split_once(SESSION) {
                    return id.trim().parse().expect("a session id");
                }
            }
        };
        tokio::time::timeout(PATIENCE, found)
            .await
            .expect("the process opens a session in time")
    }

    /// Kills the process, which can do nothing about it, and waits until it is gone.
    ///
    /// # Panics
    /// If it is gone already.
    pub async fn kill(mut self) {
        self.child
            .kill()
            .await
            .expect("the process lived until now");
    }

    /// Whether the process has ended by itself.
    ///
    /// # Panics
    /// If that can't be known.
    pub fn is_gone(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// Halts the process where it is.
    ///
    /// # Panics
    /// If it is gone.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets a halted process go on.
    ///
    /// # Panics
    /// If it is gone.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("the process was not waited for");
        kill(Pid::from_raw(pid.cast_signed()), signal).expect("the process lives");
    }
}

/// The body of the test that is a worker process. In any other process it does nothing.
///
/// # Panics
/// If the worker can't be started.
pub async fn serve(registry: Registry) {
    let Some(settings) = ProcessSettings::of_this_process() else {
        return;
    };
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env(
            "CONTINUUM_TEST_LOG",
        ))
        .with_writer(std::io::stderr)
        .init();
    let worker = Worker::start(registry, settings.worker_config())
        .await
        .expect("usable settings");
    let mut status = worker.status();
    let tell = async {
        let mut told = None;
        loop {
            let session = status.borrow_and_update().session;
            if let Some(id) = session.filter(|_| session != told) {
                told = session;
                println!("\n{SESSION}{id}");
            }
            status.changed().await.expect("the worker lives");
        }
    };
    let (parent, orphaned) = oneshot::channel();
    std::thread::spawn(|| wait_for_orphanhood(parent));
    tokio::select! {
        () = tell => {}
        _ = orphaned => {}
    }
}

/// The parent writes nothing: whatever ends the read says that it is gone.
fn wait_for_orphanhood(parent: oneshot::Sender<()>) {
    drop(std::io::stdin().read(&mut [0]));
    drop(parent);
}
