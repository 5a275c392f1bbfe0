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
use continuum_schema::{DatabaseConfig, Name, Pooler};
use continuum_worker::{BusSource, Registry, Worker, WorkerConfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{PATIENCE, World};

/// Where a process finds its settings.
const SETTINGS: &str = "CONTINUUM_TEST_WORKER";

/// What a process writes before the id of each session that it opens.
const SESSION: &str = "opened-session ";

/// What a process writes before it ends by itself: whether it left nothing behind, and the activities handed back.
const LEFT: &str = "left ";

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
    /// The longest that work waits when no hint arrives.
    pub poll_interval: Duration,
    /// The time between two catch-up passes.
    pub catch_up_interval: Duration,
    /// The longest that a statement may take, and a transaction be idle.
    pub statement_timeout: Duration,
    /// Whether it works as behind a pooler in transaction mode: every statement in a transaction of its own.
    pub is_pooled: bool,
    /// How often the owners of a run may die without a new event.
    pub crashes_max: i32,
    /// Further environment variables.
    pub environment: Vec<(String, String)>,
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
            poll_interval: Duration::from_millis(200),
            catch_up_interval: Duration::from_secs(1),
            statement_timeout: Duration::from_secs(30),
            is_pooled: false,
            crashes_max: 20,
            environment: Vec::new(),
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
            statement_timeout: self.statement_timeout,
            pooler: match self.is_pooled {
                true => Pooler::Transaction,
                false => Pooler::None,
            },
            ..DatabaseConfig::new(&self.postgres_url, &instance)
        };
        let bus = BusSource::Nats(Box::new(BusConfig::new([self.nats_url.clone()])));
        WorkerConfig {
            name: self.name.clone(),
            poll_interval: self.poll_interval,
            catch_up_interval: self.catch_up_interval,
            crashes_max: self.crashes_max,
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
        let environment = settings.environment.clone();
        let settings = serde_json::to_string(settings).expect("plain data");
        let mut child = Command::new(program)
            .args([test, "--exact", "--nocapture"])
            .env(SETTINGS, settings)
            .envs(variable)
            .envs(environment)
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

    /// Asks the process to leave as an orchestrator does, by SIGTERM, and waits until it has. One that has only begun to
    /// start ends without a word.
    ///
    /// # Panics
    /// If it does not within the patience of a test.
    pub async fn leave(mut self) -> Option<Left> {
        self.signal(Signal::SIGTERM);
        let leaving = async {
            let mut left = None;
            while let Some(line) = self.lines.next_line().await.expect("its output is text") {
                if let Some((_, words)) = line.split_once(LEFT) {
                    left = Left::read(words);
                }
            }
            self.child.wait().await.expect("it is our child");
            left
        };
        tokio::time::timeout(PATIENCE, leaving)
            .await
            .expect("the process leaves in time")
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

/// What a process said as it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Whether nothing was left for others to find.
    pub is_clean: bool,
    /// Activities that were handed back before their end.
    pub handed_back: usize,
}

impl Left {
    fn read(words: &str) -> Option<Self> {
        let (is_clean, handed_back) = words.trim().split_once(' ')?;
        Some(Self {
            is_clean: is_clean.parse().ok()?,
            handed_back: handed_back.parse().ok()?,
        })
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
        .with_env_filter(log_filter())
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
    let mut asked_to_leave = signal(SignalKind::terminate()).expect("a handler");
    tokio::select! {
        () = tell => {}
        _ = orphaned => {}
        _ = asked_to_leave.recv() => {
            let drained = worker.stop().await;
            println!("\n{LEFT}{} {}", drained.is_clean(), drained.activities_handed_back);
        }
    }
}

/// Errors only, unless it is told otherwise; that a server is away is no error here.
fn log_filter() -> tracing_subscriber::EnvFilter {
    tracing_subscriber::EnvFilter::try_from_env("CONTINUUM_TEST_LOG")
        .unwrap_or_else(|_| "error,async_nats=off".into())
}

/// The parent writes nothing: whatever ends the read says that it is gone.
fn wait_for_orphanhood(parent: oneshot::Sender<()>) {
    drop(std::io::stdin().read(&mut [0]));
    drop(parent);
}
